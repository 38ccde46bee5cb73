"""The simulator: all nodes of a tier run as one stacked program, the devices in chunks on all cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palmette.engines import rules
from palmette.engines.journal import Journal
from palmette.engines.memory import LinkMemory
from palmette.engines.models import Models
from palmette.engines.state import LINK, restore, state
from palmette.engines.store import Pieces, Store
from palmette.errors import BadInput
from palmette.learner import Learner, Optimiser, curvature
from palmette.learner.threads import one_thread_inside as one_thread_inside
from palmette.links import Ledger, Link
from palmette.links.clock import SECOND, Pace
from palmette.links.exchange import Transport, drive, exchange
from palmette.links.office import Counters, Office
from palmette.links.parcel import Arrival, Parcel, diverged, not_finite
from palmette.links.participation import described
from palmette.links.record import Record
from palmette.population import Population
from palmette.protocol import Algorithm, Ask, Device, Node, Replies, State
from palmette.protocol.definition import check_method, check_tree
from palmette.protocol.stages import Stages
from palmette.task import Task
from palmette.values import whole

_GOOD = Link()


class Looked(NamedTuple):
    """What is looked at before a run, as a sentence, and the seconds that it took where that is done already."""

    sentence: str
    seconds: float = 0.0


class Simulation(Models):
    """One algorithm on one population, round after round.

    Args:
        algorithm: The algorithm to run.
        population: The samples of all devices, and their tree.
        task: The model to train, with its loss and metrics.
        rounds: Rounds the run will have in all (programs may look at it).
        seed: Random seed of the run.
        links: The link above each tier: ``{0: devices' link, 1: teams' link, ...}``; a method that runs flat uses the devices'.
        backend: The learner's backend.
        dtype: Floating-point type of the models.
        device: Torch device that computes.
        chunk: Devices that work at once; by default the learner decides.
        threads: Chunks that run at the same time; by default one per core.
        held_out: Share of the training samples kept out of training for programs that choose settings by it; what the
            algorithm wants by default.
        optimiser: How devices make steps of gradients; plain gradient descent by default.
        store: ``"memory"``, or a folder for the file that what the devices keep is mapped to.
        pace: How fast devices compute, on a clock that no machine has; without it there is no clock.

    Attributes:
        algorithm: The algorithm, with automatic step sizes replaced by numbers.
        population: The samples, and the tree of all nodes.
        task: The model, with the parts that the algorithm asks for.
        tree: The tree that the algorithm runs on: without teams for methods that do without.
        rounds: Rounds the run will have in all.
        round: Rounds done.
        seed: Random seed of the run.
        links: The links by the tier below them.
        pace: How fast devices compute on the simulated clock; ``None`` without one.
        ledger: Exchanges and bytes so far, by round and link.
        record: Who was absent so far, when and why.
        device_steps: Gradient steps of all devices so far.
        samples: Training samples under every node, a tensor for each tier.
        held_out: Share of the training samples kept out of training.
        learner: What takes gradient steps of many devices at once.
        threads: Chunks of devices that run at the same time.
        processes: Processes that share the run.
        stores: What the nodes of each tier keep between messages.
        counters: How many exchanges and steps every node had, a table for each tier.
        on_exchange: A function that is called after every exchange with the tier of the asking nodes; to watch.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        population: Population,
        task: Task,
        *,
        rounds: int,
        seed: int = 0,
        links: Mapping[int, Link] | None = None,
        backend: str = "auto",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        chunk: int | None = None,
        threads: int | None = None,
        held_out: float | None = None,
        optimiser: Optimiser | None = None,
        store: Path | str = "memory",
        pace: Pace | None = None,
    ) -> None:
        for name, value in (("rounds", rounds), ("threads", threads), ("chunk", chunk)):
            if value is not None:
                whole(name, value, 1)
        algorithm = check_method(algorithm)
        task = task.with_parts(algorithm.parts, whole=algorithm.whole_part)
        self.population, self.task = population, task
        self.rounds, self.seed, self.round = rounds, seed, 0
        self.tree = population.tree.flat() if algorithm.flat else population.tree
        check_tree(algorithm, self.tree)
        algorithm.check(self.tree)
        self.held_out = algorithm.held_out if held_out is None else held_out
        self.learner = Learner(
            task,
            population,
            seed=seed,
            batch_size=algorithm.batch_size,
            dtype=dtype,
            device=device,
            backend=backend,
            held_out=self.held_out,
            optimiser=optimiser,
        )
        if vars(algorithm).get("alpha") == "auto" and not self.learner.optimiser.plain:
            raise BadInput(
                "alpha = 'auto' is the largest learning rate that is stable for plain gradient steps, and optimiser.* asks for "
                "others; give alpha a number"
            )
        if algorithm.plain_steps and self.learner.optimiser != Optimiser():
            raise BadInput(
                f"{algorithm.name} reads gradients off plain gradient steps of length alpha, and optimiser.* asks for others; "
                "leave optimiser.* out"
            )
        if algorithm.several_models and self.learner.optimiser.keep:
            raise BadInput(
                "optimiser.keep = true keeps the momentum of one model between exchanges, and devices of "
                f"{algorithm.name} train several; leave optimiser.keep out"
            )
        self.looked: list[Looked] = []
        """What is looked at before the first round."""
        with one_thread_inside():
            self.algorithm = algorithm.tuned(self._smoothness)
        self.links = dict(links or {})
        if unknown := set(self.links) - set(range(population.tree.top)):
            raise BadInput(f"there is no link above tier {unknown.pop()}; this tree has {population.tree.tiers} tiers")
        if population.unseen is not None:
            self.links[0] = replace(self.links.get(0, _GOOD), barred=population.unseen)
        self._chunk, self._stages = chunk, Stages(self.algorithm, self.tree, rounds)
        cores = os.cpu_count() or 1
        self.threads = threads or (cores if self.learner.device.type == "cpu" else 1)
        # Kept for the simulation's life: the learner's working memory belongs to a thread.
        self._pool = ThreadPoolExecutor(max(1, self.threads - 1), initializer=_begin_thread)
        self.samples = [self.learner.samples]
        for tier in range(self.tree.top):
            parents = torch.from_numpy(self.tree.parents[tier])
            above = torch.zeros(self.tree.size(tier + 1), dtype=torch.int64)
            below = self.samples[-1] if tier or population.unseen is None else self.samples[0] * ~population.unseen
            self.samples.append(above.index_add_(0, parents, below))
        initial = self.learner.initial()
        # Only devices are so many that their rows may have to lie on disk.
        folders = {0: None if store == "memory" else Path(store)}
        self.stores = [
            Store(
                self.tree.size(tier),
                rules.stored(algorithm, self.tree, tier, task.layout, initial, self.learner.keeps()),
                folders.get(tier),
                prefix=f"store-{tier}",
            )
            for tier in range(self.tree.tiers)
        ]
        self.counters = [Counters(self.tree.size(tier)) for tier in range(self.tree.tiers)]
        self.memories = [LinkMemory(self.tree.size(tier), folders.get(tier), tier) for tier in range(self.tree.top)]
        """What the codecs of the link above each tier remember."""
        self.ledger, self.record, self.pace = Ledger(), Record(), pace
        self.device_steps, self.processes = 0, 1
        self.adapt_steps = self.unseen_steps = 0  # the second: those of devices that are kept out of training
        self.looked_at_rounds = False
        """Whether a program looked at the number of rounds, so that what it did depends on it."""
        self.looked_at_parts = False
        """Whether a program treated parts of the model differently."""
        self.on_exchange: Callable[[int], None] = lambda tier: None

    def _smoothness(self) -> float:
        """Return L_f for automatic steps, and keep what was looked at where it is an estimate."""
        began = time.perf_counter()
        found = curvature(self.learner)
        if not found.exact:
            told = f"alpha = auto follows from the curvature of the losses at the initial model, {found.told}"
            self.looked.append(Looked(told, time.perf_counter() - began))
        return found.smoothness

    # -- running -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Run one round."""
        with one_thread_inside(), torch.no_grad():
            for counter, store in zip(self.counters, self.stores, strict=True):
                counter.exchange.zero_()
                store.prepare()
            ids = torch.zeros(1, dtype=torch.int64)
            node, store = self.node(self.tree.top, ids), self.stores[-1]
            program = rules.server(self.algorithm, node, store.read(ids), store.initial)
            state = drive(program, lambda ask: self._exchange(node, ask))
            if not_finite(state) is not None:
                raise diverged(self.tree, self.tree.top, 0, self.round, self.algorithm.name)
            store.write(ids, state, self.round)
        self.round += 1

    @cached_property
    def _drops(self) -> bool:
        """Whether devices may work in vain, because their reply, or that of a node above them, does not enter."""
        return any(link.faults.drops for link in self.links.values())

    @property
    def wasted_steps(self) -> int:
        """Gradient steps that changed nothing, because a reply did not enter."""
        return self.device_steps - int(self.counters[0].steps.sum()) if self._drops else 0

    @property
    def time(self) -> float:
        """Seconds on the clock, of the server; 0 without a clock."""
        return int(self.counters[-1].time[0]) / SECOND

    def _where(self) -> dict[str, Any]:
        stage, turn = self._stages.at(self.round)
        where = {"seed": self.seed, "round_": self.round, "rounds": self.rounds, "stage": stage, "turn": turn}
        told = {"on_rounds": self._look, "on_parts": self._look_at_parts}
        return {**where, **told, "samples": self.samples, "layout": self.task.layout}

    def _look(self) -> None:
        self.looked_at_rounds = True

    def _look_at_parts(self) -> None:
        self.looked_at_parts = True

    def node(self, tier: int, ids: Tensor) -> Node:
        """Return some nodes of a tier as their program sees them now.

        Args:
            tier: The tier.
            ids: The numbers of the nodes within it.
        """
        return Node(self.tree, tier, ids, **self._where())

    def _exchange(self, node: Node, ask: Ask) -> Replies:
        transport: Transport = (
            self._to_devices if node.tier == 1 else lambda parcel: self._to_teams(node.tier - 1, parcel)
        )
        traffic = self.ledger.at(self.round, self.link_tier(node.tier))
        with rules.asking(self.algorithm, node):
            replies = exchange(node, ask, self._offices[node.tier - 1], traffic, transport)
        self.on_exchange(node.tier)
        return replies

    @cached_property
    def _offices(self) -> list[Office]:
        """What the nodes above each tier ask with."""
        return [
            Office(
                self.links.get(tier, _GOOD),
                self.counters[tier + 1],
                self.counters[tier],
                self.memories[tier],
                self.record,
                self.algorithm.name,
                self.pace is not None,
            )
            for tier in range(self.tree.top)
        ]

    @property
    def participation(self) -> str:
        """Who takes part on every link, in words."""
        return described([self.links.get(tier, _GOOD).participation for tier in range(self.tree.top)])

    def link_tier(self, tier: int) -> int:
        """Return the tier a link is counted under: the only link of a method without teams is the one to the server.

        Args:
            tier: The tier of the asking nodes, in the tree that the algorithm runs on.
        """
        return self.population.tree.top if self.algorithm.flat else tier

    def _to_teams(self, tier: int, parcel: Parcel) -> Iterator[tuple[slice, Arrival]]:
        ids, store, times = parcel.ids, self.stores[tier], self.counters[tier].time
        journal = Journal(self.tree, tier, self._kept_in, self.counters, self.record) if parcel.uncertain else None
        delivery = parcel.open(slice(0, len(ids)))
        if self.pace is not None:
            times[ids] = delivery.start
        node = self.node(tier, ids)
        with nullcontext() if journal is None else journal.open():
            program = rules.team(self.algorithm, node, delivery.message, store.read(ids), store.initial)
            reply, state = drive(program, lambda ask: self._exchange(node, ask))
        arrival = delivery.accept(reply, times[ids] if self.pace is not None else None, state)
        if journal is not None and arrival.entered is not None and not bool(arrival.entered.all()):
            journal.undo(ids[~arrival.entered])
        self._write(tier, ids, state, arrival)
        yield slice(0, len(ids)), arrival

    def _kept_in(self, tier: int) -> list[Store]:
        """Return all that is kept of the nodes of a tier: their own rows, and what the link above them remembers."""
        return [self.stores[tier], *(self.memories[tier].stores.values() if tier < self.tree.top else ())]

    def _write(self, tier: int, ids: Tensor, state: State, arrival: Arrival) -> None:
        """Keep the new rows of those whose reply entered."""
        if arrival.entered is not None and not bool(arrival.entered.all()):
            some = arrival.entered
            ids, state = ids[some], {name: rows[some.to(rows.device)] for name, rows in state.items()}
        if len(ids):
            self.stores[tier].write(ids, state, self.round)

    def _to_devices(self, parcel: Parcel) -> Iterator[tuple[slice, Arrival]]:
        """Run the device program chunk by chunk; replies come out in order."""
        return self.worked(parcel, self._chunks(len(parcel.ids)))

    def _chunks(self, count: int) -> list[slice]:
        """Cut up some participants, by the model and their number alone, into chunks that work at once."""
        size = min(self._chunk or self.learner.chunk(count), count)
        return [slice(low, min(low + size, count)) for low in range(0, count, size)]

    def worked(self, parcel: Parcel, chunks: list[slice]) -> Iterator[tuple[slice, Arrival]]:
        """Let some chunks work, on all threads; replies come out in order, few of them waiting at a time."""
        threads = self.threads if self.learner.worth_a_thread(chunks[0].stop - chunks[0].start) else 1
        self.learner.inside = max(1, self.threads // min(threads, len(chunks)))
        others: dict[int, Future[tuple[Arrival, int]]] = {}
        begun = 0
        try:
            for number, positions in enumerate(chunks):
                # This thread takes one chunk of as many as there are threads; the pool the others, some of them ahead.
                for ahead in range(begun, min(number + 2 * threads, len(chunks))):
                    begun = ahead + 1
                    if ahead % threads:
                        others[ahead] = self._pool.submit(self._work, parcel, chunks[ahead])
                arrival, steps = others[number].result() if number % threads else self._work(parcel, positions)
                others.pop(number, None)  # not before it is done: one that is waited for must be ended, too
                self.device_steps += steps
                yield positions, arrival
        finally:  # after a failure no chunk may write any more: the run goes back to its last good round
            if others:
                with self.learner.halted():
                    wait([other for other in others.values() if not other.cancel()])

    def _work(self, parcel: Parcel, positions: slice) -> tuple[Arrival, int]:
        """Let some devices work on a message; return what arrives and the gradient steps they took."""
        delivery, store = parcel.open(positions), self.stores[0]
        ids = delivery.ids
        kept = store.read(ids)
        device = self._device(ids, parcel.exchange[positions], kept)
        reply, state = rules.device(self.algorithm, device, delivery.message, kept, store.initial)
        ended = None
        if self.pace is not None:
            steps = torch.from_numpy(device.taken)
            took = self.pace.duration(self.tree, ids, steps, self.seed, self.round, parcel.exchange[positions])
            ended = delivery.start + took
        arrival = delivery.accept(reply, ended, state)
        self._write(0, ids, state, arrival)
        if self._drops:
            useful = device.taken if arrival.entered is None else device.taken * arrival.entered.numpy()
            self.counters[0].steps[ids] += torch.from_numpy(useful)
        return arrival, device.device_steps

    def _device(self, ids: Tensor, exchange: Tensor, rows: State) -> Device:
        """Return some devices as their program sees them now, given the rows kept of them."""
        kept = rules.of_work(rows, self.stores[0].initial)
        return Device(self.learner, exchange, self.tree, ids, kept=kept, **self._where())

    # -- state between rounds ------------------------------------------------------------------------------------------

    @property
    def kept(self) -> dict[str, Store]:
        """All that is kept of nodes between rounds, by the name that it has in a checkpoint."""
        own = {str(tier): store for tier, store in enumerate(self.stores)}
        links = {
            f"{LINK}/{tier}/{key}": store
            for tier, memory in enumerate(self.memories)
            for key, store in sorted(memory.stores.items())
        }
        return own | links

    def state(self, since: int = 0) -> dict[str, Tensor | Pieces]:
        """Return by name what the next rounds depend on, as far as it changed in round ``since`` or later; by default all.

        Args:
            since: The first round whose changes are wanted.
        """
        return state(self, since)

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Go on from a state: the next rounds come out as if there had been no stop.

        A state since the first round is whole. One since a later round is what changed after the one that was restored last.

        Args:
            tensors: What `state` returned.
        """
        restore(self, tensors)


def _begin_thread() -> None:
    """Set up a thread for chunks: no threads inside its operations, no autograd."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
