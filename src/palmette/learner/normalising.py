"""Group normalisation of images whose channels lie last in memory.

Torch's own form of it is made for groups of many channels; with two of them, as in a small ResNet, its backward pass takes
eight times as long as here. Here sums over the pixels are taken channel by channel, and channels are joined into groups by a
product with a small matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def normalised(
    x: Tensor, weight: Tensor, bias: Tensor, join: Tensor, eps: float, out: Tensor, centred: Tensor
) -> tuple[Tensor, Tensor]:
    """Write ``w (x - mean) / sqrt(variance + eps) + b`` into ``out``; return what `normalised_back` needs.

    Nothing large is made anew: fresh memory costs as much as the arithmetic.

    Args:
        x: Values ``(n, samples, pixels, channels)``.
        weight: Scale of the channels ``(n, channels)``.
        bias: Shift, likewise.
        join: A matrix that turns the sums of channels over their pixels into the means of their groups.
        eps: Keeps the variance from zero.
        out: Where the result goes.
        centred: Memory for the values less their mean.
    """
    # The mean is taken off before squares are summed: their difference would lose the digits of a small variance.
    torch.sub(x, (x.sum(2) @ join).unsqueeze(2), out=centred)
    scale = (torch.mul(centred, centred, out=out).sum(2) @ join).add_(eps).rsqrt_()
    torch.addcmul(bias[:, None, None], centred, (scale * weight[:, None]).unsqueeze(2), out=out)
    return centred, scale


def normalised_back(
    delta: Tensor, centred: Tensor, scale: Tensor, weight: Tensor, join: Tensor, out: Tensor
) -> tuple[Tensor, Tensor]:
    """Write the gradient of the values into ``out``; return those of scale and shift, sample by sample.

    Args:
        delta: Gradient of the result ``(n, samples, pixels, channels)``.
        centred: As `normalised` returned it.
        scale: So, too.
        weight: As it was given.
        join: As it was given.
        out: Where the gradient goes.
    """
    total, along = delta.sum(2), torch.mul(delta, centred, out=out).sum(2).mul_(scale)
    factor = scale * weight[:, None]
    shift = ((total * weight[:, None]) @ join).mul_(scale).neg_()
    slope = ((along * weight[:, None]) @ join).mul_(scale).mul_(scale).neg_()
    torch.addcmul(shift.unsqueeze(2), delta, factor.unsqueeze(2), out=out)
    out.addcmul_(centred, slope.unsqueeze(2))
    return along, total


def joining(groups: int, channels: int, like: Tensor) -> Tensor:
    """Return the matrix that gives each channel the mean over the channels of its group."""
    each = channels // groups
    return torch.eye(groups).repeat_interleave(each, 0).repeat_interleave(each, 1).to(like) / each


class _Normalise(torch.autograd.Function):
    """The same as a function that autograd knows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, join: Tensor, eps: float) -> Tensor:
        """Normalise, then scale and shift."""
        result = torch.empty_like(x, memory_format=torch.channels_last)
        flat = _flat(x)
        join = join / flat.shape[2]
        centred, scale = normalised(flat, weight[None], bias[None], join, eps, _flat(result), torch.empty_like(flat))
        ctx.save_for_backward(centred, scale, weight, join)
        return result

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Return the gradients of the images, the scale and the shift."""
        delta = deltas[0].contiguous(memory_format=torch.channels_last)
        result, (centred, scale, weight, join) = torch.empty_like(delta), ctx.saved_tensors
        along, total = normalised_back(_flat(delta), centred, scale, weight[None], join, _flat(result))
        return result, along.sum((0, 1)), total.sum((0, 1)), None, None


def _flat(images: Tensor) -> Tensor:
    """View images as ``(1, samples, pixels, channels)``."""
    return images.permute(0, 2, 3, 1).flatten(1, 2)[None]


class ChannelsLastGroupNorm(nn.GroupNorm):
    """A group normalisation that takes images with their channels last; others it leaves to torch.

    Args:
        layer: The layer whose place it takes, with the very same parameters.
    """

    join: Tensor

    def __init__(self, layer: nn.GroupNorm) -> None:
        super().__init__(layer.num_groups, layer.num_channels, eps=layer.eps, device="meta")
        self.weight, self.bias, self.training = layer.weight, layer.bias, layer.training
        self.register_buffer("join", joining(layer.num_groups, layer.num_channels, layer.weight), persistent=False)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's own name
        """Normalise each group of channels of every sample."""
        if input.dim() != 4 or input.shape[1] == 1 or not input.is_contiguous(memory_format=torch.channels_last):
            return super().forward(input)
        result: Tensor = _Normalise.apply(input, self.weight, self.bias, self.join, self.eps)  # type: ignore[no-untyped-call]
        return result


def replace_group_norms(module: nn.Module) -> None:
    """Put `ChannelsLastGroupNorm` in the place of a module's group normalisations."""
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if not isinstance(layer, nn.GroupNorm) or type(layer) is not nn.GroupNorm or _hooked(layer):
                continue
            if layer.weight is not None and layer.bias is not None:
                setattr(parent, name, ChannelsLastGroupNorm(layer))


_UNREAD = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d),
    *(nn.LayerNorm, nn.GroupNorm, ChannelsLastGroupNorm),
)


def rectify_in_place(module: nn.Module) -> None:
    """Let rectified linear units overwrite what a layer before them gave, where its backward pass does not read it."""
    every = [layer for _, layer in module.named_modules(remove_duplicate=False)]
    for row in every:
        if type(row) is not nn.Sequential:
            continue
        for before, layer in zip(row, list(row)[1:], strict=False):
            alone = sum(other is layer for other in every) == 1 and not _hooked(layer) and not _hooked(before)
            if type(layer) is nn.ReLU and type(before) in _UNREAD and alone:
                layer.inplace = True


def _hooked(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)
