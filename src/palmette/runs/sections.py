"""The parts of a config: data, model, engine, and objects that it cannot hold."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from palmette.datasets import DATASETS
from palmette.protocol.settings import NUMBER
from palmette.tables import is_own, label_of
from palmette.task.own import title


class Part(BaseModel):
    """A part of a config: it does not change, and knows all its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


MOST_THREADS = 1024  # more than any machine has cores for
Seed = Annotated[int, Field(ge=0, lt=2**63), NUMBER]


# A layer's name may be a number, which a command line reads as one.
Pattern = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]


class DataConfig(Part):
    """The data set of a run, by name; further keys are options of the data set or of the partition.

    Attributes:
        name: Data set: a name that ``palmette list datasets`` shows, or the path of your own data.
        folder: Folder with the files of data sets; by default the one that the environment variable
            PALMETTE_DATA names, or the user's cache folder.
        seed: Random seed of the partition, the teams and the split; by default the run's.
        tree: Tree that the samples are dealt out on where teams are found afterwards (data.teams = found); by default the
            run's tree.
        validation: Validation share, for choosing settings: each device is tested on this part of its training samples, which
            it does not train on, and its test samples are left out.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    name: str = "digits"
    folder: str | None = None
    seed: Seed | None = None
    tree: str | int | list[int] | list[str] | dict[str, Any] | None = None
    validation: float | None = Field(None, gt=0, lt=1)

    @property
    def own(self) -> bool:
        """Whether the data are the user's own, known by their path."""
        return is_own(self.name)

    @property
    def natural(self) -> bool:
        """Whether it is a data set with devices and teams of its own."""
        return self.name in DATASETS and DATASETS[self.name].natural

    @property
    def found(self) -> bool:
        """Whether teams are found after the samples were dealt out."""
        return (self.model_extra or {}).get("teams") == "found"

    @property
    def planted(self) -> bool:
        """Whether the tree comes with the data: the user's own, with devices and teams of their own, or with found teams."""
        return self.own or self.natural or self.found

    @property
    def label(self) -> str:
        """What the data are called in the name of a folder."""
        return label_of(self.name)

    @property
    def title(self) -> str:
        """What the data are called in a table or a sentence: of a path, the last part."""
        return Path(self.name).name if self.own else self.name


class ModelConfig(Part):
    """The model of a run, by name; further keys are the model's own settings.

    Attributes:
        name: Model: a name that ``palmette list models`` shows; or one of your own by its import path, ``my_module:make``, or
            its file, ``mine.py:make``.
        l2: Weight decay: adds l2 / 2 times the squared norm of the model to every device's loss.
        loss: Loss function: ``"cross-entropy"``, ``"squared"`` or ``"logistic"``; by default the one that fits the labels.
        seed: Random seed of the initial weights; by default the run's.
        parts: Parts of the model, by name, as in model.parts.head = "last(1)": a layer's name, a pattern of parameter names
            such as "4.*", or last(n) and first(n) for layers from either end; also a list of these, [] for
            none. The rest is the part body.
        freeze: Parameters that are not trained, not sent and kept once, named in the same way.
        buffers: Where the running statistics of batch normalisation belong: ``"own"``, each device keeps its own, or
            ``"averaged"``, they are averaged with the models; the default for models with a name.
    """

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    name: str = "mclr"
    l2: float = Field(0.0, ge=0)
    loss: str | None = None
    seed: Seed | None = None
    parts: dict[Annotated[str, "a part"], Pattern | list[Pattern]] = {}
    freeze: Pattern | list[Pattern] = []
    buffers: Literal["own", "averaged"] | None = None

    @property
    def title(self) -> str:
        """What the model is called in a table or a sentence: of a file, its name without the folder."""
        return title(self.name)

    @property
    def options(self) -> dict[str, Any]:
        """The model's own settings."""
        return {name: value for name, value in self if name not in ModelConfig.model_fields}

    @property
    def about(self) -> dict[str, Any]:
        """What can be said of any model, also of a module of the user's own."""
        return {"l2": self.l2, "parts": self.parts, "freeze": self.freeze, "buffers": self.buffers}


class Given(Part):
    """An object that a config cannot hold.

    Attributes:
        object: Where it is imported from: with dots for an object that Python gave, ``module:Class`` or ``file.py:Class`` for
            an algorithm or a model that can be made again from there.
        hash: A hash of its source, of its parameters or of its samples; empty where there is no source to be found.
    """

    object: str
    hash: str = ""

    @property
    def again(self) -> bool:
        """Whether it can be made again from where it is imported; an object of Python is written with dots alone."""
        return ":" in self.object


class EngineConfig(Part):
    """How a run is computed; only ``dtype``, ``chunk``, ``backend`` and ``device`` can change the rounding of a result.

    Attributes:
        backend: Backend, the way gradients are computed: ``"native"`` (dense models in a compiled kernel),
            ``"fused"``, ``"vmap"`` (many devices at once) or ``"loop"`` (one after the other). ``"auto"`` takes the one that is
            fastest for layers of such a size, by a rule that depends on the model, the samples' shape and the batch size, and
            on whether the kernel was built.
        took: Backend that computed a run, in its config.toml; Palmette writes it. ``palmette resume`` goes on with it.
        dtype: Floating-point type of models and gradients.
        device: Torch device that computes, such as ``"cpu"`` or ``"cuda"``.
        chunk: Devices that are computed together; by default chosen from the size of the model.
        held_out: Share of each device's training samples kept out of training, for methods that choose a setting on them.
        store: Where to keep the devices' models and states between rounds: ``"memory"``, or ``"disk"`` for a file in the
            run's folder; ``"auto"`` takes the file when it is more than 1 GiB.
        keep_state: Whether a finished run keeps its last state, so that it can be given more rounds; it takes about
            as much room as the models, or more where devices keep more than their model.
        threads: Threads that compute at the same time; by default one per core. No result depends on it.
        check_steps: Whether to hold step sizes against the curvature of the losses before the first round, and to warn of
            those that are far too large; of a network it is estimated on a few devices, which takes a second or so.
    """

    backend: str = "auto"
    took: str | None = None
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    chunk: int | None = Field(None, ge=1)
    held_out: float | None = Field(None, ge=0, lt=1)
    store: Literal["memory", "disk", "auto"] = "auto"
    keep_state: bool = True
    threads: Annotated[int, Field(ge=1, le=MOST_THREADS), NUMBER] | None = None
    check_steps: bool = True


def names(given: Any) -> Any:
    """Return names, also of a text with commas between them."""
    return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else given
