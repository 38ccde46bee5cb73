"""Buffers that training changes: the running statistics of batch normalisation, which are no parameters."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from palmette.errors import BadInput
from palmette.values import shown

Place = Literal["own", "averaged"]
"""Where running statistics belong: to each device alone, or into the models, averaged with them."""

_RUNNING = ("running_mean", "running_var")


def in_training(module: nn.Module) -> set[str]:
    """Return the names of the layers that are in training mode while devices train.

    A layer that was put into evaluation mode (``model.encoder.eval()``) stays in it. A module that is in evaluation mode as a
    whole, as loaded models are, trains as a whole.
    """
    return {name for name, layer in module.named_modules() if layer.training or not module.training}


def running(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that training changes, by name."""
    training = in_training(module)
    return {
        f"{name}.{own}" if name else own: getattr(layer, own)
        for name, layer in module.named_modules()
        if isinstance(layer, _NormBase) and layer.track_running_stats and name in training
        for own in _RUNNING
    }


def check(module: nn.Module, place: Place | None) -> None:
    """Refuse layers whose statistics have no place, or none that can be repeated."""
    if place is not None and place not in get_args(Place):
        raise BadInput(f"buffers must be 'own' or 'averaged', not {shown(place)}")
    training = in_training(module)
    for name, layer in module.named_modules():
        if not isinstance(layer, _NormBase) or name not in training:
            continue
        what = f"layer {name!r} is {type(layer).__name__}"
        if isinstance(layer, _BatchNorm) and not layer.track_running_stats:
            raise BadInput(
                f"{what} without running statistics, so that a prediction would depend on the samples beside it; use "
                "track_running_stats=True, nn.GroupNorm or nn.LayerNorm"
            )
        if layer.track_running_stats and layer.momentum is None:
            raise BadInput(f"{what} with momentum=None, a mean over all batches so far; give it a number such as 0.1")
        if layer.track_running_stats and place is None:
            raise BadInput(
                f"{what}, whose running statistics are not parameters. Say where they belong: with buffers='own' each device "
                "keeps its own and they cross no link, with buffers='averaged' they are averaged with the models (on the "
                "command line --set model.buffers=own); or use nn.GroupNorm or nn.LayerNorm, which have none"
            )


def mixes_samples(module: nn.Module) -> bool:
    """Return whether a sample's output while training, or what becomes of running statistics, depends on those beside it."""
    training = in_training(module)
    return any(
        name in training
        and (isinstance(layer, _BatchNorm) or (isinstance(layer, _NormBase) and layer.track_running_stats))
        for name, layer in module.named_modules()
    )
