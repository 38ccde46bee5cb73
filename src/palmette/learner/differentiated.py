"""Less common layers of the fused backend: the forward pass is stacked by hand, autograd differentiates it stage by stage."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from palmette.learner.head import gradients
from palmette.learner.stages import Stage, blend
from palmette.task.models.text import beside


class Differentiated(Stage):
    """A stage whose backward step is autograd's, of this stage alone."""

    passes = True

    def forward(self, x: Tensor) -> Tensor:
        """Run the stage and remember its small graph."""
        with torch.enable_grad():
            back = not self.place.first and x.is_floating_point()
            # All parameters are parts of one memory. `data` keeps autograd from taking a step of a later layer, which
            # writes to other parts, for a change of these.
            own = [part.data.requires_grad_(sink is not None) for part, sink in zip(self.own, self.sinks, strict=True)]
            x = x.detach().requires_grad_(back)
            self._y = self.run(x, own)
            self._leaves = [part for part in own if part.requires_grad]
            if back:
                self._leaves.append(x)
        return self._y.detach()

    @abstractmethod
    def run(self, x: Tensor, own: Sequence[Tensor]) -> Tensor:
        """Return the output for the stack."""

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Differentiate, update the sinks and pass the input's gradient on."""
        found = gradients(self._y, self._leaves, delta.contiguous())
        learned = [sink for sink in self.sinks if sink is not None]
        for sink, gradient in zip(learned, found, strict=False):
            assert gradient is not None  # every stage depends on all it has
            blend(sink, gradient, beta, alpha)
        if self.place.first:
            return delta
        assert found[-1] is not None
        # Later stages write into the gradient, so it must not be one number seen many times.
        return found[-1].contiguous()


class Elementwise(Differentiated):
    """A layer without parameters that treats every entry, or the last dimension, by itself."""

    def run(self, x: Tensor, own: Sequence[Tensor]) -> Tensor:
        """Apply the layer to the stack as it is."""
        result: Tensor = self.layer(x)
        return result


class Samplewise(Differentiated):
    """A layer without parameters that treats every sample by itself, such as average pooling."""

    def run(self, x: Tensor, own: Sequence[Tensor]) -> Tensor:
        """Apply the layer to the samples of all devices."""
        result: Tensor = self.layer(x.flatten(0, 1))
        value: Tensor = result.unflatten(0, x.shape[:2])
        return value


def _look_up(x: Tensor, tables: Tensor) -> Tensor:
    """Return the vectors of tokens ``(n, ...)``, each in its own device's table ``(n, tokens, width)``."""
    n, words, width = tables.shape
    shift = torch.arange(n, device=x.device).mul_(words).view(n, *[1] * (x.dim() - 1))
    return F.embedding(x + shift, tables.reshape(n * words, width))


class Spelled(Differentiated):
    """Vectors of words from their letters (`palmette.task.models.text.Spelling`); every convolution is one batched product."""

    def run(self, x: Tensor, own: Sequence[Tensor]) -> Tensor:
        """Look up the letters, convolve them, take the largest value of each filter, and let the highway change them."""
        letters = _look_up(self.layer.spelled[x].flatten(1, -2), own[0])
        found = []
        for number, width in enumerate(self.layer.widths):
            windows = beside(letters, width)
            weight, bias = own[2 * number + 1 : 2 * number + 3]
            values = torch.baddbmm(bias[:, None], windows.flatten(1, 2), weight.mT)
            found.append(values.unflatten(1, windows.shape[1:3]).amax(2).tanh())
        vectors = torch.cat(found, -1)
        gate, change = (torch.baddbmm(bias[:, None], vectors, weight.mT) for weight, bias in (own[-4:-2], own[-2:]))
        gate = gate.sigmoid()
        return (gate * change.relu() + (1 - gate) * vectors).view(*x.shape, -1)
