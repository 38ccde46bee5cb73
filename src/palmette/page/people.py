"""Who took part, as a page shows it: the tree, the samples and the labels of a run's population."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow.compute as pc

from palmette.page.compact import numbers
from palmette.runs import Result

_LABELS = 300_000  # counts of labels a page keeps; of larger populations, those of teams only


def people(result: Result) -> dict[str, Any] | None:
    """Return the population of a run tier by tier, from the devices up; ``None`` where the run did not write it down.

    ``labels`` has the samples of each class of every device, or of every team where the devices are too many; ``labels_of`` is
    the tier it is about.
    """
    table = result.population
    if table is None:
        return None
    metadata = table.schema.metadata or {}
    tiers = [table.filter(pc.equal(table["tier"], tier)) for tier in range(int(pc.max(table["tier"]).as_py()) + 1)]
    devices = tiers[0]
    found: dict[str, Any] = {
        "tiers": [
            {
                "names": part["node"].to_pylist(),
                "parents": part["parent"].to_pylist(),
                "train": part["train"].to_pylist(),
                "test": part["test"].to_pylist(),
            }
            for part in tiers
        ],
        "unseen": [at for at, out in enumerate(devices["unseen"].to_pylist()) if out],
        "classes": json.loads(metadata[b"classes"]) if b"classes" in metadata else None,
        **_labels(devices, len(tiers)),
    }
    if devices.num_rows and devices["target"][0].is_valid and 5 * devices.num_rows <= _LABELS:
        found["target"] = [numbers(five) for five in devices["target"].to_pylist()]
    return found


def _labels(devices: Any, tiers: int) -> dict[str, Any]:
    """Return the counts of labels of devices, or of the tier above where they are too many for a page."""
    if not devices.num_rows or not devices["labels"][0].is_valid:
        return {"labels": None}
    counts = np.array(devices["labels"].to_pylist())
    if counts.size <= _LABELS or tiers < 3:
        return {"labels": counts.tolist(), "labels_of": 0} if counts.size <= _LABELS else {"labels": None}
    parents = np.array(devices["parent"].to_pylist())
    above = np.zeros((parents.max() + 1, counts.shape[1]), int)
    np.add.at(above, parents, counts)
    return {"labels": above.tolist(), "labels_of": 1} if above.size <= _LABELS else {"labels": None}
