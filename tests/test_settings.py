"""Settings of algorithms: what is accepted, and errors that name every problem at once."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from pydantic import ValidationError

from palmette.algorithms import ALGORITHMS, FedAvg, HierFAVG, PerMFL, algorithm
from palmette.errors import BadInput, nearest, nearest_few
from palmette.protocol.sentences import brief
from palmette.protocol.settings import described
from palmette.tree import Tree


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_says_in_a_sentence_what_an_absent_device_means(name: str) -> None:
    told = ALGORITHMS[name].absent
    assert told.startswith("A ")
    assert told.endswith(".")
    assert "left out" in told
    assert len(told) < 200


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_can_be_made_by_name_and_describes_itself(name: str) -> None:
    made = algorithm(name)
    assert type(made) is ALGORITHMS[name]
    assert made.name == name
    assert made.paper


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_settings_are_frozen_and_compare_by_value(name: str) -> None:
    made = algorithm(name, batch_size=7)
    assert made == algorithm(name, batch_size=7)
    assert made != algorithm(name, batch_size=8)
    with pytest.raises((FrozenInstanceError, ValidationError)):
        made.batch_size = 9  # type: ignore[misc]


def test_the_defaults_of_permfl_are_those_promised() -> None:
    made = algorithm("permfl")
    expected: dict[str, Any] = {
        "team_steps": 10,
        "local_steps": 20,
        "alpha": 0.05,
        "lam": 0.1,
        "gamma": 0.01,
        "eta": "auto",
        "beta": "auto",
        "batch_size": 20,
        "as_published": (),
    }
    assert {name: getattr(made, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "steps", "pulls", "often"),
    [("permfl", (0.01, 0.03, 0.6), (1.5, 0.5), (10, 20)), ("pfedmt", (0.01, 0.03, 1.0), (0.1, 15.0), (30, 20))],
)
def test_the_published_preset_is_that_of_the_algorithms_own_paper(
    name: str, steps: tuple[float, ...], pulls: tuple[float, ...], often: tuple[int, ...]
) -> None:
    made: Any = algorithm(name, preset="published")
    assert (made.alpha, made.eta, made.beta) == steps
    assert (made.gamma, made.lam) == pulls
    assert (made.team_steps, made.local_steps, made.batch_size) == (*often, 20)


def test_the_single_coin_has_the_published_donors_preset() -> None:
    made: Any = algorithm("l2gd-coin", preset="published")
    assert (made.between, made.eta, made.lam) == (0.1, 0.001, 1.36)
    assert made.gamma * 5898 == pytest.approx(0.01)  # a cluster's own pull, shared out over its clients


def test_single_settings_override_a_preset() -> None:
    made: Any = algorithm("permfl", preset="published", alpha=0.3, eta="auto")
    assert (made.alpha, made.eta, made.beta) == (0.3, "auto", 0.6)


def test_overriding_does_not_change_the_preset() -> None:
    algorithm("permfl", preset="published", alpha=0.3)
    assert PerMFL.presets["published"]["alpha"] == 0.01


def test_lists_become_one_entry_per_tier_and_mappings_one_per_name() -> None:
    made: Any = algorithm("permfl", team_steps=[3, 2], gamma=[1, 3], eta=[0.1, 0.2], alpha={"device-0": 0.1})
    assert (made.team_steps, made.gamma, made.eta, made.alpha) == ((3, 2), (1, 3), (0.1, 0.2), {"device-0": 0.1})


def test_numbers_written_as_text_are_read() -> None:
    made: Any = algorithm("permfl", local_steps="5", alpha="0.5")
    assert (made.local_steps, made.alpha) == (5, 0.5)


@pytest.mark.parametrize("size", [1, 32, "full"])
def test_a_batch_is_a_count_or_full(size: Any) -> None:
    assert algorithm("fedavg", batch_size=size).batch_size == size


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        algorithm("permfl", alpha=-1, local_steps=0, lamda=0.5, beta=float("nan"))
    message = str(caught.value)
    assert message.startswith("permfl: ")
    for part in ("unknown setting 'lamda'", "alpha: ", "not -1", "local_steps: ", "not 0", "beta: ", "not nan"):
        assert part in message
    assert "\n" not in message
    assert "pydantic" not in message


@pytest.mark.parametrize(("typo", "meant"), [("locl_steps", "local_steps"), ("Alpha", "alpha"), ("gama", "gamma")])
def test_an_unknown_setting_is_answered_with_the_nearest(typo: str, meant: str) -> None:
    with pytest.raises(BadInput, match=f"unknown setting '{typo}'; did you mean '{meant}'"):
        algorithm("permfl", **{typo: 1})


def test_a_setting_unlike_any_other_is_answered_with_the_list() -> None:
    with pytest.raises(BadInput, match="unknown setting 'zzz'; there is alpha, batch_size, local_steps, tune_steps"):
        algorithm("fedavg", zzz=1)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        (name, field, value)
        for name, field, values in (
            ("permfl", "alpha", [0, -0.1, float("nan"), float("inf"), "fast", None, {"device-0": 0.0}, []]),
            ("permfl", "lam", [-0.1, float("nan"), float("inf"), "automatic"]),
            ("permfl", "gamma", [-0.1, float("nan"), [0.1, -0.1], [float("inf")]]),
            ("permfl", "eta", [0, -1, float("nan"), "automatic", [0.1, 0], {"team-0": -1}]),
            ("permfl", "beta", [0, -1, float("nan"), float("inf"), "automatic"]),
            ("permfl", "team_steps", [0, -1, 2.5, float("nan"), [3, 0], "many"]),
            ("permfl", "local_steps", [0, -1, 2.5, float("inf"), [3]]),
            ("permfl", "batch_size", [0, -1, 2.5, "half", float("nan")]),
            ("permfl", "as_published", [["line-12"], ["device_pull"], "stale-teams"]),
            ("pfedmt", "as_published", [["line-13"]]),
            ("fedavg", "tune_steps", [-1, 2.5]),
            ("hierfavg", "global_every", [-1, 2.5]),
            ("hierfavg", "weights", ["sample", None]),
            ("local", "local_steps", [0]),
        )
        for value in values
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name_and_itself(name: str, field: str, value: Any) -> None:
    with pytest.raises(BadInput) as caught:
        algorithm(name, **{field: value})
    message = str(caught.value)
    assert message.startswith(f"{name}: {field}: ")
    assert message.endswith(f"not {value!r} ({brief(described(ALGORITHMS[name])[field])})")


def test_one_problem_of_a_setting_of_several_types_is_told_once() -> None:
    with pytest.raises(BadInput) as caught:
        algorithm("permfl", eta="automatic")
    assert str(caught.value).count("eta: ") == 1
    assert str(caught.value).count("not 'automatic'") == 1


def test_an_unknown_algorithm_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"unknown algorithm 'prmfl'; did you mean 'permfl'\?"):
        algorithm("prmfl")
    with pytest.raises(BadInput, match=r"unknown algorithm 'zzz'\. All there are: palmette list algorithms$"):
        algorithm("zzz")


def test_of_many_names_the_nearest_few_are_told_and_one_where_there_is_no_doubt() -> None:
    names = ["fedavg", "fedavgm", "fedadam", "fedamp", "permfl", "per-fedavg"]
    assert nearest_few("fedam", names) == "; did you mean 'fedamp', 'fedavgm' or 'fedadam'?"
    assert nearest_few("FedAvg", names) == "; did you mean 'fedavg'?"
    assert nearest_few("per_fedavg", names) == "; did you mean 'per-fedavg'?"
    assert nearest_few("zzz", names) == "."


def test_an_unknown_preset_is_answered_with_the_nearest() -> None:
    with pytest.raises(BadInput, match=r"permfl has no preset 'publishd'; did you mean 'published'\?"):
        algorithm("permfl", preset="publishd")
    with pytest.raises(BadInput, match=r"fedavg has no preset 'published'$"):
        algorithm("fedavg", preset="published")


# -- settings and trees ------------------------------------------------------------------------------------------------


def test_lists_that_do_not_fit_the_tree_are_refused_with_both_lengths() -> None:
    for field in ("team_steps", "gamma", "eta"):
        made = algorithm("permfl", **{field: [1, 2]})
        made.check(Tree.parse("2x2x5"))
        with pytest.raises(BadInput, match=rf"{field} has 2 entries but the tree \(4x10\) has 1 tier of teams"):
            made.check(Tree.parse("4x10"))
    with pytest.raises(BadInput, match="team_steps has 2 entries"):
        HierFAVG(team_steps=(1, 2)).check(Tree.parse("4x10"))


def test_permfl_refuses_a_tree_without_teams() -> None:
    with pytest.raises(BadInput, match=r"permfl needs teams .* \(40\)"):
        algorithm("permfl").check(Tree.parse("40"))


def test_eta_by_team_name_is_for_one_inner_tier() -> None:
    made = algorithm("permfl", eta={"team-0": 0.1})
    made.check(Tree.parse("1x5"))
    with pytest.raises(BadInput, match="one tier of teams"):
        made.check(Tree.parse("2x2x5"))


def test_tiers_limit_the_trees_of_an_algorithm() -> None:
    class ThreeOnly(FedAvg):
        tiers = (3,)

    ThreeOnly().check(Tree.parse("4x10"))
    with pytest.raises(BadInput, match=r"fedavg is defined on trees of 3 tiers; this one, 2x2x5, has 4"):
        ThreeOnly().check(Tree.parse("2x2x5"))


def test_nearest_suggests_a_close_word_or_lists_all() -> None:
    assert nearest("alhpa", ["beta", "alpha"]) == "; did you mean 'alpha'?"
    assert nearest("zzz", ["beta", "alpha"]) == "; there is alpha, beta"
