"""A chain of linear layers takes all its steps in one call, in which Python and its lock have no part.

The calls of a step on small models cost more than their arithmetic, and they keep other threads waiting. So the functions of
this file are written in the part of Python that TorchScript also reads: `compiled` turns them into one program, which torch
runs by itself. Where it cannot be compiled, the same functions run as they are: slower, with the same bits.

Activations are ``(n, batch, features)``; where that makes a product faster they lie in memory as ``(n, features, batch)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from palmette.learner.batches import positions
from palmette.task import signs


def gather(source: Tensor, index: Tensor, affine: list[float], out: Tensor) -> None:
    """Copy rows of the source into ``out``, in its type; ``affine`` is a scale and a shift, or empty."""
    if source.dtype == out.dtype and source.device == out.device:
        torch.index_select(source, 0, index, out=out)
    else:
        out.copy_(torch.index_select(source, 0, index))
    if len(affine) > 0:
        out.mul_(affine[0]).add_(affine[1])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Multiply samples ``(n, batch, inputs)`` by weights ``(n, outputs, inputs)``; a bias is ``(n, outputs)``."""
    # A product is faster when its result has fewer rows than columns.
    result = torch.bmm(x, weight.mT) if weight.size(1) >= x.size(1) else torch.bmm(weight, x.mT).mT
    if bias is not None:
        result.add_(bias.unsqueeze(1))
    return result


def linear_step(
    x: Tensor, delta: Tensor, weight: Tensor | None, bias: Tensor | None, ones: Tensor, beta: float, alpha: float
) -> None:
    """Set weights and bias to ``beta`` times themselves plus ``alpha`` times their gradient, summed over samples."""
    if weight is not None:
        weight.baddbmm_(delta.mT, x, beta=beta, alpha=alpha)
    if bias is not None:
        bias.unsqueeze(1).baddbmm_(ones, delta, beta=beta, alpha=alpha)


def ones(x: Tensor) -> Tensor:
    """Return a one for every sample, as the row that sums over them."""
    # In memory of its own: products with an expanded one are ten times slower.
    return x.new_ones([x.size(0), 1, x.size(1)])


def activate(value: Tensor, kind: str) -> None:
    """Apply an activation in place."""
    if kind == "relu":
        value.relu_()
    elif kind == "tanh":
        value.tanh_()
    elif kind == "sigmoid":
        value.sigmoid_()


def activate_back(delta: Tensor, value: Tensor, kind: str) -> None:
    """Turn the gradient after an activation into the one before it, given the activation's value."""
    if kind == "relu":
        torch.ops.aten.threshold_backward(delta, value, 0, grad_input=delta)
    elif kind == "tanh":
        torch.ops.aten.tanh_backward(delta, value, grad_input=delta)
    elif kind == "sigmoid":
        torch.ops.aten.sigmoid_backward(delta, value, grad_input=delta)


def loss_back(output: Tensor, y: Tensor, loss: str) -> Tensor:
    """Return the gradient of a loss in the outputs, sample by sample."""
    if loss == "squared":
        return (output.reshape(y.shape) - y).view(output.shape)
    if loss == "logistic":
        sign = signs(y)
        return torch.sigmoid(-sign * output.reshape(y.shape)).mul_(-sign).view(output.shape)
    # The classes' probabilities, less one for the right class.
    if output.is_contiguous():
        right = y.unsqueeze(2)
        return torch.softmax(output, 2).scatter_add_(2, right, torch.full_like(right, -1, dtype=output.dtype))
    right = y.unsqueeze(1)
    return torch.softmax(output.mT, 1).scatter_add_(1, right, torch.full_like(right, -1, dtype=output.dtype)).mT


def step(
    x: Tensor,
    y: Tensor,
    share: Tensor | None,
    weights: list[Tensor],
    biases: list[Tensor | None],
    kinds: list[str],
    sinks: list[Tensor | None],
    bias_sinks: list[Tensor | None],
    first: int,
    one: Tensor,
    loss: str,
    beta: float,
    alpha: float,
) -> None:
    """Set the parameters of a chain that are learned to ``beta`` times themselves plus ``alpha`` times their gradient."""
    values = [x]
    for k in range(len(weights)):
        values.append(linear(values[k], weights[k], biases[k]))
        activate(values[k + 1], kinds[k])
    delta = loss_back(values[len(weights)], y, loss)
    if share is not None:
        delta.mul_(share)
    for back in range(len(weights) - first):
        k = len(weights) - 1 - back
        activate_back(delta, values[k + 1], kinds[k])
        below = torch.bmm(delta, weights[k]) if k > first else delta
        linear_step(values[k], delta, sinks[k], bias_sinks[k], one, beta, alpha)
        delta = below


def copy_in(parts: list[Tensor], rows: Tensor, sizes: list[int]) -> None:
    """Copy the columns of rows to where each parameter lies contiguous for all devices."""
    pieces = rows.split_with_sizes(sizes, 1)
    for k in range(len(parts)):
        parts[k].copy_(pieces[k])


def copy_out(parts: list[Tensor], sizes: list[int]) -> Tensor:
    """Return the parameters as rows again."""
    rows = parts[0].new_empty([parts[0].size(0), sum(sizes)])
    pieces = rows.split_with_sizes(sizes, 1)
    for k in range(len(parts)):
        pieces[k].copy_(parts[k])
    return rows


def descend(
    start: Tensor,
    centre: Tensor | None,
    sizes: list[int],
    flat: Tensor,
    pulled: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None],
    kinds: list[str],
    sinks: list[Tensor | None],
    bias_sinks: list[Tensor | None],
    first: int,
    source: Tensor,
    affine: list[float],
    y: Tensor,
    x: Tensor,
    lines: list[list[Tensor]],
    steps: int,
    share: Tensor | None,
    loss: str,
    beta: float,
    alpha: float,
    pull: float,
) -> Tensor:
    """Take steps ``rows = beta * rows + alpha * gradient + pull * centre`` and return the rows after them.

    Args:
        start: Rows to start from.
        centre: What they are pulled to.
        sizes: Number of entries of each parameter.
        flat: Memory for all parameters.
        pulled: Memory for the centre, where there is one.
        weights: Weights of each layer ``(n, outputs, inputs)``, in ``flat``.
        biases: Its bias ``(n, outputs)``.
        kinds: Its activation.
        sinks: The weights again; ``None`` where they stay as they are.
        bias_sinks: So the biases.
        first: The first layer that is learned.
        source: Samples to gather from.
        affine: Scale and shift of what is gathered, or nothing.
        y: All targets.
        x: Memory for one step's samples ``(n, batch, features)``.
        lines: Which samples each step takes, as `palmette.learner.batches.Lines` of some steps after the other; the last
            step told of serves all further ones.
        steps: Number of steps.
        share: Factor ``(steps, n, batch, 1)`` of each sample in each step; the last one serves all further steps.
        loss: The loss.
        beta: Factor of the rows.
        alpha: Factor of the gradients.
        pull: Factor of the centre.
    """
    n, batch = x.size(0), x.size(1)
    shares = [n * size for size in sizes]
    parts = [piece.view(n, -1) for piece in flat.split_with_sizes(shares)]
    copy_in(parts, start, sizes)
    if centre is not None:
        copy_in([piece.view(n, -1) for piece in pulled.split_with_sizes(shares)], centre, sizes)
    rows, one, left = x.flatten(0, 1), ones(x), steps
    for block in range(len(lines)):
        told = lines[block]
        index = positions(told[0], told[1], told[2], told[3], told[4], told[5], batch)
        targets = torch.index_select(y, 0, index.flatten().to(y.device)).unflatten(0, [-1, n, batch])
        index = index.to(source.device)
        for now in range(index.size(0)):
            gather(source, index[now], affine, rows)
            last = block == len(lines) - 1 and now == index.size(0) - 1
            own = share
            if share is not None:
                own = share[min(steps - left, share.size(0) - 1)]
            for _ in range(left if last else 1):
                step(x, targets[now], own, weights, biases, kinds, sinks, bias_sinks, first, one, loss, beta, alpha)
                if centre is not None:
                    flat.add_(pulled, alpha=pull)
                left -= 1
    return copy_out(parts, sizes)


@cache
def compiled(program: Callable[..., Any] = descend) -> Any:
    """Return `descend`, or another function made of this file's, as one program; as it is where torch cannot compile it."""
    parts = (
        positions,
        signs,
        gather,
        linear,
        linear_step,
        ones,
        activate,
        activate_back,
        loss_back,
        step,
        copy_in,
        copy_out,
        program,
    )
    try:
        unit = torch.jit.CompilationUnit("\n\n".join(inspect.getsource(part) for part in parts))
        return getattr(unit, program.__name__)
    except (RuntimeError, OSError, AttributeError):
        return program
