"""What a study is to do, written down in its ``study.toml``: which methods with which settings, which seeds, how measured."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import tomli_w

from palmette.errors import BadInput
from palmette.protocol import ModelKind
from palmette.runs import RunConfig, make_config
from palmette.runs.files import Files

STUDY, README, RESULTS, OUTCOMES = "study.toml", "README.md", "results.json", "outcomes.json"
Kind = Literal["compare", "sweep", "demo"]
TuneOn = Literal["each", "first"]
_HEAD = "# A study of Palmette: many runs as one. README.md in this folder says what is where and how to go on.\n"


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
        values = tomllib.loads(Files(folder).read(STUDY).decode())
        common, arms = values.pop("common"), []
        for table in values.pop("methods"):
            config = make_config({**common, **table["config"]})
            runs = {int(seed): str(where) for seed, where in table.get("runs", {}).items()}
            arms.append(Arm(table["name"], config, runs, table.get("space", {}), table["role"]))
        lists: dict[str, Any] = {key: tuple(values.pop(key)) for key in ("seeds", "notes") if key in values}
        return Plan(**values, **lists, arms=tuple(arms))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"cannot read {path}: {error}; restore it from a copy, or start a new study") from None


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
