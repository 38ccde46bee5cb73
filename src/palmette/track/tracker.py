"""What a tracker is, which there are, and that what one needs is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from palmette.errors import BadInput, nearest


@dataclass(frozen=True)
class Start:
    """A run that begins or goes on.

    Attributes:
        name: What to call it.
        folder: Where it is kept.
        group: The study it belongs to; empty for a run of its own.
        settings: Its settings, each as text or number, by dotted names.
        config: All of them as its config file has them.
        key: What `Tracker.begin` returned for this run before; ``None`` where the tracker does not know it yet.
        logged: The last round that was logged; -1 for none.
    """

    name: str
    folder: Path
    group: str
    settings: Mapping[str, Any]
    config: str
    key: str | None = None
    logged: int = -1


class Place(NamedTuple):
    """Where a tracker keeps a run.

    Attributes:
        key: By which the tracker finds it again.
        where: For people: a folder, an address, or a command that shows it.
    """

    key: str
    where: str


@runtime_checkable
class Tracker(Protocol):
    """An object that is told a run's numbers; one for every run. Whatever it raises never stops the run."""

    def begin(self, start: Start) -> Place:
        """Be told that the run starts, or goes on after ``start.logged``; return where it is kept.

        Args:
            start: The run's name, folder, settings, and what `begin` returned for it before.
        """

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Be told that a round was evaluated; every round comes once, in order.

        Args:
            round_: Rounds done.
            numbers: What was measured, by names such as ``PM/accuracy``.
        """

    def end(self, how: str, round_: int, numbers: Mapping[str, float]) -> None:
        """Be told that the run has ended.

        Args:
            how: ``"finished"``, ``"stopped"``, ``"diverged"`` or ``"failed"``.
            round_: Rounds done.
            numbers: What it came to, where it is finished.
        """


class _Known(NamedTuple):
    """A tracker that comes with Palmette."""

    home: str  # the module with its class
    kind: str  # the class
    needs: tuple[str, ...]  # modules
    called: str


TRACKERS = {
    "tensorboard": _Known("palmette.track.board", "Board", ("tensorboardX",), "tensorboardX"),
    "wandb": _Known("palmette.track.weights", "Weights", ("wandb",), "Weights & Biases"),
    "mlflow": _Known(
        "palmette.track.flow", "Flow", ("mlflow", "sqlalchemy", "alembic"), "MLflow, SQLAlchemy and Alembic"
    ),
}


@dataclass(frozen=True)
class Trackers:
    """The trackers that were chosen for a run.

    Attributes:
        makers: By its name, what makes each.
        group: The name of the study that the run belongs to; empty for a run of its own.
    """

    makers: Mapping[str, Callable[[], Tracker]]
    group: str = ""


Track = str | Tracker | Sequence[str | Tracker] | Trackers
"""What a user may name: a tracker by its name, one of their own, or several."""


def chosen(track: Track, option: str = "track", *, group: str = "") -> Trackers:
    """Return the trackers that a user named; refuse those that are unknown or not installed.

    Args:
        track: A name, a tracker of the user's own, or several of them; or what was chosen already.
        option: What the user wrote them after.
        group: The name of the study that the run belongs to.
    """
    if isinstance(track, Trackers):
        return track
    several = [track] if isinstance(track, str | Tracker) else track
    if not isinstance(several, Sequence):
        raise BadInput(f"{option} = {track!r} is no tracker; name one of {', '.join(TRACKERS)}")
    found: dict[str, Callable[[], Tracker]] = {}
    for one in several:
        if isinstance(one, str):
            found[one] = _maker(one, option)
        elif isinstance(one, Tracker) and not isinstance(one, type):
            found[type(one).__name__] = lambda one=one: one  # type: ignore[misc]
        else:
            raise BadInput(f"{option}: {one!r} is no tracker; it needs the methods begin, log and end")
    return Trackers(found, group)


def names_of(track: str | Sequence[str], option: str = "track") -> tuple[str, ...]:
    """Return the names of the trackers of a study, each checked; objects cannot go to the processes that run it."""
    names = (track,) if isinstance(track, str) else tuple(track)
    for name in names:
        if not isinstance(name, str):
            raise BadInput(f"a study is tracked by trackers with a name ({', '.join(TRACKERS)}), not by {name!r}")
    return tuple(chosen(names, option).makers)


def _maker(name: str, option: str) -> Callable[[], Tracker]:
    """Return what makes a tracker of a name; its library is loaded when it is made, not before."""
    if name not in TRACKERS:
        raise BadInput(f"{option} {name}: there is no such tracker{nearest(name, TRACKERS)}")
    known = TRACKERS[name]
    if any(find_spec(module) is None for module in known.needs):
        raise BadInput(f"{option} {name} needs {known.called}: pip install 'palmette[{name}]'")

    def make() -> Tracker:
        made: Tracker = getattr(import_module(known.home), known.kind)()
        return made

    return make
