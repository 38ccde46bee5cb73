"""Run the code blocks of a page of documentation, in their order, in one folder.

- A block of ``bash`` is run line by line, commands of Palmette in this process (loading torch takes seconds). One with a
  line that ends in ``&`` is run whole by bash. ``# exit code 2`` at the end of a line says that it fails so. ``make`` only
  has to know its target.
- Blocks of ``python`` share their names. One with a title, as in ``python title="mine.py"``, becomes a file; so do ``toml``
  and ``csv``.
- ``<!-- slow -->`` above a block leaves it to ``make prove-docs``, ``<!-- not run: WHY -->`` to nobody.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from palmette.cli.app import app

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(
    r'(?:^<!-- (?P<mark>slow|not run: .*?) -->\n+)?^```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^```$',
    re.MULTILINE | re.DOTALL,
)
TIME = 300.0  # seconds for one command


@dataclass(frozen=True)
class Block:
    """A code block of a page."""

    language: str
    title: str | None
    body: str
    mark: str

    @property
    def slow(self) -> bool:
        """Whether only ``make prove-docs`` runs it."""
        return self.mark == "slow"

    @property
    def left_out(self) -> bool:
        """Whether nobody runs it."""
        return self.mark.startswith("not run")


def pages() -> list[str]:
    """Return the pages of the repository that have code."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found if "```" in path.read_text(encoding="utf-8")]


def blocks_of(page: str, language: str | None = None) -> list[Block]:
    """Return a page's blocks, or those of one language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [Block(one["language"], one["title"], one["body"], one["mark"] or "") for one in BLOCK.finditer(text)]
    fences = len(re.findall(r"^\s*```", text, re.MULTILINE))
    assert fences == 2 * len(found), f"{page} has {fences} lines of ``` and {len(found)} blocks that could be read"
    return [one for one in found if language in (None, one.language)]


@dataclass
class Told:
    """What the blocks of a page printed: of each command, and of each block of Python."""

    commands: list[tuple[str, str]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)

    def of(self, beginning: str) -> str:
        """Return what the command with this beginning printed."""
        (found,) = [text for line, text in self.commands if line.startswith(beginning)]
        return found


def run_page(page: str, *, slow: bool) -> Told:
    """Run the blocks of a page in the working folder.

    Args:
        page: The page, from the repository's root.
        slow: Whether slow blocks are run, too.

    Returns:
        What they printed.
    """
    told = Told()
    names: dict[str, Any] = {}
    for number, block in enumerate(blocks_of(page)):
        if block.left_out or (block.slow and not slow):
            continue
        if block.title:
            Path(block.title).write_text(block.body, encoding="utf-8")
        if block.language == "toml":
            tomllib.loads(block.body)
        elif block.language == "json":
            json.loads(block.body)
        elif block.language == "python" and not block.title:
            script = Path(f"block{number}.py")
            script.write_text(block.body, encoding="utf-8")
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                names = runpy.run_path(str(script), init_globals=names, run_name="__main__")
            names = {name: value for name, value in names.items() if not name.startswith("__")}
            told.scripts.append(printed.getvalue())
        elif block.language == "bash":
            for line in commands_of(block.body):
                told.commands.append((line, run_line(line)))
    return told


def commands_of(body: str) -> Iterator[str]:
    """Yield the lines of a block of bash, continued ones as one; the whole block where a command goes to the background."""
    if re.search(r"&\s*(#.*)?$", body, re.MULTILINE):
        yield body
        return
    for line in body.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def run_line(line: str) -> str:
    """Run a command, and return what it printed."""
    words = shlex.split(line, comments=True)
    name = words[0].removeprefix(".venv/bin/")
    expected = int(found[1]) if (found := re.search(r"# exit code (\d)$", line)) else 0
    if name == "make":  # what it does is tested on its own
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, line
        return ""
    if name == "palmette" and "\n" not in line and not re.search(r"[|>]", line):
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == expected, (line, result.exit_code, result.output, result.exception)
        assert result.output.strip(), line
        return result.output
    return run_in_bash(line, expected)


def run_in_bash(script: str, expected: int) -> str:
    """Run a script of bash with this environment's commands, and end what it leaves running."""
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    words = ["bash", "-e", "-o", "pipefail", "-c", script]
    with Path("told.txt").open("w+", encoding="utf-8") as told:  # not a pipe: what is left running would keep it open
        process = subprocess.Popen(words, stdout=told, stderr=subprocess.STDOUT, env=tools, start_new_session=True)
        try:
            code = process.wait(TIME)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(TIME)
        told.seek(0)
        text = told.read()
    assert code == expected, (script, code, text)
    return text
