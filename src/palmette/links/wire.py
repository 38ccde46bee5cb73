"""Messages as bytes, read by a receiver that trusts nobody.

A message is, one after the other: five bytes that name the format and its version; a checksum of the header; the length of the
header; the header, which is JSON: the address, name, kind, type, shape and length of every part of the body, and a checksum of
their bytes; and these bytes. Everything is checked before memory is taken for it, and whatever is wrong raises `WireError`. The
checksums find damage; they do not say who wrote a message. A body that goes to many is written and summed up once (`pack`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, NoReturn

from palmette.errors import WireError as WireError
from palmette.links import parts
from palmette.links.forms import Forms, strange
from palmette.links.parts import Coded as Coded
from palmette.links.parts import Part, whole
from palmette.values import shown

LIMIT = 1 << 30
"""How many bytes the body of a message may take when it is decoded, unless the receiver says otherwise."""

KINDS = ("hello", "ask", "reply", "evaluate", "scores", "error", "cancel", "end", "ended")
_LEAST = {
    **{"round": 0, "rounds": 0, "stage": 0, "turn": 0, "base": -1, "version": -1},
    **{"time": 0, "within": 0, "steps": 0, "grown": 0},
}
_ANY: Mapping[str, Forms] = {}
_DEEPEST, _KEPT = 16, 64  # numbers in a path, and states that may be named
_HEAD = b"PLMT\3"  # the format and its version
_CHECKSUM, _LENGTH = 16, 4
_START = len(_HEAD) + _CHECKSUM + _LENGTH
_HEADER = 1 << 18  # bytes of the longest header, some thousand parts


@dataclass(frozen=True, eq=False, kw_only=True)
class Envelope:
    """A message or reply with the address that makes it idempotent. One that could not be sent cannot be made.

    Attributes:
        kind: ``"ask"`` and its ``"reply"``; ``"evaluate"`` and the ``"scores"``; ``"end"`` and ``"ended"``; ``"error"`` in
            place of a reply; ``"cancel"`` of an ask that nobody waits for any more; ``"hello"`` of a child that is there.
        round: Round of the run.
        rounds: Rounds the run has in all.
        stage: Stage of the run, and ...
        turn: ... how many rounds of it came before.
        path: Numbers of the exchanges that the message is part of, from the server's down to the sending parent's; 1 to 16.
        starts: For each of these nodes, how often it had been started: an exchange that is done again has another address.
        base: Of an ask: from which of its own states the child goes on; -1 for none.
        keep: Of an ask: further states of the child that may still be named; at most 64.
        version: Of a reply: the state that the child has reached; -1 for none.
        time: Virtual time in nanoseconds.
        within: Of an ask: milliseconds after which nobody waits for a reply any more; 0 for no limit.
        steps: Gradient steps that were taken for a reply.
        grown: How many devices were added below the receiver since the training began.
        body: Rows with one line (plain, `Sparse`, or `Coded`), or a mapping of names to such rows, numbers and texts, or
            ``None``.
    """

    kind: str = "ask"
    round: int = 0
    rounds: int = 0
    stage: int = 0
    turn: int = 0
    path: tuple[int, ...] = (0,)
    starts: tuple[int, ...] = (0,)
    base: int = -1
    keep: tuple[int, ...] = ()
    version: int = -1
    time: int = 0
    within: int = 0
    steps: int = 0
    grown: int = 0
    body: Any = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise WireError(f"the kind of a message must be one of {', '.join(KINDS)}, not {shown(self.kind)}")
        for name, least in _LEAST.items():
            whole(getattr(self, name), least, f"{name} of a message")
        for name, fewest, most in (("path", 1, _DEEPEST), ("starts", 1, _DEEPEST), ("keep", 0, _KEPT)):
            numbers = getattr(self, name)
            if not isinstance(numbers, tuple) or not fewest <= len(numbers) <= most:
                raise WireError(f"{name} of a message must have {fewest} to {most} numbers, not {shown(numbers)}")
            for number in numbers:
                whole(number, 0, f"every number in {name} of a message")
        if len(self.starts) != len(self.path):
            raise WireError(f"a message has {len(self.path)} numbers in its path and {len(self.starts)} starts")

    @property
    def address(self) -> tuple[int, ...]:
        """What the message is about, as numbers that grow from ask to ask."""
        first, *later = zip(self.starts, self.path, strict=True)
        return (first[0], self.round, first[1], *(number for pair in later for number in pair))

    @property
    def exchange(self) -> int:
        """Number of the sending parent's exchange within the round."""
        return self.path[-1]


_FIELDS = ("kind", *_LEAST, "path", "starts", "keep")


@dataclass(frozen=True)
class Packed:
    """The body of a message as bytes.

    Attributes:
        told: What the header says of it.
        blob: Its bytes.
    """

    told: Mapping[str, Any]
    blob: bytes


def pack(body: Any) -> Packed:
    """Turn the body of a message into bytes, once for all who are sent it."""
    named: Mapping[str, Any] = body if isinstance(body, Mapping) else {} if body is None else {"": body}
    written = [parts.write(name, value) for name, value in named.items()]
    kind = "none" if body is None else "mapping" if isinstance(body, Mapping) else "bare"
    _bare(kind, [part for part, _ in written])
    blob = b"".join(blob for _, blob in written) if len(written) != 1 else written[0][1]
    return Packed({"body": kind, "parts": [part.told() for part, _ in written], "sum": _checksum(blob).hex()}, blob)


def encode(envelope: Envelope, packed: Packed | None = None) -> bytes:
    """Turn an envelope into bytes.

    Args:
        envelope: The envelope.
        packed: Its body, where that was packed already.
    """
    packed = pack(envelope.body) if packed is None else packed
    header = {name: getattr(envelope, name) for name in _FIELDS} | dict(packed.told)
    text = json.dumps(header, separators=(",", ":")).encode()
    if len(text) > _HEADER:
        raise WireError(f"the header of a message has {len(text)} bytes; it may have {_HEADER}: send fewer parts")
    opening = len(text).to_bytes(_LENGTH, "little") + text
    return b"".join((_HEAD, _checksum(opening), opening, packed.blob))


def decode(data: bytes, *, limit: int = LIMIT, forms: Mapping[str, Forms] = _ANY) -> Envelope:
    """Turn bytes back into an envelope.

    Args:
        data: The bytes, from anybody.
        limit: How many bytes the body may take when it is decoded.
        forms: What is known of the parts of a message by its kind; rows of another type or shape are refused.

    Raises:
        WireError: The bytes are not what `encode` makes.
    """
    header, view = _opened(data)
    told = header.pop("parts", None)
    if not isinstance(told, list):
        raise WireError(f"a message has no list of parts but {shown(told)}")
    listed = [Part.checked(one) for one in told]
    kind, total = header.pop("body", None), header.pop("sum", None)
    _bare(kind, listed)
    if len({part.name for part in listed}) < len(listed):
        raise WireError("a message has two parts of one name")
    if sum(part.length for part in listed) != len(view):
        raise WireError(f"a message has {len(view)} bytes of parts, which is not what its header says")
    if (size := sum(part.decoded for part in listed)) > limit:
        raise WireError(f"a message would take {shown(size)} bytes when decoded; at most {limit} are allowed")
    known = forms.get(header["kind"], {}) if isinstance(header.get("kind"), str) else {}
    if why := next((why for part in listed if (why := strange(part, known))), ""):
        raise WireError(why)
    if set(header) != set(_FIELDS):
        raise WireError(f"the header of a message has {shown(sorted(header))} and not {', '.join(sorted(_FIELDS))}")
    lists = {
        name: tuple(header[name]) if isinstance(header[name], list) else None for name in ("path", "starts", "keep")
    }
    envelope = Envelope(**{**header, **lists})  # checks the address before the body is read
    if total != _checksum(view).hex():
        raise WireError("a message was damaged on its way: the checksum of its body is wrong")
    values = {}
    for part in listed:
        values[part.name], view = parts.read(part, view[: part.length]), view[part.length :]
    return replace(envelope, body={"none": None, "bare": values.get(""), "mapping": values}[kind])


def _bare(kind: Any, listed: list[Part]) -> None:
    """Refuse a body whose kind does not fit its parts."""
    if kind not in ("none", "bare", "mapping"):
        raise WireError(f"the body of a message must be 'none', 'bare' or 'mapping', not {shown(kind)}")
    if kind == "none" and listed:
        raise WireError("a message without a body has parts")
    if kind == "bare" and [part.name for part in listed if part.kind in ("rows", "sparse", "coded")] != [""]:
        raise WireError("a bare body must be rows")


def _checksum(rest: bytes | memoryview) -> bytes:
    return blake2b(rest, digest_size=_CHECKSUM).digest()


def _opened(data: bytes) -> tuple[dict[str, Any], memoryview]:
    """Return the header of a message and the bytes after it."""
    view = memoryview(data)
    if len(view) < _START or not data.startswith(_HEAD[:-1]):
        raise WireError(f"{len(view)} bytes are not a message of Palmette: they begin with {shown(bytes(view[:8]))}")
    if not data.startswith(_HEAD):
        raise WireError(f"a message has version {data[len(_HEAD) - 1]} of the format; this Palmette reads {_HEAD[-1]}")
    end = len(_HEAD) + _CHECKSUM
    size = int.from_bytes(view[end:_START], "little")
    if size > min(_HEADER, len(view) - _START):
        raise WireError(f"a message of {len(view)} bytes says that its header has {size}")
    opening = view[end : _START + size]
    if _checksum(opening) != view[len(_HEAD) : end]:
        raise WireError("a message was damaged on its way: the checksum of its header is wrong")
    return _header(bytes(opening[_LENGTH:])), view[_START + size :]


def _header(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(
            text.decode(),
            object_pairs_hook=_unique,
            parse_int=_short,
            parse_float=_refuse,
            parse_constant=_refuse,
        )
    except (ValueError, RecursionError) as error:
        raise WireError(f"the header of a message cannot be read: {shown(str(error))}") from error
    if not isinstance(header, dict):
        raise WireError(f"the header of a message is {shown(header)}")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise WireError("the header of a message has a name twice")
    return found


def _short(text: str) -> int:
    return int(text) if len(text) < 21 else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise WireError(f"the header of a message has the number {shown(text)}, which no header has")
