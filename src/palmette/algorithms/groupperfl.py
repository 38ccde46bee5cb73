"""GroupPerFL: one model for all, then one for each group from there, then one for each client, without an objective.

Stage 1 is federated learning over all clients, stage 2 the same inside every group from the global model, stage 3 local epochs
from the group's model, without any communication. Stopping early or leaving one out gives the family: ``fl`` (1), ``perfl``
(1 + 3), ``groupfl`` (1 + 2), ``groupperfl`` (1 + 2 + 3). In a round every client drawn trains K epochs; the mean of what they
moved by, weighted by samples, is the gradient of an Adam step at the server, or at the group's. The groups are the teams.

T and T_g count passes: everybody (in stage 2 everybody in a group) is drawn once per pass, ``clients`` (S) at a time, so T
passes are ``T * ceil(N / S)`` rounds. A run has as many rounds as T and T_g ask for; one that is given another number shares
it between the stages in proportion (`Staged.plan`, `palmette.blocks.passes`). Stage 1 draws from all clients, not group by
group: the draw is addressed, so every team works it out for its own and nothing is sent for it; a link's own participation
narrows it further. A smaller group is done with stage 2 before the largest. During stage 1 a team's model is the global one
it last received.

Stage 3 is `adapt`. Each client chooses its rate from ``rates`` by the loss on its held-out training samples, one that holds
out none by its training loss. All four methods hold out the same quarter of every client's training samples
(``engine.held_out`` sets another share, 0 none), so that stages 1 and 2 are the same training in all of them. The paper does
not say how it chose, nor whether Adam's moments start anew in stage 2; here they do.

Zhe Liu, Yue Hui, Fuchun Peng: Group Personalized Federated Learning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from palmette.blocks.held_out import held_out_losses
from palmette.blocks.passes import Cost, Plan
from palmette.blocks.server_optimisers import FedAdam, Form
from palmette.blocks.statistics import with_statistics
from palmette.learner import Epochs
from palmette.links.participation import Participation
from palmette.protocol import Algorithm, Ask, Device, Inner, ModelKind, Node, Server, State, inverse
from palmette.protocol.settings import BatchSize, Between, Count, NonNegative, Positive, Rate, settings
from palmette.tree import Tree

PUBLISHED = {
    **{"passes": 20, "group_passes": 10, "clients": 100, "local_epochs": 1, "alpha": 1.0, "batch_size": 8},
    **{"server_lr": 0.001, "group_lr": 0.001, "tune_epochs": 5, "weight_decay": 1e-5},
}

_WITHOUT_GROUPS = {"alpha": Between(0.01, 1.0), "server_lr": Between(0.001, 0.1)}


@settings
class Staged(Algorithm):
    """The programs of all four methods, which differ in the stages they have.

    Attributes:
        passes: Passes over all clients in stage 1; each client is drawn once in a pass (T in the paper).
        group_passes: Passes over the clients of every group in stage 2 (T_g in the paper).
        clients: Clients drawn in a round (S in the paper).
        local_epochs: Local epochs of a client that was drawn; fractions are allowed (K in the paper).
        alpha: Learning rate of the clients; also one number per device name, or ``"auto"`` for the largest that is stable
            (eta_l in the paper).
        server_lr: Learning rate of Adam at the server in stage 1 (eta_G in the paper).
        group_lr: Learning rate of Adam in the groups in stage 2 (eta_g in the paper).
        adam: Form of Adam: ``"flsim"`` is torch's with bias correction, ``"reddi"`` that of Adaptive Federated Optimization.
        weight_decay: Weight decay (l2) of Adam at server and groups; 1e-5 is FLSim's default.
        tune_epochs: Local epochs of stage 3, which make a client's own model (K_l in the paper).
        rates: Learning rates that every client tries in stage 3; the best on its held-out samples is kept
            (eta_il in the paper).
        batch_size: Samples in a client's mini-batch; ``"full"`` takes all it has.
    """

    paper: ClassVar[str] = "Liu, Hui, Peng: Group Personalized Federated Learning"
    absent: ClassVar[str] = (
        "A client that is left out misses its turn of the pass; the Adam step is taken with those that answered."
    )
    tiers: ClassVar[tuple[int, ...]] = (3,)
    held_out: ClassVar[float] = 0.25  # of all four, so that what they have in common is the same training
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"published": PUBLISHED}
    search: ClassVar[Mapping[str, Between]] = {**_WITHOUT_GROUPS, "group_lr": Between(0.001, 0.1)}
    grouped: ClassVar[bool]
    personal: ClassVar[bool]

    passes: Count = 20
    group_passes: Count = 10
    clients: Count = 100
    local_epochs: Positive = 1
    alpha: Rate = 0.1
    server_lr: Positive = 0.01
    group_lr: Positive = 0.01
    adam: Form = "flsim"
    weight_decay: NonNegative = 1e-5
    tune_epochs: Positive = 5
    rates: Annotated[tuple[Positive, ...], Field(min_length=1)] = (0.001, 0.01, 0.1, 1.0)
    batch_size: BatchSize = 8

    @property
    def models(self) -> tuple[ModelKind, ...]:
        """Groups have models where there is a stage for them."""
        return ("PM", "TM", "GM") if self.grouped else ("PM", "GM")

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Server and groups keep a model and Adam's moments; the server also who began stage 2."""
        if node.tier == 0 or (node.tier == 1 and not self.grouped):
            return {}
        kept = {"model": initial, **self._adam(node.tier).start(initial)}
        return {**kept, "began": initial.new_zeros(node.tree.size(1))} if node.tier == 2 and self.grouped else kept

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    def _adam(self, tier: int) -> FedAdam:
        return FedAdam(self.server_lr if tier == 2 else self.group_lr, self.adam, self.weight_decay)

    # -- stages --------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> Plan:
        """Return the rounds that T and T_g passes over a tree's clients take."""
        groups = tuple(np.diff(tree.offsets[0]).tolist()) if self.grouped else ()
        return Plan.of(tree.devices, groups, self.clients, self.passes, self.group_passes)

    def asked_rounds(self, tree: Tree) -> int:
        """Return the rounds of the whole plan."""
        return self.plan(tree).rounds

    def stage(self, tree: Tree, round_: int, rounds: int) -> int:
        """Return 1 while all clients train together, 2 while groups do; stage 3 crosses no link and has no rounds."""
        return 2 if self.grouped and round_ >= self.plan(tree).within(rounds).first else 1

    def cost(self, tree: Tree, team: int) -> Cost:
        """Return what a client of a team pays for the whole plan."""
        return self.plan(tree).costs(self.local_epochs, self._tuned)[team if self.grouped else 0]

    @property
    def _tuned(self) -> float:
        return self.tune_epochs if self.personal else 0.0

    def outline(self, tree: Tree, rounds: int) -> dict[str, Any]:
        """Tell the rounds of the stages and, as in the paper's Table 4, what a client pays."""
        whole = self.plan(tree)
        plan = whole.within(rounds)
        costs = plan.costs(self.local_epochs, self._tuned)
        told: dict[str, Any] = {"planned_rounds": whole.rounds, "stage_1_rounds": plan.first}
        if self.grouped:
            told["stage_2_rounds"] = _by_team(tree, plan.groups)
        for name in ("downloads", "uploads", "epochs"):
            told[f"{name}_per_client"] = _by_team(tree, [getattr(cost, name) for cost in costs])
        if rounds != whole.rounds:
            passes = f"passes = {self.passes}" + (f", group_passes = {self.group_passes}" if self.grouped else "")
            left = "" if not self.grouped or any(plan.groups) else "; no round is left for stage 2"
            told["note"] = f"the {whole.rounds} rounds of {passes} were fitted into the {rounds} given{left}"
        return told

    def _drawn(self, node: Node, clients: Tensor, pools: Tensor) -> Tensor:
        """Return which clients are drawn in this round of the stage.

        Args:
            node: Where.
            clients: Their addresses, pool by pool.
            pools: For each, the number of the pool that it is drawn from.
        """
        count = int(pools.max()) + 1
        return Participation("pass", self.clients).draw(
            clients,
            pools,
            seed=node.seed,
            tier=node.tree.top + node.stage,  # an address of its own, apart from the links' draws
            round_=0,
            exchange=torch.zeros(count, dtype=torch.int64),
            turn=torch.full((count,), node.turn),
        )

    # -- programs ------------------------------------------------------------------------------------------------------

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Train K epochs; reply with what the model moved by, times the number of samples, and that number."""
        rate = node.own(self.alpha, message)
        theta = node.descend(message, steps=Epochs(self.local_epochs), lr=rate)
        samples = node.samples.to(message)[:, None]
        return {"moved": samples * (message - theta), "samples": samples}, state

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Sum up one's clients for the server, or take a step of the group's own."""
        x = state["model"] if message is None else message if node.stage == 2 else message["model"]
        still = {"moved": torch.zeros_like(x), "samples": x.new_zeros((len(node), 1))}
        if node.stage == 1:
            got = yield Ask(x, only=torch.isin(node.child_addresses, message["drawn"][0].cpu()), otherwise=still)
            kept = {**state, "model": x} if self.grouped else state
            return {name: got.count.to(x)[:, None] * got[name] for name in still}, kept
        drawn = self._drawn(node, node.child_addresses, node.child_parents)
        got = yield Ask(x, only=drawn, otherwise=still)
        moments = state if message is None else self._adam(1).start(x)
        gradient = got["moved"] / got["samples"].clamp(min=1)
        model, moments = self._adam(1).step(x, moments, gradient, got.present)
        return None, {"model": with_statistics(node.layout, model, x - gradient), **moments}

    def server(self, node: Node, state: State) -> Server:
        """Take an Adam step with what comes back; in stage 2 hand over the model and let the groups work."""
        x = state["model"]
        if node.stage == 1:
            clients = torch.from_numpy(node.tree.addresses[0])
            drawn = self._drawn(node, clients, torch.zeros_like(clients))
            teams = torch.zeros(len(node.child_ids), dtype=torch.bool)
            teams[torch.from_numpy(node.tree.parents[0])[drawn]] = True
            still = {"moved": torch.zeros_like(x), "samples": x.new_zeros((1, 1))}
            # Whose turn it is only the server knows, which knows all clients.
            got = yield Ask({"model": x, "drawn": clients[drawn][None]}, only=teams, otherwise=still)
            answered = got["samples"][:, 0] > 0
            gradient = got["moved"] / torch.where(got["samples"] > 0, got["samples"], 1)
            model, moments = self._adam(2).step(x, state, gradient, answered)
            return {**state, "model": with_statistics(node.layout, model, x - gradient), **moments}
        began = state["began"][0] > 0
        busy = torch.tensor([node.turn < rounds for rounds in self.plan(node.tree).within(node.rounds).groups])
        yield Ask(None, only=began.cpu() & busy)
        handed = yield Ask(x, only=~began.cpu() & busy, reduce="stack")
        now = state["began"].clone()
        now[0, handed.positions.to(x.device)] = 1
        return {**state, "began": now}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Train local epochs at every rate and keep, for each client, the one that does best on what it held out."""
        if not self.personal:
            return parent
        tried = [node.descend(parent, steps=Epochs(self.tune_epochs), lr=rate) for rate in self.rates]
        best = held_out_losses(node, tried).argmin(0)
        return torch.stack(tried)[best, torch.arange(len(parent), device=parent.device)]


def _by_team(tree: Tree, values: Sequence[int]) -> int | dict[str, int]:
    """Return one number where all teams have the same, else one by the name of each."""
    return values[0] if len(set(values)) == 1 else dict(zip(tree.names(1), values, strict=True))


@settings
class FL(Staged):
    """Federated learning with Adam at the server; every client uses the global model."""

    name: ClassVar[str] = "fl"
    search: ClassVar[Mapping[str, Between]] = _WITHOUT_GROUPS
    grouped: ClassVar[bool] = False
    personal: ClassVar[bool] = False


@settings
class PerFL(Staged):
    """Federated learning with Adam at the server, then local epochs on every client."""

    name: ClassVar[str] = "perfl"
    search: ClassVar[Mapping[str, Between]] = _WITHOUT_GROUPS
    grouped: ClassVar[bool] = False
    personal: ClassVar[bool] = True


@settings
class GroupFL(Staged):
    """Federated learning over all clients, then inside every group (team); a client uses its group's model."""

    name: ClassVar[str] = "groupfl"
    grouped: ClassVar[bool] = True
    personal: ClassVar[bool] = False


@settings
class GroupPerFL(Staged):
    """Federated learning over all clients, then inside every group (team), then local epochs on every client."""

    name: ClassVar[str] = "groupperfl"
    grouped: ClassVar[bool] = True
    personal: ClassVar[bool] = True
