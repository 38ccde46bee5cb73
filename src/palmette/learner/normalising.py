"""Group normalisation of images whose channels lie last in memory.

Torch's own form of it is made for groups of many channels; with two of them, as in a small ResNet, its backward pass takes
eight times as long as here. Here sums over the pixels are taken channel by channel, and channels are joined into groups by a
product with a small matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Normalise(torch.autograd.Function):
    """``w (x - mean) / sqrt(variance + eps) + b``, mean and variance taken over each sample's groups of channels."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, join: Tensor, eps: float) -> Tensor:
        """Normalise, then scale and shift."""
        flat = _flat(x)
        join = join / flat.shape[1]
        # The mean is taken off before squares are summed: their difference would lose the digits of a small variance.
        centred = flat - (flat.sum(1) @ join)[:, None]
        scale = (centred.square().sum(1) @ join).add_(eps).rsqrt_()
        result = torch.empty_like(x, memory_format=torch.channels_last)
        torch.addcmul(bias, centred, (scale * weight)[:, None], out=_flat(result))
        ctx.save_for_backward(centred, scale, weight, join)
        return result

    @staticmethod
    def backward(ctx: Any, *deltas: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """Return the gradients of the images, the scale and the shift."""
        centred, scale, weight, join = ctx.saved_tensors
        delta = deltas[0].contiguous(memory_format=torch.channels_last)
        flat, result = _flat(delta), torch.empty_like(delta)
        total, along = flat.sum(1), (flat * centred).sum(1).mul_(scale)
        shift = ((total * weight) @ join).mul_(scale).neg_()
        slope = ((along * weight) @ join).mul_(scale).mul_(scale)
        below = torch.addcmul(shift[:, None], flat, (scale * weight)[:, None], out=_flat(result))
        below.addcmul_(centred, slope[:, None], value=-1)
        return result, along.sum(0), total.sum(0), None, None


def _flat(images: Tensor) -> Tensor:
    """View images as ``(samples, pixels, channels)``."""
    return images.permute(0, 2, 3, 1).flatten(1, 2)


class ChannelsLastGroupNorm(nn.GroupNorm):
    """A group normalisation that takes images with their channels last; others it leaves to torch.

    Args:
        layer: The layer whose place it takes, with the very same parameters.
    """

    join: Tensor

    def __init__(self, layer: nn.GroupNorm) -> None:
        super().__init__(layer.num_groups, layer.num_channels, eps=layer.eps, device="meta")
        self.weight, self.bias, self.training = layer.weight, layer.bias, layer.training
        each = layer.num_channels // layer.num_groups
        join = torch.eye(layer.num_groups).repeat_interleave(each, 0).repeat_interleave(each, 1) / each
        self.register_buffer("join", join.to(layer.weight), persistent=False)

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
            hooked = layer._forward_hooks or layer._forward_pre_hooks
            if type(layer) is nn.GroupNorm and layer.affine and not hooked:
                setattr(parent, name, ChannelsLastGroupNorm(layer))
