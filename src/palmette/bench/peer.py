"""pfl-research (the package ``pfl``) on the same model, samples and number of steps.

It runs federated averaging through its own simulated backend: no pull, no evaluation, and its batches are slices that it
cuts once and keeps, neither shuffled nor gathered. All three are in its favour.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from palmette.bench.workloads import RATE, Case

MISSING = "pfl-research is not installed here, so it has no row; `make bench` installs and runs it"


def installed() -> bool:
    """Decide whether pfl-research can be imported."""
    return find_spec("pfl") is not None


class _Model(nn.Module):
    """A module with the two methods pfl-research asks for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        """Run the module."""
        result: Tensor = self.module(x)
        return result

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        return F.cross_entropy(self(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Return the loss as pfl-research counts it; only its first iteration asks for it."""
        weighted = import_module("pfl.metrics").Weighted
        return {"loss": weighted(self.loss(x, y).item() * len(y), len(y))}


def pfl(case: Case) -> Callable[[], int]:
    """Make one central iteration of pfl-research over all devices."""
    workload, devices = case.workload, case.population.devices
    model_kind = import_module("pfl.model.pytorch").PyTorchModel  # first: it tells pfl-research to use torch
    module = _Model(copy.deepcopy(case.task.module))
    model = model_kind(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    users = [import_module("pfl.data.pytorch").PyTorchTensorDataset(pair) for pair in case.training]
    sampler = import_module("pfl.data.sampling").get_user_sampler("minimize_reuse", list(range(devices)))
    data = import_module("pfl.data.federated_dataset").FederatedDataset(users.__getitem__, sampler)
    backend = import_module("pfl.aggregate.simulate").SimulatedBackend(training_data=data, val_data=data)
    algorithm = import_module("pfl.algorithm.federated_averaging").FederatedAveraging()
    settings = import_module("pfl.algorithm.base").NNAlgorithmParams
    training = import_module("pfl.hyperparam.base").NNTrainHyperParams(
        local_batch_size=workload.batch,
        local_num_epochs=None,
        local_learning_rate=RATE,
        local_num_steps=workload.local_steps,
    )
    iterations = 0

    def unit() -> int:
        nonlocal iterations
        iterations += 1
        # The algorithm goes on where its last run ended; it evaluates in iteration 0 only, which is the warm-up's.
        algorithm.run(
            algorithm_params=settings(
                central_num_iterations=iterations,
                evaluation_frequency=1 << 40,
                train_cohort_size=devices,
                val_cohort_size=0,
            ),
            backend=backend,
            model=model,
            model_train_params=training,
            send_metrics_to_platform=False,
        )
        return devices * workload.local_steps

    return unit
