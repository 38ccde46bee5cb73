"""What an object is made of, as text: its code, its constants, its layers; two objects that compute the same have one text.

It is used to tell whether a model, a loss or an algorithm is the one a run began with. Classes and functions of Python,
palmette, torch and numpy are known by their name; those of other installed packages by their source; those of a user by their
source and all that they read from outside: values, functions and classes, also of other files of the user.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import os
import sys
import sysconfig
import textwrap
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from palmette.runs.tensors import as_bytes

_KNOWN = ("palmette", "torch", "numpy")  # by their name, as are the modules of Python itself
_PLAIN: tuple[Any, ...] = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    bytearray,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
)
_LISTS = (list, tuple, deque)
# What torch keeps in every module, and its recurrent layers' second lists of their parameters.
_TORCHS = {*vars(nn.Module()), "_flat_weights", "_flat_weight_refs"}
_BLOCK = 1 << 24  # bytes of a tensor that are hashed at once
_LONG = 2000  # letters of a text that stand for themselves; of a longer one its digest does
_DEEP = 100  # objects within one another that are looked into


def described(value: Any) -> str:
    """Return a text that two objects share when they are made of the same code and the same values."""
    return _Writer().text(value)


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


class _Writer:
    """Writes one description; what is met again is not looked through again."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}  # with the object, so that its number stays its own
        self._path: list[int] = []  # the objects inside which we are, so that circles come to an end

    def text(self, value: Any) -> str:
        """Describe any object."""
        if type(value) in _PLAIN:
            return _short(repr(value))
        number = id(value)
        if number in self._known:
            return self._known[number][1]
        if number in self._path:
            return f"(itself, {len(self._path) - self._path.index(number)} up)"
        if len(self._path) >= _DEEP:
            return f"(a {type(value).__qualname__} deep inside)"
        self._path.append(number)
        text = _short(self._whole(value))
        self._path.pop()
        self._known[number] = value, text
        return text

    def _whole(self, value: Any) -> str:
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, partial):
            return f"partial({self.text((value.func, value.args, value.keywords))})"
        if isinstance(value, MethodType):
            return f"{self.text(value.__func__)} of {self.text(value.__self__)}"
        if isinstance(value, staticmethod | classmethod):
            return f"{type(value).__name__} {self.text(value.__func__)}"
        if isinstance(value, property):
            return f"property {self.text((value.fget, value.fset, value.fdel))}"
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, BuiltinFunctionType):
            owner = value.__self__
            of = "" if owner is None or isinstance(owner, ModuleType | type) else f" of {self.text(owner)}"
            return f"{value.__module__}.{value.__qualname__}{of}"
        if isinstance(value, nn.Module):
            return self._module(value)
        content = self._content(value)
        if content is None:
            return self._object(value)
        # Of a user's own kind of list, dict or number, what it does and its attributes count as well.
        return content if _place(type(value).__module__) != "own" else f"{self._object(value)} {content}"

    def _content(self, value: Any) -> str | None:
        """Describe the numbers or the parts of what consists of them; ``None`` for any other object."""
        if isinstance(value, Tensor):
            return _tensor(value)
        if isinstance(value, np.ndarray) and value.dtype.hasobject:
            return f"array {value.shape} {self.text(value.tolist())}"
        if isinstance(value, np.ndarray):
            return f"array {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
        if value is os.environ:
            return "os.environ"  # another shell is no other run
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{self.text(key)}: {self.text(part)}" for key, part in value.items()) + "}"
        if isinstance(value, _LISTS):
            return "[" + ", ".join(map(self.text, value)) + "]"
        if isinstance(value, set | frozenset):
            return "{" + ", ".join(sorted(map(self.text, value))) + "}"
        for kind in _PLAIN:
            if isinstance(value, kind):
                return f"{type(value).__qualname__} {kind.__repr__(value)}"
        return None

    def _object(self, value: Any) -> str:
        """Describe an object by its class and its attributes; one of Python's own by what it shows of itself."""
        place = _place(type(value).__module__)
        state = {**getattr(value, "__dict__", {}), **dict(_slots(value))}
        if (place == "Python" and not isinstance(value, SimpleNamespace)) or (place != "own" and not state):
            shown = repr(value)
            if " at 0x" not in shown:  # where it lies in memory changes from run to run
                return f"{type(value).__qualname__} {shown}"
        return f"{self.text(type(value))} {self.text(state)}"

    def _class(self, kind: type) -> str:
        """Name a class; one of the user's by source and members of all classes it comes from that are the user's, too."""
        own = [base for base in kind.__mro__ if _place(base.__module__) not in ("Python", "known")]
        if kind not in own:
            return f"{kind.__module__}.{kind.__qualname__}"
        return " from ".join(f"{base.__qualname__} {_source(base)} {self._members(base)}" for base in own)

    def _members(self, kind: type) -> str:
        """Describe what is defined in a class: its methods with all they read, and values that its source only names."""
        if _place(kind.__module__) == "installed":
            return ""
        parts = {
            name: part
            for name, part in vars(kind).items()
            if not (name.startswith("__") and name.endswith("__")) or isinstance(part, FunctionType)
        }
        return self.text(parts)

    def _function(self, function: FunctionType) -> str:
        """Describe a function by its source, the values it carries along and those it reads from outside."""
        # A wrapper bears the name of what it wraps; the names it reads are of the file that it was written in.
        place = _place(str(function.__globals__.get("__name__")))
        path = f"{function.__module__}.{function.__qualname__}"
        if place in ("Python", "known") and "<" not in path and _place(str(function.__module__)) == place:
            return path
        code = function.__code__
        cells = [cell.cell_contents for cell in function.__closure__ or () if not _empty(cell)]
        text = _source(code) or _bytecode(code)
        if function.__name__ == "<lambda>":  # several may stand in one line
            text += f" ends in column {max(column or 0 for *_, column in code.co_positions())}"
        outside = _outside(code, function.__globals__) if place == "own" else {}
        carried = (function.__defaults__, function.__kwdefaults__, cells, vars(function), outside)
        return f"{function.__name__} {text} {self.text(carried)}"

    def _module(self, module: nn.Module) -> str:
        """Describe a torch module: its layers with their settings and hooks, its parameters' shapes, its buffers' values."""
        layers = []
        for name, layer in module.named_modules():
            settings = {key: value for key, value in vars(layer).items() if key not in _TORCHS}
            layers.append(f"{name}: {self.text(type(layer))} {self.text(settings)}")
            # A hook's key is a number that counts all hooks there ever were.
            layers += [f"{key} {self.text(list(hooks.values()))}" for key, hooks in _hooks(layer) if hooks]
        layers += [f"{n}: {tuple(p.shape)} {p.dtype} {p.requires_grad}" for n, p in module.named_parameters()]
        layers += [f"{name}: {self.text(value)}" for name, value in module.named_buffers()]
        return "\n".join(layers)


def _place(module: str) -> str:
    """Return where a module comes from: ``"Python"``, ``"known"`` packages, others that are ``"installed"``, or ``"own"``."""
    top = module.split(".")[0]
    if top in _KNOWN:
        return "known"
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return "Python" if top in sys.stdlib_module_names else "own"
    if "site-packages" in file or "dist-packages" in file:
        return "installed"
    return "Python" if file.startswith(sysconfig.get_path("stdlib")) else "own"


def _outside(code: CodeType, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the globals that a function reads, also in functions within it; of a user's modules, what it may read there."""
    codes = list(_codes(code))
    read = {
        step.argval
        for part in codes
        for step in dis.get_instructions(part)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in names
    }
    found: dict[str, Any] = {name: names[name] for name in sorted(read)}
    mentioned = sorted({word for part in codes for word in part.co_names})
    for name, value in list(found.items()):
        if isinstance(value, ModuleType) and _place(value.__name__) == "own":
            found |= {f"{name}.{word}": vars(value)[word] for word in mentioned if word in vars(value)}
    return found


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of all functions within it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


def _slots(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that lie in slots and are set."""
    for base in type(value).__mro__:
        for name, slot in vars(base).items() if "__slots__" in vars(base) else ():
            if isinstance(slot, MemberDescriptorType):
                try:
                    yield name, slot.__get__(value)
                except AttributeError:
                    continue  # never set


def _hooks(layer: nn.Module) -> Iterator[tuple[str, Mapping[int, Any]]]:
    """Yield the hooks of a layer that take part in computing."""
    for key, value in vars(layer).items():
        if key in _TORCHS and "hook" in key and "state_dict" not in key and isinstance(value, Mapping):
            yield key, value


def _tensor(value: Tensor) -> str:
    if value.is_meta:
        return f"tensor without numbers {value.dtype} {tuple(value.shape)}"
    dense = value.detach() if value.layout == torch.strided else value.detach().to_dense()
    return f"tensor {digest_of(dense.resolve_conj().resolve_neg())}"


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"(digest {digest_of(text)})"


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
