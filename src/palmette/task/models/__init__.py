"""The models of the papers, each made from the shape of a sample and the number of classes.

Initial weights are drawn from an addressed generator, so a model depends on the run's seed and on nothing else.
"""

from palmette.task.models.flat import dnn, linear, logistic, mclr
from palmette.task.models.images import cnn, resnet, vgg
from palmette.task.models.model import Model

_COLOUR = "colour images of 32 x 32 pixels in ten classes"

MODELS: dict[str, Model] = {
    "mclr": Model(mclr),
    "dnn": Model(dnn),
    "cnn": Model(cnn),
    "vgg": Model(vgg, otherwise={"norm=batch": "vmap"}, shape=(3, 32, 32), example=_COLOUR),
    "resnet": Model(resnet, "vmap", shape=(3, 32, 32), example=_COLOUR),
    "linear": Model(linear),
    "logistic": Model(
        logistic, shape=(20,), outputs=2, example="samples of 20 numbers in two classes", loss="logistic"
    ),
}
