"""Models of images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from palmette.errors import BadInput
from palmette.task.models.layers import bare, check_choice, draw, sizes
from palmette.values import whole

_GROUPS = 8  # of group normalisation, where the channels can be cut into so many
_BLOCKS = 200  # in a stage of a ResNet: 1,202 layers, the deepest of its paper


@dataclass(frozen=True)
class _Kind:
    """The sizes of a plain convolutional network.

    Attributes:
        channels: Channels of each convolution.
        kernel: Side of its kernel.
        padding: Pixels added at each side of the image before it.
        stride: By how many pixels the windows of the pooling after it are apart; they are 2 x 2.
        hidden: Sizes of the hidden layers after the convolutions.
        dropout: Share of their units that is left out in training.
    """

    channels: tuple[int, ...]
    kernel: int = 3
    padding: int = 1
    stride: int = 2
    hidden: tuple[int, ...] = (128,)
    dropout: float = 0.0

    def side(self, side: int) -> int:
        """Return the side of an image after the convolutions; below 1 if nothing is left of it."""
        for _ in self.channels:
            side = (side + 2 * self.padding - self.kernel + 1 - 2) // self.stride + 1
        return side


_KINDS = {
    "fashion-mnist": _Kind((32, 64)),
    "mnist": _Kind((16, 32), kernel=2, padding=0, stride=1),
    "cifar10": _Kind((16, 32, 64), hidden=(512, 64), dropout=0.5),
    "cifar100": _Kind((64, 128, 256), hidden=(512,)),
}


def cnn(
    shape: Sequence[int],
    outputs: int,
    *,
    seed: int = 0,
    kind: Literal["fashion-mnist", "mnist", "cifar10", "cifar100"] = "fashion-mnist",
) -> nn.Module:
    """Convolutional networks of PerMFL's code for images: two or three convolutions with pooling, then hidden units.

    The code has one per data set, all without normalisation; each takes images of other data sets too. For the data set it
    is named after it has 421,642 parameters (``"fashion-mnist"``), 2,362,874 (``"mnist"``; 2,369,582 for the 62 classes of
    EMNIST), 581,866 (``"cifar10"``) or 2,519,780 (``"cifar100"``). That of ``"mnist"`` is large because its pooling moves by
    one pixel and so hardly makes the image smaller. As published, some end in log-softmax and are trained with the negative
    log-likelihood, which is the cross-entropy used here.

    Args:
        shape: Shape of one sample: channels x height x width.
        outputs: Number of classes.
        seed: Seed of the initial weights.
        kind: The data set whose network is meant: ``"fashion-mnist"`` (3x3 convolutions of 32 and 64 channels, 128 hidden
            units), ``"mnist"``, also for EMNIST (2x2 convolutions of 16 and 32 channels, pooling that moves by one pixel, 128
            hidden units), ``"cifar10"`` (3x3 convolutions of 16, 32 and 64 channels, 512 and 64 hidden units with dropout of
            0.5) or ``"cifar100"`` (3x3 convolutions of 64, 128 and 256 channels, 512 hidden units).
    """
    check_choice("kind", kind, _KINDS)
    made = _KINDS[kind]
    least = next(side for side in range(1, 100) if made.side(side) >= 1)
    channels, height, width = _image("cnn", shape, least)
    layers: list[nn.Module] = []
    for before, after in zip((channels, *made.channels), made.channels, strict=False):
        convolution = bare(nn.Conv2d, before, after, made.kernel, padding=made.padding)
        layers += [convolution, nn.ReLU(), nn.MaxPool2d(2, made.stride)]
    layers.append(nn.Flatten())
    inner = made.channels[-1] * made.side(height) * made.side(width)
    for size in made.hidden:
        layers += [bare(nn.Linear, inner, size), nn.ReLU()]
        layers += [nn.Dropout(made.dropout)] if made.dropout else []
        inner = size
    return draw(nn.Sequential(*layers, bare(nn.Linear, inner, outputs)), seed)


def vgg(
    shape: Sequence[int],
    outputs: int,
    *,
    seed: int = 0,
    channels: int | Sequence[int] = (16, 32, 64, 128, 128),
    norm: Literal["group", "batch", "none"] = "group",
) -> nn.Module:
    """Small VGG network of sFedHP for images: five 3x3 convolutions, each followed by pooling, and one linear layer.

    The paper uses it for CIFAR-10 and does not say whether it normalises. With 32x32 colour pixels in ten classes it has
    246,314 parameters without normalisation and 247,050 with. Pooling rounds sides up, so that 28x28 pixels are enough.

    Args:
        shape: Shape of one sample: channels x height x width.
        outputs: Number of classes.
        seed: Seed of the initial weights.
        channels: Channels of each convolution, as a list.
        norm: Normalisation after each convolution: ``"group"`` (group normalisation), ``"batch"`` (batch normalisation, whose
            running statistics are averaged with the models unless model.buffers says otherwise) or ``"none"``.
    """
    wanted = sizes("channels", channels)
    if not wanted:
        raise BadInput("channels must be a list of at least one size, as in [16, 32]")
    inputs, height, width = _image("vgg", shape, 1)
    layers: list[nn.Module] = []
    for before, after in zip((inputs, *wanted), wanted, strict=False):
        layers += [bare(nn.Conv2d, before, after, 3, padding=1), *_norm(norm, after, "none"), nn.ReLU()]
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
        height, width = math.ceil(height / 2), math.ceil(width / 2)
    layers += [nn.Flatten(), bare(nn.Linear, wanted[-1] * height * width, outputs)]
    return draw(nn.Sequential(*layers), seed)


class Residual(nn.Module):
    """Two 3x3 convolutions with a way around them.

    Args:
        inputs: Channels that come in.
        channels: Channels that go out.
        norm: Normalisation after each convolution.
        stride: 2 makes the image half as large.
    """

    def __init__(self, inputs: int, channels: int, norm: str, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(inputs, channels, norm, stride), nn.ReLU(), *_convolution(channels, channels, norm)
        )
        same = inputs == channels and stride == 1
        self.around = nn.Sequential(*([] if same else _convolution(inputs, channels, norm, stride, kernel=1)))
        self.last = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Add what the convolutions make to what came in."""
        out: Tensor = self.last(self.body(x) + self.around(x))
        return out


def resnet(
    shape: Sequence[int],
    outputs: int,
    *,
    seed: int = 0,
    blocks: int = 1,
    width: int = 16,
    norm: Literal["group", "batch"] = "group",
) -> nn.Module:
    """Small residual network (ResNet) for images: three stages, each with twice the channels of the one before.

    It is the network for CIFAR-10 of He et al., Deep Residual Learning for Image Recognition (2016), which normalises by
    batches. With n blocks in a stage it has 6n + 2 layers: blocks=1 is ResNet-8, blocks=3 ResNet-20. Where a stage halves the
    image, a 1x1 convolution leads around.

    Args:
        shape: Shape of one sample: channels x height x width.
        outputs: Number of classes.
        seed: Seed of the initial weights.
        blocks: Blocks in each stage, of two convolutions each.
        width: Channels of the first stage.
        norm: Normalisation after each convolution: ``"group"`` (group normalisation) or ``"batch"`` (batch normalisation, whose
            running statistics are averaged with the models unless model.buffers says otherwise).
    """
    each, channels = whole("blocks", blocks, 1, _BLOCKS), whole("width", width, 1)
    inputs, *_ = _image("resnet", shape, 4)
    layers: list[nn.Module] = [*_convolution(inputs, channels, norm), nn.ReLU()]
    for stage in range(3):
        for block in range(each):
            halves = stage > 0 and block == 0
            layers.append(Residual(channels // 2 if halves else channels, channels, norm, 2 if halves else 1))
        channels *= 2
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), bare(nn.Linear, channels // 2, outputs)]
    return draw(nn.Sequential(*layers), seed)


def _image(model: str, shape: Sequence[int], least: int) -> tuple[int, int, int]:
    """Return channels, height and width of an image, or refuse what is none or too small."""
    if len(shape) != 3 or min(shape[1:]) < least:
        sides = f" with sides of at least {least}" if least > 1 else ""
        raise BadInput(f"{model} needs images of channels x height x width{sides}, not {tuple(shape)}")
    channels, height, width = shape
    return channels, height, width


def _convolution(inputs: int, channels: int, norm: str, stride: int = 1, kernel: int = 3) -> list[nn.Module]:
    """Return a convolution of a ResNet with its normalisation, whose bias serves both."""
    made = bare(nn.Conv2d, inputs, channels, kernel, stride=stride, padding=kernel // 2, bias=False)
    return [made, *_norm(norm, channels)]


def _norm(kind: str, channels: int, *others: str) -> list[nn.Module]:
    """Return a layer that normalises, or nothing where that was asked for."""
    check_choice("norm", kind, ("group", "batch", *others))
    if kind == "none":
        return []
    return [nn.BatchNorm2d(channels) if kind == "batch" else nn.GroupNorm(math.gcd(channels, _GROUPS), channels)]
