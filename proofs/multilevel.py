"""Async-L2GD on the multilevel tables beside the exact solve and a mixed model: the section Tables of reference/datasets.md.

Run by hand: ``make prove-multilevel``. The variance components are statsmodels', by restricted maximum likelihood, of the model
with an intercept alone. Tables with few teams have them as fixed effects, as a variance of two or three means is not known;
chem97 has its 131 teams as a further level.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pages import DOCS, write

import palmette as pm
from palmette.engines.simulate import Simulation
from palmette.population.validation import for_choosing
from palmette.theory.multilevel import Variances, as_sums, exact, pulls

Floats = NDArray[np.float64]
PAGE = DOCS / "reference/datasets.md"
NAMES = ("hsb82", "radon", "chem97")
NESTED = ("chem97",)  # whose teams are a level of their own; elsewhere they are fixed effects
ROUNDS = {"l2gd": 20, "al2sgd": 15}  # of 100 iterations each
RATIOS = tuple(10.0 ** np.arange(-3, 1.1, 0.5))  # variance of coefficients between devices over that of the noise


def rows_of(population: pm.Population, train: bool) -> tuple[Floats, Floats, Any]:
    """Return features, targets and devices of the training samples, or of the test samples."""
    owner = np.repeat(np.arange(population.devices), population.start.diff().numpy())
    first = np.arange(len(owner)) - population.start.numpy()[owner] < population.train.numpy()[owner]
    some = first if train else ~first
    return population.x.numpy()[some], population.y.numpy()[some], owner[some]


# -- the mixed model ---------------------------------------------------------------------------------------------------


def intercept_of(name: str) -> pm.Population:
    """Make the population with an intercept alone."""
    return pm.make_population(name, features="intercept")


@cache
def mixed(name: str) -> tuple[Variances, Floats, Floats, float]:
    """Fit statsmodels' mixed model to the training samples: variances, predictions of devices and teams, seconds."""
    import pandas as pd
    from statsmodels.regression.mixed_linear_model import MixedLM

    population, nested = intercept_of(name), name in NESTED
    _, y, owner = rows_of(population, True)
    team = population.tree.parents[0]
    table = pd.DataFrame({"y": y, "device": owner, "team": team[owner]})
    began = time.perf_counter()
    if nested:
        model = MixedLM.from_formula(
            "y ~ 1", table, groups="team", re_formula="1", vc_formula={"device": "0 + C(device)"}
        )
    else:
        model = MixedLM.from_formula("y ~ 0 + C(team)", table, groups="device")
    fit = model.fit(reml=True, method=["powell"])  # the gradient methods stop too early on hsb82, and say so
    seconds = time.perf_counter() - began
    effects, base = fit.random_effects, fit.fe_params.to_numpy()
    if not nested:
        own = np.array([effects[number].iloc[0] for number in range(population.devices)])
        found = Variances(math.inf, float(fit.cov_re.iloc[0, 0]), float(fit.scale))
        return found, base[team] + own, base, seconds
    teams = base[0] + np.array([effects[number].iloc[0] for number in range(population.tree.size(1))])
    # A team's effects are its own and then its devices', by number.
    devices = np.concatenate([teams[number] + effects[number].iloc[1:].to_numpy() for number in range(len(teams))])
    return Variances(float(fit.cov_re.iloc[0, 0]), float(fit.vcomp[0]), float(fit.scale)), devices, teams, seconds


def run(population: pm.Population, method: str, variances: Variances, **more: Any) -> tuple[Floats, Floats, float]:
    """Train on sums of squares: return the models of devices and teams, and the seconds."""
    sums = as_sums(population)
    chosen = pm.algorithm(method, **pulls(population, variances), **more)
    task = pm.make_task("linear", population.shape, None)
    simulation = Simulation(chosen, sums, task, rounds=ROUNDS[method], dtype=torch.float64, threads=1)
    began = time.process_time()
    for _ in range(ROUNDS[method]):
        simulation.step()
    devices, teams = simulation.device_models(torch.arange(population.devices)), simulation.team_models()
    assert teams is not None
    return devices.numpy(), teams.numpy(), time.process_time() - began


def intercepts(names: Sequence[str]) -> list[str]:
    """Compare the personal models of an intercept with the mixed model's predictions."""
    lines = [
        "| data | variance of teams, devices, noise | mixed model | exact solve | `al2sgd`, 1,500 iterations | `l2gd`, 2,000 "
        "iterations |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        population = intercept_of(name)
        variances, devices, teams, spent = mixed(name)
        ours = exact(population, variances)
        gap = max(np.abs(ours[0][:, 0] - devices).max(), np.abs(ours[1][:, 0] - teams).max())
        cells = [f"{variances.team:.3g}, {variances.device:.3g}, {variances.noise:.3g}", f"{spent:.1f} s", _size(gap)]
        for method, more in (("al2sgd", {}), ("l2gd", {"decrease": 0.5})):
            found, _, seconds = run(population, method, variances, **more)
            apart = found[:, 0] - devices
            cells.append(f"{_size(np.abs(apart).max())}, rms {_size(np.sqrt((apart**2).mean()))}, {seconds:.0f} s")
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return lines


def _size(value: float) -> str:
    return f"{value:.0e}" if value < 1e-3 else f"{value:.2g}"


# -- all features ------------------------------------------------------------------------------------------------------


def error(population: pm.Population, models: Floats) -> float:
    """Return the root mean squared error on all test samples."""
    x, y, owner = rows_of(population, False)
    return float(np.sqrt(np.square((x * models[owner]).sum(1) - y).mean()))


def alone(population: pm.Population) -> Floats:
    """Fit every device by itself; the shortest solution where it has fewer samples than features."""
    x, y, owner = rows_of(population, True)
    return np.stack([np.linalg.lstsq(x[owner == u], y[owner == u], rcond=None)[0] for u in range(population.devices)])


def chosen(population: pm.Population) -> Variances:
    """Choose on validation samples how far coefficients differ, as much between teams as between devices."""
    some = for_choosing(population, 0.25)
    tried = {ratio: error(some, exact(some, Variances(ratio, ratio, 1.0))[0]) for ratio in RATIOS}
    best = min(tried, key=lambda ratio: tried[ratio])
    return Variances(best, best, 1.0)


def regressions(names: Sequence[str]) -> list[str]:
    """Compare test errors of models with all default features, and the methods with the exact solve."""
    lines = [
        "| data | one model | each device alone | mixed model, intercept only | mixed model, all features | `l2gd`, 2,000 "
        "iterations | distance of `l2gd` to the exact solve, rms |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in names:
        population = pm.make_population(name)
        x, y, _ = rows_of(population, True)
        single = np.tile(np.linalg.lstsq(x, y, rcond=None)[0], (population.devices, 1))
        means = intercept_of(name)
        plain = exact(means, mixed(name)[0])[0]
        variances = chosen(population)
        best = exact(population, variances)[0]
        found, _, _ = run(population, "l2gd", variances, decrease=0.5)
        cells = [error(population, models) for models in (single, alone(population))]
        cells += [error(means, plain), error(population, best), error(population, found)]
        apart = np.sqrt(np.square(found - best).mean())
        lines.append(f"| `{name}` | " + " | ".join(f"{value:.3f}" for value in cells) + f" | {_size(apart)} |")
        print(lines[-1], flush=True)
    return lines


if __name__ == "__main__":
    wanted = sys.argv[1:] or NAMES
    one, other = intercepts(wanted), regressions(wanted)
    if not sys.argv[1:]:
        write(PAGE, "intercepts", "multilevel", one)
        write(PAGE, "regressions", "multilevel", other)
