"""Other ways in: a folder for every device, a torch data set, a function by import path, Hugging Face."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

import palmette as pm
from palmette.errors import BadInput
from tables import COLUMNS, palmette, settings, visits, write

FAST = ["--rounds", "1", "--quiet", *settings("team_steps=1", "local_steps=2")]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def pictures(base: str = "shots", side: int = 6, labels: bool = False) -> Path:
    """Four cameras in two halls, eight pictures each: bright or dark."""
    random, place = np.random.default_rng(0), Path(base)
    for number in range(4):
        lines = []
        for shot in range(8):
            kind = ("dark", "light")[shot % 2]
            folder = place / f"cam{number}" / ("" if labels else kind)
            folder.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(0, 100, (side, side)) + 150 * (shot % 2)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{shot}.png")
            lines.append([f"{shot}.png", kind])
        if labels:
            write(place / f"cam{number}" / "labels.csv", lines, ("file", "label"))
    write(place / "teams.csv", [[f"cam{number}", f"hall{number // 2}"] for number in range(4)], ("device", "hall"))
    return place


# -- folders ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [False, True])
def test_a_folder_of_images_runs_resumes_and_is_checked(labels: bool) -> None:
    pictures(labels=labels)
    made = pm.read_folders("shots")
    assert (made.shape, made.x.dtype, made.tree.names(1)) == ((1, 6, 6), torch.uint8, ["hall0", "hall1"])
    assert made.encoding is not None
    assert (made.encoding.classes, made.encoding.image) == (("dark", "light"), (1, 6, 6))
    assert float(made.features(torch.arange(len(made.x))).abs().max()) <= 1
    run = palmette("run", "permfl", "--data", "shots", *FAST, "--out", "one")
    assert run.exit_code == 0, run.stderr
    assert palmette("resume", "one", "--rounds", "2", "--quiet").exit_code == 0
    found = palmette("data", "check", "shots", "--json")
    assert json.loads(found.stdout)["understood"]["devices"] == 4
    shown = " ".join(palmette("data", "check", "shots").stdout.split())
    assert "devices 4 (a folder each) teams 2 (tier 1)" in shown
    target = next(Path("shots/cam0").rglob("*.png"))
    Image.fromarray(np.full((6, 6), 7, dtype=np.uint8)).save(target)
    again = palmette("resume", "one", "--rounds", "3", "--quiet")
    assert again.exit_code == 2
    assert "is not what it was" in again.stderr


def test_images_of_different_sizes_and_colours_are_brought_together_when_asked() -> None:
    place = pictures()
    Image.fromarray(np.zeros((9, 9, 3), dtype=np.uint8)).save(place / "cam1/dark/big.png")
    with pytest.raises(BadInput, match=r"big\.png has 9x9, others 6x6 pixels.*data\.size=32"):
        pm.read_folders(place)
    assert pm.read_folders(place, size=4, grey=True).shape == (1, 4, 4)


def test_npz_files_and_tables_in_folders() -> None:
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        Path("arrays", name).mkdir(parents=True)
        np.savez(f"arrays/{name}/data.npz", x=random.normal(size=(8, 3)).astype(np.float32), y=np.array(["u", "v"] * 4))
    made = pm.read_folders("arrays")
    assert (made.tree.names(0), made.shape, made.classes) == (["a", "b"], (3,), 2)
    for row in visits():
        Path("wards", row[2]).mkdir(parents=True, exist_ok=True)
    for name in [path.name for path in Path("wards").iterdir()]:
        write(f"wards/{name}/visits.csv", [row[3:] for row in visits() if row[2] == name], COLUMNS[3:])
    write("wards/teams.csv", sorted({(row[2], row[0], row[1]) for row in visits()}), ("device", "region", "hospital"))
    run = palmette("run", "permfl", "--data", "wards", *settings("data.label=readmitted"), *FAST, "--out", "one")
    assert run.exit_code == 0, run.stderr
    assert palmette("resume", "one", "--rounds", "2", "--quiet").exit_code == 0
    inside = pm.read_folders("wards", label="readmitted")
    assert (inside.tree.tiers, inside.tree.names(2)) == (4, ["north", "south"])
    found = palmette("data", "check", "wards", *settings("label=readmitted", "device=age"))
    assert (found.exit_code, "leave it out" in found.stdout) == (2, True)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda place: (place / "cam9").mkdir(), "cam9 holds no image, npz file or table"),
        (lambda place: write(place / "teams.csv", [["cam0", "h"]], ("device", "hall")), "team of 'cam1'"),
        (lambda place: write(place / "teams.csv", [["cam0", "h"]], ("camera", "hall")), "has no column 'device'"),
        (lambda place: (place / "cam0/dark/no.png").write_text("no"), "is no image or is damaged"),
        (lambda place: (place / "cam0/loose.png").write_bytes((place / "cam0/dark/0.png").read_bytes()), "nobody says"),
        (lambda place: np.savez(place / "cam0/x.npz", x=np.zeros(3), y=np.zeros(3)), "all must hold the same"),
    ],
)
def test_folders_that_cannot_be_used_are_told(spoil: Any, said: str) -> None:
    spoil(pictures())
    done = palmette("data", "check", "shots")
    assert done.exit_code == 2
    assert said in " ".join(done.stdout.split())


# -- Python -------------------------------------------------------------------------------------------------------------------


def test_a_torch_data_set_with_functions_for_device_and_team() -> None:
    x, y = torch.randn(24, 2, 2), torch.arange(24) % 3
    made = pm.read_dataset(
        torch.utils.data.TensorDataset(x, y), device=lambda i: i % 4, team=lambda i: ("top", f"t{i % 2}"), unseen=0.25
    )
    assert (made.tree.tiers, made.tree.names(1), made.classes) == (4, ["t0", "t1"], 3)
    assert made.unseen is not None
    with pytest.raises(BadInput, match="device has 2 names for 24 samples"):
        pm.read_dataset(torch.utils.data.TensorDataset(x, y), device=["a", "b"])
    with pytest.raises(BadInput, match="sample 0 is"):
        pm.read_dataset([1, 2], device=[0, 1])


def test_a_function_by_import_path_makes_the_data_and_a_resumed_run_calls_it_again() -> None:
    Path("my_data.py").write_text(
        "def load(size, seed):\n"
        "    v = [i * 0.5 for i in range(2 * size)]\n"
        "    return {'d': ['a', 'b'] * size, 'y': ['no', 'no', 'yes', 'yes'] * (size // 2), 'v': v}\n"
        "def broken():\n    return 3\n"
    )
    say = settings("data.size=12", "data.device=d", "data.label=y")
    done = palmette("run", "fedavg", "--data", "my_data:load", *say, "--rounds", "1", "--quiet", "--out", "one")
    assert done.exit_code == 0, done.stderr
    assert palmette("resume", "one", "--rounds", "2", "--quiet").exit_code == 0
    Path("my_data.py").write_text(Path("my_data.py").read_text().replace("0.5", "0.25"))
    del sys.modules["my_data"]
    assert "is not what it was" in palmette("resume", "one", "--rounds", "3", "--quiet").stderr
    for name, said in (
        ("my_data:lod", "did you mean 'load'"),
        ("nowhere:load", "no module 'nowhere'"),
        ("my_data:broken", "no table"),
    ):
        done = palmette("run", "fedavg", "--data", name, *say[2:])
        assert done.exit_code == 2
        assert said in done.stderr


def test_hugging_face_by_name_and_as_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"d": ["a", "b"] * 8, "y": ["no", "no", "yes", "yes"] * 4, "v": [i / 2 for i in range(16)]})

    class Loaded:
        """A data set as the library has it."""

        def with_format(self, kind: str) -> dict[slice, pa.Table] | Any:
            assert kind == "arrow"
            return type("Rows", (), {"__getitem__": lambda _, rows: table})()

    Loaded.__module__ = "datasets.arrow_dataset"
    library = ModuleType("datasets")

    def load_dataset(name: str, configuration: str | None, split: str) -> Any:
        if name == "far/away":
            raise ConnectionError("offline")
        return Loaded()

    library.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    say = settings("data.device=d", "data.label=y")
    done = palmette("run", "fedavg", "--data", "hf:some/where", *say, "--rounds", "1", "--quiet", "--out", "one")
    assert done.exit_code == 0, done.stderr
    assert pm.read_table(Loaded(), device="d", label="y").devices == 2
    offline = palmette("run", "fedavg", "--data", "hf:far/away", *say)
    assert (offline.exit_code, "this machine is online" in offline.stderr) == (2, True)
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'palmette[data]'" in palmette("run", "fedavg", "--data", "hf:some/where", *say).stderr
