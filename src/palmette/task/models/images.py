"""Models of images."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from palmette.errors import BadInput
from palmette.task.models.layers import bare, draw


def cnn(shape: Sequence[int], outputs: int, *, seed: int = 0) -> nn.Module:
    """Convolutional network of PerMFL for images: two 3x3 convolutions (32, 64 channels) with pooling, 128 hidden units."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise BadInput(f"cnn needs images of channels x height x width with sides of at least 4, not {tuple(shape)}")
    channels, height, width = shape
    module = nn.Sequential(
        *(bare(nn.Conv2d, channels, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(bare(nn.Conv2d, 32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(bare(nn.Linear, 64 * (height // 4) * (width // 4), 128), nn.ReLU(), bare(nn.Linear, 128, outputs)),
    )
    return draw(module, seed)
