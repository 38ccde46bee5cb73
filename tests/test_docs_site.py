"""The docs site: it builds without a warning, has every public name, and its pages of the reference tell what is there."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import palmette as pm
from palmette.cli import commands
from palmette.cli.app import app
from palmette.cli.failures import BAD_INPUT, FAILED, STOPPED
from palmette.learner import Optimiser
from palmette.protocol.sentences import sentences
from palmette.runs.config import RunConfig
from palmette.runs.folder import is_own
from palmette.runs.linking import ClockConfig, LinkConfig
from palmette.runs.sections import DataConfig, EngineConfig, ModelConfig

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def section(name: str, heading: str) -> str:
    """Return what stands under a heading of a page of the reference."""
    found = re.search(rf"^## {re.escape(heading)}$(.*?)(?=^## |\Z)", page(name), re.MULTILINE | re.DOTALL)
    assert found, f"{name} has no section {heading!r}"
    return found[1]


def rows(text: str) -> list[tuple[str, ...]]:
    """Return the rows of the tables in a text, without their heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    heads = {number - 1 for number, row in enumerate(cells) if set("".join(row)) <= set("-: ")}
    return [row for number, row in enumerate(cells) if number not in heads and number - 1 not in heads]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def palmette(*words: str) -> Any:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, (words, done.output)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that leave behind all that a run can, and a study; what was printed beside each."""
    folder = tmp_path_factory.mktemp("runs")
    small = ("--data", "digits", "--tree", "2x3", "--rounds", "2", "--quiet", "--json")
    faults = ("--set", "links.devices.lost=0.3", "--set", "clock.preset=edge", "--set", "evaluate_on=3")
    printed = {
        "plain": palmette("run", "permfl", *small, "--out", str(folder / "plain")),
        "faults": palmette("run", "permfl", *small, *faults, "--out", str(folder / "faults")),
        "stages": palmette("run", "groupperfl", *small, "--set", "data.unseen=0.2", "--out", str(folder / "stages")),
        "study": palmette("compare", "permfl", "local", *small, "--seeds", "2", "--out", str(folder / "study")),
    }
    (folder / "printed.json").write_text(json.dumps(printed), encoding="utf-8")
    return folder


# -- the site ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as ``make docs`` builds it; every warning is an error."""
    pytest.importorskip("mkdocs", reason="the docs extra is not installed: pip install 'palmette[docs]'")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, env=quiet, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


class Page(HTMLParser):
    """What a page of HTML points to, loads, and can be pointed to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        self.anchors |= {told[name] for name in ("id", "name") if name in told}
        if tag == "a" and "href" in told:
            self.links.add(told["href"])
        elif tag == "link" and told.get("rel") != "canonical":
            self.loads.add(told.get("href", ""))
        elif "src" in told:
            self.loads.add(told["src"])

    @cached_property
    def own(self) -> set[str]:
        """What it points to and loads in the site itself."""
        return {one for one in self.links | self.loads if not urlsplit(one).scheme}


def test_every_link_of_the_site_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 30
    broken, loaded = [], []
    for path, told in pages.items():
        loaded += [f"{path.name}: {one}" for one in told.loads if urlsplit(one).netloc]
        for one in told.own:
            place, anchor = unquote(urlsplit(one).path), unquote(urlsplit(one).fragment)
            target = (path.parent / place).resolve() if place else path
            target = target / "index.html" if target.is_dir() else target
            there = target.is_file() and (
                not anchor or anchor in pages[target].anchors if target in pages else target.is_file()
            )
            if not there and not (target == path and anchor in ("__skip", "")):
                broken.append(f"{path.relative_to(site.resolve())} -> {one}")
    assert not broken
    assert not loaded
    fonts = [path for path in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", path.read_text("utf-8"))]
    assert not fonts


# -- public names ------------------------------------------------------------------------------------------------------


def test_every_public_name_is_on_a_page_of_the_api_and_in_its_list() -> None:
    pages = {path.name: path.read_text(encoding="utf-8") for path in (REFERENCE / "api").glob("*.md")}
    listed = {
        link: set(names_in(names)) for link, names in re.findall(r"\]\((\w+\.md)\) \| (.*) \|", pages["index.md"])
    }
    shown: dict[str, list[str]] = {}
    for name, text in pages.items():
        for path in re.findall(r"^::: palmette\.(\S+)", text, re.MULTILINE):
            shown.setdefault(path, []).append(name)
    assert set(pm.__all__) <= set(shown)
    assert [path for path, places in shown.items() if len(places) > 1] == []
    for name in pm.__all__:
        assert name in listed[shown[name][0]], name
    assert set().union(*listed.values()) == set(pm.__all__)


def public_classes() -> Iterator[type]:
    """Every public class, and the classes of Palmette that it has members from."""
    values = [getattr(pm, name) for name in pm.__all__]
    modules = [value for value in values if isinstance(value, ModuleType) and value.__name__ != "palmette.algorithms"]
    values += [vars(module)[name] for module in modules for name in vars(module) if not name.startswith("_")]
    found = {kind for kind in values if inspect.isclass(kind) and kind.__module__.startswith("palmette")}
    return iter(
        sorted({base for kind in found for base in kind.__mro__ if base.__module__.startswith("palmette")}, key=str)
    )


def fields_of(kind: type) -> set[str]:
    """Return the public names that a class or its ``__init__`` assigns, without those that have a text of their own."""
    (made,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(made, ast.ClassDef)
    begins = [one.body for one in made.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
    found = set()
    for body in (made.body, *begins):
        for one, following in zip(body, [*body[1:], None], strict=True):
            told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            if told or not isinstance(one, ast.Assign | ast.AnnAssign):
                continue
            targets = [
                part for target in getattr(one, "targets", [getattr(one, "target", one)]) for part in ast.walk(target)
            ]
            found |= {part.id for part in targets if body is made.body and isinstance(part, ast.Name)}
            found |= {part.attr for part in targets if isinstance(part, ast.Attribute)}
    return {name for name in found if not name.startswith("_") and name != "model_config"}


@pytest.mark.parametrize("kind", public_classes(), ids=lambda kind: kind.__name__)
def test_every_public_method_property_and_field_is_documented(kind: type) -> None:
    assert inspect.getdoc(kind), kind
    for name, value in vars(kind).items():
        value = getattr(value, "__func__", value)
        if not name.startswith("_") and (callable(value) or isinstance(value, property)):
            assert inspect.getdoc(value), f"{kind.__name__}.{name}"
    inherited = [told for base in kind.__mro__ for told in sentences(base)]
    assert fields_of(kind) <= set(inherited), f"name them under Attributes: of {kind.__name__}"


# -- pages that are written ----------------------------------------------------------------------------------------------


def test_the_page_of_commands_is_up_to_date() -> None:
    assert page("commands.md") == commands.markdown(), "run `make docs`"


def test_the_page_of_commands_has_what_the_help_of_each_command_shows() -> None:
    for words, command in commands.all_commands():
        told = CliRunner().invoke(app, [*words.split()[1:], "--help"]).stdout
        options = set(re.findall(r"(?<=[ │])--[a-z][a-z-]*", told.partition("Options")[2])) - {"--help"}
        written = {name for one in commands.parameters(command) for name in one.names if name.startswith("--")}
        assert options & written == written, words
        assert {name for name in options if re.search(rf"│[ *]*{name} ", told)} <= written, words


# -- the config --------------------------------------------------------------------------------------------------------


def test_the_page_of_the_config_names_every_key() -> None:
    top = {name for row in rows(section("config.md", "The top of the file")) for name in names_in(row[0])}
    parts = {
        names_in(row[0])[0].strip("[]"): set(names_in(row[2])) for row in rows(section("config.md", "The sections"))
    }
    assert top | {name.partition(".")[0] for name in parts} == set(RunConfig.model_fields)
    kinds = {"data": DataConfig, "model": ModelConfig, "engine": EngineConfig, "clock": ClockConfig}
    kinds |= {"links.NAME": LinkConfig}
    for name, kind in kinds.items():
        assert parts[name] == set(kind.model_fields), name
    assert parts["optimiser"] == {
        field for field in sentences(Optimiser) if field in inspect.signature(Optimiser).parameters
    }
    for name, default, *_ in rows(section("config.md", "The top of the file")):
        field = RunConfig.model_fields[names_in(name)[0]]
        told = default.strip("`").strip('"')
        assert told == ("" if field.is_required() or field.default is None else str(field.default)), name


def test_the_example_of_the_page_names_every_section_and_is_a_config() -> None:
    (example,) = re.findall(r'```toml title="mine.toml"\n(.*?)```', page("config.md"), re.DOTALL)
    told = tomllib.loads(example)
    sections = {name.partition(".")[0] for name in RunConfig.model_fields} - {"given", "versions"}
    assert {name for name in sections if isinstance(getattr(RunConfig(**told), name), dict)} <= set(told)


def test_a_preset_of_the_command_line_wins_over_a_file_and_loses_to_single_settings(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('algorithm = "permfl"\nrounds = 1\ntree = "2x3"\n[settings]\nalpha = 0.2\nbatch_size = 10\n')
    words = [
        "run",
        "--config",
        str(file),
        "--set",
        "preset=published",
        "--set",
        "lam=0.7",
        "--out",
        str(tmp_path / "run"),
    ]
    done = CliRunner().invoke(app, [*words, "--quiet"])
    assert done.exit_code == 0, done.output
    assert "settings.alpha in" in done.stderr
    assert "preset published has its own" in done.stderr
    settings, preset = pm.load(tmp_path / "run").config.settings, pm.PerMFL.presets["published"]
    assert (settings["alpha"], settings["beta"]) == (preset["alpha"], preset["beta"])
    assert (settings["lam"], settings["batch_size"]) == (0.7, 10)


# -- the folder of a run -------------------------------------------------------------------------------------------------


def files_told(text: str) -> list[str]:
    return [name for row in rows(text) for name in names_in(row[0])]


def test_the_page_of_the_run_folder_names_every_file(runs: Path) -> None:
    text = section("run-folder.md", "The files")
    parts = {part.partition("\n")[0]: files_told(part) for part in text.split("\n### ")[1:]}
    told = [name for names in parts.values() for name in names]
    seen = set()
    for name in ("plain", "faults", "stages"):
        there = {path.name for path in (runs / name).iterdir()}
        assert {*parts["In every run"], *parts["In finished runs"]} <= there <= set(told), name
        seen |= there
    assert {"absences.parquet", "outline.json", "teams.safetensors", "global.safetensors"} <= seen
    for name in told:
        assert is_own(name.replace("*", "0-x")), f"no run writes {name}"
    study = set(files_told(section("run-folder.md", "The folder of a study")))
    assert {path.name for path in (runs / "study").iterdir()} <= {name.partition("/")[0] for name in study}


@pytest.mark.parametrize(
    ("file", "heading"),
    [
        ("metrics.parquet", "metrics.parquet"),
        ("traffic.parquet", "traffic.parquet and evaluation.parquet"),
        ("evaluation.parquet", "traffic.parquet and evaluation.parquet"),
        ("population.parquet", "population.parquet"),
        ("absences.parquet", "absences.parquet"),
    ],
)
def test_the_page_of_the_run_folder_names_every_column_with_its_type(runs: Path, file: str, heading: str) -> None:
    words = {"string": "text", "double": "float64", "list<element: int32>": "list of int32"}
    words |= {"list<element: double>": "list of float64"}
    schema = pq.read_schema(runs / "faults" / file)
    there = [(name, words.get(str(kind), str(kind))) for name, kind in zip(schema.names, schema.types, strict=True)]
    assert [(names_in(row[0])[0], row[1]) for row in rows(section("run-folder.md", heading))] == there


def test_the_page_of_the_run_folder_names_every_key_of_the_timings(runs: Path) -> None:
    told = json.loads((runs / "plain" / "timings.json").read_text(encoding="utf-8"))
    table = rows(section("run-folder.md", "timings.json"))
    assert {names_in(row[0])[0] for row in table} == set(told)
    assert set(told["seconds"]) <= set(names_in(next(row[1] for row in table if row[0] == "`seconds`")))


# -- JSON ----------------------------------------------------------------------------------------------------------------


def keys_told(heading: str, part: int = 0) -> tuple[set[str], set[str]]:
    """Return the keys that the page tells of a command, and those of them that are not always there."""
    table = rows(
        re.split(r"\n\n(?!\|)", section("json.md", heading).strip() + "\n\n")[part]
        if part
        else section("json.md", heading)
    )
    keys = {name for row in table for name in names_in(row[0])}
    return keys, {name for row in table if row[1].startswith("Only ") for name in names_in(row[0])}


def check_keys(heading: str, printed: dict[str, Any], *others: str) -> None:
    told, some = keys_told(heading)
    for other in others:
        told |= keys_told(other)[0]
    assert set(printed) <= told, heading
    if not others:
        assert told - some <= set(printed), heading


def test_the_page_of_json_names_every_key_of_a_run(runs: Path) -> None:
    printed = json.loads((runs / "printed.json").read_text(encoding="utf-8"))
    for name in ("plain", "faults", "stages"):
        check_keys("palmette run", printed[name])
    assert {"time", "wasted_steps", "on", "unseen", "extra"} <= {*printed["faults"], *printed["stages"]}
    assert palmette("show", str(runs / "plain"), "--json") == printed["plain"]
    check_keys("palmette show", palmette("show", str(runs), "--json")[0])


def test_the_page_of_json_names_every_key_of_a_study(runs: Path) -> None:
    printed = json.loads((runs / "printed.json").read_text(encoding="utf-8"))["study"]
    told = keys_told("palmette compare")[0]
    assert {*printed, *(key for one in printed["methods"] for key in one)} <= told
    assert told - {"time", "replies_missing"} <= {*printed, *(key for one in printed["methods"] for key in one)}


def test_the_page_of_json_names_every_key_of_the_other_commands(runs: Path, tmp_path: Path) -> None:
    check_keys("palmette verify", palmette("verify", str(runs / "plain"), "--json"))
    check_keys("palmette report", palmette("report", str(runs / "plain"), "--json", "--out", str(tmp_path / "a.html")))
    check_keys("palmette export", palmette("export", str(runs / "plain"), "--all", "--out", str(tmp_path), "--json"))
    check_keys("palmette list", palmette("list", "algorithms", "permfl", "--json"))
    check_keys("palmette list", {**palmette("list", "algorithms", "--json")[0], "example": ""})
    for topic, name in (("datasets", "digits"), ("models", "dnn"), ("experiments", "l2gd-table1")):
        printed, text = palmette("list", topic, "--json")[0], section("json.md", "palmette list")
        assert {key for key in printed if f"`{key}`" not in text} == set(), name
    settings = ("--tree", "2x3", "--set", "model.l2=0.1", "--json")
    check_keys("palmette check", palmette("check", "permfl", *settings, "--suggest"))
    check_keys("palmette advise", palmette("advise", "--tree", "2x3", "--json"))


# -- exit codes ----------------------------------------------------------------------------------------------------------


def test_the_page_of_exit_codes_names_those_there_are_and_messages_that_are_said() -> None:
    codes = {row[0] for row in rows(page("exit-codes.md").partition("\n## ")[0])}
    assert codes == {"0", str(FAILED), str(BAD_INPUT), str(STOPPED)}
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "palmette").rglob("*.py"))
    said = re.sub(r'"\s*\n\s*f?"', "", source)  # texts that go on in the next line
    for heading in ("Code 2: what was given cannot be used", "Code 1: the work failed", "Warnings"):
        for row in rows(section("exit-codes.md", heading)):
            for told in names_in(row[0]):
                parts = [part for part in re.split(r"'[^']*'|\s*\.\.\.,?\s*|[(\[].*", told) if len(part) > 7]
                assert all(part.strip("; ") in said for part in parts), told
