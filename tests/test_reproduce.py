"""Published experiments: files of data, one engine, ours beside the paper's, and a verdict on every claim."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from palmette.cli.app import app
from palmette.errors import BadInput
from palmette.reproduce import conduct, names, read
from palmette.reproduce.claims import FAILS, HOLDS, OPEN, contrast, judge
from palmette.reproduce.conduct import arms_of, reproduce
from palmette.reproduce.experiment import Experiment
from palmette.reproduce.format import Claim, Table, printed
from palmette.reproduce.numbers import Missing, Numbers
from palmette.reproduce.pages import results_in, write
from palmette.reproduce.sources import SOURCES
from palmette.runs import Interrupted, Result

TOY = """
title = "Table 9 of nobody"
paper = "a test"
about = "Two methods on digits."
unstated = ["The batch size: 20 is taken."]
wrong = [{ says = "Nothing.", command = "palmette reproduce toy.toml" }]

[common]
tree = "2x5"
rounds = 4
seeds = 2

[quick]
rounds = 2
settings = { permfl = { team_steps = 2 } }

[methods.permfl]
algorithm = "permfl"
settings = { team_steps = 3, local_steps = 5 }

[methods.fedavg]
algorithm = "fedavg"
settings = { local_steps = 5 }

[methods.wild]
algorithm = "fedavg"
settings = { local_steps = 5, alpha = 1e30 }

[[studies]]
name = "digits"
title = "Digits"
data = { name = "digits", partition = "labels" }

[[studies]]
name = "large"
title = "Large"
quick = "It takes a day."

[[studies]]
name = "elsewhere"
title = "Elsewhere"
methods = ["fedavg"]
data = { name = "cifar10", partition = "iid" }
stand_in = { data = { name = "digits" }, why = "CIFAR-10 is not here: digits stand in for it." }

[[tables]]
title = "Accuracy"
columns = [
  { title = "digits", study = "digits" },
  { title = "first round", study = "digits", at = 1 },
  { title = "large", study = "large" },
  { title = "cifar", study = "elsewhere" },
]
rows = [
  { title = "PerMFL (PM)", method = "permfl", published = ["100 (5)", "", "50.0", "1.0"] },
  { title = "FedAvg (GM)", method = "fedavg", model = "GM", published = ["1.0", "", "50.0", "1.0"] },
  { title = "wild (GM)", method = "wild", model = "GM" },
]

[[tables]]
title = "Bytes"
unit = "bytes"
columns = [{ title = "to the server", study = "digits", metric = "bytes" }]
rows = [{ title = "PerMFL", method = "permfl" }, { title = "FedAvg", method = "fedavg" }]

[[claims]]
id = "1"
says = "PerMFL is better."
note = "The bound was set after a first run."
test = "more"
row = "PerMFL (PM)"
than = ["FedAvg (GM)"]
columns = ["digits"]
readings = [{ name = "wild", instead = { "PerMFL (PM)" = "wild (GM)" } }]

[[claims]]
id = "2"
says = "It is worse, everywhere."
test = "less"
row = "PerMFL (PM)"
than = ["FedAvg (GM)"]
columns = ["digits", "large"]

[[claims]]
id = "3"
says = "It is so at large."
test = "more"
row = "PerMFL (PM)"
than = ["FedAvg (GM)"]
columns = ["large"]

[[claims]]
id = "4"
says = "Listeners prefer it."
test = "none"
reason = "there are no listeners"

[[figures]]
name = "toy"
title = "Digits"
kind = "curves"
study = "digits"
methods = ["permfl", "fedavg"]
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small experiment."""
    path = tmp_path_factory.mktemp("toy") / "toy.toml"
    path.write_text(TOY)
    return path


@pytest.fixture(scope="module")
def done(toy: Path) -> Any:
    return reproduce(str(toy), out=toy.parent / "out", jobs=1, shown=False)


def test_a_cell_is_our_number_beside_the_papers(done: Any) -> None:
    table = done.result["tables"][0]
    runs = [Result(done.folder / "digits" / "runs" / f"permfl-{seed}") for seed in (0, 1)]
    cell = table["rows"][0]["cells"][0]
    assert cell["ours"] == pytest.approx(100 * sum(run.last("PM") for run in runs) / 2)
    assert cell["spread"] == pytest.approx(100 * abs(runs[0].last("PM") - runs[1].last("PM")) / math.sqrt(2))
    assert (cell["paper"], cell["paper_spread"], cell["seeds"]) == (100.0, 5.0, 2)
    first = table["rows"][0]["cells"][1]
    assert first["ours"] == pytest.approx(50 * sum(run.curve("PM")[1] for run in runs))
    assert first["verdict"] == ""
    assert table["rows"][1]["cells"][0]["verdict"] == "cut size"  # 2 rounds in place of 4: not held against the paper
    assert table["rows"][0]["cells"][2]["verdict"] == "not run: It takes a day."
    assert table["rows"][0]["cells"][3]["verdict"] == "not run at this size"  # the study has no such method
    assert (
        table["rows"][1]["cells"][3]["verdict"] == "other data, cut size"
    )  # than the paper's: not held against its number
    assert table["rows"][2]["cells"][0]["verdict"] == "diverged with 2 of 2 seeds"
    # Bytes to the server: two teams, or ten devices, each way, 650 numbers of 4 bytes, 2 rounds.
    sent = [row["cells"][0]["ours"] for row in done.result["tables"][1]["rows"]]
    assert sent == [2 * 2 * 2 * 2600, 2 * 2 * 10 * 2600]


def test_every_claim_ends_in_a_verdict_with_its_reason(done: Any) -> None:
    claims = {claim["id"]: claim for claim in done.result["claims"]}
    (part,) = claims["1"]["parts"]
    assert claims["1"]["verdict"] == HOLDS
    assert 0 < part["low"] <= part["mean"] <= part["high"]
    cells = [done.result["tables"][0]["rows"][at]["cells"][0]["ours"] for at in (0, 1)]
    assert part["mean"] == pytest.approx(cells[0] - cells[1])  # the contrast is the difference of the cells shown
    assert (part["unit"], part["apart"], claims["1"]["apart"]) == ("points", "cut size", ["cut size"])
    assert claims["1"]["readings"]["wild"]["verdict"] == FAILS  # what diverged is better than nothing
    assert claims["2"]["verdict"] == FAILS
    assert claims["2"]["why"] == "0 of 1 parts hold, 1 do not, 1 were not run"
    assert (claims["3"]["verdict"], claims["3"]["why"]) == (OPEN, "not run: It takes a day.")
    assert (claims["4"]["verdict"], claims["4"]["why"]) == (OPEN, "there are no listeners")


def test_at_the_papers_size_a_number_agrees_or_is_higher_or_lower(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / "same.toml"
    path.write_text(TOY.replace("[quick]\nrounds = 2\nsettings = { permfl = { team_steps = 2 } }", ""))
    found = reproduce(str(path), out=tmp_path, seeds=1, only=["digits"], jobs=1, shown=False)
    verdicts = [row["cells"][0]["verdict"] for row in found.result["tables"][0]["rows"]]
    assert verdicts == ["agrees", "higher", "diverged with 1 of 1 seeds"]
    assert found.result["studies"][0]["cuts"] == ["seeds 1 as asked for"]


def test_what_is_cut_and_what_stands_in_is_said(done: Any) -> None:
    digits, large, elsewhere = done.result["studies"]
    assert "rounds 2 in place of 4" in digits["cuts"]
    assert "team_steps 2 in place of 3 (permfl)" in digits["cuts"]
    assert large["left_out"] == "It takes a day."
    assert elsewhere["stands_in"] == "CIFAR-10 is not here: digits stand in for it."


def test_the_same_call_runs_nothing_again_and_more_seeds_run_the_rest(done: Any, toy: Path, tmp_path: Path) -> None:
    shutil.copytree(done.folder, tmp_path / done.folder.name)
    log = tmp_path / done.folder.name / "digits" / "runs" / "fedavg-0" / "metrics.parquet"
    before = log.stat().st_mtime_ns
    again = reproduce(str(toy), out=tmp_path, jobs=1, shown=False)
    more = reproduce(str(toy), out=tmp_path, seeds=3, only=["digits"], jobs=1, shown=False)
    assert log.stat().st_mtime_ns == before
    assert again.result["tables"] == done.result["tables"]
    assert again.result["seconds"] == done.result["seconds"] > 0
    assert more.result["tables"][0]["rows"][0]["cells"][0]["seeds"] == 3
    assert "seeds 3 as asked for" in more.result["studies"][0]["cuts"]
    assert "left_out" not in more.result["studies"][2]  # not asked for, but there
    part = reproduce(str(toy), out=tmp_path / "new", only=["elsewhere"], jobs=1, shown=False)
    assert part.result["studies"][0]["left_out"] == "It was not asked for."


def test_the_terminal_shows_no_table_or_claim_of_which_nothing_was_asked_for(toy: Path, tmp_path: Path) -> None:
    words = ["reproduce", str(toy), "--out", str(tmp_path), "--only", "elsewhere", "--quiet"]
    text = CliRunner().invoke(app, words).stdout
    assert "Accuracy" in text  # one of its columns was asked for, the others say that they were not run
    assert "to the server" not in text
    assert "Not shown: 1 table" in text


def test_pages_are_written_from_results_also_when_the_runs_are_gone(done: Any, toy: Path, tmp_path: Path) -> None:
    first = write(tmp_path, toy.parent / "out")
    text = (tmp_path / "reproduction.md").read_text()
    page = (tmp_path / "reproduction.html").read_text()
    assert [path.name for path in first] == ["reproduction.md", "reproduction.html", "toy-quick.json"]
    for words in (
        "PerMFL is better.",
        "✓ holds",
        "✗ does not hold",
        "does not hold: wild",
        "there are no listeners",
        "The bound was set after",
    ):
        assert words in text
        assert words in re.sub(r"<[^>]+>", "", page)
    assert "digits stand in for it" in text
    assert f"**Not run yet, and not on this page:** {', '.join(names())}." in text
    assert "images/reproduction/toy-quick.png" in text
    assert "data:image/png;base64," in page
    assert "http" not in re.sub(r"http-equiv", "", page)  # it loads nothing
    assert (tmp_path / "images" / "reproduction" / "toy-quick.png").read_bytes()[:4] == b"\x89PNG"
    write(tmp_path, tmp_path / "nothing")
    assert (tmp_path / "reproduction.md").read_text() == text
    assert (tmp_path / "reproduction.html").read_text() == page
    with pytest.raises(BadInput, match="no results yet"):
        write(tmp_path / "new", tmp_path / "nothing")
    (tmp_path / "reproduction" / "toy-quick.json").write_text("{}")
    with pytest.raises(BadInput, match=r"cannot read .*toy-quick\.json"):
        results_in(tmp_path / "reproduction")


def test_the_command_shows_tables_and_verdicts_and_a_failed_claim_is_no_failure(done: Any, toy: Path) -> None:
    shown = CliRunner().invoke(app, ["reproduce", str(toy), "--out", str(toy.parent / "out"), "--jobs", "1"])
    assert shown.exit_code == 0
    flat = " ".join(shown.stdout.split())
    for words in (
        "does not hold (cut size, 1 of 2 parts not run) 2 It is worse",
        "paper 100.00",
        "not run. It takes a day.",
        "Read otherwise, wild",
    ):
        assert words in flat
    data = CliRunner().invoke(app, ["reproduce", str(toy), "--out", str(toy.parent / "out"), "--json", "--quiet"])
    assert json.loads(data.stdout.splitlines()[-1])["claims"] == done.result["claims"]


def test_after_a_stop_the_same_call_goes_on(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> Any:
        raise Interrupted("stopped with 0 of 6 runs done")

    with monkeypatch.context() as patch:
        patch.setattr(conduct, "conduct_study", stopped)
        words = ["reproduce", str(toy), "--out", str(tmp_path), "--only", "elsewhere"]
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 130
    assert "Elsewhere: stopped with 0 of 6 runs done; go on with the same command" in done.stderr
    assert set(json.loads((tmp_path / "toy-quick" / "times.json").read_text())) == {"elsewhere"}
    assert not (tmp_path / "toy-quick" / "results.json").exists()
    found = reproduce(str(toy), out=tmp_path, only=["elsewhere"], jobs=1, shown=False)
    assert found.result["tables"][0]["rows"][1]["cells"][3]["ours"] > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["pfedmt-tabel1"], "did you mean 'pfedmt-table1'"),
        ([], "name an experiment"),
        (["l2gd-table1", "--size", "huge"], "--size takes quick or whole, not 'huge'"),
        (["l2gd-table1", "--seeds", "0"], "--seeds = 0 must be a whole number from 1"),
        (["pfedmt-table1", "--only", "mnist"], "has no study 'mnist'"),
        (["pfedmt-table1", "l2gd-table1", "--only", "mnist"], "name one"),
        (["nowhere.toml"], "cannot read nowhere.toml: No such file"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], told: str) -> None:
    done = CliRunner().invoke(app, ["reproduce", *words])
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('than = ["FedAvg (GM)"]\ncolumns = ["large"]', 'than = ["FedAvg"]', "claim 3: the table has no 'FedAvg'"),
        ('"100 (5)"', '"a hundred"', "'a hundred' is no printed number"),
        ('"100 (5)", ', "", "has 3 numbers for 4 columns"),
        ('study = "large"', 'study = "small"', "about the study 'small', which there is not"),
        ('methods = ["fedavg"]', 'methods = ["fedprox"]', "there is no method 'fedprox'"),
        ('reason = "there are no listeners"', "", "claim 4: it says no reason"),
        ("[methods.wild]", "[methods.wild", "cannot read"),
        ("[methods.wild]", "[colours]\n[methods.wild]", "colours: there is no such key"),
        ('title = "wild (GM)"', 'title = "FedAvg (GM)"', "two rows are called 'FedAvg (GM)'"),
        ("at = 1 }", 'statistic = "median" }', "statistic"),
        ('study = "digits"\nmethods', 'study = "letters"\nmethods', "figure toy: there is no study 'letters'"),
        (
            'kind = "curves"',
            'kind = "changes"\nrows = ["PerMFL (PM)"]',
            "figure toy: changes are from one row to another",
        ),
        ('kind = "curves"', 'kind = "lines"\nrows = ["PerMFL"]', "figure toy: the table has no 'PerMFL'"),
    ],
)
def test_a_file_with_a_fault_says_where(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in TOY
    path = tmp_path / "faulty.toml"
    path.write_text(TOY.replace(old, new))
    with pytest.raises(BadInput, match=re.escape(told)):
        read(str(path))


def test_a_file_in_the_place_of_the_results_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInput, match="is a file, not a folder"):
        reproduce("group-bayes", out=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


# -- the files of the papers -------------------------------------------------------------------------------------------

CLAIMS = (
    *(f"A.3.{number}" for number in range(1, 6)),
    *(f"B.6.{number}" for number in range(1, 7)),
    *(f"C.4.{number}" for number in range(1, 7)),
    *(f"D.8.{number}" for number in range(1, 8)),
    "E.1", "E.2", "E.3",
)  # fmt: skip


def test_every_claim_of_the_papers_is_tested_by_some_experiment() -> None:
    ids = [claim.id for name in names() for claim in read(name).claims]
    for number in CLAIMS:
        assert any(one.startswith(number) for one in ids), number
    each = [(name, claim.id) for name in names() for claim in read(name).claims]
    assert len(set(each)) == len(each)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("size", ["quick", "whole"])
def test_every_experiment_makes_runs_that_are_possible(name: str, size: str) -> None:
    experiment = read(name)
    assert experiment.unstated or not any(one.get("source", "runs") == "runs" for one in experiment.studies)
    for given in experiment.studies:
        for stand_in in (False, True):
            study = experiment.sized(given, size, stand_in=stand_in)
            if study is None:
                assert experiment.left_out(given, size)
            elif study.source == "runs":
                arms = arms_of(experiment, study)
                assert [arm.name for arm in arms] == study.methods
                for arm in arms:
                    arm.config.method().check(arm.config.make_tree())
            else:
                assert study.source in SOURCES


def test_the_file_in_the_docs_can_be_read(tmp_path: Path) -> None:
    page = Path(__file__).parent.parent / "docs" / "how-to" / "compare.md"
    (text,) = re.findall(r"```toml\n(title = .*?)```", page.read_text(), re.DOTALL)
    (tmp_path / "mine.toml").write_text(text)
    experiment = read(str(tmp_path / "mine.toml"))
    assert experiment.cuts(experiment.studies[0], stand_in=False) == [
        "rounds 5 in place of 50",
        "seeds 2 in place of 5",
    ]


def test_printed_numbers_have_a_value_and_a_spread() -> None:
    assert printed("84.87 (0.054)") == (84.87, 0.054)
    assert printed("-3") == (-3.0, None)
    assert printed("") == (None, None)


# -- claims ------------------------------------------------------------------------------------------------------------


def numbers(*seeds: dict[str, float], world: str = "one", logs: bool = False, weight: float = 1.0) -> Numbers:
    """Return numbers of devices a, b ..., the first of which counts as given, in teams of one."""
    values = dict(enumerate(seeds))
    weights = {seed: {name: weight if name == "a" else 1.0 for name in each} for seed, each in values.items()}
    teams = {seed: {name: name for name in each} for seed, each in values.items()}
    return Numbers(values, weights, teams, dict.fromkeys(values, world), logs)


TABLE = Table.model_validate(
    {"title": "t", "unit": "%", "columns": [{"title": "x"}], "rows": [{"title": name} for name in "pqr"]}
)


def verdict(cells: dict[str, Numbers], **claim: Any) -> Any:
    def found(row: str, column: str) -> Numbers:
        assert column == "x"
        if row not in cells:
            raise Missing("diverged with 1 of 1 seeds")
        return cells[row]

    return judge(Claim.model_validate({"id": "1", "says": "s", **claim}), TABLE, found)


def test_verdicts_follow_the_interval() -> None:
    low, high = numbers({"a": 0.1, "b": 0.2}, {"a": 0.1, "b": 0.1}), numbers({"a": 0.3, "b": 0.3}, {"a": 0.2, "b": 0.4})
    mixed = numbers({"a": 0.0, "b": 0.3}, {"a": 0.0, "b": 0.3})
    cells = {"p": high, "q": low, "r": mixed}
    assert verdict(cells, test="more", row="p", than=["q"]).word == HOLDS
    assert verdict(cells, test="more", row="p", than=["q"]).parts[0].mean == pytest.approx(17.5)
    assert verdict(cells, test="more", row="p", than=["q"], by=40.0).word == FAILS
    assert verdict(cells, test="less", row="p", than=["q"]).word == FAILS
    assert verdict(cells, test="more", row="r", than=["q"]).word == OPEN
    assert verdict(cells, test="close", row="p", than=["q"], within=35.0).word == HOLDS
    assert verdict(cells, test="close", row="p", than=["q"], within=5.0).word == FAILS
    assert verdict(cells, test="rising", along=["q", "p"]).word == HOLDS
    assert verdict(cells, test="falling", along=["q", "p"]).word == FAILS
    assert verdict(cells, test="share", row="p", than=["q"], low=60.0).parts[0].mean == 100
    assert (
        verdict(cells, test="share", row="p", than=["r"], low=10.0, high=90.0).parts[0].mean == 87.5
    )  # a tie is half a device
    assert verdict(cells, test="between", row="q", low=5.0, high=25.0).word == HOLDS
    assert verdict(cells, test="more", row="p", than=["q", "r"], some=1).word == HOLDS
    gone = {"q": low}
    assert verdict(gone, test="breaks", row="p", than=["q"]).word == HOLDS
    assert verdict(gone, test="more", row="p", than=["q"]).word == FAILS
    assert verdict(gone, test="less", row="p", than=["q"]).word == OPEN


def test_a_statistic_of_devices_keeps_what_sets_it_apart() -> None:
    one = replace(numbers({"a": 0.1, "b": 0.4}), apart="cut size")
    for statistic, value in (("max", 0.4), ("above 0.2", 1.0), ("q50", 0.25), ("mean", 0.25)):
        assert one.statistic(statistic) == [pytest.approx(value)]
        assert one.about(statistic).apart == "cut size"


def test_a_line_through_three_rows_rises_by_its_slope() -> None:
    cells = {name: numbers({"a": value, "b": value}) for name, value in zip("pqr", (0.1, 0.4, 0.3), strict=True)}
    one = verdict(cells, test="rising", along=["p", "q", "r"])
    assert one.parts[0].mean == pytest.approx(20.0)  # least squares: 0.1 for a row, over two rows
    assert one.parts[0].why == "one seed, so the interval is over devices only"


def test_logarithms_are_told_as_changes_in_per_cent_and_weights_count() -> None:
    less, more = (numbers({"a": math.log(one), "b": math.log(100.0)}, logs=True, weight=3.0) for one in (50.0, 100.0))
    part = verdict({"p": less, "q": more}, test="less", row="p", than=["q"]).parts[0]
    assert part.mean == pytest.approx(100 * (0.5**0.75 - 1))
    assert part.unit == "%"
    assert less.statistic() == pytest.approx([50**0.75 * 100**0.25])


def test_devices_of_other_populations_are_not_paired() -> None:
    one, other = numbers({"a": 0.5, "b": 0.3}, {"a": 0.4}), numbers({"a": 0.2}, {"a": 0.1}, world="two")
    values, teams, _ = contrast([(1.0, one), (-1.0, other)])
    assert [list(each.values()) for each in values.values()] == [[pytest.approx(0.2)], [pytest.approx(0.3)]]
    assert {name for each in teams.values() for name in each} == {"all devices together"}
    values, _, _ = contrast([(1.0, one), (-1.0, one)])
    assert values == {0: {"a": 0.0, "b": 0.0}, 1: {"a": 0.0}}


def test_an_experiment_without_tables_or_claims_can_be_read() -> None:
    assert Experiment.model_validate({"name": "x", "title": "t", "paper": "p"}).tables == []
