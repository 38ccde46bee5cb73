"""What an operator asks a running federation, with the certificate that `palmette deploy init` made for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from palmette.deploy.certificates import Authority, identity
from palmette.deploy.kit import AUTHORITY, CERTIFICATE, KEY, NODE, Kit, NodeFile
from palmette.deploy.kits import FILE, OPERATOR
from palmette.deploy.operating import operate
from palmette.deploy.tls import Identity
from palmette.errors import BadInput
from palmette.guards.texts import from_json
from palmette.values import shown

_MOST = 1 << 28


def ask(kits: Path, what: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Ask the server of a federation, and return its answer.

    Args:
        kits: The folder that `palmette deploy init` made.
        what: The question.
        seconds: How long to wait.
    """
    folder, told = kits / OPERATOR, operator(kits)
    server, mine = told["server"], None
    if not told["plain"]:
        mine = Identity(*((folder / name).read_bytes() for name in (CERTIFICATE, KEY, AUTHORITY)))
    own = identity(told["federation"], -1, OPERATOR) if told["plain"] else ""
    answer = operate(server["address"], mine, server["id"], json.dumps(what).encode(), seconds, own=own)
    return dict(from_json(answer, 1 << 26))


def revoke(kits: Path, name: str) -> dict[str, Any]:
    """Shut a node out of a federation, and say how many nodes heard of it."""
    authority = Authority.open(kits / "authority")
    folder, node = kit_of(kits, name)
    if node.parent is None:
        raise BadInput(f"{shown(name)} is the server; stop it where it runs")
    authority.revoke((folder / CERTIFICATE).read_bytes())
    crl = (kits / "authority" / "revoked.pem").read_text()
    return ask(kits, {"do": "revoke", "id": node.id, "crl": crl}, 15.0)


def operator(kits: Path) -> dict[str, Any]:
    """Return what the operator of a federation knows."""
    try:
        return dict(from_json((kits / OPERATOR / FILE).read_bytes(), _MOST))
    except OSError:
        raise BadInput(f"{kits} is not a folder that deploy init made: it has no {OPERATOR}/{FILE}") from None


def kit_of(kits: Path, name: str, tier: int | None = None) -> tuple[Path, NodeFile]:
    """Return the kit of a node, and what it says of it.

    Args:
        kits: The folder that `palmette deploy init` made.
        name: The node's name.
        tier: Its tier, where nodes of several may have the name.
    """
    there = [(path, Kit(path).node) for path in sorted(kits.iterdir()) if (path / NODE).is_file()]
    found = [(path, node) for path, node in there if node.name == name and tier in (None, node.tier)]
    if not found:
        raise BadInput(f"there is no kit of a node {shown(name)} in {kits}")
    if len(found) > 1:
        raise BadInput(f"{len(found)} nodes in {kits} are called {shown(name)}; rename their tree's nodes")
    return found[0]
