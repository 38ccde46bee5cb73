"""Devices that are added to a running federation.

A device is first let in (*admitted*): its parent takes its connection from now on. When it is there, and its samples are known,
the server counts it from the beginning of a round on (*joined*). Every message says how many added devices its sender counts
below the receiver, so all nodes on the way count the same devices in the same exchange, whoever was killed in between.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from palmette.deploy.kit import Place
from palmette.engines.growing import check_plan, grown
from palmette.errors import BadInput, PalmetteError
from palmette.guards.texts import from_json
from palmette.runs.files import Files

if TYPE_CHECKING:
    from palmette.deploy.node import Node

NEWCOMERS = "newcomers.json"
_PATIENCE = 5.0  # seconds for the way down and back
_MOST = 1 << 26


class Newcomer(BaseModel):
    """A device that was added.

    Attributes:
        name: Its name.
        id: Its opaque id.
        parent: Its parent's name.
        path: Ids of the nodes on the way to it, from below the node that keeps this down to its parent.
        again: Whether it was there before, and has a new certificate.
        samples: Its training samples; 0 before they are known.
        round: The round from which the server counts it, from 0; -1 before, and elsewhere.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    id: str
    parent: str
    path: tuple[str, ...] = ()
    again: bool = False
    samples: int = 0
    round: int = -1


class Kept(BaseModel):
    """What a node keeps of added devices.

    Attributes:
        admitted: Those that may connect, here or, at the server, anywhere below, in the order in which they were let in.
        joined: Those that are counted, or will be as soon as the parent does so, in the order in which the server counted them.
    """

    model_config = ConfigDict(extra="forbid")

    admitted: list[Newcomer] = []
    joined: list[Newcomer] = []


class Newcomers:
    """What a node knows of devices that were added below it.

    Args:
        node: The node.
    """

    def __init__(self, node: Node) -> None:
        self._node, self._files, self._alone = node, Files(node.kit.folder), threading.Lock()
        self._kept = read_newcomers(node.kit.folder)

    @property
    def own(self) -> list[Newcomer]:
        """Children that were let in."""
        return [one for one in self._kept.admitted if not one.path]

    @property
    def waiting(self) -> list[Newcomer]:
        """Those that were let in and are not counted yet."""
        counted = {one.id for one in self._kept.joined[: self._node.machine.grown]}
        return [one for one in self._kept.admitted if one.id not in counted]

    @property
    def counted(self) -> list[Newcomer]:
        """Those that are counted."""
        return self._kept.joined[: self._node.machine.grown]

    def count(self, number: int) -> None:
        """Count so many devices from now on."""
        node = self._node
        if number > len(self._kept.joined):
            raise PalmetteError(
                f"{node.node.name!r} is told of {number} devices that were added below it and knows of "
                f"{len(self._kept.joined)}; was its folder lost?"
            )
        for one in self._kept.joined[node.machine.grown : number]:
            child = self._child(one)
            node.machine.grow(one.name, one.parent, child, one.samples)
            if child is None:
                node.add(Place(name=one.name, id=one.id, below=(1,)), one.samples)
            else:
                node.samples[child] = node.samples.get(child, 0) + one.samples
            node.journal.line(f"{one.name} is counted from now on, with {one.samples} training samples")

    # -- letting a device in -------------------------------------------------------------------------------------------

    def admit(self, one: Newcomer) -> None:
        """Let a device connect to its parent: this node, or one below it.

        Raises:
            PalmetteError: The algorithm cannot take one more, the name is taken, or the way to its parent is not open.
        """
        if not one.again:
            before = self._node.machine.setup
            after = grown(before, one.name, one.parent, self._child(one), 0)
            if self._node.node.parent is None:
                check_plan(before, after, self._node.kit.config.rounds)
        if one.path:
            self._tell_child(one, {"do": "admit", **_told(one)})
        else:
            assert self._node.below is not None
            self._node.below.admit(one.id, one.name)
            self._node.out -= {number for number, child in enumerate(self._node.children) if child.id == one.id}
        if not one.again and (not one.path or self._node.node.parent is None):
            with self._alone:
                self._kept.admitted = [*(other for other in self._kept.admitted if other.id != one.id), one]
                self._save()
        self._node.journal.line(f"{one.name} is let in below {one.parent}{' again' if one.again else ''}")

    # -- counting it ---------------------------------------------------------------------------------------------------

    def join(self, round_: int) -> bool:
        """Begin to count those that are there now, as the server at the beginning of a round; return whether there are any."""
        before = self._node.machine.grown
        for one in self.waiting:
            try:
                self.prepare(one, self._node.machine.grown, round_)
            except PalmetteError as error:
                self._node.phase = f"{one.name} is not counted yet: {error}"
                continue
            self.count(self._node.machine.grown + 1)
        return self._node.machine.grown > before

    def prepare(self, one: Newcomer, place: int, round_: int = -1) -> int:
        """Take note that a device will be counted; return its samples.

        Args:
            one: The device.
            place: How many devices the parent counts below this node already; what was noted beyond them never came to be.
            round_: The round, where the server says it.

        Raises:
            PalmetteError: It is not there, or the way to it is not open.
        """
        if one.path:
            below = sum(other.path[:1] == one.path[:1] for other in self._kept.joined[:place])
            samples = int(self._tell_child(one, {"do": "join", "place": below, **_told(one)})["samples"])
        else:
            samples = self._samples_of(one)
        with self._alone:
            if place < self._node.machine.grown:
                raise PalmetteError(f"{self._node.node.name!r} counts more devices than its parent; was a folder lost?")
            found = one.model_copy(update={"samples": samples, "round": round_})
            self._kept.joined = [*self._kept.joined[:place], found]
            self._save()
        return samples

    def hear(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """Do what a parent asks concerning an added device."""
        one = Newcomer.model_validate(told["newcomer"])
        try:
            if told["do"] == "admit":
                self.admit(one)
                return {}
            return {"samples": self.prepare(one, int(told["place"]))}
        except (PalmetteError, OSError) as error:
            return {"refused": str(error)}

    # -- the way down --------------------------------------------------------------------------------------------------

    def _child(self, one: Newcomer) -> int | None:
        """Return the number of the child below which a device is; ``None`` where it is a child itself."""
        if not one.path:
            return None
        return next(number for number, child in enumerate(self._node.children) if child.id == one.path[0])

    def _tell_child(self, one: Newcomer, told: dict[str, Any]) -> dict[str, Any]:
        number = self._child(one)
        assert number is not None
        return self._ask(self._node.children[number].id, self._node.children[number].name, told)

    def _samples_of(self, one: Newcomer) -> int:
        return int(self._ask(one.id, one.name, {"do": "samples"})["samples"])

    def _ask(self, id_: str, name: str, told: dict[str, Any]) -> dict[str, Any]:
        assert self._node.below is not None
        answer = self._node.below.call(id_, json.dumps(told).encode(), _PATIENCE)
        if answer is None:
            raise PalmetteError(f"{name!r} is not connected, or did not answer within {_PATIENCE:.0f} s")
        try:
            found = dict(from_json(answer, _MOST))
        except (ValueError, TypeError, BadInput):
            found = {"refused": f"{name!r} answered nonsense"}
        if why := found.get("refused"):
            raise PalmetteError(str(why))
        return found

    def _save(self) -> None:
        self._files.write(NEWCOMERS, self._kept.model_dump_json(indent=1).encode())


def _told(one: Newcomer) -> dict[str, Any]:
    """Return a device as it is told to the first node on the way to it."""
    return {"newcomer": json.loads(one.model_copy(update={"path": one.path[1:]}).model_dump_json())}


def read_newcomers(kit: Path) -> Kept:
    """Return what a node keeps of added devices in its kit."""
    path = kit / NEWCOMERS
    try:
        return Kept.model_validate(from_json(path.read_bytes(), _MOST))
    except FileNotFoundError:
        return Kept()
    except (OSError, ValueError, BadInput, ValidationError) as error:
        raise BadInput(f"{path} cannot be read ({error}); it says which devices were added to the federation") from None
