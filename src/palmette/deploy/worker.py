"""A node that has a parent: it answers its parent's messages, one after the other, and is heard of at any time."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from queue import Empty

from palmette.deploy.above import Above
from palmette.deploy.journal import Journal
from palmette.deploy.kit import Kit
from palmette.deploy.models import save_personal, save_team
from palmette.deploy.node import Node
from palmette.engines.machine import Expired, Forgotten
from palmette.errors import Diverged, WireError
from palmette.links.record import BAD, NO_ANSWER
from palmette.links.wire import Envelope, decode, encode

_TICK = 0.25  # seconds between signs of life of the process itself
_FROZEN = 1.5  # seconds without one after which it was stopped
_CALM = 0.2  # seconds that a process which was stopped gives the network to bring what came meanwhile


class Worker(Node):
    """A node that has a parent: a team server or a device.

    Args:
        kit: The node's kit.
        journal: Where it tells what happens.
    """

    def __init__(self, kit: Kit, journal: Journal) -> None:
        super().__init__(kit, journal)
        node = self.node
        assert node.parent is not None
        assert node.parent.address is not None
        self._gathered = not node.children
        self._tick = time.monotonic()
        self._waiting: deque[tuple[float, Envelope]] = deque()
        self.above = Above(
            node.parent.address,
            kit.identity,
            node.parent.id,
            limit=2 * node.limit,
            on_event=self._on_parent,
            on_call=self._on_call,
            own=node.id if node.plain else "",
        )

    def run(self, stop: threading.Event) -> None:
        """Serve until the training is over or the node is told to stop."""
        threading.Thread(target=self._live, args=(stop,), daemon=True).start()
        if self.below is not None:
            self.journal.line(f"listens on port {self.below.start()}")
        self.above.start()
        try:
            while not stop.is_set() and not self.over:
                if not self._gathered and self.gather():
                    self._gathered, self.phase = True, "waiting for its parent"
                    self.above.send(self._hello())
                if (mail := self._next(0.0 if not self._gathered else 0.5)) is not None:
                    self._answer(*mail)
        finally:
            self.above.close()
            self.close()

    def _live(self, stop: threading.Event) -> None:
        """Note that the process runs, so that it knows when it did not."""
        while not stop.wait(_TICK):
            self._tick = time.monotonic()

    # -- the parent ----------------------------------------------------------------------------------------------------

    def _hello(self) -> bytes:
        machine = self.machine
        samples = int(machine.setup.samples[machine.tier][0])
        return encode(Envelope(kind="hello", grown=machine.grown, body={"samples": samples, "ready": self._gathered}))

    def _on_parent(self, kind: str, who: str, detail: str) -> None:
        self._on_link(kind, who, detail)
        if kind == "connected":
            self.above.send(self._hello())

    def _on_call(self, data: bytes) -> bytes:
        told = json.loads(data)
        if told.get("do") == "status":
            return json.dumps(self.status(float(told.get("seconds", 1.0)))).encode()
        if told.get("do") == "revoke":
            return json.dumps({"reached": self.revoke(told)}).encode()
        if told.get("do") == "samples":
            return json.dumps({"samples": int(self.setup.samples[self.node.tier][0])}).encode()
        if told.get("do") in ("admit", "join") and self.node.tier:
            return json.dumps(self.newcomers.hear(told)).encode()
        return b"{}"

    def _next(self, seconds: float) -> tuple[float, Envelope] | None:
        """Return the next message that is worth working on, with the time when it came; none after a while.

        An ask that its parent has cancelled is left out. A process that was stopped first hears what was said meanwhile.
        """
        self._take(seconds)
        if self._waiting and time.monotonic() - self._tick > _FROZEN:
            time.sleep(_CALM)
        while self._take(0.0):
            pass
        cancelled = {word.address for _, word in self._waiting if word.kind == "cancel"}
        if cancelled:
            for _, word in self._waiting:
                if word.kind != "cancel" and word.address in cancelled:
                    self._refuse(word, "nobody waited for it any more")
            self._waiting = deque((since, word) for since, word in self._waiting if word.address not in cancelled)
        return self._waiting.popleft() if self._waiting else None

    def _take(self, seconds: float) -> bool:
        """Take one message from the parent, if there is one."""
        try:
            mail = self.above.mail.get(timeout=seconds) if seconds else self.above.mail.get_nowait()
        except Empty:
            return False
        if mail is None:
            self.over = True
            return False
        try:
            self._waiting.append((mail[0], decode(mail[1], limit=self.node.limit, forms=self.node.above)))
        except WireError as error:
            assert self.node.parent is not None
            self.journal.event("damaged", self.node.parent.name, str(error))
        return True

    def _answer(self, since: float, word: Envelope) -> None:
        """Work on a message and reply; whatever goes wrong is told to the parent, and the node goes on."""
        self.phase = {"ask": f"round {word.round + 1} of {word.rounds}", "evaluate": "evaluating"}.get(
            word.kind, word.kind
        )
        try:
            reply = self.machine.answer_to(word, since)
        except Forgotten as error:
            self._refuse(word, str(error), forgotten=True)
        except Expired as error:
            self._refuse(word, str(error))
        except Diverged as error:
            self._refuse(word, str(error), reason=BAD)
        except Exception as error:
            # A node must not die of one message: its parent goes on without it, and it with the next.
            self.journal.event("failed", self.node.name, f"{type(error).__name__}: {error}")
            self._refuse(word, f"{type(error).__name__}: {error}"[:500], broken=not isinstance(error, OSError))
        else:
            if reply is not None:
                self._after(word)
                self.above.send(reply)
        self.phase = "waiting for its parent"

    def _after(self, word: Envelope) -> None:
        """Save the node's model where it was measured, and end with the training."""
        if word.kind in ("evaluate", "end"):
            try:
                self._save(word)
            except OSError as error:
                self.journal.event("failed", self.node.name, f"its model cannot be saved: {error}")
        if word.kind == "end":
            failed = word.body.get("failed") if isinstance(word.body, dict) else None
            self.journal.line(f"the training failed: {failed}" if failed else "the training is over")
            self.over = True

    def _save(self, word: Envelope) -> None:
        if self.node.tier == 0 and isinstance(word.body, dict) and word.body:
            save_personal(self.kit, self.machine, word)
        elif self.node.tier and "model" in self.machine.declared:
            save_team(self.kit, self.machine, word)

    def _refuse(self, word: Envelope, text: str, *, reason: int = NO_ANSWER, **more: bool) -> None:
        """Tell the parent why there is no reply: in words, and whether the state is ``forgotten`` or the program ``broken``."""
        told = {"reason": reason, "text": text, **more}
        if word.kind in ("ask", "evaluate", "end"):
            self.above.send(
                encode(Envelope(kind="error", round=word.round, path=word.path, starts=word.starts, body=told))
            )
