"""The command ``palmette demo``: the study `palmette.studies.demo` on a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from palmette.cli.failures import Stopped
from palmette.engines.evaluation import Scores
from palmette.engines.simulate import Simulation
from palmette.errors import PalmetteError
from palmette.protocol import ModelKind
from palmette.report.numbers import Comparison
from palmette.report.tables import methods_table, spread_fits
from palmette.report.verdict import cost, safe_choice, tally, verdict
from palmette.runs import Interrupted, Observer
from palmette.runs.folder import claimed
from palmette.runs.progress import draws, errors_console
from palmette.studies.demo import CASES, CONTESTANTS, HERO, HERO_NOTE, SEEDS, STEPS, Case, Contestant, Trial, compete

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
    console: Console | None = None,
) -> list[Comparison]:
    """Run the study and print what came out.

    Args:
        base: Where the demo's folder is made.
        cases: The populations.
        contestants: The methods.
        seeds: The seeds.
        quiet: Whether to show no progress.
        console: Where the result is printed; standard output by default.
    """
    screen = console or Console(highlight=False)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(claimed(None, base, "demo", first=0))
        except OSError as error:
            raise PalmetteError(
                f"cannot make a folder in {base.absolute()}: {error.strerror}; start the demo where you may write"
            ) from None
        watch = stack.enter_context(Watch(cases, len(contestants) * len(seeds), quiet=quiet))
        try:
            comparisons = compete(folder, cases=cases, contestants=contestants, seeds=seeds, watch=watch)
            watch.check()
        except (Interrupted, KeyboardInterrupt) as error:
            raise Stopped(
                f"the demo was stopped in run {watch.begun} of {watch.runs}; finished runs are kept in {folder}; "
                "palmette demo starts a new one"
            ) from error
        watch.end()
        _print(screen, comparisons, len(seeds))
        from palmette.report.plots import plot_comparisons  # here, so that the runs need not wait for matplotlib

        plot = plot_comparisons(comparisons, folder / "demo.png", _TITLE)
    shown = folder / cases[-1].key / f"{contestants[-1].key}-{seeds[0]}"
    screen.print()
    for name, value in (
        ("plot", str(plot)),
        ("runs", f"{folder}/POPULATION/METHOD-SEED"),
        ("next", f"palmette show {shown}"),
    ):
        screen.print(Text.assemble((f"{name:<6}", "bold"), value), soft_wrap=True)
    return comparisons


def _print(screen: Console, comparisons: Sequence[Comparison], seeds: int) -> None:
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


class Watch:
    """Watches the runs of a study: one bar on a terminal, a line for every population elsewhere.

    Args:
        cases: The populations.
        each: Runs on each of them.
        quiet: Whether to say nothing.
    """

    def __init__(self, cases: Sequence[Case], each: int, *, quiet: bool) -> None:
        self.begun, self.runs = 0, each * len(cases)
        self._each, self._many, self._quiet = each, len(cases), quiet
        self._console = errors_console()
        self._bar: Progress | None = None
        self._asked = False
        self._began = time.monotonic()

    def __enter__(self) -> Watch:
        """Begin to draw."""
        if not self._quiet and draws(self._console):
            columns = (TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TextColumn("runs"))
            self._bar = Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
            self._bar.add_task("", total=self.runs)
            self._bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        """Take the bar away."""
        self.end()

    def end(self) -> None:
        """Stop drawing."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, trial: Trial) -> Observer:
        """Tell which run begins, and watch it."""
        self.check()
        if self._bar is not None:
            about = f"{trial.case.title}: {trial.contestant.key}"
            self._bar.update(self._bar.task_ids[0], completed=self.begun, description=f"{about[:30]:<30}")
        elif not self._quiet and self.begun % self._each == 0:
            number = self.begun // self._each + 1
            since = f"{time.monotonic() - self._began:.0f} s"
            self._say(f"{number}/{self._many} {trial.case.title}: {self._each} runs ({since} so far)")
        self.begun += 1
        return self

    def check(self) -> None:
        """Stop here if that was asked for during a run that came to its end all the same."""
        if self._asked:
            raise Interrupted("stopped")

    def stopping(self) -> None:
        """Remember that the user asked to stop."""
        self._asked = True
        if self._bar is None and not self._quiet:
            self._say("stopping")

    def begin(self, simulation: Simulation, rounds: int) -> None:
        """Say nothing."""

    def exchange(self, tier: int) -> None:
        """Say nothing."""

    def round(self, done: int, scores: dict[ModelKind, Scores] | None) -> None:
        """Say nothing."""

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)
