"""The pictures of docs/how-to/report.md: pages of real runs, opened in Chromium and cut to what one sees first.

Usage: python proofs/report.py FOLDER; FOLDER keeps the runs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from linked import small

import palmette as pm
from page_runs import browser
from palmette.page import write_report

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SETTINGS = {"alpha": 0.3, "local_steps": 20, "team_steps": 20}


def main(base: Path) -> None:
    """Run, write the pages, and take the pictures."""
    data = {"name": "digits", "shift": "rotate", "partition": "dirichlet", "alpha": 1.0, "within": "team"}
    people = pm.make_population("digits", tree="4x10", **{key: one for key, one in data.items() if key != "name"})
    pm.run("permfl", people, rounds=5, settings=SETTINGS, out=base / "run", exist="resume")
    settings = {"alpha": 0.3, "local_steps": 10, "team_steps": 4, "tune_steps": 40}
    methods = ["permfl", "hierfavg", "fedavg"]
    pm.compare(methods, data, tree="4x10", seeds=3, steps=440, settings=settings, out=base / "study", evaluate_every=1)
    with browser() as chrome:
        page = opened(chrome, write_report(base / "run"), 1180, 1150, "light")
        page.get_by_role("button", name="team-1", exact=True).click()
        page.get_by_placeholder("name of a device").fill("device-14")
        page.keyboard.press("Enter")
        page.mouse.move(0, 0)
        kept(page, "report-run.png")
        page.locator("#run-nodes").scroll_into_view_if_needed()
        page.locator("#run-nodes").screenshot(path=IMAGES / "report-tree.png")
        small(IMAGES / "report-tree.png")
        kept(opened(chrome, write_report(base / "study"), 1180, 1000, "dark"), "report-study.png")


def opened(chrome: Any, path: Path, width: int, height: int, theme: str) -> Any:
    """Open a page in a window of some size."""
    page = chrome.new_context(viewport={"width": width, "height": height}, color_scheme=theme).new_page()
    page.goto(path.absolute().as_uri())
    page.wait_for_timeout(800)
    return page


def kept(page: Any, name: str) -> None:
    """Keep what one sees first."""
    page.evaluate("scrollTo(0, 0)")
    page.screenshot(path=IMAGES / name)
    small(IMAGES / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
