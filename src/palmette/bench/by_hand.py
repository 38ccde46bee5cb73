"""JAX by hand: the fastest code one writes oneself, without a framework, for the local steps of dense models.

`lax.map` over the devices of a `lax.scan` over their steps, in float32, compiled once: the same batch size, number of steps and
pull as Palmette's engines. Which samples each step takes is drawn once and kept, and nothing is averaged: both in its favour.
JAX is no dependency of Palmette; `make bench` installs it into the benchmark's own environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from palmette.address import numpy_generator
from palmette.bench.workloads import PULL, RATE, Case

MISSING = "JAX is not installed here, so it has no row; `make bench` installs and runs it"
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def installed() -> bool:
    """Decide whether JAX can be imported."""
    return find_spec("jax") is not None


def why_not(case: Case) -> str:
    """Return why there is no such row for a workload, or nothing: forty lines are written for dense chains."""
    layers = [layer for layer in case.task.module.modules() if not list(layer.children())]
    dense = all(isinstance(layer, torch.nn.Linear | torch.nn.ReLU | torch.nn.Flatten) for layer in layers)
    return (
        ""
        if dense and len(case.workload.shape) == 1
        else f"JAX by hand is written for dense models, not for {case.workload.name}"
    )


def jax_by_hand(case: Case) -> Callable[[], int]:
    """Make the local steps of all devices in one exchange, as one compiled JAX program at one thread."""
    os.environ.setdefault("XLA_FLAGS", _ONE_THREAD)  # read when JAX is first imported
    jax = import_module("jax")
    jnp, workload = jax.numpy, case.workload
    devices, steps, batch = case.population.devices, workload.local_steps, workload.batch
    x, y = (jnp.stack([jnp.asarray(pair[at].numpy()) for pair in case.training]) for at in (0, 1))
    layers = [layer for layer in case.task.module.modules() if isinstance(layer, torch.nn.Linear)]
    model = [(jnp.asarray(layer.weight.detach().numpy()), jnp.asarray(layer.bias.detach().numpy())) for layer in layers]
    generator = numpy_generator(0, "bench order")
    order = [generator.permutation(workload.samples)[: steps * batch] for _ in range(devices)]
    index = jnp.asarray(np.stack(order).reshape(devices, steps, batch).astype(np.int32))

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        return jnp.einsum("bi,oi->bo", x, weight) + bias  # a third faster than weights that lie the other way round

    def loss(model: Any, x: Any, y: Any) -> Any:
        for weight, bias in model[:-1]:
            x = jax.nn.relu(linear(x, weight, bias))
        scores = jax.nn.log_softmax(linear(x, *model[-1]))
        return -(scores * jax.nn.one_hot(y, workload.classes)).sum(1).mean()

    def device(given: Any) -> Any:
        start, x, y, index = given

        def step(model: Any, which: Any) -> Any:
            slope = jax.grad(loss)(model, x[which], y[which])
            moved = jax.tree.map(lambda p, g, c: p - RATE * (g + PULL * (p - c)), model, slope, start)
            return moved, None

        return jax.lax.scan(step, start, index)[0]

    rows = jax.tree.map(lambda part: jnp.repeat(part[None], devices, 0), model)
    program = jax.jit(lambda rows, x, y, index: jax.lax.map(device, (rows, x, y, index)))

    def unit() -> int:
        jax.block_until_ready(program(rows, x, y, index))
        return devices * steps

    return unit
