"""The multilevel tables: what they hold, what damaged files do, and the mixed model that personal models are equal to."""

from __future__ import annotations

import gzip
import hashlib
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import palmette as pm
from palmette.datasets import DATASETS, load
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput
from palmette.population.description import describe
from palmette.runs.folder import LOG
from palmette.theory.multilevel import Variances, as_sums, exact, pulls
from palmette.theory.objectives import objective_of

NAMES = ("hsb82", "chem97", "insteval", "radon")
# Devices with at least two rows, teams, rows, and the hash of the population with everything in its own unit.
KNOWN = {
    "hsb82": (160, 2, 7185, "b2193ff0aa7c88dd"),
    "chem97": (2248, 131, 30_860, "b3fefe0d166e48ca"),
    "insteval": (1128, 14, 73_421, "9159de6250762f6d"),
    "radon": (82, 3, 916, "7a956aff8c605e80"),
}


@pytest.fixture(scope="module")
def tables(data_folder: Path) -> Path:
    return data_folder / "tabular"


def digest(made: pm.Population) -> str:
    found = hashlib.sha256()
    for tensor in (made.x, made.y, made.start, made.train):
        found.update(tensor.numpy().tobytes())
    found.update(repr([made.tree.parents[0].tolist(), *map(made.tree.names, range(2))]).encode())
    return found.hexdigest()[:16]


@pytest.mark.parametrize("name", NAMES)
def test_populations_are_those_that_were_pinned(name: str, tables: Path) -> None:
    made = pm.make_population(name, folder=tables, standardise=False)
    assert (made.devices, made.tree.size(1), len(made.x), digest(made)) == KNOWN[name]
    assert made.classes is None
    assert made.y.is_floating_point()


def test_features_are_what_their_table_says(tables: Path) -> None:
    pool = load("hsb82", folder=tables, features="intercept,ses,cses,minrty,sx")
    assert np.array_equal(np.unique(pool.x[:, 0]), [1.0])
    assert np.array_equal(np.unique(pool.x[:, 3:]), [0.0, 1.0])
    np.testing.assert_allclose(pool.x[:, 1:3].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(pool.x[:, 1:3].std(0), 1, atol=1e-12)
    raw = load("hsb82", folder=tables, features=["ses", "meanses", "cses"], standardise=False)
    np.testing.assert_allclose(raw.x[:, 0] - raw.x[:, 1], raw.x[:, 2], atol=1e-9)  # cses is ses less the school's mean
    assert (raw.y.min(), raw.y.max()) == (-2.832, 24.993)
    assert raw.tree is not None
    assert raw.tree.names(1) == ["Catholic", "Public"]
    assert len(raw.tree.children(1, 0)) == 70
    # The first rows of the file are school 1224 in its order: girls and boys as they come.
    school = raw.tree.names(0).index("school-1224")
    assert raw.start is not None
    assert raw.y[raw.start[school] : raw.start[school] + 3].tolist() == [5.876, 19.708, 20.349]
    assert pool.x[raw.start[school] : raw.start[school] + 3, 4].tolist() == [1.0, 1.0, 0.0]


def test_devices_that_are_left_out_are_told(tables: Path, tmp_path: Path) -> None:
    told = "3 devices have fewer than 2 samples and are left out, 3 samples in all (data.least = 2)"
    made = pm.make_population("radon", folder=tables)
    assert made.notes == (told,)
    assert told in made.summary()
    made.save(tmp_path / "saved")
    assert pm.load_population(tmp_path / "saved").notes == (told,)
    result = pm.run("local", made, "linear", rounds=1, settings={"local_steps": 1}, out=tmp_path / "run")
    assert told in (result.folder / LOG).read_text()
    assert describe(made).as_dict()["notes"] == [told]
    with pytest.warns(UserWarning, match="no test samples"):
        assert pm.make_population("radon", folder=tables, least=1).notes == ()


def test_counties_are_in_the_third_of_their_uranium(tables: Path) -> None:
    pool = load("radon", folder=tables, features="uranium", standardise=False)
    assert pool.tree is not None
    assert pool.start is not None
    level = pool.x[pool.start[:-1], 0]
    thirds = [level[pool.tree.parents[0] == team] for team in range(3)]
    assert [len(third) for third in thirds] == [29, 28, 28]
    assert thirds[0].max() <= thirds[1].min() <= thirds[1].max() <= thirds[2].min()


def test_the_file_of_the_public_collection_is_read_alike(tables: Path, tmp_path: Path) -> None:
    rows = gzip.decompress((tables / "HLMdiag_radon.csv.gz").read_bytes()).decode().splitlines()
    # R writes names of rows and quotes; the collection had both forms of the first column.
    quoted = ['"","' + rows[0].replace(",", '","') + '"']
    for number, row in enumerate(rows[1:]):
        *numbers, name = row.split(",")
        quoted.append(f'"{number}",{",".join(numbers)},"{name}"')
    (tmp_path / "radon.csv").write_text("\n".join(quoted) + "\n")
    ours, theirs = load("radon", folder=tables), load("radon", folder=tmp_path)
    assert np.array_equal(ours.x, theirs.x)
    assert np.array_equal(ours.y, theirs.y)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[: len(data) // 2], "damaged"),
        (lambda data: b"", "damaged|no column"),
        (lambda data: b"hello", "damaged"),
        (lambda data: gzip.compress(gzip.decompress(data)[:-40]), "rows, and the public table has 919|has . cells"),
        (lambda data: gzip.compress(b"\n".join(gzip.decompress(data).split(b"\n")[:500])), "has 499 rows"),
        (lambda data: gzip.compress(gzip.decompress(data).replace(b"basement", b"cellar")), "no column 'basement'"),
        (lambda data: gzip.compress(gzip.decompress(data).replace(b"0.788", b"NA", 1)), "row 1 of column 'log.radon'"),
        (lambda data: gzip.compress(gzip.decompress(data).replace(b",0,-0.1", b",2,-0.1", 1)), "neither '0' nor '1'"),
        (lambda data: gzip.compress(gzip.decompress(data).replace(b",BECKER", b"", 1)), "row 57 has 4 cells"),
        (lambda data: gzip.compress(b"\xff" + gzip.decompress(data)), "damaged"),
    ],
)
def test_a_damaged_table_is_named_with_what_is_wrong(
    tables: Path, tmp_path: Path, damage: object, message: str
) -> None:
    path = tmp_path / "HLMdiag_radon.csv.gz"
    path.write_bytes(damage((tables / path.name).read_bytes()))  # type: ignore[operator]
    with pytest.raises(BadInput, match=f"{path.name}.*({message})"):
        load("radon", folder=tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_table_says_which_names_it_may_have(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\.csv or .*\.csv\.gz.*PALMETTE_DATA"):
        load(name, folder=tmp_path)
    entry = DATASETS[name]
    assert entry.natural
    assert all((entry.licence, entry.origin, entry.how, entry.files[0].url))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": "sess"}, "hsb82 has no column 'sess'; did you mean 'ses'"),
        ({"features": "ses,ses"}, "names a column twice"),
        ({"features": []}, "must name columns of hsb82: intercept, ses"),
        ({"features": 3}, "must name columns"),
        ({"standardise": "yes"}, "standardise must be true or false, not 'yes'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load("hsb82", **options)


# -- the mixed model ---------------------------------------------------------------------------------------------------


def simulation(name: str, of: pm.Population, variances: Variances, **settings: object) -> Simulation:
    method = pm.algorithm(name, **pulls(of, variances), **settings)
    task = pm.make_task("linear", of.shape, None)
    return Simulation(method, as_sums(of), task, rounds=20, dtype=torch.float64, threads=1)


def test_personal_models_are_the_predictions_of_a_mixed_model(tables: Path) -> None:
    pytest.importorskip(
        "statsmodels", reason="the mixed model that ours is held against is statsmodels'; make setup installs it"
    )
    import pandas as pd
    from statsmodels.regression.mixed_linear_model import MixedLM

    pool = load("hsb82", folder=tables, features="intercept")
    assert pool.tree is not None
    owner = np.repeat(np.arange(160), np.diff(pool.start))
    every = np.zeros(len(pool.y), dtype=bool)
    every[np.asarray(pool.start)[1:] - 1] = True  # the last row of every school is kept for testing
    of = pm.Population.from_arrays(pool.x, pool.y, tree=pool.tree, device=owner, test=every)
    used = pd.DataFrame({"y": pool.y, "school": owner, "sector": pool.tree.parents[0][owner]})[~every]
    fit = MixedLM.from_formula("y ~ 0 + C(sector)", used, groups="school").fit(method=["powell"])
    # Raudenbush and Bryk print 6.68 and 39.15 for the whole table.
    assert (float(fit.cov_re.iloc[0, 0]), fit.scale) == pytest.approx((6.68, 39.15), rel=0.02)
    variances = Variances(math.inf, float(fit.cov_re.iloc[0, 0]), fit.scale)
    devices, teams, _ = exact(of, variances)
    sector = fit.fe_params.to_numpy()
    theirs = sector[pool.tree.parents[0]] + [fit.random_effects[number].iloc[0] for number in range(160)]
    np.testing.assert_allclose(teams[:, 0], sector, atol=1e-10)
    np.testing.assert_allclose(devices[:, 0], theirs, atol=1e-10)
    running = simulation("al2sgd", of, variances)
    for _ in range(2):
        running.step()
    ours = running.device_models(torch.arange(160)).numpy()
    np.testing.assert_allclose(ours[:, 0], theirs, atol=0.02)


@pytest.mark.parametrize("variances", [Variances(3.0, 6.0, 40.0), Variances(math.inf, 1.0, 40.0)])
def test_the_exact_solve_minimises_what_l2gd_does(variances: Variances, tables: Path) -> None:
    of = pm.make_population("hsb82", folder=tables, per_team=6)
    devices = exact(of, variances)[0]
    wrong = exact(of, variances._replace(device=2 * variances.device))[0]
    running = simulation("l2gd", of, variances)
    slopes = [objective_of(running)(torch.from_numpy(rows))[1].abs().max() for rows in (devices, wrong)]
    assert slopes[0] < 1e-10
    assert slopes[1] > 1e-3
    for _ in range(2):
        running.step()
    far = np.abs(running.device_models(torch.arange(12)).numpy() - devices).max()
    assert far < 0.5 * np.abs(devices).max()


def test_means_of_unequal_devices_are_not_the_mixed_model(tables: Path) -> None:
    # Why `as_sums` is there: the same pulls on mean losses have another minimiser.
    of = pm.make_population("hsb82", folder=tables, features="intercept", per_team=6)
    variances = Variances(3.0, 6.0, 40.0)
    method = pm.algorithm("l2gd", **pulls(of, variances))
    plain = Simulation(method, of, pm.make_task("linear", of.shape, None), rounds=1, dtype=torch.float64)
    slope = objective_of(plain)(torch.from_numpy(exact(of, variances)[0]))[1]
    assert float(slope.abs().max()) > 1e-2


def test_what_is_no_mixed_model_is_refused() -> None:
    digits = pm.make_population("digits", tree="2x3")
    with pytest.raises(BadInput, match="only real features and targets"):
        as_sums(digits)
    with pytest.raises(BadInput, match="variances must be above 0"):
        pulls(digits, Variances(1.0, 0.0, 1.0))
    with pytest.raises(BadInput, match="teams between server and devices"):
        pulls(pm.make_population("digits", tree=4), Variances(1.0, 1.0, 1.0))
