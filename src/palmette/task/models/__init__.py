"""The models of the papers, each made from the shape of a sample and the number of classes.

Initial weights are drawn from an addressed generator, so a model depends on the run's seed and on nothing else.
"""

from collections.abc import Callable

from torch import nn

from palmette.task.models.flat import dnn, linear, mclr
from palmette.task.models.images import cnn

MODELS: dict[str, Callable[..., nn.Module]] = {"mclr": mclr, "dnn": dnn, "cnn": cnn, "linear": linear}
