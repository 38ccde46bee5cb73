"""Long short-term memories (LSTM) of many models at once, forward and backward by hand.

For one layer with weights W of the inputs and U of the hidden units, at every step of a sequence,

    i, f, o = sigmoid(...)   g = tanh(...)   of   x W' + h U' + bias,        c = f c + i g,   h = o tanh(c).

The products with W are one for all steps, and so are those that make the gradients of W and U: only ``h U'`` and its like in
the backward pass have to go step by step. The slopes of the gates are known for all steps before the backward pass begins, so a
step of it is six operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from palmette.learner.stages import Place, Stage, blend

_TOGETHER = 1 << 17  # numbers in the weights of the devices that go step by step together: what a core's cache holds


class Layer(NamedTuple):
    """One layer's parameters, or where their gradients go, for some devices."""

    inputs: Tensor | None
    hidden: Tensor | None
    biases: Sequence[Tensor | None]


class Run(ABC):
    """One layer over one sequence for some devices, remembering what the backward pass needs.

    Everything lies in memory as ``(n, steps, batch, numbers)``, so that a product over all steps finds its rows together.

    Args:
        x: Inputs ``(n, steps, batch, inputs)``.
        own: The layer's parameters.
    """

    @abstractmethod
    def __init__(self, x: Tensor, own: Layer) -> None: ...

    @property
    @abstractmethod
    def output(self) -> Tensor:
        """The hidden units after every step, ``(n, steps, batch, hidden)``."""

    @abstractmethod
    def backward(self, delta: Tensor, sinks: Layer, beta: float, alpha: float, *, below: bool) -> Tensor:
        """Update the sinks and return the gradient of the inputs, where it is wanted.

        Args:
            delta: Gradient of the outputs, ``(n, steps, batch, hidden)``.
            sinks: Where the gradients go.
            beta: What becomes of the sinks.
            alpha: Factor of the gradients.
            below: Whether the gradient of the inputs is wanted.
        """


class _Run(Run):
    """One layer of an LSTM."""

    def __init__(self, x: Tensor, own: Layer) -> None:
        assert own.inputs is not None
        assert own.hidden is not None
        self._x, self._inputs, self._hidden = x.flatten(1, 2), own.inputs, own.hidden
        n, steps, batch, _ = x.shape
        size = own.hidden.shape[2]
        gates = torch.bmm(self._x, own.inputs.mT)
        for bias in own.biases:
            assert bias is not None
            gates.add_(bias.unsqueeze(1))
        self._gates = gates.view(n, steps, batch, 4 * size)
        # The first step's are those before the sequence.
        self._cells, self._states = (x.new_empty((n, steps + 1, batch, size)) for _ in range(2))
        self._cells[:, 0], self._states[:, 0] = 0, 0
        self._bent = x.new_empty((n, steps, batch, size))
        self._forward()

    @property
    def output(self) -> Tensor:
        """The hidden units after every step, ``(n, steps, batch, hidden)``."""
        return self._states[:, 1:]

    def _forward(self) -> None:
        size, twice = self._hidden.shape[2], self._hidden.clone()
        # tanh(x) = 2 sigmoid(2 x) - 1: torch's sigmoid is six times as fast as its tanh, and takes all gates at once.
        twice[:, 2 * size : 3 * size] *= 2
        self._gates[..., 2 * size : 3 * size] *= 2
        self._minus = -twice.new_ones(())
        back = twice.mT
        work = torch.empty_like(self._gates[:, 0])
        every = zip(
            *(part.unbind(1) for part in (self._gates, self._states[:, 1:], self._cells[:, 1:], self._bent)),
            strict=True,
        )
        hidden, cell = self._states[:, 0], self._cells[:, 0]
        for gates, state, now, bent in every:
            _add_product(gates, hidden, back, work)
            gates.sigmoid_()
            take, forget, new, give = gates.split(size, -1)
            torch.add(self._minus, new, alpha=2, out=new)
            torch.mul(forget, cell, out=now).addcmul_(take, new)
            torch.mul(now, 2, out=bent).sigmoid_()
            torch.add(self._minus, bent, alpha=2, out=bent)
            torch.mul(give, bent, out=state)
            hidden, cell = state, now

    def backward(self, delta: Tensor, sinks: Layer, beta: float, alpha: float, *, below: bool) -> Tensor:
        """Update the sinks and return the gradient of the inputs, where it is wanted."""
        self._through(delta)
        flat = self._gates.flatten(1, 2)
        result = torch.bmm(flat, self._inputs).view(*delta.shape[:3], -1) if below else delta
        before = self._states[:, :-1].flatten(1, 2)
        for sink, value in ((sinks.inputs, self._x), (sinks.hidden, before)):
            # This order of the product is several times faster than the one that would leave nothing to turn.
            if sink is not None:
                blend(sink, torch.bmm(value.mT, flat).mT, beta, alpha)
        if any(sink is not None for sink in sinks.biases):
            total = flat.sum(1)
            for sink in sinks.biases:
                blend(sink, total, beta, alpha)
        return result

    def _through(self, delta: Tensor) -> None:
        """Turn the gates into their gradients, from the last step to the first."""
        size = self._hidden.shape[2]
        slope, keep = self._slopes()
        n, steps, batch, _ = self._gates.shape
        inner = self._gates.view(n, steps, batch, 4, size)
        every = [part.unbind(1) for part in (delta, slope, keep, inner[..., :3, :], inner[..., 3, :], self._gates)]
        of_cell, later = torch.zeros_like(self._bent[:, 0]), torch.zeros_like(self._bent[:, 0])
        for step in range(steps - 1, -1, -1):
            given, slope_now, keep_now, three, give, gates = (part[step] for part in every)
            later.add_(given)
            of_cell.addcmul_(later, slope_now)
            three.mul_(of_cell.unsqueeze(2))
            give.mul_(later)
            of_cell.mul_(keep_now)
            torch.bmm(gates, self._hidden, out=later)

    def _slopes(self) -> tuple[Tensor, Tensor]:
        """Put the slope of each gate in its place; return those of the cells in the outputs, and what a cell keeps."""
        take, forget, new, give = self._gates.split(self._hidden.shape[2], -1)
        states, keep = self._states[:, 1:], forget.clone()
        slope = torch.addcmul(give, states, self._bent, value=-1, out=self._bent)
        torch.addcmul(states, states, give, value=-1, out=give)
        both = take * new
        torch.addcmul(take, both, new, value=-1, out=new)
        torch.addcmul(both, both, take, value=-1, out=take)
        torch.mul(forget, self._cells[:, :-1], out=both)
        torch.addcmul(both, both, forget, value=-1, out=forget)
        return slope, keep


def _add_product(to: Tensor, one: Tensor, other: Tensor, work: Tensor) -> None:
    """Add a batched product; torch is slow to add one to memory that does not lie together."""
    if to.is_contiguous():
        to.baddbmm_(one, other)
    else:
        to.add_(torch.bmm(one, other, out=work))


class Recurrent(Stage):
    """A recurrent layer of torch's, which may be several on top of each other.

    Its outputs are not `fresh`: the backward pass reads the hidden units once more.
    """

    run: ClassVar[type[Run]]

    def __init__(self, layer: nn.Module, own: Sequence[Tensor], sinks: Sequence[Tensor | None], place: Place) -> None:
        super().__init__(layer, own, sinks, place)
        most = max(part[0].numel() for part in own)
        self._group = max(1, _TOGETHER // most)

    def _layers(self, tensors: Sequence[Tensor | None], which: slice) -> list[Layer]:
        per = 4 if self.layer.bias else 2
        mine = [None if part is None else part[which] for part in tensors]
        return [Layer(mine[at], mine[at + 1], mine[at + 2 : at + per]) for at in range(0, len(mine), per)]

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden units of the last layer at every step, ``(n, batch, steps, hidden)``."""
        self._runs: list[tuple[slice, list[Run]]] = []
        ordered, found = x.transpose(1, 2).contiguous(), []
        for low in range(0, len(x), self._group):
            which, runs = slice(low, low + self._group), list[Run]()
            value = ordered[which]
            for own in self._layers(self.own, which):
                runs.append(self.run(value, own))
                value = runs[-1].output
            self._runs.append((which, runs))
            found.append(value)
        return (found[0] if len(found) == 1 else torch.cat(found)).transpose(1, 2)

    def backward(self, delta: Tensor, beta: float, alpha: float) -> Tensor:
        """Go through the sequence from its end."""
        ordered, found = delta.transpose(1, 2), []
        for which, runs in self._runs:
            value, sinks = ordered[which], self._layers(self.sinks, which)
            for number in range(len(runs) - 1, -1, -1):
                below = number > 0 or not self.place.first
                value = runs[number].backward(value, sinks[number], beta, alpha, below=below)
            found.append(value)
        self._runs = []
        return (found[0] if len(found) == 1 else torch.cat(found)).transpose(1, 2)


class Lstm(Recurrent):
    """A long short-term memory of one or several layers."""

    run = _Run
