"""``palmette deploy enrol``: one more device for a running federation, or a new certificate for one that was revoked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.deploy.asking import ask, kit_of, operator
from palmette.deploy.certificates import Authority, identity, serial_of
from palmette.deploy.kit import AUTHORITY, CERTIFICATE, KEY, NODE, Known, NodeFile, Place
from palmette.deploy.kits import FILE, OPERATOR, certify, safe_name, services, write
from palmette.deploy.newcomers import Newcomer
from palmette.errors import BadInput
from palmette.runs.files import Files
from palmette.tree import Tree, view
from palmette.tree.joining import joined
from palmette.values import shown

_SECONDS = 20.0


@dataclass(frozen=True)
class Enrolled:
    """A device that may connect from now on.

    Attributes:
        kit: Its kit.
        parent: Its parent's name.
        again: Whether it was there before, and has a new certificate.
        dealt: Whether its samples are in its kit.
    """

    kit: Path
    parent: str
    again: bool
    dealt: bool


def enrol(kits: Path, name: str, parent: str | None = None) -> Enrolled:
    """Add a device to a running federation, and make its kit.

    Args:
        kits: The folder that `palmette deploy init` made.
        name: The device's name. One that was revoked gets a new certificate and goes on where it was.
        parent: The team under which it comes, where there are several.
    """
    told = operator(kits)
    authority = None if told["plain"] else Authority.open(kits / "authority")
    tree = Known.model_validate(told["tree"]).tree()
    if (number := tree.known(0, name)) is not None:
        return _again(kits, told, authority, tree, number)
    if not told["named"]:
        raise BadInput(
            "the devices of this federation have numbers and no names, so none can be added; name them in the file of the "
            'federation, as in tree = {oslo = ["camera-1", "camera-2"]}'
        )
    if told["by_name"]:
        raise BadInput(
            f"this training has {shown(told['by_name'][0])} for each device by its name, and none for {shown(name)}; a device "
            "can be added where all have the same settings"
        )
    above = _parent(tree, parent)
    after = joined(tree, above, name)
    number = tree.children(1, above).stop
    file = NodeFile.model_validate(told["device"]).model_copy(
        update={
            "name": name,
            "id": identity(told["federation"], 0, name),
            "known": Known.of(view(after, 0, number)),
            "samples": [[0]] * tree.tiers,
            "dealt": False,
            "parent": _place(told, tree, above),
        }
    )
    folder = kits / (safe_name(name)[:80] or "device")
    if folder.exists():
        folder = kits / f"{folder.name[:60]}-0-{number}"
    if folder.exists():
        raise BadInput(f"{folder} is there already; move it away")
    _admit(kits, told, tree, above, name)
    folder.mkdir()
    write(folder / NODE, file.model_dump_json(indent=1).encode())
    if authority is not None:
        certify(folder, authority, file.id, int(told["days"]), serves=False)
    services(folder, file)
    Files(kits / OPERATOR).write(FILE, json.dumps({**told, "tree": Known.of(after).model_dump()}, indent=1).encode())
    return Enrolled(folder, tree.name(1, above), again=False, dealt=False)


def _parent(tree: Tree, parent: str | None) -> int:
    """Return the number of a device's parent."""
    if parent is not None:
        if tree.known(1, parent) is None:
            raise BadInput(f"no device reports to {shown(parent)}; --parent is one of {', '.join(tree.names(1)[:20])}")
        return tree.find(1, parent)
    if tree.size(1) > 1:
        raise BadInput(f"say under which team it comes: --parent {' or '.join(tree.names(1)[:20])}")
    return 0


def _place(told: dict[str, Any], tree: Tree, above: int) -> Place:
    called = tree.name(1, above)
    return Place(name=called, id=identity(told["federation"], 1, called), address=told["addresses"][above])


def _admit(kits: Path, told: dict[str, Any], tree: Tree, above: int, name: str, *, again: bool = False) -> None:
    """Tell the server, and so everybody on the way, to let a device in."""
    path, node = [], above
    for tier in range(1, tree.top):
        path.append(identity(told["federation"], tier, tree.name(tier, node)))
        node = int(tree.parents[tier][node])
    one = Newcomer(
        name=name,
        id=identity(told["federation"], 0, name),
        parent=tree.name(1, above),
        path=tuple(reversed(path)),
        again=again,
    )
    ask(kits, {"do": "enrol", "newcomer": json.loads(one.model_dump_json())}, _SECONDS)


def _again(kits: Path, told: dict[str, Any], authority: Authority | None, tree: Tree, number: int) -> Enrolled:
    """Make a new certificate for a device whose old one is revoked."""
    name, above = tree.name(0, number), int(tree.parents[0][number])
    folder, file = kit_of(kits, name, tier=0)
    if authority is None or serial_of((folder / CERTIFICATE).read_bytes()) not in authority.revoked:
        raise BadInput(
            f"there is a device {shown(name)} already; names must differ. To give it a new certificate, revoke it first"
        )
    _admit(kits, told, tree, above, name, again=True)
    for each in (CERTIFICATE, KEY, AUTHORITY):
        (folder / each).unlink(missing_ok=True)
    certify(folder, authority, file.id, int(told["days"]), serves=False)
    return Enrolled(folder, tree.name(1, above), again=True, dealt=file.dealt)
