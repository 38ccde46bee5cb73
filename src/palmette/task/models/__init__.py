"""The models of the papers, each made from the shape of a sample and the number of classes.

Initial weights are drawn from an addressed generator, so a model depends on the run's seed and on nothing else.
"""

from palmette.task.models.flat import dnn, linear, logistic, mclr
from palmette.task.models.images import cnn, resnet, vgg
from palmette.task.models.model import Model
from palmette.task.models.text import charlstm, lm, transformer

_COLOUR = "colour images of 32 x 32 pixels in ten classes"

MODELS: dict[str, Model] = {
    "mclr": Model(mclr, "native"),
    "dnn": Model(dnn, "native"),
    "cnn": Model(cnn),
    "vgg": Model(vgg, otherwise={"norm=batch": "loop"}, shape=(3, 32, 32), example=_COLOUR),
    "resnet": Model(resnet, otherwise={"norm=batch": "loop"}, shape=(3, 32, 32), example=_COLOUR),
    "linear": Model(linear, "native"),
    "logistic": Model(
        logistic, "native", shape=(20,), outputs=2, example="samples of 20 numbers in two classes", loss="logistic"
    ),
    "lm": Model(
        lm,
        "loop",
        shape=(20,),
        outputs=10_000,
        tokens=10_000,
        example="texts of 20 words out of 10,000, without their spelling",
        data="shakespeare",
    ),
    "charlstm": Model(
        charlstm,
        "loop",
        shape=(80,),
        outputs=82,
        tokens=82,
        example="texts of 80 characters out of 82",
        data="shakespeare",
    ),
    "transformer": Model(
        transformer,
        shape=(20,),
        outputs=10_000,
        tokens=10_000,
        example="texts of 20 words out of 10,000",
        data="shakespeare",
    ),
}
"""Every model with a name: what makes it, and the backends that compute it."""
