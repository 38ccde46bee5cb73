"""Random settings and arrays, as options, config files, Python values and arguments: they run, or are refused in one line."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from fuzz_values import name, near, number, population_arguments, text, toml, wild
from rich.console import Console

import palmette as pm
from palmette.algorithms import ALGORITHMS
from palmette.cli import configure as configuring
from palmette.cli.keys import GROUPS, TOP, known_keys
from palmette.datasets import DATASETS
from palmette.population import PARTITIONS
from palmette.report.tables import run_report
from palmette.runs import Result, execute, make_config
from palmette.task.models import MODELS

SMALL = {
    **{"local_steps": 1, "team_steps": 1, "tune_steps": 1, "iterations": 3, "passes": 1, "group_passes": 1},
    **{"tune_epochs": 0.1, "local_epochs": 0.1, "rates": [0.1]},
}
WHOLE = ("given", "versions", "server", "settings", "engine", "data", "participation")  # keys that hold others


def small_settings(method: str) -> dict[str, Any]:
    """Return the settings that make a round of a method short."""
    known = {field.name for field in fields(ALGORITHMS[method])} if method in ALGORITHMS else set()  # type: ignore[arg-type]
    return {name: value for name, value in SMALL.items() if name in known}


def values(luck: random.Random) -> dict[str, Any]:
    """Return a config of a small run with one to four wild values in it."""
    method = luck.choice([*ALGORITHMS, *ALGORITHMS, *ALGORITHMS, text(luck)])
    made: dict[str, Any] = {"algorithm": method, "rounds": 1, "tree": "2x2", "settings": small_settings(method)}
    # A method that estimates curvature takes half a minute on many samples or for a network of convolutions.
    slow = "iterations" in made["settings"]
    made["data"] = {"name": luck.choice(["digits", "crowd", "digits" if slow else "synthetic"])}
    made["model"] = {"name": luck.choice(["mclr", "dnn", "linear"] if slow else list(MODELS))}
    if method in ALGORITHMS and luck.random() < 0.5:
        one = luck.choice(fields(ALGORITHMS[method]))  # type: ignore[arg-type]
        made["settings"][one.name] = near(luck, one.default)
        return made
    known = known_keys(method if method in ALGORITHMS else None, made["model"]["name"])
    dotted = [*(key for key in known if key != "data.folder"), *WHOLE]
    for key in luck.sample(dotted, luck.choice([1, 1, 1, 2, 3])) + ([text(luck)] if luck.random() < 0.05 else []):
        group, _, rest = key.rpartition(".") if "." in key else ("", "", key)
        group = group or ("" if key in (*TOP, *WHOLE) else "settings")
        place = made.setdefault(group, {}) if group else made
        if not isinstance(place, dict):
            continue
        place[rest] = luck.choice([*PARTITIONS, *DATASETS]) if luck.random() < 0.1 else wild(luck)
    return made


def flat(nested: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys of a config."""
    for key, value in nested.items():
        if isinstance(value, Mapping) and key in GROUPS:
            yield from ((f"{key}.{inner}", part) for inner, part in value.items())
        else:
            yield key, value


def by_options(luck: random.Random, place: Path) -> Result:
    """Run a config as ``palmette run --set ...`` would."""
    made = values(luck)
    method = made.pop("algorithm")
    words = [f"{key}={toml(value)}" for key, value in flat(made)]
    return execute(configuring.configure(str(method), file=None, options={}, assignments=words), place / "run")


def by_file(luck: random.Random, place: Path) -> Result:
    """Run a config file; some are cut or changed in one place."""
    try:
        data = tomli_w.dumps(values(luck)).encode()
    except (TypeError, ValueError, AttributeError, OverflowError):
        data = luck.randbytes(40)
    if luck.random() < 0.3:
        at = luck.randrange(len(data))
        data = data[:at] if luck.random() < 0.5 else data[:at] + luck.randbytes(1) + data[at + 1 :]
    (place / "c.toml").write_bytes(data)
    return execute(configuring.configure(None, file=place / "c.toml", options={}, assignments=[]), place / "run")


def by_values(luck: random.Random, place: Path) -> Result:
    """Run a config made from Python values."""
    return execute(make_config(values(luck)), place / "run")


def by_arguments(luck: random.Random, place: Path) -> Result:
    """Call `palmette.run` with wild arguments on a good population."""
    numpy = np.random.default_rng(0)
    device = np.arange(24) % 4
    people = pm.Population.from_arrays(
        numpy.normal(size=(24, 3)), np.arange(24) // 4 % 3, device=device, team=device // 2
    )
    method = luck.choice([*ALGORITHMS])
    given: dict[str, Any] = {"rounds": 1, "settings": small_settings(method), "out": place / "run"}
    keys = ["model", "rounds", "seed", "participation", "loss", "evaluate_every", "threads", "settings"]
    keys += [
        "backend",
        "dtype",
        "device",
        "chunk",
        "held_out",
        "store",
        "settings",
        "participation",
        "algorithm",
        "out",
    ]
    for key in luck.sample(keys, luck.randrange(1, 3)):
        if key == "settings" and luck.random() < 0.8:
            chosen = luck.choice([field.name for field in fields(ALGORITHMS[method])])  # type: ignore[arg-type]
            given[key] = {**small_settings(method), chosen: wild(luck)}
        elif key == "participation" and luck.random() < 0.8:
            given[key] = {luck.choice(["devices", "teams", "tier2", text(luck)]): wild(luck)}
        else:
            given[key] = inside(place, wild(luck)) if key == "out" else wild(luck)
    return pm.run(given.pop("algorithm", method), people, **given)


def inside(place: Path, out: Any) -> Any:
    """Return a value of ``out``, or another where it would lead out of the case's folder."""
    if isinstance(out, str | Path) and not os.path.abspath(place / out).startswith(f"{place}{os.sep}"):
        return place / "run"
    return out


def by_arrays(luck: random.Random, place: Path) -> Result:
    """Make a population from wild arrays and run a method on it."""
    people = pm.Population.from_arrays(**population_arguments(luck))
    people.summary()
    method = luck.choice([*ALGORITHMS])
    model = luck.choice(["mclr", "mclr", "dnn", "linear", "cnn"])
    settings = small_settings(method)
    if luck.random() < 0.3 and "alpha" in {field.name for field in fields(ALGORITHMS[method])}:  # type: ignore[arg-type]
        settings["alpha"] = "auto"
    return pm.run(method, people, model, rounds=1, settings=settings, out=place / "run")


def by_source(luck: random.Random, place: Path) -> None:
    """Make a population of a named source with wild options, and a tree of anything."""
    keys = [
        "tree",
        "seed",
        "partition",
        "teams",
        "shift",
        "test",
        "pixels",
        "alpha",
        "beta",
        "least",
        "within",
        "folder",
    ]
    keys += ["samples", "test_samples", "spread", "of", "classes_per_device", "devices"]
    given = {key: wild(luck) for key in luck.sample(keys, luck.randrange(1, 4))}
    pm.make_population(luck.choice(["digits", "crowd", "synthetic", wild(luck)]), **{"tree": "2x2", **given})


def by_tree(luck: random.Random, place: Path) -> None:
    """Make a tree of anything; one that is accepted reads back from what it writes."""
    shapes: list[Callable[[], Any]] = [
        lambda: wild(luck),
        lambda: [number(luck) for _ in range(luck.randrange(4))],
        lambda: [name(luck) for _ in range(luck.randrange(4))],
        lambda: "x".join(str(luck.choice([0, 1, 2, 3, 10**9])) for _ in range(luck.choice([1, 2, 3, 200]))),
        lambda: {name(luck): luck.choice([0, 1, 2, 10**12, ["a"], {"b": 2}, True]) for _ in range(3)},
        lambda: nested(luck.choice([3, 50, 2000])),
    ]
    tree = pm.Tree.parse(luck.choice(shapes)())
    if tree.devices < 10_000:
        assert str(pm.Tree.parse(tree.spec())) == str(tree)


def nested(depth: int) -> Any:
    """Return a tree of one node per tier."""
    tree: Any = ["d"]
    for tier in range(depth):
        tree = {f"t{tier}": tree}
    return tree


WAYS = (
    by_options,
    by_file,
    by_values,
    by_arguments,
    by_arguments,
    by_arrays,
    by_arrays,
    by_arrays,
    by_source,
    by_tree,
)


def show(result: Result, place: Path) -> None:
    """Look at a run as a user would: its tables, and every node's model in a file of its own."""
    Console(file=io.StringIO(), width=80).print(run_report(result, teams=True))
    for kind in result.kinds:
        result.save_models(place / "models", kind)


def case(luck: random.Random, place: Path) -> str:
    """Run one case in a folder of its own and return how it came there."""
    way = luck.choice(WAYS)
    result = way(luck, place)
    if result is not None:
        show(result, place)
    return way.__name__
