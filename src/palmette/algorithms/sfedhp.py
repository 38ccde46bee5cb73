"""sFedHP: sparse models on three tiers, each device pulled to a personal model that its edge server keeps for it.

It minimises, over a global model (w in the paper, x here) and for every device phi_ij and theta_ij,

    mean_ij [ f_ij(theta) + lam_1/2 |theta - phi|^2 + gamma_1 R(theta) + lam_2/2 |phi - x|^2 ] + gamma_2 R(x)

where ``R(v) = rho * sum log cosh(v / rho)`` is a smooth l1 norm. An edge holds two models: w_i, its view of the global one, and
phi_i, its personal one. In each of R exchanges its devices take K steps on one mini-batch towards the prox of phi_i and send
theta_ij; the edge forms the mean of ``phi_ij = (lam_1 theta_ij + lam_2 w_i) / (lam_1 + lam_2)`` and moves w_i towards it. All
edges train, ``edges`` of them are averaged. Models cross the links as a bit mask and values: what is at most ``zero_tol`` is
zero from then on. When nobody answers an edge only its own sparsity term acts.

Readings: the paper's equation (8) pulls to phi_ij (``centre="device"``), its Algorithm 1 to phi_i (the default). Its weights
become ``tiny`` "respectively when the client model sparsity is lower than 0.2 and after training 100 global rounds": gamma_1 by
a device's own density and gamma_2 by the round (``schedule="each"``), or both when both hold (``"both"``). Its learning rates
are named both ways round; here eta moves w_i and alpha theta. The momentum and the stop of the inner solver are not given.

Xiaofeng Liu, Qing Wang, Yunfeng Shao, Yinchuan Li: Sparse Federated Learning with Hierarchical Personalization Models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from palmette import address
from palmette.blocks import logcosh
from palmette.blocks.nesterov import Nesterov, momentum
from palmette.links.sparse import Sparse, density, plain, published_bytes
from palmette.protocol import Algorithm, Ask, Device, Inner, Node, Server, State
from palmette.protocol.settings import BatchSize, Between, Count, NonNegative, Positive, settings

# Figures 2 to 5 of the paper; beta = 1, all edges aggregated.
PUBLISHED = {"team_steps": 20, "local_steps": 5, "alpha": 0.05, "eta": 0.05, "beta": 1.0, "lam_1": 25.0, "lam_2": 25.0}
PUBLISHED_SPARSITY = {"gamma_1": 0.001, "gamma_2": 0.001, "rho": 6e-5, "schedule": "each", "batch_size": 20}


@settings
class SFedHP(Algorithm):
    """Sparse federated learning with hierarchical personalization; not sparse if gamma_1 and gamma_2 are zero.

    Attributes:
        team_steps: Rounds of an edge (team) with its devices in every global round (R in the paper).
        local_steps: Gradient steps of a device each time its edge asks, all on one mini-batch (K in the paper).
        alpha: Learning rate of the devices; ``"auto"`` for the largest that is stable (eta_2 in the paper).
        eta: Learning rate of the edges' global models w_i (eta_1 in the paper).
        beta: Learning rate of the server: how far it moves to the mean of its edges (beta in the paper).
        lam_1: Pull (proximal strength) of a device's model to its edge's personal model (lambda_1 in the paper).
        lam_2: Pull (proximal strength) of a personal model to the edge's global model (lambda_2 in the paper).
        gamma_1: Sparsity weight (smooth l1 penalty) of the devices' models (gamma_1 in the paper).
        gamma_2: Sparsity weight (smooth l1 penalty) of the edges' global models (gamma_2 in the paper).
        rho: Smoothing of the l1 penalty; smaller is closer to the true l1 norm (rho in the paper).
        zero_tol: Threshold of zero: entries whose absolute value is at most this are sent as zero.
        centre: Centre that devices are pulled to: ``"edge"`` as in the paper's Algorithm 1, ``"device"`` as in equation (8).
        inner: Solver of the devices: plain gradient ``"descent"``, or ``"nesterov"`` acceleration.
        nu: Tolerance of the nesterov solver, which stops where the squared gradient is at most this (nu in the paper).
        schedule: Schedule that ends sparsity: ``"each"`` by its own condition (floor for gamma_1, sparse_rounds for gamma_2),
            ``"both"`` when both hold, ``"none"`` never.
        floor: Density (share of entries that are not zero) below which a device's sparsity weight becomes tiny.
        sparse_rounds: Rounds after which an edge's sparsity weight becomes tiny.
        tiny: Value of the sparsity weights after the schedule has ended sparsity.
        edges: Number of edges that the server averages in a round, drawn at random, or ``"all"`` (S in the paper).
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "sfedhp"
    paper: ClassVar[str] = "Liu, Wang, Shao, Li: Sparse Federated Learning with Hierarchical Personalization Models"
    absent: ClassVar[str] = (
        "A device that is left out keeps its last model; the means of that round are over those that answered."
    )
    tiers: ClassVar[tuple[int, ...]] = (3,)
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"published": {**PUBLISHED, **PUBLISHED_SPARSITY}}
    search: ClassVar[Mapping[str, Between]] = {
        "alpha": Between(0.005, 0.2),
        "eta": Between(0.005, 0.1),
        "lam_1": Between(2.0, 50.0),
        "lam_2": Between(2.0, 50.0),
    }

    team_steps: Count = 20
    local_steps: Count = 5
    alpha: Literal["auto"] | Positive = 0.05
    eta: Positive = 0.05
    beta: Positive = 1.0
    lam_1: Positive = 25.0
    lam_2: Positive = 25.0
    gamma_1: NonNegative = 0.001
    gamma_2: NonNegative = 0.001
    rho: Positive = 6e-5
    zero_tol: NonNegative = 1e-4
    centre: Literal["edge", "device"] = "edge"
    inner: Literal["descent", "nesterov"] = "descent"
    nu: NonNegative = 1e-6
    schedule: Literal["none", "each", "both"] = "each"
    floor: NonNegative = 0.2
    sparse_rounds: Count = 100
    tiny: NonNegative = 0.0
    edges: Literal["all"] | Count = "all"
    batch_size: BatchSize = 20

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Every node keeps its model; an edge also phi_i, a device its round, and phi_ij where that is its centre."""
        kept = {"model": initial}
        if node.tier == 0:
            kept["round"] = torch.full((1,), -1, device=initial.device)
            kept |= {"phi": initial} if self.centre == "device" else {}
        if node.tier == 1:
            kept["phi"] = initial
            kept |= {"density": initial.new_ones(1)} if self.schedule == "both" else {}
        return kept

    def stable(self, curvature: float) -> dict[str, float]:
        """Every step is stable up to 1 / L of its own objective.

        The sparsity term is left out: it is curved by 1 / rho near zero only, where too large a step makes entries swing.
        """
        pull = self.lam_1 * self.lam_2 / (self.lam_1 + self.lam_2)
        moved = 1 - (1 - min(1.0, self.eta * pull)) ** self.team_steps  # how far a round takes an edge to its devices
        return {"alpha": 1 / (curvature + self.lam_1), "eta": 1 / pull, "beta": 1 / max(moved, 1e-9)}

    # -- sparsity ------------------------------------------------------------------------------------------------------

    @property
    def sparse(self) -> bool:
        """Whether models are made sparse, and sent as such."""
        return self.gamma_1 > 0 or self.gamma_2 > 0

    def pack(self, rows: Tensor) -> Any:
        """Return rows as they are sent."""
        return Sparse(rows, self.zero_tol) if self.sparse else rows

    def weight_device(self, round_: int, filled: Tensor) -> Tensor:
        """Return gamma_1 for devices of these densities."""
        let_go = filled < self.floor
        if self.schedule == "none" or (self.schedule == "both" and round_ < self.sparse_rounds):
            let_go = torch.zeros_like(let_go)
        return _weights(self.gamma_1, self.tiny, let_go)

    def weight_edge(self, round_: int, filled: Tensor) -> Tensor:
        """Return gamma_2 for edges whose devices have these mean densities."""
        late = self.schedule != "none" and round_ >= self.sparse_rounds
        let_go = (filled < self.floor) | (self.schedule == "each")
        return _weights(self.gamma_2, self.tiny, let_go & late)

    def report(self, node: Node, state: State) -> dict[str, Tensor]:
        """Tell how dense each model is and what sending it takes: as encoded here, and by the paper's Remark 1.

        The models are theta of devices, w_i and, as ``phi``, phi_i of edges, and x of the server.
        """
        told = self._weighed(state["model"])
        if node.tier == 1:
            told |= {f"phi_{name}": value for name, value in self._weighed(state["phi"]).items()}
        return told

    def _weighed(self, rows: Tensor) -> dict[str, Tensor]:
        packed = self.pack(rows)
        dense = rows.new_full((len(rows),), float(rows.shape[1]), dtype=torch.float64)
        return {
            "density": density(rows, self.zero_tol),
            "encoded_bytes": packed.sizes().double() if self.sparse else rows.element_size() * dense,
            "paper_bytes": published_bytes(rows, self.zero_tol) if self.sparse else 8 * dense,
        }

    # -- programs ------------------------------------------------------------------------------------------------------

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        """Approach the prox of the centre, going on from this round's theta."""
        sent, before = message["model"], density(state["model"], self.zero_tol)
        going = state["round"] == node.round
        centre = torch.where(going, state["phi"], sent) if self.centre == "device" else sent
        gamma = self.weight_device(node.round, before)
        packed = self.pack(self.prox(node, torch.where(going, state["model"], sent), centre, gamma))
        theta = plain(packed)
        kept = {"model": theta, "round": torch.full_like(state["round"], node.round)}
        if self.centre == "device":
            kept["phi"] = self._between(theta, sent)
        reply = {"theta": packed}
        if self.schedule == "both":
            reply["density"] = density(theta, self.zero_tol).to(theta)[:, None]
        return reply, kept

    def prox(self, node: Device, start: Tensor, centre: Tensor, gamma: Tensor) -> Tensor:
        """Take K steps on ``loss + gamma * R(theta) + lam_1/2 |theta - centre|^2`` over one mini-batch."""
        assert self.alpha != "auto"
        weight = gamma.to(start)[:, None]

        def shrink(rows: Tensor) -> Tensor:
            return logcosh.gradient(rows, self.rho).mul_(weight)

        extra, alpha = shrink if self.gamma_1 else None, float(self.alpha)
        given: dict[str, Any] = {"steps": self.local_steps, "batch": "same", "pull": self.lam_1, "centre": centre}
        if self.inner == "descent":
            return node.descend(start, lr=alpha, extra=extra, **given)
        solver = Nesterov(start, lr=alpha, factor=momentum(alpha, self.lam_1), stop=self.nu, extra=extra)
        return solver.result(node.descend(start, lr=solver.rate, extra=solver.extra, **given))

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Take a device's K steps around its edge's model."""
        gamma = self.weight_device(node.round, torch.ones(len(parent), dtype=torch.float64))
        adapted: Tensor = plain(self.pack(self.prox(node, parent, parent, gamma)))
        return adapted

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Train the two edge models with the devices, or send the one that was trained."""
        if "x" not in message:
            return self.pack(state["model"]), state
        w = phi = message["x"]
        filled = state["density"] if self.schedule == "both" else w.new_ones((len(node), 1))
        for _ in range(self.team_steps):
            sent = phi if self.centre == "edge" else w
            otherwise = {"theta": w, "density": filled}
            got = yield Ask({"model": self.pack(sent)}, otherwise=otherwise)
            filled = got["density"] if self.schedule == "both" else filled
            phi = self._between(got["theta"], w)
            gamma = self.weight_edge(node.round, filled).to(w)
            w = w - self.eta * (self.lam_2 * (w - phi) + gamma * logcosh.gradient(w, self.rho))
        packed = self.pack(w)
        kept = {"model": plain(packed), "phi": phi} | ({"density": filled} if self.schedule == "both" else {})
        return packed if self.edges == "all" else None, kept

    def _between(self, theta: Tensor, w: Tensor) -> Tensor:
        """Return phi between theta and w, where both pulls are in balance."""
        return (self.lam_1 * theta + self.lam_2 * w) / (self.lam_1 + self.lam_2)

    def server(self, node: Node, state: State) -> Server:
        """Let all edges train, then move towards the mean of some of them."""
        x = state["model"]
        packed = self.pack(x)
        if self.edges == "all":
            got = yield Ask({"x": packed}, otherwise=x)
        else:
            trained = yield Ask({"x": packed}, reduce="stack")
            got = yield Ask({"send": 1}, only=self._chosen(node, trained.positions), otherwise=x)
        return {"model": plain(self.pack((1 - self.beta) * x + self.beta * got.rows))}

    def _chosen(self, node: Node, trained: Tensor) -> Tensor:
        """Draw S of the edges that trained."""
        assert self.edges != "all"
        drawn = address.mix(address.key(node.seed, "aggregated edges", node.round), node.child_addresses[trained])
        chosen = torch.zeros(len(node.child_ids), dtype=torch.bool)
        chosen[trained[drawn.argsort(stable=True)][: self.edges]] = True
        return chosen


def _weights(full: float, tiny: float, let_go: Tensor) -> Tensor:
    """Return one weight for each flag, in double precision."""
    return torch.full(let_go.shape, full, dtype=torch.float64, device=let_go.device).masked_fill(let_go, tiny)
