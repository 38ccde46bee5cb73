"""The errors a user can meet, each with what to do about it in its text."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

from palmette.guards.visible import visible

_LONG, _END = 2800, 600  # letters of a message, and of its end where its middle is left out
_DOUBT = 0.1  # a name that is less like a word than another, by so much, is not meant


class PalmetteError(Exception):
    """The base of all errors that Palmette raises on purpose."""

    def __str__(self) -> str:
        """Return the message; it may repeat names of anybody's, so what would act on a terminal is shown."""
        return _readable(super().__str__())


class PalmetteWarning(UserWarning):
    """What Palmette warns of: the training goes on, and something in it may not be as expected."""

    def __str__(self) -> str:
        """Return the message, as that of a `PalmetteError`."""
        return _readable(super().__str__())


class BadInput(PalmetteError, ValueError):  # noqa: N818 - reads as what it is
    """Something that the user gave (a value, a file, a combination of settings) cannot be used."""


class Diverged(PalmetteError, ArithmeticError):  # noqa: N818
    """The training diverged: a model became infinite or NaN. The message says which setting to lower."""


class ProtocolError(PalmetteError, RuntimeError):
    """A method of an algorithm broke the rules of `palmette.protocol`, for instance by returning the wrong shape."""


class WireError(PalmetteError):
    """Bytes cannot be a message (damaged, cut off, made up, of another version), or something cannot be sent as one."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for a mistyped word, or the list of what there is."""
    names = sorted(known)
    close = get_close_matches(word, names, n=1, cutoff=0.5) or [
        one for one in names if one.casefold() == word.casefold()
    ]
    return f"; did you mean {close[0]!r}?" if close else there_is(names)


def nearest_few(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x', 'y' or 'z'?"`` for a mistyped word among many; a full stop where nothing is near."""
    names = {name.casefold(): name for name in known}
    meant = word.casefold().replace("_", "-")
    alike = {one: SequenceMatcher(None, one, meant).ratio() for one in get_close_matches(meant, names, n=3)}
    doubt = 0 if meant in names else _DOUBT
    close = [repr(names[one]) for one, ratio in alike.items() if ratio >= max(alike.values()) - doubt]
    *others, last = close or [""]
    return f"; did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if last else "."


def there_is(known: Iterable[str]) -> str:
    """Return ``"; there is a, b, c"``, of many names the first."""
    names = sorted(known)
    return f"; there is {', '.join(names[:20])}{f' and {len(names) - 20} more' if len(names) > 20 else ''}"


def _readable(text: str) -> str:
    """Return a message without what would act on a terminal; a name or a cell may be a million letters long."""
    text = visible(text, lines=True)
    return text if len(text) <= _LONG else f"{text[: _LONG - _END - 5]} ... {text[-_END:]}"
