"""Names of others on a terminal: shown letter by letter, never obeyed."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import rich.text
from safetensors import safe_open
from typer.testing import CliRunner

import palmette as pm
from palmette.__main__ import main
from palmette.cli.app import app
from palmette.errors import BadInput, PalmetteWarning
from palmette.guards.screen import Screen, Text
from palmette.guards.terminal import guarded, hand_over, say, tell
from palmette.guards.visible import visible
from palmette.runs.files import Files
from palmette.runs.folder import LOG, POPULATION
from ptys import on_a_terminal
from tables import write

# Sets a title, clears the screen (also by C1), rings, turns the direction of text, hides itself; and markup.
EVIL = "\x1b[35mE\x1b]owned\x07\x1b[2J\x9b2J\u202egnp\u200b\x7f[bold]x[/bold][/]:smile:"
SHOWN = r"\x1b[35mE\x1b]owned\x07\x1b[2J\x9b2J\u202egnp\u200b\x7f[bold]x[/bold][/]:smile:"
STYLE = re.compile(r"\x1b\[[0-9;]*m")  # what rich may write for colours
CURSOR = re.compile(r"\x1b\[(\?25[lh]|\d*[AK])")  # and for bars that are drawn over


def harmless(text: str, *, colour: bool = False) -> None:
    """Assert that a terminal was told nothing but text, and colours where they are wanted."""
    plain = CURSOR.sub("", STYLE.sub("", text)) if colour else text
    plain = re.sub(r"\r+\n", "\n", plain)  # a terminal's own end of a line
    plain = plain.replace("\r", "") if colour else plain  # bars begin at the left
    assert visible(plain, lines=True) == plain
    assert "\x1b[35mE" not in text


# -- the letters -----------------------------------------------------------------------------------------------------------


def test_what_would_act_on_a_terminal_is_shown_and_all_else_stays() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("a\n\t\rb") == r"a\n\t\rb"
    assert visible("a\n\t\rb", lines=True) == "a\n\t\\rb"
    assert visible("\ud800") == r"\ud800"
    for kept in ("ü 日本", "می\u200cخواهم", "👩\u200d👩\u200d👧", "a\u00a0b\u3000c", "עברית", "\\x1b"):
        assert visible(kept) == kept
    every = "".join(map(chr, [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]))
    assert visible(every).isascii()
    assert visible(every).isprintable()


def test_errors_and_warnings_show_what_they_repeat() -> None:
    assert str(BadInput(f"no device {EVIL}")) == f"no device {SHOWN}"
    with pytest.warns(PalmetteWarning) as caught:
        warnings.warn(f"no device {EVIL}", PalmetteWarning, stacklevel=1)
    assert str(caught[0].message) == f"no device {SHOWN}"


def test_a_screen_draws_text_as_it_is() -> None:
    from rich.table import Table

    table = Table()
    table.add_column(f"head {EVIL}")
    table.add_row(EVIL)
    table.add_row(Text(EVIL))
    table.add_row(Text.assemble((EVIL, "bold")))
    table.add_row(Text("a").append(EVIL))
    screen = Screen(file=io.StringIO(), width=200)
    screen.print(table)
    screen.print(EVIL)
    screen.print(rich.text.Text("\x1b[2J\u202ea"))  # a text that was made without us
    told = screen.file.getvalue()  # type: ignore[attr-defined]
    assert told.count(SHOWN) == 6
    assert told.endswith("\\x1b[2J\\u202ea\n")
    assert visible(told, lines=True) == told


def test_streams_are_guarded_also_for_those_who_do_not_know_it(capsys: pytest.CaptureFixture[str]) -> None:
    with guarded():
        print(EVIL)
        tell(f"1 {EVIL}")
        say(f"2\n{EVIL}")
        print(EVIL, file=sys.stderr)
        hand_over(f"{EVIL}\n")  # to a file or a program, not to a terminal
    told = capsys.readouterr()
    assert told.out == f"{SHOWN}\n1 {SHOWN}\n{EVIL}\n"
    assert told.err == f"palmette: 2 {SHOWN}\n{SHOWN}\n"


def test_no_module_goes_to_a_terminal_by_itself() -> None:
    """Rich's console and text, `print` and typer's `echo` would write what is in a name; ours do not."""
    package, wrong = Path(pm.__file__).parent, []
    for file in sorted(package.rglob("*.py")):
        name = file.relative_to(package).as_posix()
        if name in ("guards/terminal.py", "guards/screen.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich"):
                wrong += [f"{name}: {one.name}" for one in node.names if one.name in ("Console", "Text", "print")]
            elif isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ("print", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write"):
                    wrong.append(f"{name}: {called}")
                if called == "warnings.warn" and not {"PalmetteWarning", "one.category"} & {
                    ast.unparse(one) for one in node.args
                }:
                    wrong.append(f"{name}, line {node.lineno}: a warning that is no PalmetteWarning")
    assert wrong == []


# -- the commands ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table and a run in which everything has a name that a terminal would obey."""
    folder = tmp_path_factory.mktemp("evil") / f"a{EVIL.replace('/', '|')}"
    folder.mkdir()
    rng = np.random.default_rng(0)
    columns = (f"team{EVIL}", f"device{EVIL}", f"age{EVIL}", f"label{EVIL}")
    rows = [
        [f"t{one % 2}{EVIL}", f"d{one % 4}{EVIL}", rng.normal(), ("yes", "no")[int(rng.random() < 0.5)] + EVIL]
        for one in range(80)
    ]
    write(folder / f"table{EVIL.replace('/', '|')}.csv", rows, columns)
    return folder


def table_of(place: Path) -> str:
    return str(next(place.glob("*.csv")))


def named(place: Path) -> list[str]:
    words = ("team", "device", "label")
    return [part for word in words for part in ("--set", f"data.{word}={json.dumps(word + EVIL)}")]


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    out = place / "run"
    few = ["--set", "local_steps=1", "--set", "team_steps=2", "--rounds", "2"]
    words = ["run", "permfl", "--data", table_of(place), *named(place), *few, "--out", str(out)]
    code, told = on_a_terminal(*words, colour=True)
    assert code == 0, told
    harmless(told, colour=True)
    (out / f"other{EVIL.replace('/', '|')}").touch()
    return out


@pytest.mark.parametrize("colour", [False, True])
def test_commands_show_names_and_obey_none(run: Path, place: Path, colour: bool, tmp_path: Path) -> None:
    table, device = table_of(place), f"d0{EVIL}"
    for words, code in [
        (["show", str(run)], 0),
        (["show", str(place)], 0),
        (["verify", str(run)], 0),
        (["report", str(run), "--out", str(tmp_path / "page.html")], 0),
        (["data", "check", table, *named(place)], 0),
        (["data", "info", table, *named(place), "--out", str(tmp_path / f"{colour}.png")], 0),
        (["predict", str(run), "--data", table], 0),
        (["predict", str(run), "--data", table, "--node", device + "no"], 2),
        (["adapt", str(run), "--data", table], 0),
        (["export", str(run), "--node", device, "--out", str(tmp_path / f"{EVIL[:5]}{colour}")], 0),
        (["export", str(run), "--node", device + "no", "--out", str(tmp_path)], 2),
        (["resume", str(run)], 0),
        (["figure", str(run), "--kind", "devices", "--out", str(tmp_path / f"{EVIL[:5]}{colour}.svg")], 0),
        (["check", "permfl", "--data", table, *named(place)], 0),
        (["list", EVIL], 2),
        ([EVIL], 2),
        (["run", EVIL], 2),
        (["run", "permfl", f"--{EVIL}"], 2),
        (["run", "permfl", "--set", f"{EVIL}=1"], 2),
        (["run", "permfl", "--rounds", EVIL], 2),
        (["show", EVIL], 2),
    ]:
        got, told = on_a_terminal(*words, colour=colour)
        assert got == code, (words[:2], told)
        harmless(told, colour=colour)
        assert "Traceback" not in told


def test_files_keep_names_as_they_are_and_logs_do_not(run: Path, tmp_path: Path) -> None:
    assert f"d0{EVIL}" in pq.read_table(run / POPULATION)["node"].to_pylist()
    result = pm.load(run)
    assert result.names("PM")[0].endswith(EVIL)
    saved = result.save_models(tmp_path)
    with safe_open(saved[0], framework="pt") as file:
        assert file.metadata()["node"] == result.names("PM")[0]
    assert "\x1b" not in repr(result)
    files = Files(tmp_path)
    files.log(EVIL)
    assert (tmp_path / LOG).read_text(encoding="utf-8") == f"{SHOWN}\n"


def test_data_on_their_way_into_a_file_are_exact_and_on_a_terminal_visible(run: Path, place: Path) -> None:
    words = ["predict", str(run), "--data", table_of(place)]
    _, told = on_a_terminal(*words)
    assert SHOWN in told
    done = CliRunner().invoke(app, words)  # whose output is no terminal
    assert f"d0{EVIL}" in done.stdout
    assert "\x1b" not in done.stderr


def test_json_escapes_names(run: Path) -> None:
    code, told = on_a_terminal("show", str(run), "--json")
    assert code == 0
    harmless(told)
    assert json.loads(told)["folder"] == str(run)


def test_a_bugs_traceback_is_guarded_too(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError(EVIL)

    def as_python_ends() -> None:
        try:
            main()
        except RuntimeError:
            traceback.print_exc()
            raise SystemExit(1) from None

    monkeypatch.setattr("palmette.runs.Result.__init__", broken)
    monkeypatch.setattr("ptys.main", as_python_ends)
    code, told = on_a_terminal("show", str(run))
    assert code == 1
    assert "Traceback" in told
    harmless(told)
