"""The engines that are compared; each makes a *unit*: a piece of work that returns the device-steps it took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from palmette.algorithms import PerMFL
from palmette.bench import in_jax, peer, plain
from palmette.bench.limit import core, limit, sgemm
from palmette.bench.workloads import PULL, RATE, Case, pick, start_rows
from palmette.engines.simulate import Simulation
from palmette.learner import Learner, LocalWork, kernel
from palmette.learner.links import NotFused
from palmette.learner.native import NativeBackend
from palmette.protocol import Device, State
from palmette.protocol.settings import build

Unit = Callable[[], int]


@dataclass(frozen=True)
class Lane:
    """One engine at one number of threads, ready to run.

    Attributes:
        engine: Its name.
        threads: Threads it uses.
        unit: Does a piece of work and returns the device-steps it took.
        inside: Seconds spent so far in the learner, where the engine is more than a learner.
    """

    engine: str
    threads: int
    unit: Unit
    inside: Callable[[], float] | None = None


@dataclass(frozen=True)
class Engine:
    """One thing to compare.

    Attributes:
        name: What the tables call it.
        about: One line for people.
        make: Makes it ready for a case, once per number of threads.
        threaded: Whether it runs at other numbers of threads than one.
        missing: Why it cannot run here, or nothing.
        unfit: Why it cannot run a workload, or nothing.
    """

    name: str
    about: str
    make: Callable[[Case, int], Lane]
    threaded: bool = False
    missing: Callable[[], str] = lambda: ""
    unfit: Callable[[Case], str] = lambda case: ""


def _learner(backend: str) -> Callable[[Case, int], Lane]:
    """Make the learner's own work: all devices take their steps of one exchange, chunk by chunk."""

    def make(case: Case, threads: int) -> Lane:
        learner = Learner(case.task, case.population, batch_size=case.workload.batch, backend=backend)
        rows, devices, steps = start_rows(case), case.population.devices, case.workload.local_steps
        chunks = [
            (ids, rows[ids], torch.zeros_like(ids)) for ids in torch.arange(devices).split(learner.chunk(devices))
        ]
        exchange = 0

        def unit() -> int:
            nonlocal exchange
            exchange += 1
            with torch.no_grad():
                for ids, part, zero in chunks:
                    LocalWork(learner, ids, 0, zero + exchange).descend(
                        part, steps=steps, lr=RATE, pull=PULL, centre=part
                    )
            return devices * steps

        return Lane(backend, threads, unit)

    return make


def _simulator(case: Case, threads: int) -> Lane:
    """Make PerMFL rounds through the simulator on the backend that `auto` takes, the time inside the learner taken down."""
    workload, clock, spent = case.workload, case.clock, [0.0]

    class Timed(PerMFL):
        def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
            begin = clock()
            rows = super().adapt(node, parent, state)
            spent[0] += clock() - begin
            return rows

    steps = {"local_steps": workload.local_steps, "team_steps": workload.team_steps}
    algorithm = build(Timed, "permfl", {**steps, "alpha": RATE, "lam": PULL, "batch_size": workload.batch})
    simulation = Simulation(algorithm, case.population, case.task, rounds=1 << 30, threads=threads)

    def unit() -> int:
        before = simulation.device_steps
        simulation.step()
        return simulation.device_steps - before

    # Threads inside the learner at the same time would be counted twice.
    return Lane("simulator", threads, unit, (lambda: spent[0]) if threads == 1 else None)


def _alone(make: Callable[[Case], Unit], name: str) -> Callable[[Case, int], Lane]:
    return lambda case, threads: Lane(name, threads, make(case))


def _chunked(case: Case) -> Unit:
    learner = Learner(case.task, case.population, batch_size=case.workload.batch)
    return limit(case, learner.chunk(case.population.devices))


def _no_kernel() -> str:
    found = kernel.find()
    return f"there is no native kernel here, so it has no row: {found}" if isinstance(found, str) else ""


def _not_native(case: Case) -> str:
    try:
        NativeBackend(case.task, torch.float32, torch.device("cpu"))
    except NotFused as error:
        return f"{case.workload.name} has no row of native: {error}"
    return ""


def _chains_only(name: str) -> Callable[[Case], str]:
    told = f"{name} is for chains of dense layers and convolutions alone"
    return lambda case: "" if case.workload.chain else told


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            "core",
            "as many multiplications in registers alone",
            _alone(core, "core"),
            missing=_no_kernel,
            unfit=_chains_only("core"),
        ),
        Engine(
            "sgemm",
            "as many multiplications in large products",
            _alone(sgemm, "sgemm"),
            unfit=_chains_only("sgemm"),
        ),
        Engine(
            "limit",
            "the matrix products of the steps alone, all devices in one call",
            _alone(limit, "limit"),
            unfit=_chains_only("limit"),
        ),
        Engine(
            "limit-chunked",
            "the same products in the learner's chunks",
            _alone(_chunked, "limit-chunked"),
            unfit=_chains_only("limit-chunked"),
        ),
        Engine(
            "fused",
            "palmette's learner: stacked products, the step folded in",
            _learner("fused"),
            unfit=_chains_only("fused"),
        ),
        Engine(
            "native",
            "palmette's learner: dense chains in the native kernel",
            _learner("native"),
            missing=_no_kernel,
            unfit=_not_native,
        ),
        Engine("simulator", "PerMFL rounds in palmette's simulator", _simulator, threaded=True),
        Engine(
            "jax",
            "JAX by hand: lax.map over devices of a scan over steps",
            _alone(in_jax.by_hand, "jax"),
            missing=lambda: in_jax.missing("jax"),
            unfit=in_jax.unfit,
        ),
        Engine(
            "fedjax",
            "fedjax, federated averaging",
            _alone(in_jax.fedjax, "fedjax"),
            missing=lambda: in_jax.missing("fedjax"),
            unfit=in_jax.unfit,
        ),
        Engine("vmap", "palmette's learner: torch.func.vmap of grad", _learner("vmap")),
        Engine("loop", "palmette's learner: device after device", _learner("loop")),
        Engine("plain", "a plain PyTorch loop over devices", _alone(plain.without_loader, "plain")),
        Engine(
            "plain-loader",
            "the same with DataLoader: what research code does",
            _alone(plain.with_loader, "plain-loader"),
        ),
        Engine(
            "pfl",
            "pfl-research, federated averaging",
            _alone(peer.pfl, "pfl"),
            missing=lambda: "" if peer.installed() else peer.MISSING,
        ),
    )
}
"""The engines, in the order they take turns: those whose ratios matter most are neighbours in time."""


def lanes(case: Case, engines: list[str] | None, threads: list[int]) -> tuple[list[Lane], list[str]]:
    """Make the engines ready and say which cannot run here.

    Args:
        case: What they run.
        engines: Their names, all by default.
        threads: Numbers of threads of the threaded ones; the others run at one.
    """
    made: list[Lane] = []
    notes: list[str] = []
    for engine in pick("engine", engines, ENGINES):
        if reason := engine.missing() or engine.unfit(case):
            notes += [reason] if reason not in notes else []
            continue
        made += [engine.make(case, number) for number in (threads if engine.threaded else [1])]
    return made, notes
