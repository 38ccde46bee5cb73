"""The models of the papers, each made from the shape of a sample and the number of classes.

Initial weights are drawn from an addressed generator, so a model depends on the run's seed and on nothing else.
"""

from palmette.task.models.flat import dnn, linear, logistic, mclr
from palmette.task.models.images import cnn
from palmette.task.models.model import Model

MODELS: dict[str, Model] = {
    "mclr": Model(mclr),
    "dnn": Model(dnn),
    "cnn": Model(cnn),
    "linear": Model(linear),
    "logistic": Model(logistic, (20,), 2, example="samples of 20 numbers in two classes", loss="logistic"),
}
