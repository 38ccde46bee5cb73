"""Follow the trace of a module, node by node, and make a link of each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn

from palmette.learner.encoders import ENCODERS, Given, arguments, expand, scores
from palmette.learner.joins import Plus, Shift
from palmette.learner.links import FUNCTIONS, Link, NotFused, check, names_of
from palmette.learner.sequences import AttendApart
from palmette.learner.shapes import Average, Index, Narrow, Reshape, Turn
from palmette.learner.sizes import is_batch, is_size, size_of, title
from palmette.task import AddressedDropout

_POOLING = ("kernel_size", "stride", "padding")


class Walk:
    """Makes links of the nodes of a trace, in their order.

    Args:
        module: The module that was traced.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self._links, self._used = module, list[Link](), set[str]()
        self._values: dict[fx.Node, int] = {}
        self._several: dict[fx.Node, Callable[[int], int]] = {}  # of those that give a tuple: what makes a part of it

    def follow(self, nodes: list[fx.Node]) -> list[Link]:
        """Return the links."""
        if [node.op for node in nodes].count("placeholder") != 1:
            raise NotFused("it takes more than one input")
        for node in nodes:
            if node.op == "placeholder":
                self._values[node] = -1
            elif node.op == "output":
                if self._value(node.args[0]) != len(self._links) - 1:
                    raise NotFused("its output is more than the last layer's")
            elif node.op == "call_module":
                self._call(node)
            elif node.op != "get_attr" and not is_size(node):
                self._refuse_changed(node)
                self._function(node)
        return self._links

    def add(self, layer: nn.Module, names: tuple[str, ...], *inputs: int) -> int:
        """Add a link and return its number; what changes nothing is left out."""
        if type(layer) is nn.Identity or (isinstance(layer, AddressedDropout) and layer.rate == 0):
            return inputs[0]
        check(layer, f"layer {len(self._links) + 1}")
        if used := self._used.intersection(names):
            raise NotFused(f"layer {len(self._links) + 1} ({type(layer).__name__}) is used twice ({min(used)})")
        self._used.update(names)
        self._links.append(Link(layer, names, inputs))
        return len(self._links) - 1

    def _value(self, node: Any) -> int:
        """Return the link that gives a node's value."""
        if isinstance(node, fx.Node) and node.op == "get_attr":
            raise NotFused(f"it uses the parameter {node.target} outside a layer")
        if not isinstance(node, fx.Node) or node not in self._values:
            raise NotFused(f"step {len(self._links) + 1} takes something else than the output of a layer")
        return self._values[node]

    def _call(self, node: fx.Node) -> None:
        """Take in the call of a layer."""
        name, where = str(node.target), f"layer {len(self._links) + 1}"
        layer = self._module.get_submodule(name)
        if type(layer) in ENCODERS:
            self._encoder(node, name, layer)
            return
        if len(node.args) != 1 or node.kwargs:
            raise NotFused(f"{where} ({type(layer).__name__}) is given more than its input")
        if getattr(layer, "inplace", False):
            self._refuse_changed(node)
        made = self.add(_plainly(layer), names_of(name, layer), self._value(node.args[0]))
        if isinstance(layer, nn.RNNBase):
            self._several[node] = _only_first(made)
        else:
            self._values[node] = made

    def _encoder(self, node: fx.Node, name: str, layer: nn.Module) -> None:
        """Take in a call of torch's attention or of its layers of a transformer."""
        given = arguments(layer, node.args, node.kwargs)
        source = given.pop("query", None) or given.pop("src", None)
        alone = isinstance(layer, nn.MultiheadAttention)
        if alone and not given.pop("key") is given.pop("value") is source:
            raise NotFused(f"{name} (MultiheadAttention) attends to something else than its own sequence")
        mask = given.pop("attn_mask" if alone else "src_mask" if "src_mask" in given else "mask", None)
        causal = bool(given.pop("is_causal", False))
        for setting in ("need_weights", "average_attn_weights"):
            given.pop(setting, None)
        if given:
            raise NotFused(f"{name} ({type(layer).__name__}) is given {min(given)}, which has no fused form")
        told = Given(None if mask is None else scores(self._constant(mask), blocked=True), causal)
        made = expand(self.add, name, layer, self._value(source), told)
        if alone:
            self._several[node] = _only_first(made)
        else:
            self._values[node] = made

    def _constant(self, node: Any) -> Tensor:
        """Return a buffer that a node reads."""
        buffers = dict(self._module.named_buffers())
        if not isinstance(node, fx.Node) or node.op != "get_attr" or str(node.target) not in buffers:
            raise NotFused("it computes a mask; one that is kept as a buffer has a fused form")
        return buffers[str(node.target)]

    def _function(self, node: fx.Node) -> None:
        """Take in a call of a function or a method."""
        number = len(self._links) + 1
        match node.target:
            case operator.getitem if node.args[0] in self._several:
                self._values[node] = self._several[node.args[0]](node.args[1])  # type: ignore[index, arg-type]
            case operator.getitem:
                self._values[node] = self.add(_index(node, number), (), self._value(node.args[0]))
            case operator.add | operator.iadd | torch.add | "add" | "add_":
                self._values[node] = self._sum(node)
            case F.scaled_dot_product_attention:
                self._values[node] = self._attention(node)
            case "chunk" | "split" | torch.chunk | torch.split:
                self._several[node] = self._pieces(node)
            case "contiguous":
                self._values[node] = self._value(node.args[0])
            case "view" | "reshape" | "unflatten" | torch.reshape | torch.unflatten if not _flattens(node):
                self._values[node] = self._reshape(node)
            case _:
                for one in node.args[1:]:
                    if isinstance(one, fx.Node) and one.op == "get_attr":
                        self._value(one)  # refuses it
                layer = nn.Flatten() if _flattens(node) else _from_call(node, number)
                self._values[node] = self.add(layer, (), self._value(node.args[0]))

    def _sum(self, node: fx.Node) -> int:
        """Add two values, or a parameter or constant to a value."""
        if len(node.args) != 2 or node.kwargs or not all(isinstance(one, fx.Node) for one in node.args):
            raise NotFused(f"step {len(self._links) + 1} ({title(node)}) adds something else than two values")
        own = [one for one in node.args if isinstance(one, fx.Node) and one.op == "get_attr"]
        others = [self._value(one) for one in node.args if one not in own]
        if len(own) != 1 or not others:
            return self.add(Plus(), (), *sorted(map(self._value, node.args)))
        name = str(own[0].target)
        constant = dict(self._module.named_buffers()).get(name)
        return self.add(Shift(constant), () if constant is not None else (name,), *others)

    def _attention(self, node: fx.Node) -> int:
        names = "query", "key", "value", "attn_mask", "dropout_p", "is_causal"
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        mask, causal, scale = given.pop("attn_mask", None), given.pop("is_causal", False), given.pop("scale", None)
        values = [self._value(given.pop(name, None)) for name in names[:3]]
        if given.pop("dropout_p", 0) or given.pop("enable_gqa", False) or isinstance(causal, fx.Node) or given:
            raise NotFused(f"step {len(self._links) + 1} (attention) has a setting without a fused form")
        if not isinstance(scale, float | int | None) or (causal and mask is not None):
            raise NotFused(f"step {len(self._links) + 1} (attention) has a setting without a fused form")
        added = None if mask is None else scores(self._constant(mask), blocked=False)
        return self.add(AttendApart(1, added, causal=bool(causal), scale=scale), (), *values)

    def _pieces(self, node: fx.Node) -> Callable[[int], int]:
        """Return what adds one of the pieces that a value is cut into."""
        size, dim = (*node.args[1:], *node.kwargs.values(), 0)[:2]
        told = set(node.kwargs) <= {"chunks", "split_size", "split_size_or_sections", "dim"} and len(node.args) > 1
        if not told or not isinstance(size, int) or not isinstance(dim, int):
            raise NotFused(f"step {len(self._links) + 1} ({title(node)}) cuts in a way that has no fused form")
        cut = {"pieces" if "chunk" in title(node) else "size": size}
        source = self._value(node.args[0])
        return lambda number: self.add(Narrow(number, dim, **cut), (), source)

    def _reshape(self, node: fx.Node) -> int:
        """Give a value other sizes, which may be read from other values."""
        sources, rest = [node.args[0]], list(node.args[1:])
        where = f"step {len(self._links) + 1} ({title(node)})"
        if node.kwargs or not rest:
            raise NotFused(f"{where} has a setting without a fused form")
        dim = rest.pop(0) if "unflatten" in title(node) else None
        wanted = list(rest[0]) if len(rest) == 1 and isinstance(rest[0], tuple | list) else rest
        sizes = [size_of(one, sources, where) for one in wanted]
        if dim is None and wanted[0] != -1 and not is_batch(wanted[0]):
            raise NotFused(f"{where} does not leave the samples of a batch apart")
        if dim is not None and (not isinstance(dim, int) or dim == 0):
            raise NotFused(f"{where} does not leave the samples of a batch apart")

        def read(shapes: Sequence[torch.Size]) -> Sequence[int]:
            found = [size(shapes) for size in sizes]
            if not isinstance(dim, int):
                return found
            at = dim % len(shapes[0])
            return *shapes[0][:at], *found, *shapes[0][at + 1 :]

        return self.add(Reshape(read), (), *(self._value(one) for one in sources))

    def _refuse_changed(self, node: fx.Node) -> None:
        """Refuse a step that writes into a value which others read: stages give values that stay as they are."""
        named = isinstance(node.target, str) and node.op == "call_method" and node.target.endswith("_")
        writes = named or node.target is operator.iadd or node.kwargs.get("inplace") or node.op == "call_module"
        before = node.args[0] if node.args else None
        if writes and isinstance(before, fx.Node) and any(u is not node and not is_size(u) for u in before.users):
            raise NotFused(f"step {len(self._links) + 1} ({title(node)}) writes into a value that others read")


def _plainly(layer: nn.Module) -> nn.Module:
    """Return the mean over all places where a layer of pooling is one, which has a simpler stage; other layers as they are."""
    if isinstance(layer, nn.AdaptiveAvgPool1d) and layer.output_size in (1, (1,)):
        return Average((-1,), keep=True)
    if isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size in (1, (1, 1)):
        return Average((-2, -1), keep=True)
    return layer


def _only_first(made: int) -> Callable[[int], int]:
    """Return what gives the first of several outputs, and refuses the others."""

    def part(number: int) -> int:
        if number != 0:
            raise NotFused(f"it takes output {number} of layer {made + 1}, which has a fused form for the first alone")
        return made

    return part


def _index(node: fx.Node, number: int) -> nn.Module:
    """Return the layer of ``value[index]``."""
    index = node.args[1]
    if isinstance(index, tuple) and index[:1] == (slice(None),) and all(isinstance(i, int | slice) for i in index):
        return Index(index)
    raise NotFused(f"step {number} takes the part [{index}], which has no fused form")


def _flattens(node: fx.Node) -> bool:
    """Decide whether a call joins all dimensions of a sample: ``x.view(x.size(0), -1)`` or ``x.view(-1, 784)``."""
    if node.target not in ("view", "reshape", torch.reshape):
        return False
    sizes = node.args[1:] if isinstance(node.args[-1], int) else node.args[1] if len(node.args) == 2 else ()
    match sizes:
        case (fx.Node() as first, -1):
            return is_batch(first)
        case (-1, int()):
            return True
    return False


def _from_call(node: fx.Node, number: int) -> nn.Module:
    """Return the layer a function or method call stands for."""
    rest: list[Any] = list(node.args[1:])
    options: dict[str, Any] = {
        name: value for name, value in node.kwargs.items() if name not in ("inplace", "return_indices")
    }
    constant = not any(isinstance(value, fx.Node) for value in [*rest, *options.values()])
    if node.target in ("transpose", "permute", torch.transpose, torch.permute) and constant and not options:
        dims = rest[0] if len(rest) == 1 else rest
        return Turn(dims, swap="transpose" in title(node))
    if node.target in ("mean", torch.mean) and constant and (rest or "dim" in options):
        dims, keep = (*rest, options.get("dim"), False)[:2] if rest else (options["dim"], False)
        return Average([dims] if isinstance(dims, int) else dims, keep=options.get("keepdim", keep or False))
    make: Callable[..., nn.Module] | None = FUNCTIONS.get(node.target)
    if make is None:
        raise NotFused(f"layer {number} ({title(node)}) has no fused form")
    if make in (nn.MaxPool1d, nn.AvgPool1d, nn.MaxPool2d, nn.AvgPool2d):
        if len(rest) > len(_POOLING):
            raise NotFused(f"layer {number} ({title(node)}) is given more than {', '.join(_POOLING)}")
        options.update(zip(_POOLING, rest, strict=False))
        rest = []
    elif make is nn.ReLU:
        rest = []
    elif make is nn.Flatten:
        options = dict(zip(("start_dim", "end_dim"), rest, strict=False)) | options
        options, rest = {"start_dim": 0, **options}, []
    return make(*rest, **options)
