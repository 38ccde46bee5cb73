"""Where a machine asks its children and waits: as long as it must, and not for those that are gone."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from palmette.engines.channel import Children, Mail
from palmette.errors import WireError
from palmette.links.forms import Forms
from palmette.links.record import CORRUPT, LATE, NO_ANSWER
from palmette.links.wire import LIMIT, Envelope, decode, encode

Event = Callable[[str, int, str], None]
"""``(what, child, detail)``: what is worth a line in a log."""


def silent(what: str, child: int, detail: str) -> None:
    """Tell nobody of an event."""


class Desk:
    """Asks children and waits for their replies.

    A child that is connected and did not answer in time is not asked again before it is heard of; one whose connection is lost
    is waited for a little while, once, in which it may come back and is asked again.

    Args:
        children: The way to them.
        patience: Seconds for which a child whose connection was lost is waited for.
        limit: Bytes that a reply may take when it is decoded.
        forms: What the rows of replies are like, by the kind of message.
        event: Is told what happens.
        hello: Is told that a child is there, with its own word.

    Attributes:
        silent: Children that did not answer in time and were not heard of since.
        gone: Children whose connection is lost, and since when.
    """

    def __init__(
        self,
        children: Children,
        *,
        patience: float = 0.0,
        limit: int = LIMIT,
        forms: Mapping[str, Forms] | None = None,
        event: Event = silent,
        hello: Callable[[int, Envelope], None] = lambda child, word: None,
    ) -> None:
        self._children, self._patience, self._limit, self._forms = children, patience, limit, forms or {}
        self.event, self._hello = event, hello
        self.silent: set[int] = set()
        self.gone: dict[int, float] = {}
        self._held: list[Mail] = []  # replies that chance lets come too late

    def ask(
        self, ask: Envelope, messages: Mapping[int, bytes], fates: Mapping[int, int], seconds: float | None = None
    ) -> dict[int, Envelope | int]:
        """Send each child its message and return its reply, or why there is none: a place in `REASONS`.

        Args:
            ask: What the messages have in common: a reply must have the same address.
            messages: By child.
            fates: What chance does to each child's reply on its way.
            seconds: How long to wait at most.
        """
        end = math.inf if seconds is None else time.monotonic() + seconds
        held, self._held = self._held, []
        self.listen()
        found: dict[int, Envelope | int] = {}
        for child, data in messages.items():
            if child in self.silent or not (self._children.send(child, data) or self._hoped_for(child)):
                found[child] = NO_ANSWER
        for mail in self._mail(held, lambda: self._wanted(messages, found), end):
            if mail is None:
                self._give_up(ask, self._wanted(messages, found), found, end)
            elif (reply := self._read(mail)) is not None and mail[0] in messages and mail[0] not in found:
                child = mail[0]
                if isinstance(reply, Envelope) and reply.kind == "hello":
                    self._children.send(child, messages[child])
                elif isinstance(reply, int) or (reply.address == ask.address and reply.kind in _ANSWERS[ask.kind]):
                    found[child] = reply if isinstance(reply, int) else self._befallen(mail, reply, fates.get(child, 0))
        return found

    def listen(self, seconds: float = 0.0) -> None:
        """Take what came while nobody asked: who is there, who is gone; replies that nobody waits for are dropped."""
        while (mail := self._children.receive(seconds)) is not None:
            self._read(mail)
            seconds = 0.0

    # -- one by one ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _wanted(messages: Mapping[int, bytes], found: Collection[int]) -> list[int]:
        return [child for child in messages if child not in found]

    def _mail(self, held: list[Mail], waiting: Callable[[], list[int]], end: float) -> Iterator[Mail | None]:
        """Yield what comes while somebody is waited for, and ``None`` when the time of some of them is up."""
        yield from held
        while wanted := waiting():
            limit = min([end, *(self.gone[child] + self._patience for child in wanted if child in self.gone)])
            yield self._children.receive(None if limit == math.inf else max(0.0, limit - time.monotonic()))

    def _hoped_for(self, child: int) -> bool:
        """Whether a child whose connection is lost may be back soon."""
        return time.monotonic() < self.gone.setdefault(child, time.monotonic()) + self._patience

    def _give_up(self, ask: Envelope, wanted: list[int], found: dict[int, Envelope | int], end: float) -> None:
        """Go on without those whose time is up, and tell those that may still work that nobody waits for them."""
        now = time.monotonic()
        for child in wanted:
            if now >= end or (child in self.gone and now >= self.gone[child] + self._patience):
                found[child] = NO_ANSWER
                if child not in self.gone:
                    self.silent.add(child)
                    self.event("silent", child, "did not answer in time")
                    self._children.send(
                        child, encode(Envelope(kind="cancel", round=ask.round, path=ask.path, starts=ask.starts))
                    )

    def _read(self, mail: Mail) -> Envelope | int | None:
        """Return what a child says, or that it is damaged; ``None`` where its connection is lost."""
        child, data = mail
        if isinstance(data, BaseException):
            raise data
        if data is None:
            self.gone[child] = time.monotonic()
            self.event("lost", child, "the connection is lost")
            return None
        self.silent.discard(child)
        try:
            word = decode(data, limit=self._limit, forms=self._forms)
        except WireError as error:
            self.event("damaged", child, str(error))
            return CORRUPT
        if word.kind == "hello":
            self.gone.pop(child, None)
            self._hello(child, word)
        return word

    def _befallen(self, mail: Mail, reply: Envelope, fate: int) -> Envelope | int:
        """Let happen to a reply what chance wants: a network does such things by itself."""
        if fate == CORRUPT:
            data = mail[1]
            assert isinstance(data, bytes)
            place = len(data) // 2
            try:
                return decode(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            except WireError:
                return CORRUPT
        if fate == LATE:
            self._held.append(mail)
        return reply if fate == 0 else fate


_ANSWERS = {"ask": ("reply", "error"), "evaluate": ("scores", "error"), "end": ("ended", "error")}
