"""Whether a sentence of a paper holds: contrasts of cells, paired over seeds and devices, each with an interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from palmette.reproduce.format import Claim, Table
from palmette.reproduce.numbers import ALL, NOT_RUN, Missing, Numbers, paired
from palmette.studies.statistics import interval

Word = Literal["holds", "does not hold", "cannot be decided"]
HOLDS: Word = "holds"
FAILS: Word = "does not hold"
OPEN: Word = "cannot be decided"
Cells = Callable[[str, str], Numbers]
"""The numbers of a cell by the titles of its row and column; `Missing` where there are none."""


@dataclass(frozen=True)
class Part:
    """One comparison that a claim makes.

    Attributes:
        about: What is compared, and where.
        verdict: What became of it.
        mean: The contrast; NaN where there is none.
        low: The lower end of its interval.
        high: The upper end.
        why: Why it cannot be decided, or anything else to know.
        unit: What the contrast is counted in.
        apart: What sets its cells apart from the paper's: a cut size, other data, or nothing.
    """

    about: str
    verdict: Word
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    why: str = ""
    unit: str = ""
    apart: str = ""


@dataclass(frozen=True)
class Verdict:
    """What became of a claim.

    Attributes:
        word: The verdict.
        why: The reason where it cannot be decided, and how many parts hold where there are several.
        parts: The comparisons it was judged by.
        readings: What became of it under other readings of the paper.
    """

    word: Word
    why: str
    parts: tuple[Part, ...] = ()
    readings: Mapping[str, Verdict] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, NaN as none."""
        parts = [{key: _none(value) for key, value in asdict(part).items()} for part in self.parts]
        apart = sorted({word for part in self.parts for word in part.apart.split(", ") if word})
        told = {"verdict": self.word, "why": self.why, "apart": apart, "parts": parts}
        return told | (
            {"readings": {name: one.as_dict() for name, one in self.readings.items()}} if self.readings else {}
        )


def _none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def judge(claim: Claim, table: Table | None, cells: Cells | None) -> Verdict:
    """Return whether a claim holds, and what other readings of the paper would change.

    Args:
        claim: The claim.
        table: The table it is about; ``None`` for one that cannot be tested.
        cells: The numbers of the table.
    """
    if table is None or cells is None:
        return Verdict(OPEN, claim.reason)
    base = _judged(claim, table, cells)
    others = {reading.name: _judged(_instead(claim, reading.instead), table, cells) for reading in claim.readings}
    return Verdict(base.word, base.why, base.parts, others)


def _instead(claim: Claim, instead: Mapping[str, str]) -> Claim:
    """Return a claim with other rows or columns in place of some."""

    def other(value: Any) -> Any:
        return [instead.get(name, name) for name in value] if isinstance(value, list) else instead.get(value, value)

    return claim.model_copy(
        update={key: other(getattr(claim, key)) for key in ("row", "column", "than", "along", "rows", "columns")}
    )


def _judged(claim: Claim, table: Table, cells: Cells) -> Verdict:
    parts = tuple(_part(about, pick, claim, table.unit) for about, pick in _comparisons(claim, table, cells))
    return _summed(claim, parts)


def _summed(claim: Claim, parts: Sequence[Part]) -> Verdict:
    """Return the verdict of all parts together; those that a size leaves out have no say where others were run."""
    ran = parts if claim.some else [part for part in parts if not part.why.startswith(NOT_RUN)] or parts
    count = {word: sum(part.verdict == word for part in ran) for word in (HOLDS, FAILS, OPEN)}
    wanted = claim.some or len(ran)
    if count[HOLDS] >= wanted:
        word: Word = HOLDS
    elif count[HOLDS] + count[OPEN] < wanted:
        word = FAILS
    else:
        word = OPEN
    if len(parts) == 1:
        return Verdict(word, parts[0].why, tuple(parts))
    told = [f"{count[HOLDS]} of {len(ran)} parts hold"]
    told += [f"{count[FAILS]} do not"] if count[FAILS] else []
    if count[OPEN]:
        why = list(dict.fromkeys(part.why for part in ran if part.verdict == OPEN))
        told.append(f"{count[OPEN]} cannot be decided ({'; '.join(why[:3])})")
    told += [f"{len(parts) - len(ran)} were not run"] if len(ran) < len(parts) else []
    return Verdict(word, ", ".join(told), tuple(parts))


Pick = Callable[[], list[tuple[float, Numbers]]]


def _comparisons(claim: Claim, table: Table, cells: Cells) -> list[tuple[str, Pick]]:
    """Return what a claim compares: a name, and the cells with their coefficients."""
    rows = [row.title for row in table.rows]
    columns = [column.title for column in table.columns]
    made: list[tuple[str, Pick]] = []
    if claim.along:
        by_rows = claim.along[0] in rows
        weights = _slope(len(claim.along))
        for other in (claim.columns or columns) if by_rows else (claim.rows or rows):
            places = [(name, other) if by_rows else (other, name) for name in claim.along]
            made.append((f"{other}: {claim.along[0]} to {claim.along[-1]}", _picked(cells, places, weights)))
    elif claim.column is not None and claim.than:
        for row in claim.rows or rows:
            for other in claim.than:
                places = [(row, claim.column), (row, other)]
                made.append((f"{row}: {claim.column} against {other}", _picked(cells, places, (1.0, -1.0))))
    else:
        for column in claim.columns or columns:
            if not claim.than:
                alone = [claim.row] if claim.row else claim.rows or rows
                made += [(f"{row}, {column}", _picked(cells, [(row, column)], (1.0,))) for row in alone]
            for other in claim.than:
                places = [(claim.row or "", column), (other, column)]
                made.append((f"{column}: {claim.row} against {other}", _picked(cells, places, (1.0, -1.0))))
    return made


def _picked(cells: Cells, places: Sequence[tuple[str, str]], weights: Sequence[float]) -> Pick:
    return lambda: [(weight, cells(*place)) for weight, place in zip(weights, places, strict=True)]


def _slope(count: int) -> list[float]:
    """Return the coefficients of a straight line's rise from the first to the last of some equally spaced numbers."""
    places = np.arange(count) - (count - 1) / 2
    return list((count - 1) * places / (places**2).sum())


def _part(about: str, pick: Pick, claim: Claim, unit: str) -> Part:
    """Return what became of one comparison."""
    try:
        picked = pick()
    except Missing as error:
        broken = str(error).startswith("diverged")
        word = HOLDS if broken and claim.test == "breaks" else FAILS if broken and claim.test == "more" else OPEN
        return Part(about, word, why=str(error))
    (mean, low, high), unit, seeds = _measured(picked, claim, unit)
    apart = ", ".join(sorted({word for _, numbers in picked for word in numbers.apart.split(", ") if word}))
    why = "one seed, so the interval is over devices only" if seeds == 1 and math.isfinite(low) else ""
    if not math.isfinite(low):
        if claim.test != "between":
            return Part(about, OPEN, mean, why="one number only, so no interval", unit=unit, apart=apart)
        low = high = mean
    word = _word(claim, low, high)
    if word == OPEN:
        why = "the interval reaches over the bound" + (f"; {why}" if why else "")
    return Part(about, word, mean, low, high, why, unit, apart)


def _measured(
    picked: Sequence[tuple[float, Numbers]], claim: Claim, unit: str
) -> tuple[tuple[float, float, float], str, int]:
    """Return a contrast with the ends of its interval, what it is counted in, and how many seeds it is from."""
    share = claim.test == "share"
    values, teams, weights = contrast(picked, share=share)
    mean, low, high = interval(values, teams, None if share else weights)
    seeds, differs = len(values), len(picked) > 1
    if share:
        return (100 * mean, 100 * low, 100 * high), "% of devices", seeds
    if any(numbers.logs for _, numbers in picked):
        if not differs:
            return (math.exp(mean), math.exp(low), math.exp(high)), unit, seeds
        return (100 * math.expm1(mean), 100 * math.expm1(low), 100 * math.expm1(high)), "%", seeds
    if claim.relative and differs:
        base = abs(float(np.mean(picked[-1][1].statistic()))) / 100
        return (mean / base, low / base, high / base), "%", seeds
    if unit == "%":
        return (100 * mean, 100 * low, 100 * high), "points" if differs else "%", seeds
    return (mean, low, high), unit, seeds


def _word(claim: Claim, low: float, high: float) -> Word:
    """Return whether an interval lies on one side of what a claim asks for."""
    if claim.test in ("more", "rising"):
        return HOLDS if low > claim.by else FAILS if high < claim.by else OPEN
    if claim.test in ("less", "breaks", "falling"):
        return HOLDS if high < -claim.by else FAILS if low > -claim.by else OPEN
    if claim.test == "close":
        near = claim.within or 0.0
        return HOLDS if -near <= low and high <= near else FAILS if low > near or high < -near else OPEN
    least = -math.inf if claim.low is None else claim.low
    most = math.inf if claim.high is None else claim.high
    return HOLDS if least <= low and high <= most else FAILS if high < least or low > most else OPEN


def contrast(
    picked: Sequence[tuple[float, Numbers]], *, share: bool = False
) -> tuple[dict[int, dict[str, float]], dict[int, dict[str, str]], dict[int, dict[str, float]]]:
    """Return a sum of cells with coefficients, by seed and device, with teams and weights.

    Numbers of the same devices are summed device by device; of others, the means of each seed are.

    Args:
        picked: The coefficients and the numbers.
        share: Whether only the sign counts: 1 where the sum is positive, half of it where it is zero.
    """
    numbers = [one for _, one in picked]
    same = paired(numbers)
    values: dict[int, dict[str, float]] = {}
    teams: dict[int, dict[str, str]] = {}
    weights: dict[int, dict[str, float]] = {}
    for seed in sorted(set.intersection(*(set(one.values) for one in numbers))):
        devices = [name for name in numbers[0].values[seed] if all(name in one.values[seed] for one in numbers)]
        if same and devices:
            found = {name: sum(factor * one.values[seed][name] for factor, one in picked) for name in devices}
            teams[seed] = {name: numbers[0].teams[seed][name] for name in devices}
            weights[seed] = {name: numbers[0].weights[seed][name] for name in devices}
        else:
            means = [
                np.average(
                    list(one.values[seed].values()), weights=[one.weights[seed][name] for name in one.values[seed]]
                )
                for one in numbers
            ]
            found = {ALL: float(sum(factor * mean for (factor, _), mean in zip(picked, means, strict=True)))}
            teams[seed], weights[seed] = {ALL: ALL}, {ALL: 1.0}
        values[seed] = {name: 0.5 + 0.5 * float(np.sign(value)) for name, value in found.items()} if share else found
    return values, teams, weights
