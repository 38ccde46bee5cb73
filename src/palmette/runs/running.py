"""New runs of a config, each in a folder of its own."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Literal, get_args

from torch import nn

from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, PalmetteWarning, nearest
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.protocol.definition import check_method
from palmette.runs import fingerprint, kept, objects
from palmette.runs.config import RunConfig, versions
from palmette.runs.execution import Observer
from palmette.runs.folder import CONFIG, Folder, claimed
from palmette.runs.preparing import check_population, prepare
from palmette.runs.reading import make_config, read_config
from palmette.runs.result import Result
from palmette.runs.sections import Given
from palmette.runs.together import engine
from palmette.runs.working import eyes_of, work
from palmette.task import Task
from palmette.track.tracker import Track, Trackers, chosen
from palmette.values import path as checked_path

Exist = Literal["fail", "overwrite", "resume"]
"""What to do with a run's folder that is there already."""


def rerun(
    source: str | Path,
    out: str | Path | None = None,
    *,
    exist: Exist = "fail",
    method: Algorithm | None = None,
    population: Population | None = None,
    model: nn.Module | Task | None = None,
    threads: int | None = None,
    progress: bool | None = None,
    observer: Observer | None = None,
    track: Track = (),
) -> Result:
    """Run the config of another run again, in a new folder: the same versions give the same bytes.

    Args:
        source: The folder of a run, or a config file.
        out: The new run's folder; a new one under ``runs/`` by default.
        exist: What to do when ``out`` holds a run already, as in `run`.
        method: The algorithm, where the config says that it was an object of your own.
        population: The samples, where they were your own.
        model: The module or task, where it was your own.
        threads: Chunks of devices that run at the same time.
        progress: Whether to show progress, as in `run`.
        observer: An object that is told of every round.
        track: Trackers, as in `run`.
    """
    trackers = chosen(track)
    path = Path(source)
    config = make_config(read_config(path / CONFIG if path.is_dir() else path))
    with eyes_of(config.title, observer, progress) as eyes:
        return execute(
            config, out, exist=exist, method=method, population=population, task=model, threads=threads, observer=eyes,
            track=trackers,
        )  # fmt: skip


def execute(
    config: RunConfig,
    out: str | Path | None = None,
    *,
    exist: Exist = "fail",
    method: Algorithm | None = None,
    population: Population | None = None,
    task: nn.Module | Task | None = None,
    threads: int | None = None,
    observer: Observer | None = None,
    track: Track = (),
) -> Result:
    """Run a config in a new folder and return the result; what it lists as given is handed over here."""
    trackers = chosen(track)
    check_exist(exist, out)
    _warn_of_versions(config)
    place = checked_path("out", out) if out is not None else None
    with claimed(place, Path("runs"), f"{config.label}-{config.data.label}") as path:
        people = config.population() if population is None else check_population(population)
        if method is not None and config.source and not objects.is_named(check_method(method)):
            config = _with_object(config, method)
        config = config.on(people, check_method(method or config.method()))
        simulation = prepare(config, method, people, task, threads, path, engine())
        backend = simulation.learner.backend.name
        resolved = config.resolved(simulation.algorithm, simulation.population, simulation.task, backend)
        _warn_of_objects(config, resolved)
        resolved.to_toml()  # what cannot be written down is told before a folder is made
        # What was ended before it began is like a new folder, whatever is to be done with a run.
        used = (path / CONFIG).exists() and not Folder(path).unbegun
        if exist == "resume" and used:
            return _same(simulation, resolved, Folder.open(path), observer, trackers)
        folder = _cleared(path) if exist == "overwrite" and used else Folder.create(path)
        return work(simulation, resolved, folder, observer, trackers)


def _with_object(config: RunConfig, method: Algorithm) -> RunConfig:
    """Return a config whose algorithm is the object that was handed over, in place of the one that it names."""
    given = {**config.given, "algorithm": Given(object=objects.import_path(type(method)))}
    return config.model_copy(update={"algorithm": method.name, "given": given})


def check_exist(exist: str, out: str | Path | None) -> None:
    """Refuse an unknown word for what to do with a folder that is there, and one without a folder."""
    if exist not in get_args(Exist):
        raise BadInput(f"exist = {exist!r} is unknown{nearest(str(exist), get_args(Exist))}")
    if out is None and exist != "fail":
        raise BadInput(f"exist = {exist!r} needs the folder of the existing run; name it with out= (--out)")


def _same(
    simulation: Simulation, config: RunConfig, folder: Folder, observer: Observer | None, track: Trackers
) -> Result:
    """Go on with the run in a folder if it is this one; read it when it is finished."""
    began = kept.config_in(folder)
    differ = fingerprint.kept_in(folder).differences(fingerprint.fingerprint(simulation, config))
    longer = "" if differ else f"; give it more rounds with 'palmette resume {folder.path} --rounds'"
    if began.rounds != config.rounds:
        differ.append(f"rounds (was {began.rounds}, is {config.rounds})")
    if differ:
        raise BadInput(
            f"{folder.path} holds another run; what differs: {'; '.join(differ)}. Choose another folder or "
            f"exist = 'overwrite' (--exist overwrite){longer}"
        )
    if not folder.finished:
        config = config.model_copy(update={"versions": began.versions})
        return work(simulation, config, folder, observer, track)
    if began.engine.keep_state != config.engine.keep_state:
        warnings.warn(
            f"the run in {folder.path} is finished and only read: engine.keep_state = {config.engine.keep_state} changes "
            "nothing there",
            PalmetteWarning,
            stacklevel=4,
        )
    return Result(folder.path, trust=True)


def _cleared(path: Path) -> Folder:
    """Return the folder of a run after its files were removed; a folder that is no run stays as it is."""
    if path.is_symlink():
        raise BadInput(f"{path} is a symbolic link; to overwrite the run there, name its folder itself")
    try:
        make_config(read_config(path / CONFIG), kept=True)
    except BadInput as error:
        raise BadInput(f"{path} is not a run of this version and is not overwritten: {error}") from None
    folder = Folder.open(path)
    folder.lock()
    folder.clear()
    return folder


def _warn_of_versions(config: RunConfig) -> None:
    now = versions()
    other = [
        f"{name} {value} (here {now.get(name)})" for name, value in config.versions.items() if now.get(name) != value
    ]
    if other:
        warnings.warn(
            f"this config was made with {', '.join(other)}: the last bits may differ", PalmetteWarning, stacklevel=4
        )


def _warn_of_objects(config: RunConfig, resolved: RunConfig) -> None:
    for role, given in config.given.items():
        now = resolved.given.get(role)
        if given.hash and (now is None or now.hash != given.hash):
            warnings.warn(
                f"the {role} is not the one this config was made with ({given.object})", PalmetteWarning, stacklevel=4
            )
