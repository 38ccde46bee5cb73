"""Folders of runs and studies as a stranger might send them, through every command and method that reads one."""

from __future__ import annotations

import atexit
import csv
import json
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import fuzz_memory
import numpy as np
import torch
from fuzz_commands import command
from fuzz_damage import as_json, as_parquet, as_tensors, as_toml, checksum, replaced, scratched

import palmette as pm
from palmette.page.live import Watch
from palmette.runs import execute, make_config

CODE = "from pathlib import Path\nPath({mark!r}).touch()\ndef make(*words, **more):\n    Path({mark!r}).touch()\n"
SHORT: dict[str, Any] = {"rounds": 2, "settings": {"local_steps": 1}, "tree": "2x2", "evaluate_every": 1}


class Harm(Exception):  # noqa: N818 - reads as what it is
    """Code of the folder was run, or something outside it was changed."""


class _Enough(Exception):  # noqa: N818
    """Ends a run in the middle."""


# -- folders that are sound ------------------------------------------------------------------------------------------------


@cache
def bases() -> dict[str, Path]:
    """Make some small folders, once in a process: finished and stopped runs, with tables, rows of their own, and a study."""
    base = Path(tempfile.mkdtemp(prefix="palmette-fuzz-"))
    atexit.register(shutil.rmtree, base, ignore_errors=True)
    table, luck = base / "table.csv", np.random.default_rng(0)
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["team", "device", "age", "sex", "label"])
        for row in range(64):
            cells = [round(float(luck.normal()), 3), "fm"[row % 2], ("yes", "no")[int(luck.random() < 0.5)]]
            writer.writerow([f"t{row % 4 // 2}", f"d{row % 4}", *cells])
    own = {"name": str(table), "device": "device", "team": "team", "label": "label"}
    short = {**SHORT, "settings": {"local_steps": 1, "team_steps": 1}}
    without = {key: value for key, value in short.items() if key != "tree"}
    execute(make_config({**without, "algorithm": "permfl", "data": own}), base / "table")
    execute(make_config({**short, "algorithm": "permfl", "data": {"name": "digits"}}), base / "digits")
    execute(make_config({**SHORT, "algorithm": "fedavg", "model": {"name": "dnn", "hidden": [3]}}), base / "flat")
    few = {**without, "settings": {"local_steps": 1}, "model": {"name": "dnn", "hidden": [3]}, "data": own}
    execute(make_config({**few, "algorithm": "pfedgp"}), base / "rows")
    with suppress(_Enough):
        execute(make_config({**short, "algorithm": "permfl", "rounds": 3}), base / "cut", observer=_Stopper())
    pm.compare(["fedavg", "local"], "digits", tree="2x2", rounds=1, seeds=1, jobs=1, out=base / "study", progress=False)
    return {path.name: path for path in base.iterdir() if path.is_dir()}


class _Stopper:
    """Ends a run after its second round."""

    def begin(self, *_: Any) -> None:
        """See the run begin."""

    def exchange(self, *_: Any) -> None:
        """See an exchange."""

    def round(self, done: int, *_: Any) -> None:
        """See a round."""
        if done == 2:
            raise _Enough

    def stopping(self) -> None:
        """See it stop."""


# -- damage ----------------------------------------------------------------------------------------------------------------


def damage(luck: random.Random, folder: Path, outside: Path) -> str:
    """Change one to three files of a folder and return which."""
    told = []
    for _ in range(luck.choice((1, 1, 1, 2, 3))):
        files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
        if not files:
            break
        few = [file for file in files if file.name in ("config.toml", "metrics.parquet", "manifest.json", "study.toml")]
        file = luck.choice(luck.choice((files, files, few or files)))
        told.append(f"{file.relative_to(folder)}")
        if luck.random() < 0.12:
            replaced(luck, file, [one for one in files if one != file], outside)
            continue
        data = file.read_bytes()
        file.write_bytes(_rewritten(luck, file, data) if luck.random() < 0.8 else scratched(luck, data))
    if luck.random() < 0.85:
        for manifest in list(folder.rglob("manifest.json")):
            seal(manifest.parent)
    return ", ".join(told)


def _rewritten(luck: random.Random, file: Path, data: bytes) -> bytes:
    """Return what somebody might write into a file who knows its format."""
    try:
        if file.suffix == ".json":
            return as_json(luck, data)
        if file.suffix == ".toml":
            return as_toml(luck, data)
        if file.suffix == ".parquet":
            return as_parquet(luck, data)
        if file.suffix == ".safetensors":
            return as_tensors(luck, data)
        if file.suffix == ".bin" and data[:64] == checksum(data[64:]):
            made = as_tensors(luck, data, 64)
            return checksum(made[64:]) + made[64:]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError):
        pass  # it was damaged already
    return scratched(luck, data)


def seal(folder: Path) -> None:
    """Write right checksums, as far as the lists of them can still be read."""
    try:
        config = folder / "config.toml"
        if config.is_file():
            _resealed(folder / "identity.json", lambda told: told | {"config": checksum(config.read_bytes()).decode()})

        def facts(told: dict[str, Any]) -> dict[str, Any]:
            for name in told["files"]:
                if (folder / name).is_file():
                    data = (folder / name).read_bytes()
                    told["files"][name] = {"bytes": len(data), "sha256": checksum(data).decode()}
            return told

        _resealed(folder / "manifest.json", facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass


def _resealed(file: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    if file.is_symlink() or not file.is_file():
        return
    told = dict(json.loads(file.read_bytes()))
    told.pop("checksum", None)
    told = change(told)
    sum_ = checksum(json.dumps(told, sort_keys=True).encode()).decode()
    file.write_text(json.dumps({"checksum": sum_, **told}))


# -- reading ---------------------------------------------------------------------------------------------------------------


def by_api(luck: random.Random, folder: Path, place: Path) -> None:
    """Ask a result for all it knows."""
    result = pm.Result(folder)
    _ = (repr(result), result._repr_html_(), result.summary(), result.line(), result.links, result.reports)
    _ = (result.log, result.population, result.on, result.curve_on)
    for kind in result.kinds:
        for metric in result.metric_names[:3]:
            result.curve(kind, metric), result.last(kind, metric), result.best(kind, metric)
        if result.finished:
            names = result.names(kind)
            result.tensors(kind), result.state_dict(kind, names[0]), result.module(kind, names[0])
            result.save_models(place / "models", kind)
    if result.finished and result.kinds:
        kind = result.kinds[0]
        result.predict(torch.zeros((2, *result.shape)), kind, result.names(kind)[0])


def by_watch(luck: random.Random, folder: Path, place: Path) -> None:
    """Ask for the data of a live page, twice."""
    watch = Watch([folder])
    watch.news(), watch.news()


def by_command(*words: str) -> Callable[[random.Random, Path, Path], None]:
    """Return what runs a command on a folder; ``DIR``, ``OUT`` and ``TABLE`` stand for paths."""

    def run(luck: random.Random, folder: Path, place: Path) -> None:
        known = {"DIR": folder, "OUT": place / "out", "PAGE": place / "page.html", "FIGURE": place / "figure.svg"}
        known |= {"TABLE": bases()["table"].parent / "table.csv", "OTHER": bases()["digits"]}
        command(*(known.get(word, word) for word in words))

    return run


READERS: tuple[tuple[int, str, Callable[[random.Random, Path, Path], None]], ...] = (
    (6, "show", by_command("show", "DIR")),
    (2, "show json", by_command("show", "DIR", "--json")),
    (6, "api", by_api),
    (3, "report", by_command("report", "DIR", "--out", "PAGE", "--no-theory")),
    (1, "report inside", by_command("report", "DIR")),
    (2, "watch", by_watch),
    (1, "figure", by_command("figure", "DIR", "--kind", "convergence", "--out", "FIGURE")),
    (1, "figure of devices", by_command("figure", "DIR", "--kind", "devices", "--out", "FIGURE")),
    (2, "compare", by_command("compare", "DIR", "OTHER", "--no-local", "--jobs", "1", "--quiet", "--out", "OUT")),
    (3, "verify", by_command("verify", "DIR")),
    (2, "resume", by_command("resume", "DIR", "--quiet", "--rounds", "3")),
    (1, "resume as it is", by_command("resume", "DIR", "--quiet")),
    (2, "predict", by_command("predict", "DIR", "--data", "TABLE", "--json")),
    (1, "adapt", by_command("adapt", "DIR", "--data", "TABLE")),
    (2, "export", by_command("export", "DIR", "--all", "--out", "OUT")),
)


def case(luck: random.Random, place: Path) -> str:
    """Damage the copy of a folder and read it; neither code nor files outside may be touched."""
    weights = [weight for weight, _, _ in READERS]
    _, name, reader = luck.choices(READERS, weights)[0]
    wanted = (
        ["table", "table", "rows"] if name in ("predict", "adapt") else ["cut", "digits"] if "resume" in name else []
    )
    base = luck.choice(wanted or list(bases()))
    folder = Path(shutil.copytree(bases()[base], place / base))
    outside, mark = place / "outside", place / "executed"
    outside.write_text("as it was")
    (place / "code.py").write_text(CODE.format(mark=str(mark)))
    files = damage(luck, folder, outside)
    before = {path: path.read_bytes() for path in (outside, bases()[base].parent / "table.csv")}
    told = f"{name} of {base} with other {files}"
    fuzz_memory.begin()
    try:
        reader(luck, folder, place)
    finally:
        if mark.exists() and "resume" not in name:
            raise Harm(f"{told}: code of the folder was run")
        if any(path.read_bytes() != data for path, data in before.items()):
            raise Harm(f"{told}: a file outside the folder was changed")
    return told
