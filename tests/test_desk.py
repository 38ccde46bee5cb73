"""Asking children that are slow, gone, frozen, damaged or strangers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from palmette.engines.channel import Mail
from palmette.engines.desk import Desk
from palmette.links.record import CORRUPT, NO_ANSWER
from palmette.links.wire import Envelope, decode, encode

ASK = Envelope(round=2, rounds=5, path=(3,), starts=(1,))


class Scripted:
    """Children that do what a test says: each message to a child may bring mail at some later time."""

    def __init__(
        self, react: Callable[[int, Envelope], list[tuple[float, Any]]], connected: set[int] | None = None
    ) -> None:
        self.react, self.connected = react, {0, 1} if connected is None else connected
        self.sent: list[tuple[int, str]] = []
        self.due: list[tuple[float, Mail]] = []

    def send(self, child: int, data: bytes) -> bool:
        if child not in self.connected:
            return False
        word = decode(data)
        self.sent.append((child, word.kind))
        self.due += [(time.monotonic() + after, (child, what)) for after, what in self.react(child, word)]
        return True

    def receive(self, seconds: float | None) -> Mail | None:
        end = None if seconds is None else time.monotonic() + seconds
        self.due.sort(key=lambda one: one[0])
        if not self.due or (end is not None and self.due[0][0] > end):
            assert end is not None, "waits for ever"
            time.sleep(max(0.0, end - time.monotonic()))
            return None
        at, mail = self.due.pop(0)
        time.sleep(max(0.0, at - time.monotonic()))
        return mail


def answer(word: Envelope, **changed: Any) -> bytes:
    told = {"kind": "reply", "round": word.round, "rounds": word.rounds, "path": word.path, "starts": word.starts}
    return encode(Envelope(**{**told, "body": torch.ones(1, 2), **changed}))


def asked(desk: Desk, children: Scripted, seconds: float | None) -> dict[int, Any]:
    found = desk.ask(ASK, dict.fromkeys((0, 1), encode(ASK)), {}, seconds)
    return {child: reply if isinstance(reply, int) else reply.kind for child, reply in found.items()}


def test_a_child_that_is_late_is_left_out_told_so_and_not_asked_until_it_is_heard() -> None:
    children = Scripted(lambda child, word: [(0.0 if child else 9.0, answer(word))] if word.kind == "ask" else [])
    desk = Desk(children)
    assert asked(desk, children, 0.1) == {0: NO_ANSWER, 1: "reply"}
    assert (0, "cancel") in children.sent
    began, before = time.monotonic(), len(children.sent)
    assert asked(desk, children, 5.0) == {0: NO_ANSWER, 1: "reply"}
    assert time.monotonic() - began < 1  # nobody waits for it again
    assert children.sent[before:] == [(1, "ask")]
    children.due = [(0.0, (0, answer(ASK, path=(1,))))]  # its old reply: it is there again
    children.react = lambda child, word: [(0.0, answer(word))]
    assert asked(desk, children, 5.0) == {0: "reply", 1: "reply"}


def test_a_child_whose_connection_is_lost_is_waited_for_a_little_while_once() -> None:
    children = Scripted(lambda child, word: [(0.0, answer(word))], connected={1})
    desk = Desk(children, patience=0.2)
    began = time.monotonic()
    assert asked(desk, children, None) == {0: NO_ANSWER, 1: "reply"}
    assert 0.15 < time.monotonic() - began < 2
    began = time.monotonic()
    assert asked(desk, children, None) == {0: NO_ANSWER, 1: "reply"}
    assert time.monotonic() - began < 0.1


def test_a_child_that_comes_back_in_time_is_asked_again() -> None:
    first = []

    def react(child: int, word: Envelope) -> list[tuple[float, Any]]:
        if child == 0 and not first:
            first.append(1)
            return [(0.0, None), (0.05, encode(Envelope(kind="hello")))]
        return [(0.0, answer(word))]

    children = Scripted(react)
    assert asked(Desk(children, patience=5.0), children, 5.0) == {0: "reply", 1: "reply"}
    assert children.sent.count((0, "ask")) == 2


def test_damaged_outdated_and_strange_mail_takes_nobodys_place() -> None:
    def react(child: int, word: Envelope) -> list[tuple[float, Any]]:
        if child == 0:
            return [(0.0, b"nonsense")]
        return [(0.0, answer(word, path=(2,))), (0.0, answer(word, starts=(0,))), (0.01, answer(word))]

    children = Scripted(react)
    children.due = [(0.0, (7, b"who am I"))]
    told: list[str] = []
    desk = Desk(children, event=lambda what, child, detail: told.append(what))
    assert asked(desk, children, 5.0) == {0: CORRUPT, 1: "reply"}
    assert told == ["damaged", "damaged"]


def test_a_reply_larger_than_the_limit_is_refused_before_it_is_read() -> None:
    children = Scripted(lambda child, word: [(0.0, answer(word, body=torch.ones(1, 3000 if child else 1)))])
    assert asked(Desk(children, limit=4000), children, 5.0) == {0: "reply", 1: CORRUPT}
