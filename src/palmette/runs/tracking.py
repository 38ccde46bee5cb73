"""A run under the eyes of trackers: an observer that turns what the run records into their numbers.

Whatever a tracker does, the run goes on and its files are the same: a tracker that raises is told of once and left out.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palmette.engines.evaluation import Scores
from palmette.engines.simulate import Simulation
from palmette.errors import PalmetteError, PalmetteWarning
from palmette.links.clock import SECOND
from palmette.protocol import ModelKind
from palmette.runs.config import RunConfig
from palmette.runs.execution import Observer
from palmette.runs.files import Files
from palmette.runs.folder import TRACKED, Folder
from palmette.runs.metrics import HELD_OUT, OWN, POOLED, SAMPLED, TRAINED, of_sample
from palmette.track.tracker import Place, Start, Tracker, Trackers
from palmette.values import one_line

_LONG = 250  # letters of a setting
_STATISTICS = {"mean": "", POOLED: "", "sum": "", "spread": "_spread", "worst-decile": "_worst_tenth"}
_LINKS = ("exchanges", "bytes_up", "bytes_down")


class Tracked:
    """Tells trackers of a run, and another observer besides.

    Args:
        trackers: What makes each tracker, by its name.
        config: The run's config.
        folder: Its folder.
        observer: Is told all that happens, as without trackers.
    """

    def __init__(self, trackers: Trackers, config: RunConfig, folder: Folder, observer: Observer | None) -> None:
        self._chosen, self._config, self._folder, self._observer = trackers, config, folder, observer
        self._trackers: dict[str, Tracker] = {}
        self._kept = kept(folder.path)
        self._simulation: Simulation | None = None
        self._seen = 0
        self._traffic = _Sum()
        self.history: Callable[[], Mapping[str, Sequence[Any]]] = dict

    # -- what a run tells its observer ---------------------------------------------------------------------------------

    def begin(self, simulation: Simulation, rounds: int) -> None:
        """Begin with every tracker, or go on where it knows the run."""
        if self._observer is not None:
            self._observer.begin(simulation, rounds)
        self._simulation = simulation
        for name, make in self._chosen.makers.items():
            with self._safely(name, "at its start"):
                mine = self._kept.get(name, {})
                tracker = make()
                place = Place(*tracker.begin(self._start(mine.get("key"), mine.get("logged", -1))))
                self._kept[name] = {"key": place.key, "logged": mine.get("logged", -1), "where": place.where}
                self._keep()
                self._trackers[name] = tracker
                self._folder.log(f"tracked by {name}: {place.where}")

    def exchange(self, tier: int) -> None:
        """Pass it on."""
        if self._observer is not None:
            self._observer.exchange(tier)

    def round(self, done: int, scores: dict[ModelKind, Scores] | None) -> None:
        """Log what was measured since the last time."""
        if self._observer is not None:
            self._observer.round(done, scores)
        if scores is not None and self._trackers:
            for round_, numbers in self._measured().items():
                self._log(round_, numbers)

    def stopping(self) -> None:
        """Pass it on."""
        if self._observer is not None:
            self._observer.stopping()

    def end(self, how: str, summary: Mapping[str, Any]) -> None:
        """Tell every tracker how the run ended, and what it came to."""
        numbers = {name: float(value) for name, value in _flat(summary).items() if isinstance(value, int | float)}
        done = 0 if self._simulation is None else self._simulation.round
        for name, tracker in list(self._trackers.items()):
            with self._safely(name, "at its end"):
                tracker.end(how, done, numbers)

    # -- what trackers are told ----------------------------------------------------------------------------------------

    def _start(self, key: str | None, logged: int) -> Start:
        path = self._folder.path
        group = self._chosen.group
        name = f"{group}/{path.name}" if group else path.resolve().name
        return Start(name, path, group, settings_of(self._config), self._config.to_toml(), key, logged)

    def _log(self, round_: int, numbers: Mapping[str, float]) -> None:
        for name, tracker in list(self._trackers.items()):
            if round_ <= self._kept[name]["logged"]:
                continue  # a run that goes on repeats rounds that were done after its checkpoint, to the same numbers
            with self._safely(name, f"in round {round_}"):
                tracker.log(round_, numbers)
                self._kept[name]["logged"] = round_
                self._keep()

    def _measured(self) -> dict[int, dict[str, float]]:
        """Return the numbers about all devices that were recorded since the last time, by round."""
        assert self._simulation is not None
        rows, top = self.history(), self._simulation.population.tree.top
        if len(rows["round"]) < self._seen:  # a run that diverged went back
            self._seen = 0
        names = ("round", "when", "model", "tier", "on", "weight", "statistic", "metric", "value")
        new = zip(*(rows[name][self._seen :] for name in names), strict=True)
        self._seen = len(rows["round"])
        found: dict[int, dict[str, float]] = {}
        groups = _groups("all" if self._simulation.population.unseen is None else TRAINED)
        for round_, when, model, tier, on, weight, statistic, metric, value in new:
            wanted = weight in ("samples", OWN) or (weight == "devices" and statistic != "mean")
            if tier != top or when != "after" or not wanted or statistic not in _STATISTICS:
                continue
            group = groups.get(on) if weight != OWN else "" if on == "all" else f"{SAMPLED}/"
            if group is None:
                continue
            found.setdefault(round_, {})[f"{group}{model}/{metric}{_STATISTICS[statistic]}"] = value
        return {round_: {**found[round_], **self._traffic.until(round_, self._simulation)} for round_ in sorted(found)}

    # -- when a tracker fails ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _safely(self, name: str, when: str) -> Any:
        """Let a tracker work; what it warns of is its own affair, and when it fails the run goes on without it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
            return
        except (Exception, SystemExit) as error:
            told = one_line(f"{type(error).__name__}: {error}")
        self._trackers.pop(name, None)
        text = f"the tracker {name} failed {when} ({told}); the run goes on without it"
        with contextlib.suppress(PalmetteError):  # the log may be on the same full disk
            self._folder.log(f"warning: {text}")
        warnings.warn(text, PalmetteWarning, stacklevel=4)

    def _keep(self) -> None:
        """Remember what each tracker knows, for when the run goes on; not one of the files that make the run."""
        Files(self._folder.path).write_json(TRACKED, self._kept)  # a list of its own, so that no checksum tells of it


def _groups(default: str) -> dict[str, str]:
    """Return what the numbers about a group of devices begin with, by its word for ``on``.

    Args:
        default: The devices that numbers are about where nothing else is said.
    """
    known = {default: "", "unseen": "unseen/", HELD_OUT: f"{HELD_OUT}/"}
    return known | {of_sample(on): f"{SAMPLED}/{before}" for on, before in known.items()}


class _Sum:
    """Adds up the traffic of a run, link by link, as far as it was asked for."""

    def __init__(self) -> None:
        self._done, self._total = 0, dict[str, float]()

    def until(self, round_: int, simulation: Simulation) -> dict[str, float]:
        """Return exchanges and bytes on every link in the first rounds, and the time on the simulated clock."""
        if round_ < self._done:
            self._done, self._total = 0, {}
        top, entries = simulation.population.tree.top, simulation.ledger.entries
        for done in range(self._done, round_):
            for tier in range(1, top + 1):
                if (entry := entries.get((done, tier))) is not None:
                    link = "server" if tier == top else "teams" if tier == 1 else f"tier{tier}"
                    for key in _LINKS:
                        name = f"traffic/{link}/{key}"
                        self._total[name] = self._total.get(name, 0.0) + getattr(entry, key)
                    if tier == top and simulation.pace is not None:
                        self._total["clock/seconds"] = max(self._total.get("clock/seconds", 0.0), entry.time / SECOND)
        self._done = round_
        return dict(self._total)


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Return all settings of a run as text and numbers, by dotted names; what is nested deeper or long is cut short."""
    found: dict[str, Any] = {}
    for key, value in config.model_dump().items():
        inner = (
            {f"{key}.{name}": one for name, one in value.items()} if isinstance(value, dict) and key != "tree" else None
        )
        for name, one in ({key: value} if inner is None else inner).items():
            plain = one if isinstance(one, str | int | float | bool) else json.dumps(one, default=str)
            found[name] = plain[:_LONG] if isinstance(plain, str) else plain
    return found


def summary_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return of a run's summary what is not a number of its last round anyway."""
    return {key: summary[key] for key in ("best", "device_steps", "device_steps_per_second") if key in summary}


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{before}{key}/") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return found


def kept(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what is known of the trackers of the run in a folder, by their names; nothing where it has none."""
    try:
        found = json.loads(Files(folder).read(TRACKED))
        return {str(name): dict(one) for name, one in found.items() if isinstance(one["logged"], int)}
    except (ValueError, TypeError, KeyError, AttributeError):  # there is none, or it is not what a run wrote
        return {}
