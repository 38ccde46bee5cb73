"""Every method on four populations, the same gradient steps and as many tries for each: the tables of docs/measured/methods.md.

Run by hand: ``make prove-methods`` (``FOLDER=...`` keeps the runs, and goes on with those that are there). Settings are chosen
on validation samples of seed 0, 4 tries for each method, the given ones among them; then three seeds are trained on all
training samples. Methods that take far longer for a step are run after the others and timed apart. ``python proofs/methods.py
FOLDER samples`` draws how the gain over local training depends on the samples of a device, ``... speed`` measures device-steps
per second beside FedAvg's.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from pages import DOCS, write

import palmette as pm
from palmette.algorithms import FAMILIES, algorithm, kind_of
from palmette.engines.simulate import Simulation
from palmette.task import make_task

mpl.use("Agg")
import matplotlib.pyplot as plt

PAGE = DOCS / "measured/methods.md"
PICTURE = PAGE.parent / "images" / "methods.png"
TRIES, SEEDS, SHARE = 4, 3, 0.6
PARTS = ("fedper", "fedrep", "fedbabu", "lg-fedavg", "pfedgp")  # what needs a model of several layers
BESIDE = ("local", "fedavg", "permfl")  # what stands beside them
EPOCHS = ("fl", "perfl", "groupfl", "groupperfl")
SLOW = ("pfedbayes", "pfedgp", "demlearn")
OTHERWISE = {"pfedbayes": (0.0005, 0.05), "sfedhp": (0.003, 0.05)}  # Adam's steps, and steps against strong pulls
# One method of every kind, for the picture.
DRAWN = ("fedavg", "hierfavg", "permfl", "ditto", "pfedme", "apfl", "heurfedamp", "fedala")
FEW = (4, 10, 30, 100)


@dataclass(frozen=True)
class Case:
    """A population with what all methods are given on it.

    Attributes:
        title: What the page calls it.
        data: The data, as a config has it.
        steps: Gradient steps on each of the 40 devices.
        alpha: Learning rate of the first try.
        around: Where others are looked for.
        epochs: Local epochs that come to about 20 steps, for methods that count epochs.
        tune_epochs: Epochs of their fine-tuning.
    """

    title: str
    data: Mapping[str, Any]
    steps: int
    alpha: float
    around: tuple[float, float]
    epochs: float
    tune_epochs: float = 5


CASES = {
    "mnist": Case("MNIST, 2 classes on each device", {"name": "mnist"}, 1500, 0.02, (0.003, 0.1), 0.5),
    "few": Case(
        "MNIST, 10 training samples on each device",
        {"name": "mnist", "partition": "few", "samples": 10},
        *(800, 0.02, (0.003, 0.1), 20),
    ),
    "rotated": Case(
        "Rotated digits, 34 training samples on each device",
        {"name": "digits", "shift": "rotate"},
        *(1000, 0.2, (0.03, 1.0), 10),
    ),
    "synthetic": Case("Synthetic(0.5, 0.5)", {"name": "synthetic"}, 600, 0.05, (0.01, 0.5), 0.2, 0.3),
}
EVERY = tuple(kind.name for kinds in FAMILIES.values() for kind in kinds)
TEAMS = "fedavg-in-teams"  # FedAvg inside each team: hierfavg that never averages across teams
WHOLE = (*(name for name in EVERY if name not in PARTS), TEAMS)


def compared(folder: Path, case: Case, model: str, names: Sequence[str]) -> pm.Study:
    """Run what is not there yet of a study, and return it."""
    given: dict[str, Any] = {"alpha": case.alpha, "batch_size": 20}
    if "sfedhp" in names:
        given["sfedhp"] = {"alpha": min(case.alpha, 0.02)}  # its strong pulls allow no larger step to begin with
    epochs = {"local_epochs": case.epochs, "tune_epochs": case.tune_epochs}
    given |= {name: epochs for name in EPOCHS if name in names}
    if "pfedbayes" in names:
        given["pfedbayes"] = {"alpha": 0.01}
    if TEAMS in names:
        given[TEAMS] = {"global_every": 0, "team_steps": 5}
    return pm.compare(
        {name: "hierfavg" if name == TEAMS else name for name in names},
        dict(case.data),
        model,
        steps=case.steps,
        seeds=SEEDS,
        settings=given,
        tune=TRIES,
        tune_on="first",
        tuned_only=True,
        search={
            "alpha": case.around,
            **{f"{name}.alpha": around for name, around in OTHERWISE.items() if name in names},
        },
        against="local",
        evaluate_every=1_000_000,
        out=folder,
    )


def timed(folder: Path, case: Case, model: str, names: Sequence[str]) -> tuple[pm.Study, float, float]:
    """Run the quick methods, then the slow ones too; return the study and the seconds of both parts."""
    began = time.monotonic()
    study = compared(folder, case, model, [name for name in names if name not in SLOW])
    quick = time.monotonic() - began
    if set(names) & set(SLOW):
        study = compared(folder, case, model, names)
    return study, quick, time.monotonic() - began - quick


# -- tables ------------------------------------------------------------------------------------------------------------


def table(study: pm.Study) -> list[str]:
    """Write a study as a table, best personal models first."""
    lines = [
        "| method | PM | TM | GM | PM above local | devices worse than local | sent to and from a device | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows = []
    for one in study.summary()["methods"]:
        name, models = one["method"].removesuffix("-tuned"), one["models"]
        if not models:
            rows.append((-1.0, f"| `{name}` | diverged | | | | | | |"))
            continue
        cells = [_score(models.get(kind)) for kind in ("PM", "TM", "GM")]
        gap, hurt = one.get("difference"), one["hurt"].get("local")
        cells.append("" if gap is None else f"{_points(gap['mean'])} ({_points(gap['low'])} to {_points(gap['high'])})")
        cells.append("" if hurt is None else f"{100 * hurt:.0f} %")
        cells += [_bytes(one["links"]), f"{seconds_of(study, one['method']):.1f}"]
        missing = f", {len(one['missing'])} of {SEEDS} seeds diverged" if one["missing"] else ""
        rows.append((models["PM"]["mean"], f"| `{name}`{missing} | " + " | ".join(cells) + " |"))
    return lines + [line for _, line in sorted(rows, reverse=True)]


def seconds_of(study: pm.Study, name: str) -> float:
    """Return what training took, the mean over seeds, without evaluation."""
    arm = study.plan.arm(name)
    return statistics.mean(result.timings["seconds"]["rounds"] for _, _, result in study.results([arm]))


def _score(model: Mapping[str, Any] | None) -> str:
    return "-" if model is None else f"{100 * model['mean']:.1f} ± {100 * model['spread']:.1f}"


def _points(value: float) -> str:
    return f"{100 * value:+.1f}"


def _bytes(links: Iterable[Mapping[str, Any]]) -> str:
    """Return the bytes on the lowest link, both ways, for one of the 40 devices."""
    lowest = min(links, key=lambda one: one["tier"], default=None)
    if lowest is None or not lowest["bytes_up"]:
        return "nothing"
    kilobytes = (lowest["bytes_up"] + lowest["bytes_down"]) / 40 / 1e3
    return f"{kilobytes:,.0f} kB" if kilobytes < 1000 else f"{kilobytes / 1e3:,.1f} MB"


def tables(folder: Path, only: Sequence[str]) -> None:
    """Run all studies and write their tables."""
    place = folder / "minutes.json"
    for model, names in (("mclr", WHOLE), ("dnn", (*BESIDE, *PARTS))):
        for key, case in CASES.items():
            if only and f"{key}-{model}" not in only:
                continue
            part = case if model == "mclr" else replace(case, steps=case.steps // 2)
            study, *seconds = timed(folder / f"{key}-{model}", part, model, names)
            failed = [f"Diverged or refused: {', '.join(one['run'] for one in study.summary()['failed'])}."]
            write(
                PAGE,
                f"{key}-{model}",
                "methods",
                [*table(study), *(["", *failed] if study.summary()["failed"] else [])],
            )
            spent: dict[str, list[float]] = json.loads(place.read_text()) if place.exists() else {}
            before = spent.get(f"{case.title}, `{model}`", [0.0, 0.0])  # of a study that was stopped and went on
            spent[f"{case.title}, `{model}`"] = [a + b / 60 for a, b in zip(before, seconds, strict=True)]
            place.write_text(json.dumps(spent))
            print(f"{key}-{model}: {seconds[0] / 60:.1f} and {seconds[1] / 60:.1f} minutes", flush=True)
            lines = [f"| {title} | {quick:.1f} | {slow:.1f} |" for title, (quick, slow) in spent.items()]
            both = [
                f"| together | {sum(one[0] for one in spent.values()):.1f} | {sum(one[1] for one in spent.values()):.1f} |"
            ]
            write(
                PAGE, "time", "methods", ["| minutes | quick methods | slow methods |", "|---|---|---|", *lines, *both]
            )


# -- samples -----------------------------------------------------------------------------------------------------------


def samples(folder: Path) -> None:
    """Draw gain over local training, and the share of devices hurt, against the samples of a device."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    local = []
    for count in FEW:
        data = {"name": "mnist", "partition": "few", "samples": count}
        case = Case("", data, 300, 0.02, (0.003, 0.1), 1)
        study = compared(folder / f"samples-{count}", case, "mclr", ["local", *DRAWN])
        for one in study.summary()["methods"]:
            name = one["method"].removesuffix("-tuned")
            if name == "local":
                local.append((count, one["models"]["PM"]["mean"]))
            else:
                found.setdefault(name, []).append((count, one["difference"]["mean"], one["hurt"]["local"]))
    draw(found)
    lines = [
        "| training samples on each device | " + " | ".join(f"{count}" for count in FEW) + " |",
        "|---|" + "---|" * len(FEW),
    ]
    lines.append("| `local`, PM | " + " | ".join(f"{100 * value:.1f}" for _, value in local) + " |")
    for name, points in found.items():
        cells = [f"{_points(gain)}, {100 * hurt:.0f} %" for _, gain, hurt in points]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    write(PAGE, "samples", "methods", lines)


def draw(found: Mapping[str, Sequence[tuple[int, float, float]]]) -> None:
    """Draw two panels over the samples of a device."""
    figure, panels = plt.subplots(1, 2, figsize=(10, 4.2), constrained_layout=True)
    titles = ("gain over local training, points", "devices worse off than with local training, %")
    marks = "osD^vP*Xp<>h"
    for panel, title, place in zip(panels, titles, (1, 2), strict=True):
        for number, (name, points) in enumerate(found.items()):
            panel.plot(
                [one[0] for one in points],
                [100 * one[place] for one in points],
                **{"label": name, "marker": marks[number % len(marks)], "markersize": 5, "linewidth": 1.3},
                color=plt.get_cmap("tab10")(number % 10),
            )
        panel.set_xscale("log")
        panel.set_xticks(list(FEW), [str(count) for count in FEW])
        panel.minorticks_off()
        panel.set_xlabel("training samples on each device")
        panel.set_title(title, fontsize=10, loc="left")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].axhline(0, color="black", linewidth=0.8)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


# -- speed -------------------------------------------------------------------------------------------------------------


def speed() -> None:
    """Measure device-steps per processor second on `dnn` beside FedAvg's, taking turns; fails below the share promised."""
    population = pm.make_population("mnist", tree="4x10")
    task = make_task("dnn", population.shape, population.classes)
    slow = []
    lines = ["| method | device-steps per second, FedAvg's = 1 |", "|---|---|"]
    for name in EVERY:
        ratios = []
        for _ in range(1 if name in SLOW else 3):
            rates = [rate(one, population, task) for one in ("fedavg", name)]
            ratios.append(rates[1] / rates[0])
        share = statistics.median(ratios)
        lines.append(f"| `{name}` | {share:.2f} |")
        print(lines[-1], flush=True)
        if share < SHARE:
            slow.append(name)
    write(PAGE, "speed", "methods", lines)
    print(f"below {SHARE}: {', '.join(slow) or 'none'}")


def rate(name: str, population: pm.Population, task: Any, least: float = 0.5) -> float:
    """Return the device-steps per processor second of a method's rounds, after the first."""
    # A small step, so that nothing diverges; the l2gd family has none of this name.
    slowly = {"alpha": 0.01} if "alpha" in {one.name for one in fields(kind_of(name))} else {}  # type: ignore[arg-type]
    method = algorithm(name, batch_size=20, **slowly)
    torch.set_num_threads(1)
    simulation = Simulation(method, population, task, rounds=10_000, seed=0, threads=1)
    simulation.step()
    steps, began = simulation.device_steps, time.process_time()
    while time.process_time() - began < least:
        simulation.step()
    return (simulation.device_steps - steps) / (time.process_time() - began)


if __name__ == "__main__":
    place, words = Path(sys.argv[1]), sys.argv[2:]
    if words == ["samples"]:
        samples(place)
    elif words == ["speed"]:
        speed()
    else:
        tables(place, words)
