"""Which backend `auto` takes for each model, and how fast it is beside a plain loop over devices.

Run by hand: ``make prove-models``. Palmette and the loop take turns on one thread, and what is measured is processor time, so
that what else the machine does disturbs neither; a ratio is the median over the turns. The table is written into
``docs/reference/models.md``. Fails where FedPer or FedRep has less than 60 % of FedAvg's device-steps per second on `dnn`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

import palmette as pm
from palmette.algorithms.own_parts import FedPer, FedRep
from palmette.bench import plain
from palmette.bench.engines import Lane
from palmette.bench.measure import Timing, measure, paired
from palmette.bench.modules import conv1d
from palmette.bench.workloads import RATE, Case, Workload, random_population
from palmette.learner import Learner, LocalWork
from palmette.population import Population
from palmette.task import Task
from palmette.task.models import MODELS
from zoo import Attention, LoRA, Recurrent, Transformer

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "models.md"
BEGIN, END = "<!-- written by make prove-models -->", "<!-- end of what make prove-models writes -->"
SHARE = 0.6
HEAD = {"head": "last(1)"}
IMAGE, FLAT = (1, 28, 28), (784,)
FEW = "on 4 devices"
SMALL = ("mclr", "dnn", "linear", "logistic")  # named models whose steps are short


class Model(Case):
    """A model with random samples of its shape.

    Args:
        name: What the table calls it.
        shape: Shape of one sample.
        module: The module, or the name of one of the papers' models.
        steps: Steps of every device per exchange; fewer for slow models.
        only: The part that takes steps.
        classes: Number of classes.
        tokens: Samples are rows of whole numbers below this one; 0 for normal numbers.
        tree: Teams x devices.
        about: What a task says of the module, and settings of a named model.
    """

    def __init__(
        self,
        name: str,
        shape: tuple[int, ...],
        module: str | nn.Module,
        *,
        steps: int = 20,
        only: str | None = None,
        classes: int = 10,
        tokens: int = 0,
        tree: str = "4x10",
        **about: Any,
    ) -> None:
        super().__init__(
            Workload(name, "", shape, tree=tree, local_steps=steps, samples=100, classes=classes), time.process_time
        )
        self._module, self.only, self._tokens, self._about = module, only, tokens, about

    @cached_property
    def population(self) -> Population:
        """Random samples: normal numbers, or tokens."""
        people = random_population(self.workload)
        if not self._tokens:
            return people
        generator = torch.Generator().manual_seed(0)
        x = torch.randint(self._tokens, people.x.shape, generator=generator)
        return dataclasses.replace(people, x=x, y=torch.randint(self.workload.classes, x.shape, generator=generator))

    @cached_property
    def task(self) -> Task:
        """The model and its loss; what is frozen is so for the plain loop, too."""
        made = pm.make_task(self._module, self.workload.shape, self.workload.classes, **self._about)
        for name, parameter in made.module.named_parameters():
            parameter.requires_grad_(name in made.learned.names)
        return made

    def palmette(self) -> tuple[Lane, Learner]:
        """Make the learner's own work, on the backend that `auto` takes."""
        learner = Learner(self.task, self.population, batch_size=self.workload.batch)
        devices, steps = self.population.devices, self.workload.local_steps
        rows = learner.initial().repeat(devices, 1)
        chunks = [(ids, torch.zeros_like(ids)) for ids in torch.arange(devices).split(learner.chunk(devices))]
        exchange = 0

        def unit() -> int:
            nonlocal exchange
            exchange += 1
            with torch.no_grad():
                for ids, zero in chunks:
                    LocalWork(learner, ids, 0, zero + exchange).descend(rows[ids], steps=steps, lr=RATE, only=self.only)
            return devices * steps

        return Lane("palmette", 1, unit), learner

    def loop(self) -> Lane:
        """Make a plain loop over devices; it leaves out the gradients of parts that take no steps, as research code may."""
        alone = copy.copy(self)
        alone.__dict__["task"] = task = copy.copy(self.task)
        module = copy.deepcopy(self.task.module)
        if self.only is not None:
            wanted = task.layout.members(self.only)
            for name, parameter in module.named_parameters():
                parameter.requires_grad_(name in wanted)
        object.__setattr__(task, "module", module)
        return Lane("plain", 1, plain.without_loader(alone))


def encoder() -> nn.Module:
    """A frozen convolutional encoder with a head."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(32 * 49, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def adapted() -> nn.Module:
    """A frozen chain 784-100-10 whose linear layers have adapters of rank 4."""
    return nn.Sequential(LoRA(nn.Linear(784, 100), 4), nn.ReLU(), LoRA(nn.Linear(100, 10), 4))


def named() -> list[Model]:
    """The models that have a name, with every setting that has only a few values; those of text on fewer devices."""
    return [
        Model(
            " ".join([f"`{name}`", *(f"{key}={one}" for key, one in options.items()), *([FEW] * bool(model.tokens))]),
            *(model.shape, name),
            steps=20 if name in SMALL else 1 if math.prod(model.shape) > 1000 else 2,
            classes=model.outputs,
            tokens=model.tokens,
            tree="2x2" if model.tokens else "4x10",
            **options,
        )
        for name, model in MODELS.items()
        for options in ({}, *model.choices())
    ]


def models() -> list[Model]:
    """The models of the table."""
    torch.manual_seed(0)  # a speed does not depend on it
    return [
        *named(),
        Model("`dnn`, steps on the head only", FLAT, "dnn", only="head", parts=HEAD),
        Model("`dnn`, steps on the body only", FLAT, "dnn", only="body", parts=HEAD),
        Model("LSTM 16-32, 20 steps", (20, 16), Recurrent(nn.LSTM, 16, 32, 10), steps=5),
        Model("GRU 16-32, 20 steps", (20, 16), Recurrent(nn.GRU, 16, 32, 10), steps=5),
        Model("LSTM 8-64, 80 steps", (80, 8), Recurrent(nn.LSTM, 8, 64, 10), steps=2),
        Model("LSTM 8-128-128, 80 steps", (80, 8), Recurrent(nn.LSTM, 8, 128, 10, num_layers=2), steps=1, tree="2x5"),
        Model("GRU 8-128-128, 20 steps", (20, 8), Recurrent(nn.GRU, 8, 128, 10, num_layers=2), steps=1, tree="2x5"),
        Model("Conv1d 8-16-16", (8, 64), conv1d(8, 16, 10), steps=5),
        Model("Conv1d 8-64-64", (8, 128), conv1d(8, 64, 10), steps=5),
        Model("attention, 4 heads of 8, 16 places", (16, 32), Attention(32, 4, 10), steps=5),
        Model("transformer layer, the same", (16, 32), Transformer(32, 4, 10), steps=5),
        Model("two transformer layers, 4 heads of 16, 32 places", (32, 64), Transformer(64, 4, 10, layers=2), steps=2),
        Model("frozen convolutions, head 64-10", IMAGE, encoder(), freeze=["0", "3", "7"]),
        Model("LoRA of rank 4 over a frozen 784-100-10", FLAT, adapted()),
    ]


def row(model: Model, timing: Timing) -> str:
    """Measure one model and return its line of the table."""
    mine, learner = model.palmette()
    trials = measure([mine, model.loop()], timing, time.process_time)
    fast, slow = ([trial.rate for trial in own] for own in trials)
    ratio, each = paired(fast, slow), [one / other for one, other in zip(fast, slow, strict=True)]
    kept = ", features kept" if "computed once" in " ".join(learner.told) else ""
    assert ratio is not None
    spread = f"{_times(min(each))}-{_times(max(each))}"
    return (
        f"| {model.workload.name} | {model.task.learned.width:,} | {learner.backend.name}{kept} "
        f"| {statistics.median(fast):,.0f} | {statistics.median(slow):,.0f} | {_times(ratio)} ({spread}) |"
    )


def _times(ratio: float) -> str:
    """Write a ratio, with more digits where they decide."""
    return f"{ratio:.2f}" if ratio < 2 else f"{ratio:.1f}"


def parts(timing: Timing) -> tuple[list[str], bool]:
    """Measure FedPer and FedRep against FedAvg on `dnn`, in the simulator."""
    case = Model("", FLAT, "dnn", parts=HEAD)
    methods = (
        pm.FedAvg(local_steps=20, alpha=RATE),
        FedPer(local_steps=20, alpha=RATE),
        FedRep(head_steps=10, local_steps=10, alpha=RATE),
    )
    lanes = [Lane(method.name, 1, _rounds(method, case)) for method in methods]
    rates = [[trial.rate for trial in own] for own in measure(lanes, timing, time.process_time)]
    lines, good = [], True
    for lane, own in zip(lanes, rates, strict=True):
        share = paired(own, rates[0])
        assert share is not None
        good &= share >= SHARE
        lines.append(f"| {lane.engine} | {statistics.median(own):,.0f} | {share:.0%} |")
    return lines, good


def _rounds(method: pm.Algorithm, case: Model) -> Callable[[], int]:
    simulation = pm.Simulation(method, case.population, case.task, rounds=1 << 30, threads=1)

    def unit() -> int:
        before = simulation.device_steps
        simulation.step()
        return simulation.device_steps - before

    return unit


def main() -> int:
    """Measure, print and write."""
    timing = Timing(repeats=5, seconds=0.15)
    load = os.getloadavg()[0]
    lines = [
        "| model | numbers learned | backend | Palmette | plain loop | times as fast |",
        "|---|---|---|---|---|---|",
    ]
    waiting = models()
    while waiting:  # a model that was measured makes room for the next
        lines.append(row(waiting.pop(0), timing))
        print(lines[-1], flush=True)
    shares, good = parts(timing)
    lines += ["", "| method on `dnn` 784-100-10 | device-steps a second | beside FedAvg |", "|---|---|---|", *shares]
    print("\n".join(lines[-4:]))
    text = PAGE.read_text(encoding="utf-8")
    lines += [
        "",
        f"Load of the machine, which has {os.cpu_count()} cores: {load:.1f} at the start, {os.getloadavg()[0]:.1f} at the end.",
    ]
    inside = f"{BEGIN}\n\n" + "\n".join(lines) + f"\n\n{END}"
    PAGE.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: inside, text, flags=re.S), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
