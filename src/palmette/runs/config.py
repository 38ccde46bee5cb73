"""What a run is made of: one checked description that can be written down and run again."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from palmette.algorithms import algorithm
from palmette.engines.store import rows_bytes
from palmette.errors import BadInput, nearest
from palmette.links import Link, Participation
from palmette.population import Population, make_population
from palmette.protocol import Algorithm
from palmette.protocol.settings import NUMBER, Count
from palmette.task import Task, make_task
from palmette.tree import Tree

_ROUNDS = 20
_IN_MEMORY = 1 << 30  # bytes of devices' rows that "auto" keeps in memory


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(_Part):
    """Whose samples: a named source with its options; further keys go to the source or the partition."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    name: str = "digits"
    folder: str | None = None


class ModelConfig(_Part):
    """What is learned: a named model; further keys are the model's own settings."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    name: str = "mclr"
    l2: float = Field(0.0, ge=0)


class EngineConfig(_Part):
    """How it is computed; of these, only ``dtype``, ``chunk`` and ``backend`` touch the last bits of a result.

    What devices keep between messages lies in memory or in a file in the run's folder; ``store = "auto"`` takes the file when
    it is more than 1 GiB.
    """

    backend: str = "auto"
    dtype: Literal["float32", "float64"] = "float32"
    device: str = "cpu"
    chunk: int | None = Field(None, ge=1)
    held_out: float | None = Field(None, ge=0, lt=1)
    store: Literal["memory", "disk", "auto"] = "auto"


class RunConfig(_Part):
    """All that decides a run.

    Attributes:
        algorithm: Name of the algorithm.
        settings: Its settings; in a resolved config, all of them.
        rounds: Global rounds; by default as many as the algorithm's settings ask for, 20 where they do not say.
        seed: Decides the partition, the participation, the batches and the initial model.
        tree: What `Tree.parse` reads.
        data: The samples.
        model: The model.
        participation: Who takes part on each link, by the tier that is asked: ``devices``, ``teams``, ``tier2`` ...
        loss: Chance that a node that was asked does not answer.
        evaluate_every: Rounds between evaluations; ``"auto"`` keeps them a small part of the run. The last is always one.
        engine: How it is computed.
        given: What the caller handed over as objects and a config cannot make again: ``"algorithm"``, ``"data"``, ``"model"``.
    """

    algorithm: str
    settings: dict[str, Any] = {}
    rounds: Count = _ROUNDS
    seed: Annotated[int, Field(ge=0, lt=2**63), NUMBER] = 0
    tree: str | int | list[int] | list[str] | dict[str, Any] = "4x10"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    participation: dict[str, str | int | float] = {}
    loss: float = Field(0.0, ge=0, lt=1)
    evaluate_every: Literal["auto"] | Count = "auto"
    engine: EngineConfig = EngineConfig()
    given: list[Literal["algorithm", "data", "model"]] = []

    def method(self) -> Algorithm:
        """Make the algorithm."""
        if "algorithm" in self.given:
            raise BadInput("this run's algorithm was given as an object; resume it from Python with the same algorithm")
        return algorithm(self.algorithm, **self.settings)

    def population(self) -> Population:
        """Make the population."""
        if "data" in self.given:
            raise BadInput("this run's samples were given as arrays; resume it from Python with the same population")
        options = {name: value for name, value in dict(self.data).items() if name != "name" and value is not None}
        return make_population(self.data.name, tree=self.tree, seed=self.seed, **options)

    def task(self, population: Population) -> Task:
        """Make the task for a population."""
        if "model" in self.given:
            raise BadInput("this run's model was given as a module; resume it from Python with the same model")
        options = {name: value for name, value in dict(self.model).items() if name not in ("name", "l2")}
        return make_task(
            self.model.name, population.shape, population.classes, seed=self.seed, l2=self.model.l2, **options
        )

    def links(self, tree: Tree) -> dict[int, Link]:
        """Make the links of a tree."""
        names = {"devices": 0, "teams": 1} | {f"tier{tier}": tier for tier in range(2, tree.top)}
        names = {name: tier for name, tier in names.items() if tier < tree.top}
        for name in self.participation:
            if name not in names:
                raise BadInput(f"participation: this tree ({tree}) has no {name!r} to ask{nearest(name, names)}")
        drawn = {names[name]: Participation.parse(value) for name, value in self.participation.items()}
        return {tier: Link(drawn.get(tier, Participation()), self.loss) for tier in range(tree.top)}

    def dtype(self) -> torch.dtype:
        """Return the type of the rows."""
        return torch.float64 if self.engine.dtype == "float64" else torch.float32

    def store(self, method: Algorithm, population: Population, task: Task, folder: Path) -> Path | str:
        """Return where the devices' rows lie: ``"memory"`` or the run's folder."""
        tree = population.tree.flat() if method.flat else population.tree
        kept = rows_bytes(tree.devices, method.keeps(tree, 0, task.initial(self.dtype())))
        on_disk = self.engine.store == "disk" or (self.engine.store == "auto" and kept > _IN_MEMORY)
        return folder if on_disk else "memory"

    def resolved(self, method: Algorithm) -> RunConfig:
        """Return the config with every setting of the algorithm written out."""
        return self.model_copy(update={"settings": dataclasses.asdict(method)})  # type: ignore[call-overload]

    def to_toml(self) -> str:
        """Write the config as TOML; what is unset is left out."""
        return tomli_w.dumps(_plain(self.model_dump()))


def read_config(path: Path) -> dict[str, Any]:
    """Read a config file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"there is no config file {path}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise BadInput(f"cannot read config {path}: {error}") from None


# What pydantic adds to a key that may be of several kinds.
_BRANCHES = ("literal", "function", "constrained", "str", "int", "float", "list[", "dict[")


def make_config(values: Mapping[str, Any]) -> RunConfig:
    """Check a config and everything in it that can be checked without data; all problems are told at once."""
    problems: list[str] = []
    try:
        config = RunConfig.model_validate(dict(values))
    except ValidationError as error:
        for item in error.errors():
            where = ".".join(str(part) for part in item["loc"] if not str(part).startswith(_BRANCHES))
            if item["type"] == "extra_forbidden":
                problems.append(f"unknown setting {where!r}{nearest(where.split('.')[-1], _known(where))}")
            else:
                problems.append(f"{where}: {item['msg'].removeprefix('Input ')}, not {item['input']!r}")
    given, settings, taking_part = (values.get(name, {}) for name in ("given", "settings", "participation"))
    checks: list[Callable[[], Any]] = [lambda: Tree.parse(values.get("tree", "4x10"))]
    if isinstance(settings, Mapping) and not (isinstance(given, list) and "algorithm" in given):
        checks.append(lambda: algorithm(str(values.get("algorithm")), **settings))
    if isinstance(taking_part, Mapping):
        checks.append(lambda: [Participation.parse(value) for value in taking_part.values()])
    for check in checks:
        try:
            check()
        except BadInput as error:
            problems.append(str(error))
    if problems:
        raise BadInput("; ".join(dict.fromkeys(problems)))
    if "rounds" not in values and "algorithm" not in config.given:
        config = config.model_copy(update={"rounds": rounds_of(config.method(), Tree.parse(config.tree))})
    return config


def rounds_of(method: Algorithm, tree: Tree) -> int:
    """Return the rounds of a run whose user named no number."""
    return method.asked_rounds(tree) or _ROUNDS


def _known(where: str) -> list[str]:
    return list(EngineConfig.model_fields if where.startswith("engine.") else RunConfig.model_fields)


def _plain(value: Any) -> Any:
    """Turn a dumped model into what TOML can hold: no None, no tuples."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
