"""What a study is to do, written down in its ``study.toml``: which methods with which settings, which seeds, how measured."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field

from palmette.errors import BadInput
from palmette.guards.texts import from_toml
from palmette.protocol import ModelKind
from palmette.runs import RunConfig, make_config
from palmette.runs.files import Files
from palmette.values import one_line

STUDY, README, RESULTS, OUTCOMES = "study.toml", "README.md", "results.json", "outcomes.json"
Kind = Literal["compare", "sweep", "demo"]
TuneOn = Literal["each", "first"]
_HEAD = "# A study of Palmette: many runs as one. README.md in this folder says what is where and how to go on.\n"


class _Method(BaseModel):
    """A method as a study's file has it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    role: Literal["method", "reference", "point", "chosen"]
    config: dict[str, Any]
    runs: dict[str, str] = {}
    space: dict[str, Any] = {}


class _Written(BaseModel):
    """A plan as a study's file has it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Kind
    common: dict[str, Any]
    methods: list[_Method] = Field(min_length=1)
    seeds: list[Annotated[int, Field(ge=0, lt=2**63)]] = Field(min_length=1)
    command: str = ""
    steps: int | None = None
    tune: Annotated[int, Field(ge=0, le=10**6)] = 0
    tune_on: TuneOn = "each"
    by: str = "PM"
    metric: str = "accuracy"
    against: str | None = None
    reference: str | None = None
    grid: dict[str, list[Any]] = {}
    notes: list[str] = []


@dataclass(frozen=True)
class Arm:
    """One method with its settings: a run of it for every seed.

    Attributes:
        name: What it is called in tables and folders.
        config: The config of its runs; only the seed differs between them.
        runs: Folders of runs that were there before the study, by seed; they are used where they lie.
        space: What is searched for the best settings, by setting; empty where nothing is.
        role: ``"method"``; ``"reference"`` for local training that the study added itself; ``"point"`` of a grid, which is
            tested on validation samples only; ``"chosen"`` for the best settings of all points.
    """

    name: str
    config: RunConfig
    runs: Mapping[int, str] = field(default_factory=dict)
    space: Mapping[str, Any] = field(default_factory=dict)
    role: Literal["method", "reference", "point", "chosen"] = "method"

    def seeded(self, seed: int, settings: Mapping[str, Any] | None = None) -> RunConfig:
        """Return the config of the run with a seed, with other settings in place of some."""
        seeded = self.config.model_copy(update={"seed": seed})
        return RunConfig.model_validate(with_settings(seeded.model_dump(), settings)) if settings else seeded


@dataclass(frozen=True)
class Plan:
    """A whole study.

    Attributes:
        kind: What it is for.
        arms: The methods.
        seeds: The seeds; each is another draw of population, participation, batches and initial model.
        command: What it was started with.
        steps: Gradient steps that every method gives each device, where they are equal by plan.
        tune: Settings that are tried for every method, the given ones among them; 0 for none.
        tune_on: Whether every seed chooses settings by itself (``"each"``), or the first one for all of them (``"first"``).
        by: Which models the settings are chosen by.
        metric: What decides: the accuracy, or the loss where there is none.
        against: The method that the others are compared with, device by device.
        reference: The arm that is local training.
        grid: The values of every setting that a sweep goes through.
        notes: Sentences about how it was set up.
    """

    kind: Kind
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    command: str = ""
    steps: int | None = None
    tune: int = 0
    tune_on: TuneOn = "each"
    by: ModelKind = "PM"
    metric: str = "accuracy"
    against: str | None = None
    reference: str | None = None
    grid: Mapping[str, list[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def arm(self, name: str) -> Arm:
        """Return the arm of a name."""
        return next(arm for arm in self.arms if arm.name == name)

    def run_folder(self, arm: Arm, seed: int) -> str:
        """Return where a run lies, seen from the study's folder; a run from elsewhere by its own path."""
        if seed in arm.runs:
            return arm.runs[seed]
        return f"{arm.name}-{seed}" if self.kind == "demo" else f"runs/{arm.name}-{seed}"

    def group(self, arm: Arm) -> str:
        """Return the heading under which the progress of an arm is told; nothing where it has its own."""
        if self.kind == "demo":
            return arm.name.partition("/")[0]
        return "grid" if arm.role == "point" else ""

    def try_folder(self, arm: Arm, seed: int, number: int) -> str:
        """Return where the run lies that tries some settings of an arm."""
        return f"tries/{arm.name}-{seed}/{number:03d}"

    def seeds_of(self, arm: Arm) -> tuple[int, ...]:
        """Return the seeds an arm has runs of: all, or those of the folders that were given."""
        return tuple(sorted(arm.runs)) if arm.runs else self.seeds

    def tries_of(self, arm: Arm, seed: int) -> int:
        """Return how many settings of an arm are tried with a seed."""
        chooses = self.tune_on == "each" or seed == self.seeds_of(arm)[0]
        return self.tune if arm.space and chooses else 0

    def to_toml(self) -> str:
        """Write the plan; what all methods have in common is written once."""
        configs = [_written(arm.config) for arm in self.arms]
        first = configs[0]
        common = {key: first[key] for key in first if all(one.get(key) == first[key] for one in configs)}
        methods = []
        for arm, config in zip(self.arms, configs, strict=True):
            own = {key: value for key, value in config.items() if key not in common}
            table: dict[str, Any] = {"name": arm.name, "role": arm.role}
            table |= {"runs": {str(seed): path for seed, path in arm.runs.items()}} if arm.runs else {}
            table |= {"space": dict(arm.space)} if arm.space else {}
            methods.append({**table, "config": own})
        top = asdict(replace(self, arms=()))
        kept = {key: value for key, value in top.items() if key != "arms" and value}
        return _HEAD + tomli_w.dumps({**_lists(kept), "common": common, "methods": _lists(methods)})


def with_settings(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a config with some of the algorithm's settings, or other dotted keys, replaced."""
    made: dict[str, Any] = {**values, "settings": dict(values.get("settings", {}))}
    for key, value in settings.items():
        group, dot, name = key.partition(".")
        if dot:
            made[group] = {**dict(made.get(group, {})), name: value}
        elif key == "rounds":
            made[key] = value
        else:
            made["settings"][key] = value
    return made


def read_plan(folder: Path) -> Plan:
    """Read the plan of the study in a folder."""
    path = folder / STUDY
    if not is_study(folder):
        raise BadInput(f"{folder} is not the folder of a study: there is no {STUDY} in it")
    try:
        told = _Written.model_validate(from_toml(Files(folder).read(STUDY)))
        arms = []
        for table in told.methods:
            _check_name(table.name, told.kind)
            config = make_config({**told.common, **table.config}, kept=True)
            runs = {int(seed): where for seed, where in table.runs.items()}
            arms.append(Arm(table.name, config, runs, table.space, table.role))
        if len({arm.name for arm in arms}) < len(arms):
            raise BadInput("two of its methods have one name")
        if lost := {told.against, told.reference} - {None} - {arm.name for arm in arms}:
            raise BadInput(f"it has no method {min(map(str, lost))!r}, which it compares with")
        rest = told.model_dump(exclude={"common", "methods", "seeds", "notes"})
        return Plan(**rest, seeds=tuple(told.seeds), notes=tuple(told.notes), arms=tuple(arms))
    except ValueError as error:
        raise BadInput(
            f"cannot read {path}: {one_line(str(error))}; restore it from a copy, or start a new study"
        ) from None


def _check_name(name: str, kind: Kind) -> None:
    """Refuse a method whose folder would lie outside the study's; in a demo it lies in that of its population."""
    parts = name.split("/")
    if len(parts) > (2 if kind == "demo" else 1) or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise BadInput(f"a method cannot be called {name!r}, because a folder is named after it")


def is_study(folder: Path) -> bool:
    """Return whether a folder holds a study."""
    return (folder / STUDY).is_file()


def studies_in(folder: Path) -> list[Path]:
    """Return the folders of studies that lie in a folder."""
    return sorted(path.parent for path in folder.glob(f"*/{STUDY}"))


def _written(config: RunConfig) -> dict[str, Any]:
    values = tomllib.loads(config.to_toml())
    return {key: value for key, value in values.items() if key not in ("seed", "versions") and value != {}}


def _lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _lists(part) for key, part in value.items()}
    return [_lists(part) for part in value] if isinstance(value, list | tuple) else value
