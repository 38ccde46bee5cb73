"""Messages as bytes: what arrives is what was sent, and what cannot be a message is refused."""

from __future__ import annotations

import importlib.util
import json
import math
import resource
import struct
import tracemalloc
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from palmette.errors import PalmetteError
from palmette.links.codecs import Codec
from palmette.links.sparse import Sparse
from palmette.links.wire import Coded, Envelope, WireError, decode, encode


def there_and_back(body: Any) -> Any:
    return decode(encode(Envelope(round=3, rounds=10, path=(2,), stage=7, body=body))).body


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize(
    "body",
    [
        None,
        torch.randn(1, 7),
        torch.randn(1, 7, dtype=torch.float64),
        torch.tensor([[float("inf"), -float("inf"), 1e-45, 3e38]]),
        torch.randn(1),
        torch.tensor([5]),
        torch.tensor([True]),
        torch.randn(1, 2, 3),
    ],
    ids=["none", "row", "float64", "extreme", "one number per row", "whole number", "flag", "matrix"],
)
def test_a_bare_body_comes_back_bit_for_bit(body: Tensor | None) -> None:
    assert same(there_and_back(body), body)


def test_a_mapping_comes_back_in_order_with_its_rows_and_numbers() -> None:
    body = {
        "x": torch.randn(1, 7),
        "steps": 12,
        "c": torch.randn(1, 3, dtype=torch.float64),
        "rate": 0.1,
        "coin": torch.tensor([0.25]),
        "last": True,
        "": torch.randn(1, 2),
    }
    found = there_and_back(body)
    assert list(found) == list(body)
    assert all(same(found[name], value) for name, value in body.items())


@pytest.mark.parametrize("number", [0.1, 1 / 3, 1e-300, 2**62, 2**63 - 1, -5, math.inf, -math.inf, True, False, 0])
def test_numbers_keep_their_type_and_every_bit(number: float) -> None:
    assert same(there_and_back({"n": number})["n"], number)


@pytest.mark.parametrize("number", [math.nan, -math.nan, -0.0, 5e-324])
def test_numbers_that_json_cannot_hold_keep_every_bit(number: float) -> None:
    assert struct.pack("<d", there_and_back({"n": number})["n"]) == struct.pack("<d", number)


@pytest.mark.parametrize("body", [{}, {"n": 1}])
def test_a_mapping_without_rows_stays_a_mapping(body: dict[str, Any]) -> None:
    assert there_and_back(body) == body


def test_the_address_of_an_envelope_comes_back() -> None:
    address = {"kind": "reply", "round": 3, "rounds": 10, "path": (4, 2), "starts": (1, 3), "base": 5, "keep": (1, 2)}
    address |= {"version": 6, "time": 10**15, "steps": 40, "grown": 3, "stage": 2, "turn": 1, "within": 500}
    found = decode(encode(Envelope(**address)))
    assert {name: getattr(found, name) for name in address} == address
    assert set(address) | {"body"} == {field.name for field in fields(Envelope)}
    assert found.exchange == 2
    assert found.address == (1, 3, 4, 3, 2)


def test_a_row_cut_out_of_a_stack_travels_alone() -> None:
    stack = torch.randn(1000, 50)
    data = encode(Envelope(rounds=1, body=stack[3:4]))
    assert len(data) < 1000
    assert torch.equal(decode(data).body, stack[3:4])


def test_rows_that_are_not_contiguous_travel_as_they_are_seen() -> None:
    body = torch.randn(7, 1).T
    strided = torch.randn(1, 14)[:, ::2]
    assert torch.equal(there_and_back(body), body)
    assert torch.equal(there_and_back(strided), strided)


def test_one_tensor_may_be_sent_under_two_names() -> None:
    row = torch.randn(1, 7)
    found = there_and_back({"model": row, "anchor": row, "part": row[:, :3]})
    assert torch.equal(found["model"], row)
    assert torch.equal(found["anchor"], row)
    assert torch.equal(found["part"], row[:, :3])


def test_neighbouring_views_of_one_stack_may_be_sent_together() -> None:
    stack = torch.randn(2, 5)
    found = there_and_back({"a": stack[:1], "b": stack[1:]})
    assert torch.equal(torch.cat([found["a"], found["b"]]), stack)


def test_equal_envelopes_are_equal_bytes() -> None:
    body = {"b": torch.ones(1, 3), "a": torch.zeros(1, 2), "n": 1}
    assert encode(Envelope(rounds=1, body=body)) == encode(Envelope(rounds=1, body=dict(body)))


def test_what_was_decoded_may_be_written_into() -> None:
    found = there_and_back(torch.zeros(1, 3))
    found += 1
    assert found.tolist() == [[1, 1, 1]]


def test_a_row_that_a_codec_encoded_travels_as_its_bytes() -> None:
    codec, rows = Codec.parse("delta+int8"), torch.randn(1, 30)
    kept = {name: row[None] for name, row in codec.keeps(rows[0]).items()}
    sent = codec.encode(rows, [20, 10], kept)
    for body in (Coded(sent.blobs()[0], (30,), torch.float32), {"w": Coded(sent.blobs()[0], (30,), torch.float32)}):
        found = there_and_back(body)
        found = found["w"] if isinstance(found, dict) else found
        assert found == Coded(sent.blobs()[0], (30,), torch.float32)
        assert torch.equal(codec.decode([found.blob], found.row, [20, 10], kept)[0], sent.rows)


def test_texts_arrive_and_halves_of_letters_are_shown() -> None:
    assert there_and_back({"why": "the disk of 日本 is full\n"}) == {"why": "the disk of 日本 is full\n"}
    assert there_and_back({"why": "\ud800"}) == {"why": "\\ud800"}


# -- what cannot be sent -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"n": 2**63},
        {"n": -(2**63)},
        {"n": np.int64(3)},
        {"n": None},
        {"n": [1, 2]},
        {"n": {"a": 1}},
        {"n": 1j},
        {3: 1},
        {"\ud800": 1},
        3,
        "text",
        torch.zeros(1, 2, dtype=torch.complex64),
        {"n": torch.zeros((1,) * 9)},
        {"c": Coded(b"", (-1,), torch.float32)},
        {"c": Coded(b"", (1,), torch.int64)},
        {str(i) * 100: i for i in range(5000)},
    ],
    ids=lambda body: str(body)[:20].encode("ascii", "replace").decode(),
)
def test_what_a_message_cannot_hold_is_refused_before_it_is_sent(body: Any) -> None:
    with pytest.raises(WireError):
        encode(Envelope(body=body))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "asks"},
        {"kind": None},
        {"round": -1},
        {"round": True},
        {"round": 1.0},
        {"rounds": 2**63},
        {"stage": "0"},
        {"starts": (0, 0)},
        {"base": -2},
        {"version": -2},
        {"time": -1},
        {"time": 1.5},
        {"steps": None},
        {"path": ()},
        {"path": (0,) * 17},
        {"path": [0]},
        {"path": (-1,)},
        {"path": (True,)},
        {"keep": (0,) * 65},
        {"keep": (-1,)},
        {"keep": 3},
    ],
    ids=str,
)
def test_an_address_of_wrong_type_or_range_cannot_be_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(WireError, match=next(iter(wrong))):
        Envelope(**wrong)


# -- bytes of a stranger -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    path = Path(__file__).parents[1] / "proofs" / "fuzz_wire.py"
    spec = importlib.util.spec_from_file_location("fuzz_wire", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SMALL = encode(Envelope(round=1, rounds=2, body={"x": torch.ones(1, 2), "s": Sparse(torch.ones(1, 3)), "k": 1}))


def test_every_changed_byte_is_found() -> None:
    for place in range(len(SMALL)):
        for change in (1, 16, 255):
            data = bytearray(SMALL)
            data[place] ^= change
            with pytest.raises(WireError):
                decode(bytes(data))


def test_a_message_that_is_cut_off_or_too_long_is_refused() -> None:
    for end in range(len(SMALL)):
        with pytest.raises(WireError):
            decode(SMALL[:end])
    for more in (b"\0", b"PLMT", SMALL):
        with pytest.raises(WireError, match="which is not what its header says"):
            decode(SMALL + more)


def test_swapped_bytes_are_found() -> None:
    for place in range(len(SMALL) - 1):
        data = bytearray(SMALL)
        data[place : place + 2] = data[place : place + 2][::-1]
        if bytes(data) != SMALL:
            with pytest.raises(WireError):
                decode(bytes(data))


def test_another_version_of_the_format_is_named() -> None:
    with pytest.raises(WireError, match="has version 9 of the format; this Palmette reads 3"):
        decode(SMALL[:4] + b"\x09" + SMALL[5:])


@pytest.mark.parametrize(
    ("part", "data", "told"),
    [
        (["x", "sparse", "float32", [1, 10**9], 9], bytes(9), "would take 4000000000 bytes"),
        (["x", "sparse", "float32", [1, 2 * 10**8], 9], bytes(9), "has 9 bytes and not 25000000"),
        (["x", "coded", "float32", [2**62], 3], bytes(3), "at most 1073741824 are allowed"),
        (["x", "rows", "float32", [0, 2**62], 0], b"", "at most 1073741824 are allowed"),
        (["x", "rows", "float32", [2**40], 2**42], b"", "not what its header says"),
        (["x", "rows", "float32", [3], 8], bytes(8), "cannot hold 'x'"),
        (["x", "rows", "float33", [2], 8], bytes(8), "type 'float33'"),
        (["x", "rows", "float32", [2], 8], bytes(9), "has 9 bytes of parts"),
        (["x", "rows", "float32", [1] * 9, 4], bytes(4), "at most 8 numbers"),
        (["x", "rows", "float32", [True], 4], bytes(4), "must be a whole number"),
        (["x", "rows", "float32", [-1], 4], bytes(4), "must be a whole number"),
        (["x", "rows", "float32", 2, 8], bytes(8), "not a list"),
        (["x", "rows", "float32", [2], "8"], bytes(8), "the length of 'x' must be a whole number"),
        (["x", "rows", "bool", [2], 2], b"\1\2", "not all 0 or 1"),
        (["x", "sparse", "int64", [1, 3], 1], bytes(1), "type 'int64'"),
        (["x", "pickle", "", [], 3], bytes(3), "'pickle'"),
        (["x", "int", "", [], 4], bytes(4), "in 4 bytes"),
        (["x", "bool", "", [], 8], b"\2" + bytes(7), "neither false (0) nor true (1)"),
        (["x", "text", "", [], 1], b"\xff", "is not UTF-8"),
        ([7, "int", "", [], 8], bytes(8), "must be texts"),
        (["\ud800", "int", "", [], 8], bytes(8), "must be texts"),
        (["x", "int", "", []], bytes(8), "not by five things"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_part_that_cannot_be_is_refused_at_once(fuzz: ModuleType, part: list[Any], data: bytes, told: str) -> None:
    header = json.loads(fuzz.opened(encode(Envelope(body={})))[0])
    header["parts"] = [part]
    tracemalloc.start()
    try:
        with pytest.raises(WireError) as error:
            decode(fuzz.packed(json.dumps(header).encode(), data))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"extra": 1}, "'extra'"),
        ({"round": None}, "round of a message must be a whole number"),
        ({"round": 1.0}, "which no header has"),
        ({"round": 10**30}, "which no header has"),
        ({"round": math.nan}, "which no header has"),
        ({"path": [0] * 17}, "1 to 16 numbers"),
        ({"path": 0}, "1 to 16 numbers"),
        ({"body": "bare"}, "a bare body must be rows"),
        ({"body": "none"}, "without a body has parts"),
        ({"body": ["none"]}, "must be 'none', 'bare' or 'mapping'"),
        ({"parts": {}}, "no list of parts"),
        ({"parts": [["k", "int", "", [], 8], ["k", "int", "", [], 0]]}, "cannot hold 'k'"),
        ({"parts": [["k", "text", "", [], 8], ["k", "text", "", [], 0]]}, "two parts of one name"),
        ({"kind": "run"}, "one of hello, ask, reply"),
    ],
    ids=str,
)
def test_a_header_that_cannot_be_is_refused(fuzz: ModuleType, change: dict[str, Any], told: str) -> None:
    header, parts = fuzz.opened(encode(Envelope(body={"k": 3})))
    with pytest.raises(WireError) as error:
        decode(fuzz.packed(json.dumps(json.loads(header) | change).encode(), parts))
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (b'"round":0', b'"round":0,"round":0', "a name twice"),
        (b'"round":0', b'"round":' + b"[" * 100_000, "cannot be read"),
        (b'"round":0', b'"round":"\xff"', "cannot be read"),
        (b'"round":0,', b"", "has ["),
        (b"{", b"[", "cannot be read"),
        (b'"round":0', b'"round":' + b"1" * 300_000, "says that its header has"),
    ],
)
def test_a_header_that_is_no_proper_json_is_refused(fuzz: ModuleType, old: bytes, new: bytes, told: str) -> None:
    header, parts = fuzz.opened(encode(Envelope()))
    with pytest.raises(WireError) as error:
        decode(fuzz.packed(header.replace(old, new, 1), parts))
    assert told in str(error.value)


def test_a_receiver_may_allow_less() -> None:
    data = encode(Envelope(body={"x": torch.zeros(1, 1000), "s": Sparse(torch.zeros(1, 1000))}))
    assert decode(data, limit=8000).body["x"].shape == (1, 1000)
    with pytest.raises(WireError, match="would take 8000 bytes when decoded; at most 7999"):
        decode(data, limit=7999)


def test_hundreds_of_damaged_and_made_up_messages_are_read_or_refused_in_little_memory(fuzz: ModuleType) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        ends = [fuzz.run_case(4, number) for number in range(500)]
    finally:
        tracemalloc.stop()
    assert set(ends) == {"read", "refused"}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # kilobytes


def test_the_error_is_one_of_ours() -> None:
    assert issubclass(WireError, PalmetteError)
