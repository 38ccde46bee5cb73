"""Which backend fits a task, and why."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch

from palmette.errors import BadInput
from palmette.learner.backends import Backend, CompiledBackend, Feed, Objective, VmapBackend, task_loss
from palmette.learner.fused import FusedBackend
from palmette.learner.loop import LoopBackend
from palmette.learner.native import NativeBackend
from palmette.learner.survey import survey
from palmette.task import Task

BACKENDS: dict[str, type[FusedBackend] | type[VmapBackend] | type[LoopBackend]] = {
    "native": NativeBackend,
    "fused": FusedBackend,
    "vmap": VmapBackend,
    "compile": CompiledBackend,
    "loop": LoopBackend,
}
"""The backends; ``auto`` considers all but compiling, which is only done where it is asked for."""

_CLOSE = 1e-3  # how far gradients may differ on a probe, relative to the largest; a wrong stage is far beyond it
_LETTERS = 200  # of an error of torch that are repeated

_SINGLE = (
    "batch normalisation needs two samples in a batch. Use a larger batch_size, give every device at least two training "
    "samples, or use nn.GroupNorm or nn.LayerNorm"
)

_ASKED = "as engine.backend says"
_WAYS = {"native": "a chain of linear layers", "fused": "made of common layers", "vmap": "its layers are small"}

Probe = tuple[Tensor, Tensor]
Plain = tuple[LoopBackend, Tensor]
"""Plain autograd, and its gradient on a probe."""


def choose(
    name: str,
    task: Task,
    dtype: torch.dtype,
    device: torch.device,
    probe: Probe,
    plain: Plain | None = None,
    *,
    batch: int = 20,
) -> tuple[Backend, str]:
    """Return the backend to use and why.

    ``"auto"`` takes the first of native, fused and vmap that can run the model and for which, on a CPU, its layers are not too
    large (`palmette.learner.survey`); else loop.

    Args:
        name: ``"auto"`` or a name of `BACKENDS`.
        task: What is learned.
        dtype: Type of the rows.
        device: Where they live.
        probe: A few samples ``(1, batch, ...)`` to try the backends on.
        plain: What plain autograd gives, where it is known already.
        batch: Samples of a step.
    """
    if name != "auto" and name not in BACKENDS:
        raise BadInput(f"backend must be auto or one of {', '.join(BACKENDS)}, not {name!r}")
    if plain is None:
        loop = LoopBackend(task, dtype, device)
        plain = loop, _gradient(loop, task, dtype, probe)
    loop, expected = plain
    if name == "auto":
        return _fitting(task, dtype, device, probe, plain, batch)
    if name == "loop":
        return _in_order(loop, task, dtype, device, probe, expected), _ASKED
    backend, told = _tried(name, task, dtype, device, probe, expected)
    if backend is None:
        raise BadInput(f"backend {name!r} {told[0]}; use backend 'auto'")
    return backend, "; ".join([*told, _ASKED])


def _fitting(
    task: Task, dtype: torch.dtype, device: torch.device, probe: Probe, plain: Plain, batch: int
) -> tuple[Backend, str]:
    """Return the backend that fits a model, and why."""
    loop, expected = plain
    reasons: list[str] = []
    work = survey(loop, probe[0][0], batch) if device.type == "cpu" else None
    for name, way in _WAYS.items():
        if work is not None and (why := work.unfit(name)):
            if name == "vmap" or not reasons:
                reasons.append(why)
            continue
        backend, told = _tried(name, task, dtype, device, probe, expected)
        if backend is not None:
            return backend, "; ".join([*reasons, *told, way])
        # Of most models nobody expects that they are for the kernel; where they are and there is none, it is said.
        reasons += [f"{name} {text}" for text in told if name != "native" or "native kernel" in text]
    if work is None or not work.unfit("vmap"):
        reasons.append("loop runs any model")
    return _in_order(loop, task, dtype, device, probe, expected), "; ".join(dict.fromkeys(reasons))


def _tried(
    name: str, task: Task, dtype: torch.dtype, device: torch.device, probe: Probe, expected: Tensor
) -> tuple[Backend | None, list[str]]:
    """Return a backend if its gradient on the probe is that of plain autograd, with what there is to say of it."""
    try:
        backend = BACKENDS[name](task, dtype, device)
        # To compile takes half a minute, and what is compiled is `vmap`.
        tried = VmapBackend(task, dtype, device) if name == "compile" else backend
        with _slow_calls() as slow:
            found = _gradient(tried, task, dtype, probe)
    except Exception as error:  # whatever a module does that this backend cannot follow, another one may
        return None, [f"cannot run model {task.name!r}: {_short(error)}"]
    if (gap := _gap(found, expected)) > _CLOSE:
        return None, [f"disagrees with plain autograd by {gap:.1g} of the gradient"]
    return backend, [f"torch has no stacked form of {', '.join(slow)} and calls it device by device"] if slow else []


def _in_order(
    loop: LoopBackend, task: Task, dtype: torch.dtype, device: torch.device, probe: Probe, expected: Tensor
) -> LoopBackend:
    """Return a loop that gives images with their channels last, where torch is faster on them and the module takes them."""
    kinds = {type(layer) for layer in task.module.modules()}
    images = probe[0].dim() == 5 and nn.Conv2d in kinds and dtype == torch.float32 and device.type == "cpu"
    # Torch normalises groups of channels faster in the usual order; what pooling gains in the other one outweighs that.
    if not images or (nn.GroupNorm in kinds and nn.MaxPool2d not in kinds):
        return loop
    made = LoopBackend(task, dtype, device, channels_last=True)
    try:
        found = _gradient(made, task, dtype, probe)
    except Exception:  # such as a view that joins channels and pixels
        return loop
    return made if _gap(found, expected) <= _CLOSE else loop


def _gap(found: Tensor, expected: Tensor) -> float:
    """Return how far a gradient is from plain autograd's, relative to its largest entry."""
    if not expected.isfinite().all():
        return 0.0
    gap, scale = float((found - expected).abs().max()), float(expected.abs().max())
    return gap / scale if scale else float(gap > 0)


@contextmanager
def _slow_calls() -> Iterator[list[str]]:
    """Collect the operations that `vmap` runs one device after the other; torch's own warnings of them are for its makers."""
    found: list[str] = []
    functorch._set_vmap_fallback_warning_enabled(True)  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            yield found
    finally:
        functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
    names = (re.search(r"batching rule for aten::(\w+)", str(one.message)) for one in heard)
    found += sorted({name[1].strip("_") for name in names if name})


def refuse_unrepeatable(task: Task, dtype: torch.dtype, device: torch.device, probe: Probe) -> Plain:
    """Refuse a model with random numbers or changing buffers of its own: such a run could not be repeated or resumed.

    Returns what plain autograd gives.

    Args:
        task: What is learned.
        dtype: Type of the rows.
        device: Where they live.
        probe: A few samples ``(1, batch, ...)``.
    """

    def state() -> Tensor:
        return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()

    loop, before = LoopBackend(task, dtype, device), state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the model warns of is told when it trains
        try:
            # As objectives of algorithms are: with parameters that are handed over, which some modules cannot follow.
            _gradient(loop, task, dtype, probe, lambda rows, batch: task_loss(rows, batch))
            first = _gradient(loop, task, dtype, probe)
            # After one call, so that what a module makes at its first and keeps is there.
            kept = {name: value.clone() for name, value in loop.buffers()}
            second = _gradient(loop, task, dtype, probe)
        except Exception as error:  # a user's module can raise anything
            raise BadInput(f"model {task.name!r} cannot be trained: {_short(error)}{_way_out(error)}") from None
    if not torch.equal(before, state()):
        raise BadInput(
            f"model {task.name!r} draws random numbers of its own while training, so a run could not be repeated; "
            "use nn.Dropout layers, whose random numbers Palmette controls"
        )
    for name, value in loop.buffers():
        if name in kept and not torch.equal(value.nan_to_num(), kept[name].nan_to_num()):
            raise BadInput(
                f"model {task.name!r} changes its buffer {name!r} while training, and all devices would share it; of buffers "
                "that change, only the running statistics of torch's own normalisation layers have a place. Put the layer into "
                "evaluation mode, as in model.layer.eval(), or make the buffer a parameter"
            )
    if (first - second).abs().max() > _CLOSE * first.abs().max():
        raise BadInput(
            f"model {task.name!r} gives another gradient when it is called again with the same samples, so a run could not be "
            "repeated; its forward must not change the module"
        )
    return loop, second


def _gradient(
    backend: Backend, task: Task, dtype: torch.dtype, probe: Probe, objective: Objective = task_loss
) -> Tensor:
    """Take the gradient of the initial model on the probe."""
    x, y = probe
    row = {"model": task.initial(dtype).to(x.device)[None, : task.learned.width]}
    running = None if task.running is None else task.initial_running(dtype).to(x.device)[None]
    with torch.no_grad():
        none = torch.zeros(1, dtype=torch.int64, device=x.device)
        return backend.gradient(objective, row, Feed(x, y, None, none, running))[0]["model"]


def _short(error: Exception) -> str:
    """Return the first sentence of an error, in our words where torch's are long."""
    text = str(error).strip()
    if "data-dependent control flow" in text:
        return (
            "its forward looks at the values of a tensor (an if, .item() or the like), and these differ between devices"
        )
    line = text.splitlines()[0] if text else type(error).__name__
    return line if len(line) <= _LETTERS else f"{line[:_LETTERS].rstrip()} ..."


def refuse_single_samples(task: Task, dtype: torch.dtype, probe: Probe, why: str) -> None:
    """Refuse batches of one sample where the model cannot train on them.

    Args:
        task: What is learned.
        dtype: Type of the rows.
        probe: A few samples ``(1, batch, ...)``.
        why: Where such batches come from, as the beginning of a sentence.
    """
    x, y = probe
    try:
        _gradient(LoopBackend(task, dtype, x.device), task, dtype, (x[:, :1], y[:, :1]))
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            raise BadInput(f"{why}, and {_SINGLE}") from None
        raise


def _way_out(error: Exception) -> str:
    text = str(error)
    if "more than 1 value per channel" in text:
        return f"; {_SINGLE}"
    if "torch.utils.checkpoint" in text:
        return "; leave torch.utils.checkpoint out, Palmette calls models with parameters of many devices in turn"
    return ""
