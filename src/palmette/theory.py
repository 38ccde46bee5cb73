"""What theory says about step sizes: how curved the devices' losses are, and which settings are too large for it."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from palmette.protocol import Device
from palmette.simulate import Simulation, one_thread_inside

_ITERATIONS = 8


def curvature(simulation: Simulation, devices: int = 64) -> float:
    """Estimate the largest curvature of the devices' training losses at the initial model.

    Power iteration with differences of full gradients, on up to ``devices`` devices at once; the largest value counts. For
    convex models this is the L_f of the theorems at that point, for others a local estimate.
    """
    learner, tree = simulation.learner, simulation.tree
    ids = torch.arange(0, tree.devices, max(1, tree.devices // devices))
    where = {"seed": simulation.seed, "round_": 0, "rounds": 1, "stage": 0, "samples": simulation.samples}
    with one_thread_inside(), torch.no_grad():
        node = Device(learner, torch.zeros_like(ids), tree, ids, **where)
        start = learner.initial().expand(len(ids), -1).contiguous()
        base = node.gradient(start)
        direction, size = base, torch.zeros(len(ids))
        for _ in range(_ITERATIONS):
            direction = direction / direction.norm(dim=1, keepdim=True).clamp(min=1e-30)
            step = 1e-3 * max(1.0, float(start.norm(dim=1).max()))
            direction = (node.gradient(start + step * direction) - base) / step
            size = direction.norm(dim=1)
    return float(size.max())


def advice(simulation: Simulation) -> str:
    """Return the sentence that tells which setting to lower and to what, after a run diverged."""
    limits = simulation.algorithm.stable(curvature(simulation))
    settings = vars(simulation.algorithm)
    for name, limit in limits.items():
        value = settings[name]
        values = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple) else [value]
        largest = max((float(number) for number in values if not isinstance(number, str)), default=0.0)
        if largest > limit:
            return f"Lower {name} from {largest:g} to at most {limit:.2g}."
    name = next(iter(limits), "the step size")
    return f"No step size is above its bound, so lower {name} all the same, for instance to a tenth."
