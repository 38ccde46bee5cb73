"""Watching a run: nested bars on a terminal and in a notebook, plain lines elsewhere, or nothing; on standard error."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from palmette.engines.evaluation import Scores
from palmette.engines.simulate import Simulation
from palmette.guards.screen import Screen, Text
from palmette.protocol import ModelKind
from palmette.runs import wording
from palmette.runs.execution import Observer
from palmette.runs.wording import model_style

_PAUSE = 1.0  # seconds between two plain lines
_STOPPING = "stopping after this round; press Ctrl-C again to stop at once"


def errors_console() -> Screen:
    """Return the console of progress."""
    return Screen(stderr=True)


@contextmanager
def watching(label: str, *, shown: bool | None = True, console: Screen | None = None) -> Iterator[Observer | None]:
    """Give the observer that fits where standard error goes.

    Args:
        label: What to call the run.
        shown: Whether to show progress; ``None`` shows it where somebody looks: in a terminal or a notebook.
        console: Where to; standard error by default.
    """
    screen = console or errors_console()
    if shown is False or (shown is None and not (screen.is_terminal or screen.is_jupyter)):
        yield None
    elif draws(screen):
        bars = Bars(label)
        with Live(bars.picture(), console=screen, transient=not screen.is_jupyter, refresh_per_second=10) as live:
            bars.refresh = lambda: live.update(bars.picture())
            yield bars
            if screen.is_jupyter:  # there the last picture stays, and rich does not draw it by itself
                live.update(bars.picture(), refresh=True)
    else:
        yield Lines(label, screen)


def draws(screen: Screen) -> bool:
    """Return whether bars can be drawn and drawn over; in a notebook that takes ipywidgets."""
    if screen.is_jupyter:
        return find_spec("ipywidgets") is not None
    return screen.is_terminal and not screen.is_dumb_terminal and "NO_COLOR" not in os.environ


def scores_text(scores: Mapping[ModelKind, Scores] | None) -> Text:
    """Write PM, TM and GM with their accuracy, or their loss where there is no accuracy."""
    text = Text()
    for kind, score in (scores or {}).items():
        metric = "accuracy" if "accuracy" in score.sums else "loss"
        text.append("  " if text else "").append(kind, style=f"bold {model_style(kind)}")
        text.append(f" {'loss ' if metric == 'loss' else ''}{score.by_samples(metric):.3f}")
    if drawn := max((score.sampled for score in (scores or {}).values()), default=0):
        text.append(f"  (of {drawn:,} sampled devices)")
    return text


def outline(simulation: Simulation) -> str:
    """Write what the algorithm's settings come to in this run, or nothing."""
    return "; ".join(wording.outline(simulation.algorithm.outline(simulation.tree, simulation.rounds)))


class Lines:
    """Tells a run in plain lines, about one a second."""

    def __init__(self, label: str, console: Screen) -> None:
        self._label, self._console = label, console
        self._rounds, self._told, self._scores = 0, 0.0, ""

    def begin(self, simulation: Simulation, rounds: int) -> None:
        """Say what starts."""
        self._rounds = rounds
        begun = f", going on after round {simulation.round}" if simulation.round else ""
        people = simulation.population
        kept_out = 0 if people.unseen is None else int(people.unseen.sum())
        unseen = f" ({kept_out:,} of them unseen)" if kept_out else ""
        size = f"{wording.many(people.devices, 'device')}{unseen}, {wording.many(rounds, 'round')}"
        about = f"{size}, backend {simulation.learner.backend.name}"
        self._say(f"{self._label}: {about}{begun}")
        looked = [one.sentence for one in simulation.looked]
        who = f"participation: {simulation.participation}"
        for told in (*simulation.population.notes, who, *looked, outline(simulation)):
            if told:
                self._say(f"{self._label}: {told}")

    def exchange(self, tier: int) -> None:
        """Say nothing."""

    def round(self, done: int, scores: dict[ModelKind, Scores] | None) -> None:
        """Say how far it is."""
        told = self._scores
        if scores:
            told = scores_text(scores).plain
            self._scores = f"{told} (after round {done})"
        now = time.monotonic()
        if done in (1, self._rounds) or now - self._told >= _PAUSE:
            self._told = now
            self._say(f"{self._label}: round {done}/{self._rounds}  {told}".rstrip())

    def stopping(self) -> None:
        """Say that it stops soon."""
        self._say(f"{self._label}: {_STOPPING}")

    def _say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)


class Bars:
    """Shows a run as nested bars: rounds, the exchanges of the round under way by tier, and the scores."""

    def __init__(self, label: str) -> None:
        self.refresh: Callable[[], None] = lambda: None
        self._label, self._about, self._note, self._scores = label, "", "", Text()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
        )
        self._began = time.monotonic()
        self._state = "reading the data"
        self._rounds = self._progress.add_task(f"{label[:24]:<24}", total=None, unit="rounds")
        self._tiers: dict[int, TaskID] = {}
        self._asked: dict[int, int] = {}
        self._top = 0

    def picture(self) -> Group:
        """Return what to draw."""
        last = Text(f"  {self._state:<23}").append_text(self._scores)
        last.append(f"  {time.monotonic() - self._began:.0f} s", style="dim")
        notes = [
            Text(f"  {note}", style=style) for note, style in ((self._about, "dim"), (self._note, "yellow")) if note
        ]
        return Group(self._progress, last, *notes)

    def begin(self, simulation: Simulation, rounds: int) -> None:
        """Draw the bars of the tree the algorithm runs on, from the server down."""
        self._top, self._state = simulation.tree.top, "first round"
        self._progress.update(self._rounds, total=rounds, completed=simulation.round)
        for tier in range(self._top, 0, -1):
            who = "server asks" if tier == self._top else "teams ask" if tier == 1 else f"tier {tier} asks"
            self._tiers[tier] = self._progress.add_task(f"  {who:<22}", total=None, unit="exchanges")
            self._asked[tier] = 0
        looked = [one.sentence for one in simulation.looked]
        who = f"participation: {simulation.participation}"
        self._about = "; ".join(filter(None, (who, outline(simulation), *looked)))
        self.refresh()

    def exchange(self, tier: int) -> None:
        """Move the bar of a tier."""
        self._asked[tier] += 1
        self._progress.update(self._tiers[tier], completed=self._asked[tier])

    def round(self, done: int, scores: dict[ModelKind, Scores] | None) -> None:
        """Move the bar of the rounds; after the first, the number of exchanges in one is known."""
        self._progress.update(self._rounds, completed=done)
        for tier, task in self._tiers.items():
            self._progress.update(task, total=max(1, self._asked[tier]), completed=0)
            self._asked[tier] = 0
        if scores:
            self._scores, self._state = scores_text(scores), f"test after round {done}"
        self.refresh()

    def stopping(self) -> None:
        """Say that it stops soon."""
        self._note = _STOPPING
        self.refresh()
