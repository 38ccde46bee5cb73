"""The conditions of the theorem behind a run's algorithm, worked out again from its config."""

from __future__ import annotations

import warnings
from typing import Any

from palmette.algorithms import ALGORITHMS
from palmette.errors import PalmetteError
from palmette.learner.smoothness import takes_long
from palmette.page.compact import plain
from palmette.runs import Result, RunConfig, prepare
from palmette.runs.reading import code_of
from palmette.theory import Check, Proven, check

_SAMPLES = 10**7  # of all devices together, by any of the data's options
_DEVICES = 5000  # of larger populations the constants take longer than a page should


def theorem(result: Result, devices: int) -> dict[str, Any]:
    """Return which conditions of the theorem hold for a run's settings, or the reason why that is not known.

    Args:
        result: The run.
        devices: How many devices it has.
    """
    config = result.config
    if reason := _reason(config, devices):
        return {"reason": reason}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run told them when it was made
            simulation = prepare(config)
            if takes_long(simulation.learner):
                return {
                    "reason": "The curvature of this model's losses takes long to find; palmette check works it out."
                }
            return _told(check(simulation))
    except (PalmetteError, OSError, ImportError) as error:
        return {"reason": f"The conditions could not be worked out: {error}"}


def _reason(config: RunConfig, devices: int) -> str:
    """Say why the conditions are not worked out, before anything is computed for it."""
    if not config.source:
        return "The algorithm was given as an object, which may have a theorem that Palmette does not know."
    if code := code_of(config):
        return (
            f"The {' and the '.join(code)} of this run are code that it names, which a page never runs, as the run may be a "
            "stranger's; palmette check works the conditions out, and palmette list algorithms explains the settings."
        )
    if not issubclass(ALGORITHMS[config.source], Proven):
        return f"Palmette knows no convergence theorem of {config.title}."
    if "data" in config.given or "model" in config.given:
        return (
            "The samples or the model were given as objects of Python, so the constants cannot be worked out from the "
            "run's folder."
        )
    options = config.data.model_extra or {}
    if config.data.own and not options.get("fingerprint"):
        return "The run does not say by which digest to know its data again, so they are not read."
    if any(isinstance(value, int) and value * max(devices, 1) > _SAMPLES for value in options.values()):
        return "With so many samples the constants take long to find; palmette check works them out."
    if devices > _DEVICES:
        return f"With {devices:,} devices the constants take long to find; palmette check works them out."
    return ""


def _told(found: Check) -> dict[str, Any]:
    rows = [
        {"what": one.what, "yours": one.yours, "allowed": one.allowed, "holds": one.holds, "source": one.source}
        for one in found.conditions
    ]
    return {
        "theorem": found.theorem,
        "conditions": rows,
        "holds": found.holds,
        "promise": found.promise,
        "constants": plain(found.constants),
        "notes": list(found.notes),
    }
