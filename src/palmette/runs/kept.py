"""What a run left in its folder, read as if a stranger had written it.

Checksums tell of accidents; whoever makes a folder makes its checksums too. So everything that is read back is held against
what a run writes: columns and types, ranges, sizes against the files that are really there. No code is loaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from palmette.errors import BadInput
from palmette.guards.texts import MOST, from_json
from palmette.population import Encoding
from palmette.protocol import model_kind
from palmette.runs.absences import SCHEMA as MISSING
from palmette.runs.config import RunConfig
from palmette.runs.files import Files
from palmette.runs.folder import (
    ABSENCES,
    CONFIG,
    ENCODING,
    EVALUATION,
    LOG,
    METRICS,
    OUTLINE,
    POPULATION,
    PROGRESS,
    TIMINGS,
    TRAFFIC,
)
from palmette.runs.metrics import OWN, SCHEMA, TRAFFIC_SCHEMA, traffic_table
from palmette.runs.reading import make_config, read_config
from palmette.runs.roll import SCHEMA as ROLL
from palmette.values import one_line, rough, shown

_NODES, _TIMES = 10**6, 64  # a tree may have so many nodes, or so many for each byte of the table that lists them
_TIERS = 64

Steps = Annotated[int, Field(ge=0, lt=2**63)]
Real = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_OUTLINE = TypeAdapter(dict[str, str | float | int | dict[str, float | int]])


class _Timings(BaseModel):
    """The seconds of a run and its steps; further counts may be there."""

    model_config = ConfigDict(extra="allow", strict=True)
    __pydantic_extra__: dict[str, Steps]

    seconds: dict[str, Real]
    device_steps: Steps
    device_steps_per_second: Real


class _SoFar(BaseModel):
    """How far a run is that is not finished."""

    model_config = ConfigDict(extra="ignore", strict=True)

    round: Annotated[int, Field(ge=0, lt=2**31)] = 0
    ended: str = ""
    traffic: list[list[Steps]] = []


class _Model(BaseModel):
    """What a file of models says of the model."""

    model_config = ConfigDict(extra="ignore", strict=True)

    shape: list[Annotated[int, Field(ge=0, lt=2**31)]]
    classes: Annotated[int, Field(ge=1, lt=2**31)] | None
    tied: dict[str, str] = {}


class _About(BaseModel):
    """What a file of models says of them."""

    model_config = ConfigDict(extra="ignore", strict=True)

    nodes: list[str]
    model: _Model


def config_in(files: Files) -> RunConfig:
    """Return the config of the run in a folder; code that it names is not loaded."""
    path = files.path / CONFIG
    values = read_config(path, files.read(CONFIG))
    try:
        nodes = _claimed(values.get("tree", "4x10"))
    except RecursionError:
        raise BadInput(f"cannot read config {path}: its tree is nested too deeply") from None
    listed = next((name for name in (POPULATION, METRICS, PROGRESS) if files.has(name)), None)
    room = max(_NODES, _TIMES * (files.path / listed).stat().st_size if listed else 0)
    if nodes > room:
        told = f"and {listed} is far too small to list them" if listed else "and no file lists them"
        raise BadInput(f"{path} has a tree of {rough(nodes)} nodes, {told}: no run wrote this")
    return make_config(values, kept=True)


def _claimed(tree: Any) -> int:
    """Return at least how many devices a config's tree has, without making it; 0 for what is no tree."""
    if isinstance(tree, bool):
        return 0
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        factors = re.split("[x×]", tree)
        sizes = [int(one) for one in factors if re.fullmatch(r"\s*[0-9]{1,20}\s*", one)]
        return math.prod(sizes) if len(sizes) == len(factors) <= _TIERS else 0
    if isinstance(tree, Mapping):
        return sum(map(_claimed, tree.values()))
    if isinstance(tree, list):
        return sum(tree) if all(type(one) is int for one in tree) else len(tree)
    return 0


# -- tables ----------------------------------------------------------------------------------------------------------------


def history(files: Files, config: RunConfig) -> pa.Table:
    """Return the metrics of a finished run."""
    table = _history(files, METRICS, config.rounds)
    if not table.num_rows:
        raise BadInput(f"cannot read {files.path / METRICS}: nothing was measured, and a run that is finished was")
    return table


def progress(files: Files, config: RunConfig) -> tuple[pa.Table, pa.Table, int, str]:
    """Return of a run that is not finished the metrics so far, the traffic, the rounds done, and how it ended."""
    if not files.has(PROGRESS):
        return SCHEMA.empty_table(), TRAFFIC_SCHEMA.empty_table(), 0, ""
    table, where = _history(files, PROGRESS, config.rounds), files.path / PROGRESS
    told = _validated(where, _SoFar, from_json, (table.schema.metadata or {}).get(b"so far", b"{}"))
    if told.round > config.rounds:
        raise BadInput(f"cannot read {where}: it tells of round {told.round} of {config.rounds}")
    try:
        sent = traffic_table(told.traffic)
    except (pa.ArrowException, ValueError) as error:
        raise BadInput(f"cannot read {where}: its traffic: {one_line(str(error))}") from None
    return table, _traffic(sent, where, config.rounds), told.round, told.ended


def _history(files: Files, name: str, rounds: int) -> pa.Table:
    """Return a table of metrics that holds together."""
    table, where = files.read_table(name, SCHEMA), files.path / name
    _refuse_gaps(table, where)
    if not table.num_rows:
        return table
    _refuse_outside(table, where, "round", 0, rounds)
    _refuse_outside(table, where, "tier", 0, _TIERS - 1)
    top = pc.max(table["tier"]).as_py()
    kinds = {model_kind(tier, top) for tier in range(top + 1)}
    if strange := set(table["model"].unique().to_pylist()) - kinds:
        raise BadInput(
            f"cannot read {where}: it is about the models {shown(min(strange))}, which a tree of {top + 1} tiers lacks"
        )
    counts = table.filter(pc.and_(pc.equal(table["weight"], OWN), pc.equal(table["statistic"], "sum")))["value"]
    if not pc.all(pc.is_finite(counts), min_count=0).as_py():
        raise BadInput(f"cannot read {where}: a count in it is no number")
    return table


def sent(files: Files, config: RunConfig) -> pa.Table:
    """Return the traffic of a finished run."""
    return _traffic(files.read_table(TRAFFIC, TRAFFIC_SCHEMA), files.path / TRAFFIC, config.rounds)


def evaluation(files: Files, config: RunConfig) -> pa.Table:
    """Return what evaluation sent, besides training; empty in a run that is not finished."""
    if not files.has(EVALUATION):
        return TRAFFIC_SCHEMA.empty_table()
    files.check(EVALUATION)
    return _traffic(files.read_table(EVALUATION, TRAFFIC_SCHEMA), files.path / EVALUATION, config.rounds + 1)


def absences(files: Files, config: RunConfig) -> pa.Table:
    """Return who was absent when, and why; empty where nobody was."""
    if not files.has(ABSENCES):
        return MISSING.empty_table()
    files.check(ABSENCES)
    table, where = files.read_table(ABSENCES, MISSING), files.path / ABSENCES
    _refuse_gaps(table, where)
    _refuse_outside(table, where, "round", 1, config.rounds)
    _refuse_outside(table, where, "tier", 0, _TIERS - 1)
    _refuse_outside(table, where, "exchange", 1, 2**31 - 1)
    return table


def _traffic(table: pa.Table, where: Path, rounds: int) -> pa.Table:
    _refuse_gaps(table, where)
    for name in table.column_names:
        most = rounds - 1 if name == "round" else _TIERS - 1 if name == "tier" else 2**63 - 1
        _refuse_outside(table, where, name, 0, most)
    return table


def roll(files: Files) -> pa.Table | None:
    """Return every node with its parent, samples and labels; ``None`` in runs of older versions."""
    if not files.has(POPULATION):
        return None
    table, where = files.read_table(POPULATION, ROLL), files.path / POPULATION
    _refuse_gaps(table.drop(["labels", "target"]), where)
    if not table.num_rows:
        raise BadInput(f"cannot read {where}: it lists nobody")
    _refuse_outside(table, where, "tier", 0, _TIERS - 1)
    for name in ("train", "test"):
        _refuse_outside(table, where, name, 0, 2**62)
    top = pc.max(table["tier"]).as_py()
    sizes = [pc.sum(pc.equal(table["tier"], tier)).as_py() or 0 for tier in range(top + 1)]
    if not top or min(sizes) < 1 or sizes[-1] != 1:
        raise BadInput(f"cannot read {where}: its nodes are no tree")
    for tier, size in enumerate([*sizes[1:], 0]):
        _refuse_outside(table.filter(pc.equal(table["tier"], tier)), where, "parent", 0 if size else -1, size - 1)
    for name in ("labels", "target"):
        _refuse_ragged(table, where, name, sizes[0])
    _validated(where, TypeAdapter(list[str]), from_json, (table.schema.metadata or {}).get(b"classes", b"[]"))
    return table


def _refuse_ragged(table: pa.Table, where: Path, name: str, devices: int) -> None:
    """Refuse lists of different lengths; there is one for every device, or none at all."""
    mine = table.filter(pc.equal(table["tier"], 0))[name]
    lengths = pc.list_value_length(mine).unique().to_pylist()
    if len(lengths) > 1 or pc.list_flatten(mine).null_count or (name == "target" and lengths not in ([None], [5])):
        raise BadInput(f"cannot read {where}: the lists in its column {name!r} are not alike")


def _refuse_gaps(table: pa.Table, where: Path) -> None:
    if gap := next((name for name in table.column_names if table[name].null_count), None):
        raise BadInput(f"cannot read {where}: its column {gap!r} has gaps")


def _refuse_outside(table: pa.Table, where: Path, name: str, least: int, most: int) -> None:
    if not table.num_rows:
        return
    low, high = (pc.min_max(table[name]).as_py()[end] for end in ("min", "max"))
    if low < least or high > most:
        raise BadInput(
            f"cannot read {where}: its column {name!r} goes from {low} to {high}, and may from {least} to {most}"
        )


# -- small files -----------------------------------------------------------------------------------------------------------


def timings(files: Files) -> dict[str, Any]:
    """Return the seconds and steps of a finished run."""
    told: dict[str, Any] = _validated(files.path / TIMINGS, _Timings, from_json, files.read(TIMINGS)).model_dump()
    return told


def outline(files: Files) -> dict[str, Any]:
    """Return what an algorithm's settings came to; nothing where it told nothing."""
    if not files.has(OUTLINE):
        return {}
    told: dict[str, Any] = _validated(files.path / OUTLINE, _OUTLINE, from_json, files.read(OUTLINE))
    if any(isinstance(one, dict) and not one for one in told.values()):
        raise BadInput(f"cannot read {files.path / OUTLINE}: one of its lists of numbers is empty")
    return told


def encoding(files: Files) -> Encoding | None:
    """Return how a table's columns became the inputs of the models; ``None`` without a table."""
    if not files.has(ENCODING):
        return None
    found: Encoding = _validated(files.path / ENCODING, TypeAdapter(Encoding), _encoding, files.read(ENCODING))
    return found


def _encoding(data: bytes) -> Encoding:
    return Encoding.from_dict(from_json(data))


def about_models(files: Files, name: str) -> dict[str, Any]:
    """Return what a file of models says of them: whose they are, and of which model."""
    told = _validated(files.path / name, _About, lambda data: data, files.read_about(name)).model_dump()
    if not told["nodes"]:
        raise BadInput(f"cannot read {files.path / name}: it holds the models of nobody")
    return dict(told)


def log(files: Files) -> list[str]:
    """Return the lines of a run's log."""
    if not files.has(LOG):
        return []
    data = files.read(LOG)
    if len(data) > MOST:
        raise BadInput(f"cannot read {files.path / LOG}: it has {len(data):,} bytes; no run writes that much")
    return data.decode("utf-8", "replace").splitlines()


def _validated(where: Path, kind: Any, read: Callable[[Any], Any], data: Any) -> Any:
    """Return data of a kind, or refuse what is none."""
    try:
        found = read(data)
        return kind.validate_python(found) if isinstance(kind, TypeAdapter) else kind.model_validate(found)
    except ValidationError as error:
        wrong = error.errors()[0]
        place = ".".join(map(str, wrong["loc"])) or "all of it"
        told = one_line(f"{place}: {wrong['msg']}")
        raise BadInput(f"cannot read {where}: {told[:200]}") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"cannot read {where}: {one_line(str(error))}") from None
