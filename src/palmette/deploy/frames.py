"""Messages cut into pieces for one stream, and put together again by a receiver that trusts nobody.

A frame is a header and a piece. The header has the kind, whether the piece is the last, a number that joins a call and its
answer, and the length of the whole message, which is checked before memory is taken. Pieces of one message follow one another;
only a message of another kind may come between them, so that a call need not wait for a large message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum

from palmette.errors import WireError

PIECE = 1 << 20
"""Bytes of a piece that we send; chosen by measurement, see ``proofs/transport.py``."""
LARGEST, LEAST = 1 << 22, 1 << 16  # pieces that we take; tiny ones would cost more memory than they carry
HEADER = struct.Struct("<BBQQ")
FRAME = LARGEST + HEADER.size


class Kind(IntEnum):
    """What a message is."""

    MAIL = 0  # between the owners of both ends
    CALL = 1  # from a parent, answered at once
    ANSWER = 2  # to a call
    NOTE = 3  # from a child, without an answer


class OversizedError(WireError):
    """A message is larger than the receiver allows."""


def cut(kind: Kind, number: int, data: bytes) -> Iterator[bytes]:
    """Yield the frames of a message, each made when it is wanted.

    Args:
        kind: What the message is.
        number: Number of the call.
        data: The message.
    """
    view, size = memoryview(data), len(data)
    for start in range(0, max(size, 1), PIECE):
        end = start + PIECE
        yield b"".join((HEADER.pack(kind, end >= size, number, size), view[start:end]))


class Assembler:
    """Puts frames together again."""

    def __init__(self, limit: int, kinds: frozenset[Kind]) -> None:
        """Begin with nothing.

        Args:
            limit: Bytes of the largest message.
            kinds: Which kinds this end is sent.
        """
        self._limit, self._kinds = limit, kinds
        self._begun: dict[
            int, tuple[int, int, int, list[memoryview]]
        ] = {}  # by kind: number, length, bytes so far, pieces

    def add(self, frame: bytes) -> tuple[Kind, int, bytes] | None:
        """Take one frame and return the message that it completes: kind, number and bytes.

        Raises:
            WireError: The frame cannot be one of ours; `OversizedError` if the message would be too large.
        """
        if not HEADER.size <= len(frame) <= FRAME:
            raise WireError(f"{len(frame)} bytes are not a piece of a message")
        kind, last, number, total = HEADER.unpack_from(frame)
        if kind not in self._kinds or last > 1:
            raise WireError(f"a piece of a message has the kind {kind} and the mark {last}, which nobody sends here")
        if total > self._limit:
            raise OversizedError(f"a message of {total} bytes was announced; at most {self._limit} are allowed")
        piece = memoryview(frame)[HEADER.size :]
        begun = self._begun.pop(kind, (number, total, 0, []))
        so_far = begun[2] + len(piece)
        if begun[:2] != (number, total) or so_far > total or bool(last) != (so_far == total):
            raise WireError(f"a piece does not continue its message: {so_far} bytes of {total}")
        if not last and len(piece) < LEAST:
            raise WireError(f"a piece has {len(piece)} bytes; all but the last have at least {LEAST}")
        begun[3].append(piece)
        if last:
            return Kind(kind), number, b"".join(begun[3])
        self._begun[kind] = (number, total, so_far, begun[3])
        return None
