"""Turn a module into a chain of fused stages, or say in plain words why it cannot be done."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import fx, nn

from palmette.learner import differentiated as d
from palmette.learner import stages as s
from palmette.learner.convolution import Conv1d, Conv2d, GroupNorm
from palmette.learner.recurrent import Lstm
from palmette.task import AddressedDropout
from palmette.task.models.text import Spelling

LAYERS: dict[type[nn.Module], type[s.Stage]] = {
    nn.Linear: s.Linear,
    nn.ReLU: s.Relu,
    nn.Tanh: s.Tanh,
    nn.Sigmoid: s.Sigmoid,
    nn.GELU: s.Gelu,
    nn.Flatten: s.Flatten,
    nn.MaxPool1d: s.MaxPool1d,
    nn.MaxPool2d: s.MaxPool2d,
    s.Index: s.Select,
    AddressedDropout: s.Dropout,
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.LayerNorm: d.LayerNorm,
    nn.GroupNorm: GroupNorm,
    nn.Embedding: d.Embedding,
    nn.LSTM: Lstm,
    Spelling: d.Spelled,
    **dict.fromkeys((nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), d.Samplewise),
    **dict.fromkeys((nn.LeakyReLU, nn.ELU, nn.SiLU, nn.Softplus, nn.Hardtanh, nn.ReLU6, nn.Mish), d.Elementwise),
}
"""The layers that have a fused form."""

_PLAIN: dict[Any, Callable[..., nn.Module]] = {
    **dict.fromkeys((F.relu, torch.relu, "relu", "relu_"), nn.ReLU),
    **dict.fromkeys((F.tanh, torch.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, "sigmoid"), nn.Sigmoid),
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    F.leaky_relu: nn.LeakyReLU,
    F.max_pool1d: nn.MaxPool1d,
    F.avg_pool1d: nn.AvgPool1d,
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
    **dict.fromkeys((torch.flatten, "flatten"), nn.Flatten),
}
"""Functions and methods that are one of these layers."""

_POOLING = ("kernel_size", "stride", "padding")


class NotFused(Exception):  # noqa: N818 - reads as what it is
    """A module has no fused form; the text says why."""


@dataclass(frozen=True)
class Link:
    """One stage to be: the layer and the names of its parameters."""

    layer: nn.Module
    names: tuple[str, ...]

    @property
    def stage(self) -> type[s.Stage]:
        """The stage that runs the layer."""
        return LAYERS[type(self.layer)]


class Layer(NamedTuple):
    """A linear layer of a chain that has no others: the names of its parameters and the activation that follows."""

    weight: str
    bias: str | None
    activation: str


def dense_layers(links: Sequence[Link]) -> list[Layer] | None:
    """Return the layers of a chain of linear ones, each with at most one activation after it; nothing for other chains."""
    found: list[Layer] = []
    for link in links:
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
    """Return the stages of a module that is a straight chain of common layers.

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
        raise NotFused("its forward looks at self.training, and a chain of stages is one for both")
    for node in reversed(graph.nodes):
        if not node.users and node.op not in ("placeholder", "output"):
            graph.erase_node(node)
    links = _pool_first(_Chain(module).follow(list(graph.nodes)))
    return [Link(link.layer, tuple(name.removeprefix(prefix) for name in link.names)) for link in links]


def _pool_first(links: list[Link]) -> list[Link]:
    """Put the largest of windows before rectified linear units: the values are the same, and there are fewer to rectify."""
    links = list(links)
    for i in range(len(links) - 1):
        if links[i].stage is s.Relu and issubclass(links[i + 1].stage, s.MaxPool2d):
            links[i], links[i + 1] = links[i + 1], links[i]
    return links


def _is_row(module: nn.Module) -> bool:
    """Decide whether a module is nothing but layers one after the other: such a one does not look at ``training`` itself."""
    return type(module) is nn.Sequential and all(type(layer) in LAYERS for layer in module)


class _Chain:
    """Walks the nodes of a trace, each of which must take the one before it."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._links, self._used = module, list[Link](), set[str]()

    def follow(self, nodes: list[fx.Node]) -> list[Link]:
        if [node.op for node in nodes].count("placeholder") != 1:
            raise NotFused("it takes more than one input")
        last = nodes[0]
        for node in nodes[1:]:
            if _is_size(node):
                continue
            if node.op == "output":
                if node.args != (last,):
                    raise NotFused("its output is more than the last layer's")
                break
            number = len(self._links) + 1
            if node.op == "get_attr":
                raise NotFused(f"it uses the parameter {node.target} outside a layer")
            if not node.args or node.args[0] is not last or _reuses(node, last):
                raise NotFused(f"step {number} ({_title(node)}) does not simply follow the one before it")
            self._add(node, number)
            last = node
        return self._links

    def _add(self, node: fx.Node, number: int) -> None:
        where = f"layer {number}"
        if node.op == "call_module":
            name = str(node.target)
            layer = self._module.get_submodule(name)
            if len(node.args) > 1 or node.kwargs:
                raise NotFused(f"{where} ({type(layer).__name__}) is given more than its input")
            names = tuple(f"{name}.{own}" for own, _ in layer.named_parameters())
            if names and name in self._used:
                raise NotFused(f"{where} ({type(layer).__name__}) is used twice")
            self._used.add(name)
        elif node.target is operator.getitem:
            self._index(node, number)
            return
        else:
            layer, names = _from_call(node, number), ()
        _check(layer, where)
        self._links.append(Link(layer, names))

    def _index(self, node: fx.Node, number: int) -> None:
        """Take in ``value[index]``: one of an LSTM's outputs, or a part of every sample."""
        index, before = node.args[1], self._links[-1].layer if self._links else None
        if isinstance(before, nn.LSTM) and index == 0:
            return
        if isinstance(index, tuple) and index[:1] == (slice(None),) and all(isinstance(i, int | slice) for i in index):
            self._links.append(Link(s.Index(index), ()))
            return
        raise NotFused(f"step {number} takes the part [{index}], which has no fused form")


def _from_call(node: fx.Node, number: int) -> nn.Module:
    """Return the layer a function or method call stands for."""
    if node.target in ("view", "reshape") and len(node.args) == 3 and node.args[2] == -1 and _is_size(node.args[1]):
        return nn.Flatten()
    make: Callable[..., nn.Module] | None = _PLAIN.get(node.target)
    if make is None:
        raise NotFused(f"layer {number} ({_title(node)}) has no fused form")
    rest: list[Any] = list(node.args[1:])
    options: dict[str, Any] = {
        name: value for name, value in node.kwargs.items() if name not in ("inplace", "return_indices")
    }
    if make in (nn.MaxPool1d, nn.AvgPool1d, nn.MaxPool2d, nn.AvgPool2d):
        if len(rest) > len(_POOLING):
            raise NotFused(f"layer {number} ({_title(node)}) is given more than {', '.join(_POOLING)}")
        options.update(zip(_POOLING, rest, strict=False))
        rest = []
    elif make is nn.ReLU:
        rest = []
    elif make is nn.Flatten:
        options = dict(zip(("start_dim", "end_dim"), rest, strict=False)) | options
        options, rest = {"start_dim": 0, **options}, []
    return make(*rest, **options)


def _check(layer: nn.Module, where: str) -> None:
    """Refuse layers, and settings of layers, that the stages do not know."""
    title = type(layer).__name__
    if type(layer) not in LAYERS:
        raise NotFused(f"{where} ({title}) has no fused form")
    if layer._forward_hooks or layer._forward_pre_hooks:
        raise NotFused(f"{where} ({title}) has hooks")
    problem = None
    match layer:
        case nn.Flatten() if layer.start_dim < 1:
            problem = "joins the samples of a batch"
        case nn.Conv1d() | nn.Conv2d() if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            problem = "pads in a way that has no fused form"
        case nn.MaxPool1d() | nn.MaxPool2d() if layer.return_indices:
            problem = "returns indices"
        case nn.Embedding() if layer.padding_idx is not None or layer.max_norm is not None or layer.scale_grad_by_freq:
            problem = "has a setting (padding_idx, max_norm or scale_grad_by_freq) without a fused form"
        case nn.LSTM() if layer.bidirectional or layer.proj_size or layer.dropout or not layer.batch_first:
            problem = "has a setting (bidirectional, proj_size, dropout or batch_first=False) without a fused form"
    if problem:
        raise NotFused(f"{where} ({title}) {problem}")


def _is_size(node: Any) -> bool:
    """Decide whether a node only reads the size of the batch, as in ``x.view(x.size(0), -1)``."""
    if not isinstance(node, fx.Node):
        return False
    if node.op == "call_method" and node.target == "size":
        return node.args[1:] in ((0,), ())
    if node.op == "call_function" and node.target is getattr:
        return bool(node.args[1] == "shape")
    return node.target is operator.getitem and _is_size(node.args[0]) and bool(node.args[1] == 0)


def _reuses(node: fx.Node, last: fx.Node) -> bool:
    """Decide whether the value before is also needed further on, as in a skip connection."""
    return any(user is not node and not _is_size(user) for user in last.users)


def _title(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
