"""MTGC: hierarchical averaging with a gradient correction in every tier, so that neither devices nor teams drift apart.

A device takes H local steps with its own correction z and its team's y; a team averages E times in a global round:

    theta = theta - alpha (g(theta) + z + y)
    after a mean of the team   z = z + (theta - w) / (alpha H)          w: the team's new model
    after a global mean        y = y + (w - x) / (alpha H E)            x: the new global model

y is kept. The authors' code starts z at zero in every global round; ``corrections = "reset"`` does so, which leaves the global
model a little off the minimum of the mean loss. With
``"kept"``, the default, z goes on from the last round, without the last mean of which the device was not told. On deeper trees
every tier has such a correction; on a tree without teams devices keep theirs, as in SCAFFOLD. With ``"none"`` it is h-SGD:
hierfavg with ``weights = "equal"``.

Nobody computes a correction from a mean it was not told: a node learns the new mean from the next message, and where it missed
that message its correction stays as it is. A team's y goes down once per global round, at its first exchange; that, and 8 bytes
that number an exchange, is all that MTGC sends beside h-SGD. Corrections take plain steps of size alpha for
granted, so that other optimisers are refused.

The update is that of the authors' code (github.com/wenzhifang/MTGC); the paper's own text could not be read. Its form for
deeper trees is ours.

Wenzhi Fang, Dong-Jun Han, Evan Chen, Shiqiang Wang, Christopher Brinton: Hierarchical Federated Learning with Multi-Timescale
Gradient Correction, NeurIPS 2024 (arXiv 2409.18448).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from palmette.protocol import Algorithm, Ask, Device, Inner, Node, Reduce, Server, State, check_per_tier, inverse
from palmette.protocol.settings import BatchSize, Between, Count, Positive, settings
from palmette.tree import Tree


@settings
class MTGC(Algorithm):
    """Hierarchical averaging with multi-timescale gradient correction (MTGC), for one good model for all teams.

    Attributes:
        local_steps: Gradient steps of a device between two averages in its team (H in the paper).
        team_steps: Averages in a team in every global round; on deeper trees also a list with one number per inner tier,
            lowest first. With 1 nobody below is told its team's average, so that only the teams are corrected (E in the paper).
        alpha: Learning rate of the devices, ``"auto"`` for the largest that is stable (gamma in the paper).
        corrections: What becomes of the corrections of devices and lower teams when a global round begins: ``"kept"``, or
            ``"reset"`` to zero as in the paper's code; ``"none"`` corrects nothing and is plain hierarchical averaging.
        tune_steps: Gradient steps of fine-tuning that make a device's own model from its team's.
        weights: Weights of the averages: ``"equal"`` counts all children alike, ``"samples"`` by their training samples.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "mtgc"
    paper: ClassVar[str] = "Fang et al.: Hierarchical FL with Multi-Timescale Gradient Correction (NeurIPS 2024)"
    absent: ClassVar[str] = (
        "A device that is left out keeps its correction as it was; the averages are over those that answered."
    )
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "tune_steps": Between(5, 80, whole=True)}

    local_steps: Count = 20
    team_steps: Count | tuple[Count, ...] = 10
    alpha: Literal["auto"] | Positive = 0.05
    corrections: Literal["kept", "reset", "none"] = "kept"
    tune_steps: Count = 20
    weights: Literal["equal", "samples"] = "equal"
    batch_size: BatchSize = 20

    def check(self, tree: Tree) -> None:
        """Refuse lists that do not fit the tree."""
        check_per_tier(tree, team_steps=self.team_steps)
        super().check(tree)

    @property
    def plain_steps(self) -> bool:
        """Corrections are read off the steps that were taken."""
        return self.corrections != "none"

    def keeps(self, node: Node, initial: Tensor) -> State:
        """Teams and server keep their model; below the server each node also its correction and its last reply."""
        kept = {"model": initial} if node.tier else {}
        if node.tier == node.tree.top or not self.corrects:
            return kept
        none = torch.zeros_like(initial)
        own = {"own": none, "above": none, "turn": torch.full((1,), -2, device=initial.device)}
        return {**kept, **own, **({} if node.tier else {"last": initial})}

    def stable(self, curvature: float) -> dict[str, float]:
        """Gradient descent is stable up to 1 / L."""
        return {"alpha": inverse(curvature)}

    @property
    def corrects(self) -> bool:
        """Whether there are corrections."""
        return self.corrections != "none"

    @property
    def _reduce(self) -> Reduce:
        return "samples" if self.weights == "samples" else "mean"

    def _times(self, tier: int) -> int:
        """Return how often the nodes of an inner tier average."""
        return self.team_steps if isinstance(self.team_steps, int) else self.team_steps[tier - 1]

    def _corrected(self, node: Node, message: Any, state: State, last: str) -> State:
        """Return the corrections of nodes and of all above them, now that a message tells of the last mean.

        Args:
            node: The nodes.
            message: With the model to start from, which is the last mean unless the node above starts anew.
            state: What they keep.
            last: The name of what they replied last.
        """
        turn = torch.full_like(state["turn"], message["turn"])
        if "above" in message:
            own = state["own"] if self.corrections == "kept" else torch.zeros_like(state["own"])
            return {"own": own, "above": message["above"], "turn": turn}
        steps = self.local_steps * math.prod(self._times(tier) for tier in range(1, node.tier + 1))
        drift = (state[last] - message["model"]) / (float(self.alpha) * steps)
        own = torch.where(state["turn"] == turn - 1, state["own"] + drift, state["own"])
        return {"own": own, "above": state["above"], "turn": turn}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Train the team's model with the gradient corrected."""
        w = message["model"]
        given: dict[str, Any] = {"steps": self.local_steps, "lr": float(self.alpha)}
        if not self.corrects:
            return node.descend(w, **given), state
        after = self._corrected(node, message, state, "last")
        theta = node.descend(w, **given, shift=after["own"] + after["above"])
        return theta, {"last": theta, **after}

    def team(self, node: Node, message: Any, state: State) -> Inner:
        """Average the children several times; the first time they are told the corrections above them."""
        w, times = message["model"], self._times(node.tier)
        after = self._corrected(node, message, state, "model") if self.corrects else {}
        for time in range(times):
            ask = {"model": w}
            if self.corrects:
                ask["turn"] = message["turn"] * times + time
            if self.corrects and time == 0:
                ask["above"] = after["own"] + after["above"]
            replies = yield Ask(ask, reduce=self._reduce, otherwise=w)
            w = replies.rows
        return w, {"model": w, **after}

    def server(self, node: Node, state: State) -> Server:
        """Average the models below."""
        x = state["model"]
        ask = {"model": x, **({"turn": node.round} if self.corrects else {})}
        replies = yield Ask(ask, reduce=self._reduce, otherwise=x)
        return {"model": replies.rows}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Fine-tune the team's model, without corrections."""
        return node.descend(parent, steps=self.tune_steps, lr=float(self.alpha))
