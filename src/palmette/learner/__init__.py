"""Local work of devices: stacks of rows, addressed batches, interchangeable backends."""

from palmette.learner.backends import Batch as Batch
from palmette.learner.learner import Halted as Halted
from palmette.learner.learner import Learner as Learner
from palmette.learner.optimisers import Optimiser as Optimiser
from palmette.learner.outputs import Outputs as Outputs
from palmette.learner.routine import Mix as Mix
from palmette.learner.routine import Move as Move
from palmette.learner.routine import Routine as Routine
from palmette.learner.scores import Scorer as Scorer
from palmette.learner.smoothness import Curvature as Curvature
from palmette.learner.smoothness import curvature as curvature
from palmette.learner.smoothness import power as power
from palmette.learner.steps import Epochs as Epochs
from palmette.learner.work import LocalWork as LocalWork
