"""The parts of an experiment's file: methods, studies, tables, claims and figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from palmette.errors import nearest

Test = Literal["more", "less", "breaks", "close", "rising", "falling", "share", "between", "none"]
At = Literal["last", "best", "mean"] | Annotated[int, Field(ge=0)]

_PRINTED = re.compile(r"(?P<value>-?\d+(\.\d+)?)( \((?P<spread>\d+(\.\d+)?)\))?")


class Part(BaseModel):
    """What all parts have in common: a key that is unknown is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Method(Part):
    """One algorithm with its settings; what else differs from the study's others may be said too."""

    algorithm: str
    settings: dict[str, Any] = {}
    rounds: int | None = None
    tree: Any = None
    data: dict[str, Any] = {}
    participation: dict[str, Any] = {}


class StudyPart(Part):
    """One population and model with the methods that are trained there, at one size.

    Attributes:
        name: Its folder.
        title: What people call it.
        source: ``"runs"``, or the name of what computes its numbers without training (`palmette.reproduce.sources`).
        options: What that is told.
        methods: Which methods of the file; all by default.
        settings: By method, settings that differ here.
        stands_in: Why other data stand in for the paper's; empty where they are the paper's own.
    """

    name: str = Field(pattern=r"[a-z0-9][a-z0-9.-]*$")
    title: str
    source: str = "runs"
    options: dict[str, Any] = {}
    methods: list[str] = []
    settings: dict[str, dict[str, Any]] = {}
    data: dict[str, Any] = {}
    model: dict[str, Any] = {"name": "mclr"}
    tree: Any = None
    rounds: int | None = Field(None, ge=1)
    seeds: int = Field(3, ge=1, le=1000)
    participation: dict[str, Any] = {}
    evaluate_every: int | str = "auto"
    metrics: list[str] = []
    engine: dict[str, Any] = {}
    stands_in: str = ""


class Where(Part):
    """What a row or a column says about its cells.

    Attributes:
        title: Its name, by which claims speak of it.
        study: The study.
        method: The method.
        model: The kind of model, PM by default.
        metric: What was measured; by default accuracy, or the loss where there is none. ``"perplexity"`` is the exponential of
            the loss; ``"bytes"`` are those on the link to the server.
        at: After which round: ``"last"``, ``"best"`` (that with the best mean), ``"mean"`` (of all rounds), or a number.
        team: Only the devices of one team.
        statistic: What of all devices: ``"mean"``, ``"sd"``, ``"max"``, ``"q25"``, ``"q50"``, ``"q75"`` or
            ``"above 1"``, how many are above one.
        weight: Whether samples count the same in a mean, or devices.
        x: The number that a line plot draws it at.
        ours: Whether it is no row of the paper's.
        published: What the paper printed, one text per column: ``"84.87 (0.054)"``; empty where it printed nothing.
    """

    title: str
    study: str | None = None
    method: str | None = None
    model: str | None = None
    metric: str | None = None
    at: At | None = None
    team: str | None = None
    statistic: str | None = Field(None, pattern=r"^(mean|sd|max|min|q25|q50|q75|above -?\d+(\.\d+)?)$")
    weight: Literal["samples", "devices"] | None = None
    x: float | None = None
    ours: bool = False
    published: list[str] = []


class Table(Part):
    """Rows and columns; a cell is what its row and its column say together."""

    title: str
    unit: Literal["%", "", "bytes"] = "%"
    columns: list[Where]
    rows: list[Where]
    tolerance: float = 1.0  # as far as a number may be from the printed one and still agree, in the table's unit

    @model_validator(mode="after")
    def _whole(self) -> Table:
        for row in self.rows:
            if row.published and len(row.published) != len(self.columns):
                raise ValueError(f"row {row.title!r} has {len(row.published)} numbers for {len(self.columns)} columns")
            for text in row.published:
                printed(text)
        for kind, given in (("row", self.rows), ("column", self.columns)):
            names = [one.title for one in given]
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"two {kind}s are called {twice[0]!r}")
        return self


class Reading(Part):
    """Another reading of the paper: some rows or columns stand in place of others."""

    name: str
    instead: dict[str, str]


class Claim(Part):
    """A sentence of the paper with a test over a table.

    Attributes:
        id: Its number.
        says: The sentence, in our words.
        test: ``"more"`` and ``"less"`` hold ``row`` (or ``column``) against each of ``than``; ``"breaks"`` is less or diverged;
            ``"close"`` wants them within ``within``; ``"rising"`` and ``"falling"`` follow ``along``, rows or columns in their
            order; ``"share"`` is the part of the devices on which ``row`` is higher than ``than``; ``"between"`` is about one
            cell; ``"none"`` cannot be tested, for the ``reason``.
        table: The title of the table; the first by default.
        rows: The rows it is tested in, where columns are compared.
        columns: The columns it is tested in, where rows are compared; all by default.
        by: How much more or less it must be, in the table's unit.
        low: The least that a share or a cell may be.
        high: The most.
        relative: Whether differences are shares of what is compared with; of perplexities they always are.
        some: How many of its parts must hold; all by default.
        note: What a reader must know besides, such as a bound that was set after numbers were seen.
    """

    id: str
    says: str
    test: Test
    table: str | None = None
    row: str | None = None
    column: str | None = None
    than: list[str] = []
    along: list[str] = []
    rows: list[str] = []
    columns: list[str] = []
    by: float = 0.0
    within: float | None = None
    low: float | None = None
    high: float | None = None
    relative: bool = False
    some: int | None = None
    reason: str = ""
    note: str = ""
    readings: list[Reading] = []


class Wrong(Part):
    """Something the paper or its code got wrong, with the command that shows it."""

    says: str
    command: str = ""


class Drawing(Part):
    """A figure: ``curves`` of a study over rounds, ``lines`` of a table, or the ``changes`` from one row to another."""

    name: str = Field(pattern=r"[a-z0-9][a-z0-9-]*$")
    title: str
    kind: Literal["curves", "lines", "changes"]
    study: str | None = None
    model: str = "PM"
    metric: str | None = None
    methods: list[str] = []
    table: str | None = None
    rows: list[str] = []
    column: str | None = None
    xlabel: str = ""
    ylabel: str = ""
    log: bool = False


def check_claim(claim: Claim, tables: Sequence[Table]) -> None:
    """Refuse a claim about rows and columns that are not there, or without what its test needs."""
    if claim.test == "none":
        if not claim.reason:
            raise ValueError(f"claim {claim.id}: it says no reason why it cannot be tested")
        return
    found = [table for table in tables if claim.table in (None, table.title)]
    if not found:
        raise ValueError(f"claim {claim.id}: there is no table {claim.table!r}")
    rows = [row.title for row in found[0].rows]
    columns = [column.title for column in found[0].columns]
    instead = [name for reading in claim.readings for name in (*reading.instead, *reading.instead.values())]
    for names, known in (
        ([claim.row] if claim.row else [], rows), ([claim.column] if claim.column else [], columns),
        (claim.than, columns if claim.column else rows), (claim.along, [*rows, *columns]),
        (claim.rows, rows), (claim.columns, columns), (instead, [*rows, *columns]),
    ):  # fmt: skip
        for name in names:
            if name not in known:
                raise ValueError(f"claim {claim.id}: the table has no {name!r}{nearest(name, known)}")
    needs = {
        "more": claim.than,
        "less": claim.than,
        "breaks": claim.than,
        "share": claim.than,
        "rising": claim.along,
        "falling": claim.along,
    }
    if claim.test in needs and not needs[claim.test]:
        raise ValueError(f"claim {claim.id}: {claim.test} needs than or along")
    if claim.test == "close" and (claim.within is None or not claim.than):
        raise ValueError(f"claim {claim.id}: close needs within and than")


def check_drawing(drawing: Drawing, tables: Sequence[Table], studies: Sequence[str]) -> None:
    """Refuse a figure of what is not there."""
    if drawing.kind == "curves":
        if drawing.study not in studies:
            raise ValueError(f"figure {drawing.name}: there is no study {drawing.study!r}")
        return
    found = [table for table in tables if drawing.table in (None, table.title)]
    if not found:
        raise ValueError(f"figure {drawing.name}: there is no table {drawing.table!r}")
    known = [one.title for one in (*found[0].rows, *found[0].columns)]
    for name in (*drawing.rows, *([drawing.column] if drawing.column else [])):
        if name not in known:
            raise ValueError(f"figure {drawing.name}: the table has no {name!r}{nearest(name, known)}")
    if drawing.kind == "changes" and len(drawing.rows) != 2:
        raise ValueError(f"figure {drawing.name}: changes are from one row to another; name two")


def printed(text: str) -> tuple[float | None, float | None]:
    """Return a printed number and its spread; nothing for an empty text."""
    if not text:
        return None, None
    found = _PRINTED.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no printed number; write it as 84.87 or 84.87 (0.054)")
    return float(found["value"]), None if found["spread"] is None else float(found["spread"])
