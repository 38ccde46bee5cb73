"""What is learned: a module with its loss and its metrics, the papers' models, and how a model becomes a flat row."""

from palmette.task.task import LOSSES as LOSSES
from palmette.task.task import AddressedDropout as AddressedDropout
from palmette.task.task import Task as Task
from palmette.task.task import by_class as by_class
from palmette.task.task import make_task as make_task
from palmette.task.task import signs as signs
