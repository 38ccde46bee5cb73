"""Methods with coins take their constants from whoever answers first; where that is not everybody, the run says what to set."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import palmette as pm

CURVED = 30.0


def people() -> pm.Population:
    """Eight devices of which one has features that are thirty times as large as the others'."""
    generator = np.random.default_rng(0)
    xs = [generator.normal(size=(20, 3)) * (CURVED if device == 5 else 1.0) for device in range(8)]
    return pm.Population.from_arrays(xs, [x.sum(1) for x in xs], tree="2x4")


@pytest.mark.parametrize("name", ["l2gd", "al2sgd"])
def test_a_run_says_which_smoothness_fits_all_devices(name: str, tmp_path: Path) -> None:
    settings = {"iterations": 20, "batch_size": "full"} if name == "l2gd" else {"iterations": 20}
    given = {"rounds": 6, "participation": {"devices": 0.25}}
    with pytest.warns(UserWarning, match="not all do") as told, suppress(pm.Diverged):
        pm.run(name, people(), "linear", settings=settings, out=f"{tmp_path}/one", **given)
    value = float(re.findall(r"smoothness=([0-9.e+]+)", str(told[0].message))[0])
    assert value > CURVED**2 / 2
    result = pm.run(
        name, people(), "linear", settings={**settings, "smoothness": value}, out=f"{tmp_path}/two", **given
    )
    assert np.isfinite(result.last("PM", "loss"))


def test_with_everybody_there_is_nothing_to_say(tmp_path: Path) -> None:
    pm.run("l2gd", people(), "linear", rounds=1, settings={"iterations": 5}, out=f"{tmp_path}/one")
