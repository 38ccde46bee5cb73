"""What an operator asks a running federation, with the certificate that `palmette deploy init` made for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from palmette.deploy.certificates import Authority, identity
from palmette.deploy.kit import AUTHORITY, CERTIFICATE, KEY, NODE
from palmette.deploy.kits import FILE, OPERATOR
from palmette.deploy.operating import operate
from palmette.deploy.tls import Identity
from palmette.errors import BadInput
from palmette.guards.texts import from_json
from palmette.values import shown

_MOST = 1 << 20


def ask(kits: Path, what: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Ask the server of a federation, and return its answer.

    Args:
        kits: The folder that `palmette deploy init` made.
        what: The question.
        seconds: How long to wait.
    """
    folder, told = _operator(kits)
    server, mine = told["server"], None
    if not told["plain"]:
        mine = Identity(*((folder / name).read_bytes() for name in (CERTIFICATE, KEY, AUTHORITY)))
    own = identity(told["federation"], -1, OPERATOR) if told["plain"] else ""
    answer = operate(server["address"], mine, server["id"], json.dumps(what).encode(), seconds, own=own)
    return dict(from_json(answer, 1 << 26))


def revoke(kits: Path, name: str) -> dict[str, Any]:
    """Shut a node out of a federation, and say how many nodes heard of it."""
    authority = Authority.open(kits / "authority")
    found = [path for path in sorted(kits.iterdir()) if (path / NODE).is_file() and _name(path) == name]
    if not found:
        raise BadInput(f"there is no kit of a node {shown(name)} in {kits}")
    if len(found) > 1:
        raise BadInput(f"{len(found)} nodes in {kits} are called {shown(name)}; rename their tree's nodes")
    told = from_json((found[0] / NODE).read_bytes(), 1 << 28)
    if told["parent"] is None:
        raise BadInput(f"{shown(name)} is the server; stop it where it runs")
    authority.revoke((found[0] / CERTIFICATE).read_bytes())
    crl = (kits / "authority" / "revoked.pem").read_text()
    return ask(kits, {"do": "revoke", "id": told["id"], "crl": crl}, 15.0)


def _operator(kits: Path) -> tuple[Path, dict[str, Any]]:
    folder = kits / OPERATOR
    try:
        return folder, dict(from_json((folder / FILE).read_bytes(), _MOST))
    except OSError:
        raise BadInput(f"{kits} is not a folder that deploy init made: it has no {OPERATOR}/{FILE}") from None


def _name(path: Path) -> str:
    return str(from_json((path / NODE).read_bytes(), 1 << 28)["name"])
