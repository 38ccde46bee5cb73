"""Whether a run's folder is as the run left it: every file of a finished run, the checkpoints of another."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palmette.runs.files import Damaged
from palmette.runs.folder import CHECKPOINT, CONFIG, IDENTITY, LOCK, MANIFEST, PREVIOUS, STATE, Folder, is_own
from palmette.runs.journal import Journal
from palmette.runs.opening import digest


@dataclass(frozen=True)
class Verification:
    """What was found in a run's folder.

    Attributes:
        folder: Where it lies.
        finished: Whether the run came to its end.
        files: How many files were looked at.
        bytes: How large they are together.
        problems: What is wrong, by the name of the file.
        others: Files in the folder that are not the run's.
    """

    folder: Path
    finished: bool
    files: int
    bytes: int
    problems: dict[str, str]
    others: list[str]

    @property
    def sound(self) -> bool:
        """Whether everything is as it was written."""
        return not self.problems

    def summary(self) -> dict[str, Any]:
        """Return it as one object, as ``palmette verify --json`` prints it."""
        return {
            "folder": str(self.folder),
            "finished": self.finished,
            "sound": self.sound,
            "files": self.files,
            "bytes": self.bytes,
            "problems": self.problems,
            "others": self.others,
        }


def verify(path: str | Path) -> Verification:
    """Look at every file that a run wrote; what is wrong is returned, what is no run's folder is refused."""
    folder = Folder(Path(path))
    try:
        folder = Folder.open(folder.path)
        names = sorted(folder.facts) if folder.finished else []
    except Damaged as error:
        return Verification(folder.path, folder.finished, 1, 0, {error.name: "damaged"}, [])
    if folder.finished:
        problems = {name: problem for name in names if (problem := folder.problem(name))}
    else:
        names = [name for name in (IDENTITY, CONFIG, CHECKPOINT, PREVIOUS, STATE) if folder.has(name)]
        problems = _unfinished(folder, names)
    own = {*names, MANIFEST, LOCK} if folder.finished else {name for name in os.listdir(folder.path) if is_own(name)}
    sizes = [(folder.path / name).stat().st_size for name in names if folder.has(name)]
    others = sorted(item.name for item in folder.path.iterdir() if item.name not in own)
    return Verification(folder.path, folder.finished, len(names), sum(sizes), problems, others)


def _unfinished(folder: Folder, names: list[str]) -> dict[str, str]:
    """Return what is wrong with a run that is still to be continued."""
    problems = {}
    for name in (CHECKPOINT, PREVIOUS, STATE):
        if name in names and (reason := Journal(folder).read(name).problem):
            problems[name] = f"damaged ({reason})"
    if CONFIG not in names:
        problems[CONFIG] = "missing"
    elif digest(folder.read(CONFIG)) != folder.read_sealed(IDENTITY).get("config"):
        problems[CONFIG] = "not as the run wrote it"
    return problems
