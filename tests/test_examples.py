"""Every example does in a copy of its folder what its README says, and prints what it says; so does every notebook."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import tomllib
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from blocks import ROOT, blocks_of, check_links, compare, forgotten, run_line
from palmette.deploy.launching import free_ports
from palmette.studies import conduct

EXAMPLES = ROOT / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))
PROCESSES = "deployment"  # its nodes are processes of their own
PORT = "7400"


def test_all_examples_are_in_the_list_of_examples() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[([\w-]+)\]\(\1/README.md\) ", text, re.MULTILINE)) == NAMES
    notebooks = sorted(path.stem for path in EXAMPLES.glob("notebooks/*.ipynb"))
    assert sorted(re.findall(r"^\| \[([\w-]+)\]\(notebooks/\1.ipynb\) ", text, re.MULTILINE)) == notebooks


@pytest.mark.parametrize(
    "page",
    [*EXAMPLES.glob("*.md"), *EXAMPLES.glob("*/README.md"), *EXAMPLES.glob("*/*.ipynb")],
    ids=lambda path: path.name,
)
def test_what_an_example_points_to_exists(page: Path) -> None:
    check_links(page)


@pytest.mark.filterwarnings("default")  # a command prints them
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.xdist_group("processes") if name == PROCESSES else ()) for name in NAMES],
)
def test_an_example_does_what_its_readme_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("__pycache__", "runs", "kits", "*.egg-info"))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(conduct, "_jobs", lambda given: 1)  # another process would load torch once more
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    if name == PROCESSES:
        move(folder / "federation.toml")
    printed = ""
    with forgotten(folder):
        for kind, body in ((one.language, one.body) for one in blocks_of(f"examples/{name}/README.md")):
            if kind == "bash":
                lines = []
                for line in body.strip().splitlines():
                    if line.startswith("python -m pip install"):
                        install(folder, monkeypatch)
                    else:
                        lines.append(run_line(line))
                printed = "\n".join(lines)
            elif printed:
                assert kind == "text"
                compare(body, printed)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do to this process what an installation in place does to an environment: the sources, and what the package says."""
    told = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = folder / "src" / f"{told['name']}-{told['version']}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {told['name']}\nVersion: {told['version']}\n")
    ((group, points),) = told["entry-points"].items()
    (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *(f"{k} = {v}" for k, v in points.items())]))
    monkeypatch.syspath_prepend(folder / "src")


def move(file: Path) -> None:
    """Move a federation on this machine to ports that nobody uses."""
    text = file.read_text(encoding="utf-8")
    assert f"port = {PORT} " in text
    while True:
        (first,) = free_ports(1)
        if first < 60000 and all(free(first + more) for more in range(3)):
            file.write_text(text.replace(PORT, str(first)), encoding="utf-8")
            return


def free(port: int) -> bool:
    with socket.socket() as one:
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@pytest.mark.filterwarnings("default")  # those of the notebook's own machinery
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_and_comes_to_what_it_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(path, as_version=4)
    shown = [outputs(cell) for cell in notebook.cells]
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for before, cell in zip(shown, notebook.cells, strict=True):
        now = outputs(cell)
        assert [kind for kind, _ in now] == [kind for kind, _ in before], cell.source
        for (_, told), (_, printed) in zip(before, now, strict=True):
            compare(told, printed)


def outputs(cell: Any) -> list[tuple[list[str], str]]:
    """Return what a cell of a notebook shows: the kinds of its outputs, and their texts."""
    found = []
    for one in cell.get("outputs", []):
        assert one.output_type != "stream" or one.name == "stdout", one.text  # warnings and progress are for nobody
        data = one.get("data", {"text/plain": one.get("text", "")})
        found.append((sorted(data), data["text/plain"]))
    return found
