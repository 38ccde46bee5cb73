"""How an algorithm must be written: mistakes in its class end in a sentence before a run begins."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any, ClassVar, get_origin

from palmette.errors import BadInput
from palmette.protocol.algorithm import Algorithm
from palmette.tree import Tree

# What the programs are given, after self.
_TAKES = {
    "server": ("node", "state"),
    "team": ("node", "message", "state"),
    "device": ("node", "message", "state"),
    "adapt": ("node", "parent", "state"),
    "keeps": ("node", "initial"),
    "predict": ("rows", "batch"),
}


def check_method(method: Any) -> Algorithm:
    """Return an algorithm, or refuse what is none or is written wrongly; the sentence names the class and the fix."""
    if isinstance(method, type) and issubclass(method, Algorithm):
        raise BadInput(
            f"{method.__name__} is a class; give an algorithm made from it, with its settings: {method.__name__}()"
        )
    if not isinstance(method, Algorithm):
        raise BadInput(
            f"the algorithm must be a name or an object of a class derived from pm.Algorithm, not {method!r}"
        )
    check_kind(type(method))
    size: Any = getattr(method, "batch_size", None)
    if size != "full" and not (isinstance(size, int) and size >= 1):
        given = "" if size is None else f", not {size!r}"
        raise BadInput(
            f"{_called(method)} needs the setting batch_size, a whole number of at least 1 or 'full'{given}: write "
            "`batch_size: int = 20` among its settings"
        )
    return method


def check_kind(kind: type[Algorithm]) -> None:
    """Refuse a class of algorithms that is written wrongly."""
    called = kind.__name__
    if unwritten := sorted(kind.__abstractmethods__):
        raise BadInput(f"{called} does not say what its {' and '.join(unwritten)} do: write the method {unwritten[0]}")
    name: Any = getattr(kind, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise BadInput(f'{called} has no name: write `name: ClassVar[str] = "my-method"` in it')
    for word, says in (("paper", "who described it, and where"), ("absent", "what a device left out of a round means")):
        if not isinstance(told := getattr(kind, word), str):
            raise BadInput(
                f"{called} has the {word} {told!r}, which is no text: write "
                f'`{word}: ClassVar[str] = "{says}"`, or leave it out'
            )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", kind.name):
        raise BadInput(
            f"{called} is named {kind.name!r}; use letters, digits, '.', '_' and '-', as folders are named after it"
        )
    _check_settings(kind)
    for word, takes in _TAKES.items():
        try:
            inspect.signature(getattr(kind, word)).bind("self", *takes)
        except TypeError:
            raise BadInput(
                f"{called}.{word} must take {len(takes) + 1} arguments: def {word}(self, {', '.join(takes)})"
            ) from None


def check_tree(method: Algorithm, tree: Tree) -> None:
    """Refuse a tree with teams where the algorithm has no program for them."""
    if tree.tiers > 2 and type(method).team is Algorithm.team:
        raise BadInput(
            f"{_called(method)} has no program for teams, and this tree ({tree}) has teams: write the method team, or set "
            "`flat: ClassVar[bool] = True` to run it without teams"
        )


def _check_settings(kind: type[Algorithm]) -> None:
    """Refuse settings that would not be checked, frozen and written into the run's folder."""
    called = kind.__name__
    write = f"write @pm.settings above `class {called}`, so that its settings are checked and kept with the run"
    if not dataclasses.is_dataclass(kind):
        raise BadInput(f"{called} is not decorated: {write}")
    if not kind.__dataclass_params__.frozen:
        raise BadInput(f"the settings of {called} can be changed during a run: {write}, in place of @dataclass")
    for one in kind.__mro__[: kind.__mro__.index(Algorithm)]:
        own = {name: hint for name, hint in vars(one).get("__annotations__", {}).items() if not _is_of_class(hint)}
        if own and "__dataclass_fields__" not in vars(one):
            where = called if one is kind else f"{one.__name__}, which {called} is derived from,"
            raise BadInput(
                f"{where} has the setting {next(iter(own))!r} and is not decorated: write @pm.settings above "
                f"`class {one.__name__}`, so that its settings are checked and kept with the run"
            )
        for field in dataclasses.fields(kind):
            if field.name in vars(one) and field.name not in own and "__dataclass_fields__" not in vars(one):
                raise BadInput(
                    f"{one.__name__} gives the setting {field.name!r} a new default without its type: write "
                    f"`{field.name}: TYPE = {vars(one)[field.name]!r}` and @pm.settings above the class"
                )


def _is_of_class(hint: Any) -> bool:
    """Tell whether a hint, which may still be text, is about the class and not a setting."""
    return hint.replace("typing.", "").startswith("ClassVar") if isinstance(hint, str) else get_origin(hint) is ClassVar


def _called(method: Algorithm) -> str:
    return type(method).__name__
