"""The workloads of the benchmark: the models of the papers on random samples of the right shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from palmette.address import numpy_generator
from palmette.bench.modules import Attending, Recurrent, conv1d
from palmette.errors import BadInput, nearest
from palmette.population import Population
from palmette.task import Task, make_task
from palmette.tree import Tree

T = TypeVar("T")

RATE, PULL = 0.01, 0.5  # step size and pull: the speed does not depend on them, finite numbers do


@dataclass(frozen=True)
class Workload:
    """One model, the shape of its samples and the steps of a PerMFL round.

    Attributes:
        name: What the tables call it.
        model: A name of `palmette.task.models.MODELS`.
        shape: Shape of one sample.
        options: Settings of the model.
        tree: Teams x devices.
        batch: Samples per step.
        local_steps: Steps of every device per exchange (L).
        team_steps: Exchanges of every team per round (K).
        samples: Training samples of each device.
        tests: Samples of each device that no engine trains on.
        classes: Number of classes.
        make: Makes a module of torch's own layers, in the place of a named model.
        chain: Whether it is a chain of dense layers and convolutions.
    """

    name: str
    model: str
    shape: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    tree: str = "4x10"
    batch: int = 20
    local_steps: int = 20
    team_steps: int = 10
    samples: int = 400
    tests: int = 20
    classes: int = 10
    make: Callable[[], nn.Module] | None = None
    chain: bool = True


_SLOW: dict[str, Any] = {"tree": "2x4", "local_steps": 2, "team_steps": 1, "samples": 100, "chain": False}

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("mclr 784-10", "mclr", (784,)),
        Workload("dnn 784-100-10", "dnn", (784,), {"hidden": (100,)}),
        Workload("mclr 60-10", "mclr", (60,)),
        Workload("dnn 60-20-10", "dnn", (60,), {"hidden": (20,)}),
        # A step is a hundred times as long as the others', so a round has fewer of them.
        Workload("cnn 32-64", "cnn", (1, 28, 28), local_steps=2, team_steps=1),
        # Models that gain little from stacking, or nothing; on fewer devices, because they are slow.
        Workload("lstm 16-32", "", (20, 16), local_steps=5, chain=False, make=lambda: Recurrent(16, 32, 1, 10)),
        Workload("lstm 8-128-128", "", (80, 8), **_SLOW, make=lambda: Recurrent(8, 128, 2, 10)),
        Workload("resnet 8", "resnet", (3, 32, 32), **_SLOW),
        Workload("conv1d 8-64-64", "", (8, 128), **_SLOW, make=lambda: conv1d(8, 64, 10)),
        Workload("transformer 64x2", "", (32, 64), **_SLOW, make=lambda: Attending(64, 4, 2, 10)),
    )
}


class Case:
    """A workload made real: what all engines of one comparison share.

    Args:
        workload: What to make.
        clock: What measures time, in seconds.
    """

    def __init__(self, workload: Workload, clock: Callable[[], float]) -> None:
        self.workload, self.clock = workload, clock

    @cached_property
    def population(self) -> Population:
        """Random samples, the same for every engine."""
        return random_population(self.workload)

    @cached_property
    def task(self) -> Task:
        """The model and its loss."""
        workload = self.workload
        if workload.make is not None:
            with torch.random.fork_rng(devices=[]):  # a speed does not depend on the weights
                torch.manual_seed(0)
                return make_task(workload.make(), workload.shape, workload.classes)
        return make_task(workload.model, workload.shape, workload.classes, **workload.options)

    @cached_property
    def training(self) -> list[tuple[Tensor, Tensor]]:
        """Features and labels of every device's training samples, as research code holds them."""
        people = self.population
        begins, counts = people.start.tolist(), people.train.tolist()
        parts = [slice(begin, begin + count) for begin, count in zip(begins, counts, strict=False)]
        return [(people.x[part].clone(), people.y[part].clone()) for part in parts]


def random_population(workload: Workload) -> Population:
    """Draw the samples of a workload: normal features, labels of all classes."""
    devices, each = Tree.parse(workload.tree).devices, workload.samples + workload.tests
    generator = numpy_generator(0, "bench samples")
    x = generator.standard_normal((devices * each, *workload.shape), dtype=np.float32)
    y = generator.integers(0, workload.classes, devices * each)
    return Population.from_arrays(
        x,
        y,
        tree=workload.tree,
        device=np.repeat(np.arange(devices), each),
        test=np.tile(np.arange(each) >= workload.samples, devices),
        classes=workload.classes,
        source="bench",
    )


def pick(kind: str, wanted: list[str] | None, known: Mapping[str, T]) -> list[T]:
    """Return the entries with the names wanted, all by default; spaces, dashes and case do not matter.

    Args:
        kind: What a name stands for, for the error.
        wanted: The names.
        known: All there is.
    """
    plain = {_plain(name): entry for name, entry in known.items()}
    for name in wanted or []:
        if _plain(name) not in plain:
            raise BadInput(f"unknown {kind} {name!r}{nearest(name, known)}")
    chosen = {_plain(name) for name in wanted} if wanted else set(plain)
    return [entry for name, entry in plain.items() if name in chosen]


def _plain(name: str) -> str:
    return name.strip().lower().replace(" ", "-").replace("_", "-")


def start_rows(case: Case) -> Tensor:
    """Return the initial model once per device."""
    row = case.task.initial()
    return row.expand(case.population.devices, -1).contiguous().to(torch.float32)
