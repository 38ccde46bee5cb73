"""The command ``palmette demo``: the study `palmette.studies.demo` on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.padding import Padding
from rich.table import Table

from palmette.cli.failures import Stopped
from palmette.errors import PalmetteError
from palmette.guards.screen import Screen, Text
from palmette.report.numbers import Comparison
from palmette.report.tables import methods_table, spread_fits
from palmette.report.verdict import cost, safe_choice, tally, verdict
from palmette.runs import Interrupted
from palmette.runs.folder import claimed
from palmette.studies.conduct import conduct
from palmette.studies.demo import (
    CASES,
    CONTESTANTS,
    HERO,
    HERO_NOTE,
    SEEDS,
    STEPS,
    Case,
    Contestant,
    comparisons,
    demo_plan,
)
from palmette.studies.study import Study

_MODELS = {
    "PM": "personal models: every device has its own",
    "TM": "team models: one for each team",
    "GM": "the global model: one for everybody",
}
_TITLE = f"Which method for which population: {STEPS} gradient steps on each device with every method"


def run_demo(
    base: Path = Path("runs"),
    *,
    cases: Sequence[Case] = CASES,
    contestants: Sequence[Contestant] = CONTESTANTS,
    seeds: Sequence[int] = SEEDS,
    quiet: bool = False,
    jobs: int | None = None,
    console: Screen | None = None,
) -> list[Comparison]:
    """Run the study and print what came out.

    Args:
        base: Where the demo's folder is made.
        cases: The populations.
        contestants: The methods.
        seeds: The seeds.
        quiet: Whether to show no progress.
        jobs: Runs at the same time; one for each core by default.
        console: Where the result is printed; standard output by default.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(claimed(None, base, "demo", first=0))
        except OSError as error:
            raise PalmetteError(
                f"cannot make a folder in {base.absolute()}: {error.strerror}; start the demo where you may write"
            ) from None
        try:
            study = conduct(demo_plan(cases, contestants, seeds), folder, jobs=jobs, shown=not quiet)
        except (Interrupted, KeyboardInterrupt) as error:
            how = str(error) if isinstance(error, Interrupted) else "stopped at once"
            raise Stopped(f"the demo was {how}; go on with: palmette resume {folder}") from error
    return show_demo(study, contestants, console=console)


def show_demo(
    study: Study, contestants: Sequence[Contestant] = CONTESTANTS, *, console: Screen | None = None
) -> list[Comparison]:
    """Print what came out of the demo, draw it, and write its page.

    Args:
        study: The demo.
        contestants: The methods.
        console: Where the result is printed; standard output by default.
    """
    screen = console or Screen()
    found = comparisons(study, contestants)
    if not found or not study.finished:
        screen.print(f"The demo in {study.folder} is not finished; go on with: palmette resume {study.folder}")
        return found
    _print(screen, found, len(study.plan.seeds))
    from palmette.report.plots import plot_comparisons  # here, so that the runs need not wait for matplotlib

    plot = plot_comparisons(found, study.folder / "demo.png", _TITLE)
    from palmette.page import write_report

    page = write_report(study)
    last, first = study.plan.arms[-1], study.plan.seeds[0]
    screen.print()
    for name, value in (
        ("plot", str(plot)),
        ("page", str(page)),
        ("open", f"palmette report {study.folder} --open"),
        ("runs", f"{study.folder}/POPULATION/METHOD-SEED"),
        ("next", f"palmette report {study.folder / study.plan.run_folder(last, first)}"),
    ):
        screen.print(Text.assemble((f"{name:<6}", "bold"), value), soft_wrap=True)
    return found


def _print(screen: Screen, comparisons: Sequence[Comparison], seeds: int) -> None:
    """Print words first, then the table, then what follows from it."""
    screen.print("\nThree kinds of models are measured, on the test samples of every device:")
    screen.print(_grid(list(_MODELS.items())))
    screen.print("\nThe populations, each of 4 teams of 10 devices:")
    screen.print(_grid([(one.title, one.about) for one in comparisons]))
    screen.print(Padding(methods_table(comparisons, width=screen.width), (1, 0)))
    spread = " ± standard deviation. " if spread_fits(comparisons, screen.width) else ". "
    note = f"Mean of {seeds} {'seed' if seeds == 1 else 'seeds'}{spread}"
    note += f"With every method each device takes {STEPS} gradient steps, fine-tuning counted. "
    note += "* marks the best and all that are not clearly worse. Clearly worse is half a point or more, if it is also "
    note += "more than chance explains (t-test over the seeds at 5 %).\n"
    screen.print(Text(note, style="dim"))
    for one in comparisons:
        screen.print(Text.assemble((f"{one.title.capitalize()}. ", "bold"), verdict(one)))
    told = [safe_choice(comparisons), f"{tally(comparisons, HERO)} {HERO_NOTE}", cost(comparisons)]
    screen.print(Text("\n" + "\n".join(told)))


def _grid(lines: Sequence[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in lines:
        table.add_row(f"  {name}", Text(value))
    return table
