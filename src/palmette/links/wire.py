"""Messages as bytes: a safetensors blob of the rows, with numbers and addresses in its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from palmette.links.sparse import Sparse, unpack

_MASK, _VALUES = "\0mask", "\0values"  # no name of a message ends like this


@dataclass(frozen=True)
class Envelope:
    """A message or reply with the address that makes it idempotent.

    Attributes:
        round: Round of the run.
        rounds: Rounds the run has in all.
        exchange: Number of the parent's exchange within the round.
        sender: Number of the sending node within its tier.
        body: Rows with one line (plain, or `Sparse` and then sent as a bit mask and values), or a mapping of names to such
            rows and numbers, or ``None``.
    """

    round: int
    rounds: int
    exchange: int
    sender: int
    body: Any


def encode(envelope: Envelope) -> bytes:
    """Turn an envelope into bytes."""
    body = envelope.body
    named: Mapping[str, Any] = body if isinstance(body, Mapping) else {} if body is None else {"": body}
    # Copies, because safetensors refuses tensors that share memory, such as one row under two names.
    copy = partial(torch.clone, memory_format=torch.contiguous_format)
    tensors = {name: copy(value) for name, value in named.items() if isinstance(value, Tensor)}
    sparse = {name: value for name, value in named.items() if isinstance(value, Sparse)}
    for name, value in sparse.items():
        tensors[name + _MASK], tensors[name + _VALUES] = value.pack()
    header = {
        "round": envelope.round,
        "rounds": envelope.rounds,
        "exchange": envelope.exchange,
        "sender": envelope.sender,
        "kind": "none" if body is None else "mapping" if isinstance(body, Mapping) else "bare",
        "numbers": {name: value for name, value in named.items() if not isinstance(value, (Tensor, Sparse))},
        "sparse": {name: list(value.rows.shape) for name, value in sparse.items()},
        "order": list(named),
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "little") + text + save(tensors)


def decode(data: bytes) -> Envelope:
    """Turn bytes back into an envelope."""
    size = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + size])
    tensors: dict[str, Any] = load(data[4 + size :])
    for name, shape in header["sparse"].items():
        tensors[name] = unpack(tensors[name + _MASK], tensors[name + _VALUES], tuple(shape))
    named = {name: tensors[name] if name in tensors else header["numbers"][name] for name in header["order"]}
    body = {"none": None, "bare": named.get(""), "mapping": named}[header["kind"]]
    return Envelope(header["round"], header["rounds"], header["exchange"], header["sender"], body)
