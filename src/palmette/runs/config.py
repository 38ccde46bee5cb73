"""What a run is made of: one checked description that can be written down and run again."""

from __future__ import annotations

import dataclasses
import platform
import tomllib
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tomli_w
import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from palmette.algorithms import algorithm, kind_of, source_of
from palmette.datasets import DATASETS
from palmette.engines import rules
from palmette.engines.measures import check_measures
from palmette.engines.store import rows_bytes
from palmette.errors import BadInput, nearest
from palmette.files import MissingFile, is_file
from palmette.learner import Optimiser
from palmette.learner.learner import keeps
from palmette.links import Link, Participation
from palmette.population import Population, make_population
from palmette.population.validation import for_choosing
from palmette.protocol import Algorithm
from palmette.protocol.sentences import brief, sentences, suggestion
from palmette.protocol.settings import NUMBER, Count
from palmette.runs.objects import hash_code, import_path, named_objects, recipe_of
from palmette.tables import is_own, label_of, open_data
from palmette.task import Task, make_task
from palmette.task.own import find, is_path, title, whole_path
from palmette.tree import Tree
from palmette.values import one_line, plain, shown, unwritable

_ROUNDS = 20
_IN_MEMORY = 1 << 30  # bytes of devices' rows that "auto" keeps in memory


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Seed = Annotated[int, Field(ge=0, lt=2**63), NUMBER]


# A layer's name may be a number, which a command line reads as one.
Pattern = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]


class DataConfig(_Part):
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


class ModelConfig(_Part):
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


class Given(_Part):
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


class EngineConfig(_Part):
    """How a run is computed; only ``dtype``, ``chunk``, ``backend`` and ``device`` can change the rounding of a result.

    Attributes:
        backend: Backend, the way gradients are computed: ``"fused"``, ``"vmap"`` or ``"loop"``; ``"auto"`` takes the
            first of these that can compute the model.
        dtype: Floating-point type of models and gradients.
        device: Torch device that computes, such as ``"cpu"`` or ``"cuda"``.
        chunk: Devices that are computed together; by default chosen from the size of the model.
        held_out: Share of each device's training samples kept out of training, for methods that choose a setting on them.
        store: Where to keep the devices' models and states between rounds: ``"memory"``, or ``"disk"`` for a file in the
            run's folder; ``"auto"`` takes the file when it is more than 1 GiB.
        keep_state: Whether a finished run keeps its last state, so that it can be given more rounds; it takes about
            as much room as the models, or more where devices keep more than their model.
    """

    backend: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    chunk: int | None = Field(None, ge=1)
    held_out: float | None = Field(None, ge=0, lt=1)
    store: Literal["memory", "disk", "auto"] = "auto"
    keep_state: bool = True


def _names(given: Any) -> Any:
    """Return names, also of a text with commas between them."""
    return [name.strip() for name in given.split(",") if name.strip()] if isinstance(given, str) else given


class RunConfig(_Part):
    """Everything that determines the result of a run.

    Attributes:
        algorithm: Algorithm: its name; or one of your own by its import path, ``my_module:MyMethod``, or its file, ``mine.py``.
        settings: Settings of the algorithm; in the config.toml of a run, all of them.
        rounds: Number of (global) communication rounds; by default 20, or what the algorithm's settings ask for.
        seed: Random seed; it decides the partition, the participation, the batches and the initial model.
        tree: Tree of server, teams and devices: ``"4x10"`` is four teams of ten devices; also a list of the teams' sizes, or a
            table of names.
        server: Name of the server, where it has one of its own.
        data: Data: a data set and how its samples come to the devices.
        model: Model that is learned.
        optimiser: Optimiser of the devices' gradient steps.
        participation: Client sampling: who is asked in each exchange, by tier, as in ``devices = 0.5`` and ``teams = "all"``.
        loss: Failure rate: the probability that a node that was asked does not answer (not the loss function,
            which is model.loss).
        evaluate_every: Rounds between two evaluations; ``"auto"`` chooses it so that evaluation takes a small part of
            the run. The last round is always evaluated.
        metrics: Further metrics, as in ``auc,f1``: auc, f1, balanced-accuracy, calibration, perplexity; for regression r2 and
            rmse; or your own function by its import path, as in ``my_module:my_metric``.
        engine: How it is computed.
        given: What the caller handed over as objects and a config cannot make again, by role: ``algorithm``, ``data``,
            ``model``, ``loss``, ``metrics``.
        versions: Versions of Palmette, Python and torch that made the run; others may round differently.
    """

    algorithm: str
    settings: dict[str, Any] = {}
    rounds: Count = _ROUNDS
    seed: Seed = 0
    tree: str | int | list[int] | list[str] | dict[str, Any] = "4x10"
    server: str | None = None
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    optimiser: Optimiser = Optimiser()
    participation: dict[str, str | int | float] = {}
    loss: float = Field(0.0, ge=0, lt=1)
    evaluate_every: Literal["auto"] | Count = "auto"
    metrics: Annotated[list[str], BeforeValidator(_names)] = []
    engine: EngineConfig = EngineConfig()
    given: dict[Literal["algorithm", "data", "model", "loss", "metrics"], Given] = {}
    versions: dict[str, str] = {}

    @property
    def source(self) -> str:
        """What makes the algorithm again: its name, import path or file; nothing where it was given as an object."""
        if ":" in self.algorithm or "algorithm" not in self.given:
            return self.algorithm
        given = self.given["algorithm"]
        return given.object if given.again else ""

    @property
    def label(self) -> str:
        """What the algorithm is called in the name of a folder: of an import path or a file, the class."""
        return self.algorithm.rpartition(":")[2]

    @property
    def title(self) -> str:
        """What the algorithm is called in a table or a sentence: of a file, its name without the folder."""
        file = Path(self.algorithm)
        if not is_file(self.algorithm):
            return self.algorithm
        return f"{file.parent.name}/{file.name}" if file.name.startswith("__init__.py") else file.name

    def method(self) -> Algorithm:
        """Make the algorithm."""
        if not self.source:
            self._refuse("algorithm", "method=the algorithm")
        try:
            return algorithm(self.source, **self.settings)
        except MissingFile as error:
            raise BadInput(
                f"the algorithm of this run is {self.source}, and {error}. Put the file back, or say where it is now: palmette "
                "resume FOLDER --algorithm FILE"
            ) from None

    def changed_code(self) -> str:
        """Say that an algorithm or a model of the user's own is not what it was when this config was made, or nothing."""
        given = self.given.get("algorithm")
        if given is not None and self.source and given.hash not in ("", hash_code(kind_of(self.source))):
            return f"the code of {self.source} is not what it was"
        return self.changed_model()

    def changed_model(self) -> str:
        """Say that the code of a model of the user's own is not what it was when this config was made, or nothing."""
        model = self.given.get("model")
        if model is not None and model.again and model.hash not in ("", hash_code(find(model.object))):
            return f"the code of {model.object} is not what it was"
        return ""

    def population(self) -> Population:
        """Make the population."""
        self._refuse("data", "population=the population")
        known = {"name", "seed", "validation", "tree"}
        options = {name: value for name, value in self.data if name not in known and value is not None}
        seed = self.seed if self.data.seed is None else self.data.seed
        if self.data.tree is not None and (self.data.own or self.data.natural or not self.data.found):
            raise BadInput(
                "data.tree is the tree that samples are dealt out on before teams are found; leave it out, or set "
                "data.teams=found on a data set that is dealt out"
            )
        if self.data.own:
            made = open_data(self.data.name, seed=seed, **options)
        else:
            tree = None if self.data.natural else self.make_tree(self.data.tree)
            made = make_population(self.data.name, tree=tree, seed=seed, **options)
        return made if self.data.validation is None else for_choosing(made, self.data.validation)

    def on(self, population: Population, method: Algorithm) -> RunConfig:
        """Return the config with what only the data can say: the tree, where it is theirs, and what follows from it."""
        if not self.data.planted:
            return self
        known: dict[str, Any] = {"tree": population.tree.spec()}
        if "rounds" not in self.model_fields_set:
            known["rounds"] = rounds_of(method, population.tree)
        return self.model_copy(update=known)

    def make_tree(self, what: Any = None) -> Tree:
        """Make the tree, or one of another form with the same server."""
        tree = Tree.parse(self.tree if what is None else what)
        return tree if self.server is None else Tree(tree.parents, (*tree.labels[:-1], (self.server,)))

    def task(self, population: Population) -> Task:
        """Make the task for a population."""
        for role in ("model", "loss", "metrics"):
            self._refuse(role, "model=the module, or a pm.Task with its loss and metrics")
        model = self.model
        seed = self.seed if model.seed is None else model.seed
        try:
            task = make_task(
                *(model.name, population.shape, population.classes),
                words=population.words,
                **{"seed": seed, "loss": model.loss, **model.about, **model.options},
            )
        except MissingFile as error:
            raise BadInput(
                f"the model of this run is {model.name}, and {error}. Put the file back, or say where it is now: palmette "
                "resume FOLDER --model FILE:NAME"
            ) from None
        if "model" in self.given and recipe_of(task, population) is None:
            raise BadInput(
                f"{model.title} makes another model when it is called again with the same seed, so that a run could not be "
                "repeated; draw all its random numbers with torch, or from the argument seed"
            )
        return task

    def _refuse(self, role: str, how: str) -> None:
        """Say which object is missing and how to give it."""
        given = self.given.get(role)  # type: ignore[call-overload]
        if given is not None and not (role == "model" and given.again):
            which = f"{given.object}, hash {given.hash}" if given.hash else given.object
            raise BadInput(
                f"the {role} of this run was an object of your own ({which}), which a config cannot hold; give it in "
                f"Python: pm.rerun(FOLDER, {how}) for a new run, pm.resume(FOLDER, {how}) to go on with this one"
            )

    def links(self, tree: Tree, *, flat: bool = False) -> dict[int, Link]:
        """Make the links of a tree.

        Args:
            tree: The population's tree.
            flat: Whether the method does without teams, so that its devices are all the server's.
        """
        names = {"devices": 0, "teams": 1} | {f"tier{tier}": tier for tier in range(2, tree.top)}
        names = {name: tier for name, tier in names.items() if tier < tree.top}
        for name in self.participation:
            if name not in names:
                raise BadInput(f"participation: this tree ({tree}) has no {name!r} to ask{nearest(name, names)}")
        for name, value in self.participation.items():
            used = {"devices": tree.devices} if flat else {name: int(np.diff(tree.offsets[names[name]]).max())}
            if Participation.ambiguous(value) and used.get(name, 1) > 1:
                raise BadInput(
                    f"participation.{name} = {value!r} may mean one of {used[name]} {name} or all of them; "
                    f"write '1 {name.removesuffix('s') if names[name] < 2 else 'node'}' or '100%'"
                )
        drawn = {names[name]: Participation.parse(value, name) for name, value in self.participation.items()}
        return {tier: Link(drawn.get(tier, Participation()), self.loss) for tier in range(tree.top)}

    def dtype(self) -> torch.dtype:
        """Return the type of the rows."""
        return torch.float64 if self.engine.dtype == "float64" else torch.float32

    def store(self, method: Algorithm, population: Population, task: Task, folder: Path) -> Path | str:
        """Return where the devices' rows lie: ``"memory"`` or the run's folder."""
        tree = population.tree.flat() if method.flat else population.tree
        work = keeps(task, self.optimiser, self.dtype())
        rows = rules.stored(method, tree, 0, task.layout, task.initial(self.dtype()), work)
        kept = rows_bytes(tree.devices, rows)
        on_disk = self.engine.store == "disk" or (self.engine.store == "auto" and kept > _IN_MEMORY)
        return folder if on_disk else "memory"

    def resolved(self, method: Algorithm, population: Population, task: Task) -> RunConfig:
        """Return the config with everything written out that the run depends on: settings, recipes, objects, versions."""
        named = named_objects(method, population, task)
        settings = dataclasses.asdict(method)  # type: ignore[call-overload]
        if "algorithm" not in named or self.source:  # once more as they will be read: a default may be 1, not 1.0
            again = algorithm(self.source if "algorithm" in named else method.name, **settings)
            settings = dataclasses.asdict(again)  # type: ignore[call-overload]
        if "algorithm" in named and self.source:
            named["algorithm"] = source_of(self.source), named["algorithm"][1]
        values: dict[str, Any] = {
            "settings": settings,
            "model": about(task),
            "given": {role: {"object": path, "hash": digest} for role, (path, digest) in named.items()},
            "versions": versions(),
        }
        if population.recipe is not None:
            values["data"] = dict(population.recipe.values)
            if population.recipe.seed != self.seed:
                values["data"]["seed"] = population.recipe.seed
        if (recipe := recipe_of(task, population)) is not None:
            seed = recipe.pop("seed")
            values["model"] |= recipe if seed == self.seed else {**recipe, "seed": seed}
        if isinstance(task.loss, str):
            values["model"]["loss"] = task.loss
        return RunConfig.model_validate({**self.model_dump(), **values})

    def to_toml(self) -> str:
        """Write the config as TOML; what is unset is left out."""
        values = self.model_dump()
        if self.optimiser == Optimiser():
            del values["optimiser"]  # plain gradient descent goes without saying
        for name in ("parts", "freeze"):
            values["model"] = {key: value for key, value in values["model"].items() if key != name or value}
        return tomli_w.dumps(_plain(values))


def about(task: Task) -> dict[str, Any]:
    """Return what a config says of any model, read from a task."""
    return {
        "name": task.name if task.recipe is None else task.recipe["name"],
        "l2": task.l2,
        "parts": dict(task.parts),
        "freeze": task.freeze if isinstance(task.freeze, str) else list(task.freeze),
        "buffers": task.buffers,
    }


def versions() -> dict[str, str]:
    """Return the versions that the last bits of a result may depend on."""
    return {"palmette": version("palmette"), "python": platform.python_version(), "torch": torch.__version__}


def read_config(path: Path) -> dict[str, Any]:
    """Read a config file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"there is no config file {path}") from None
    except (ValueError, OSError, RecursionError) as error:  # among them what is no TOML, no UTF-8, or has no end
        raise BadInput(f"cannot read config {path}: {error}") from None


# What pydantic adds to a key that may be of several kinds.
_BRANCHES = ("literal", "function", "constrained", "str", "int", "float", "list[", "dict[")


def make_config(values: Mapping[str, Any]) -> RunConfig:
    """Check a config and everything in it that can be checked without data; all problems are told at once."""
    values = plain(values)
    given = values.get("given", {})
    # Settings of any kind; a run is read also where an algorithm of its user's own cannot be imported.
    own = isinstance(given, Mapping) and "algorithm" in given
    problems = unwritable({key: value for key, value in values.items() if not (own and key == "settings")})
    if problems:
        raise BadInput("; ".join(map(one_line, problems)))
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as error:
        found: dict[str, list[str]] = {}  # what is wrong, by key: one of several kinds has a message for each
        for item in error.errors():
            where = ".".join(str(part) for part in item["loc"] if not str(part).startswith(_BRANCHES))
            if item["type"] == "extra_forbidden":
                problems.append(f"unknown setting {where!r}{suggestion(where.split('.')[-1], _known(where))}")
            else:
                said = item["msg"].removeprefix("Value error, ").removeprefix("Input ").removeprefix("should be ")
                found.setdefault(f"{where}\0{shown(item['input'])}", []).append(said)
        for key, told in found.items():
            where, _, value = key.partition("\0")
            about = _known(where).get(where.split(".")[-1])
            why = f" ({brief(about)})" if about else ""
            problems.append(f"{where}: should be {' or '.join(dict.fromkeys(told))}, not {value}{why}")
    settings, taking_part = values.get("settings", {}), values.get("participation", {})
    checks: list[Callable[[], Any]] = [lambda: Tree.parse(values.get("tree", "4x10"))]
    if isinstance(wanted := _names(values.get("metrics", [])), list) and all(isinstance(one, str) for one in wanted):
        checks.append(lambda: check_measures(wanted))
    if isinstance(settings, Mapping) and not own:
        checks.append(lambda: _method(values.get("algorithm"), settings))
    if isinstance(taking_part, Mapping):
        checks.append(lambda: [Participation.parse(value, name) for name, value in taking_part.items()])
    for check in checks:
        try:
            check()
        except BadInput as error:
            problems.append(str(error))
    if problems:
        raise BadInput("; ".join(dict.fromkeys(map(one_line, problems))))
    if "algorithm" not in config.given and (source := source_of(config.algorithm)):
        config = _from_source(config, source)
    if "model" not in config.given and is_path(config.model.name):
        config = _with_model(config)
    if config.data.planted:
        return config  # how many rounds the settings ask for depends on the tree, which the data will tell
    if "rounds" not in values and config.source:
        config = config.model_copy(update={"rounds": rounds_of(config.method(), Tree.parse(config.tree))})
    return config


def _from_source(config: RunConfig, source: str) -> RunConfig:
    """Write down where an algorithm of the user's own comes from, and what its code is, so that another is noticed."""
    given = {**config.given, "algorithm": Given(object=source, hash=hash_code(kind_of(source)))}
    named = source if is_file(config.algorithm) else config.algorithm
    return config.model_copy(update={"algorithm": named, "given": given})


def _with_model(config: RunConfig) -> RunConfig:
    """Write down where a model of the user's own comes from, and what its code is."""
    path = whole_path(config.model.name)
    given = {**config.given, "model": Given(object=path, hash=hash_code(find(path)))}
    return config.model_copy(update={"model": config.model.model_copy(update={"name": path}), "given": given})


def rounds_of(method: Algorithm, tree: Tree) -> int:
    """Return the rounds of a run whose user named no number."""
    return method.asked_rounds(tree) or _ROUNDS


def _method(name: Any, settings: Mapping[str, Any]) -> Algorithm | None:
    """Make the algorithm; what its name must be is said elsewhere."""
    return algorithm(name, **settings) if isinstance(name, str) else None


def _known(where: str) -> dict[str, str]:
    """Return the keys of the part of a config that a dotted key belongs to, with their sentences."""
    kinds: dict[str, type[BaseModel]] = {
        **{"engine": EngineConfig, "data": DataConfig},
        **{"model": ModelConfig, "optimiser": Optimiser},
    }
    return sentences(kinds.get(where.split(".")[0], RunConfig) if "." in where else RunConfig)


def _plain(value: Any) -> Any:
    """Turn a dumped model into what TOML can hold: no None, no tuples; an object goes by its class."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, str | int | float) else f"<{import_path(value)}>"
