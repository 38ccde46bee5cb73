"""A study as data: its plan, its runs, and one long table of all of them that slices by method, seed, node and metric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from palmette.engines.evaluation import lower_is_better
from palmette.errors import BadInput, nearest
from palmette.guards.texts import from_json
from palmette.guards.visible import visible
from palmette.report.sheets import sheets
from palmette.runs import Result
from palmette.runs.files import Files
from palmette.runs.folder import CONFIG, Folder
from palmette.runs.metrics import SCHEMA
from palmette.runs.notebook import html_page, html_table, to_pandas
from palmette.studies.plan import OUTCOMES, Arm, Plan, read_plan
from palmette.values import one_line

_COLUMNS = pa.schema([("method", pa.string()), ("seed", pa.int64()), *SCHEMA])

_OUTCOMES = TypeAdapter(dict[str, dict[str, str]])


class Rows:
    """Some rows of the long table of a study: which method, which seed, then the columns of a run's metrics.

    Attributes:
        table: The rows as an Arrow table.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table: pa.Table = table

    def at(self, **which: Any) -> Rows:
        """Return the rows where columns have some value, or one of a list of values.

        Args:
            **which: By the name of a column: method, seed, round, when, model, tier, node, on, weight, statistic, metric. A
                round of -1 is the last of each run.
        """
        table = self.table
        for column, value in which.items():
            if column not in table.column_names:
                raise BadInput(f"there is no column {column!r}{nearest(column, table.column_names)}")
            if column == "round" and value == -1:
                last = table.group_by(["method", "seed"], use_threads=False).aggregate([("round", "max")])
                keep = pc.equal(table["round"], pc.max(last["round_max"])) if last.num_rows == 1 else _last(table)
            else:
                wanted = list(value) if isinstance(value, list | tuple | set) else [value]
                known = set(table[column].unique().to_pylist())
                if missing := [one for one in wanted if one not in known]:
                    raise BadInput(f"no {column} is {missing[0]!r}{nearest(str(missing[0]), map(str, known))}")
                keep = pc.is_in(table[column], pa.array(wanted, table.schema.field(column).type))
            table = table.filter(keep)
        return Rows(table)

    def to_pandas(self) -> Any:
        """Return the rows as a data frame of pandas, which must be installed."""
        return to_pandas(self.table)

    @property
    def values(self) -> list[float]:
        """The numbers themselves."""
        found: list[float] = self.table["value"].to_pylist()
        return found

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __repr__(self) -> str:
        methods = ", ".join(self.table["method"].unique().to_pylist())
        return visible(f"{len(self)} rows of {methods or 'no method'}; columns {', '.join(self.table.column_names)}")


def _last(table: pa.Table) -> pa.Array:
    """Return which rows are of the last round of their run."""
    last: dict[tuple[str, int], int] = {}
    runs = list(zip(table["method"].to_pylist(), table["seed"].to_pylist(), table["round"].to_pylist(), strict=True))
    for method, seed, round_ in runs:
        last[method, seed] = max(round_, last.get((method, seed), 0))
    return pa.array([last[method, seed] == round_ for method, seed, round_ in runs])


class Study:
    """What a study left in its folder: its plan, its runs, and what they come to.

    Attributes:
        folder: Where it lies.
        plan: What was to be done.
        outcomes: How runs ended that did not come to their end, by their folder: ``{"end": ..., "message": ...}``.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.plan: Plan = read_plan(self.folder)
        files = Files(self.folder)
        self.outcomes: dict[str, dict[str, str]] = {}
        if files.has(OUTCOMES):
            try:
                self.outcomes = _OUTCOMES.validate_python(from_json(files.read(OUTCOMES)))
            except ValueError as error:
                raise BadInput(
                    f"cannot read {self.folder / OUTCOMES}: {one_line(str(error))}; remove it and go on"
                ) from None

    def __repr__(self) -> str:
        plan = self.plan
        head = f"Study ({plan.kind}) of {', '.join(arm.name for arm in self.methods)}: seeds {list(plan.seeds)}"
        done = sum(1 for _ in self.results())
        state = "finished" if self.finished else "not finished"
        return visible(f"{head}\n  {done} runs, {state}; in {self.folder}", lines=True)

    def _repr_html_(self) -> str:
        """Return the study as a notebook shows it: the tables that ``palmette show`` prints, and where it lies."""
        summary, plan = self.summary(), self.plan
        done = sum(1 for _ in self.results())
        what = (
            f"of {', '.join(arm.name for arm in self.methods)}; {done} runs, {'' if self.finished else 'not '}finished"
        )
        tables, notes = [], list(summary["notes"])
        for sheet in sheets(summary):
            head = [text.replace("\n", " ") for text in (sheet.title, *sheet.columns)]
            tables.append(html_table(head, sheet.rows))
            notes.append(sheet.note)
        return html_page(plan.kind, what, tables, [*filter(None, notes), f"In {self.folder}"])

    def line(self) -> dict[str, Any]:
        """Return what a list of runs and studies says about this one."""
        swept = self.plan.kind == "sweep"
        names = dict.fromkeys(arm.config.title if swept else arm.name for arm in self.methods)
        told = {"study": str(self.folder), "kind": self.plan.kind, "methods": list(names)}
        return {**told, "seeds": list(self.plan.seeds), "finished": self.finished}

    # -- runs ----------------------------------------------------------------------------------------------------------

    @property
    def methods(self) -> list[Arm]:
        """The methods that are compared; the points of a grid are not among them."""
        return [arm for arm in self.plan.arms if arm.role != "point"]

    @property
    def points(self) -> list[Arm]:
        """The points of a grid."""
        return [arm for arm in self.plan.arms if arm.role == "point"]

    @property
    def finished(self) -> bool:
        """Whether every run came to its end, or diverged, which it would do again."""
        return all(
            self.run(arm.name, seed) is not None or self.diverged(arm, seed) or self._no_choice(arm, seed)
            for arm in self.plan.arms
            for seed in self.plan.seeds_of(arm)
        )

    def _no_choice(self, arm: Arm, seed: int) -> bool:
        """Whether there is nothing to choose from, as all points of the grid diverged."""
        return arm.role == "chosen" and bool(self.points) and all(self.diverged(point, seed) for point in self.points)

    @property
    def lost(self) -> dict[str, dict[str, str]]:
        """How runs ended that are missing in the result; settings that were only tried are not among them."""
        return {run: one for run, one in self.outcomes.items() if not run.startswith("tries/")}

    def diverged(self, arm: Arm, seed: int) -> bool:
        """Whether a run diverged.

        Args:
            arm: One of `methods` or `points`.
            seed: The seed.
        """
        return self.outcomes.get(self.plan.run_folder(arm, seed), {}).get("end") == "diverged"

    def run(self, method: str, seed: int) -> Result | None:
        """Return a finished run, or ``None`` where it is not there.

        Args:
            method: The method's name in the study.
            seed: The seed.
        """
        if method not in (names := [arm.name for arm in self.plan.arms]):
            raise BadInput(f"there is no method {method!r} in {self.folder}{nearest(method, names)}")
        key = (method, seed)
        if key not in self._results:
            path = self.folder / self.plan.run_folder(self.plan.arm(method), seed)
            if not (path / CONFIG).exists() or not Folder(path).finished:
                return None
            self._results[key] = Result(path)
        return self._results[key]

    @cached_property
    def _results(self) -> dict[tuple[str, int], Result]:
        return {}

    def results(self, arms: Sequence[Arm] | None = None) -> Iterator[tuple[Arm, int, Result]]:
        """Give every finished run with its method and seed.

        Args:
            arms: Some of `methods` or `points`; all methods by default.
        """
        for arm in self.methods if arms is None else arms:
            for seed in self.plan.seeds_of(arm):
                if (result := self.run(arm.name, seed)) is not None:
                    yield arm, seed, result

    def tries(self, arm: Arm, seed: int) -> list[tuple[int, Result | None]]:
        """Return the runs that tried settings of an arm, by their number; ``None`` for one that diverged.

        Args:
            arm: One of `methods`.
            seed: The seed.
        """
        found: list[tuple[int, Result | None]] = []
        for number in range(1, self.plan.tries_of(arm, seed) + 1):
            path = self.plan.try_folder(arm, seed, number)
            if (self.folder / path / CONFIG).exists() and Folder(self.folder / path).finished:
                found.append((number, Result(self.folder / path)))
            elif path in self.outcomes:
                found.append((number, None))
        return found

    @property
    def lead(self) -> str:
        """The metric to show first: accuracy where there is one, else the loss."""
        return next((result.lead for _, _, result in self.results(self.plan.arms)), self.plan.metric)

    @property
    def lower(self) -> bool:
        """Whether lower is better."""
        return lower_is_better(self.lead)

    # -- the long table ------------------------------------------------------------------------------------------------

    @cached_property
    def rows(self) -> Rows:
        """All metrics of all finished runs of the methods and, in a sweep, of the points of the grid."""
        tables = []
        for arm, seed, result in self.results(self.plan.arms):
            count = result.metrics.num_rows
            method = pa.array([arm.name] * count, pa.string())
            seeds = pa.array([seed] * count, pa.int64())
            columns = [method, seeds, *(result.metrics[name] for name in SCHEMA.names)]
            tables.append(pa.table(columns, schema=_COLUMNS))
        return Rows(pa.concat_tables(tables) if tables else _COLUMNS.empty_table())

    def at(self, **which: Any) -> Rows:
        """Return some rows of the long table, as in ``study.at(method="permfl", seed=0, node="device-3")``; see `Rows.at`.

        Args:
            **which: Values by the name of a column.
        """
        return self.rows.at(**which)

    @property
    def table(self) -> pa.Table:
        """The long table of all runs, as Arrow."""
        return self.rows.table

    def to_pandas(self) -> Any:
        """Return the long table as a data frame of pandas, which must be installed."""
        return self.rows.to_pandas()

    def summary(self) -> dict[str, Any]:
        """Return what the study comes to as one object, as ``palmette compare --json`` prints it."""
        from palmette.studies.summary import summary

        return summary(self)
