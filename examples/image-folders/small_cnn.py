"""A small convolutional network for images of any size."""

from torch import nn


def make(shape, outputs, *, width=8):
    """Two convolutions with pooling, and a linear layer.

    Args:
        shape: Of an image: channels, height, width.
        outputs: How many classes there are.
        width: Channels of the first convolution.
    """
    channels, height, across = shape
    return nn.Sequential(
        *(nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(2 * width * (height // 4) * (across // 4), outputs)),
    )
