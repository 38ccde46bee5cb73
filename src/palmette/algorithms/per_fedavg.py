"""Per-FedAvg: a global model from which every device is good after one gradient step of its own.

It minimises, over the global model x,

    mean_i f_i(x - alpha grad f_i(x))

Each local step of a device takes independent batches D, D', D'' and, with ``u = theta - alpha g(theta; D)``,

    first-order     theta = theta - beta g(u; D')
    hessian-free    q = g(u; D'),  h = [g(theta + delta q; D'') - g(theta - delta q; D'')] / (2 delta)
                    theta = theta - beta (q - alpha h)

which leaves out, or estimates, the Hessian of the exact gradient ``(I - alpha H) grad f(u)``. A step costs two gradients, or
four. The server averages by samples. The personal model is the global one after ``tune_steps`` steps of size alpha on the
device's own TRAINING batches. With ``alpha = 0`` the global model is FedAvg's with step size beta: D' are FedAvg's batches.

The hessian-free form takes plain steps for granted and refuses other optimisers.

Published code to beware of: pFedMe's copy has the first-order form only and adapts on the test samples that it then measures
on; PFLlib's sets beta to alpha and trains twice per round.

Alireza Fallah, Aryan Mokhtari, Asuman Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach, NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from palmette.learner import Mix, Move, Routine
from palmette.protocol import Algorithm, Ask, Device, Node, Server, State, inverse
from palmette.protocol.settings import BatchSize, Between, Count, NonNegative, Positive, settings


@settings
class PerFedAvg(Algorithm):
    """Personalized FedAvg (Per-FedAvg): a global model that is made to be fine-tuned by a gradient step of every device.

    Attributes:
        local_steps: Steps of a device in every round; one takes two gradients, or four if hessian-free (tau in the paper).
        alpha: Step size of the adaptation, ``"auto"`` for the largest that is stable (alpha in the paper).
        beta: Learning rate of the devices' steps on the global model (beta in the paper).
        form: Form of the gradient: ``"first-order"`` leaves out the Hessian, ``"hessian-free"`` estimates its product.
        delta: Width of the difference that estimates the Hessian's product (delta in the paper).
        tune_steps: Gradient steps of size alpha that make a device's own model from the global one.
        batch_size: Samples in a device's mini-batch; ``"full"`` takes all it has.
    """

    name: ClassVar[str] = "per-fedavg"
    paper: ClassVar[str] = "Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning, a MAML Approach (NeurIPS 2020)"
    absent: ClassVar[str] = (
        "A device that is left out does nothing; the average is over those that answered, by their samples."
    )
    flat: ClassVar[bool] = True
    search: ClassVar[Mapping[str, Between]] = {
        "alpha": Between(0.01, 1.0),
        "beta": Between(0.01, 1.0),
        "tune_steps": Between(1, 40, whole=True),
    }

    local_steps: Count = 20
    alpha: Literal["auto"] | NonNegative = 0.05
    beta: Positive = 0.05
    form: Literal["first-order", "hessian-free"] = "first-order"
    delta: Positive = 1e-3
    tune_steps: Count = 1
    batch_size: BatchSize = 20

    @property
    def plain_steps(self) -> bool:
        """The Hessian's product is a difference of gradients, which plain steps tell."""
        return self.form == "hessian-free"

    def stable(self, curvature: float) -> dict[str, float]:
        """Both steps are gradient steps on losses whose curvature is at most L, as long as alpha is at most 1 / L."""
        return {"alpha": inverse(curvature), "beta": inverse(curvature)}

    def device(self, node: Device, message: Any, state: State) -> tuple[Tensor, State]:
        """Take steps on the loss after adaptation."""
        outer, inner, third = node.stream(), node.stream(), node.stream()
        adapt: Routine = [Mix("u", "theta"), Move("u", float(self.alpha), inner)]
        if self.form == "first-order":
            routine: Routine = [*adapt, Move("theta", self.beta, outer, at="u")]
            return node.iterate({"theta": message, "u": message}, routine, self.local_steps)["theta"], state
        product = self.beta * float(self.alpha) / (2 * self.delta)
        routine = [
            *adapt,
            Mix("q", "theta"),
            Move("q", 1.0, outer, at="u"),  # q is kept as theta - q
            Mix("plus", "q", "theta", -self.delta),
            Mix("minus", "q", "theta", self.delta),
            Mix("theta", "q", "theta", self.beta),
            Move("theta", -product, third, at="plus"),
            Move("theta", product, third.again(), at="minus"),
        ]
        names = ("theta", "u", "q", "plus", "minus")
        return node.iterate(dict.fromkeys(names, message), routine, self.local_steps)["theta"], state

    def server(self, node: Node, state: State) -> Server:
        """Average what comes back, by samples."""
        replies = yield Ask(state["model"], reduce="samples", otherwise=state["model"])
        return {"model": replies.rows}

    def adapt(self, node: Device, parent: Tensor, state: State) -> Tensor:
        """Adapt the global model on training batches."""
        return node.descend(parent, steps=self.tune_steps, lr=float(self.alpha))
