"""What one sample takes in a model: products and values, counted layer by layer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from palmette.task import Task


class Footprint(NamedTuple):
    """What one sample takes on its way through a model.

    Attributes:
        products: Products of weights and values.
        values: Numbers that the layers give, all together; of a convolution also the windows that it is laid out in.
    """

    products: int
    values: int


def footprint(task: Task, samples: Tensor) -> Footprint:
    """Pass a few samples through a model and count what one of them takes.

    Args:
        task: The model.
        samples: The samples; two of them as a rule, since a module of somebody else may not know a batch of one.
    """
    module = task.replica(training=False, dtype=torch.float32, device=torch.device("cpu"))
    products, values = [0], [0]

    def count(layer: nn.Module, _: object, output: object) -> None:
        made = _numbers(output)
        if next(layer.children(), None) is None:
            windows = layer.weight[0].numel() * made // len(layer.weight) if isinstance(layer, nn.Conv2d) else 0
            values[0] += made + windows
        for weight in layer.parameters(recurse=False):
            known = weight.dim() > 1 and not isinstance(layer, nn.Embedding)
            products[0] += weight[0].numel() * made if known else made

    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    with torch.no_grad():
        module((samples.float() if samples.is_floating_point() else samples).cpu())
    for hook in hooks:
        hook.remove()
    return Footprint(products[0] // len(samples), values[0] // len(samples))


def _numbers(output: object) -> int:
    """Count the numbers in what a layer gave; of several things the first, as of an LSTM."""
    first = output[0] if isinstance(output, tuple | list) and output else output
    return first.numel() if isinstance(first, Tensor) else 0
