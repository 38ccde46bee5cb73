"""What can be said about a table without training: what it means, all that is wrong with it, and what looks odd."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from palmette.errors import BadInput
from palmette.population import Population
from palmette.tables.folders import is_folders, read_folders, table_in
from palmette.tables.how import try_how
from palmette.tables.meaning import Understood
from palmette.tables.odd import look_for_oddities
from palmette.tables.problems import Findings, Problem
from palmette.tables.read import pack
from palmette.tables.source import Table, open_table
from palmette.tables.understand import understand


@dataclass
class Check:
    """What was found out about a table.

    Attributes:
        name: The table.
        summary: What was understood: devices, teams, samples, split, label, features; what is not known is not there.
        findings: Problems, warnings and notes.
    """

    name: str
    summary: dict[str, Any] = field(default_factory=dict)
    findings: Findings = field(default_factory=Findings)

    @property
    def sound(self) -> bool:
        """Whether there is no problem."""
        return not self.findings.problems

    def as_dict(self) -> dict[str, Any]:
        """Return all as data."""
        return {
            "table": self.name,
            "sound": self.sound,
            "understood": self.summary,
            "problems": [one.as_dict() for one in self.findings.problems],
            "warnings": [one.as_dict() for one in self.findings.warnings],
            "notes": self.findings.notes,
        }


def check_table(source: Any, *, seed: int = 0, **how: Any) -> Check:
    """Look through a table without training and say what it means and what is wrong with it.

    Args:
        source: The path of a CSV or Parquet file or of a folder of them, or a pandas or Arrow table.
        seed: Seed of the split.
        **how: Which column is what; the keywords of `read_table`.
    """
    words = {name: how[name] for name in ("encoding", "delimiter") if isinstance(how.get(name), str)}
    found = Check(str(source) if isinstance(source, str | Path) else "the table")
    try:
        if isinstance(source, str | Path) and is_folders(Path(source).expanduser()):
            inside = table_in(Path(source).expanduser(), how)
            if inside is None:
                return _samples(found, read_folders(source, seed=seed, **how))
            table, how = inside
        else:
            table = open_table(source, **words)
        found.name = table.name
        found.summary["columns"] = table.columns
        made, problems = try_how(how, table.columns)
        for text in (*table.problems, *problems):
            found.findings.problem(text)
        if made is None or table.problems:
            return found
        meaning = understand(table, made)
    except BadInput as error:
        found.findings.problem(str(error))
        return found
    found.findings = meaning.findings
    found.summary |= _columns(table, meaning)
    if meaning.paths and meaning.kinds:
        _look_closer(table, meaning, found, seed)
    return found


def _samples(found: Check, made: Population) -> Check:
    """Say what is in folders of images or arrays."""
    classes = made.encoding.classes if made.encoding is not None else None
    found.summary = {
        "rows": len(made.x),
        "device": "folder",
        "team": [f"tier {tier}" for tier in range(made.tree.top - 1, 0, -1)],
        "label": "label",
        "features": {},
        "left_out": [],
        "missing": {},
        "shape": list(made.shape),
        **({"classes": list(classes)} if classes is not None else {}),
        **_counts(made),
    }
    return found


def _counts(made: Population) -> dict[str, Any]:
    tree = made.tree
    return {
        "devices": made.devices,
        "teams": [tree.size(tier) for tier in range(tree.top - 1, 0, -1)],
        "samples": len(made.x),
        "train": int(made.train.sum()),
        "test": int(made.tests.sum()),
        "inputs": made.shape[0],
        "unseen": 0 if made.unseen is None else int(made.unseen.sum()),
    }


def _columns(table: Table, meaning: Understood) -> dict[str, Any]:
    """Say what every column is."""
    how, kinds = meaning.how, meaning.kinds
    said = {"comma": "number"}
    label = meaning.columns[how.label]
    told: dict[str, Any] = {
        "rows": label.rows,
        "device": how.device,
        "team": list(how.team),
        "label": how.label,
        "features": {name: said.get(kind, kind) for name, kind in kinds.items()},
        "left_out": [name for name in table.columns if name not in meaning.columns],
        "missing": {name: column.missing for name, column in meaning.columns.items() if column.missing},
    }
    if meaning.classes is not None:
        told["classes"] = list(meaning.classes)
    elif label.known and label.kind in ("number", "comma"):
        told["target"] = {"low": label.low, "high": label.high}
    return told


def _look_closer(table: Table, meaning: Understood, found: Check, seed: int) -> None:
    """Make the population of all rows and columns without a problem, and look for what is odd in it."""
    findings = found.findings
    bad = {one.column for one in findings.problems}
    meaning.kinds = {name: kind for name, kind in meaning.kinds.items() if name not in bad}
    meaning.keep &= meaning.owner >= 0
    for name in (meaning.how.split, meaning.how.time):
        if name in bad:
            meaning.test = meaning.moment = None
    label = meaning.columns[meaning.how.label]
    learnt = meaning.classes is not None or (label.kind in ("number", "comma") and not label.infinite)
    if not meaning.kinds or not learnt or not meaning.keep.any():
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            made, plan = pack(table, meaning, seed)
        except BadInput as error:
            findings.problem(str(error))
            return
    findings.warnings += [Problem(str(one.message)) for one in told]
    found.summary |= _counts(made)
    roles = (*meaning.how.team, meaning.how.device, meaning.how.label, meaning.how.split)
    others = [name for name in meaning.columns if name not in meaning.kinds and name not in roles]
    look_for_oddities(made, plan, table, findings, others)
