"""The package that people install: a wheel, in an environment that does not know this repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import palmette
from blocks import ROOT

SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
GENERATED = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so")


def ran(*words: str | Path, cwd: Path | None = None, **changed: str) -> str:
    done = subprocess.run(
        words, cwd=cwd, capture_output=True, text=True, timeout=600, env={**os.environ, **changed}, check=False
    )
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src", folder / "src", ignore=GENERATED)
    return folder


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel without the compiled kernel, whose compiler takes longer than all else."""
    folder = tmp_path_factory.mktemp("wheels")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    ran(*pip, "--wheel-dir", folder, sources, CC="false", CXX="false")
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_has_all_files_of_the_package_and_nothing_else(sources: Path, wheel: Path) -> None:
    there = {
        path.relative_to(sources / "src").as_posix() for path in (sources / "src/palmette").rglob("*") if path.is_file()
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == there
    assert re.fullmatch(r"palmette-[\d.]+-cp311-abi3-\w+\.whl", wheel.name)  # for later versions of Python, too


def test_what_is_installed_runs_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    (place,) = (tmp_path / "env").glob("lib/python*/site-packages")
    ran(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    # What it depends on is taken from here; files of this folder that would lead to the repository are not obeyed there.
    (place / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    where = ran(python, "-c", "import palmette; print(palmette.__file__, palmette.__version__)")
    assert where.split() == [str(place / "palmette" / "__init__.py"), palmette.__version__]
    program = tmp_path / "env" / "bin" / "palmette"
    told = ran(
        program, "run", "permfl", "--data", "digits", "--tree", "2x3", "--rounds", "1", "--out", tmp_path / "run"
    )
    assert told.startswith("permfl on digits, tree 2x3")
    assert (tmp_path / "run" / "devices.safetensors").is_file()


@pytest.mark.slow
def test_the_demo_runs_in_an_empty_environment(sources: Path, tmp_path: Path) -> None:
    ran(sys.executable, "-m", "build", "--outdir", tmp_path / "dist", sources)
    (made,) = (tmp_path / "dist").glob("*.whl")
    assert "palmette/learner/kernel/library.abi3.so" in zipfile.ZipFile(made).namelist()
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 1
    venv.create(tmp_path / "env", with_pip=True)
    pip = (tmp_path / "env" / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt")
    ran(*pip, made)
    told = ran(tmp_path / "env" / "bin" / "palmette", "demo", cwd=tmp_path)
    assert "demo.png" in told


def test_what_is_said_of_the_package_is_one_thing() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {project['version']}\n" in citation
    (released,) = re.findall(r"^date-released: (\S+)$", citation, re.MULTILINE)
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {project['version']} - {released}" in changes
