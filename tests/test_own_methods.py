"""A method of one's own by file and by entry point is used like one of Palmette's, and every mistake is told in one line."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import palmette as pm
from own_files import done, folder_with, palmette
from palmette.algorithms import kind_of, source_of
from palmette.runs import make_config
from palmette.studies.helper import Helper
from palmette.studies.trials import Trial
from palmette.testing import regression
from programs import METHOD

OTHER = METHOD.replace("class Mine", "class Other").replace('"plain"', '"other"')
SMALL = ("--tree", "2x2", "--quiet")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with folder_with(METHOD, tmp_path, monkeypatch) as folder:
        yield folder


def refused(*words: str) -> str:
    """Run a command that has to be refused and return its one line."""
    result = palmette(*words)
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if "is code, which is run:" not in line]
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in result.output
    return str(result.stderr)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


# -- by file -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["mine.py", "./mine.py", "mine.py:Mine", "../{}/mine.py", "{{}}/mine.py:Mine"])
def test_a_file_is_named_in_every_usual_way(here: Path, written: str) -> None:
    path = written.format(here.name).format(here)
    assert (kind_of(path).name, source_of(path)) == ("plain", f"{here}/mine.py:Mine")
    assert kind_of(path) is kind_of("mine.py"), "one file is one class, however it is named"
    assert pm.algorithm(path, lr=0.5) == kind_of("mine.py")(lr=0.5)


def test_a_file_runs_resumes_from_another_folder_and_its_config_says_where_it_came_from(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("run", "./mine.py", *SMALL, "--rounds", "2", "--set", "lr=0.3")
    config = tomllib.loads((here / "runs/Mine-digits-1/config.toml").read_text())
    assert config["algorithm"] == config["given"]["algorithm"]["object"] == f"{here}/mine.py:Mine"
    assert len(config["given"]["algorithm"]["hash"]) == 32
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    more = json.loads(done("resume", "../runs/Mine-digits-1", "--rounds", "4", "--json", "--quiet"))
    whole = json.loads(done("run", "../mine.py", *SMALL, "--rounds", "4", "--set", "lr=0.3", "--out", "o", "--json"))
    assert more["rounds"] == whole["rounds"] == 4
    models = [path / "global.safetensors" for path in (here / "runs/Mine-digits-1", Path("o"))]
    assert models[0].read_bytes() == models[1].read_bytes()
    assert "mine.py:Mine on digits" in done("show", "o")


def test_a_file_with_spaces_in_its_path_and_a_name_that_is_no_identifier(here: Path) -> None:
    (here / "a b=c").mkdir()
    (here / "mine.py").rename(here / "a b=c" / "my first.method.py")
    assert kind_of("a b=c/my first.method.py").name == "plain"
    assert "Mine" in done(
        "compare", "./a b=c/my first.method.py", *SMALL, "--rounds", "1", "--seeds", "1", "--jobs", "1"
    )


@pytest.mark.filterwarnings("always")
def test_a_resume_with_other_code_is_refused_and_a_new_run_of_the_config_says_so(here: Path) -> None:
    done("run", "mine.py", *SMALL, "--rounds", "1", "--out", "one")
    edit(here / "mine.py", "steps=2", "steps=3")
    assert "what differs: the algorithm's code" in refused("resume", "one", "--rounds", "2", "--quiet")
    again = palmette("run", "--config", "one/config.toml", "--out", "two", "--quiet")
    assert again.exit_code == 0
    assert again.stderr.count("warning: the algorithm is not the one this config was made with") == 1


def test_a_changed_file_is_loaded_again_in_the_same_process(here: Path) -> None:
    first = kind_of("mine.py")
    edit(here / "mine.py", "lr: float = 0.1", "lr: float = 0.7")
    assert (pm.algorithm("mine.py").lr, first().lr) == (0.7, 0.1)  # type: ignore[attr-defined]


def test_a_file_that_was_moved_is_asked_for_and_can_be_named(here: Path) -> None:
    done("run", "mine.py", *SMALL, "--rounds", "1", "--out", "one")
    (here / "new").mkdir()
    (here / "mine.py").rename(here / "new" / "plain.py")
    assert "mine.py:Mine on digits" in done("show", "one")
    line = refused("resume", "one", "--rounds", "2", "--quiet")
    assert f"the algorithm of this run is {here}/mine.py:Mine, and there is no file mine.py" in line
    assert "palmette resume FOLDER --algorithm FILE" in line
    done("resume", "one", "--rounds", "2", "--quiet", "--algorithm", "new/plain.py")
    done("resume", "one", "--rounds", "3", "--quiet")  # it is known now
    done("run", "fedavg", *SMALL, "--rounds", "1", "--out", "two")
    assert "cannot take the place of fedavg" in refused("resume", "two", "--rounds", "2", "--algorithm", "new/plain.py")
    edit(here / "new" / "plain.py", "steps=2", "steps=3")
    line = refused("resume", "one", "--rounds", "4", "--quiet", "--algorithm", "new/plain.py")
    assert "what differs: the algorithm's code" in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 3\ndef", "mine.py has a syntax error in line 2: invalid syntax"),
        (
            "x = 3\n\nimport not_there",
            "needs the module 'not_there' in line 3, which is neither installed nor beside it",
        ),
        ("x = 3\n1 / 0", "mine.py cannot be loaded: in line 2 ZeroDivisionError: division by zero"),
        (
            "import sys\nsys.exit(3)",
            'it ends the program in line 2; put what is to run under `if __name__ == "__main__":`',
        ),
        ("from . import x", "has a relative import in line 1 (from . import ...), which needs a package"),
        ("from palmette import FedAvg", "mine.py defines no algorithm: write a class derived from pm.Algorithm in it"),
        ("x = '\0'", "mine.py"),
        (METHOD + OTHER, "mine.py defines 2 algorithms; say which one is meant: mine.py:Mine, mine.py:Other"),
        (METHOD.replace("def server", "def serve"), "Mine does not say what its server do"),
        (METHOD.replace('"plain"', '"fedavg"'), "Mine is named 'fedavg', and so is an algorithm of Palmette"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_in_a_line(here: Path, text: str, told: str) -> None:
    (here / "mine.py").write_text(text, encoding="utf-8")
    for words in (["run", "mine.py"], ["compare", "mine.py"]):
        assert told in refused(*words)
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("./yours.py", "there is no file yours.py"),
        ("sub/mine.py", "there is no file sub/mine.py; there is mine.py"),
        ("./mine", "./mine is no file of Python: its name must end in .py; did you mean ./mine.py?"),
        ("mine", "unknown algorithm 'mine'. If the file mine.py is meant, write mine.py"),
        ("folder.py", "folder.py is a folder, not a file of Python"),
        ("mine.py:Mein", "mine.py has no 'Mein'; did you mean 'Mine'?"),
        ("mine.py:pm", "mine.py:pm is no algorithm: it must be a class derived from pm.Algorithm"),
    ],
)
def test_a_file_that_is_not_there(here: Path, written: str, told: str) -> None:
    (here / "folder.py").mkdir()
    assert told in refused("run", written)


def test_a_file_with_several_algorithms_or_a_base_class(here: Path) -> None:
    (here / "two.py").write_text(METHOD + OTHER, encoding="utf-8")
    assert kind_of("two.py:Other").name == "other"
    (here / "base.py").write_text(
        METHOD.replace("class Mine(", "class _Base(") + "\nclass Mine(_Base):\n    name: ClassVar[str] = 'mine'\n",
        encoding="utf-8",
    )
    assert kind_of("base.py").name == "mine", "a class with an underscore is not meant for users"


def test_what_a_file_prints_does_not_mix_with_the_result(here: Path) -> None:
    edit(here / "mine.py", "import palmette as pm", "import palmette as pm\nprint('hello')")
    result = palmette("list", "algorithms", "mine.py", "--json")
    assert json.loads(result.stdout)["models"] == ["PM", "GM"]
    assert result.stderr == "hello\n"


def test_modules_beside_a_file_are_found_and_none_is_taken_for_another(here: Path) -> None:
    for folder, steps in (("a", 2), ("b", 3)):
        (here / folder).mkdir()
        (here / folder / "my_helpers_beside.py").write_text(f"STEPS = {steps}", encoding="utf-8")
        text = METHOD.replace("import palmette as pm", "import palmette as pm\nfrom my_helpers_beside import STEPS")
        (here / folder / "mine.py").write_text(text.replace("steps=2", "steps=STEPS"), encoding="utf-8")
    assert kind_of("a/mine.py").name == "plain"
    with pytest.raises(
        pm.BadInput, match=r"b/mine.py imports 'my_helpers_beside', and Python took .*a/my_helpers_beside.py"
    ):
        kind_of("b/mine.py")
    (here / "a" / "__init__.py").touch()
    edit(here / "a" / "mine.py", "from my_helpers", "from .my_helpers")
    with pytest.raises(pm.BadInput, match=f"by its import path, a.mine:MyMethod, from the folder {here}, or"):
        kind_of("a/mine.py")


@pytest.mark.slow
def test_another_process_loads_a_method_by_itself_and_notices_other_code_also_beside_it(here: Path) -> None:
    (here / "my_rule_beside.py").write_text("def rate(lr):\n    return lr\n", encoding="utf-8")
    (here / "other.py").write_text(OTHER, encoding="utf-8")
    edit(here / "mine.py", "import palmette as pm", "import palmette as pm\nfrom my_rule_beside import rate")
    edit(here / "mine.py", "lr=self.lr", "lr=rate(self.lr)")
    install(here, "pack_beside", "plain = pack_beside:Mine", METHOD)
    values = {"tree": "2x2", "rounds": 1}
    configs = [make_config({"algorithm": name, **values}) for name in ("other.py", "plain", "mine.py")]
    edit(here / "my_rule_beside.py", "return lr", "return lr / 2")
    helper = Helper()
    try:
        assert helper.ready()
        trials = [Trial("arm", 0, here / f"run{number}", config) for number, config in enumerate(configs)]
        ends = [helper.run(trial, lambda rounds: None, lambda *told: None) for trial in trials]
    finally:
        helper.end()
    assert [(one.end, one.message) for one in ends[:2]] == [("done", "")] * 2
    assert ends[2].end == "failed"
    assert f"the code of {here}/mine.py:Mine is not what it was when the study began" in ends[2].message


def test_a_file_is_listed_with_its_settings(here: Path) -> None:
    text = " ".join(done("list", "algorithms", "./mine.py").split())
    assert (
        "Plain averaging. With its default settings it makes a model for every device (PM) and a global model" in text
    )
    assert "lr=0.1 Learning rate of the devices (eta in the paper)." in text
    assert "palmette run ./mine.py --set lr=0.1" in text
    assert json.loads(done("list", "algorithms", "mine.py", "--json"))["family"] == "Of your own"


def test_check_says_that_no_theorem_is_known(here: Path) -> None:
    assert "no theorem of plain is known here" in refused("check", "mine.py", "--tree", "2x2")


def test_python_takes_a_file_too_and_an_object_stays_an_object(here: Path) -> None:
    result = pm.run("./mine.py", regression("2x2"), "linear", rounds=1, settings={"lr": 0.01}, out="by-file")
    assert result.config.algorithm == f"{here}/mine.py:Mine"
    kind = kind_of("mine.py")
    other = pm.run(kind(lr=0.01), regression("2x2"), "linear", rounds=1, out="by-object")  # type: ignore[call-arg]
    assert (other.config.algorithm, other.config.source) == ("plain", "")
    same = [Path(folder, "global.safetensors").read_bytes() for folder in ("by-file", "by-object")]
    assert same[0] == same[1]
    study = pm.compare(["mine.py", "local"], "digits", tree="2x2", rounds=1, seeds=1, out="study", jobs=1)
    assert [arm.name for arm in study.plan.arms] == ["Mine", "local"]


# -- studies -----------------------------------------------------------------------------------------------------------------


def test_a_study_goes_on_elsewhere_and_refuses_other_code(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["./mine.py", "fedavg", *SMALL, "--rounds", "1", "--seeds", "1", "--no-local", "--out", "study"]
    done("compare", *words, "--jobs", "1", "--set", "plain.lr=0.25", "--set", "fedavg.alpha=0.5")
    plan = tomllib.loads((here / "study/study.toml").read_text())
    assert plan["methods"][0]["config"]["settings"] == {"lr": 0.25}, "plain is what the class calls itself"
    assert plan["methods"][0]["config"]["given"]["algorithm"]["object"] == f"{here}/mine.py:Mine"
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    done("resume", "../study", "--quiet")
    edit(here / "mine.py", "steps=2", "steps=3")
    line = refused("resume", "../study", "--quiet")
    assert f"the code of {here}/mine.py:Mine is not what it was when the study in ../study began" in line
    monkeypatch.chdir(here)
    line = refused("compare", *words, "--set", "plain.lr=0.25", "--set", "fedavg.alpha=0.5")
    assert f"Mine has other code of {here}/mine.py:Mine than it has now" in line
    (here / "mine.py").unlink()
    assert "Mine" in done("show", "study")
    line = refused("resume", "study", "--quiet")
    assert f"Mine of the study in study is {here}/mine.py:Mine, and there is no file mine.py; put it back" in line


def test_two_files_with_the_same_class_get_names(here: Path) -> None:
    (here / "b").mkdir()
    (here / "b" / "mine.py").write_text(METHOD.replace("steps=2", "steps=4"), encoding="utf-8")
    line = refused("compare", "./mine.py", "b/mine.py", *SMALL)
    assert "Mine is named twice; give each a name of its own, as in one=./mine.py other=b/mine.py" in line
    words = ["one=./mine.py", "two=b/mine.py", *SMALL, "--rounds", "1", "--seeds", "1", "--no-local", "--jobs", "1"]
    told = json.loads(done("compare", *words, "--json", "--set", "two.lr=0.3"))
    assert {one["method"] for one in told["methods"]} == {"one", "two"}


def test_a_sweep_of_a_file(here: Path) -> None:
    line = refused("sweep", "mine.py", "--grid", "lr=0.1,fast", *SMALL)
    assert "lr: " in line
    words = ["--grid", "lr=0.1,0.3", *SMALL, "--rounds", "1", "--jobs", "1", "--out", "swept"]
    done("sweep", "mine.py", *words)
    assert len(list((here / "swept").rglob("config.toml"))) == 3


def test_a_folder_that_is_no_run_is_not_taken_for_a_file(here: Path) -> None:
    assert "'runs/one-1' is neither an algorithm nor the folder of a run" in refused("compare", "runs/one-1", "fedavg")
    assert "did you mean ./mine.py?" in refused("compare", "./mine", "fedavg")
    assert f"{here} is a folder without config.toml" in refused("compare", str(here), "fedavg")


# -- by entry point ----------------------------------------------------------------------------------------------------------


def install(root: Path, package: str, points: str, code: str | None) -> None:
    """Put a package with its metadata where Python finds installed ones."""
    site = root / "installed"
    info = site / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[palmette.algorithms]\n{points}\n", encoding="utf-8")
    if code is not None:
        (site / f"{package}.py").write_text(code, encoding="utf-8")
    if str(site) not in sys.path:
        sys.path.append(str(site))


def test_an_installed_method_is_used_like_a_built_in(here: Path) -> None:
    install(here, "pack_one", "plain = pack_one:Mine", METHOD)
    listed = {one["name"]: one for one in json.loads(done("list", "algorithms", "--json"))}
    assert listed["plain"]["family"] == "Installed beside Palmette"
    text = done("list", "algorithms")
    assert text.index("Installed beside Palmette") < text.index("plain  ") < text.index("PM: every device")
    assert "did you mean 'plain'?" in refused("run", "plan")
    words = ["plain", "local", *SMALL, "--rounds", "1", "--seeds", "1", "--jobs", "1", "--set", "plain.lr=0.25"]
    assert "plain" in done("compare", *words)
    done("run", "plain", *SMALL, "--rounds", "1", "--out", "one")
    config = tomllib.loads(Path("one/config.toml").read_text())
    assert (config["algorithm"], config["given"]["algorithm"]["object"]) == ("plain", "pack_one:Mine")
    done("resume", "one", "--rounds", "2", "--quiet")
    done("run", "--config", "one/config.toml", "--out", "two", "--quiet")


def test_a_run_of_an_installed_method_goes_on_without_its_entry_point(here: Path) -> None:
    install(here, "pack_two", "plain = pack_two:Mine", METHOD)
    done("run", "plain", *SMALL, "--rounds", "1", "--out", "one")
    (here / "installed/pack_two-1.0.dist-info/entry_points.txt").unlink()
    sys.path.append(str(here))  # another list of paths, so that packages are looked for again
    assert "unknown algorithm 'plain'" in refused("run", "plain")
    done("resume", "one", "--rounds", "2", "--quiet")


def test_broken_installed_methods_are_named_and_break_nothing(here: Path) -> None:
    install(here, "pack_broken", "broken = pack_broken:Mine", "1 / 0")
    install(here, "pack_gone", "gone = pack_gone:Mine", None)
    install(here, "pack_clash", "fedavg = pack_clash:Mine", METHOD)
    install(here, "pack_wrong", "wrong = pack_wrong:Mine", METHOD)
    install(here, "pack_bare", "bare = pack_bare", METHOD)
    install(here, "pack_good", "other = pack_good:Other\ntwice = pack_good:Other", OTHER)
    install(here, "pack_twice", "twice = pack_twice:Mine", METHOD)
    result = palmette("list", "algorithms")
    assert result.exit_code == 0
    assert "\nother " in result.stdout
    lines = result.stderr.splitlines()
    for told in (
        "the algorithm 'broken' of the package pack_broken cannot be used: pack_broken cannot be imported: ZeroDivisionError",
        "the algorithm 'gone' of the package pack_gone cannot be used: there is no module 'pack_gone'",
        "the package pack_clash also brings an algorithm named 'fedavg', which is not used: fedavg is Palmette's own",
        "the package pack_wrong brings pack_wrong:Mine as 'wrong', but the class is named 'plain'",
        "the package pack_bare says that its algorithm 'bare' is 'pack_bare', which names no class",
        "several packages bring an algorithm named 'twice'",
    ):
        assert sum(told in line for line in lines) == 1, told
    assert len(lines) == 6
    assert "the algorithm 'broken' of the package pack_broken cannot be used" in refused("run", "broken")
    clash = palmette("run", "fedavg", *SMALL, "--rounds", "1")
    assert (clash.exit_code, clash.stderr.count("the package pack_clash also brings an algorithm named 'fedavg'")) == (
        0,
        1,
    )


def test_an_installed_method_is_not_imported_before_it_is_used(here: Path) -> None:
    install(here, "pack_lazy", "plain = pack_lazy:Mine", METHOD)
    done("run", "fedavg", *SMALL, "--rounds", "1")
    refused("run", "zzz")
    assert "pack_lazy" not in sys.modules
    assert kind_of("plain").name == "plain"
    assert "pack_lazy" in sys.modules


# -- palmette new ------------------------------------------------------------------------------------------------------------


def test_a_new_package_runs_keeps_the_contract_and_is_clean(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = done("new", "my-prox", "--at", "my packages/prox")
    folder = here / "my packages" / "prox"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    source, test = "src/my_prox/__init__.py", "tests/test_my_prox.py"
    assert files == {"pyproject.toml", "README.md", source, "src/my_prox/py.typed", test}
    assert "cd 'my packages/prox'" in told
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["palmette.algorithms"] == {"my-prox": "my_prox:MyProx"}
    assert project["dependencies"] == ["palmette>=0.1.0,<0.2"]
    monkeypatch.chdir(folder)
    for words in (["ruff", "check", "."], ["ruff", "format", "--check", "."]):
        checked = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, check=False, timeout=60
        )
        assert checked.returncode == 0, checked.stdout
    # Its own tests, as pytest would call them, with the package where an installed one would be.
    sys.path.append(str(folder / "src"))
    tests = runpy.run_path(test)
    for check in ("deterministic", "unreliable-links", "nobody-answers", "resume-equal", "inputs-unchanged"):
        tests["test_it_keeps_the_contract"](check)
    tests["test_without_pull_a_device_trains_alone"]()
    tests["test_numbers_stay"]()
    # The command without installing, and the one after: what is installed is the entry point.
    done("run", source, *SMALL, "--rounds", "1", "--out", "one")
    assert "my_prox/__init__.py:MyProx on digits" in done("show", "one")
    points = "\n".join(f"{key} = {value}" for key, value in project["entry-points"]["palmette.algorithms"].items())
    install(here, "my_prox_installed", points, None)
    done("run", "my-prox", *SMALL, "--rounds", "1", "--out", "two")
    assert Path("one/global.safetensors").read_bytes() == Path("two/global.safetensors").read_bytes()
    assert "my-prox PM TM GM Personal models" in " ".join(done("list", "algorithms").split())
    assert "an installed package named 'my-prox' already" in refused("new", "my-prox")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("MyProx", "use small letters, digits and '-', with a letter first, as in my-prox"),
        ("my prox", "as in my-prox"),
        ("my_prox", "as in my-prox"),
        ("../prox", "as in prox"),
        ("3", "as in my-prox"),
        ("", "a method cannot be called ''"),
        ("x" * 41, "use at most 40 letters"),
        ("fedavg", "there is an algorithm of Palmette named 'fedavg' already; choose another name, as in my-fedavg"),
        ("class", "which means something else"),
        ("data", "which means something else"),
        ("any", "which means something else"),
        ("torch", "there is a Python module named 'torch' already"),
    ],
)
def test_names_that_a_method_cannot_have(here: Path, name: str, told: str) -> None:
    assert told in refused("new", name)
    assert [path.name for path in here.iterdir()] == ["mine.py"]


def test_a_new_package_is_written_over_nothing_and_whole_or_not_at_all(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "full").mkdir()
    (here / "full" / "thesis.txt").touch()
    for place in ("full", "mine.py"):
        assert f"{place} is there already" in refused("new", "my-prox", "--at", place)
    assert "cannot be written: Not a directory" in refused("new", "my-prox", "--at", "mine.py/inside")
    write = Path.write_text

    def fails(self: Path, *given: Any, **named: Any) -> int:
        if self.name == "README.md":
            raise PermissionError(13, "Permission denied")
        return write(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fails)
        assert "my-prox cannot be written: Permission denied; choose another folder" in refused("new", "my-prox")
    assert {path.name for path in here.iterdir()} == {"full", "mine.py"}
    (here / "empty").mkdir()
    done("new", "my-prox", "--at", "empty")
    assert (here / "empty" / "pyproject.toml").is_file()
