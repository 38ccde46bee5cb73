"""FedAvgM, FedAdagrad, FedAdam and FedYogi: FedAvg whose server treats the clients' mean move as a gradient.

Devices train as in FedAvg. With ``g = x - mean theta`` (the mean by samples) the server takes, in place of ``x = mean theta``,

    fedavgm      m = momentum m + g;  x = x - server_lr m
    the others   m = beta_1 m + (1 - beta_1) g;  x = x - server_lr m / (sqrt(v) + tau)

where v is the second moment of the rule (`palmette.blocks.server_optimisers`). FedAvgM with ``momentum = 0`` and
``server_lr = 1`` is FedAvg. In a round in which nobody answers the server takes no step.

Two things of the same name differ: FLSim's FedAdam, which is in `palmette.algorithms.groupperfl`, has a bias correction and no
tau. A larger tau needs a larger step of the server.

Sashank Reddi, Zachary Charles, Manzil Zaheer, Zachary Garrett, Keith Rush, Jakub Konečný, Sanjiv Kumar, Brendan McMahan:
Adaptive Federated Optimization, ICLR 2021. Tzu-Ming Harry Hsu, Hang Qi, Matthew Brown: Measuring the Effects of Non-Identical
Data Distribution for Federated Visual Classification, 2019.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from palmette.algorithms.fedavg import FedAvg
from palmette.blocks.server_optimisers import Adaptive, Momentum, Rule, ServerOptimiser
from palmette.blocks.statistics import with_statistics
from palmette.protocol import Ask, Node, Server, State
from palmette.protocol.settings import NUMBER, Between, Positive, settings

Decay = Annotated[float, Field(ge=0, lt=1), NUMBER]


@settings
class OptimisedAverage(FedAvg):
    """FedAvg with an optimiser at the server; its methods differ in which.

    Attributes:
        server_lr: Learning rate of the server (eta in the paper).
    """

    absent: ClassVar[str] = (
        "A device that is left out does nothing; the server's step follows the mean of those that answered, by samples."
    )

    server_lr: Positive = 1.0

    @property
    @abstractmethod
    def optimiser(self) -> ServerOptimiser:
        """The server's optimiser."""

    def keeps(self, node: Node, initial: Tensor) -> State:
        """The server keeps the model and the moments."""
        return {"model": initial, **self.optimiser.start(initial)} if node.tier == node.tree.top else {}

    def server(self, node: Node, state: State) -> Server:
        """Take a step along the mean of what the devices moved by."""
        x = state["model"]
        replies = yield Ask(x, reduce="samples", otherwise=x)
        model, moments = self.optimiser.step(x, state, x - replies.rows, replies.present)
        return {"model": with_statistics(node.layout, model, replies.rows), **moments}


@settings
class FedAvgM(OptimisedAverage):
    """Federated averaging with momentum at the server (FedAvgM).

    Attributes:
        server_lr: Learning rate of the server; 1 takes the devices' mean.
        momentum: Share of the server's last step that is added to the next one (beta in the paper).
    """

    name: ClassVar[str] = "fedavgm"
    paper: ClassVar[str] = "Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution (2019)"
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "server_lr": Between(0.1, 2.0)}

    momentum: Decay = 0.9

    @property
    def optimiser(self) -> Momentum:
        """Gradient descent with momentum."""
        return Momentum(self.server_lr, self.momentum)


@settings
class AdaptiveAverage(OptimisedAverage):
    """What FedAdagrad, FedAdam and FedYogi share.

    Attributes:
        alpha: Learning rate of the devices; also one number per device name, or ``"auto"`` for the largest that is stable
            (eta_l in the paper).
        beta_1: Decay of the first moment (beta_1 in the paper).
        tau: Degree of adaptivity, which is added to the root of the second moment (tau in the paper).
    """

    paper: ClassVar[str] = "Reddi et al.: Adaptive Federated Optimization (ICLR 2021)"
    search: ClassVar[Mapping[str, Between]] = {"alpha": Between(0.01, 1.0), "server_lr": Between(0.003, 0.3)}
    rule: ClassVar[Rule]

    server_lr: Positive = 0.03
    beta_1: Decay = 0.9
    tau: Positive = 1e-3

    @property
    def optimiser(self) -> Adaptive:
        """The optimiser of Reddi et al. with the method's rule."""
        return Adaptive(self.server_lr, self.rule, (self.beta_1, self.second), self.tau)

    @property
    def second(self) -> float:
        """The decay of the second moment, where there is one."""
        return 0.0


@settings
class FedAdagrad(AdaptiveAverage):
    """Federated averaging with Adagrad at the server (FedAdagrad).

    Attributes:
        beta_1: Decay of the first moment (beta_1 in the paper).
    """

    name: ClassVar[str] = "fedadagrad"
    rule: ClassVar[Rule] = "adagrad"

    beta_1: Decay = 0.0


@settings
class FedAdam(AdaptiveAverage):
    """Federated averaging with Adam at the server (FedAdam).

    Attributes:
        beta_2: Decay of the second moment (beta_2 in the paper).
    """

    name: ClassVar[str] = "fedadam"
    rule: ClassVar[Rule] = "adam"

    beta_2: Decay = 0.99

    @property
    def second(self) -> float:
        """The decay of the second moment."""
        return self.beta_2


@settings
class FedYogi(FedAdam):
    """Federated averaging with Yogi at the server (FedYogi), whose second moment changes more slowly than Adam's."""

    name: ClassVar[str] = "fedyogi"
    rule: ClassVar[Rule] = "yogi"
