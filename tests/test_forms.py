"""What the rows of a federation's messages are like, learnt in a rehearsal and demanded of every message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from palmette.deploy.kit import Kit
from palmette.errors import WireError
from palmette.links.forms import ANY, forms_of, merged, odd_ones
from palmette.links.sparse import Sparse
from palmette.links.wire import Coded, Envelope, decode, encode
from test_deploy_files import kits as kits

MODEL = {"reply": {"": [("float32", (650,))]}}


def reply(body: Any, kind: str = "reply") -> bytes:
    return encode(Envelope(kind=kind, body=body))


@pytest.mark.parametrize(
    "body", [torch.zeros(1, 650), Sparse(torch.zeros(1, 650)), Coded(b"abc", (650,), torch.float32)], ids=type
)
def test_rows_that_are_expected_are_taken_however_they_are_encoded(body: object) -> None:
    assert decode(reply(body), forms=MODEL).kind == "reply"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (torch.zeros(1, 651), r"is float32\[651\]; here it is float32\[650\]"),
        (torch.zeros(1, 650, dtype=torch.float64), r"is float64\[650\]"),
        (torch.zeros(1, 65, 10), r"is float32\[65x10\]"),
        (torch.zeros(2, 650), "is no single row"),
        (Sparse(torch.zeros(1, 649)), r"is float32\[649\]"),
        (Coded(b"abc", (10**9,), torch.float32), r"is float32\[1000000000\]"),
    ],
    ids=str,
)
def test_other_rows_are_refused_before_they_are_read(body: object, told: str) -> None:
    with pytest.raises(WireError, match=told):
        decode(reply(body), limit=1 << 40, forms=MODEL)


def test_what_is_not_known_is_taken() -> None:
    assert decode(reply({"new": torch.zeros(1, 3), "n": 2}), forms=MODEL).body["n"] == 2
    assert decode(reply(torch.zeros(1, 3), "scores"), forms=MODEL).kind == "scores"


def test_sizes_in_which_two_rehearsals_differ_are_free() -> None:
    one = {"a": [("float32", (4, 1))], "b": [("int64", (3,))], "c": [("float32", ())]}
    two = {"a": [("float32", (4, 2))], "b": [("int64", (3,))], "d": [("float32", ())]}
    found = merged(one, two)
    assert found == {
        "a": [("float32", (4, ANY))],
        "b": [("int64", (3,))],
        "c": [("float32", ())],
        "d": [("float32", ())],
    }
    assert decode(reply({"a": torch.zeros(1, 4, 9)}), forms={"reply": found}).body["a"].shape == (1, 4, 9)
    with pytest.raises(WireError, match=r"here it is float32\[4x\?\]"):
        decode(reply({"a": torch.zeros(1, 5, 9)}), forms={"reply": found})


def test_replies_unlike_most_are_the_odd_ones() -> None:
    model = torch.zeros(1, 3)
    assert odd_ones({0: model, 1: model, 2: None}) == []
    assert odd_ones({0: model, 1: torch.zeros(1, 4), 2: model}) == [1]
    assert odd_ones({0: {"x": model}, 1: {"x": model, "y": model}, 2: {"x": model}, 3: None}) == [1]
    assert forms_of({"x": model, "n": 1, "t": "text"}) == {"x": ("float32", (3,)), "n": ("int", ()), "t": ("text", ())}


def test_kits_know_what_messages_are_like(kits: Any) -> None:
    server, team, device = (Kit(kits.nodes[tier, 0]).node for tier in (2, 1, 0))
    row = [("float32", (650,))]
    for parent, child in ((server, team), (team, device)):
        assert parent.below == child.above
        assert parent.below["ask"] == parent.below["reply"] == {"": row}
        assert set(parent.below["evaluate"]) == ({"GM"} if parent is server else {"GM", "TM"})
        assert {form for forms in parent.below["scores"].values() for form in map(tuple, forms)} == {
            ("float64", (ANY,) if parent is server else (1,))
        }
    assert device.below == server.above == {}
    assert Path(kits.folder).is_dir()
