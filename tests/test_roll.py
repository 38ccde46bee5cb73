"""Who took part, as a run writes it down: every node with its parent, its samples and its labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

import palmette as pm
from palmette.errors import ProtocolError
from palmette.runs import roll as rolls
from palmette.runs.roll import SCHEMA, roll


def test_every_node_has_a_line_with_its_parent_and_all_samples_below_it() -> None:
    people = pm.make_population("digits", tree="2x2x3")
    table = roll(people)
    assert table.schema.names == SCHEMA.names
    rows = table.to_pylist()
    assert [row["tier"] for row in rows] == [0] * 12 + [1] * 4 + [2] * 2 + [3]
    assert [row["parent"] for row in rows if row["tier"] == 1] == [0, 0, 1, 1]
    assert rows[-1]["parent"] == -1
    for tier in range(3):
        assert sum(row["train"] for row in rows if row["tier"] == tier) == int(people.train.sum())
    first = people.y[: int(people.train[0])].numpy()
    assert rows[0]["labels"] == np.bincount(first, minlength=10).tolist()
    assert all(row["labels"] is None for row in rows if row["tier"])


def test_labels_are_the_same_however_many_samples_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    people = pm.make_population("digits", tree="3x4")
    whole = roll(people)
    monkeypatch.setattr(rolls, "_SAMPLES", 50)
    assert roll(people).equals(whole)
    monkeypatch.setattr(rolls, "_COUNTS", 100)
    assert roll(people)["labels"].null_count == 16, "a population this large is kept without labels"


def test_devices_kept_out_of_training_are_marked() -> None:
    people = pm.make_population("digits", tree="2x4", unseen=0.25)
    assert people.unseen is not None
    assert roll(people)["unseen"].to_pylist()[:8] == people.unseen.tolist()
    assert people.unseen.any()


def test_a_regression_has_the_quartiles_of_its_targets() -> None:
    people = pm.testing.regression([2, 3])
    table = roll(people)
    low, high = int(people.start[1]), int(people.start[1]) + int(people.train[1])
    assert table["target"][1].as_py() == pytest.approx(np.quantile(people.y[low:high].numpy(), [0, 0.25, 0.5, 0.75, 1]))


def test_named_classes_have_their_names(tmp_path: Path) -> None:
    lines = [f"{device},{number % 7},{('cat', 'dog')[number % 2]}" for device in "ab" for number in range(20)]
    (tmp_path / "pets.csv").write_text("\n".join(["device,size,pet", *lines]))
    people = pm.read_table(tmp_path / "pets.csv", device="device", label="pet")
    assert json.loads(roll(people).schema.metadata[b"classes"]) == ["cat", "dog"]


def test_distances_are_to_the_next_model_above(tmp_path: Path) -> None:
    people = pm.make_population("digits", tree="2x2")
    result = pm.run("hierfavg", people, rounds=1, out=tmp_path / "run", progress=False)
    team, glob = result.tensors("TM"), result.tensors("GM")
    apart = [sum(((team[name][at] - glob[name]).double() ** 2).sum() for name in team) ** 0.5 for at in range(2)]
    assert result.last("TM", "distance") == pytest.approx(float(torch.stack(apart).mean()), rel=1e-4)
    assert not result.curve("GM", "distance"), "nothing is above the global model"
    assert "distance" not in result.reports


class Teller(pm.algorithms.FedAvg):
    """Reports what Palmette measures itself."""

    name: ClassVar[str] = "teller"

    def report(self, node: pm.Node, state: object) -> dict[str, torch.Tensor]:
        """Return a number under a name that is taken."""
        return {"distance": torch.zeros(len(node.samples))}


def test_an_algorithm_may_not_report_under_the_name_of_the_distances(tmp_path: Path) -> None:
    people = pm.make_population("digits", tree="2x2")
    with pytest.raises(ProtocolError, match="which is what Palmette measures itself; rename it"):
        pm.run(Teller(), people, rounds=1, out=tmp_path / "run", progress=False)
