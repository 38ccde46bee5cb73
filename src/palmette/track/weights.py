"""Runs in Weights & Biases; its own environment variables say where: WANDB_PROJECT, WANDB_MODE, WANDB_DIR and others."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import wandb

from palmette.errors import PalmetteError
from palmette.track.tracker import Place, Start


class Weights:
    """Sends numbers to Weights & Biases, or keeps them on disk with WANDB_MODE=offline."""

    def begin(self, start: Start) -> Place:
        """Begin a run, or go on with the one of the same id."""
        settings = wandb.setup().settings
        with contextlib.suppress(TypeError):  # older versions know no prompt=, and ask by themselves
            if settings.mode not in ("offline", "disabled") and not wandb.login(prompt=False, verify=False):
                raise PalmetteError("nobody is logged in: run 'wandb login' first, or set WANDB_MODE=offline")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "palmette",
            name=os.environ.get("WANDB_NAME") or start.name,
            group=os.environ.get("WANDB_RUN_GROUP") or start.group or None,
            id=start.key or os.environ.get("WANDB_RUN_ID"),
            resume="allow" if start.key else None,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.config.update({**start.settings, "folder": str(start.folder)}, allow_val_change=True)
        offline = settings.mode == "offline"
        where = f"wandb sync {shlex.quote(str(Path(self._run.dir).parent))}" if offline else str(self._run.url)
        return Place(self._run.id, where)

    def log(self, round_: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers of a round."""
        self._run.log(dict(numbers), step=round_, commit=True)

    def end(self, how: str, round_: int, numbers: Mapping[str, float]) -> None:
        """Say what the run came to, and wait until all is sent."""
        self._run.summary.update({"end": how, **{f"summary/{name}": value for name, value in numbers.items()}})
        self._run.finish(exit_code=0 if how == "finished" else 1)
