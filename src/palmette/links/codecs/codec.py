"""A codec: how the rows of a message are turned into bytes on a link, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from palmette.errors import BadInput, WireError, nearest_few
from palmette.links.codecs import places
from palmette.links.codecs.numbers import FORMATS, OWN, Written, dtype_of, read, write
from palmette.links.codecs.payload import Form
from palmette.values import shown

_NONE = ("none", "plain")
_WITHOUT = "int8 without feedback"
_WORDS = (*_NONE, *FORMATS, _WITHOUT, "top 1%", "mask", "delta", "zstd")
_WAYS = (
    "Write none, or some of these joined by '+', as in 'delta+int8' or 'bfloat16+zstd': one of float32, float16, bfloat16, "
    "int8 or 'int8 without feedback'; one of 'top 1%' (or another share) or mask; delta; zstd"
)
_LEAST = 0.0001  # percent; below it a number's text has an exponent


@dataclass(frozen=True, eq=False)
class Encoded:
    """Rows as a codec sends them.

    Attributes:
        rows: What the receiver will have, bit for bit. It may share memory with the rows that were given and with ``kept``.
        kept: What is kept from now on, a row for each row that was sent.
        lengths: How many bytes each row takes (int64, on CPU).
    """

    rows: Tensor
    kept: dict[str, Tensor]
    lengths: Tensor
    _make: Callable[[], list[bytes]] = field(repr=False)

    def blobs(self) -> list[bytes]:
        """Return the bytes of each row."""
        return self._make()


@dataclass(frozen=True)
class Codec:
    """How rows are turned into bytes on a link, and back.

    A codec does these things, in this order, each only if it is set:

    1. ``delta``: takes the difference to the reference, which is what the receiver has of the last message. Both ends keep it.
    2. ``feedback``: adds what rounding left out of the last message (the residual). The sender keeps it.
    3. ``top``: leaves only the entries with the largest absolute values.
    4. ``numbers``: writes the numbers in a format; ``int8`` has a scale for each tensor of the model.
    5. ``mask``: leaves out the entries that are zero. A negative zero arrives as zero; all else arrives as it is.
    6. ``zstd``: compresses the bytes.

    What is not finite arrives as something that is not finite, so that a divergence is seen: a number as itself where the
    format has it, a number too large for its format as infinite, and with int8 every entry of its tensor as NaN. Other
    tensors and other rows are as they would be without it.

    Attributes:
        numbers: ``"float32"``, ``"float16"``, ``"bfloat16"``, ``"int8"``, or ``"own"`` for the type that rows have.
        feedback: Whether the residual is added to the next message; only with int8, and not with delta, whose reference
            carries what was left out.
        top: How many percent of the entries are sent, at least one entry. It sets ``delta``: of a model itself the rest would
            be lost.
        mask: Whether zeros are left out.
        delta: Whether differences are sent.
        zstd: Whether the bytes are compressed. How many are left depends on the version of the library.
    """

    numbers: Literal["own", "float32", "float16", "bfloat16", "int8"] = "own"
    feedback: bool = True
    top: float | None = None
    mask: bool = False
    delta: bool = False
    zstd: bool = False

    def __post_init__(self) -> None:
        if self.numbers != OWN and self.numbers not in FORMATS:
            raise BadInput(f"a codec's numbers cannot be {shown(self.numbers)}; there is {OWN}, {', '.join(FORMATS)}")
        if self.top is not None and not _LEAST <= self.top <= 100:
            raise BadInput(f"codec: 'top K%' needs a share from {_LEAST} % to 100 %, not {shown(self.top)}")
        if self.top is not None and self.mask:
            raise BadInput("codec: 'top' says itself which entries are sent; leave out 'mask'")
        object.__setattr__(self, "delta", self.delta or self.top is not None)
        object.__setattr__(self, "feedback", self.feedback and self.numbers == "int8" and not self.delta)

    @staticmethod
    def parse(what: Any) -> Codec:
        """Read a codec as a user writes it: words joined by ``+`` in any order, such as ``"delta+int8"``."""
        if isinstance(what, Codec):
            return what
        if not isinstance(what, str):
            raise BadInput(f"a codec must be a text, not {shown(what)}. {_WAYS}")
        words = [" ".join(word.split()).lower() for word in what.split("+")]
        if len(words) == 1 and words[0] in _NONE:
            return Codec()
        found: dict[str, Any] = {}
        for word in words:
            for name, value in _meaning(word, what).items():
                if name in found:
                    raise BadInput(f"codec {shown(what)}: {word!r} comes after another word of its kind. {_WAYS}")
                found[name] = value
        return Codec(**found)

    def __str__(self) -> str:
        words = ["delta"] if self.delta else []
        words += [] if self.top is None else [f"top {repr(self.top).removesuffix('.0')}%"]
        words += ["mask"] if self.mask else []
        if self.numbers != OWN:
            words.append(self.numbers if self.numbers != "int8" or self.feedback or self.delta else _WITHOUT)
        words += ["zstd"] if self.zstd else []
        return "+".join(words) or _NONE[0]

    @property
    def plain(self) -> bool:
        """Whether rows are sent as they are and nothing is kept."""
        return self == Codec()

    @property
    def remembers(self) -> bool:
        """Whether anything is kept between messages."""
        return self.delta or self.feedback

    def keeps(self, row: Tensor) -> dict[str, Tensor]:
        """Return what is kept between messages for each child, as it is before the first: shaped like one row.

        It is a ``reference``, kept by both ends, or a ``residual``, kept by the sender, or nothing.
        """
        if self.delta:
            return {"reference": torch.zeros_like(row)}
        return {"residual": torch.zeros_like(row)} if self.feedback else {}

    def encode(self, rows: Tensor, sizes: Sequence[int], kept: Mapping[str, Tensor]) -> Encoded:
        """Encode a stack of rows, each by itself.

        Args:
            rows: Rows of any floating-point type.
            sizes: How many entries of a row each tensor of the model has; together they are the row.
            kept: What was kept of the last message, a row for each row; as `keeps` says before the first.
        """
        flat, sizes = _flat(rows), [size for size in sizes if size]
        form = self._form(flat.shape[1], rows.dtype, sizes)
        wanted, reference = flat, None
        if self.delta:
            reference = _flat(kept["reference"])
            wanted = flat - reference
        elif self.feedback:
            wanted = flat + _flat(kept["residual"])
        chosen = places.largest(wanted, form.count) if self.top is not None else None
        written = write(wanted if chosen is None else wanted.where(chosen, 0.0), self.numbers, sizes)
        if self.mask:
            chosen = written.codes != 0
            written = Written(written.codes + 0, written.scales)  # of the two zeros the one that is not sent
        sent = read(written, rows.dtype, sizes)
        now: dict[str, Tensor] = {}
        if reference is not None:
            sent = reference + sent
            now = {"reference": sent.reshape(rows.shape)}
        elif self.feedback:
            left = wanted.sub_(sent)  # a sum that nobody else has
            if written.scales is not None and not bool(written.scales.isfinite().all()):
                left = left.where(left.isfinite(), 0.0)  # NaN was sent as NaN: nothing was left out
            now = {"residual": left.reshape(rows.shape)}
        make: Callable[[], list[bytes]] = partial(form.blobs, written, chosen)
        lengths = form.lengths(chosen, len(rows))
        if self.zstd:
            blobs = make()
            lengths, make = torch.tensor([len(blob) for blob in blobs], dtype=torch.int64), lambda: blobs
        return Encoded(sent.reshape(rows.shape), now, lengths, make)

    def decode(
        self, blobs: Sequence[bytes], row: Tensor, sizes: Sequence[int], kept: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the rows that were encoded, and what the receiver keeps from now on: the new reference, if there is one.

        Args:
            blobs: The bytes of each row; bytes that cannot be rows are refused with `WireError`.
            row: A row of the wanted shape, type and device; its values do not matter.
            sizes: As they were for `encode`.
            kept: What was kept of the last message. Of a receiver only the ``reference`` matters.
        """
        sizes = [size for size in sizes if size]
        written = self._form(row.numel(), row.dtype, sizes).read(blobs)
        scales = None if written.scales is None else written.scales.to(row.device)
        sent = read(Written(written.codes.to(row.device), scales), row.dtype, sizes).reshape(len(blobs), *row.shape)
        if not self.delta:
            return sent, {}
        reference = kept["reference"]
        if reference.shape != sent.shape or reference.dtype != sent.dtype:
            raise WireError(f"a difference of {_told(sent)} came for {_told(reference)}")
        sent = reference + sent
        return sent, {"reference": sent}

    def _form(self, width: int, dtype: torch.dtype, sizes: Sequence[int]) -> Form:
        if sum(sizes) != width:
            raise WireError(f"rows of {width} numbers are sent where the tensors of the model have {sum(sizes)}")
        return Form(
            width=width,
            numbers=dtype_of(self.numbers, dtype),
            scales=len(sizes) if self.numbers == "int8" else 0,
            kind="mask" if self.mask else "all" if self.top is None else "top",
            count=width if self.top is None else min(width, max(1, round(width * self.top / 100))),
            zstd=self.zstd,
        )


def _told(rows: Tensor) -> str:
    return f"rows of {' x '.join(map(str, rows.shape[1:])) or 'one number'} ({str(rows.dtype).removeprefix('torch.')})"


def _flat(rows: Tensor) -> Tensor:
    return rows.reshape(len(rows), math.prod(rows.shape[1:]))


def _meaning(word: str, what: str) -> dict[str, Any]:
    """Return the settings that one word of a codec makes."""
    if word in FORMATS:
        return {"numbers": word}
    if word == _WITHOUT:
        return {"numbers": "int8", "feedback": False}
    if word in ("mask", "delta", "zstd"):
        return {word: True}
    if share := re.fullmatch(r"top ?([0-9]{1,3}(?:\.[0-9]{1,20})?) ?%", word):
        return {"top": float(share[1])}
    if word in _NONE:
        raise BadInput(f"codec {shown(what)}: {word!r} stands alone. {_WAYS}")
    raise BadInput(f"codec {shown(what)}: cannot read {shown(word)}{nearest_few(word, _WORDS)} {_WAYS}")
