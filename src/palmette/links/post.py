"""Messages and replies on their way over a link: encoded as its codecs say, with what both ends remember of them.

What is remembered (the rest that rounding left out, or what the other side has) belongs to one child, one direction and one
part of a message. It is written down when the reply of that child enters, and only then: both ends go back together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from palmette.links.codecs import Codec, Encoded
from palmette.links.ledger import payload
from palmette.links.sparse import MASK, Sparse
from palmette.links.wire import Coded, WireError
from palmette.task.layout import Layout

Way = Literal["down", "up"]


class Memory(Protocol):
    """What the codecs of a link remember of each child."""

    def read(self, key: str, ids: Tensor, initial: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return what is remembered of some children under a key, by name; the initial rows where that is nothing yet."""

    def write(self, key: str, ids: Tensor, kept: Mapping[str, Tensor], round_: int) -> None:
        """Remember new rows of some children under a key."""


@dataclass(frozen=True, eq=False)
class Sent:
    """What was sent to, or by, some children, a line for each.

    Attributes:
        body: The message as the receiver sees it.
        lengths: For each child, the bytes it took.
        kept: What both ends remember of it, by key, if it enters.
        encoded: The parts that a codec encoded, by name.
    """

    body: Any
    lengths: Tensor
    kept: dict[str, Mapping[str, Tensor]] = field(default_factory=dict)
    encoded: dict[str, Encoded] = field(default_factory=dict)

    def on_the_wire(self) -> Any:
        """Return the message of one child as it is sent: encoded parts as bytes."""

        def packed(name: str, value: Any) -> Any:
            if name not in self.encoded:
                return value
            return Coded(self.encoded[name].blobs()[0], tuple(value.shape[1:]), value.dtype)

        return _mapped(self.body, packed)


class Post:
    """Encodes and decodes what crosses one link.

    Args:
        down: Codec of messages to children.
        up: Codec of replies.
        memory: What the codecs remember.
        layout: The model's, for codecs that treat its tensors one by one.
    """

    def __init__(self, down: Codec, up: Codec, memory: Memory, layout: Layout) -> None:
        self._codecs: dict[Way, Codec] = {"down": down, "up": up}
        self._memory, self._layout = memory, layout

    def send(self, way: Way, body: Any, ids: Tensor) -> Sent:
        """Encode a message that has one line for each of some children (or a reply with one of each)."""
        lengths = torch.zeros(len(ids), dtype=torch.int64)
        kept: dict[str, Mapping[str, Tensor]] = {}
        encoded: dict[str, Encoded] = {}

        def sent(name: str, value: Any) -> Any:
            rows = value.rows if isinstance(value, Sparse) else value
            codec = self._codec(way, value)
            if codec is None:
                lengths.add_(payload(rows))
                return rows
            key, initial = _key(way, name, rows[:0].shape[1:], rows.dtype), codec.keeps(rows[0])
            before = self._memory.read(key, ids, initial) if initial else {}
            found = codec.encode(rows, self._sizes(rows.shape[1]), before)
            lengths.add_(found.lengths)
            encoded[name] = found
            if initial:
                kept[key] = found.kept
            return found.rows

        return Sent(_mapped(body, sent), lengths, kept, encoded)

    def receive(self, way: Way, body: Any, child: Tensor, place: torch.device) -> Sent:
        """Decode what came from, or to, one child, to where the receiver has its models."""
        lengths = torch.zeros(1, dtype=torch.int64)
        kept: dict[str, Mapping[str, Tensor]] = {}
        codec = MASK if self._codecs[way].plain else self._codecs[way]

        def received(name: str, value: Any) -> Any:
            if not isinstance(value, Coded):
                if self._codec(way, value) is not None:
                    raise WireError(f"the part {name!r} of a message is not encoded as this link says ({codec})")
                lengths.add_(payload(value))
                return value.to(place) if isinstance(value, Tensor) else value
            if len(value.shape) != 1:
                raise WireError(
                    f"the part {name!r} of a message is encoded and has {len(value.shape)} dimensions, not one"
                )
            row = value.row.to(place)
            key = _key(way, name, row.shape, row.dtype)
            initial = dict.fromkeys(codec.keeps(row[:0]), row)  # takes no memory, whatever size is claimed
            before = self._memory.read(key, child, initial) if initial else {}
            rows, after = codec.decode([value.blob], row, self._sizes(row.shape[0]), before)
            lengths.add_(len(value.blob))
            if after:
                kept[key] = after
            return rows

        return Sent(_mapped(body, received), lengths, kept)

    def remember(self, sent: Sent, ids: Tensor, which: Tensor | None, round_: int) -> None:
        """Write down what both ends remember of messages to (or from) some children, of all or of some of them (bool)."""
        for key, kept in sent.kept.items():
            if which is not None:
                kept = {name: rows[which.to(rows.device)] for name, rows in kept.items()}
            self._memory.write(key, ids if which is None else ids[which], kept, round_)

    def _codec(self, way: Way, value: Any) -> Codec | None:
        """Return what encodes a part of a message; nothing for numbers, and for rows that are no models or all of them."""
        codec = self._codecs[way]
        if isinstance(value, Sparse):
            return MASK if codec.plain else codec  # the user's own choice, which may be "mask+int8"
        model = isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 2 and value.shape[1] > 1
        return codec if model and not codec.plain else None

    def _sizes(self, width: int) -> list[int]:
        return self._layout.sizes if width == self._layout.width else [width]


def _key(way: Way, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Return what a part is remembered under: one of another width or type under the same name is another part."""
    return f"{way}/{name}/{'x'.join(map(str, shape))}/{str(dtype).removeprefix('torch.')}"


def _mapped(body: Any, change: Callable[[str, Any], Any]) -> Any:
    """Return a message with every part changed; a bare one has the name ``""``."""
    if body is None:
        return None
    if isinstance(body, Mapping):
        return {name: change(name, value) for name, value in body.items()}
    return change("", body)
