"""Dense models in JAX: the fastest code one writes by hand, without a framework, and the framework fedjax.

By hand, the devices' local steps are a `lax.map` over devices of a `lax.scan` over steps, in float32, compiled once: the same
batch size, number of steps and pull as Palmette's engines. Which samples each step takes is drawn once and kept, and nothing
is averaged: both in its favour. Of the ways to write it that were tried, this is the fastest; weights that lie the other way
round take up to twice as long. fedjax runs federated averaging, without a pull, which is in its favour too.

JAX is no dependency of Palmette; `make bench` installs both into the benchmark's own environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from palmette.address import numpy_generator
from palmette.bench.workloads import PULL, RATE, Case

MISSING = "{} is not installed here, so it has no row; `make bench` installs and runs it"
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def missing(package: str) -> str:
    """Return that a package is not installed, or nothing."""
    return "" if find_spec(package) is not None else MISSING.format(package)


def unfit(case: Case) -> str:
    """Return why there is no such row for a workload, or nothing: it is written for dense chains."""
    layers = [layer for layer in case.task.module.modules() if not list(layer.children())]
    dense = all(isinstance(layer, nn.Linear | nn.ReLU | nn.Flatten) for layer in layers)
    return "" if dense else f"{case.workload.name} has no row of JAX, which is written for dense models here"


@contextmanager
def _one_core() -> Iterator[None]:
    """Let JAX see one core when it starts, so that it makes one thread; what it is told in its flags does not suffice."""
    if "sched_setaffinity" not in os.__dict__:  # only Linux has it
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:  # its threads may then run on any core, as ours do
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)


def _started() -> Any:
    """Return JAX, started with one thread."""
    os.environ.setdefault("XLA_FLAGS", _ONE_THREAD)  # read when JAX is first imported
    with _one_core():
        jax = import_module("jax")
        jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))
    return jax


def _model(jax: Any, case: Case) -> list[Any]:
    """Return the initial weights and biases."""
    layers = [layer for layer in case.task.module.modules() if isinstance(layer, nn.Linear)]
    return [tuple(jax.numpy.asarray(part.detach().numpy()) for part in (layer.weight, layer.bias)) for layer in layers]


def _loss(jax: Any, case: Case) -> Callable[[Any, Any, Any], Any]:
    """Return the mean cross-entropy of a batch."""

    def linear(x: Any, weight: Any, bias: Any) -> Any:
        return jax.numpy.einsum("bi,oi->bo", x, weight) + bias

    def loss(model: Any, x: Any, y: Any) -> Any:
        for weight, bias in model[:-1]:
            x = jax.nn.relu(linear(x, weight, bias))
        scores = jax.nn.log_softmax(linear(x, *model[-1]))
        return -(scores * jax.nn.one_hot(y, case.workload.classes)).sum(1).mean()

    return loss


def by_hand(case: Case) -> Callable[[], int]:
    """Make the local steps of all devices in one exchange, as one compiled program."""
    jax, workload = _started(), case.workload
    jnp, loss = jax.numpy, _loss(jax, case)
    devices, steps, batch = case.population.devices, workload.local_steps, workload.batch
    x, y = (jnp.stack([jnp.asarray(pair[at].numpy()) for pair in case.training]) for at in (0, 1))
    generator = numpy_generator(0, "bench order")
    order = [
        generator.permutation(workload.samples)[np.arange(steps * batch) % workload.samples] for _ in range(devices)
    ]
    index = jnp.asarray(np.stack(order).reshape(devices, steps, batch).astype(np.int32))

    def device(given: Any) -> Any:
        start, x, y, index = given

        def step(model: Any, which: Any) -> Any:
            slope = jax.grad(loss)(model, x[which], y[which])
            moved = jax.tree.map(lambda p, g, c: p - RATE * (g + PULL * (p - c)), model, slope, start)
            return moved, None

        return jax.lax.scan(step, start, index)[0]

    rows = jax.tree.map(lambda part: jnp.repeat(part[None], devices, 0), _model(jax, case))
    program = jax.jit(lambda rows, x, y, index: jax.lax.map(device, (rows, x, y, index)))

    def unit() -> int:
        jax.block_until_ready(program(rows, x, y, index))
        return devices * steps

    return unit


def fedjax(case: Case) -> Callable[[], int]:
    """Make one round of fedjax's federated averaging over all devices."""
    jax, workload = _started(), case.workload
    vars(jax).setdefault("tree_map", jax.tree.map)  # fedjax 0.0.17 asks for the old name, which newer JAX has dropped
    peer, loss = import_module("fedjax"), _loss(jax, case)
    algorithm = import_module("fedjax.algorithms.fed_avg").federated_averaging(
        grad_fn=lambda model, batch, rng: jax.grad(loss)(model, batch["x"], batch["y"]),
        client_optimizer=peer.optimizers.sgd(RATE),
        server_optimizer=peer.optimizers.sgd(1.0),
        client_batch_hparams=peer.ShuffleRepeatBatchHParams(
            batch_size=workload.batch, num_epochs=None, num_steps=workload.local_steps, drop_remainder=True
        ),
    )
    keys = jax.random.split(jax.random.PRNGKey(0), case.population.devices)
    data = [peer.ClientDataset({"x": x.numpy(), "y": y.numpy()}) for x, y in case.training]
    clients = [(str(k).encode(), own, key) for k, (own, key) in enumerate(zip(data, keys, strict=True))]
    state = algorithm.init(_model(jax, case))

    def unit() -> int:
        nonlocal state
        state, _ = algorithm.apply(state, clients)
        jax.block_until_ready(state.params)
        return case.population.devices * workload.local_steps

    return unit
