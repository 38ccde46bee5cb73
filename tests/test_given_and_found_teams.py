"""Teams that are found by what the devices' data are like, and how they compare with given ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import palmette as pm
from palmette.errors import BadInput
from palmette.population import Population, agreement, find_teams, make_population, signatures, silhouette
from palmette.population.signatures import KINDS
from palmette.runs.reading import make_config, read_config
from palmette.tables import open_data


def rotated(**options: object) -> Population:
    return make_population("digits", tree="4x10", shift="rotate", **options)  # type: ignore[arg-type]


def reached(made: Population) -> dict[str, float]:
    """The agreement with the given teams of each way to find teams."""
    found = {by: find_teams(made, by=by).found for by in KINDS}
    return {by: one.agreement for by, one in found.items() if one is not None and one.agreement is not None}


def test_turned_images_are_found_by_gradients_and_updates_and_not_by_labels() -> None:
    found = reached(rotated(partition="iid"))
    assert found["gradients"] == found["updates"] == 1.0
    assert abs(found["labels"]) < 0.1
    found = reached(rotated())  # labels differ within teams too, by a Dirichlet distribution
    assert found["gradients"] > 0.9
    assert found["updates"] > 0.9
    assert abs(found["labels"]) < 0.1


def test_teams_without_a_label_in_common_are_found_by_all_three() -> None:
    made = make_population("digits", tree="4x10", partition="labels", teams="worst")
    assert reached(made) == {"labels": 1.0, "gradients": 1.0, "updates": 1.0}


def test_found_teams_hold_the_same_devices_with_the_same_samples() -> None:
    given = rotated(unseen=0.2)
    found = rotated(unseen=0.2, teams="found", found_by="labels", found_teams=3)
    assert found.tree.size(1) == 3
    assert sorted(found.tree.names(0)) == sorted(given.tree.names(0))
    assert found.unseen is not None
    assert given.unseen is not None
    for new, name in enumerate(found.tree.names(0)):
        old = given.tree.find(0, name)
        assert torch.equal(
            found.x[found.start[new] : found.start[new + 1]], given.x[given.start[old] : given.start[old + 1]]
        )
        assert found.train[new] == given.train[old]
        assert found.unseen[new] == given.unseen[old]
    assert found.found is not None
    assert found.found.unseen == 8
    assert "3 teams found by labels" in found.summary()


def test_test_samples_and_unseen_devices_have_no_say() -> None:
    made = rotated(unseen=0.2, partition="labels")
    assert made.unseen is not None
    changed_x, changed_y = made.x.clone(), made.y.clone()
    for device in range(made.devices):
        first = int(made.start[device] + (0 if made.unseen[device] else made.train[device]))
        changed_x[first : made.start[device + 1]] = 0
        changed_y[first : made.start[device + 1]] = 7
    other = Population(made.tree, changed_x, changed_y, made.start, made.train, made.affine, 10, unseen=made.unseen)
    for by in KINDS:
        one, two = find_teams(made, by=by), find_teams(other, by=by)
        teams = [
            {name: found.tree.name(1, found.tree.parents[0][node]) for node, name in enumerate(found.tree.names(0))}
            for found in (one, two)
        ]
        for device in np.flatnonzero(~made.unseen.numpy()).tolist():
            name = made.tree.name(0, device)
            assert teams[0][name] == teams[1][name]


def test_an_unseen_device_goes_to_the_team_of_the_nearest_centre() -> None:
    made = rotated(partition="iid", unseen=0.2)
    found = find_teams(made, by="updates")
    team = found.tree.parents[0]
    true = np.array([made.tree.parents[0][made.tree.find(0, name)] for name in found.tree.names(0)])
    assert agreement(true, team) == 1.0


def test_gradients_are_those_of_softmax_regression_at_zero() -> None:
    made = make_population("synthetic", tree="2x2")
    rows = signatures(made, "gradients")
    x = made.features(torch.arange(len(made.x)), torch.float64)
    parts = [slice(int(a), int(a + n)) for a, n in zip(made.start, made.train, strict=False)]
    centre = torch.stack([x[part].mean(0) for part in parts]).mean(0)
    for device, part in enumerate(parts):
        inputs = torch.cat([x[part] - centre, torch.ones(len(x[part]), 1)], 1)
        weights = torch.zeros(61, 10, dtype=torch.float64, requires_grad=True)
        torch.nn.functional.cross_entropy(inputs @ weights, made.y[part]).backward()
        expected = -weights.grad.reshape(-1) / weights.grad.norm()  # type: ignore[union-attr]
        assert torch.allclose(torch.from_numpy(rows[device]).double(), expected, atol=1e-6)


def test_regression_and_tokens_have_signatures_too() -> None:
    random = np.random.default_rng(0)
    device = np.repeat(np.arange(12), 20)
    x = random.normal(size=(240, 3))
    y = x @ np.array([1.0, 0.0, 0.0]) * np.where(device % 2 == 0, 1, -1)
    straight = Population.from_arrays(x, y, device=device, tree="2x6")
    assert find_teams(straight).found.agreement < 0.1  # type: ignore[union-attr,operator]
    assert find_teams(straight).found.silhouette > 0.8  # type: ignore[union-attr,operator]
    with pytest.raises(BadInput, match="needs classes, and these are targets of a regression"):
        find_teams(straight, by="labels")
    words = random.integers(0, 1000, (240, 5)) * 2 + (device % 2)[:, None]
    talk = Population.from_arrays(words, random.integers(0, 3000, 240), device=device, tree="2x6", classes=3000)
    assert signatures(talk, "gradients").shape == (12, 257 * 64)
    assert signatures(talk, "labels").shape == (12, 64)


def test_large_rows_are_projected_and_still_tell_teams_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    module = __import__("sys").modules["palmette.population.signatures"]
    monkeypatch.setattr(module, "_ROWS", 1000)
    made = rotated(partition="iid")
    assert signatures(made, "gradients").shape == (40, 256)
    assert find_teams(made, by="gradients").found.agreement == 1.0  # type: ignore[union-attr]


def test_scores_know_separate_from_mixed_teams() -> None:
    rows = np.repeat(np.eye(4, dtype=np.float32), 5, axis=0) + np.random.default_rng(0).normal(0, 0.01, (20, 4))
    team = np.repeat(np.arange(4), 5)
    assert silhouette(rows.astype(np.float32), team) > 0.9  # type: ignore[operator]
    assert silhouette(rows.astype(np.float32), np.tile(np.arange(4), 5)) < 0  # type: ignore[operator]
    assert silhouette(rows.astype(np.float32), np.zeros(20, dtype=np.int64)) is None
    assert agreement(team, (team + 1) % 4) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"found_by": "labels"}, "found_by = 'labels' is for teams = 'found'"),
        ({"teams": "found", "found_by": "label"}, "must be one of labels, gradients, updates; did you mean 'labels'"),
        ({"teams": "found", "found_teams": 0}, "found_teams = 0"),
        ({"teams": "found", "found_teams": 41}, "the 40 devices that train have only 40 different updates"),
        ({"teams": "found", "given_teams": "found"}, "given_teams = 'found' does not say"),
        ({"teams": "found", "tree": "2x2x10"}, "makes one tier of teams, and tree = 2x2x10 has 2"),
        ({"teams": "found", "tree": "40"}, "say how many to find, as in data.found_teams = 4"),
    ],
)
def test_what_cannot_be_found_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        make_population("digits", **{"tree": "4x10", **options})  # type: ignore[arg-type]


def test_devices_without_teams_are_put_into_as_many_as_wanted() -> None:
    made = make_population("digits", tree="40", teams="found", found_teams=5)
    assert made.tree.size(1) == 5
    assert made.found is not None
    assert made.found.agreement is None


def test_a_run_with_found_teams_is_run_again_and_resumed_to_the_same_bytes(tmp_path: Path) -> None:
    values = {
        "algorithm": "permfl",
        "rounds": 2,
        "tree": "4x3",
        "settings": {"team_steps": 2, "local_steps": 2},
        "server": "hq",
        "data": {
            "name": "digits",
            "teams": "found",
            "found_by": "labels",
            "given_teams": "worst",
            "partition": "labels",
        },
    }
    first = pm.runs.execute(make_config(values), tmp_path / "first")
    assert "4 teams found by labels, silhouette" in (tmp_path / "first" / "log.txt").read_text()
    config = make_config(read_config(tmp_path / "first" / "config.toml"))
    assert config.data.tree == "4x3"
    assert config.tree["found-0"] == [f"device-{number}" for number in range(3)]  # type: ignore[index,call-overload]
    second = pm.rerun(tmp_path / "first", tmp_path / "second", progress=False)
    assert second.config.model_copy(update={"versions": {}}) == first.config.model_copy(update={"versions": {}})
    longer = pm.runs.execute(make_config({**values, "rounds": 3}), tmp_path / "longer")
    resumed = pm.resume(tmp_path / "second", rounds=3, progress=False)
    for name in ("metrics.parquet", "devices.safetensors", "teams.safetensors"):
        assert (resumed.folder / name).read_bytes() == (longer.folder / name).read_bytes()


def test_a_table_of_ones_own_gets_found_teams(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = ["ward,a,y"]
    for ward in range(8):
        lines += [f"w{ward},{random.normal():.3f},{int(random.random() < 0.1 + 0.8 * (ward % 2))}" for _ in range(40)]
    (tmp_path / "visits.csv").write_text("\n".join(lines))
    made = open_data(
        str(tmp_path / "visits.csv"),
        device="ward",
        label="y",
        target="class",
        teams="found",
        found_teams=2,
        found_by="labels",
    )
    assert made.tree.names(0) == ["w0", "w2", "w4", "w6", "w1", "w3", "w5", "w7"]
    assert made.recipe is not None
    assert made.recipe.values["found_teams"] == 2
    again = open_data(**dict(made.recipe.values))
    assert torch.equal(again.x, made.x)
    with pytest.raises(BadInput, match=r"data\.teams = 'random' is no setting of a table"):
        open_data(str(tmp_path / "visits.csv"), device="ward", label="y", teams="random")
