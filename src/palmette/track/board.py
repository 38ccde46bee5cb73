"""Runs in TensorBoard, as files of events in the folder ``tensorboard`` of the run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from tensorboardX import SummaryWriter

from palmette.errors import PalmetteError
from palmette.track.tracker import Place, Start

FOLDER = "tensorboard"


class Board:
    """Writes numbers where ``tensorboard --logdir`` finds them, also among those of other runs."""

    def begin(self, start: Start) -> Place:
        """Begin a file of events; what an older one has of later rounds is hidden by it."""
        if (start.folder / FOLDER).is_symlink():
            raise PalmetteError(f"{start.folder / FOLDER} is a symbolic link; a run writes only inside its own folder")
        self._writer = SummaryWriter(str(start.folder / FOLDER), purge_step=start.logged + 1)
        if start.key is None:
            about = {"name": start.name, "folder": str(start.folder), "study": start.group}
            self._writer.add_text(
                "run", "\n".join(f"    {line}" for line in json.dumps(about, indent=1).splitlines()), 0
            )
            self._writer.add_text("config", "\n".join(f"    {line}" for line in start.config.splitlines()), 0)
        return Place(FOLDER, f"tensorboard --logdir {shlex.quote(str(start.folder))}")

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a round, to be seen at once."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, round_)
        self._writer.flush()

    def end(self, how: str, round_: int, numbers: Mapping[str, float]) -> None:
        """Write what the run came to."""
        for name, value in numbers.items():
            self._writer.add_scalar(f"summary/{name}", value, round_)
        self._writer.add_text("end", how, round_)
        self._writer.close()
