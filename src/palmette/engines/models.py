"""The models of a simulation: the global one, those of inner tiers, and what every device predicts with."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from palmette.engines import rules
from palmette.engines.store import Store
from palmette.learner import Learner
from palmette.learner.threads import one_thread_inside
from palmette.population import Population
from palmette.protocol import Algorithm, Device, ModelKind, State, model_kind
from palmette.tree import Tree

ASIDE = 1 << 40  # the exchange number of work outside any exchange, such as `adapt`


class Models(ABC):
    """The models that the nodes of a simulation have now.

    Attributes:
        algorithm: The algorithm.
        tree: The tree it runs on.
        population: The samples of all devices, with the tree that they were given.
        learner: Does the devices' local work.
        stores: What the nodes of every tier keep.
        adapt_steps: Gradient steps that devices took to make models of their parents'.
        unseen_steps: Those of devices that are kept out of training.
    """

    algorithm: Algorithm
    tree: Tree
    population: Population
    learner: Learner
    stores: list[Store]
    adapt_steps: int
    unseen_steps: int

    @abstractmethod
    def _device(self, ids: Tensor, exchange: Tensor, rows: State) -> Device:
        """Return some devices as their program sees them now, given the rows kept of them."""

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
        """Return the models of an inner tier ``(nodes, d)``, or ``None`` when its nodes have none of their own.

        Args:
            tier: The tier; 1 is the teams above devices.
        """
        if not 0 < tier < self.tree.top or not self._has_models(tier):
            return None
        return self.models_of(tier, torch.arange(self.tree.size(tier)))

    def models_of(self, tier: int, ids: Tensor) -> Tensor:
        """Return the models of some nodes above the devices; a node without one has its parent's.

        Args:
            tier: Their tier.
            ids: Their numbers within it.
        """
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
        """Return the personal models of some devices; those without one adapt their parent's.

        Args:
            ids: The numbers of the devices.
        """
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
        device = self._device(ids, torch.full_like(ids, ASIDE), rows)
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
