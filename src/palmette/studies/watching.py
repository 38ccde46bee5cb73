"""Watching a study: a live table on a terminal, a line for every finished run elsewhere, or nothing; on standard error."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich import box
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from palmette.guards.screen import Screen, Text
from palmette.runs.progress import draws, errors_console
from palmette.runs.wording import model_style
from palmette.studies.trials import Eyes, Outcome, Trial

_STOPPING = "stopping after the rounds under way; press Ctrl-C again to stop at once"
_MANY, _PAUSE = 30, 1.0  # of more runs than that not every one is told, but about one a second


class Blind:
    """Sees nothing; what is to be said is said all the same."""

    def __init__(self, console: Screen) -> None:
        self._console = console

    def begin(self, trial: Trial, rounds: int) -> None:
        """Say nothing."""

    def round(self, trial: Trial, done: int, rounds: int, scores: Mapping[str, float]) -> None:
        """Say nothing."""

    def end(self, outcome: Outcome) -> None:
        """Say what went wrong."""
        if outcome.end in ("diverged", "failed") and not outcome.trial.attempt:
            self.say(f"{outcome.trial.name} {outcome.end}: {outcome.message}")

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(Text(f"palmette: {text}"), soft_wrap=True)

    def stopping(self) -> None:
        """Say that it stops soon."""
        self.say(_STOPPING)


class Lines(Blind):
    """Tells a study in plain lines, one for every run that ended.

    Args:
        total: How many runs there are in all.
        console: Where to.
    """

    def __init__(self, total: int, console: Screen) -> None:
        super().__init__(console)
        self._total, self._ended, self._began = total, 0, time.monotonic()
        self._told = -math.inf
        self._scores: dict[Trial, Mapping[str, float]] = {}

    def round(self, trial: Trial, done: int, rounds: int, scores: Mapping[str, float]) -> None:
        """Remember how good it is."""
        if scores:
            self._scores[trial] = scores

    def end(self, outcome: Outcome) -> None:
        """Say how a run ended."""
        super().end(outcome)
        self._ended += 1
        told = "".join(f"  {kind} {value:.3f}" for kind, value in self._scores.pop(outcome.trial, {}).items())
        now = time.monotonic()
        if self._total > _MANY and self._ended < self._total and now - self._told < _PAUSE:
            return
        self._told = now
        how = told.strip() or ("there already" if outcome.end == "done" else outcome.end)
        text = f"{self._ended}/{self._total} {outcome.trial.name}: {how} ({now - self._began:.0f} s so far)"
        self._console.print(Text(text), soft_wrap=True)


@dataclass
class _Row:
    """What the live table shows of one method."""

    runs: int
    done: int = 0
    now: dict[Trial, tuple[int, int]] = field(default_factory=dict)
    last: dict[Trial, Mapping[str, float]] = field(default_factory=dict)
    wrong: int = 0


class LiveTable(Blind):
    """Shows a study as a table: a line for every method, with what its runs have come to.

    Args:
        runs: How many runs each method, or group of methods, has by its name.
        console: Where to.
    """

    def __init__(self, runs: Mapping[str, int], console: Screen) -> None:
        super().__init__(console)
        self._rows = {name: _Row(count) for name, count in runs.items()}
        self._began, self._note = time.monotonic(), ""
        self._lock = threading.Lock()

    def begin(self, trial: Trial, rounds: int) -> None:
        """Show a run that begins."""
        with self._lock:
            self._row(trial).now[trial] = (0, rounds)

    def round(self, trial: Trial, done: int, rounds: int, scores: Mapping[str, float]) -> None:
        """Show a round."""
        with self._lock:
            row = self._row(trial)
            row.now[trial] = (done, rounds)
            if scores and not trial.attempt and not trial.group:
                row.last[trial] = scores

    def end(self, outcome: Outcome) -> None:
        """Show that a run ended."""
        with self._lock:
            row = self._row(outcome.trial)
            row.now.pop(outcome.trial, None)
            row.done += outcome.end == "done" or bool(outcome.trial.attempt and outcome.end != "stopped")
            row.wrong += outcome.end in ("diverged", "failed") and not outcome.trial.attempt
        super().end(outcome)

    def stopping(self) -> None:
        """Say that it stops soon."""
        self._note = _STOPPING

    def _row(self, trial: Trial) -> _Row:
        return self._rows[trial.group or trial.arm]

    def __rich__(self) -> Group:
        with self._lock:
            return self._picture()

    def _picture(self) -> Group:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
        kinds = list(dict.fromkeys(kind for row in self._rows.values() for one in row.last.values() for kind in one))
        table.add_column("method", no_wrap=True)
        table.add_column("runs", justify="right")
        table.add_column("now", min_width=24, no_wrap=True)
        for kind in kinds:
            table.add_column(kind, justify="right", header_style=f"bold {model_style(kind)}")
        for name, row in self._rows.items():
            cells = [_mean([one.get(kind, math.nan) for one in row.last.values()]) for kind in kinds]
            wrong = f", {row.wrong} failed" if row.wrong else ""
            table.add_row(Text(name), f"{row.done}/{row.runs}{wrong}", Text(_now(row)), *cells)
        done, total = (sum(getattr(row, what) for row in self._rows.values()) for what in ("done", "runs"))
        last = Table.grid(padding=(0, 1))
        since = f"{done} of {total} runs, {time.monotonic() - self._began:.0f} s"
        last.add_row(ProgressBar(total=max(total, 1), completed=done, width=24), Text(since, style="dim"))
        return Group(table, last, *([Text(self._note, style="yellow")] if self._note else []))


def _now(row: _Row) -> str:
    if not row.now:
        return "done" if row.done == row.runs else ""
    trial, (done, rounds) = next(iter(row.now.items()))
    more = f" +{len(row.now) - 1}" if len(row.now) > 1 else ""
    which = f"try {trial.attempt}, " if trial.attempt else f"{trial.arm.rpartition('/')[2]}, " if trial.group else ""
    return f"{which}seed {trial.seed}: " + (f"round {done}/{rounds}" if rounds else "reading") + more


def _mean(values: Sequence[float]) -> str:
    there = [value for value in values if not math.isnan(value)]
    return f"{sum(there) / len(there):.3f}" if there else ""


@contextmanager
def watching(runs: Mapping[str, int], *, shown: bool | None = True, console: Screen | None = None) -> Iterator[Eyes]:
    """Give what fits where standard error goes.

    Args:
        runs: How many runs each method, or group of methods, has by its name.
        shown: Whether to show progress; ``None`` shows it where somebody looks: in a terminal or a notebook.
        console: Where to; standard error by default.
    """
    screen = console or errors_console()
    if shown is False or (shown is None and not (screen.is_terminal or screen.is_jupyter)):
        yield Blind(screen)
    elif draws(screen):
        picture = LiveTable(runs, screen)
        with Live(picture, console=screen, transient=not screen.is_jupyter, refresh_per_second=8):
            yield picture
    else:
        yield Lines(sum(runs.values()), screen)
