"""What a figure is about: runs and the methods of studies, each with its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.engines.evaluation import lower_is_better
from palmette.errors import BadInput, nearest
from palmette.protocol import ModelKind
from palmette.report.style import SERIES, Width
from palmette.runs import Result
from palmette.studies.plan import STUDY, is_study
from palmette.studies.study import Study

Source = str | Path | Result | Study
"""A run or a study: its folder, or what was read from it."""


@dataclass(frozen=True, eq=False)
class Line:
    """One method, or one run, with a result for every seed.

    Attributes:
        label: What it is called in the figure.
        results: Its runs by seed.
    """

    label: str
    results: dict[int, Result]

    @property
    def kinds(self) -> list[ModelKind]:
        """The kinds of models that all of its runs have."""
        first, *others = self.results.values()
        return [kind for kind in first.kinds if all(kind in other.kinds for other in others)]

    @property
    def first(self) -> Result:
        """The run of the first seed."""
        return next(iter(self.results.values()))


@dataclass(frozen=True)
class Choice:
    """What a figure is to show.

    Attributes:
        metric: What was measured.
        models: Which kinds of models; empty for those that fit.
        width: How wide it is to be.
        over: What the rounds are counted in: rounds, or gradient steps of a device.
        against: The method that the others are compared with; ``None`` for the first.
        target: The value of the metric for which the cost is asked; ``None`` for none.
        told: Whether the metric is not measured on samples but a number about nodes, such as the distance between models.
    """

    metric: str
    models: tuple[ModelKind, ...] = ()
    width: Width = "column"
    over: str = "rounds"
    against: str | None = None
    told: bool = False
    target: float | None = None

    @property
    def lower(self) -> bool:
        """Whether lower numbers are better."""
        return lower_is_better(self.metric)


def gather(what: Sequence[Source], methods: Sequence[str] = ()) -> tuple[list[Line], list[str]]:
    """Return what is to be drawn, in the order given, and what a reader should be told about it.

    Args:
        what: Runs and studies.
        methods: The methods to draw, by their names in the figure; all by default.
    """
    notes: list[str] = []
    groups: list[Line | list[Result]] = []
    loose: dict[
        str, list[Result]
    ] = {}  # runs that were named one by one: those that differ in the seed only are one line
    given: set[Path] = set()
    for one in what:
        opened = _opened(one)
        if opened.folder.resolve() in given:
            notes.append(f"{opened.folder} was named twice and is drawn once")
            continue
        given.add(opened.folder.resolve())
        if isinstance(opened, Study):
            groups += _of_study(opened, notes)
            continue
        _tell_unfinished(opened, notes)
        key = _settings(opened)
        if any(other.config.seed == opened.config.seed for other in loose.get(key, [])):
            key = f"{key} {opened.folder}"
        if key not in loose:
            loose[key] = []
            groups.append(loose[key])
        loose[key].append(opened)
    found = [group if isinstance(group, Line) else _of_runs(group) for group in groups]
    found = _renamed(found)
    if methods:
        known = [line.label for line in found]
        for name in methods:
            if name not in known:
                raise BadInput(f"--method {name}: it is not among what was given{nearest(name, known)}")
        found = [line for line in found if line.label in methods]
    if len(found) > SERIES:
        raise BadInput(
            f"{len(found)} methods are more than one figure can show ({SERIES}); choose some with --method, as in --method "
            f"{found[0].label}"
        )
    return found, notes


def _opened(what: Source) -> Result | Study:
    """Read a run or a study."""
    if isinstance(what, Result | Study):
        return what
    folder = Path(what)
    if is_study(folder):
        return Study(folder)
    try:
        return Result(folder)
    except BadInput as error:
        if "is not the folder of a run" in str(error):
            raise BadInput(
                f"{folder} is neither a run nor a study: there is no config.toml and no {STUDY} in it"
            ) from None
        raise


def _of_study(study: Study, notes: list[str]) -> list[Line]:
    """Return the methods of a study; the points of a grid are not among them."""
    lines = []
    for arm in study.methods:
        results = {seed: result for _, seed, result in study.results([arm])}
        missing = [seed for seed in study.plan.seeds_of(arm) if seed not in results]
        if missing:
            which = f"seed{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))}"
            how = "diverged" if all(study.diverged(arm, seed) for seed in missing) else "not finished"
            notes.append(
                f"{arm.name} is drawn without {which} ({how})" if results else f"{arm.name} is left out ({how})"
            )
        if results:
            lines.append(Line(arm.name, results))
    if not lines:
        raise BadInput(f"no run of the study in {study.folder} came to its end; there is nothing to draw")
    return lines


def _of_runs(group: Sequence[Result]) -> Line:
    """Return the line of a run, or of runs with several seeds."""
    return Line(group[0].config.title, {result.config.seed: result for result in group})


def _renamed(lines: list[Line]) -> list[Line]:
    """Tell lines of one name apart by their folders."""
    names = [line.label for line in lines]
    if len(set(names)) == len(names):
        return lines
    folders = [_folder(line) if names.count(line.label) > 1 else line.label for line in lines]
    if len(set(folders)) < len(folders):
        folders = [str(line.first.folder) for line in lines]
    return [Line(name, line.results) for name, line in zip(folders, lines, strict=True)]


def _folder(line: Line) -> str:
    return line.first.folder.resolve().name


def _settings(result: Result) -> str:
    """Return all that makes a run what it is, but for its seed."""
    values: dict[str, Any] = result.config.model_dump()
    return repr({key: value for key, value in values.items() if key not in ("seed", "versions")})


def _tell_unfinished(result: Result, notes: list[str]) -> None:
    """Refuse a run without a number; say of one that is not finished how far it is."""
    if not result.metrics.num_rows:
        raise BadInput(f"the run in {result.folder} has no numbers yet; there is nothing to draw")
    if not result.finished:
        how = "is still running" if result.running else "diverged" if result.ended else "is not finished"
        notes.append(
            f"the run in {result.folder} {how}: drawn is what it came to after round {result.rounds_done} of "
            f"{result.config.rounds}"
        )


def fitting(lines: Sequence[Line], choice: Choice, notes: list[str], *, every: bool) -> list[tuple[Line, ModelKind]]:
    """Return which kinds of models of which lines are drawn; what has none is told, or refused where nothing is left.

    Args:
        lines: The methods.
        choice: What the figure is to show.
        notes: Is told what is left out.
        every: Whether one line alone is shown with all kinds of its models.
    """
    wanted = choice.models or (tuple(lines[0].kinds) if every and len(lines) == 1 else ("PM",))
    found: list[tuple[Line, ModelKind]] = []
    for kind in wanted:
        for line in lines:
            if has(line, kind, choice.metric):
                found.append((line, kind))
            else:
                notes.append(f"{line.label} has no {choice.metric} of {kind} and is left out")
    if not found:
        first = lines[0]
        metrics = sorted({name for line in lines for name in line.first.metric_names})
        kinds = sorted(
            {kind for line in lines for kind in line.kinds}, key=lambda kind: (kind == "GM", kind != "PM", kind)
        )
        whose = f"the run in {first.first.folder}" if len(lines) == 1 else "what was given"
        raise BadInput(
            f"{whose} has no {choice.metric} of {' or '.join(wanted)}; there are the metrics {', '.join(metrics)} of the "
            f"models {', '.join(kinds)}"
        )
    return found


def has(line: Line, kind: ModelKind, metric: str) -> bool:
    """Whether all runs of a line have a number of a kind of models."""
    for result in line.results.values():
        curve = result.curve(kind, metric)
        if all(value != value for value in curve.values()):
            return False
    return True
