"""One node of a federation at work: it answers its parent, asks its children and keeps what it is."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from pathlib import Path
from queue import Empty
from typing import Any

import torch

from palmette.deploy.above import Above
from palmette.deploy.below import Below
from palmette.deploy.certificates import REVOKED, read_revoked
from palmette.deploy.journal import Journal
from palmette.deploy.keeping import Disk, packed, unpack
from palmette.deploy.kit import MODELS, STATE, Kit
from palmette.deploy.models import save_personal, save_team
from palmette.deploy.wires import Wires
from palmette.engines.channel import Queues
from palmette.engines.desk import Desk
from palmette.engines.machine import Expired, Forgotten, Machine
from palmette.engines.setup import Setup
from palmette.errors import Diverged, PalmetteError, WireError
from palmette.links.record import BAD, NO_ANSWER
from palmette.links.wire import Envelope, decode, encode

_TICK = 0.25  # seconds between signs of life of the process itself
_FROZEN = 1.5  # seconds without one after which it was stopped
_CALM = 0.2  # seconds that a process which was stopped gives the network to bring what came meanwhile
_RETURN = 5.0  # seconds for which a node that was started again waits for all of its children
_FIRST = 1 << 40  # where numbers of states begin at most, so that a disk that was lost is not taken for the one before


class Node:
    """What all nodes of a federation have in common: the machine, its disk, and the ends of its links.

    Args:
        kit: The node's kit.
        journal: Where it tells what happens.
    """

    def __init__(self, kit: Kit, journal: Journal) -> None:
        self.kit, self.node, self.journal = kit, kit.node, journal
        self.setup: Setup = kit.setup()
        for note in kit.notes:
            journal.line(note)
        self.disk = Disk(kit.folder / STATE)
        self.samples = dict[int, int]()  # training samples below each child that has said so
        self.ready, self.out = set[int](), set[int]()  # children that are ready, and those that were revoked
        self.began = time.monotonic()
        self.phase = "waiting for children" if self.node.children else "waiting for its parent"
        self.scores: dict[str, Any] = {}
        self.below = self._open_below() if self.node.children else None
        children = Queues() if self.below is None else Wires(self.below, self.node.children)
        desk = Desk(
            children,
            patience=self.node.patience,
            limit=self.node.limit,
            forms=self.node.below,
            event=self._on_child,
            hello=self._on_hello,
        )
        self.machine = Machine(self.setup, children, desk, deadline=self.node.deadline, limit=self.node.limit)
        self._go_on()

    # -- what is kept --------------------------------------------------------------------------------------------------

    def resume(self, told: dict[str, Any]) -> None:
        """Take what was kept beside the machine."""

    def _go_on(self) -> None:
        """Go on from what the disk has, or begin; how often the node was started is on the disk before it says a word."""
        machine, data = self.machine, self.disk.read()
        told: dict[str, Any] = {"starts": 0, "samples": {}} if data is None else unpack(machine, data)
        machine.starts = told["starts"] + 1
        self.samples = {int(child): count for child, count in told["samples"].items()}
        self.resume(told)
        if data is None:
            machine.version = int.from_bytes(os.urandom(4), "little") % _FIRST
        self._count_samples()
        self.keep()
        machine.on_kept = self.keep

    def keep(self) -> None:
        """Put what the node is on the disk."""
        self.disk.write(packed(self.machine, self.also_kept()))

    def also_kept(self) -> dict[str, Any]:
        """Return what is kept beside the machine."""
        return {"starts": self.machine.starts, "samples": self.samples}

    # -- children ------------------------------------------------------------------------------------------------------

    def _open_below(self) -> Below:
        node = self.node
        assert node.listen is not None
        return Below(
            node.listen,
            self.kit.identity,
            {child.id: child.name for child in node.children},
            limit=2 * node.limit,
            on_event=self._on_link,
            on_call=lambda child, data: None,
            operator=node.operator,
            on_operate=self.operate if node.operator else None,
            revoked=self._revoked(),
        )

    def _revoked(self, listed: str | None = None) -> frozenset[int]:
        """Return the serial numbers of revoked certificates: from a list that just came, which is kept, or the one that is."""
        path = self.kit.folder / REVOKED
        if listed is not None:
            assert self.kit.identity is not None
            # It refuses what this authority did not sign.
            found = read_revoked(listed.encode(), self.kit.identity.authority)
            path.write_text(listed, encoding="ascii")
            return found
        if not path.exists() or self.kit.identity is None:
            return frozenset()
        return read_revoked(path.read_bytes(), self.kit.identity.authority)

    def revoke(self, told: dict[str, Any]) -> int:
        """Shut a node out wherever it is below this one; return how many nodes heard of it."""
        if self.below is None or self.kit.identity is None:
            return 0
        serials = self._revoked(str(told["crl"]))
        numbers = {child.id: number for number, child in enumerate(self.node.children)}
        if (number := numbers.get(str(told["id"]))) is not None:
            self.below.expel(str(told["id"]), serials)
            self.out.add(number)
            self.journal.line(f"{self.node.children[number].name} is revoked")
        reached = 1
        for child in self.node.children if self.node.tier > 1 else ():
            answer = self.below.call(child.id, json.dumps(told).encode(), 5.0)
            reached += int(json.loads(answer).get("reached", 0)) if answer else 0
        return reached

    def operate(self, data: bytes) -> bytes:
        """Answer the operator."""
        raise PalmetteError("this node has no operator")

    def _name_of(self, id_: str) -> str:
        known = {child.id: child.name for child in self.node.children}
        if self.node.parent is not None:
            known[self.node.parent.id] = self.node.parent.name
        return known.get(id_, id_ or "a stranger")

    def _on_link(self, kind: str, who: str, detail: str) -> None:
        self.journal.event(kind, self._name_of(who), detail)

    def _on_child(self, kind: str, child: int, detail: str) -> None:
        if kind != "lost":  # the link says so itself
            self.journal.event(kind, self.node.children[child].name, detail)

    def _on_hello(self, child: int, word: Envelope) -> None:
        """Take note of what a child says of itself."""
        told = word.body if isinstance(word.body, dict) else {}
        samples, ready = told.get("samples"), told.get("ready")
        if not isinstance(samples, int) or samples < 0 or not isinstance(ready, bool):
            self.journal.event("damaged", self.node.children[child].name, "its first word makes no sense")
            return
        if ready:
            self.ready.add(child)
        before = self.samples.get(child)
        if before != samples and not self.node.dealt:
            self.samples[child] = samples
            self._count_samples()
            if before:
                self.journal.line(
                    f"{self.node.children[child].name} has {samples} training samples now; it had {before}"
                )

    def _count_samples(self) -> None:
        """Write the samples of the children, and their sum, where programs look."""
        if self.node.dealt or not self.node.children:
            return
        tier, counts = self.node.tier, self.setup.samples
        counts[tier - 1][:] = torch.tensor([self.samples.get(child, 0) for child in range(len(self.node.children))])
        counts[tier][:] = counts[tier - 1].sum()

    def gather(self) -> bool:
        """Listen until all children are ready, or those that never came are waited for no more; return whether they are."""
        if self.below is None:
            return True
        everybody = set(range(len(self.node.children))) - self.out
        if everybody <= self.ready:
            return True
        self.machine.desk.listen(0.1)
        limit = _RETURN if self.machine.now.round >= 0 else self.node.begin_after
        return limit is not None and time.monotonic() - self.began > limit and bool(self.ready)

    def close(self) -> None:
        """Close the ends of all links."""
        if self.below is not None:
            self.below.close()

    # -- telling -------------------------------------------------------------------------------------------------------

    def status(self, seconds: float = 2.0) -> dict[str, Any]:
        """Return what this node and all below it are doing."""
        machine, below = self.machine, self.below
        there = frozenset() if below is None else below.connected()
        told: dict[str, Any] = {
            "name": self.node.name,
            "tier": self.node.tier,
            "phase": self.phase,
            "round": machine.now.round + 1,
            "starts": machine.starts,
            "steps": machine.device_steps,
            "scores": self.scores,
            **self.journal.told(),
        }
        if below is None:
            return told
        totals = machine.ledger.totals().values()
        told["link"] = {
            "exchanges": sum(one.exchanges for one in totals),
            "bytes_down": sum(one.bytes_down for one in totals),
            "bytes_up": sum(one.bytes_up for one in totals),
            "no_answer": sum(one.no_answer for one in totals),
        }
        told["children"] = self._of_children(there, seconds)
        return told

    def _of_children(self, there: frozenset[str], seconds: float) -> list[dict[str, Any]]:
        """Ask all children at once how they are."""
        found: dict[str, dict[str, Any]] = {}
        ask = json.dumps({"do": "status", "seconds": 0.7 * seconds}).encode()

        def one(id_: str) -> None:
            assert self.below is not None
            answer = self.below.call(id_, ask, seconds)
            try:
                told = None if answer is None else json.loads(answer)
            except ValueError:
                told = None
            found[id_] = told if isinstance(told, dict) else {"phase": "does not answer"}

        threads = [
            threading.Thread(target=one, args=(child.id,), daemon=True)
            for child in self.node.children
            if child.id in there
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + 1)
        away = {"phase": "not connected"}
        return [
            {**found.get(child.id, away), "name": child.name, "connected": child.id in there}
            for child in self.node.children
        ]


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
        self._ended = False
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
            while not stop.is_set() and not self._ended:
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
        samples = int(self.setup.samples[self.node.tier][0])
        return encode(Envelope(kind="hello", body={"samples": samples, "ready": self._gathered}))

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
            self._ended = True
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
            self._ended = True

    def _save(self, word: Envelope) -> None:
        folder: Path = self.kit.folder / MODELS
        if self.node.tier == 0 and isinstance(word.body, dict) and word.body:
            save_personal(folder, self.machine, word)
        elif self.node.tier and "model" in self.machine.declared:
            save_team(folder, self.machine, word)

    def _refuse(self, word: Envelope, text: str, *, reason: int = NO_ANSWER, **more: bool) -> None:
        """Tell the parent why there is no reply: in words, and whether the state is ``forgotten`` or the program ``broken``."""
        told = {"reason": reason, "text": text, **more}
        if word.kind in ("ask", "evaluate", "end"):
            self.above.send(
                encode(Envelope(kind="error", round=word.round, path=word.path, starts=word.starts, body=told))
            )
