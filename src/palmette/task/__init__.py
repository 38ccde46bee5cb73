"""What is learned: a module with its loss and its metrics, the papers' models, and how a model becomes a flat row."""

from palmette.task.losses import LOSSES as LOSSES
from palmette.task.losses import by_class as by_class
from palmette.task.losses import signs as signs
from palmette.task.making import make_task as make_task
from palmette.task.task import AddressedDropout as AddressedDropout
from palmette.task.task import Task as Task
