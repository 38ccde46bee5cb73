"""Every code block of the README and of the guide runs as it stands.

Only the first command and the README's own program have a process of their own: the others would spend theirs on loading torch.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from palmette.cli.app import app
from palmette.studies.study import Study

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDE, OWN = "docs/tutorials/writing-an-algorithm.md", "team_prox"
PAGES = ["README.md", GUIDE]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")) if kind == language]


def test_every_block_is_of_a_language_that_is_tested() -> None:
    kinds = {kind for page in PAGES for kind, _ in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))}
    assert kinds == {"bash", "python"}


def test_the_library_example_of_the_readme_runs(tmp_path: Path) -> None:
    (body,) = blocks("README.md", "python")
    words = [sys.executable, "-W", "error", "-c", body]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_python_blocks_of_the_guide_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    bodies = blocks(GUIDE, "python")
    assert len(bodies) > 1
    for number, body in enumerate(bodies):
        # The guide says under which name it saves its algorithm; its other blocks import that.
        script = tmp_path / (f"{OWN}.py" if "class TeamProx" in body else f"block{number}.py")
        script.write_text(body, encoding="utf-8")
        runpy.run_path(str(script), run_name="__main__")
        assert capsys.readouterr().out.strip()
    sys.modules.pop(OWN, None)  # of this test's folder


@pytest.mark.parametrize("page", ["docs/how-to/parts.md", "docs/reference/models.md", "docs/how-to/figures.md"])
def test_python_blocks_of_a_page_run_one_after_the_other(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks(page, "python")), encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_the_library_example_of_the_readme_has_at_most_25_lines() -> None:
    (body,) = blocks("README.md", "python")
    assert len([line for line in body.splitlines() if line.strip()]) <= 25


@pytest.mark.filterwarnings("default")  # a command prints them
@pytest.mark.parametrize("page", [*PAGES, "docs/how-to/reliability.md"])
def test_commands_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line for body in blocks(page, "bash") for line in body.splitlines() if line.strip()]
    commands = [shlex.split(line, comments=True) for line in lines]
    if page == "README.md":
        assert ["make", "demo"] in commands
    elif page == GUIDE:
        (tmp_path / f"{OWN}.py").write_text(blocks(page, "python")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    checked, first = False, True
    for words in commands:
        if words[0] == "make":  # runs the tests or the demo, which are tested on their own: the target must be there
            assert (
                subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, check=False).returncode == 0
            )
            continue
        assert words[0].removeprefix(".venv/bin/") == "palmette"
        run_command(words[1:], in_a_process=first)
        first = False
        if "runs/compared" in words:  # before a later command adds rounds to one of the runs
            check_the_numbers_told(Study(tmp_path / "runs/compared"))
            checked = True
    sys.modules.pop(OWN, None)
    assert not first
    assert checked == (page == "README.md")


def run_command(words: list[str], *, in_a_process: bool) -> None:
    if in_a_process:
        tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(["palmette", *words], capture_output=True, text=True, timeout=300, env=tools, check=False)
        assert done.returncode == 0, (words, done.stderr)
        return
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, (words, result.output)
    assert result.output.strip()


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


def test_the_readme_and_the_page_of_deployment_name_commands_that_exist() -> None:
    told = set()
    for page in (ROOT / "README.md", DOCS / "how-to/deployment.md"):
        told |= set(re.findall(r"palmette (deploy \w+|serve)\b", page.read_text(encoding="utf-8")))
    assert told >= {"deploy init", "deploy demo", "deploy status", "deploy revoke", "serve"}
    for words in told:
        assert CliRunner().invoke(app, [*words.split(), "--help"]).exit_code == 0, words


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *sorted(str(one.relative_to(ROOT)) for one in DOCS.rglob("*.md"))]
)
def test_what_a_page_points_to_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        path, _, heading = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), target
        assert not heading or heading in headings(found), target


def headings(page: Path) -> set[str]:
    """The names under which the headings of a page are linked to."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in found}
