"""Throw damaged and made-up messages at the wire and the codecs; whatever is neither read nor refused is a fault.

``python proofs/fuzz_wire.py CASES SEED`` runs many by hand, ``... 1 SEED NUMBER`` one again; `case` is one case for other
proofs. A case returns ``"read"`` or ``"refused"`` (`WireError`). Anything else that it raises is a fault: a traceback, a
message that changes when it is sent on, an error of many lines, more memory than is allowed. Most damaged messages get a right
checksum, so that the checks behind it are reached.
"""

from __future__ import annotations

import json
import random
import re
import resource
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from palmette.errors import WireError
from palmette.links.codecs import Codec
from palmette.links.sparse import Sparse
from palmette.links.wire import KINDS, Coded, Envelope, decode, encode

LIMIT = 1 << 20  # bytes of a decoded body
MEMORY = 16 * LIMIT  # bytes that reading one message may take: a header of 256 KiB may list many small things
SUM = re.compile(rb'("sum": ?")[0-9a-f]{32}"')
HEAD, START = 5, 25  # the format, then the checksum and the length of the header
TEXTS = (
    "none",
    "float16",
    "int8",
    "mask",
    "zstd",
    "delta+int8",
    "top 1%",
    "top 30%+int8",
    "delta+mask+zstd",
    "bfloat16+zstd",
)
NASTY: tuple[Any, ...] = (
    *(0, 1, -1, 2, 7, 8, 16, 255, 2**31, 2**32, 10**9, 2**61, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 10**4000),
    *(
        0.0,
        1.5,
        1e308,
        float("nan"),
        float("inf"),
        True,
        False,
        None,
        "",
        "x",
        "\0",
        "\ud800",
        "rows",
        "sparse",
        "coded",
    ),
    *("int", "float", "bool", "text", "float32", "float64", "bool", "int64", "none", "bare", "mapping", "ask", "reply"),
    *([], [0], [1, 2], [10**9], [0, 2**62, 2**62], [-1], [1.0], [True], [[]], ["1"], {}, {"a": 1}, [0] * 17, [0] * 65),
)


def rows(luck: random.Random, width: int | None = None) -> Tensor:
    """Return one row, mostly of zeros, of any type that is sent."""
    dtype = luck.choice((torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16))
    size = luck.choice((0, 1, 7, 40)) if width is None else width
    values = [luck.choice((0.0, 0.0, luck.gauss(0, 1), -0.0, float("nan"), 1e30)) for _ in range(size)]
    return torch.tensor([values], dtype=torch.float64).to(dtype)


def part(luck: random.Random) -> Any:
    """Return something that a message can hold."""
    kind = luck.randrange(8)
    if kind == 0:
        return luck.choice((0, 1, -5, 2**63 - 1, True, False, 0.1, float("nan"), float("-inf"), "", "what went wrong"))
    if kind == 1:
        return Sparse(rows(luck))
    if kind == 2:
        return torch.tensor([[luck.randrange(2) for _ in range(luck.randrange(9))]]).to(
            luck.choice((torch.bool, torch.int64, torch.uint8, torch.int8, torch.int16, torch.int32))
        )
    if kind == 3:
        return coded(luck)[1]
    return rows(luck)


def coded(luck: random.Random) -> tuple[Codec, Coded]:
    """Return a codec and a row that it has encoded."""
    codec, one = Codec.parse(luck.choice(TEXTS)), rows(luck, luck.choice((0, 1, 9, 300))).float()
    kept = {name: value[None] for name, value in codec.keeps(one[0]).items()}
    return codec, Coded(codec.encode(one, [one.shape[1]], kept).blobs()[0], (one.shape[1],), torch.float32)


def message(luck: random.Random) -> bytes:
    """Return a good message."""
    names = luck.sample(("x", "w", "steps", "", "ü", "long " * 20, "a\nb"), luck.randrange(4))
    bare = luck.choice((rows(luck), Sparse(rows(luck)), coded(luck)[1]))
    body = luck.choice((None, bare, {name: part(luck) for name in names}, {name: part(luck) for name in names}))
    numbers, deep = [luck.choice((0, 1, 12, 2**40)) for _ in range(8)], luck.choice((1, 3))
    return encode(
        Envelope(
            kind=luck.choice(KINDS),
            round=numbers[0],
            rounds=numbers[1],
            path=tuple(numbers[:deep]),
            starts=tuple(numbers[4 : 4 + deep]),
            stage=numbers[2],
            base=numbers[3] - 1,
            keep=tuple(numbers[4 : luck.choice((4, 6))]),
            version=numbers[5] - 1,
            time=numbers[6],
            steps=numbers[7],
            body=body,
        )
    )


# -- damage ------------------------------------------------------------------------------------------------------------


def sealed(rest: bytes, head: bytes = b"PLMT\3") -> bytes:
    """Return a message with right checksums, of its header and, where that has one, of its body."""
    end = 4 + int.from_bytes(rest[:4], "little")
    opening, body = rest[:end], rest[end:]
    opening = SUM.sub(rb"\g<1>" + blake2b(body, digest_size=16).hexdigest().encode() + b'"', opening, count=1)
    return head + blake2b(opening, digest_size=16).digest() + opening + body


def packed(header: bytes, parts: bytes) -> bytes:
    """Return a message with a right checksum and a right length of its header."""
    return sealed(len(header).to_bytes(4, "little") + header + parts)


def opened(data: bytes) -> tuple[bytes, bytes]:
    """Return the header and the parts of a good message."""
    end = START + int.from_bytes(data[START - 4 : START], "little")
    return data[START:end], data[end:]


def damaged(luck: random.Random, data: bytes) -> bytes:
    """Return bytes with a few of them changed, left out, doubled or swapped."""
    made = bytearray(data)
    for _ in range(luck.choice((1, 1, 2, 6))):
        at, size = luck.randrange(len(made) + 1), luck.choice((1, 1, 4, 30))
        what = luck.randrange(6)
        if what == 0:
            made[at:at] = luck.randbytes(size)
        elif what == 1:
            del made[at : at + size]
        elif what == 2 and at < len(made):
            made[at] ^= 1 << luck.randrange(8)
        elif what == 3:
            made[at:at] = made[at : at + size]
        elif what == 4:
            made[at : at + 2] = made[at : at + 2][::-1]
        elif at < len(made):
            made[at] = luck.choice(b'0123456789-.eE"[]{},:\\\0\xff')
    return bytes(made)


def flipped(luck: random.Random) -> bytes:
    """Return a message that was damaged on its way."""
    return damaged(luck, message(luck))


def resealed(luck: random.Random) -> bytes:
    """Return a damaged message with a right checksum."""
    return sealed(damaged(luck, message(luck)[START - 4 :]))


def reheaded(luck: random.Random) -> bytes:
    """Return a message with a damaged header, all else right."""
    header, parts = opened(message(luck))
    return packed(damaged(luck, header), parts)


def reparted(luck: random.Random) -> bytes:
    """Return a message with damaged parts, all else right."""
    header, parts = opened(message(luck))
    return packed(header, damaged(luck, parts))


def restated(luck: random.Random) -> bytes:
    """Return a message whose header is good JSON that says something else."""
    header, parts = opened(message(luck))
    told = json.loads(header)
    for _ in range(luck.choice((1, 1, 2))):
        place: Any = told
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = luck.choice(keys) if keys else None
            if key is None or not isinstance(place[key], dict | list) or luck.random() < 0.3:
                break
            place = place[key]
        what = luck.randrange(4)
        if what == 0 and key is not None:
            del place[key]
        elif what == 1 and isinstance(place, list):
            place.append(luck.choice((luck.choice(NASTY), *place)))
        elif isinstance(place, dict) and what == 1:
            place[luck.choice(("kind", "x", "", "exchange"))] = luck.choice(NASTY)
        elif key is not None:
            place[key] = luck.choice(NASTY)
    text = json.dumps(told, separators=(",", ":"))
    if luck.random() < 0.1:
        text = text[:-1] + luck.choice((',"kind":"ask"}', ',"round":0}', "}", ",}", "} "))
    return packed(text.encode(), luck.choice((parts, parts, parts + b"\0" * 8, b"")))


def hostile(luck: random.Random) -> bytes:
    """Return a short message that asks for much: deep, long, huge or repeated things."""
    header, _ = opened(encode(Envelope()))
    told = header[:-1].decode().replace('"body":"none","parts":[]', "")
    width = luck.choice((10**9, 2**40, 2**62, 10**18))
    parts = luck.choice(
        (
            f'["x","sparse","float32",[1,{width}],9]',
            f'["x","sparse","float64",[{width},{width},0],0]',
            f'["x","coded","float32",[{width}],9]',
            f'["x","rows","float32",[0,{width},{width}],0]',
            f'["x","rows","float32",[{width}],{4 * width}]',
            ",".join(f'["{i}","rows","float64",[0,100000],0]' for i in range(3000)),
            ",".join('["x","int","",[],0]' for _ in range(5000)),
            "[" * luck.choice((500, 10**5)),
            "[]," * 80000 + "[]",
            "1" * luck.choice((19, 20, 5000, 200_000)),
            '"' + "x" * 250_000 + '"',
            '{"a":' * 20_000,
        )
    )
    text = f'{told}"body":"mapping","parts":[{parts}]}}'.encode()
    return packed(text, luck.randbytes(luck.choice((0, 9, 200))))


def junk(luck: random.Random) -> bytes:
    """Return random bytes, with the beginning of a message or without."""
    made = luck.randbytes(luck.choice((0, 4, 5, 20, 25, 26, 300)))
    return luck.choice((made, b"PLMT\1" + made, sealed(made), sealed(made, b"PLMT\3"), sealed(b"\xff" * 4 + made)))


WAYS: tuple[Callable[[random.Random], bytes], ...] = (
    *(flipped, resealed, resealed, reheaded, reparted, restated, restated, restated, restated, hostile, junk, message),
)


# -- cases -------------------------------------------------------------------------------------------------------------


def read(data: bytes) -> None:
    """Read a message, send it on and read it again: it must stay the same; encoded rows are decoded as well."""
    envelope = decode(data, limit=LIMIT)
    again = encode(envelope)
    if encode(decode(again, limit=LIMIT)) != again:
        raise AssertionError("a message changes when it is sent on")
    if len(again) > 2 * len(data) + 1000:
        raise AssertionError(f"a message of {len(data)} bytes became one of {len(again)}")


def read_row(luck: random.Random) -> None:
    """Decode the damaged bytes of one row."""
    codec, one = coded(luck)
    width = luck.choice((one.shape[0], one.shape[0], one.shape[0] + 1, 100_000))
    row = torch.zeros(()).expand(width)
    got, kept = codec.decode(
        [luck.choice((damaged(luck, one.blob), one.blob, luck.randbytes(20)))],
        row,
        [width],
        {"reference": row[None]},
    )
    if got.shape != (1, width) or got.dtype != torch.float32 or set(kept) - {"reference"}:
        raise AssertionError(f"{codec} decoded rows of shape {tuple(got.shape)}")


def case(luck: random.Random) -> str:
    """Return how one case ended: ``"read"`` or ``"refused"``; whatever it raises is a fault."""
    try:
        if luck.random() < 0.2:
            read_row(luck)
        else:
            read(luck.choice(WAYS)(luck))
    except WireError as error:
        if "\n" in str(error) or len(str(error)) > 600:
            raise AssertionError(f"an error of {len(str(error))} letters in several lines: {error!r}") from error
        return "refused"
    return "read"


def run_case(seed: int, number: int) -> str:
    """Run a case by its number, and hold its memory to account."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    end = case(random.Random(f"{seed} {number}"))
    taken = tracemalloc.get_traced_memory()[1] - before
    if taken > MEMORY:
        raise AssertionError(f"case {number} took {taken} bytes")
    return end


def main() -> None:
    """Run cases and say how they ended."""
    cases, seed, first = (int(word) for word in (*sys.argv[1:], *("10000", "1", "0")[len(sys.argv) - 1 :]))
    ends: Counter[str] = Counter()
    tracemalloc.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(first, first + cases):
        try:
            ends[run_case(seed, number)] += 1
        except Exception as error:
            ends["fault"] += 1
            print(f"case {number} of seed {seed}: {type(error).__name__}: {error}", flush=True)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
    print(f"{cases} cases: {', '.join(f'{count} {end}' for end, count in ends.items())}; memory grew by {grown} MiB")
    sys.exit(1 if ends["fault"] else 0)


if __name__ == "__main__":
    main()
