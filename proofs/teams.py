"""Where PerMFL's teams begin: with the model above (as published) or with their own last model, on every population at hand.

Both get the same gradient steps on each device and the same number of tries on validation samples of seed 0; then three
seeds. Usage: ``python proofs/teams.py FOLDER [POPULATION ...]``. It prints the table of docs/measured/methods.md; runs that
are in the folder are not repeated.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import palmette as pm

STEPS = 1200  # gradient steps on each device
TRIES = 8
TEAM_STEPS = (4, 20)
READINGS = ("restart", "warm")

POPULATIONS: dict[str, dict[str, Any]] = {
    "digits, all alike": {"name": "digits", "partition": "iid"},
    "digits, turned by team": {"name": "digits", "shift": "rotate"},
    "digits, 2 classes each": {"name": "digits", "partition": "labels"},
    "crowd, 16 samples each": {"name": "crowd", "samples": 16, "test_samples": 200, "spread": 0.5},
    "Synthetic(0.5, 0.5)": {"name": "synthetic"},
    "MNIST, 2 classes each": {"name": "mnist"},
    "MNIST, 10 samples each": {"name": "mnist", "partition": "few", "samples": 10},
    "Fashion-MNIST, 2 classes each": {"name": "fashion-mnist"},
}


def study_of(folder: Path, data: dict[str, Any]) -> pm.Study:
    """Compare both readings at both numbers of team steps on a population."""
    arms = {f"{how}-{steps}": {"teams": how, "team_steps": steps} for steps in TEAM_STEPS for how in READINGS}
    return pm.compare(
        dict.fromkeys(arms, "permfl"),
        data,
        steps=STEPS,
        settings=arms,
        tune=TRIES,
        tune_on="first",
        tuned_only=True,
        local=False,
        out=folder,
    )


def table(studies: dict[str, pm.Study]) -> str:
    """Write what came out, PM / TM / GM in percent."""
    names = [f"{how}-{steps}-tuned" for steps in TEAM_STEPS for how in READINGS]
    titles = [f"K = {steps}, {how}" for steps in TEAM_STEPS for how in READINGS]
    lines = ["| PM / TM / GM, % | " + " | ".join(titles) + " |", "|---|" + "---|" * len(names)]
    for title, study in studies.items():
        found = {one["method"]: one["models"] for one in study.summary()["methods"]}
        cells = [" / ".join(f"{100 * found[name][kind]['mean']:.1f}" for kind in ("PM", "TM", "GM")) for name in names]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    place, wanted = Path(sys.argv[1]), sys.argv[2:] or list(POPULATIONS)
    print(table({title: study_of(place / title.replace(" ", "-"), POPULATIONS[title]) for title in wanted}))
