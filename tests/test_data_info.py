"""``palmette data info``: a population in numbers and as a picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from palmette.cli.app import app
from palmette.population import Population, make_population
from palmette.population.description import describe


def info(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["data", "info", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_alike_devices_lie_apart_by_chance_alone_and_others_do_not() -> None:
    alike = describe(make_population("digits", tree="4x5", partition="iid")).apart
    for one in alike.values():
        assert one.mean == pytest.approx(one.chance, rel=0.3)
    teams = describe(make_population("digits", tree="4x5", partition="labels", teams="worst"))
    assert teams.apart["labels of teams"].mean > 0.7
    assert teams.apart["labels of teams"].mean > 10 * teams.apart["labels of teams"].chance
    assert teams.silhouettes["labels"] > 0.5
    turned = describe(make_population("digits", tree="4x5", partition="iid", shift="rotate")).apart
    assert turned["features of teams"].mean > 3 * alike["features of teams"].mean
    assert turned["features of devices"].mean == pytest.approx(alike["features of devices"].mean, rel=0.2)


def test_counts_are_those_of_the_training_samples_of_devices_that_train() -> None:
    made = make_population("digits", tree="2x4", unseen=0.25)
    about = describe(made)
    assert made.unseen is not None
    assert about.label_counts is not None
    seen = (~made.unseen).nonzero().flatten().tolist()
    assert about.devices.tolist() == seen
    assert about.label_counts.sum() == int(made.train[~made.unseen].sum())
    first = made.y[made.start[seen[0]] : made.start[seen[0]] + made.train[seen[0]]]
    assert np.allclose(about.device_shares[0] * len(first), np.bincount(first, minlength=10))
    assert about.as_dict()["unseen"] == 2


def test_a_hundred_thousand_devices_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("palmette.population.description._DEVICES", 50)
    about = describe(make_population("crowd", tree="100x10"))
    assert len(about.devices) == 50
    assert not about.whole
    assert about.as_dict()["compared_devices"] == 50
    assert about.label_counts is not None
    assert about.label_counts.sum() == 16000  # teams are counted whole


def test_info_shows_a_table_and_draws_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = info("digits", "--tree", "4x5", "--set", "partition=labels", "--set", "data.teams=found")
    for words in (
        "20 devices in 4 teams",
        "CC BY 4.0",
        "labels: devices from their team",
        "4 teams found by updates",
        "found-3",
    ):
        assert words in " ".join(text.split())
    assert "digits-info.png" in text
    with Image.open(tmp_path / "digits-info.png") as image:
        assert image.size[0] > 900
        assert len(np.unique(np.asarray(image.convert("L")))) > 50


def test_info_as_json_draws_only_where_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = json.loads(info("digits", "--tree", "4", "--json"))
    assert told["teams"] == 0
    assert told["devices"] == 4
    assert told["samples"] == 1797
    assert set(told["apart"]) == {"labels of devices", "features of devices"}
    assert told["picture"] is None
    assert list(tmp_path.iterdir()) == []
    told = json.loads(info("crowd", "--tree", "50x2", "--json", "--out", "crowd.svg"))
    assert told["picture"] == "crowd.svg"
    assert (tmp_path / "crowd.svg").read_text().startswith("<?xml")


def test_info_of_a_regression_and_of_tokens(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = [
        f"w{ward},r{ward % 2},{random.normal():.3f},{random.normal(ward):.3f}" for ward in range(6) for _ in range(10)
    ]
    (tmp_path / "visits.csv").write_text("\n".join(["ward,region,a,cost", *rows]))
    columns = ("--set", "device=ward", "--set", "team=region", "--set", "label=cost")
    text = info(str(tmp_path / "visits.csv"), *columns, "--out", str(tmp_path / "p.png"))
    assert "target" in text
    assert "deviation" in text
    told = json.loads(info(str(tmp_path / "visits.csv"), *columns, "--json"))
    assert told["target_by_team"]["r1"]["mean"] > told["target_by_team"]["r0"]["mean"]
    device = np.repeat(np.arange(8), 10)
    words = Population.from_arrays(random.integers(0, 900, (80, 5)), device % 2, device=device, tree="2x4", classes=2)
    assert describe(words).apart["features of devices"].mean > 0
    texts = random.integers(0, 300, (800, 20))
    text = Population.from_arrays(texts, texts, device=np.repeat(np.arange(8), 100), tree="2x4", classes=300)
    for one in describe(text).apart.values():  # every position has a label, and chance knows of all of them
        assert one.mean == pytest.approx(one.chance, rel=0.4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digit"], "there is no data set 'digit'; did you mean 'digits'"),
        (["digits", "--set", "data.partitoin=iid"], "unknown setting 'data.partitoin'"),
        (["digits", "--set", "model.name=dnn"], "--set model.name is no setting of the data"),
        (["digits", "--tree", "4xx"], "cannot read the tree"),
        (["digits", "--out", "/nowhere/x.png"], "there is no folder /nowhere"),
    ],
)
def test_bad_input_is_told_in_a_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["data", "info", *arguments])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
