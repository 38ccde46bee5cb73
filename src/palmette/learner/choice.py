"""Which backend fits a task, and why."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from palmette.errors import BadInput
from palmette.learner.backends import Backend, CompiledBackend, Feed, LoopBackend, VmapBackend, task_loss
from palmette.learner.fused import FusedBackend
from palmette.learner.lowering import NotFused
from palmette.task import Task

BACKENDS: dict[str, type[FusedBackend] | type[VmapBackend] | type[LoopBackend]] = {
    "fused": FusedBackend,
    "vmap": VmapBackend,
    "compile": CompiledBackend,
    "loop": LoopBackend,
}
"""The backends; ``auto`` tries fused, then vmap, then loop. Compiling is only done where it is asked for."""

_CLOSE = 1e-3  # how far gradients may differ on a probe, relative to the largest; a wrong stage is far beyond it


def choose(
    name: str, task: Task, dtype: torch.dtype, device: torch.device, probe: tuple[Tensor, Tensor]
) -> tuple[Backend, str]:
    """Return the backend to use and why.

    Args:
        name: ``"auto"`` or a name of `BACKENDS`.
        task: What is learned.
        dtype: Type of the rows.
        device: Where they live.
        probe: A few samples ``(1, batch, ...)`` to try the backends on.
    """
    if name == "auto":
        return _first_that_fits(task, dtype, device, probe)
    if name not in BACKENDS:
        raise BadInput(f"backend must be auto or one of {', '.join(BACKENDS)}, not {name!r}")
    try:
        return BACKENDS[name](task, dtype, device), "as you asked"
    except NotFused as why:
        raise BadInput(f"backend 'fused' cannot run model {task.name!r}: {why}; use backend 'auto'") from None


def _first_that_fits(
    task: Task, dtype: torch.dtype, device: torch.device, probe: tuple[Tensor, Tensor]
) -> tuple[Backend, str]:
    reasons = []
    loop = LoopBackend(task, dtype, device)
    expected: Tensor | None = None
    for name in ("fused", "vmap"):
        try:
            backend = BACKENDS[name](task, dtype, device)
            found = _try(backend, task, dtype, device, probe)
            expected = _try(loop, task, dtype, device, probe) if expected is None else expected
        except Exception as error:  # whatever a module does that this backend cannot follow, the next one may
            text = str(error).strip() or type(error).__name__
            reasons.append(f"{name} cannot run the model: {text.splitlines()[0]}")
            continue
        gap, scale = float((found - expected).abs().max()), float(expected.abs().max())
        if gap <= _CLOSE * scale or not expected.isfinite().all():
            return backend, "; ".join([*reasons, "the fastest backend that can run this model"])
        reasons.append(f"{name} disagrees with plain autograd by {gap / scale:.1g} of the gradient")
    return loop, "; ".join([*reasons, "loop runs any model"])


def refuse_unrepeatable(task: Task, dtype: torch.dtype, device: torch.device, probe: tuple[Tensor, Tensor]) -> None:
    """Refuse a model with random numbers or changing buffers of its own: such a run could not be repeated or resumed.

    Args:
        task: What is learned.
        dtype: Type of the rows.
        device: Where they live.
        probe: A few samples ``(1, batch, ...)``.
    """

    def state() -> Tensor:
        return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()

    loop, before = LoopBackend(task, dtype, device), state()
    kept = {name: value.clone() for name, value in loop.buffers()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the model warns of is told when it trains
        _try(loop, task, dtype, device, probe)
    if not torch.equal(before, state()):
        raise BadInput(
            f"model {task.name!r} draws random numbers of its own while training, so a run could not be repeated; "
            "use nn.Dropout layers, whose random numbers Palmette controls"
        )
    for name, value in loop.buffers():
        if name not in kept or not torch.equal(value.nan_to_num(), kept[name].nan_to_num()):
            raise BadInput(
                f"model {task.name!r} changes its buffer {name!r} while training, and all devices would share it; of buffers "
                "that change, only the running statistics of torch's own normalisation layers have a place. Put the layer into "
                "evaluation mode, as in model.layer.eval(), or make the buffer a parameter"
            )


def _try(
    backend: Backend, task: Task, dtype: torch.dtype, device: torch.device, probe: tuple[Tensor, Tensor]
) -> Tensor:
    """Take the gradient of the initial model on the probe."""
    row = {"model": task.initial(dtype).to(device)[None, : task.learned.width]}
    running = None if task.running is None else task.initial_running(dtype).to(device)[None]
    with torch.no_grad():
        none = torch.zeros(1, dtype=torch.int64, device=device)
        return backend.gradient(task_loss, row, Feed(*probe, None, none, running))[0]["model"]
