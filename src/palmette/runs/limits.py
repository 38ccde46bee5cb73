"""What a run would cost at least, in time and in memory: absurd counts are refused before anything is begun.

The costs are those of a fast core with everything in its favour, so that nothing is refused that a patient person might want.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.engines import rules
from palmette.engines.store import rows_bytes
from palmette.errors import BadInput
from palmette.learner.learner import keeps
from palmette.links import Link
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.runs.config import RunConfig
from palmette.task import Task
from palmette.tree import Tree
from palmette.values import memory, rough, size

_YEAR = 365 * 24 * 3600.0
_CALL = 2e-5  # seconds of one step of one chunk of devices, whatever it computes
_EXCHANGE = 5e-5  # seconds of one exchange besides the devices' work
_SPEED = 2e11  # multiplications and additions a second
_ROUND = 200  # bytes that a round leaves in the tables of traffic
_TIMES = 8  # rows may take so many times the memory and the free disk: only those of nodes that take part take room
_COPIES = (
    5  # models that are in memory at the same time at least: the server's, a device's, its start, gradient and update
)
_MOST_ROUNDS = 2**31 - 1  # a run's table counts them in 32 bits
# Settings that multiply a run's work, and the size from which one of them is to blame first.
_USUAL = {
    **{"rounds": 1e4, "tree": 1e6, "team_steps": 100, "local_steps": 100, "local_epochs": 100, "iterations": 1e4},
    **{"tune_steps": 1e3, "tune_epochs": 100, "batch_size": 1e4, "model": 1e8, "passes": 1e3, "group_passes": 1e3},
    **{"prox_steps": 100, "personal_steps": 100, "head_steps": 100, "weight_steps": 100, "first_weight_steps": 1e3},
}
_BESIDE = ("personal_steps", "head_steps", "weight_steps")  # steps that devices take besides the local ones


@dataclass(frozen=True)
class Work:
    """What a run does, in numbers that may be far beyond what a machine can do.

    Attributes:
        rounds: Global rounds.
        exchanges: Exchanges of one team (of the server, where there are no teams) in a round.
        steps: Gradient steps of one device in an exchange.
        tuned: Gradient steps of one device in one evaluation.
        devices: Devices that take part in an exchange of all teams.
        everybody: All devices.
        flops: Multiplications and additions of one gradient step.
    """

    rounds: float
    exchanges: float
    steps: float
    tuned: float
    devices: float
    everybody: int
    flops: float

    @property
    def seconds(self) -> float:
        """Seconds that one core takes at least."""
        steps = self.rounds * self.exchanges * self.steps
        trained = steps * max(_CALL, self.devices * self.flops / _SPEED)
        tuned = (
            2 * self.tuned * max(_CALL, self.everybody * self.flops / _SPEED)
        )  # before the first round and at the end
        return self.rounds * self.exchanges * _EXCHANGE + trained + tuned


def refuse_absurd(
    config: RunConfig, method: Algorithm, population: Population, task: Task, links: Mapping[int, Link], folder: Path
) -> None:
    """Refuse a run of more than a year, or of many times the memory and disk there are; say which setting to lower."""
    tree = population.tree.flat() if method.flat else population.tree
    counts = _counts(config, method, tree, task)
    if config.rounds > _MOST_ROUNDS:
        raise BadInput(
            f"a run of {rough(config.rounds)} rounds is too long, the most is {_MOST_ROUNDS}; {_blame(counts)}"
        )
    if (seconds := _work(method, population, tree, task, links, counts).seconds) > _YEAR:
        raise BadInput(f"this run would take about {_years(seconds)} on one core; {_blame(counts)}")
    _refuse_memory(config, method, population, tree, task, counts)
    initial, work = task.initial(config.dtype()), keeps(task, config.optimiser, config.dtype())
    kept = sum(
        rows_bytes(tree.size(tier), rules.stored(method, tree, tier, task.layout, initial, work))
        for tier in range(tree.tiers)
    )
    room = memory() + shutil.disk_usage(_existing(folder)).free
    if kept > _TIMES * room:
        raise BadInput(
            f"what {tree.devices:,} devices keep between rounds may grow to {size(kept)}, and this machine has "
            f"{size(room)} of memory and free disk; {_blame(counts)}"
        )


def _refuse_memory(
    config: RunConfig, method: Algorithm, population: Population, tree: Tree, task: Task, counts: Mapping[str, float]
) -> None:
    """Refuse what must lie in memory all at once and cannot."""
    number, width, batch = config.dtype().itemsize, math.prod(population.shape), counts["batch_size"]
    needs = {
        "several copies of the model": (_COPIES * number * task.layout.width, "model"),
        "one batch of one device": (number * width * batch, "batch_size"),
        "the coins of one round": (24 * counts.get("iterations", 0), "iterations"),
        "the tables of all rounds": (_ROUND * tree.top * config.rounds + _history(config, population), "rounds"),
    }
    for what, (count, setting) in needs.items():
        if count > memory():
            raise BadInput(
                f"{what} would take {size(count)} of memory, this machine has {size(memory())}; lower {setting}"
                f"{_value(setting, counts)}"
            )


def _history(config: RunConfig, population: Population) -> float:
    """Return the bytes of what is measured, where the user said how often; else it is never much."""
    if config.evaluate_every == "auto":
        return 0.0
    return config.rounds / config.evaluate_every * 80 * 8 * min(population.devices, 1000)


def _work(
    method: Algorithm,
    population: Population,
    tree: Tree,
    task: Task,
    links: Mapping[int, Link],
    counts: Mapping[str, float],
) -> Work:
    """Read the work of a run off the settings that say how often something is done."""
    mean = float(population.train.double().mean())
    part = devices = float(tree.devices)
    for tier in range(tree.top):
        part = links[tier].participation.share(tree.size(tier) / tree.size(tier + 1)) if tier in links else 1.0
        devices *= part
    batch = min(counts["batch_size"], mean) if method.batch_size == "full" else counts["batch_size"]
    once = math.ceil(mean / max(1.0, batch))  # steps of an epoch
    local = max(counts.get("local_steps", 0), counts.get("local_epochs", 0) * once, counts.get("iterations", 0))
    first = counts.get("first_weight_steps", 0) / counts["rounds"] if counts["rounds"] > 1 else 0  # in one round only
    return Work(
        rounds=counts["rounds"],
        exchanges=max(1.0, counts.get("team_steps", 1)),  # 0 of them: devices talk to the server directly
        steps=local * counts.get("prox_steps", 1) + sum(counts.get(name, 0) for name in _BESIDE) + first,
        tuned=max(counts.get("tune_steps", 0), counts.get("tune_epochs", 0) * once),
        devices=devices,
        everybody=tree.devices,
        flops=6.0 * task.layout.width * batch,
    )


def _counts(config: RunConfig, method: Algorithm, tree: Tree, task: Task) -> dict[str, float]:
    """Return every number that multiplies a run's work, by its setting; a list counts as its product."""
    found: dict[str, Any] = {"rounds": config.rounds, "tree": tree.devices, "model": task.layout.width, "batch_size": 1}
    for name, value in vars(method).items():
        if name in _USUAL and isinstance(value, int | float | tuple):
            found[name] = math.prod(value) if isinstance(value, tuple) else value
    return {name: _float(value) for name, value in found.items()}


def _float(number: Any) -> float:
    """Return a number as a float; the largest there is for a whole number beyond them."""
    return float(min(number, 10**300))


def _blame(counts: Mapping[str, float]) -> str:
    """Say which setting is furthest beyond what is usual."""
    setting = max(counts, key=lambda name: counts[name] / _USUAL[name])
    return f"lower {setting}{_value(setting, counts)}"


def _value(setting: str, counts: Mapping[str, float]) -> str:
    if setting == "model":
        return f", which has {rough(counts['model'])} numbers"
    return f", which has {rough(counts['tree'])} devices" if setting == "tree" else f" = {rough(counts[setting])}"


def _years(seconds: float) -> str:
    years = min(seconds, 1e300) / _YEAR
    return f"{years:.2g} years" if years < 100 else f"{rough(years)} years"


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return folder if folder.exists() else _existing(folder.parent)
