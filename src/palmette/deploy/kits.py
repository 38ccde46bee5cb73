"""From the file of a federation to one kit for each node."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.deploy.certificates import Authority, identity
from palmette.deploy.federation import Federation, check_address
from palmette.deploy.kit import (
    AUTHORITY,
    CERTIFICATE,
    DATA,
    KEY,
    NODE,
    Known,
    NodeFile,
    Place,
    shape_of,
    stand_in,
)
from palmette.deploy.outcome import CONFIG, IDENTITY
from palmette.deploy.rehearsal import rehearse
from palmette.engines.setup import Setup, of_device, setup_of
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.files import is_file
from palmette.population import Population
from palmette.runs.config import RunConfig
from palmette.runs.fingerprint import fingerprint
from palmette.runs.preparing import prepare
from palmette.tree import Tree
from palmette.values import shown

OPERATOR = "operator"
_MANY = 20  # kits that are listed
FILE = "federation.json"  # what the commands of an operator need
_MARGIN, _SPARE = 1.5, 10.0  # of the deadlines below; seconds


@dataclass(frozen=True)
class Kits:
    """What `palmette deploy init` made.

    Attributes:
        folder: Where they are, one folder for each node and one for the operator.
        whole: The simulation of the same training.
        config: Its resolved config.
        nodes: The kit of each node, by tier and number.
        notes: What was decided, in sentences.
    """

    folder: Path
    whole: Simulation
    config: RunConfig
    nodes: dict[tuple[int, int], Path]
    notes: list[str]


def make_kits(federation: Federation, folder: Path, *, plain: bool = False) -> Kits:
    """Make a federation's authority, and one kit for each node.

    Args:
        federation: What is trained, and where.
        folder: Where the kits go; there must be nothing yet.
        plain: Whether there are no certificates, for trials on one machine.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is there already; choose another --out, or remove it first")
    config = federation.config()
    example = config.population()
    whole = prepare(config, population=example if federation.data == "kits" else _of_nobody(example, config))
    if whole.population.unseen is not None:
        raise BadInput("these data have devices that are kept out of training, which a federation does not have")
    config = config.on(whole.population, whole.algorithm)
    resolved = config.resolved(whole.algorithm, whole.population, whole.task, whole.learner.backend.name)
    own = {role: given for role, given in resolved.given.items() if role != "data"}
    if objects := sorted(role for role, given in own.items() if not given.again):
        raise BadInput(
            f"the {', '.join(objects)} of this run cannot be made again from a file, so the nodes could not have it"
        )
    tree = whole.tree
    places = federation.places(tree)
    rehearsed = rehearse(whole, resolved)
    deadlines = _deadlines(federation.deadline, rehearsed.asks)
    notes = [
        f"a parent waits at most {seconds:.0f} s for its {'devices' if tier == 1 else 'children'} in each exchange"
        for tier, seconds in deadlines.items()
    ]
    for role, given in own.items():
        where = "at this path" if is_file(given.object) else "installed"
        notes.append(f"the {role} is {given.object}: no code is sent, so every machine needs it, {where}")
    if whole.algorithm.flat and whole.population.tree.top > 1:
        notes.append(f"{whole.algorithm.name} knows no teams: all devices dial the server")
    folder.mkdir(parents=True, exist_ok=True)
    authority = None if plain else Authority.create(folder / "authority", federation.name)
    shared: dict[str, Any] = {
        "federation": federation.name,
        "plain": plain,
        "config": _without_data(resolved),
        "data": shape_of(whole.population),
        "dealt": federation.data == "kits",
        "patience": federation.patience,
        "begin_after": federation.begin_after,
        "limit": rehearsed.limit,
        "top": whole.population.tree.top,
    }
    nodes = {}
    for tier in range(tree.tiers):
        for number in range(tree.size(tier)):
            setup = setup_of(whole, tier, number, bare=True)
            forms = {"above": rehearsed.forms.get(tier + 1, {}), "below": rehearsed.forms.get(tier, {})}
            told = _told(federation.name, setup, tree, number, places, deadlines, {**shared, **forms})
            path = nodes[tier, number] = folder / _folder_of(tree, tier, number)
            path.mkdir()
            write(path / NODE, told.model_dump_json(indent=1).encode())
            if authority is not None:
                certify(path, authority, told.id, federation.days, serves=tier > 0)
            if tier == 0 and federation.data == "kits":
                of_device(whole.population, number, setup.tree).save(path / DATA)
            services(path, told)
    _for_server(nodes[tree.top, 0], whole, resolved)
    forms = {"above": rehearsed.forms[1]}
    device = _told(federation.name, setup_of(whole, 0, 0, bare=True), tree, 0, places, deadlines, {**shared, **forms})
    _for_operator(folder, federation, whole, places, authority, device)
    renamed = [(name, path) for place, path in nodes.items() if path.name != (name := tree.name(*place))]
    notes += [f"the kit of {shown(name)} is {path}" for name, path in renamed[:_MANY]]
    if len(renamed) > _MANY:
        notes.append(f"the kits of {len(renamed) - _MANY} more nodes have other names than their nodes, too")
    return Kits(folder, whole, resolved, nodes, notes)


def _told(
    name: str,
    setup: Setup,
    tree: Tree,
    number: int,
    places: dict[tuple[int, int], str],
    deadlines: dict[int, float],
    shared: dict[str, Any],
) -> NodeFile:
    """Return what one node is told."""
    tier, parent = setup.tier, None
    if tier < tree.top:
        above = int(tree.parents[tier][number])
        called = tree.name(tier + 1, above)
        parent = Place(name=called, id=identity(name, tier + 1, called), address=places[tier + 1, above])
    children = [
        Place(name=tree.name(tier - 1, child), id=identity(name, tier - 1, tree.name(tier - 1, child)), below=below)
        for child, below in zip(tree.children(tier, number), setup.below, strict=True)
    ]
    listen = None
    if tier:
        host, port = check_address(places[tier, number], "address")
        listen = f"{host if host == '127.0.0.1' else '0.0.0.0'}:{port}"
    return NodeFile(
        name=setup.name,
        id=identity(name, tier, setup.name),
        tier=tier,
        listen=listen,
        parent=parent,
        children=children,
        operator=identity(name, -1, OPERATOR) if tier == tree.top else None,
        known=Known.of(setup.tree),
        samples=[counts.tolist() if shared["dealt"] else [0] * len(counts) for counts in setup.samples],
        kinds=setup.kinds,
        deadline=deadlines.get(tier),
        **{**shared, "config": _with_settings(shared["config"], setup)},
    )


def _deadlines(devices: float, asks: dict[int, int]) -> dict[int, float]:
    """Return how long the parents of each tier wait: longer than all that their children may wait for, one after the other."""
    found = {1: devices}
    for tier in sorted(asks):
        if tier > 1:
            found[tier] = math.ceil(_MARGIN * asks[tier] * found[tier - 1] + _SPARE)
    return found


def _of_nobody(example: Population, config: RunConfig) -> Population:
    """Return a population with the tree of the config, and samples of nobody that are like the example's."""
    return stand_in(shape_of(example), config.make_tree())


def _without_data(config: RunConfig) -> dict[str, Any]:
    """Return a config as plain data, without what only concerns the data and this machine."""
    left_out: Any = {"data": True, "given": {"data"}, "tree": True, "server": True, "replay": True}
    told = json.loads(config.model_dump_json(exclude=left_out, exclude_none=True))
    return {**told, "tree": 1}


def _with_settings(config: dict[str, Any], setup: Setup) -> dict[str, Any]:
    """Return a config whose settings by name are those of the nodes that one node knows."""
    own = dataclasses.asdict(setup.algorithm)  # type: ignore[call-overload]
    return {**config, "settings": {name: own[name] for name in config["settings"]}}


def safe_name(name: str) -> str:
    """Return a node's name as that of a folder."""
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name).strip(".")


def _folder_of(tree: Tree, tier: int, number: int) -> str:
    """Return the name of a node's kit: its own, where that can be the name of a folder."""
    name = tree.name(tier, number)
    safe = safe_name(name)
    taken = any(tree.known(other, name) is not None for other in range(tree.tiers) if other != tier)
    if safe != name or taken or len(safe) > 80 or safe in ("authority", OPERATOR):
        safe = f"{safe[:60]}-{tier}-{number}"
    return safe


def certify(path: Path, authority: Authority, id: str, days: int, *, serves: bool) -> None:  # noqa: A002
    """Write a certificate, its key and the authority's certificate into a kit."""
    made = authority.issue(id, days=days, serves=serves)
    write(path / CERTIFICATE, made.certificate)
    write(path / KEY, made.key, mode=0o600)
    write(path / AUTHORITY, authority.certificate)


def _for_server(path: Path, whole: Simulation, config: RunConfig) -> None:
    """Write what goes into the folder of the run."""
    write(path / CONFIG, config.to_toml().encode())
    write(path / IDENTITY, json.dumps(dataclasses.asdict(fingerprint(whole, config))).encode())


def _for_operator(
    folder: Path,
    federation: Federation,
    whole: Simulation,
    places: dict[tuple[int, int], str],
    authority: Authority | None,
    device: NodeFile,
) -> None:
    """Write what the commands of an operator need: the server's address, the tree, and a certificate of its own."""
    path, tree = folder / OPERATOR, whole.tree
    path.mkdir()
    server = tree.name(tree.top, 0)
    named = whole.algorithm.by_name.items()
    told = {
        "federation": federation.name,
        "server": {"name": server, "id": identity(federation.name, tree.top, server), "address": places[tree.top, 0]},
        "plain": authority is None,
        "days": federation.days,
        "tree": Known.of(tree).model_dump(),
        "named": whole.population.tree.labels[0] is not None,
        "by_name": [name for name, of in named if of == 0 and isinstance(vars(whole.algorithm).get(name), Mapping)],
        "addresses": [places[1, number] for number in range(tree.size(1))],
        "device": json.loads(device.model_dump_json()),
    }
    write(path / FILE, json.dumps(told, indent=1).encode())
    if authority is not None:
        certify(path, authority, identity(federation.name, -1, OPERATOR), federation.days, serves=False)


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file that is not there yet; nobody else can read a key at any moment."""
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)


_UNIT = """[Unit]
Description=Palmette federation {federation}: {name}
After=network-online.target
Wants=network-online.target

[Service]
{own}ExecStart=/usr/bin/env palmette serve --kit {folder}{data}
Restart=on-failure
RestartSec=2
NoNewPrivileges=true

[Install]
WantedBy=multi-user.target
"""
_COMPOSE = """services:
  node:
    image: palmette
    command: palmette serve --kit /kit{data}
    volumes: [".:/kit"{own}]
    restart: on-failure
    network_mode: host
"""


def services(path: Path, told: NodeFile) -> None:
    """Write how a machine keeps the node running: a unit for systemd, and a file for compose."""
    own = told.tier == 0 and not told.dealt  # it reads samples of its own, and only its owner knows from where
    line = {"federation": _line(told.federation), "name": _line(told.name), "folder": f"/etc/palmette/{path.name}"}
    line |= {"own": "# --data: put the file or folder of this device's samples here.\n" if own else ""}
    line |= {"data": " --data /var/lib/palmette/samples.csv" if own else ""}
    write(path / "palmette.service", _UNIT.format(**line).encode())
    mount = (
        {"own": ', "/var/lib/palmette:/data"', "data": " --data /data/samples.csv"} if own else {"own": "", "data": ""}
    )
    write(path / "compose.yaml", _COMPOSE.format(**mount).encode())


def _line(text: str) -> str:
    """Return a text as one that a unit file may hold: in one line, without specifiers."""
    return "".join(letter if letter.isprintable() else " " for letter in text).replace("%", "%%")
