"""How well teams separate, and how well they agree with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from palmette.population.signatures import Rows
from palmette.tree import Ints

_MOST = 2000  # devices that a silhouette looks at: it compares every two of them


@dataclass(frozen=True)
class Found:
    """Teams that were found, and how good they are.

    Attributes:
        by: What devices were compared by: ``"gradients"``, ``"updates"`` or ``"labels"``.
        teams: Number of teams.
        silhouette: How well the teams separate, from -1 to 1; see `silhouette`. ``None`` where it is not defined.
        agreement: How well they agree with the teams that there were before; see `agreement`. ``None`` where there were none.
        unseen: Number of devices that are kept out of training and were put into the team of the nearest centre.
    """

    by: str
    teams: int
    silhouette: float | None = None
    agreement: float | None = None
    unseen: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return it as data."""
        return {"by": self.by, "teams": self.teams, "silhouette": self.silhouette, "agreement": self.agreement}

    def __str__(self) -> str:
        text = f"{self.teams} teams found by {self.by}"
        if self.silhouette is not None:
            text += f", silhouette {self.silhouette:.2f}"
        if self.agreement is not None:
            text += f", agreement with the given teams {self.agreement:.2f} (adjusted Rand index)"
        if self.unseen:
            text += f"; {self.unseen} unseen devices put into the team of the nearest centre"
        return text


def silhouette(rows: Rows, team: Ints) -> float | None:
    """Return the mean silhouette of devices: how much nearer a device lies to its own team than to the next one.

    1 means that teams lie far apart, 0 that they overlap, below 0 that devices lie nearer to another team. With more than 2,000
    devices, 2,000 of them at equal distances are looked at. ``None`` for one team, for as many teams as devices, and
    where features are so large that distances are beyond all numbers.

    Args:
        rows: A row per device; see `signatures`.
        team: The team of every device.
    """
    from sklearn.metrics import silhouette_score  # a second to import

    if len(rows) > _MOST:
        some = np.linspace(0, len(rows) - 1, _MOST).astype(np.int64)
        rows, team = rows[some], team[some]
    if not 2 <= len(np.unique(team)) < len(rows) or not np.isfinite(rows).all():
        return None
    return float(silhouette_score(rows, team))


def agreement(one: Ints, other: Ints) -> float:
    """Return the adjusted Rand index of two formations of teams: 1 if they are the same, about 0 if one is random.

    Args:
        one: The team of every device.
        other: Its team in the other formation.
    """
    from sklearn.metrics import adjusted_rand_score  # a second to import

    return float(adjusted_rand_score(one, other))
