"""An experiment is data: a file that says who is trained how, what the paper printed, and what it claimed.

A file of TOML has

- ``title``, ``paper`` and ``about``; ``unstated``, what the paper does not say and what was taken; ``wrong``, what the
  paper or its code got wrong, each with a command that shows it;
- ``[methods.NAME]``: an algorithm with its settings;
- ``[[studies]]``: a population, a model and the methods that are trained there; what all have in common is in ``[common]``;
- ``quick``, of all studies or of one: what the small size changes, or, as a sentence, why it leaves a study out;
- ``[[tables]]``: rows and columns, each a part of what a cell is about, and the numbers that the paper printed;
- ``[[claims]]``: sentences of the paper, each with a test over the cells of a table;
- ``[[figures]]``: what is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, model_validator

from palmette.datasets import DATASETS
from palmette.datasets.files import present
from palmette.reproduce.format import Claim, Drawing, Method, Part, StudyPart, Table, Wrong, check_claim, check_drawing

Size = Literal["quick", "whole"]
_OWN = ("quick", "stand_in")  # keys of a study that are not about how it is run


class Experiment(BaseModel):
    """One experiment of a paper."""

    model_config = Part.model_config

    name: str
    title: str
    paper: str
    about: str = ""
    own: str = ""  # the study of ours that it is, which runs itself; empty for the papers' experiments
    unstated: list[str] = []
    wrong: list[Wrong] = []
    common: dict[str, Any] = {}
    quick: dict[str, Any] = {}
    methods: dict[str, Method] = {}
    studies: list[dict[str, Any]] = []
    tables: list[Table] = []
    claims: list[Claim] = []
    figures: list[Drawing] = []

    @model_validator(mode="after")
    def _checked(self) -> Experiment:
        for size in ("quick", "whole"):
            for given in self.studies:
                self.sized(given, size, stand_in=True)
                study = self.sized(given, size)
                for method in (*(study.methods if study else ()), *(study.settings if study else ())):
                    if study is not None and study.source == "runs" and method not in self.methods:
                        raise ValueError(f"study {study.name!r}: there is no method {method!r}")
        names = [one["name"] for one in self.studies]
        if self.tables and not names:
            raise ValueError("it has tables and no study to fill them from")
        for table in self.tables:
            for where in (*table.rows, *table.columns):
                if where.study is not None and where.study not in names:
                    raise ValueError(f"{where.title!r} is about the study {where.study!r}, which there is not")
        for claim in self.claims:
            check_claim(claim, self.tables)
        for drawing in self.figures:
            check_drawing(drawing, self.tables, names)
        return self

    def sized(self, given: Mapping[str, Any], size: str, *, stand_in: bool = False) -> StudyPart | None:
        """Return a study at a size, ``None`` where the size leaves it out."""
        made = merged(self.common, {key: value for key, value in given.items() if key not in _OWN})
        if made.get("source", "runs") == "runs":
            made.setdefault("methods", list(self.methods))
        if stand_in and "stand_in" in given:
            other = {key: value for key, value in given["stand_in"].items() if key != "why"}
            made = merged(made, {**other, "stands_in": given["stand_in"]["why"]})
        if size == "quick":
            if isinstance(given.get("quick"), str):
                return None
            made = merged(merged(made, self.quick), given.get("quick", {}))
        return StudyPart.model_validate(made)

    def left_out(self, given: Mapping[str, Any], size: str) -> str:
        """Return why a size leaves a study out; empty where it does not."""
        return given["quick"] if size == "quick" and isinstance(given.get("quick"), str) else ""

    def study(self, given: Mapping[str, Any], size: str) -> StudyPart | None:
        """Return a study at a size on the data that are there: the paper's, or what stands in for them."""
        made = self.sized(given, size)
        if made is None or "stand_in" not in given or is_here(made.data.get("name", "")):
            return made
        return self.sized(given, size, stand_in=True)

    def cuts(self, given: Mapping[str, Any], *, stand_in: bool) -> list[str]:
        """Say what the small size changes of a study."""
        whole, quick = (self.sized(given, size, stand_in=stand_in) for size in ("whole", "quick"))
        if whole is None or quick is None:
            return []
        plain = {"settings"} if whole.source == "runs" else set()
        told = _differences(whole.model_dump(exclude=plain), quick.model_dump(exclude=plain))
        changed: dict[str, list[str]] = {}  # what changed of which methods
        for name in quick.methods if plain else ():
            was, now = (merged(self.methods[name].settings, one.settings.get(name, {})) for one in (whole, quick))
            for one in _differences(was, now):
                known = one.replace("the default", "the preset's") if "preset" in was else one
                changed.setdefault(known, []).append(name)
        return [*told, *(f"{one} ({', '.join(names)})" for one, names in changed.items())]

    def table(self, title: str | None) -> Table:
        """Return the table of a title, the first where none is named."""
        return next(table for table in self.tables if title in (None, table.title))


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return one table over another, tables within them likewise; a table that names something else stands alone."""
    made = dict(below)
    for key, value in above.items():
        old = made.get(key)
        made[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping) and value.get("name") in (None, old.get("name")):
            made[key] = merged(old, value)
    return made


def _differences(whole: Mapping[str, Any], quick: Mapping[str, Any], path: str = "") -> list[str]:
    told = []
    for key in sorted({**whole, **quick}):
        was, now = whole.get(key), quick.get(key)
        if was == now:
            continue
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            told += _differences(was, now, f"{path}{key}.")
        elif isinstance(was, list) and isinstance(now, list) and set(now) < set(was):
            told.append(f"without {', '.join(str(one) for one in was if one not in now)}")
        else:
            told.append(f"{path}{key} {_plain(now)} in place of {_plain(was)}")
    return told


def _plain(value: Any) -> str:
    return "the default" if value is None or value == [] else str(value)


def is_here(name: str) -> bool:
    """Return whether the files of a data set are in the folder of data sets; one that needs none always is."""
    return name not in DATASETS or all(present(file, None) for file in DATASETS[name].files)
