"""Settings that a sweep or a search tried, as the data of a page, and which were chosen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palmette.page.compact import plain

_FEW = 4  # choices that are told in a sentence


def tried(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings that a study tried with their scores on validation samples; ``None`` where it tried none.

    Args:
        summary: What `palmette.studies.study.Study.summary` returned.
    """
    by = summary.get("by")
    if summary.get("points"):
        keys = list(summary["grid"])
        points = [{"settings": one["settings"], "mean": _mean(one["models"], by)} for one in summary["points"]]
        chosen = [{"seed": one["seed"], "settings": one["settings"]} for one in summary["chosen"]]
    elif summary.get("tries"):
        tries = summary["tries"]
        keys = list(dict.fromkeys(key for one in tries for key in one.get("settings", {})))
        about = [{"method": one["method"], "seed": one["seed"], "settings": one.get("settings", {})} for one in tries]
        points = [{**told, "mean": one.get("score")} for told, one in zip(about, tries, strict=True)]
        chosen = [told for told, one in zip(about, tries, strict=True) if one.get("chosen")]
    else:
        return None
    grid = bool(summary.get("points"))
    # A point without a score diverged, or is still to come: while a study goes on, that is not known.
    missing = "diverged" if summary["finished"] or not grid else "–"
    told = {"keys": keys, "by": by, "points": points, "chosen": chosen, "map": grid and len(keys) == 2}
    return dict(plain({**told, "missing": missing}))


def _mean(models: Mapping[str, Any], by: Any) -> float | None:
    found = models.get(by) or models.get("PM")
    return None if found is None else found["mean"]


def choices(grid: Mapping[str, Any]) -> str:
    """Say which settings were chosen, and by which seeds where these differ; nothing where none was yet."""
    seeds: dict[str, list[str]] = {}
    for one in grid["chosen"]:
        seeds.setdefault(", ".join(f"{key}={value}" for key, value in one["settings"].items()), []).append(
            str(one["seed"])
        )
    told = [
        settings if len(seeds) == 1 else f"{settings} (seed{'s' if len(some) > 1 else ''} {', '.join(some)})"
        for settings, some in seeds.items()
    ]
    more = f" and {len(told) - _FEW} more" if len(told) > _FEW else ""
    return f"Chosen by {grid['by']}: {'; '.join(told[:_FEW])}{more}." if told else ""
