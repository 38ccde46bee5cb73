"""Pages point to what exists: files, headings, commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from blocks import ROOT
from palmette.cli.app import app

DOCS = ROOT / "docs"


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
