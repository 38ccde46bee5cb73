"""Run the code blocks of a page of documentation, in their order, in one folder.

- A block of ``bash`` is run line by line, commands of Palmette in this process (loading torch takes seconds). One with a
  line that ends in ``&`` is run whole by bash. ``# exit code 2`` at the end of a line says that it fails so. ``make`` only
  has to know its target.
- Blocks of ``python`` share their names. One with a title, as in ``python title="mine.py"``, becomes a file; so do ``toml``
  and ``csv``.
- A block of ``text`` is what the block above it prints; ``...`` stands for lines that are left out.
- ``<!-- slow -->`` above a block leaves it to ``make prove-docs``, ``<!-- not run: WHY -->`` to nobody; above ``text`` it
  says why it is not compared.
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
NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")
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
    found = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found if "```" in path.read_text(encoding="utf-8")]


def blocks_of(page: str, language: str | None = None) -> list[Block]:
    """Return a page's blocks, or those of one language."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [Block(one["language"], one["title"], one["body"], one["mark"] or "") for one in BLOCK.finditer(text)]
    fences = len(re.findall(r"^\s*```", text, re.MULTILINE))
    assert fences == 2 * len(found), f"{page} has {fences} lines of ``` and {len(found)} blocks that could be read"
    return [one for one in found if language in (None, one.language)]


def headings(page: Path) -> set[str]:
    """Return the names under which the headings of a page are linked to."""
    found = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in found}


def check_links(page: Path) -> None:
    """Check that what a page points to in the repository exists: files and headings."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path, _, heading = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        assert not heading or heading in headings(found), target


@contextlib.contextmanager
def forgotten(folder: Path) -> Iterator[None]:
    """Forget afterwards the modules that were loaded from a folder: another page may have some of the same names."""
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            if Path(getattr(module, "__file__", None) or ROOT).is_relative_to(folder):
                del sys.modules[name]


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
    printed: str | None = None  # by the block above, if it was run
    for number, block in enumerate(blocks_of(page)):
        if block.left_out or (block.slow and not slow):
            printed = printed if block.language == "text" else None
            continue
        if block.language == "text" and printed is not None:
            compare(block.body, printed)
        if block.title:
            Path(block.title).write_text(block.body, encoding="utf-8")
        if block.language == "toml":
            tomllib.loads(block.body)
        elif block.language == "json":
            json.loads(block.body)
        elif block.language == "python" and not block.title:
            script = Path(f"block{number}.py")
            script.write_text(block.body, encoding="utf-8")
            names, printed = run_script(script, [str(script)], names)
            told.scripts.append(printed)
        elif block.language == "bash":
            ran = [(line, run_line(line)) for line in commands_of(block.body)]
            told.commands += ran
            printed = "\n".join(text for _, text in ran)
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
    """Run a command, in this process where that is possible, and return what it printed."""
    words = shlex.split(line, comments=True)
    name = words[0].removeprefix(".venv/bin/")
    expected = int(found[1]) if (found := re.search(r"# exit code (\d)$", line)) else 0
    plain = "\n" not in line and not re.search(r"[|>]", line)
    if name == "make":  # what it does is tested on its own
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, line
        return ""
    if name == "palmette" and plain:
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == expected, (line, result.exit_code, result.output, result.exception)
        assert result.output.strip(), line
        return result.output
    if name == "python" and plain and words[1].endswith(".py"):
        return run_script(Path(words[1]), words[1:])[1]
    return run_in_bash(line, expected)


def run_script(path: Path, words: list[str], names: dict[str, Any] | None = None) -> tuple[dict[str, Any], str]:
    """Run a program of Python as a command does; return its names and what it printed."""
    before = sys.argv
    try:
        sys.argv = words
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            found = runpy.run_path(str(path), init_globals=names, run_name="__main__")
    finally:
        sys.argv = before
    return {name: value for name, value in found.items() if not name.startswith("__")}, printed.getvalue()


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


def compare(told: str, printed: str) -> None:
    """Hold what a page says that commands print against what they printed: its lines in their order, its numbers nearly."""
    lines = iter(map(plain, printed.splitlines()))
    for line in (plain(one).removesuffix(" ...") for one in told.splitlines()):
        if line in ("", "..."):
            continue
        pattern = re.compile(NUMBER.pattern.join(map(re.escape, NUMBER.split(line))))
        for other in lines:
            if (found := pattern.search(other)) and all(map(near, NUMBER.findall(line), NUMBER.findall(found[0]))):
                break
        else:
            raise AssertionError(f"the page says {line!r}, which is not in {printed}")


def plain(line: str) -> str:
    """Return a line without what depends on the width of the terminal or on the time of day."""
    return re.sub("─+", "─", re.sub(r"\d{4}-\d\d-\d\dT[\d:.+]+", "NOW", " ".join(line.split())))


def near(told: str, printed: str) -> bool:
    """Return whether a number is the one on a page, on a machine that rounds otherwise."""
    try:
        expected, found = (float(one.replace(",", "")) for one in (told, printed))
    except ValueError:  # several numbers, or the parts of a version
        return told == printed
    digits = len(told.partition(".")[2])
    return abs(found - expected) <= max(0.1 * abs(expected), 5 * 10**-digits)
