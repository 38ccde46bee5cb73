"""Runs that tests of the page are about, and a browser to open it in."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import palmette as pm

# Names that would run, close or open something if a page took them for markup.
WILD = [
    "<script>window.caught=1</script>",
    "</script><img src=x onerror=window.caught=2>",
    "a\"b'c&amp;",
    "$x_1$ {{y}} `${window.caught=3}`",
    "--><!--",
    "ünï😀" * 9,
]
WILD_TEAMS = ["<b>team</b>", '"><svg onload=window.caught=4>']


def wild(folder: Path) -> pm.Result:
    """Run a small training whose devices and teams have names full of markup."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 5)).astype("float32")
    people = pm.Population.from_arrays(
        x, (x[:, 0] > 0).astype(int), device=np.repeat(WILD, 40), team=np.repeat(WILD_TEAMS, 120)
    )
    return pm.run("permfl", people, rounds=3, out=folder, progress=False)


def digits(name: str, folder: Path, **more: Any) -> pm.Result:
    """Run a method on rotated digits, 3 teams of 4 devices."""
    people = pm.make_population("digits", tree="3x4", shift="rotate")
    return pm.run(name, people, rounds=more.pop("rounds", 3), out=folder, progress=False, **more)


def chromium() -> str:
    """Return where the browser is; where there is none a test is skipped, but not in CI."""
    if found := shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome"):
        return found
    if os.environ.get("CI"):
        pytest.fail("tests of the page need chromium, which .ci/run installs")
    pytest.skip("there is no chromium here to open the page in")


class Tab:
    """A page that is open in the browser, with all it complained about.

    Attributes:
        page: Playwright's page.
        complaints: Errors of scripts and messages of the console.
    """

    def __init__(self, page: Any) -> None:
        self.page, self.complaints = page, list[str]()
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.set_default_timeout(20_000)

    def open(self, where: Path | str) -> None:
        """Open a file or an address, and wait until it is drawn."""
        self.page.goto(where.absolute().as_uri() if isinstance(where, Path) else where)
        self.page.wait_for_selector("#page h1")

    def text(self, what: str) -> str:
        """Return what stands in the first element that fits."""
        return str(self.page.locator(what).first.inner_text())


@contextmanager
def browser() -> Iterator[Any]:
    """Start the browser, and end it."""
    from playwright.sync_api import sync_playwright

    path = chromium()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield started
        finally:
            started.close()
