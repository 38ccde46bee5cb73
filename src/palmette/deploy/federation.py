"""The file that describes a federation: what is trained, where its nodes are, how long they wait for each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from palmette.errors import BadInput
from palmette.protocol.sentences import sentences, suggestion
from palmette.runs.config import RunConfig
from palmette.runs.linking import LinkConfig
from palmette.runs.reading import make_config, read_config
from palmette.tree import Tree
from palmette.values import shown

Seconds = Annotated[float, Field(gt=0, le=30 * 24 * 3600)]
_LOCAL = "127.0.0.1"


class Federation(BaseModel):
    """What `palmette deploy init` reads.

    Attributes:
        name: Name of the federation, any text; certificates are made for it.
        engine: What carries the messages; ``"grpc"``.
        run: What is trained: all that the config of a run has (``palmette run --config``), its data too.
        data: Where the devices' samples come from: ``"kits"`` deals out those of ``run.data``, each device's into its own kit;
            ``"own"``: each device reads a file of its own, in the form of ``run.data``, which is then an example of it.
        addresses: Where each node that has children is reached, ``host:port`` by the node's name; ``"local"`` for everything on
            this machine.
        port: With local addresses, the first port; the others follow.
        deadline: Seconds that a parent waits for the reply of a device at most.
        patience: Seconds that a parent waits for a child whose connection was lost, once.
        begin_after: Seconds after which training begins without children that were never there; by default all are waited for.
        days: Days for which certificates are valid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(min_length=1, max_length=200)
    engine: Literal["grpc"] = "grpc"
    run: dict[str, Any]
    data: Literal["kits", "own"] = "kits"
    addresses: Literal["local"] | dict[str, str]
    port: Annotated[int, Field(ge=1024, le=60000)] = 7400
    deadline: Seconds = 60.0
    patience: Annotated[float, Field(ge=0, le=3600)] = 3.0
    begin_after: Seconds | None = None
    days: Annotated[int, Field(ge=1, le=7300)] = 365

    def config(self) -> RunConfig:
        """Return the config of the run, or refuse what cannot run on real machines."""
        config = make_config(self.run)
        simulated = [name for name, wanted in _simulated(config).items() if wanted]
        if simulated:
            raise BadInput(
                f"run: {', '.join(simulated)} simulate what a network and real machines do by themselves; leave them out of a "
                "federation"
            )
        if config.metrics:
            raise BadInput("run.metrics: a federation measures loss and accuracy only; leave metrics out")
        if isinstance(config.evaluate_on, int):
            raise BadInput("run.evaluate_on: a federation measures every device; leave evaluate_on out")
        if any(not given.again for given in config.given.values()):
            raise BadInput("run: a federation cannot hold objects of Python; name the algorithm and the model")
        if any(link.on_bad_reply for link in config.links.values()):
            return config
        # One device that diverges, perhaps one that joined late, must not end the training of all.
        every = config.links.get("all", LinkConfig()).model_copy(update={"on_bad_reply": "drop"})
        return config.model_copy(update={"links": {**config.links, "all": every}})

    def places(self, tree: Tree) -> dict[tuple[int, int], str]:
        """Return the address of every node that has children, by tier and number."""
        inner = [(tier, number) for tier in range(tree.top, 0, -1) for number in range(tree.size(tier))]
        if self.addresses == "local":
            return {place: f"{_LOCAL}:{self.port + at}" for at, place in enumerate(inner)}
        assert isinstance(self.addresses, Mapping)
        names = {tree.name(*place): place for place in inner}
        if len(names) < len(inner):
            raise BadInput(
                "two nodes that have children have the same name, so addresses cannot tell them apart; rename one"
            )
        for name, given in self.addresses.items():
            if name not in names:
                raise BadInput(
                    f"addresses: there is no node {shown(name)} that has children{suggestion(name, dict.fromkeys(names, ''))}"
                )
            check_address(given, f"addresses.{name}")
        if missing := [name for name in names if name not in self.addresses]:
            raise BadInput(f"addresses leaves out {shown(missing[0])}; children must know where each parent is")
        return {names[name]: given for name, given in self.addresses.items()}


def check_address(given: str, what: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, or refuse what is none."""
    found = re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", given)
    if not found or not 0 < int(found[2]) < 65536:
        raise BadInput(f"{what} = {shown(given)} is no address; write host:port, as in edge.example.org:7400")
    return found[1], int(found[2])


def read_federation(path: Path) -> Federation:
    """Read the file of a federation; all problems are told at once."""
    values, known = read_config(path), sentences(Federation)
    unknown = [key for key in values if key not in Federation.model_fields]
    problems = [f"unknown key {shown(key)}{suggestion(key, known)}" for key in unknown]
    try:
        found = Federation.model_validate({key: value for key, value in values.items() if key not in unknown})
    except ValidationError as error:
        for item in error.errors():
            where = str(item["loc"][0])
            said = "must be given" if item["type"] == "missing" else item["msg"]
            problems.append(f"{where}: {said} ({known.get(where, '')})")
    if problems:
        raise BadInput(f"{path}: " + "; ".join(dict.fromkeys(problems)))
    return found


def _simulated(config: RunConfig) -> dict[str, bool]:
    """Return which settings of a config simulate a network."""
    timed = any(link.timed for link in config.links.values())
    faults = any(
        getattr(link, name, None)
        for link in config.links.values()
        for name in ("lost", "late", "corrupt", "repeated", "deadline", "away")
    )
    return {
        "clock.*": config.clock.make(asked=timed) is not None,
        "loss": bool(config.loss),
        "replay": config.replay is not None,
        "faults of links.*": bool(faults),
        "data.unseen": bool((config.data.model_extra or {}).get("unseen")),
    }
