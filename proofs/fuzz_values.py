"""Random values of every kind that a config, a program or a table can hold: good, odd and impossible ones."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch

NAMES = ("a", "A", "[/bold]", "[red]", ":smile:", "ü 日本", "x" * 300, "a/b", "..", "a\nb", "\x1b[31m", "1", "nan")
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
