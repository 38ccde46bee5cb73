"""Metrics of all outputs together, by scikit-learn or of one's own; and the best round by samples that were held out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as theirs

import palmette as pm
from palmette.engines.measures import MEASURES, make_measures
from palmette.errors import BadInput
from problems import regression
from tables import KNOWN, palmette, visits, write

FAST = {"team_steps": 1, "local_steps": 3}
CLASSES = [name for name, entry in MEASURES.items() if entry.classes]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_values_are_those_of_scikit_learn_and_of_the_definitions() -> None:
    random = torch.Generator().manual_seed(0)
    for classes in (2, 4):
        outputs, y = torch.randn(200, classes, generator=random), torch.arange(200) % classes
        chances, found = outputs.double().softmax(1), make_measures(CLASSES, classes)
        auc = theirs.roc_auc_score(y, chances[:, 1] if classes == 2 else chances, multi_class="ovr")
        assert found["auc"](outputs, y) == pytest.approx(auc)
        assert found["balanced-accuracy"](outputs, y) == pytest.approx(
            theirs.balanced_accuracy_score(y, outputs.argmax(1))
        )
        average = "binary" if classes == 2 else "macro"
        assert found["f1"](outputs, y) == pytest.approx(theirs.f1_score(y, outputs.argmax(1), average=average))
        total = -chances.log()[torch.arange(200), y].sum()
        assert found["perplexity"](outputs, y) == pytest.approx(math.exp(float(total) / 200))
    sure = torch.tensor([[0.0, 4.0]] * 10)
    gap = float(sure.softmax(1)[0, 1]) - 0.7
    labels = torch.tensor([1] * 7 + [0] * 3)
    assert make_measures(["calibration"], 2)["calibration"](sure, labels) == pytest.approx(gap)
    x, y = torch.randn(50, 1, generator=random), torch.randn(50, generator=random)
    numbers = make_measures(["r2", "rmse"], None)
    assert numbers["r2"](x, y) == pytest.approx(theirs.r2_score(y, x[:, 0]))
    assert numbers["rmse"](x, y) == pytest.approx(float((x[:, 0] - y).square().mean().sqrt()), rel=1e-5)


def test_one_class_alone_has_no_auc_and_an_empty_device_no_number() -> None:
    found = make_measures(CLASSES, 3)
    assert math.isnan(found["auc"](torch.randn(4, 3), torch.zeros(4, dtype=torch.int64)))
    assert math.isnan(make_measures(["r2"], None)["r2"](torch.ones(1, 1), torch.ones(1)))


def test_a_run_has_them_pooled_by_team_and_by_device_and_goes_on_to_the_same_bytes() -> None:
    made = pm.read_table(write("visits.csv", visits(each=24)[:96]), **KNOWN)
    how = {"settings": FAST, "metrics": "auc, f1", "progress": False}
    result = pm.run("permfl", made, rounds=2, out="one", **how)
    assert result.metric_names == ["accuracy", "auc", "f1", "loss"]
    pooled, mean = result.last("GM", "auc"), result.last("GM", "auc", weight="devices")
    each = [result.last("GM", "auc", node=name) for name in result.names("PM")]
    assert mean == pytest.approx(float(np.nanmean(each)))
    assert pooled != pytest.approx(mean, abs=1e-6)
    assert 0.5 < result.last("GM", "auc", node="h0", tier=1) <= 1
    assert set(result.summary()["models"]["GM"]) == {"accuracy", "auc", "f1", "loss"}
    outputs, targets = [], []
    for number, name in enumerate(result.names("PM")):
        first = int(made.start[number] + made.train[number])
        index = torch.arange(first, int(made.start[number + 1]))
        outputs.append(result.predict(made.features(index), "PM", name))
        targets.append(made.y[index])
    expected = theirs.f1_score(torch.cat(targets), torch.cat(outputs).argmax(1), average="binary")
    assert result.last("PM", "f1") == pytest.approx(expected)
    pm.run("permfl", made, rounds=1, out="two", **how)
    assert palmette("resume", "two", "--rounds", "2", "--quiet").exit_code == 0
    assert Path("one/metrics.parquet").read_bytes() == Path("two/metrics.parquet").read_bytes()
    assert "f1" in palmette("show", "one").stdout


def test_ones_own_metric_may_be_of_all_outputs_or_per_sample() -> None:
    Path("mine_too.py").write_text(
        "def hits(outputs, targets):\n    return (outputs.argmax(1) == targets).float()\n"
        "def miss_error(outputs, targets):\n    return 1 - hits(outputs, targets).mean()\n"
        "def wrong(outputs, targets):\n    return outputs\n"
        "def broken(outputs, targets):\n    raise RuntimeError('no')\n"
    )
    made = pm.make_population("digits", tree="2x2")
    paths = ["mine_too:hits", "mine_too:miss_error"]
    result = pm.run("fedavg", made, rounds=1, out="one", metrics=paths, evaluate_every=1, progress=False)
    assert result.last("PM", "hits") == pytest.approx(result.last("PM"))
    assert result.last("PM", "miss_error") == pytest.approx(1 - result.last("PM"))
    curve = result.curve("PM", "miss_error")
    assert result.best("PM", "miss_error")[0] == min(curve.values())
    for name, said in (
        ("mine_too:wrong", "it must give one number, or one per sample"),
        ("mine_too:broken", "failed: RuntimeError: no"),
        ("mine_too:hit", "did you mean 'hits'"),
        ("acu", "there is no metric 'acu'; did you mean 'auc'"),
        ("rmse", "is for regression; here there is auc"),
    ):
        with pytest.raises(BadInput, match=said):
            pm.run("fedavg", made, rounds=1, metrics=[name], progress=False)


def test_a_run_without_accuracy_says_what_there_is() -> None:
    result = pm.run("fedavg", regression("2x3"), "linear", rounds=1, metrics="r2,rmse", out="one", progress=False)
    with pytest.raises(BadInput, match=r"has no accuracy of PM; there is loss, r2, rmse, as in last\('PM', 'loss'\)"):
        result.last("PM")
    half = 0.5 * result.last("PM", "rmse") ** 2
    assert half == pytest.approx(result.last("PM", "loss"), rel=1e-4)


def test_the_best_round_is_chosen_by_held_out_samples_where_there_are_some() -> None:
    made = pm.make_population("digits", tree="2x3")
    result = pm.run("permfl", made, rounds=4, settings=FAST, held_out=0.3, evaluate_every=1, out="one", progress=False)
    held, tested = result.curve("PM", on="held-out"), result.curve("PM")
    best = max(held, key=lambda round_: (held[round_], -round_))
    assert result.best("PM") == (tested[best], best)
    assert set(held) == set(tested)
    assert held != tested
    plain = pm.run("permfl", made, rounds=1, settings=FAST, out="two", progress=False)
    assert plain.curve("PM", on="held-out") == {}


def share_of_nines(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return (outputs.argmax(1) == 9).double()


def test_a_metric_may_be_given_as_a_function_and_is_kept_by_its_import_path() -> None:
    people = pm.make_population("digits", tree="2x2")
    result = pm.run("fedavg", people, rounds=1, metrics=["f1", share_of_nines], progress=False)
    assert result.config.metrics == ["f1", f"{__name__}:share_of_nines"]
    assert 0 < result.last("GM", "share_of_nines") < 1
    assert pm.resume(result.folder, rounds=2, progress=False).curve("GM", "share_of_nines").keys() == {0, 1, 2}


def test_a_metric_that_could_not_be_found_again_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    people, out = pm.make_population("digits", tree="2x2"), tmp_path / "run"
    with pytest.raises(BadInput, match=r"lambda.*cannot be found again.*not inside another function"):
        pm.run("fedavg", people, rounds=1, metrics=[lambda outputs, targets: 1.0], out=out)
    with pytest.raises(BadInput, match="3 is neither the name of a metric nor a function"):
        pm.run("fedavg", people, rounds=1, metrics=[3], out=out)  # type: ignore[list-item]
    assert not out.exists()
