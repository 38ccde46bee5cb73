"""How sparse the models of a run are, and what that is worth on its links."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from palmette.evaluation import Scores
from palmette.links.sparse import density, published_bytes
from palmette.protocol import ModelKind
from palmette.simulate import Simulation


def densities(simulation: Simulation, tolerance: float) -> dict[ModelKind, float]:
    """Return the share of entries above a tolerance in the personal, team and global models, each model counting the same."""
    everybody = torch.arange(simulation.tree.devices)
    found: dict[ModelKind, float] = {"PM": float(density(simulation.device_models(everybody), tolerance).mean())}
    teams = simulation.team_models()
    if teams is not None:
        found["TM"] = float(density(teams, tolerance).mean())
    found["GM"] = float(density(simulation.model()[None], tolerance).mean())
    return found


class DensityLog:
    """Watches a run and notes, after every round, densities and bytes; pass it as a run's ``observer``.

    Args:
        tolerance: What counts as zero.
        every: Rounds between notes.
        file: Where records are also written, a line of JSON each; a run that is resumed goes on writing there.

    Attributes:
        rows: One record per noted round: densities by kind of model, the bytes that crossed the upper link in that round, what
            dense rows would have taken, and what the formula of sFedHP's Remark 1 gives for the models at its end.
    """

    def __init__(self, tolerance: float, every: int = 1, file: Path | None = None) -> None:
        self.tolerance, self.every = tolerance, every
        self.rows: list[dict[str, Any]] = []
        self._simulation: Simulation | None = None
        self._file = file

    def begin(self, simulation: Simulation, rounds: int) -> None:
        """Remember whom to look at."""
        self._simulation = simulation

    def exchange(self, tier: int) -> None:
        """Exchanges are counted by the ledger."""

    def round(self, done: int, scores: dict[ModelKind, Scores] | None) -> None:
        """Note a round."""
        simulation = self._simulation
        if simulation is None or done % self.every:
            return
        top = simulation.tree.top
        traffic = simulation.ledger.at(done - 1, top)
        teams, model = simulation.team_models(), simulation.model()
        sent = model[None] if teams is None else torch.cat([teams, model.expand(len(teams), -1)])
        measured = {
            f"{kind} {metric}": score.by_samples(metric)
            for kind, score in (scores or {}).items()
            for metric in score.sums
        }
        self.rows.append(
            {
                "round": done,
                **{str(kind): value for kind, value in densities(simulation, self.tolerance).items()},
                **measured,
                "bytes": traffic.bytes_up + traffic.bytes_down,
                "dense_bytes": len(sent) * model.numel() * model.element_size(),
                "published_bytes": float(published_bytes(sent, self.tolerance).sum()),
            }
        )
        if self._file is not None:
            with self._file.open("a") as out:
                out.write(json.dumps(self.rows[-1]) + "\n")

    def stopping(self) -> None:
        """Nothing is to be tidied up."""
