"""Pages point to what exists: files, headings, commands."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from blocks import ROOT, check_links
from palmette.algorithms import ALGORITHMS, algorithm
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
    "page", sorted(str(one.relative_to(ROOT)) for one in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")))
)
def test_what_a_page_points_to_exists(page: str) -> None:
    check_links(ROOT / page)


def test_the_readme_counts_the_methods_right() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (every, teams) = re.findall(
        r"\[(\d+)\]\(docs/reference/settings.md#algorithms\), (\d+) of them with models for teams", text
    )[0]
    assert int(every) == len(ALGORITHMS)
    assert int(teams) == sum("TM" in algorithm(name).models for name in ALGORITHMS)
