"""What a run is made of: one checked description that can be written down and run again."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tomli_w
import torch
from pydantic import BaseModel, BeforeValidator, Field

from palmette.algorithms import algorithm, kind_of, source_of
from palmette.engines import rules
from palmette.engines.store import rows_bytes
from palmette.errors import BadInput
from palmette.files import MissingFile, is_file
from palmette.learner import Optimiser, kernel
from palmette.learner.learner import keeps
from palmette.links import Link
from palmette.links.clock import Pace
from palmette.population import Population, make_population
from palmette.population.validation import for_choosing
from palmette.protocol import Algorithm
from palmette.protocol.settings import Count
from palmette.runs.absences import read_absences
from palmette.runs.linking import ClockConfig, LinkConfig, make_links, named
from palmette.runs.objects import hash_code, import_path, named_objects, recipe_of
from palmette.runs.sections import DataConfig, EngineConfig, Given, ModelConfig, Part, Seed, names
from palmette.tables import open_data
from palmette.task import Task, make_task
from palmette.task.own import find
from palmette.tree import Tree

_ROUNDS = 20
_IN_MEMORY = 1 << 30  # bytes of devices' rows that "auto" keeps in memory


class RunConfig(BaseModel):
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
        links: Links between tiers, by the tier at their lower end: ``devices``, ``teams`` ...; ``all`` for every link.
        clock: Simulated clock.
        replay: Run to repeat: the folder of a run whose absences are repeated, in place of ``loss`` and the links' own faults.
        evaluate_every: Rounds between two evaluations; ``"auto"`` chooses it so that evaluation takes a small part of
            the run. The last round is always evaluated.
        evaluate_on: Devices that are measured between two evaluations of everybody: a number of them, drawn by the seed and the
            same in every round, or ``"all"``; ``"auto"`` takes all up to 10,000 devices and 2,000 of more. After the last
            round all are measured.
        metrics: Further metrics, as in ``auc,f1``: auc, f1, balanced-accuracy, calibration, perplexity; for regression r2 and
            rmse; or your own function by its import path, as in ``my_module:my_metric``.
        engine: How it is computed.
        given: What the caller handed over as objects and a config cannot make again, by role: ``algorithm``, ``data``,
            ``model``, ``loss``, ``metrics``.
        versions: Versions of Palmette, Python and torch that made the run; others may round differently.
    """

    model_config = Part.model_config

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
    links: Annotated[dict[Annotated[str, "a link"], LinkConfig], BeforeValidator(named)] = {}
    clock: ClockConfig = ClockConfig()
    loss: float = Field(0.0, ge=0, lt=1)
    replay: str | None = None
    evaluate_every: Literal["auto"] | Count = "auto"
    evaluate_on: Literal["auto", "all"] | Count = "auto"
    metrics: Annotated[list[str], BeforeValidator(names)] = []
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

    def make_links(self, tree: Tree, *, flat: bool = False) -> dict[int, Link]:
        """Make the links of a tree.

        Args:
            tree: The population's tree.
            flat: Whether the method does without teams, so that its devices are all the server's.
        """
        again = None if self.replay is None else read_absences(self.replayed, tree.flat() if flat else tree)
        return make_links(
            *(tree, self.links, self.clock, self.participation, self.loss, again),
            flat=flat,
        )

    @property
    def replayed(self) -> Path:
        """The run to repeat, wherever this one is gone on with."""
        if not self.replay:
            raise BadInput("replay is empty: name the folder of the run to repeat, or leave it out")
        return Path(self.replay).expanduser().absolute()

    def pace(self, tree: Tree) -> Pace | None:
        """Make the pace of the devices on the clock; nothing where there is none."""
        pace = self.clock.make(asked=any(link.timed for link in self.links.values()))
        if pace is not None:
            pace.speeds.check(tree, 0, "clock.speeds")
        return pace

    def dtype(self) -> torch.dtype:
        """Return the type of the rows."""
        return torch.float64 if self.engine.dtype == "float64" else torch.float32

    def store(self, method: Algorithm, population: Population, task: Task, folder: Path) -> Path | str:
        """Return where the devices' rows lie: ``"memory"`` or the run's folder."""
        tree = population.tree.flat() if method.flat else population.tree
        work = keeps(task, self.optimiser, self.dtype())
        rows = rules.stored(method, tree, 0, task.layout, task.initial(self.dtype()), work)
        link = self.make_links(population.tree, flat=method.flat)[0]
        codecs = {
            str(way): task.initial(self.dtype()) for way, codec in enumerate((link.down, link.up)) if codec.remembers
        }
        kept = rows_bytes(tree.devices, {**rows, **codecs})
        on_disk = self.engine.store == "disk" or (self.engine.store == "auto" and kept > _IN_MEMORY)
        return folder if on_disk else "memory"

    def resolved(self, method: Algorithm, population: Population, task: Task, backend: str | None = None) -> RunConfig:
        """Return the config with everything written out that the run depends on: settings, recipes, objects, versions.

        Args:
            method: The algorithm.
            population: The samples.
            task: What is learned.
            backend: The backend that computes the run, where it is known.
        """
        recipe = recipe_of(task, population)
        named = named_objects(method, population, task, recipe)
        settings = dataclasses.asdict(method)  # type: ignore[call-overload]
        if "algorithm" not in named or self.source:  # once more as they will be read: a default may be 1, not 1.0
            again = algorithm(self.source if "algorithm" in named else method.name, **settings)
            settings = dataclasses.asdict(again)  # type: ignore[call-overload]
        if "algorithm" in named and self.source:
            named["algorithm"] = source_of(self.source), named["algorithm"][1]
        values: dict[str, Any] = {
            "settings": settings,
            "model": about(task),
            "links": {name: link.written(f"links.{name}").model_dump() for name, link in self.links.items()},
            "clock": self.clock.written().model_dump(),
            "replay": None if self.replay is None else str(self.replayed),
            "given": {role: {"object": path, "hash": digest} for role, (path, digest) in named.items()},
            "versions": versions(),
        }
        if population.recipe is not None:
            values["data"] = dict(population.recipe.values)
            if population.recipe.seed != self.seed:
                values["data"]["seed"] = population.recipe.seed
        if recipe is not None:
            seed = recipe.pop("seed")
            values["model"] |= recipe if seed == self.seed else {**recipe, "seed": seed}
        if isinstance(task.loss, str):
            values["model"]["loss"] = task.loss
        if backend is not None:
            values["engine"] = {**self.engine.model_dump(), "took": backend}
        return RunConfig.model_validate({**self.model_dump(), **values})

    def about_model(self, node: str, kind: str, encoding: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return what somebody needs to know to use a model.

        Args:
            node: Whose it is.
            kind: ``"PM"``, ``"TM"`` ...
            encoding: What became of the columns of a table, if it was learned from one.
        """
        model = {"name": self.model.name, **self.model.options, "loss": self.model.loss}
        return {"node": node, "kind": kind, "algorithm": self.algorithm, "model": model, **(encoding or {})}

    def to_toml(self) -> str:
        """Write the config as TOML; what is unset is left out."""
        values = self.model_dump()
        if self.optimiser == Optimiser():
            del values["optimiser"]  # plain gradient descent goes without saying
        for name in ("links", "clock"):
            if not _plain(values[name]):
                del values[name]
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
    told = {"palmette": own_version(), "python": platform.python_version(), "torch": torch.__version__}
    return {**told, "kernel": kernel.version()}


@cache
def own_version() -> str:
    """Return the version of Palmette; it is looked for once in a process, since files are read and parsed for it."""
    try:
        return version("palmette")
    except PackageNotFoundError:  # run from its sources
        return "not installed"


def rounds_of(method: Algorithm, tree: Tree) -> int:
    """Return the rounds of a run whose user named no number."""
    return method.asked_rounds(tree) or _ROUNDS


def _plain(value: Any) -> Any:
    """Turn a dumped model into what TOML can hold: no None, no tuples; an object goes by its class."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, str | int | float) else f"<{import_path(value)}>"
