"""Models of a user's own, by import path or by file: a function or a class that makes the module, or a module.

Palmette calls ``make(shape=..., outputs=..., seed=..., words=...)`` with those of the four that the function takes, and with
the settings that the user gave. While it runs, torch's random numbers are those after ``torch.manual_seed(seed)``, so that a
run can be repeated; afterwards they are as before.
"""

from __future__ import annotations

import copy
import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from inspect import Parameter
from pathlib import Path
from typing import Any

import torch
from torch import nn

from palmette.errors import BadInput, nearest
from palmette.files import is_file, parts_of
from palmette.imports import load_names
from palmette.values import one_line, shown

GIVEN = ("shape", "outputs", "seed", "words")
"""What a function or class is given where it takes it."""


def is_path(name: str) -> bool:
    """Tell whether a model's name is an import path, ``my_module:make``, or a file, ``mine.py:make``."""
    return ":" in name or is_file(name)


def whole_path(path: str) -> str:
    """Return the path of a model that means the same in every folder: of a file, from the root of the disk."""
    return ":".join(map(str, parts_of(path))) if is_file(path) else path


def title(path: str) -> str:
    """Return what a model is called in a table or a sentence: of a file, its name without the folder."""
    return Path(path).name if is_file(path) else path


def find(path: str) -> Any:
    """Return what makes a model, or the module itself.

    Args:
        path: ``module:name``, or ``file.py:name``. Modules of the current folder are found too.
    """
    with _random_numbers(0):  # a module that is made while its file is loaded is the same every time
        found, name, holder = load_names(path, "the model", "make")
    own = {word for word, one in found.items() if _makes_modules(one, str(found.get("__name__")))}
    if not name:
        example = sorted(own)[0] if own else "make"
        raise BadInput(f"say which function or class of {holder} makes the model, as in {holder}:{example}")
    if name not in found:
        there = nearest(name, own) if own else "; it has no function and no module"
        raise BadInput(f"{holder} has no {name!r}{there}")
    if not callable(found[name]):
        raise BadInput(
            f"{title(path)} is {shown(found[name])}; it must be a function that returns a torch.nn.Module, a class of modules "
            "or a module"
        )
    return found[name]


def settings(path: str, maker: Any) -> dict[str, Parameter]:
    """Return the settings that a function or class takes besides what it is given; ``**`` among them if it takes any."""
    if isinstance(maker, nn.Module):
        return {}
    try:
        known = inspect.signature(maker).parameters
    except (TypeError, ValueError):
        raise BadInput(
            f"{title(path)} has no arguments that Python can read; wrap it in a function of your own"
        ) from None
    return {
        "**" if one.kind is Parameter.VAR_KEYWORD else name: one
        for name, one in known.items()
        if one.kind is not Parameter.VAR_POSITIONAL and name not in GIVEN
    }


def make(path: str, given: Mapping[str, Any], options: Mapping[str, Any]) -> nn.Module:
    """Make the module, or refuse with one sentence what makes none.

    Args:
        path: ``module:name``, or ``file.py:name``.
        given: What it is given where it takes it; see `GIVEN`.
        options: Settings that the user gave.
    """
    maker, what = find(path), title(path)
    if isinstance(maker, nn.Module):
        if options:
            raise BadInput(f"{what} is a module, which takes no settings, but model.{next(iter(options))} was given")
        return copy.deepcopy(maker)
    known = settings(path, maker)
    for name in options if "**" not in known else ():
        if name not in known:
            near = nearest(name, known) if known else "; it has no settings"
            raise BadInput(f"{what} takes no setting {name!r}{near}")
    for name, one in known.items():
        if one.default is Parameter.empty and name != "**" and name not in options:
            raise BadInput(
                f"{what} needs {name!r}, which it is not given: Palmette gives shape (of one sample), outputs (the number of "
                f"classes, or 1), seed and words (of text) to what takes them by these names; give anything else by --set "
                f"model.{name}=..."
            )
    takes = inspect.signature(maker).parameters
    with _random_numbers(given["seed"]), redirect_stdout(sys.stderr):  # a command's standard output is its result
        try:
            made = maker(**{name: value for name, value in given.items() if name in takes}, **options)
        except (Exception, SystemExit) as error:  # whatever a function of somebody else raises
            raise BadInput(f"{what} makes no model for samples of shape {given['shape']}: {_told(error)}") from error
    if not isinstance(made, nn.Module):
        raise BadInput(f"{what} returned {shown(made)}; it must return a torch.nn.Module")
    return made


@contextmanager
def _random_numbers(seed: int) -> Iterator[None]:
    """Give torch's layers the random numbers of a seed, and leave them as they were before."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _makes_modules(one: Any, home: str) -> bool:
    """Tell whether a thing of a file is one of its own that may make a module."""
    if isinstance(one, nn.Module):
        return True
    return (
        inspect.isfunction(one) or (isinstance(one, type) and issubclass(one, nn.Module))
    ) and one.__module__ == home


def _told(error: BaseException) -> str:
    """Say what an error is and in which line of the user's it arose."""
    steps = traceback.extract_tb(error.__traceback__)
    own = [step for step in steps[1:] if "site-packages" not in step.filename]
    where = f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""
    return one_line(f"{type(error).__name__}: {error}") + where
