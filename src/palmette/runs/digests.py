"""What an object is made of, as text: its code, its constants, its layers; two objects that compute the same have one text.

It is used to tell whether a model, a loss or an algorithm is the one a run began with. Classes and functions of Python,
palmette and torch are known by their name; those of a user by their source, so that a changed line is noticed. Code that lies
in other files of the user and is called from there is not looked at.
"""

from __future__ import annotations

import hashlib
import inspect
import textwrap
from collections.abc import Mapping
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from palmette.runs.tensors import as_bytes

_KNOWN = ("builtins", "palmette", "torch", "numpy", "abc", "typing", "collections", "functools")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_BLOCK = 1 << 24  # bytes of a tensor that are hashed at once


def described(value: Any, seen: tuple[int, ...] = ()) -> str:
    """Return a text that two objects share when they are made of the same code and the same values.

    Args:
        value: Any object.
        seen: Objects inside which it lies, so that circles come to an end.
    """
    if isinstance(value, _PLAIN):
        return repr(value)
    if id(value) in seen:
        return "(itself)"
    inside = (*seen, id(value))
    if isinstance(value, Tensor | np.ndarray):
        return f"tensor {digest_of(torch.as_tensor(value))}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {described(part, inside)}" for key, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(described(part, inside) for part in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(described(part, inside) for part in value)) + "}"
    if isinstance(value, type):
        return _class(value, inside)
    if isinstance(value, partial):
        return f"partial({described((value.func, value.args, value.keywords), inside)})"
    if isinstance(value, MethodType):
        return f"{described(value.__func__, inside)} of {described(value.__self__, inside)}"
    if isinstance(value, FunctionType):
        return _function(value, inside)
    if isinstance(value, BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, nn.Module):
        return _module(value, inside)
    return f"{_class(type(value), inside)} {described(getattr(value, '__dict__', {}), inside)}"


def digest_of(*values: Tensor | str) -> str:
    """Return a digest of tensors, every number of them, and of texts."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, str):
            digest.update(value.encode("utf-8", "surrogatepass"))
            continue
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        lines = max(1, _BLOCK // max(1, value[:1].nbytes)) if value.dim() else 1
        for part in value.split(lines) if value.dim() else [value]:
            digest.update(as_bytes(part))
    return digest.hexdigest()


def _known(thing: Any) -> bool:
    return str(thing.__module__).split(".")[0] in _KNOWN


def _class(kind: type, seen: tuple[int, ...]) -> str:
    """Name a class; one of the user's by the source of all classes it comes from that are the user's, too."""
    if _known(kind):
        return f"{kind.__module__}.{kind.__qualname__}"
    own = [base for base in kind.__mro__ if not _known(base)]
    return " from ".join(f"{base.__qualname__} {_source(base) or _members(base, seen)}" for base in own)


def _members(kind: type, seen: tuple[int, ...]) -> str:
    """Describe a class without a source, as one typed at a prompt, by what is defined in it."""
    parts = {
        name: part for name, part in vars(kind).items() if not name.startswith("__") or isinstance(part, FunctionType)
    }
    return described(parts, seen)


def _function(function: FunctionType, seen: tuple[int, ...]) -> str:
    """Describe a function by its source and the values it carries along."""
    if _known(function):
        path = f"{function.__module__}.{function.__qualname__}"
        if "<" not in path:
            return path
    code = function.__code__
    cells = [cell.cell_contents for cell in function.__closure__ or () if not _empty(cell)]
    outside = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    used = {
        name: value
        for name, value in outside.items()
        if isinstance(value, _PLAIN) or (isinstance(value, FunctionType) and value.__module__ == function.__module__)
    }
    text = _source(function) or _bytecode(code)
    if function.__name__ == "<lambda>":  # several may stand in one line
        text += f" ends in column {max(column or 0 for *_, column in code.co_positions())}"
    carried = (function.__defaults__, function.__kwdefaults__, cells, used)
    return f"{function.__name__} {text} {described(carried, seen)}"


def _module(module: nn.Module, seen: tuple[int, ...]) -> str:
    """Describe a torch module: its layers with their settings, its parameters' shapes, its buffers' values."""
    layers = []
    for name, layer in module.named_modules():
        settings = {key: value for key, value in vars(layer).items() if not key.startswith("_") and key != "training"}
        layers.append(f"{name}: {_class(type(layer), seen)} {described(settings, seen)}")
    layers += [f"{n}: {tuple(p.shape)} {p.dtype} {p.requires_grad}" for n, p in module.named_parameters()]
    layers += [f"{name}: {described(value)}" for name, value in module.named_buffers()]
    return "\n".join(layers)


def _source(thing: Any) -> str:
    """Return the source of a class or function, or nothing where it cannot be had."""
    try:
        return textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return ""


def _bytecode(code: CodeType) -> str:
    constants = [_bytecode(part) if isinstance(part, CodeType) else described(part) for part in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {constants}"


def _empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - looking is what fails
    except ValueError:
        return True
    return False
