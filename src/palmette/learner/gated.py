"""Gated recurrent units (GRU) of many models at once, forward and backward by hand.

For one layer with weights W of the inputs and U of the hidden units, at every step of a sequence,

    r, z = sigmoid(x W' + b + h U' + c)   n = tanh(x W' + b + r (h U' + c))   h = n + z (h - n),

each with its own rows of W, U, b and c. The gradient of everything at a step is the gradient of h times a slope, and the slopes
are known for all steps before the backward pass begins. So a step of it is four operations, one of them a product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palmette.learner.recurrent import Layer, Recurrent, Run
from palmette.learner.stages import blend


class _Run(Run):
    """One layer over one sequence for some devices.

    Everything lies in memory as ``(n, steps, batch, numbers)``.
    """

    def __init__(self, x: Tensor, own: Layer) -> None:
        assert own.inputs is not None
        assert own.hidden is not None
        self._x, self._inputs, self._hidden = x.flatten(1, 2), own.inputs, own.hidden
        n, steps, batch, _ = x.shape
        self._size = size = own.hidden.shape[2]
        given = torch.bmm(self._x, own.inputs.mT)
        bias = None
        if own.biases:
            assert own.biases[0] is not None
            given.add_(own.biases[0].unsqueeze(1))
            bias = own.biases[1]
        self._gates = given.view(n, steps, batch, 3 * size)
        # The first step's are those before the sequence.
        self._states = x.new_empty((n, steps + 1, batch, size))
        self._states[:, 0] = 0
        self._inner = x.new_empty((n, steps, batch, size))
        self._forward(bias)

    @property
    def output(self) -> Tensor:
        """The hidden units after every step, ``(n, steps, batch, hidden)``."""
        return self._states[:, 1:]

    def _forward(self, bias: Tensor | None) -> None:
        size, back = self._size, self._hidden.mT
        extra = self._states.new_zeros(()) if bias is None else bias.unsqueeze(1)
        every = zip(*(part.unbind(1) for part in (self._gates, self._states[:, 1:], self._inner)), strict=True)
        hidden = self._states[:, 0]
        work = torch.empty_like(self._gates[:, 0])
        for gates, state, inner in every:
            torch.baddbmm(extra, hidden, back, out=work)
            both, new = gates.split([2 * size, size], -1)
            both.add_(work[..., : 2 * size]).sigmoid_()
            inner.copy_(work[..., 2 * size :])
            new.addcmul_(both[..., :size], inner).tanh_()
            torch.lerp(new, hidden, both[..., size:], out=state)
            hidden = state

    def backward(self, delta: Tensor, sinks: Layer, beta: float, alpha: float, *, below: bool) -> Tensor:
        """Update the sinks and return the gradient of the inputs, where it is wanted."""
        size, slopes = self._size, self._through(delta)
        flat = slopes.flatten(1, 2)
        hidden, both, new = flat[..., : 3 * size], flat[..., : 2 * size], flat[..., 3 * size :]
        result = delta
        if below:
            result = torch.bmm(both, self._inputs[:, : 2 * size]).baddbmm_(new, self._inputs[:, 2 * size :])
            result = result.view(*delta.shape[:3], -1)
        if sinks.inputs is not None:
            blend(sinks.inputs[:, : 2 * size], torch.bmm(self._x.mT, both).mT, beta, alpha)
            blend(sinks.inputs[:, 2 * size :], torch.bmm(self._x.mT, new).mT, beta, alpha)
        if sinks.hidden is not None:
            before = self._states[:, :-1].flatten(1, 2)
            blend(sinks.hidden, torch.bmm(before.mT, hidden).mT, beta, alpha)
        if any(sink is not None for sink in sinks.biases):
            total = flat.sum(1)
            of_inputs = torch.cat([total[:, : 2 * size], total[:, 3 * size :]], 1)
            for sink, mine in zip(sinks.biases, (of_inputs, total[:, : 3 * size]), strict=True):
                blend(sink, mine, beta, alpha)
        return result

    def _through(self, delta: Tensor) -> Tensor:
        """Return the gradients of what the sigmoids and tanh are of, from the last step to the first.

        Of the tanh there are two: in what comes from the hidden units, which r multiplies, and in all of it.
        """
        slopes, keep = self._slopes()
        steps, size = slopes.shape[1], slopes.shape[4]
        flat = slopes.flatten(3)
        every = [part.unbind(1) for part in (delta, slopes, flat[..., : 3 * size], keep)]
        later = torch.zeros_like(self._inner[:, 0])
        for step in range(steps - 1, -1, -1):
            given, slope, hidden, keep_now = (part[step] for part in every)
            later.add_(given)
            slope.mul_(later.unsqueeze(2))
            later = torch.bmm(hidden, self._hidden).addcmul_(later, keep_now)
        return flat

    def _slopes(self) -> tuple[Tensor, Tensor]:
        """Return the slopes ``(n, steps, batch, 4, hidden)`` in the gradient of h, and how much of h a step keeps."""
        reset, keep, new = self._gates.split(self._size, -1)
        slopes = self._gates.new_empty((*self._inner.shape[:3], 4, self._size))
        of_reset, of_keep, of_inner, of_new = slopes.unbind(3)
        stay = 1 - keep
        torch.mul(new, new, out=of_new).neg_().add_(1).mul_(stay)
        torch.mul(of_new, reset, out=of_inner)
        torch.mul(of_inner, self._inner, out=of_reset).mul_(1 - reset)
        torch.sub(self._states[:, :-1], new, out=of_keep).mul_(keep).mul_(stay)
        return slopes, keep


class Gru(Recurrent):
    """Gated recurrent units of one or several layers."""

    run = _Run
