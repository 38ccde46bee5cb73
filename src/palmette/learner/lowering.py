"""Turn a module into fused stages, or say in plain words why it cannot be done.

A module is traced by `torch.fx` down to torch's own layers. What comes of it is a list of links, each of which takes what
earlier ones give: a chain, or one with ways around some of its links.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import fx, nn

from palmette.learner import stages as s
from palmette.learner.following import Walk
from palmette.learner.links import LAYERS, Link, NotFused
from palmette.learner.pooling import MaxPool2d


class Layer(NamedTuple):
    """A linear layer of a chain that has no others: the names of its parameters and the activation that follows."""

    weight: str
    bias: str | None
    activation: str


def dense_layers(links: Sequence[Link]) -> list[Layer] | None:
    """Return the layers of a chain of linear ones, each with at most one activation after it; nothing for other models."""
    found: list[Layer] = []
    for number, link in enumerate(links):
        if link.inputs != (number - 1,):
            return None
        if isinstance(link.layer, nn.Linear):
            found.append(Layer(link.names[0], link.names[1] if len(link.names) > 1 else None, ""))
        elif found and issubclass(link.stage, s.Activation) and not found[-1].activation:
            found[-1] = found[-1]._replace(activation=link.stage.kind)
        elif found or not isinstance(link.layer, nn.Flatten):
            return None
    return found or None


class _Tracer(fx.Tracer):
    """Follows a module down to torch's own layers."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in LAYERS or super().is_leaf_module(m, module_qualified_name)


def lower(module: nn.Module) -> list[Link]:
    """Return the stages of a module that is made of common layers.

    Args:
        module: A replica of the task's module, its dropout addressed.

    Raises:
        NotFused: If it is anything else.
    """
    if type(module) in LAYERS:
        module = nn.Sequential(module)
        prefix = "0."
    else:
        prefix = ""
    try:
        graph = _Tracer().trace(module)
        evaluated = graph if _is_row(module) else _Tracer().trace(copy.deepcopy(module).eval())
    except Exception as error:  # a user's forward can raise anything when it is called with a proxy
        text = str(error).strip() or type(error).__name__
        raise NotFused(f"torch.fx cannot trace it: {text.splitlines()[0]}") from None
    if evaluated is not graph and str(graph) != str(evaluated):
        raise NotFused("its forward looks at self.training, and the stages are the same for both")
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    links = _pool_first(Walk(module).follow(list(graph.nodes)))
    return [replace(link, names=tuple(name.removeprefix(prefix) for name in link.names)) for link in links]


def _pool_first(links: list[Link]) -> list[Link]:
    """Put the largest of windows before rectified linear units: the values are the same, and there are fewer to rectify."""
    links = list(links)
    read = [number for link in links for number in link.inputs]
    for i in range(len(links) - 1):
        one, other = links[i], links[i + 1]
        follows = other.inputs == (i,) and read.count(i) == 1
        if follows and one.stage is s.Relu and issubclass(other.stage, MaxPool2d):
            links[i], links[i + 1] = replace(other, inputs=one.inputs), replace(one, inputs=other.inputs)
    return links


def _is_row(module: nn.Module) -> bool:
    """Decide whether a module is nothing but layers one after the other: such a one does not look at ``training`` itself."""
    return type(module) is nn.Sequential and all(type(layer) in LAYERS for layer in module)
