"""Trying settings of one method: every point of a grid, or what Optuna proposes; and `palmette.sweep`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from torch import nn

from palmette.algorithms import kind_of
from palmette.errors import BadInput, PalmetteWarning
from palmette.learner import Optimiser
from palmette.population import Population
from palmette.protocol import Algorithm, ModelKind
from palmette.protocol.sentences import suggestion
from palmette.protocol.settings import described
from palmette.runs import RunConfig, make_config
from palmette.runs.folder import claimed
from palmette.studies import tuning
from palmette.studies.arms import Base, chosen_seeds
from palmette.studies.compare import Choice, check_kind, checked, finished, plan_comparison, refuse_many
from palmette.studies.plan import Arm, Plan, with_settings
from palmette.studies.steps import Objects
from palmette.studies.study import Study
from palmette.studies.trials import Populations
from palmette.task import Task
from palmette.track.tracker import names_of
from palmette.values import path as checked_path
from palmette.values import shown, whole

CHOSEN = "chosen"
_OTHERS = (
    "rounds",
    "participation.",
    "model.",
    "optimiser.",
    "engine.",
)  # what may be swept besides the settings of the method


def sweep(
    method: str | Algorithm,
    population: Population | str | Mapping[str, Any] = "digits",
    model: str | nn.Module | Task | Mapping[str, Any] = "mclr",
    *,
    grid: Mapping[str, Any] | None = None,
    tune: int = 0,
    by: ModelKind = "PM",
    tree: Any = None,
    seeds: int | Sequence[int] | None = 1,
    steps: int | None = None,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    participation: Mapping[str, str | int | float] | None = None,
    links: Mapping[str, Mapping[str, Any]] | None = None,
    clock: Mapping[str, Any] | None = None,
    loss: float = 0.0,
    evaluate_every: int | str = "auto",
    evaluate_on: int | str = "auto",
    metrics: str | Sequence[str] = (),
    optimiser: Optimiser | Mapping[str, Any] | None = None,
    jobs: int | None = None,
    progress: bool | None = None,
    track: str | Sequence[str] = (),
    **engine: Any,
) -> Study:
    """Try settings of one method on validation samples, then train with the best ones and test.

    Every seed chooses for itself: a quarter of each device's training samples is kept out of training and decides. The
    chosen settings are then trained on all training samples. Test samples have no part in the choice.

    Args:
        method: The name of an algorithm, or an algorithm.
        population: As in `compare`.
        model: As in `compare`.
        grid: The values of every setting, as in ``{"beta": [0.1, 0.3, 1], "gamma": [1, 3]}``; all combinations are run. With
            ``tune`` they are what is drawn from; a range is written ``(low, high)`` then.
        tune: How many settings to try with Optuna, the given ones among them, in place of the whole grid.
        by: Which models decide.
        tree: As in `compare`.
        seeds: How many, or which.
        steps: Gradient steps on each device of every run.
        rounds: Global rounds of every run.
        settings: Settings that all runs share.
        out: The study's folder; a new one under ``runs/`` by default.
        participation: Who takes part.
        links: How links behave, as in `run`.
        clock: A simulated clock, as in `run`.
        loss: Chance that a node that was asked does not answer.
        evaluate_every: Rounds between evaluations.
        evaluate_on: Devices measured before the last round: a number of them, ``"all"``, or ``"auto"`` (a sample of many).
        metrics: Further metrics, as in `run`.
        optimiser: Optimiser of the devices' steps, as in `run`.
        jobs: Runs at the same time.
        progress: Whether to show progress.
        track: Trackers, as in `compare`.
        **engine: As in `compare`.
    """
    trackers = names_of(track)
    base = Base(
        *(population, model, tree, rounds, participation, links, clock, loss),
        *(evaluate_every, evaluate_on, metrics, optimiser, engine),
    )
    name = method.rpartition(":")[2] if isinstance(method, str) else type(method).name
    arm, objects = base.arm(name, method, settings or {})
    values = {key: tuning.as_given(f"grid[{key!r}]", one, pair=bool(tune)) for key, one in (grid or {}).items()}
    choice = Choice(chosen_seeds(seeds) or (0,), steps, tune, by=by, command="pm.sweep(...)")
    plan, given = plan_sweep(arm, values, choice, objects)
    place = checked_path("out", out) if out is not None else None
    with claimed(place, Path("runs"), f"sweep-{name}-{arm.config.data.label}") as folder:
        return finished(plan, folder, given, jobs, progress, trackers)


def plan_sweep(arm: Arm, grid: Mapping[str, Any], choice: Choice, objects: Objects) -> tuple[Plan, dict[str, Objects]]:
    """Check everything that can be checked before the first run, and return the plan.

    Args:
        arm: The method with the settings that all runs share.
        grid: By setting, a list of values, or a range for tuning.
        choice: What the sweep is to be like.
        objects: What the config cannot hold.
    """
    whole("--tune", choice.tune, 0)
    check_kind(choice.by)
    if not grid and not choice.tune:
        raise BadInput(f"name what to try, as in --grid {_example(arm)}, or let Optuna search with --tune 20")
    _refuse_keys(arm, grid, objects)
    if choice.tune:
        plan, given = plan_comparison([replace(arm, role="method")], replace(choice, space=grid), {arm.name: objects})
        return replace(plan, kind="sweep"), given
    grid = {key: _different(key, values) for key, values in grid.items()}
    count = 1
    for values in grid.values():
        count *= len(values)
    seeds = choice.seeds or (0,)
    refuse_many((count + 1) * len(seeds))
    populations, points, metric = Populations(), [], "accuracy"
    for number, values in enumerate(product(*grid.values()), start=1):
        config = _point(arm, dict(zip(grid, values, strict=True)), objects)
        one = replace(arm, name=f"point-{number:0{len(str(count))}d}", config=config, role="point")
        one, metric = checked(one, seeds[0], choice.steps, populations, objects)
        points.append(replace(one, config=tuning.validated(one.config)))
    last = replace(arm, name=CHOSEN, role="chosen")
    note = (
        f"Chosen: for every seed by itself the best of {count} points on validation samples, by {choice.by}; then trained on "
        "all training samples. Test samples had no part in the choice."
    )
    plan = Plan(
        "sweep",
        (*points, last),
        seeds,
        choice.command,
        choice.steps,
        by=choice.by,
        metric=metric,
        grid=grid,
        notes=(*choice.notes, note),
    )
    return plan, {one.name: objects for one in plan.arms}


def _point(arm: Arm, settings: Mapping[str, Any], objects: Objects) -> RunConfig:
    """Return the config of one point of the grid; values that cannot be are refused with their key."""
    if objects.method is not None:
        raise BadInput(
            f"{arm.name} was given as an object of your own, whose settings a sweep cannot change; give it by its import path, "
            "my_module:MyMethod"
        )
    values = with_settings(arm.config.model_dump(), settings)
    values["given"] = {role: one for role, one in values["given"].items() if role != "algorithm"}  # checked once more
    asked = arm.config.method().asked_rounds(arm.config.make_tree())
    if asked is not None and arm.config.rounds == asked and "rounds" not in settings:
        values.pop("rounds")  # the settings decide
    return make_config({key: value for key, value in values.items() if value is not None})


def _refuse_keys(arm: Arm, grid: Mapping[str, Any], objects: Objects) -> None:
    """Refuse settings that the method does not have, and what is no choice of settings."""
    kind = type(objects.method) if objects.method is not None else kind_of(arm.config.algorithm)
    known = described(kind)
    for key, values in grid.items():
        if not values:
            raise BadInput(f"--grid {key} has no value to try; write --grid {key}=0.1,0.3,1")
        if key == "seed":
            raise BadInput("--grid seed: seeds are no settings to choose; repeat everything with --seeds N")
        if key.startswith("data.") or key in ("tree", "data"):
            raise BadInput(
                f"--grid {key}: settings are chosen for one population; start a sweep for each, with --set {key}=..."
            )
        if key not in known and not key.startswith(_OTHERS):
            raise BadInput(f"--grid {key}: {kind.name} has no such setting{suggestion(key, known)}")


def _different(key: str, values: Any) -> list[Any]:
    """Return a list of values without repetitions, which are told."""
    if isinstance(values, Mapping):
        raise BadInput(
            f"--grid {key} is a range, which only --tune N can search; list the values, as in {key}=0.1,0.3,1"
        )
    found: list[Any] = []
    for value in values:
        if value in found:
            warnings.warn(f"--grid {key} names {shown(value)} twice; it is tried once", PalmetteWarning, stacklevel=3)
        else:
            found.append(value)
    return found


def _example(arm: Arm) -> str:
    known = described(kind_of(arm.config.algorithm)) if arm.config.source else {}
    name = next((key for key in ("alpha", "lam", *known) if key in known), "alpha")
    return f"{name}=0.03,0.1,0.3"
