"""What one does with a finished run on a table: predict, adapt new devices, take models out."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import palmette as pm
from palmette.errors import BadInput
from tables import COLUMNS, KNOWN, palmette, visits, write

ROWS = visits()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on a table of eight wards."""
    place = tmp_path_factory.mktemp("run")
    made = pm.read_table(write(place / "visits.csv", ROWS), **KNOWN)
    pm.run("permfl", made, rounds=2, settings={"team_steps": 2}, out=place / "one", progress=False)
    return place / "one"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def told(*words: str, code: int = 0) -> Any:
    done = palmette(*words)
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done


# -- predict ------------------------------------------------------------------------------------------------------------------


def test_every_row_is_predicted_by_its_own_devices_model_whatever_the_order_of_columns(run: Path) -> None:
    order = [3, 6, 2, 1, 5, 0, 4]
    write("x.csv", [[row[place] for place in order] for row in ROWS], [COLUMNS[place] for place in order])
    done = told("predict", str(run), "--data", "x.csv")
    assert done.stderr == ""
    found = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["model"] for row in found] == [f"PM of {row[2]}" for row in ROWS]
    result, made = pm.load(run), pm.read_table(run.parent / "visits.csv", **KNOWN)
    right = sum(row["prediction"] == given[6] for row, given in zip(found, ROWS, strict=True))
    sums = 0
    for number, name in enumerate(made.tree.names(0)):
        mine = slice(int(made.start[number]), int(made.start[number + 1]))
        sums += int((result.module("PM", name)(made.x[mine]).argmax(1) == made.y[mine]).sum())
    assert right == sums


def test_an_unknown_device_has_its_teams_model_an_unknown_team_the_global_one_and_both_are_said(run: Path) -> None:
    rows = [["north", "h1", "new", 50, "f", 2.5], ["east", "h9", "other", 50, "f", 2.5]]
    write("x.csv", rows, COLUMNS[:-1])
    done = told("predict", str(run), "--data", "x.csv", "--json")
    assert [row["model"] for row in json.loads(done.stdout)["predictions"]] == ["TM of h1", "GM of server"]
    assert "'new'" in done.stderr
    assert "'other'" in done.stderr
    assert "by the global model" in done.stderr


def test_one_model_for_all_rows_and_a_file_for_the_predictions(run: Path) -> None:
    write("x.csv", [[50, "f", 2.5], [20, "m", 1]], ("age", "sex", "stay"))
    for node, model in (("w3", "PM of w3"), ("h1", "TM of h1"), ("south", "TM2 of south"), ("GM", "GM of server")):
        found = pm.predict(run, "x.csv", node=node)
        assert set(found.table["model"].to_pylist()) == {model}
        assert found.notes == []
    assert "no column 'region'" in told("predict", str(run), "--data", "x.csv").stderr
    assert told("predict", str(run), "--data", "x.csv", "--out", "y.csv").stdout == "2 predictions in y.csv\n"
    assert len(Path("y.csv").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("rows", "columns", "words", "said"),
    [
        ([[50, "f"]], ("age", "sex"), [], "has no column 'stay', which the model needs"),
        (
            [[50, "f", "long"]],
            ("age", "sex", "stay"),
            [],
            "row 1 (line 2 of the file), column 'stay': long is no number",
        ),
        (
            [[50, "f", "1,234"]],
            ("age", "sex", "stay"),
            [],
            "row 1 (line 2 of the file), column 'stay': 1,234 is no number",
        ),
        ([[50, "f", 1], [50, "f", ""]], ("age", "sex", "stay"), [], "column 'stay': the value is missing"),
        ([[50, "f", 1]], ("age", "sex", "stay"), ["--node", "w33"], "has no model of 'w33'; did you mean 'w3'?"),
        ([[50, "f", 1]], ("age", "sex", "stay"), ["--node", "w3", "--kind", "XM"], "no models of the kind XM"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    run: Path, rows: list[list[Any]], columns: tuple[str, ...], words: list[str], said: str
) -> None:
    write("x.csv", rows, columns)
    assert said in told("predict", str(run), "--data", "x.csv", *words, code=2).stderr


def test_missing_values_and_regression_follow_the_run(tmp_path: Path) -> None:
    rows = [[f"d{number % 2}", number / 3, number / 5 - 1] for number in range(30)]
    rows[3][1] = ""
    write("t.csv", rows, ("d", "v", "y"))
    with pytest.warns(UserWarning, match="1 missing value"):
        made = pm.read_table("t.csv", device="d", label="y", missing="mean")
    pm.run("fedavg", made, rounds=1, out="one", progress=False)
    found = pm.predict("one", {"v": [None, 2.0]}, node="d0").table.to_pylist()
    model = pm.load("one").module("PM", "d0")
    assert made.encoding is not None
    scaled = (2.0 - made.encoding.inputs[0].subtract) / made.encoding.inputs[0].divide
    expected = model(torch.tensor([[0.0], [scaled]]))[:, 0].tolist()
    assert [row["prediction"] for row in found] == pytest.approx(expected)


def test_a_run_without_a_table_says_so() -> None:
    pm.run("fedavg", pm.make_population("digits", tree="1x2"), rounds=1, out="one", progress=False)
    write("x.csv", [[1]], ("a",))
    for words in (["predict"], ["adapt"]):
        assert "was not trained on a table of your own" in told(*words, "one", "--data", "x.csv", code=2).stderr


# -- adapt --------------------------------------------------------------------------------------------------------------------


def test_a_new_device_gets_the_model_that_an_unseen_device_of_the_run_would_have_had(tmp_path: Path) -> None:
    table = write("visits.csv", ROWS)
    made = pm.read_table(table, **KNOWN, unseen=0.125)
    assert made.unseen is not None
    out = made.tree.name(0, int(made.unseen.nonzero()[0]))
    result = pm.run("permfl", made, rounds=2, settings={"team_steps": 2}, out="one", progress=False)
    write("new.csv", [row for row in ROWS if row[2] == out])
    found = pm.adapt("one", "new.csv")
    assert [entry["device"] for entry in found.devices] == [out]
    assert any("are in the run already" in note for note in found.notes)
    expected = result.state_dict("PM", out)
    for name, value in found.models[out].items():
        assert torch.equal(value, expected[name])


def test_new_devices_begin_from_their_team_or_from_the_global_model_and_get_a_file_each(run: Path) -> None:
    near = [["north", "h1", "new", *row[3:]] for row in ROWS if row[2] == "w2"]
    far = [["east", "h9", "other", *row[3:]] for row in ROWS if row[2] == "w5"]
    write("new.csv", near + far)
    done = told("adapt", str(run), "--data", "new.csv", "--out", "models", "--json")
    found = {entry["device"]: entry for entry in json.loads(done.stdout)["devices"]}
    assert (found["new"]["from"], found["other"]["from"]) == ("TM of h1", "GM of server")
    assert set(found["new"]["after"]) == {"accuracy", "loss"}
    assert "teams that the run does not know: 'h9'" in done.stderr
    assert sorted(path.name for path in Path("models").iterdir()) == ["new.safetensors", "other.safetensors"]
    assert "TM of h1" in told("adapt", str(run), "--data", "new.csv").stdout


def test_without_columns_of_teams_new_devices_begin_from_the_global_model(run: Path) -> None:
    write("new.csv", [row[2:] for row in ROWS[:12]], COLUMNS[2:])
    found = pm.adapt(run, "new.csv")
    assert found.devices[0]["from"] == "GM of server"
    assert any("no column 'region'" in note for note in found.notes)


def test_labels_that_the_models_do_not_know_are_refused(run: Path) -> None:
    write("new.csv", [[*row[:6], "perhaps"] for row in ROWS[:12]])
    said = told("adapt", str(run), "--data", "new.csv", code=2).stderr
    assert "the models do not know the label 'perhaps'; they know 'no', 'yes'" in said


def test_a_method_that_predicts_from_several_rows_is_said_to(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write("new.csv", ROWS[:6])
    assert not any("from several rows" in note for note in pm.adapt(run, "new.csv").notes)
    monkeypatch.setattr(pm.PerMFL, "predict", lambda self, rows, batch: batch.predict(rows["model"]))
    assert any(
        "devices of permfl predict in a way of its own, from several rows" in note
        for note in pm.adapt(run, "new.csv").notes
    )


# -- export -------------------------------------------------------------------------------------------------------------------


def test_an_exported_file_and_plain_torch_give_the_predictions_of_palmette(run: Path) -> None:
    assert told("export", str(run), "--node", "w3", "--out", "models").stdout == "models/w3.safetensors\n"
    with safe_open("models/w3.safetensors", "pt") as file:
        about = json.loads(file.metadata()["palmette"])
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(len(about["inputs"]), len(about["classes"])))
    model.load_state_dict(weights)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
    values = [
        [
            float(row[one["column"]] == one["equals"])
            if "equals" in one
            else (row[one["column"]] - one["subtract"]) / one["divide"]
            for one in about["inputs"]
        ]
        for row in rows
    ]
    chances = model(torch.tensor(values)).double().softmax(1).tolist()
    found = pm.predict(run, run.parent / "visits.csv", node="w3").table
    assert [about["classes"][row.index(max(row))] for row in chances] == found["prediction"].to_pylist()
    assert [row[1] for row in chances] == found["p(yes)"].to_pylist()


def test_all_models_go_into_a_folder_for_each_kind(run: Path) -> None:
    found = json.loads(told("export", str(run), "--all", "--out", "models", "--json").stdout)["files"]
    assert len(found) == 8 + 4 + 2 + 1
    assert {Path(file).parent.name for file in found} == {"devices", "teams", "tier2", "global"}
    assert "is there already" in told("export", str(run), "--all", "--out", "models", code=2).stderr
    assert "--node NAME" in told("export", str(run), "--out", "models", code=2).stderr


def test_onnx_without_its_packages_says_what_to_install(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    done = told("export", str(run), "--node", "w3", "--format", "onnx", "--out", "models", code=2)
    assert "pip install 'palmette[onnx]'" in done.stderr


def test_onnx_gives_the_same_outputs(run: Path) -> None:
    onnx = pytest.importorskip("onnx.reference")
    pytest.importorskip("onnxscript")
    path = pm.export(run, "models", node="w3", format="onnx")[0]
    x = torch.tensor([[50.0, 1.0, 0.0, 2.5]])
    output = torch.from_numpy(onnx.ReferenceEvaluator(str(path)).run(None, {"x": x.numpy()})[0])
    found = pm.predict(run, {"age": [50], "sex": ["f"], "stay": [2.5]}, node="w3").table
    assert float(output.softmax(1)[0, 1]) == pytest.approx(found["p(yes)"][0].as_py(), abs=1e-6)


def test_a_damaged_encoding_is_refused(run: Path) -> None:
    text = (run / "encoding.json").read_text()
    try:
        (run / "encoding.json").write_text("{}")
        with pytest.raises(BadInput, match="by the checksums"):
            pm.predict(run, {"age": [50]}, node="w3")
    finally:
        (run / "encoding.json").write_text(text)
