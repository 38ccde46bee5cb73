"""Synthetic(alpha, beta): the published generator of pFedMe and PerMFL."""

from __future__ import annotations

import numpy as np

from palmette.datasets.dataset import Dataset
from palmette.datasets.pool import Pool
from palmette.errors import BadInput
from palmette.tree import Ints
from palmette.values import real, refuse_larger_than_memory


def synthetic(devices: int, *, alpha: float = 0.5, beta: float = 0.5, seed: int = 0) -> Pool:
    """Return the Synthetic(alpha, beta) data of pFedMe and PerMFL, by device, drawn in the published order.

    Device u has n_u = 5 (int(lognormal(4, 2)) + 50) samples x ~ N(v_u, diag(k^-1.2)) of 60 features with labels
    argmax(x W_u + b_u) of 10 classes, where v_u ~ N(B_u, 1), W_u and b_u ~ N(u_u, 1), u_u ~ N(0, alpha) and
    B_u ~ N(0, beta). As in the published code, alpha and beta are standard deviations. Seed 0 is the published one.
    Because u_u is added to every class's weights alike, alpha changes no label: the generator is published so.

    The generator is numpy's legacy one because its stream, unlike the new one's, is promised never to change.

    Args:
        devices: Number of devices.
        alpha: Spread (standard deviation) of the devices' true weights.
        beta: Spread (standard deviation) of the devices' features.
        seed: Seed of the generator.
    """
    if devices < 1:
        raise BadInput(f"synthetic needs at least 1 device, not {devices}; check tree=")
    for name, value in (("alpha", alpha), ("beta", beta)):
        if real(name, value) < 0:
            raise BadInput(f"{name} = {value} must be at least 0: it is a standard deviation")
    if not 0 <= seed < 2**32:
        raise BadInput(f"seed = {seed} must be in 0..2**32 - 1 for the synthetic source")
    random = np.random.RandomState(seed)
    refuse_larger_than_memory(f"synthetic samples of {devices:,} devices", devices * 2000 * 60 * 4, "lower tree=")
    sizes = (random.lognormal(4, 2, devices).astype(np.int64) + 50) * 5
    mean_w = random.normal(0, alpha, devices)
    mean_b = mean_w
    centre = random.normal(0, beta, devices)
    mean_x = np.stack([random.normal(centre[unit], 1, 60) for unit in range(devices)])
    deviation = np.sqrt(np.arange(1, 61) ** -1.2)
    start: Ints = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    features = np.empty((start[-1], 60), dtype=np.float32)
    labels = np.empty(start[-1], dtype=np.int64)
    for unit in range(devices):
        weights = random.normal(mean_w[unit], 1, (60, 10))
        bias = random.normal(mean_b[unit], 1, 10)
        # These are the very numbers of multivariate_normal, without its decomposition of a matrix that is diagonal.
        x = random.standard_normal((sizes[unit], 60)) * deviation + mean_x[unit]
        features[start[unit] : start[unit + 1]] = x
        labels[start[unit] : start[unit + 1]] = np.argmax(x @ weights + bias, axis=1)
    return Pool(features, labels, 10, None, start, name="synthetic")


SYNTHETIC = Dataset(
    "Synthetic(alpha, beta) of FedProx, generated: 60 features, 10 classes, a different linear model on every device",
    synthetic,
    origin="T. Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020; drawn in the order of pFedMe's code",
)
