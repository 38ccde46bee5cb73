"""What every setting means, in a sentence: read from docstrings, shown in lists, in the docs and in errors.

The sentence of a setting stands in the docstring of its class, under ``Attributes:`` (of a function's option, under ``Args:``).
Where the paper has a letter for it, the sentence ends with ``(K in the paper)``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from palmette.errors import there_is

# Words of one line mean the same to people: a setting asked for by another word of its line is found.
_SAME = [
    line.split()
    for line in (
        "alpha lr learning_rate local_lr client_lr step_size eta_l eta",
        "lam lambda lamda lambd mu reg prox_mu",
        "local_steps local_epochs epochs e local_iterations local_iters tau kappa_1 l",
        "team_steps team_rounds edge_rounds team_epochs kappa_2 k",
        "rounds num_rounds n_rounds global_rounds communication_rounds comm_rounds global_epochs t",
        "batch_size batch batchsize bs minibatch b",
        "server_lr global_lr beta",
        "clients num_clients clients_per_round s",
        "model.l2 l2 weight_decay",
        "data.name dataset data_name",
        "model.name model_name architecture",
        "participation.devices fraction participation client_fraction frac c",
        "participation.teams team_fraction",
        "loss drop_rate dropout_rate failure_rate",
        "evaluate_every eval_every test_every eval_interval",
        "evaluate_on eval_clients test_clients fraction_evaluate",
        "engine.threads threads num_threads n_jobs",
    )
]
_LIMITS = (("gt", "above"), ("ge", "of at least"), ("lt", "below"), ("le", "at most"))
_ANY = "any value"
_LIST, _TABLE = "a list of", "one value per node name {name=value}"
_LETTER = re.compile(r"\s*\(([^()]*) in the paper\)")


def sentences(documented: type | Callable[..., Any]) -> dict[str, str]:
    """Return the sentence of every setting of a class, or option of a function, by name.

    A class has also the sentences of the classes it is derived from; its own come before theirs.
    """
    if not isinstance(documented, type):
        return _section(inspect.getdoc(documented) or "", "Args")
    found: dict[str, str] = {}
    for kind in reversed(documented.__mro__):
        found |= _section(inspect.cleandoc(vars(kind).get("__doc__") or ""), "Attributes")
    return found


def _section(text: str, heading: str) -> dict[str, str]:
    """Read ``name: sentence`` entries of a Google-style section; lines that are indented further go on."""
    found: dict[str, str] = {}
    name, inside = "", False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            inside = line == f"{heading}:"
        elif inside and (entry := re.match(r" {4}(\**\w+): (.*)", line)):
            name = entry[1]
            found[name] = entry[2].strip()
        elif inside and name and line.startswith(" " * 8):
            found[name] += " " + line.strip()
    return {name: sentence.replace("``", "") for name, sentence in found.items()}


def letter(sentence: str) -> str | None:
    """Return the letter the paper has for a setting."""
    found = _LETTER.search(sentence)
    return found[1] if found else None


def brief(sentence: str) -> str:
    """Return a sentence as a part of another: without the paper's letter, its capital and its full stop."""
    text = _LETTER.sub("", sentence).rstrip(".")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def allowed(annotation: Any) -> str:
    """Say in words which values a type allows."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _limited(parts[0], parts[1:])
    if origin is Literal:
        return " or ".join(f'"{part}"' if isinstance(part, str) else str(part) for part in parts)
    if origin in (Union, UnionType):
        told = dict.fromkeys(allowed(part) for part in parts if part is not NoneType)
        return _either([one for one in told if one != _ANY] or [_ANY])
    if origin in (tuple, list, Sequence) or annotation in (tuple, list):
        return f"{_LIST}: {allowed(parts[0])}" if parts else "a list"
    if origin is dict or annotation is dict:
        if get_origin(parts[0] if parts else None) is Annotated:  # the annotation says what the names are of
            return f"one value per name of {get_args(parts[0])[1]}: {allowed(parts[1])}"
        return f"{_TABLE}: {allowed(parts[1])}" if parts and parts[1] is not Any else "a table"
    return {int: "whole number", float: "number", str: "text", bool: "true or false"}.get(annotation, _ANY)


def _either(told: Sequence[str]) -> str:
    """Join alternatives by ``or``; a list or a table of what is an alternative itself is said in short."""
    short = {f"{_LIST}: {one}": f"{_LIST} these" for one in told} | {f"{_TABLE}: {one}": _TABLE for one in told}
    return " or ".join(dict.fromkeys(short.get(one, one) for one in told))


def _limited(kind: Any, limits: Sequence[Any]) -> str:
    """Say which values a type with limits allows, as in ``number above 0``."""
    marks = [one for limit in limits if isinstance(limit, FieldInfo) for one in limit.metadata]
    found = [(word, getattr(one, name, None)) for one in marks for name, word in _LIMITS]
    told = [f"{word} {value}" for word, value in found if value is not None and value < 2**53]  # beyond, nobody cares
    return f"{allowed(kind)} {' and '.join(told)}".strip()


def suggestion(word: str, known: Mapping[str, str]) -> str:
    """Return ``"; did you mean 'x' (what it is)?"`` for an unknown setting, or the list of what there is.

    Args:
        word: What was asked for.
        known: The sentence of every setting there is, by name.
    """
    if (meant := _meant(word, known)) is None:
        plain = [name for name in known if "." not in name]
        return there_is(plain if plain and "." not in word else known)
    about = f" ({brief(known[meant])})" if known[meant] else ""
    return f"; did you mean {meant!r}{about}?"


def _meant(word: str, known: Mapping[str, str]) -> str | None:
    """Return the setting that is meant by its paper's letter, by a usual name, or by a name that is nearly its own."""
    for name, sentence in known.items():
        if word in (letter(sentence) or "").replace(",", " ").split():
            return name
    for line in _SAME:
        if word.lower().replace("-", "_") in line:
            for name in line:
                if name in known:
                    return name
    for name in known:
        if name.rpartition(".")[2] == word:
            return name
    # Of keys in one group, what they share is left out: it would make any two of them look alike.
    group = word.rpartition(".")[0]
    bare = {name.removeprefix(f"{group}."): name for name in sorted(known) if name.startswith(f"{group}.")}
    bare, word = (bare, word.rpartition(".")[2]) if bare else ({name: name for name in sorted(known)}, word)
    return next((bare[close] for close in get_close_matches(word, bare, n=1, cutoff=0.5)), None)
