"""Drawing a figure: from what a user names to a file with its numbers beside it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, get_args

from palmette.errors import BadInput, PalmetteWarning, nearest
from palmette.protocol import ModelKind
from palmette.report.picture import check_picture, save, save_text
from palmette.values import path as checked_path

if TYPE_CHECKING:  # a plot is drawn by whoever asks for one
    from matplotlib.figure import Figure

    from palmette.figures.drawing import Drawn
    from palmette.figures.lines import Choice, Line, Source

Kind = Literal["convergence", "devices", "traffic", "time", "tree", "paired"]
"""What a figure shows."""
COSTS: Final = ("traffic", "time")
"""The kinds that show what a metric costs."""
Over = Literal["rounds", "steps"]
"""What the rounds of a figure of convergence are counted in."""


def figure(
    what: Source | Sequence[Source],
    kind: Kind,
    out: str | Path | None = None,
    *,
    metric: str | None = None,
    model: ModelKind | Sequence[ModelKind] = (),
    method: str | Sequence[str] = (),
    against: str | None = None,
    over: Over = "rounds",
    target: float | None = None,
    width: Literal["column", "page"] = "column",
    csv: bool = True,
) -> Figure:
    """Draw runs and studies for a paper, and return the figure of matplotlib.

    Args:
        what: The folder of a run or a study, a `Result`, a `Study`, or several of them. The runs of a study are drawn method
            by method, those of several seeds as their mean; so are runs that differ in the seed only.
        kind: ``"convergence"`` is a metric over the rounds, ``"devices"`` its distribution over devices, ``"traffic"`` the
            metric over the bytes sent, ``"time"`` over the time on the simulated clock, ``"tree"`` every node coloured by it,
            ``"paired"`` the differences device by device.
        out: Where to write it: a PDF, SVG or PNG, by the end of the name. By default it is only returned.
        metric: What was measured; accuracy by default, the loss where there is none.
        model: Which models: ``"PM"``, ``"TM"``, ``"GM"``; by default all of one run, and PM of several.
        method: The methods to draw, by their names in the figure; all by default.
        against: In a figure of pairs, the method that the others are compared with; the first by default.
        over: In a figure of convergence, what is counted: global rounds, or gradient steps of a device.
        target: In a figure of traffic or time, a value of the metric: where each line reaches it is marked, and in the numbers
            that round has it in the column ``target``.
        width: As wide as a column of a page with two, or as the page.
        csv: Whether to write the numbers beside the figure, under its name with the end ``.csv``.
    """
    place = None if out is None else checked_path("out", out)
    if place is not None:
        check_out(place, csv=csv)
    drawn = made(
        what, kind, metric=metric, model=model, method=method, against=against, over=over, target=target, width=width
    )
    for note in drawn.notes:
        warnings.warn(note, PalmetteWarning, stacklevel=2)
    if place is not None:
        write(drawn, place, csv=csv)
    return drawn.figure


def made(
    what: Source | Sequence[Source],
    kind: str,
    *,
    metric: str | None = None,
    model: ModelKind | Sequence[ModelKind] = (),
    method: str | Sequence[str] = (),
    against: str | None = None,
    over: str = "rounds",
    target: float | None = None,
    width: str = "column",
) -> Drawn:
    """Draw a figure and return it with its numbers and with what is to be told; see `figure`."""
    for option, value, known in (("kind", kind, get_args(Kind)), ("over", over, get_args(Over))):
        if value not in known:
            raise BadInput(f"{option} = {value!r} is unknown{nearest(str(value), known)}")
    from palmette.figures.costs import check_target
    from palmette.figures.lines import Choice, Source, gather
    from palmette.report.style import PAPER, WIDTHS, settings

    if width not in WIDTHS:
        raise BadInput(f"width = {width!r} is unknown{nearest(str(width), WIDTHS)}")
    one = isinstance(what, Source)
    sources: Sequence[Source] = [what] if one else list(what)  # type: ignore[list-item,arg-type]
    if not sources:
        raise BadInput("there is nothing to draw: name the folder of a run or of a study")
    lines, notes = gather(sources, [method] if isinstance(method, str) else method)
    models = (model,) if isinstance(model, str) else tuple(model)
    name = metric or lines[0].first.lead
    told = any(
        name in line.first.metrics["metric"].to_pylist() and name not in line.first.metric_names for line in lines
    )
    if told and kind not in ("convergence", *COSTS):
        raise BadInput(f"{name} is not measured on the samples of devices; only convergence, traffic and time draw it")
    if target is not None and kind not in COSTS:
        raise BadInput(f"a target is marked in a figure of {' or '.join(COSTS)}, not of {kind}")
    choice = Choice(name, models, width, over, against, told, target)  # type: ignore[arg-type]
    check_target(choice)
    with settings(PAPER):
        drawn = drawer(kind)(lines, choice)
    drawn.notes[:0] = notes
    return drawn


def drawer(kind: str) -> Callable[[Sequence[Line], Choice], Drawn]:
    """Return what draws a kind of figure."""
    from palmette.figures import convergence, devices, paired, time, traffic, tree

    drawers: dict[str, Callable[[Sequence[Line], Choice], Drawn]] = {
        "convergence": convergence.draw,
        "devices": devices.draw,
        "traffic": traffic.draw,
        "time": time.draw,
        "tree": tree.draw,
        "paired": paired.draw,
    }
    return drawers[kind]


def check_out(out: Path, *, csv: bool) -> None:
    """Refuse a file that cannot be written, before anything is drawn; also one that would be lost to the numbers."""
    check_picture("--out", out)
    numbers = numbers_of(out)
    if csv and numbers.exists():
        try:
            with open(numbers, encoding="utf-8", errors="replace") as file:
                ours = file.readline().startswith("method,")
        except OSError as error:
            raise BadInput(f"cannot write {numbers}: {error.strerror}") from None
        if not ours:
            raise BadInput(
                f"{numbers}, where the numbers of the figure are to go, holds something else; choose another --out, or "
                "--no-csv"
            )


def numbers_of(out: Path) -> Path:
    """Return where the numbers of a figure go."""
    return out.with_suffix(".csv")


def write(drawn: Drawn, out: Path, *, csv: bool) -> list[Path]:
    """Write a figure and its numbers, and return where."""
    from palmette.report.style import PAPER, settings

    with settings(PAPER):
        written = [save(drawn.figure, out)]
    if csv:
        written.append(save_text(drawn.csv(), numbers_of(out)))
    return written
