"""Trees of more than three tiers: the models of every inner tier are measured, saved and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from palmette.algorithms import algorithm
from palmette.engines.evaluation import evaluate
from palmette.errors import BadInput
from palmette.protocol import model_kind
from palmette.report.tables import run_report
from palmette.runs import execute, load, make_config
from problems import regression, simulate
from test_report import text_of

DEEP: dict[str, Any] = {
    "algorithm": "permfl",
    "rounds": 2,
    "tree": "2x2x3",
    "settings": {"team_steps": 2, "local_steps": 2, "gamma": [0.1, 0.2]},
    "evaluate_every": 1,
}


def test_kinds_are_named_from_the_devices_up() -> None:
    assert [model_kind(tier, 4) for tier in range(5)] == ["PM", "TM", "TM2", "TM3", "GM"]
    assert [model_kind(tier, 1) for tier in range(2)] == ["PM", "GM"]


def test_the_models_of_every_inner_tier_are_measured_and_saved(tmp_path: Path) -> None:
    result = execute(make_config(DEEP), tmp_path / "run")
    assert result.kinds == ["PM", "TM", "TM2", "GM"]
    assert result.names("TM2") == ["tier2-0", "tier2-1"]
    assert result.names("TM") == ["team-0", "team-1", "team-2", "team-3"]
    assert (tmp_path / "run" / "tier2.safetensors").exists()
    population = result.config.population()
    right = 0
    for region in range(2):
        module = result.module("TM2", f"tier2-{region}")
        for device in range(6 * region, 6 * region + 6):
            test = torch.arange(
                int(population.start[device] + population.train[device]), int(population.start[device + 1])
            )
            with torch.no_grad():
                right += int((module(population.features(test)).argmax(1) == population.y[test]).sum())
    assert result.last("TM2") == pytest.approx(right / int(population.tests.sum()))
    assert load(tmp_path / "run").summary()["models"]["TM2"]["accuracy"] == result.last("TM2")
    assert len(result.save_models(tmp_path / "models", "TM2")) == 2
    text = text_of(run_report(result, teams=True))
    assert "TM2" in text
    assert "server - tier 2" in text
    assert "tier 2 - teams" in text


def test_an_inner_tier_of_one_child_has_its_parents_model_under_averaging() -> None:
    simulation = simulate(algorithm("hierfavg", local_steps=2, team_steps=1), regression("1x2x2"), 2)
    scores = evaluate(simulation)
    assert list(scores) == ["PM", "TM", "TM2", "GM"]
    assert torch.equal(scores["TM2"].sums["loss"], scores["GM"].sums["loss"])


def test_a_kind_that_was_not_made_is_refused_with_those_there_are(tmp_path: Path) -> None:
    result = execute(make_config({**DEEP, "tree": "2x3", "settings": {}, "rounds": 1}), tmp_path / "run")
    with pytest.raises(BadInput, match="has no model of the kind TM2; it has PM, TM, GM"):
        result.names("TM2")
