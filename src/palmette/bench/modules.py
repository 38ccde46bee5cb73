"""Models that are no chain of dense layers or convolutions: torch's own layers, as people bring them."""

from __future__ import annotations

from torch import Tensor, nn


class Recurrent(nn.Module):
    """An LSTM that answers after the last step of a sequence.

    Args:
        inputs: Numbers at every step.
        hidden: Hidden units of each layer.
        layers: Layers.
        outputs: Number of classes.
    """

    def __init__(self, inputs: int, hidden: int, layers: int, outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, num_layers=layers, batch_first=True)
        self.last = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        result: Tensor = self.last(self.lstm(x)[0][:, -1])
        return result


class Attending(nn.Module):
    """Layers of a transformer's encoder, then the mean over the sequence.

    Args:
        width: Numbers at every place.
        heads: Heads of attention.
        layers: Layers.
        outputs: Number of classes.
    """

    def __init__(self, width: int, heads: int, layers: int, outputs: int) -> None:
        super().__init__()
        one = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True)
        self.encoder, self.last = nn.TransformerEncoder(one, layers), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the classes."""
        result: Tensor = self.last(self.encoder(x).mean(1))
        return result


def conv1d(inputs: int, channels: int, outputs: int) -> nn.Module:
    """Two convolutions over a signal, the mean, and a linear layer."""
    return nn.Sequential(
        *(nn.Conv1d(inputs, channels, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(channels, channels, 5), nn.ReLU()),
        *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, outputs)),
    )
