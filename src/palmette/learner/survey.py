"""How much work the single layers of a model are: what decides whether stacking devices pays.

A stacked call serves many devices, so it saves calls; but torch's layers for one model are better made than its stacked
forms. Where one call is little work the first counts, where it is much the second. The rule below was read off measurements
(`make prove-models`, docs/reference/models.md). It looks at the model, the shape of a sample and the batch size alone: the
same run takes the same backend on every machine and after every stop, and so has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from palmette.learner.loop import LoopBackend

LARGE = 5_000_000  # multiplications of a layer's call, for one device's batch, above which stacked forms lose
LARGE_STEP = 1_000_000  # the same of a step of a recurrent layer
LARGE_LSTM = 12_000_000  # multiplications of all LSTMs above which torch's own beat the stacked one


class Work(NamedTuple):
    """The multiplications of one forward pass of one device's batch.

    Attributes:
        each: Of a call of a layer with weights, in the mean.
        step: Of a step of a recurrent layer, in the mean; 0 where there is none.
        lstm: Of all LSTMs together.
    """

    each: float
    step: float
    lstm: float

    def unfit(self, backend: str) -> str:
        """Return why a backend that can run the model would lose against `loop` on a CPU; nothing where it would not."""
        if backend == "native":
            return ""  # it is for linear layers, small or large
        if self.lstm > (LARGE_LSTM if backend == "fused" else 0):
            return f"its LSTM is {_millions(self.lstm)} a step; {_faster(LARGE_LSTM)}"
        if self.step > LARGE_STEP and backend == "vmap":
            return f"a step of its recurrent layers is {_millions(self.step)}; {_faster(LARGE_STEP)}"
        if self.each > LARGE and backend == "vmap":
            return f"a call of its layers is {_millions(self.each)}; {_faster(LARGE)}"
        return ""


def _millions(number: float) -> str:
    return f"{number / 1e6:,.3g} million multiplications"


def _faster(limit: int) -> str:
    return f"above {limit / 1e6:g} million, one device after the other is faster"


def survey(loop: LoopBackend, x: Tensor, batch: int) -> Work:
    """Count a model's work by one forward pass on a few samples.

    Args:
        loop: Whose module.
        x: The samples.
        batch: Samples of a step.
    """
    module, samples = loop.instance().module, max(1, len(x))
    with _counted(module) as found:
        module(x)
    some = batch / samples

    def mean(calls: list[tuple[nn.Module, float, int]]) -> float:
        return some * sum(size for _, size, _ in calls) / max(1, sum(number for *_, number in calls))

    steps = [call for call in found if isinstance(call[0], nn.RNNBase)]
    lstm = some * sum(size for layer, size, _ in steps if isinstance(layer, nn.LSTM))
    return Work(mean(found), mean(steps), lstm)


@contextmanager
def _counted(module: nn.Module) -> Iterator[list[tuple[nn.Module, float, int]]]:
    """Collect the layers that are called, with their multiplications and how many calls they are worth."""
    found: list[tuple[nn.Module, float, int]] = []

    def note(layer: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        x, y = given[0] if given else None, output[0] if isinstance(output, tuple) else output
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            found.append((layer, *_work(layer, x, y)))

    hooks = [layer.register_forward_hook(note) for layer in module.modules() if _weights(layer)]
    try:
        with torch.enable_grad():  # without it a transformer takes a way of its own around its layers
            yield found
    finally:
        for hook in hooks:
            hook.remove()


def _weights(layer: nn.Module) -> list[Tensor]:
    """Return a layer's own matrices; a table of vectors is looked up, not multiplied."""
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return []
    # Attention calls its last layer in a way that hooks do not see.
    parameters: Callable[..., Iterator[Tensor]] = layer.parameters
    whole = isinstance(layer, nn.MultiheadAttention)
    return [one for one in parameters(recurse=whole) if one.dim() > 1]


def _work(layer: nn.Module, x: Tensor, y: Tensor) -> tuple[float, int]:
    """Return a call's multiplications, and how many calls it is worth: a recurrent layer makes one at every step."""
    weights = _weights(layer)
    if isinstance(layer, nn.RNNBase):
        places = x.numel() / x.shape[-1]
        steps = x.shape[1 if layer.batch_first else 0] if x.dim() == 3 else x.shape[0]
        return places * sum(one.numel() for one in weights), steps * layer.num_layers
    if isinstance(layer, nn.MultiheadAttention):
        return x.numel() / x.shape[-1] * sum(one.numel() for one in weights), 1
    return sum(y.numel() / one.shape[0] * one.numel() for one in weights), 1
