"""The simulator: all nodes of a tier run as one stacked program, the devices in chunks on all cores."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from palmette.engines import rules
from palmette.engines.store import Pieces, Store, kept_rows
from palmette.errors import BadInput, Diverged
from palmette.learner import Learner, Optimiser, curvature
from palmette.learner.threads import one_thread_inside as one_thread_inside
from palmette.links import Ledger, Link
from palmette.links.exchange import Counters, Parcel, drive, exchange
from palmette.links.participation import described
from palmette.links.sparse import plain
from palmette.population import Population
from palmette.protocol import Algorithm, Ask, Device, ModelKind, Node, Replies, State, model_kind
from palmette.protocol.definition import check_method, check_tree
from palmette.task import Task
from palmette.values import whole

_GOOD = Link()
_ASIDE = 1 << 40  # the exchange number of work outside any exchange, such as `adapt`


class Looked(NamedTuple):
    """What is looked at before a run, as a sentence, and the seconds that it took where that is done already."""

    sentence: str
    seconds: float = 0.0


class Simulation:
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
        self.learner = Learner(
            task,
            population,
            seed=seed,
            batch_size=algorithm.batch_size,
            dtype=dtype,
            device=device,
            backend=backend,
            held_out=algorithm.held_out if held_out is None else held_out,
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
        self._chunk = chunk
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
        self.ledger = Ledger()
        self.device_steps = 0
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
            self._finite(state, self.tree.top, ids)
            store.write(ids, state, self.round)
        self.round += 1

    def _where(self) -> dict[str, Any]:
        stage = self.algorithm.stage(self.tree, self.round, self.rounds)
        where = {"seed": self.seed, "round_": self.round, "rounds": self.rounds, "stage": stage}
        told = {"on_rounds": self._look, "on_parts": self._look_at_parts}
        return {**where, **told, "samples": self.samples, "layout": self.task.layout}

    def _look(self) -> None:
        self.looked_at_rounds = True

    def _look_at_parts(self) -> None:
        self.looked_at_parts = True

    def node(self, tier: int, ids: Tensor) -> Node:
        """Return some nodes of a tier as their program sees them now."""
        return Node(self.tree, tier, ids, **self._where())

    def _exchange(self, node: Node, ask: Ask) -> Replies:
        transport = self._to_devices if node.tier == 1 else lambda parcel: self._to_teams(node.tier - 1, parcel)
        traffic = self.ledger.at(self.round, self.link_tier(node.tier))
        link = self.links.get(node.tier - 1, _GOOD)
        with rules.asking(self.algorithm, node):
            replies = exchange(node, ask, link, self.counters[node.tier], traffic, transport)
        self.on_exchange(node.tier)
        return replies

    @property
    def participation(self) -> str:
        """Who takes part on every link, in words."""
        return described([self.links.get(tier, _GOOD).participation for tier in range(self.tree.top)])

    def link_tier(self, tier: int) -> int:
        """Return the tier a link is counted under: the only link of a method without teams is the one to the server."""
        return self.population.tree.top if self.algorithm.flat else tier

    def _to_teams(self, tier: int, parcel: Parcel) -> Iterator[tuple[slice, Any]]:
        node, store = self.node(tier, parcel.ids), self.stores[tier]
        message = parcel.take(slice(None))
        program = rules.team(self.algorithm, node, message, store.read(parcel.ids), store.initial)
        reply, state = drive(program, lambda ask: self._exchange(node, ask))
        self._finite(reply, tier, parcel.ids)
        store.write(parcel.ids, state, self.round)
        yield slice(0, len(parcel.ids)), reply

    def _to_devices(self, parcel: Parcel) -> Iterator[tuple[slice, Any]]:
        """Run the device program chunk by chunk; replies come out in order, few of them waiting at a time."""
        count = len(parcel.ids)
        size = min(self._chunk or self.learner.chunk(count), count)
        chunks = [slice(low, min(low + size, count)) for low in range(0, count, size)]
        threads = self.threads if self.learner.worth_a_thread(size) else 1
        self.learner.inside = max(1, self.threads // min(threads, len(chunks)))
        others: dict[int, Future[tuple[Any, int]]] = {}
        begun = 0
        try:
            for number, positions in enumerate(chunks):
                # This thread takes one chunk of as many as there are threads; the pool the others, some of them ahead.
                for ahead in range(begun, min(number + 2 * threads, len(chunks))):
                    begun = ahead + 1
                    if ahead % threads:
                        others[ahead] = self._pool.submit(self._work, parcel, chunks[ahead])
                reply, steps = others[number].result() if number % threads else self._work(parcel, positions)
                others.pop(number, None)  # not before it is done: one that is waited for must be ended, too
                self.device_steps += steps
                yield positions, reply
        finally:  # after a failure no chunk may write any more: the run goes back to its last good round
            if others:
                with self.learner.halted():
                    wait([other for other in others.values() if not other.cancel()])

    def _work(self, parcel: Parcel, positions: slice) -> tuple[Any, int]:
        ids, store = parcel.ids[positions], self.stores[0]
        kept = store.read(ids)
        device = self._device(ids, parcel.exchange[positions], kept)
        reply, state = rules.device(self.algorithm, device, parcel.take(positions), kept, store.initial)
        self._finite(state if reply is None else reply, 0, ids)
        store.write(ids, state, self.round)
        return reply, device.device_steps

    def _device(self, ids: Tensor, exchange: Tensor, rows: State) -> Device:
        """Return some devices as their program sees them now, given the rows kept of them."""
        kept = rules.of_work(rows, self.stores[0].initial)
        return Device(self.learner, exchange, self.tree, ids, kept=kept, **self._where())

    def _finite(self, rows: Any, tier: int, ids: Tensor) -> None:
        """Stop at the first number that is not one."""
        for value in map(plain, rows.values() if isinstance(rows, Mapping) else [rows]):
            if not isinstance(value, Tensor) or not value.is_floating_point() or math.isfinite(value.sum()):
                continue  # a finite sum has finite parts only, and is far cheaper to look at
            if not bool(value.isfinite().all()):
                bad = int((~value.flatten(1).isfinite().all(1)).nonzero()[0]) if value.dim() > 1 else 0
                raise Diverged(
                    f"{self.tree.name(tier, int(ids[bad]))!r} (tier {tier}) is no longer finite in round {self.round}: "
                    f"{self.algorithm.name} diverged; lower its step sizes"
                )

    # -- state between rounds ------------------------------------------------------------------------------------------

    @property
    def memories(self) -> dict[str, Store]:
        """All that nodes keep between rounds, by the name that it has in a checkpoint."""
        return {str(tier): store for tier, store in enumerate(self.stores)}

    def memory(self, name: str, rows: Mapping[str, Any]) -> Store | None:
        """Return what nodes keep under a name of a checkpoint; ``None`` where they keep no such rows."""
        store = self.memories.get(name)
        return store if store is not None and store.initial.keys() == rows.keys() else None

    def state(self, since: int = 0) -> dict[str, Tensor | Pieces]:
        """Return by name what the next rounds depend on, as far as it changed in round ``since`` or later; by default all."""
        traffic = [list(row.values()) for row in self.ledger.rows() if row["round"] >= since]
        tensors: dict[str, Tensor | Pieces] = {
            "ledger": torch.tensor(traffic, dtype=torch.int64).reshape(-1, 5),
            "progress": torch.tensor([self.round, self.device_steps, since]),
        }
        for name, store in self.memories.items():
            ids = store.changed(since)
            tensors |= {f"ids/{name}": ids, f"last/{name}": store.last[ids]}
            tensors |= {f"rows/{name}/{kind}": store.written(kind, ids) for kind in store.initial}
        # Devices ask nobody.
        return tensors | {f"turn/{tier}": counter.turn for tier, counter in enumerate(self.counters) if tier}

    def restore(self, tensors: Mapping[str, Any]) -> None:
        """Go on from a state: the next rounds come out as if there had been no stop.

        A state since the first round is whole. One since a later round is what changed after the one that was restored last.
        """
        self.round, self.device_steps, since = tensors["progress"].tolist()
        if since == 0:
            self.ledger = Ledger()
            for store in self.memories.values():
                store.forget()
        for name, rows in kept_rows(tensors).items():
            mine = self.memory(name, rows)
            if mine is None:
                raise BadInput(f"a state with the rows {sorted(rows)} of {name!r} is not one of this simulation")
            mine.restore(tensors[f"ids/{name}"], tensors[f"last/{name}"], rows)
        for tier, counter in enumerate(self.counters):
            if tier:
                counter.turn.copy_(tensors[f"turn/{tier}"])
        for round_, tier, exchanges, up, down in tensors["ledger"].tolist():
            self.ledger.at(round_, tier).add(exchanges, down, up)

    # -- models --------------------------------------------------------------------------------------------------------

    @property
    def kinds(self) -> dict[ModelKind, int]:
        """The kinds of models there are, from the devices up, each with the tier in `tree` that has them."""
        made, top = self.algorithm.models, self.tree.top
        tiers = {model_kind(tier, top): tier for tier in range(top + 1) if tier in (0, top) or self._has_models(tier)}
        return {kind: tier for kind, tier in tiers.items() if ("TM" if kind.startswith("TM") else kind) in made}

    def _has_models(self, tier: int) -> bool:
        return "model" in self.stores[tier].initial

    def model(self) -> Tensor:
        """Return the global model as a flat row."""
        return self.stores[-1].read(torch.zeros(1, dtype=torch.int64))["model"][0]

    def team_models(self, tier: int = 1) -> Tensor | None:
        """Return the models of an inner tier ``(nodes, d)``, or ``None`` when its nodes have none of their own."""
        if not 0 < tier < self.tree.top or not self._has_models(tier):
            return None
        return self.models_of(tier, torch.arange(self.tree.size(tier)))

    def models_of(self, tier: int, ids: Tensor) -> Tensor:
        """Return the models of some nodes above the devices; a node without one has its parent's."""
        store = self.stores[tier]
        if tier == self.tree.top:
            return self.model().expand(len(ids), -1)
        without = torch.ones(len(ids), dtype=torch.bool)
        if "model" in store.initial:
            without = store.last[ids] < 0
            if not bool(without.any()):
                return store.read(ids)["model"]
        above = torch.from_numpy(self.tree.parents[tier])[ids]
        if bool(without.all()):
            return self.models_of(tier + 1, above)
        rows = store.read(ids)["model"]
        rows[without.to(rows.device)] = self.models_of(tier + 1, above[without])
        return rows

    def device_models(self, ids: Tensor) -> Tensor:
        """Return the personal models of some devices; those without one adapt their parent's."""
        return self.personal(ids)[0]["model"]

    def personal(self, ids: Tensor) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return the rows that some devices predict with, by name, and their own running statistics where they keep some.

        Rows besides ``model`` are there where the algorithm has a way of its own to predict.
        """
        store = self.stores[0]
        with one_thread_inside(), torch.no_grad():
            state, running = store.read(ids), self.running(ids)
            names = rules.Visible(state, store.initial) if self.predicts else ()
            rows = {name: state[name] for name in names}
            without = torch.ones(len(ids), dtype=torch.bool)
            rows["model"] = self.model().new_empty((len(ids), self.learner.width))
            if "model" in store.initial:
                without = store.last[ids] < 0
                rows["model"] = state["model"]
            if bool(without.any()):
                place = without.to(rows["model"].device)
                made, moved = self._adapted(ids[without], {name: state[name][place] for name in store.initial})
                for name, value in made.items():
                    if name in rows:
                        rows[name][place] = value
                if running is not None and moved is not None:
                    running[place] = moved
        return rows, running

    def _adapted(self, ids: Tensor, rows: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """Return what devices without a model make of their parents', and their running statistics after it."""
        # Most devices of a block have one parent, whose model is read once.
        above, place = torch.from_numpy(self.tree.parents[0])[ids].unique(return_inverse=True)
        parents = self.models_of(1, above)
        parents = parents.index_select(0, place.to(parents.device))
        device = self._device(ids, torch.full_like(ids, _ASIDE), rows)
        made = rules.adapt(self.algorithm, device, parents, rows, self.stores[0].initial)
        self.adapt_steps += device.device_steps
        if (out := self.population.unseen) is not None:
            self.unseen_steps += int(device.taken[out[ids].numpy()].sum())
        return made, device.kept.get("running")

    @property
    def predicts(self) -> bool:
        """Whether the algorithm has a way of its own to predict from what a device keeps."""
        return type(self.algorithm).predict is not Algorithm.predict

    def running(self, ids: Tensor) -> Tensor | None:
        """Return some devices' own running statistics, where devices keep some."""
        name = f"{rules.HIDDEN}running"
        return self.stores[0].read(ids)[name] if name in self.stores[0].initial else None


def _begin_thread() -> None:
    """Set up a thread for chunks: no threads inside its operations, no autograd."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
