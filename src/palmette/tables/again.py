"""New data for models that are there already: read with the models' own scaling, categories and classes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from palmette.errors import BadInput
from palmette.population import Encoding, Population
from palmette.tables.how import make_how
from palmette.tables.read import pack
from palmette.tables.source import open_table
from palmette.tables.understand import understand

NOWHERE = "(no team)"


def read_again(source: Any, known: Encoding, *, test: float = 0.25, seed: int = 0) -> tuple[Population, list[str]]:
    """Read a table as the models of a run do and return its population, with what was guessed or left out.

    A column of teams that the table does not have is filled with a team that nobody knows, so that the tree is as deep as the
    run's.

    Args:
        source: The path, or the table.
        known: How the models read a table.
        test: The part of each device's rows kept for testing.
        seed: Seed of the split.
    """
    table = open_table(source)
    teams = [name for name in known.team if name in table.columns]
    given = {
        "device": known.device,
        "label": known.label,
        "team": teams,
        "features": [] if known.tokens else known.columns,
        "tokens": known.columns if known.tokens else [],
        "categories": list(dict.fromkeys(one.column for one in known.inputs if one.equals is not None)),
        "missing": known.missing,
        "target": "number" if known.classes is None else "class",
        "test": test,
    }
    if table.problems:
        raise BadInput("; ".join(table.problems))
    found = understand(table, make_how(given, table.columns), known)
    lacking = [name for name in known.team if name not in teams]
    if lacking:
        found.findings.notes.append(f"there is no column {lacking[0]!r}, so nobody knows the devices' teams")
        place = {name: at for at, name in enumerate(teams)}
        found.paths = [
            (*(path[place[name]] if name in place else NOWHERE for name in known.team), path[-1])
            for path in found.paths
        ]
    found.findings.refuse(table.name)
    made, _ = pack(table, found, seed, known=known)
    found.findings.refuse(table.name)
    notes = [*found.findings.notes, *map(str, found.findings.warnings)]
    return replace(made, source=table.name), notes
