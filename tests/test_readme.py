"""Every code block of the README and of the guide runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from palmette.studies.study import Study

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "docs/writing-an-algorithm.md"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if kind == language]


def test_every_block_is_of_a_language_that_is_tested() -> None:
    kinds = {kind for page in PAGES for kind, _ in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))}
    assert kinds == {"bash", "python"}


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page: str, tmp_path: Path) -> None:
    for number, body in enumerate(blocks(page, "python")):
        # The guide says under which name it saves its algorithm; its other blocks import that.
        script = tmp_path / ("team_prox.py" if "class TeamProx" in body else f"block{number}.py")
        script.write_text(body, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-W", "error", str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_the_library_example_of_the_readme_has_at_most_25_lines() -> None:
    (body,) = blocks("README.md", "python")
    assert len([line for line in body.splitlines() if line.strip()]) <= 25


@pytest.mark.parametrize("page", PAGES)
def test_commands_run(page: str, tmp_path: Path) -> None:
    commands = [line for body in blocks(page, "bash") for line in body.splitlines() if line.strip()]
    assert commands
    if page == "README.md":
        assert any(line.startswith("make demo") for line in commands)
    else:
        (tmp_path / "team_prox.py").write_text(blocks(page, "python")[0], encoding="utf-8")
    checked = False
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for line in commands:
        words = shlex.split(line, comments=True)
        if words[0] == "make":  # runs the tests or the demo, which are tested on their own: the target must be there
            words, place = ["make", "-n", *words[1:]], ROOT
        else:
            words, place = [words[0].removeprefix(".venv/bin/"), *words[1:]], tmp_path
        done = subprocess.run(words, cwd=place, capture_output=True, text=True, timeout=300, env=tools)
        assert done.returncode == 0, (line, done.stderr)
        if "runs/compared" in words:  # before a later command adds rounds to one of the runs
            check_the_numbers_told(Study(tmp_path / "runs/compared"))
            checked = True
    assert checked == (page == "README.md")


def check_the_numbers_told(study: Study) -> None:
    runs = [result for _, _, result in study.results()]
    assert [run.config.algorithm for run in runs] == ["permfl", "fedavg", "local"]
    assert len({one["steps_per_device"] for one in study.summary()["methods"]}) == 1  # compared fairly
    told = expected()
    assert set(told) == {run.config.algorithm for run in runs}
    for run in runs:
        found = {kind: run.last(kind) for kind in run.kinds}
        assert found == pytest.approx(told[run.config.algorithm], abs=0.02)
    permfl, fedavg, local = (run.last("PM") for run in runs)
    assert permfl > max(fedavg, local, runs[1].last("GM")) + 0.05  # there is a reason to personalize by team


def expected() -> dict[str, dict[str, float]]:
    """The accuracies the README tells people to expect, by run and kind of model."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)`[^|]*\| ([\d.-]+) \| ([\d.-]+) \| ([\d.-]+) \|$", text, re.MULTILINE)
    return {
        name: {kind: float(value) for kind, value in zip(("PM", "TM", "GM"), values, strict=True) if value != "-"}
        for name, *values in rows
    }


def test_the_readme_promises_no_deployment() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "real federation" not in text
    assert "over a network is not there yet" in text


def test_files_the_readme_points_to_exist() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("http") or (ROOT / target).exists(), target
