"""The pictures of the study behind ``palmette advise``: regrets, predictions against the truth, and where it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from palmette.report.picture import save
from palmette.report.style import BLUE, FAINT, GREEN, INK, ORANGE, PAPER, VERMILION, bare, settings
from palmette.studies.advising.families import FAMILIES
from palmette.studies.advising.outcome import ADVISOR, LABELS, NEAR, SEARCH, Outcome

_LINEAR = 0.02  # regrets up to this are drawn on a linear scale
_INK = {"ladder": BLUE, "ladder-directions": BLUE, ADVISOR: VERMILION, SEARCH: GREEN}


def draw(found: Outcome, folder: Path) -> list[Path]:
    """Draw all pictures into a folder and return the files; those of populations that were not run are left out."""
    folder.mkdir(parents=True, exist_ok=True)
    if not found.cases("judged"):
        return []
    with settings(PAPER):
        return [
            save(regrets(found), folder / "advise-regret.png"),
            _gains(found, folder / "advise-predicted.png"),
            _fails(found, folder / "advise-where.png"),
        ]


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def regrets(found: Outcome) -> Figure:
    """Draw the regret of every method on every population of the judged half, and its mean.

    Between -`_LINEAR` and `_LINEAR` the axis is linear, beyond it is logarithmic: most of what is to be seen is near 0.

    Args:
        found: What came out of the study.
    """
    cases = found.cases("judged")
    methods = sorted(
        (method for method in LABELS if found.regrets(cases, method)),
        key=lambda method: -float(np.mean(found.regrets(cases, method))),
    )
    figure, axes = _figure(7.4, 0.9 + 0.27 * len(methods))
    for line, method in enumerate(methods):
        values, ink = found.regrets(cases, method), _INK.get(method, FAINT)
        mean = float(np.mean(values))
        axes.scatter(values, [line] * len(values), s=13, color=ink, alpha=0.5, linewidths=0)
        axes.scatter(mean, line, s=46, color=ink, marker="D", linewidths=0, zorder=3)
        told = f"{mean:.4f}, worst {max(values):.3f}".replace("-", "\u2212")
        axes.text(1.01, line, told, va="center", transform=axes.get_yaxis_transform(), fontsize="small")
    always = {family.key for family in FAMILIES}
    axes.set_yticks(range(len(methods)), [("always " if one in always else "") + LABELS[one] for one in methods])
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_xscale("symlog", linthresh=_LINEAR, linscale=1.0)
    shown = [-0.02, -0.01, 0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1]
    axes.set_xlim(right=1.3 * max(max(found.regrets(cases, method)) for method in methods))
    low, high = axes.get_xlim()
    axes.set_xticks([tick for tick in shown if low <= tick <= high])
    axes.xaxis.set_major_formatter(lambda tick, _: f"{tick:g}".replace("-", "\u2212"))
    axes.minorticks_off()
    axes.set_xlabel(
        "regret: score of the best classic family less the method's own\n(dot: a population, diamond: the mean)"
    )
    count = f"{len(cases)} populations" if len(cases) != 1 else "one population"
    axes.set_title(f"{count} on which nothing was fixed")
    bare(axes, "top", "right")
    return figure


def _gains(found: Outcome, path: Path) -> Path:
    """Draw predicted against true gains over FedAvg + fine-tuning."""
    figure, axes = _figure(4.4, 4.0)
    for half, ink in (("fixed", FAINT), ("judged", BLUE)):
        predicted, true, _ = found.gains(found.cases(half))
        axes.scatter(predicted, true, s=11, color=ink, alpha=0.6, linewidths=0, label=f"{half} half, {len(true)} pairs")
    low, high = min(axes.get_xlim()[0], axes.get_ylim()[0]), max(axes.get_xlim()[1], axes.get_ylim()[1])
    axes.plot([low, high], [low, high], color=INK, linewidth=0.6)
    axes.set_xlabel("predicted gain over FedAvg + fine-tuning")
    axes.set_ylabel("true gain on the test samples")
    axes.legend(loc="lower right")
    bare(axes, "top", "right")
    return save(figure, path)


def _fails(found: Outcome, path: Path) -> Path:
    """Draw the regrets of ladder, of the advisor and of the search on every population."""
    cases = [*found.cases("fixed"), *found.cases("judged"), *found.cases(networks=True)]
    figure, axes = _figure(7.0, 0.7 + 0.21 * len(cases))
    marks = (("ladder", BLUE, "o"), (ADVISOR, VERMILION, "D"), (SEARCH, GREEN, "x"))
    for method, ink, mark in marks:
        lines = [line for line, case in enumerate(cases) if method in found.scores[case.name]]
        axes.scatter(
            [found.regret(cases[line], method) for line in lines],
            lines,
            s=22,
            color=ink,
            marker=mark,
            label=LABELS[method],
        )
    axes.axvspan(-NEAR, NEAR, color=ORANGE, alpha=0.12, linewidth=0)
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_yticks(
        range(len(cases)), [f"{case.name} ({'network, ' if case.network else ''}{case.half})" for case in cases]
    )
    axes.invert_yaxis()
    axes.set_xlabel("regret (to the left: better than every classic family)")
    figure.legend(loc="outside lower center", ncols=3)
    bare(axes, "top", "right")
    return save(figure, path)
