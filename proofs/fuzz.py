"""Throw random settings and arrays at Palmette; whatever is not an answer or a plain refusal is a fault.

Run by hand: ``make prove-fuzz``, or ``python proofs/fuzz.py CASES SEED``. Every case ends in one of four ways: it ran, it was
refused in one line (`PalmetteError`), it raised something else, or it took too long. The last two are faults; they are printed
with their case and fail the proof. A case is a function of (seed, number), so a fault can be looked at again:
``python proofs/fuzz.py 1 SEED NUMBER``.
"""

from __future__ import annotations

import io
import os
import random
import resource
import signal
import string
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from rich.console import Console

import palmette as pm
from palmette.algorithms import ALGORITHMS
from palmette.cli import configure as configuring
from palmette.cli.keys import GROUPS, TOP, known_keys
from palmette.datasets import DATASETS
from palmette.errors import PalmetteError
from palmette.population import PARTITIONS
from palmette.report.tables import run_report
from palmette.runs import Result, execute, make_config
from palmette.task.models import MODELS

SECONDS = 60.0  # for one case; one that runs takes a tenth of a second, on a busy machine some seconds
MEMORY = 20 << 30  # bytes of addresses: what asks for more fails instead of bringing the machine to a stop
SMALL = {
    **{"local_steps": 1, "team_steps": 1, "tune_steps": 1, "iterations": 3, "passes": 1, "group_passes": 1},
    **{"tune_epochs": 0.1, "local_epochs": 0.1, "rates": [0.1]},
}
NAMES = ("a", "A", "[/bold]", "[red]", ":smile:", "ü 日本", "x" * 300, "a/b", "..", "a\nb", "\x1b[31m", "1", "nan")
WHOLE = ("given", "versions", "server", "settings", "engine", "data", "participation")  # keys that hold others
BAD_NAMES = ("\ud800", "", " ")
MILD = (
    1,
    2,
    3,
    4,
    10,
    0.1,
    0.25,
    0.5,
    1.0,
    2.0,
    "auto",
    "all",
    "full",
    "50%",
    "1 device",
    "2x2",
    "none",
    [1, 2],
    ["a"],
)


class TooSlow(BaseException):
    """A case took longer than it may."""


# -- values ------------------------------------------------------------------------------------------------------------


def number(luck: random.Random) -> Any:
    """Return a number of any size and type."""
    whole = [0, 1, -1, 2, 3, 7, 100, 2**63 - 1, 2**63, 2**64, 10**18, 10**30, -(2**63), 10**400]
    real = [
        0.0,
        -0.0,
        0.5,
        1.0,
        1.5,
        -0.5,
        1e-300,
        5e-324,
        1e18,
        1e30,
        1e300,
        float("inf"),
        float("-inf"),
        float("nan"),
    ]
    other = [np.float32(0.5), np.int64(3), np.float64(1e300), np.uint8(200), np.bool_(True), True, False]
    return luck.choice(luck.choice([whole, real, real, other]))


def text(luck: random.Random) -> str:
    """Return a text: a word of ours, a number, a name, or anything."""
    ours = [
        "auto",
        "all",
        "full",
        "digits",
        "rotate",
        "labels",
        "iid",
        "few",
        "team",
        "float64",
        "loop",
        "disk",
        "cuda",
    ]
    odd = [
        name(luck),
        "50%",
        "100%",
        "1 device",
        "2 teams",
        "pass 2",
        "1e18",
        "4x10",
        "2x2x2",
        "1x1",
        "1x0",
        "-1",
        "meta",
        "cpu:7",
    ]
    junk = "".join(luck.choice(string.printable + "üß日\ud800\0") for _ in range(luck.randrange(12)))
    return luck.choice(luck.choice([ours, odd, [junk]]))


def name(luck: random.Random) -> str:
    """Return a name of a node: an odd one, rarely an impossible one."""
    return luck.choice(BAD_NAMES if luck.random() < 0.02 else NAMES)


def wild(luck: random.Random, depth: int = 0) -> Any:
    """Return a value of any kind a config file or a program can hold."""
    if luck.random() < 0.3:
        return luck.choice(MILD)
    kinds: list[Callable[[], Any]] = [
        lambda: number(luck),
        lambda: number(luck),
        lambda: text(luck),
        lambda: text(luck),
    ]
    if depth < 3:
        kinds += [
            lambda: [wild(luck, depth + 1) for _ in range(luck.randrange(4))],
            lambda: {text(luck): wild(luck, depth + 1) for _ in range(luck.randrange(3))},
            lambda: luck.choice([None, (), (1, 2), Path("x"), np.array([1, 2]), np.array(0.5), torch.tensor(3), b"x"]),
        ]
    return luck.choice(kinds)()


def near(luck: random.Random, usual: Any) -> Any:
    """Return a value like the usual one, for most settings a possible one."""
    if isinstance(usual, bool | str) or usual is None:
        return luck.choice([usual, "auto", "all", "each", "both", "device", "descent", "equal", "none", 0.1, 2])
    if isinstance(usual, int):
        return luck.choice([usual, 1, 2, 3, 0, 10**14, 10**18, 10**400])
    return luck.choice([usual, 0, 1e-12, 0.5, 1, 1e6, 1e30, 1e300, {"device-0": 0.1}, [0.1]])


def toml(value: Any) -> str:
    """Write a value as ``--set`` takes it; what TOML cannot hold is written as Python shows it."""
    try:
        return tomli_w.dumps({"v": value}).partition("=")[2].strip()
    except (TypeError, ValueError, AttributeError, OverflowError):
        return str(value)


# -- arrays ------------------------------------------------------------------------------------------------------------


def array(luck: random.Random, rows: int) -> Any:
    """Return features, labels or a column of so many rows, or of another number."""
    rows = luck.choice([rows] * 8 + [0, 1, rows + 1])
    shape = (rows, *luck.choice([(), (1,), (3,), (3,), (0,), (1, 4, 4), (2, 2), (4, 0)]))
    numpy = np.random.default_rng(luck.randrange(2**32))
    kind = luck.randrange(12)
    made: Any = numpy.normal(size=shape)
    if kind == 0:
        made = numpy.integers(0, luck.choice([1, 2, 5, 300, 10**9, 2**40, 2**62]), shape)
    elif kind == 1:
        made = made * luck.choice([1e30, 1e-30, 1e300, 0.0, 1e18])
    elif kind == 2 and made.size:
        made.flat[luck.randrange(made.size)] = luck.choice([np.nan, np.inf, -np.inf, 1e39])
    elif kind == 3:
        made = made.astype(luck.choice(["f2", "f4", "i1", "u1", "i8", "u8", "c8", "?", "U", "S", "O", "longdouble"]))
    elif kind == 4:
        made = np.array([luck.choice([*NAMES, *NAMES, 1, 1.5, None, float("nan")]) for _ in range(rows)], dtype=object)
    elif kind == 5:
        made = numpy.integers(0, 3, shape).astype(luck.choice(["f4", "f8"]))
    elif kind == 6:
        made = torch.from_numpy(made).to(luck.choice([torch.float16, torch.bfloat16, torch.bool, torch.int32]))
    elif kind == 7:
        made = [numpy.normal(size=(luck.randrange(4), 3)) for _ in range(luck.randrange(4))]
    elif kind == 8:
        made = luck.choice(
            [wild(luck), np.datetime64("2020-01-01"), np.zeros(rows, "M8[s]"), made[::-1], made.tolist()]
        )
    return made


def population_arguments(luck: random.Random) -> dict[str, Any]:
    """Return arguments of `Population.from_arrays`: good ones, with one to three of them made wild."""
    rows = luck.choice([1, 2, 6, 24, 24, 24])
    numpy = np.random.default_rng(luck.randrange(2**32))
    given: dict[str, Any] = {
        "x": numpy.normal(size=(rows, 3)),
        "y": numpy.integers(0, 3, rows),
        "device": np.arange(rows) % 4,
        "team": np.arange(rows) % 4 // 2,
    }
    if luck.random() < 0.3:
        given["device"] = [name(luck) for _ in range(rows)]
        given["team"] = luck.choice([None, {one: name(luck) for one in NAMES}])
    keys = ["x", "x", "y", "y", "device", "team", "test", "seed", "classes", "affine", "tree"]
    for key in luck.sample(keys, luck.choice([0, 1, 1, 1, 2, 3])):
        likely = {
            "test": [0.0, 0.5],
            "seed": [2**62, np.int64(3)],
            "classes": [3, 7],
            "affine": [(0.5, 1), [1e-30, 0.0]],
        }
        if key in likely and luck.random() < 0.6:
            given[key] = luck.choice(likely[key])
            continue
        columns = key in ("x", "y", "device", "team", "test") and luck.random() < 0.8
        given[key] = array(luck, rows) if columns else wild(luck)
    if "tree" in given and luck.random() < 0.7:
        given |= {"tree": luck.choice(["2x2", 4, [1, 3], given["tree"]]), "team": None}
    return given


# -- cases -------------------------------------------------------------------------------------------------------------


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


KINDS = (
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


def run_case(seed: int, case: int, seconds: float = SECONDS) -> tuple[str, str]:
    """Run one case and return how it ended and what was said."""
    luck = random.Random(f"{seed} {case}")
    kind = luck.choice(KINDS)
    with (
        tempfile.TemporaryDirectory() as place,
        chdir(place),  # a wild out= may be a relative path
        warnings.catch_warnings(record=True) as heard,
        limited(seconds),
    ):
        warnings.simplefilter("always")
        try:
            result = kind(luck, Path(place))
            if result is not None:
                show(result, Path(place))
        except PalmetteError as error:
            told = str(error).replace(place, "")
            bad = "\n" in told.strip() or not told.strip() or len(told) > 3000
            return ("badly said" if bad else "refused"), f"{kind.__name__}: {type(error).__name__}: {told}"
        except (Exception, TooSlow) as error:
            where = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in where if "palmette" in frame.filename][-2:]
            lines = ", ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in ours)
            word = "too slow" if isinstance(error, TooSlow) else "traceback"
            return word, f"{kind.__name__}: {type(error).__name__}: {str(error)[:160]!r} at {lines}"
    # What libraries warn their programmers of tells a user nothing.
    foreign = [str(one.message) for one in heard if not issubclass(one.category, UserWarning)]
    return ("badly said", f"{kind.__name__}: {foreign[0]}") if foreign else ("ran", kind.__name__)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `TooSlow` in the main thread when the time is over."""

    def over(signum: int, frame: Any) -> None:
        raise TooSlow(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main(cases: int = 4000, seed: int = 1, first: int = 0) -> int:
    """Run the cases and count how they ended."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    ends: Counter[str] = Counter()
    began = time.monotonic()
    for case in range(first, first + cases):
        end, told = run_case(seed, case)
        ends[end] += 1
        if end not in ("ran", "refused") or cases == 1:
            print(f"case {case}: {end}: {told}", flush=True)
    counts = ", ".join(f"{count} {end}" for end, count in sorted(ends.items()))
    print(f"seed {seed}: {cases} cases in {time.monotonic() - began:.0f} s: {counts}")
    return 1 if set(ends) - {"ran", "refused"} else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
