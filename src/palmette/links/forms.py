"""What the parts of messages are like: a receiver that knows it refuses others before it takes memory for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from palmette.links.parts import Coded, Part, write
from palmette.links.sparse import Sparse
from palmette.values import shown

ANY = -1
"""The place of a size that depends on how many nodes there are."""

Form = tuple[str, tuple[int, ...]]
"""The type of one row and its shape; of numbers and texts what they are, and no shape."""

Forms = dict[str, list[Form]]
"""By the name of a part, what forms it may have."""


def forms_of(body: Any) -> dict[str, Form]:
    """Return the form of every part of a message that has one line."""
    named: Mapping[str, Any] = body if isinstance(body, Mapping) else {} if body is None else {"": body}
    return {name: _form(name, value) for name, value in named.items()}


def _form(name: str, value: Any) -> Form:
    if isinstance(value, Coded):
        return str(value.dtype).removeprefix("torch."), value.shape
    if isinstance(value, Tensor | Sparse):
        rows = value.rows if isinstance(value, Sparse) else value
        return str(rows.dtype).removeprefix("torch."), tuple(rows.shape[1:])
    return write(name, value)[0].kind, ()


def strange(part: Part, forms: Mapping[str, Iterable[Form]]) -> str:
    """Say why rows of a message cannot be those that are known; an empty text where they can, or their name is new.

    Numbers and texts are not looked at: they are as long as they are in the message.

    Args:
        part: What the header of the message says of it.
        forms: What is known.
    """
    known = forms.get(part.name, ())
    if not known or part.kind not in ("rows", "sparse", "coded"):
        return ""
    own = (part.type, part.shape if part.kind == "coded" else part.shape[1:])
    single = part.kind == "coded" or part.shape[:1] == (1,)
    if single and any(_fits(own, form) for form in known):
        return ""
    return (
        f"the part {shown(part.name)} of a message is {_told(own) if single else 'no single row'}; here it is "
        f"{' or '.join(map(_told, known))}"
    )


def _fits(own: Form, known: Form) -> bool:
    return (
        own[0] == known[0]
        and len(own[1]) == len(known[1])
        and all(size in (here, ANY) for here, size in zip(own[1], known[1], strict=True))
    )


def _told(form: Form) -> str:
    shape = "x".join("?" if size == ANY else str(size) for size in form[1])
    return f"{form[0]}[{shape}]" if shape else form[0]


def merged(one: Forms, two: Forms) -> Forms:
    """Return what both of two rehearsals on trees of different widths allow: sizes in which they differ are free."""
    found: Forms = {}
    for name in dict.fromkeys([*one, *two]):
        pairs = list(zip(one.get(name, []), two.get(name, []), strict=False))
        if len(one.get(name, [])) == len(two.get(name, [])) and all(_akin(*pair) for pair in pairs):
            forms = [
                (kind, tuple(s if s == t else ANY for s, t in zip(a, b, strict=True))) for (kind, a), (_, b) in pairs
            ]
        else:
            forms = [*one.get(name, []), *two.get(name, [])]
        found[name] = list(dict.fromkeys(forms))
    return found


def _akin(one: Form, two: Form) -> bool:
    return one[0] == two[0] and len(one[1]) == len(two[1])


def odd_ones(bodies: Mapping[int, Any]) -> list[int]:
    """Return the children whose replies are not like most: they could not be put together with the others'.

    Children that say nothing are like all others.
    """
    forms = {child: frozenset(forms_of(body).items()) for child, body in bodies.items() if body is not None}
    if len(set(forms.values())) < 2:
        return []
    ((usual, _),) = Counter(forms.values()).most_common(1)
    return [child for child, form in forms.items() if form != usual]
