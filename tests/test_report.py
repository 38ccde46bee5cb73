"""Tables, sentences and plots say what the numbers say."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from matplotlib.image import imread
from rich.console import Console
from typer.testing import CliRunner

from palmette.cli.app import app
from palmette.report import words
from palmette.report.numbers import Comparison, Method, backend, by_node, clearly_above, link_bytes
from palmette.report.plots import plot_comparisons
from palmette.report.tables import methods_table, next_command, run_report
from palmette.report.verdict import cost, safe_choice, tally, verdict
from palmette.runs import Result, execute, load, make_config
from palmette.runs.metrics import SCHEMA

DEVICES = [f"device-{number}" for number in range(4)]


def made_up(algorithm: str, folder: Path = Path("runs/x"), **models: list[float]) -> Result:
    """Make a result of four devices in two teams whose accuracies are given, first start then end."""
    rows: list[dict[str, Any]] = []
    for kind, values in models.items():
        about = {
            "model": kind,
            "when": "after",
            "on": "all",
            "metric": "accuracy",
            "weight": "samples",
            "statistic": "mean",
        }
        mean = sum(values) / len(values)
        for round_ in (0, 1):
            whole = {**about, "round": round_, "tier": 2, "node": "server"}
            rows.append({**whole, "value": mean * round_})
            rows.append({**whole, "weight": "devices", "value": mean * round_})
            rows.append({**whole, "weight": "devices", "statistic": "worst-decile", "value": min(values)})
            for name, value in zip(DEVICES, values, strict=True):
                rows.append({**about, "round": round_, "tier": 0, "node": name, "value": value * round_})
    result = object.__new__(Result)
    result.folder = folder
    result.config = make_config({"algorithm": algorithm, "rounds": 1})
    result.metrics = pa.Table.from_pylist(rows, schema=SCHEMA)
    flat = algorithm in ("fedavg", "local")
    links = [{"round": 0, "tier": 2, "exchanges": 1, "bytes_up": 1_000_000 if flat else 500, "bytes_down": 500}]
    links += [] if flat else [{"round": 0, "tier": 1, "exchanges": 2, "bytes_up": 2000, "bytes_down": 3000}]
    result.traffic = pa.Table.from_pylist(links)
    result.outline = {}
    result.timings = {"seconds": {"rounds": 1.0}, "device_steps": 80, "device_steps_per_second": 80.0}
    return result


def method(label: str, algorithm: str, **models: list[float]) -> Method:
    """Make a method whose models have one accuracy for each seed."""
    seeds = len(next(iter(models.values())))
    results = [
        made_up(algorithm, **{kind: [values[seed]] * 4 for kind, values in models.items()}) for seed in range(seeds)
    ]
    why: Any = {kind: f"The reason of {label.strip()} ({kind})." for kind in models}
    return Method(label, tuple(results), why)


def comparison(*methods: Method, title: str = "all alike") -> Comparison:
    return Comparison(title, "Who they are.", methods)


PERMFL = method("PerMFL", "permfl", PM=[0.90, 0.91, 0.89], GM=[0.5, 0.51, 0.49])
FEDAVG = method("FedAvg", "fedavg", GM=[0.7, 0.7, 0.71])
TUNED = method("  + fine-tuning", "fedavg", PM=[0.80, 0.81, 0.79])
NEAR = method("Teams alone", "hierfavg", TM=[0.89, 0.92, 0.88])


def text_of(*what: Any, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(*what)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width
    return text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (10_400, "10.4 kB"),
        (104_000, "104 kB"),
        (999_999, "1.00 MB"),
        (2_080_000, "2.08 MB"),
        (31_200_000, "31.2 MB"),
        (10**19, "10000 PB"),
    ],
)
def test_bytes_are_written_with_three_digits(count: int, text: str) -> None:
    assert words.size(count) == text


def test_the_verdict_names_the_best_the_next_and_the_reason() -> None:
    told = verdict(comparison(FEDAVG, TUNED, PERMFL))
    assert told == (
        "Best are the personal models of PerMFL, with 90.0 % of the test samples right, 10.0 points above "
        "FedAvg + fine-tuning PM. The reason of PerMFL (PM)."
    )


def test_the_verdict_says_so_when_one_model_for_everybody_won() -> None:
    told = verdict(comparison(method("FedAvg", "fedavg", GM=[0.99, 0.98, 0.985]), PERMFL))
    assert told.startswith(
        "Best is the global model of FedAvg, with 98.5 % of the test samples right, 8.5 points above"
    )


def test_the_verdict_calls_no_win_what_the_seeds_leave_open_and_says_who_sends_least() -> None:
    flat = method("FedAvg", "fedavg", GM=[0.89, 0.93, 0.90])
    told = verdict(comparison(flat, PERMFL, NEAR))
    assert told.startswith("Best is the global model of FedAvg")
    assert "not clearly worse: PerMFL PM, Teams alone TM." in told
    assert "Of the best, PerMFL PM sends least to the server: 1.00 kB instead of 1.00 MB." in told
    assert "above" not in told


def test_the_safe_choice_is_by_the_worst_population() -> None:
    one = comparison(
        method("A", "fedavg", GM=[0.9, 0.9]), method("B", "local", PM=[0.5, 0.5]), method("C", "permfl", PM=[0.8, 0.8])
    )
    other = comparison(
        method("A", "fedavg", GM=[0.2, 0.2]),
        method("B", "local", PM=[0.9, 0.9]),
        method("C", "permfl", PM=[0.88, 0.88]),
    )
    told = safe_choice([one, other])
    assert told == (
        "Never far behind the best on any of the 2 populations: C PM (10.0 points behind at most), B PM (40.0 points behind "
        "at most), A GM (70.0 points behind at most)."
    )
    more = comparison(*one.methods, method("D", "local", PM=[0.1, 0.1]))
    assert safe_choice([more]).endswith("All others fall 80.0 points or more behind somewhere.")


def test_the_tally_counts_ties_and_clear_wins_apart() -> None:
    won = comparison(FEDAVG, TUNED, PERMFL)
    tied = comparison(FEDAVG, TUNED, PERMFL, NEAR)
    assert tally([won, tied], "PerMFL") == (
        "PerMFL is among the best on 2 of the 2 populations, and clearly ahead of all others on 1."
    )
    assert tally([won, tied], "FedAvg") == (
        "FedAvg is among the best on 0 of the 2 populations, and clearly ahead of all others on none."
    )


def test_what_was_sent_to_the_server_is_told_for_every_method_once() -> None:
    told = cost([comparison(FEDAVG, TUNED, PERMFL), comparison(FEDAVG, TUNED, PERMFL)])
    assert told.endswith("at most: FedAvg 1.00 MB, PerMFL 1.00 kB.")


def test_a_difference_counts_when_it_is_half_a_point_and_larger_than_the_luck_of_the_seeds() -> None:
    assert clearly_above([0.61, 0.72, 0.53], [0.60, 0.71, 0.52])
    assert not clearly_above([0.60, 0.71, 0.52], [0.61, 0.72, 0.53])
    assert not clearly_above([0.604, 0.714, 0.524], [0.60, 0.71, 0.52])  # too small
    assert not clearly_above([0.70, 0.71, 0.519], [0.60, 0.61, 0.52])  # too uneven
    assert not clearly_above([0.62, 0.635, 0.61], [0.60, 0.60, 0.60])  # t = 3.0, where three seeds ask for 4.3
    assert clearly_above([0.62, 0.635, 0.61] * 2, [0.60, 0.60, 0.60] * 2)  # six of them ask for 2.6
    assert not clearly_above([0.9], [0.1])  # one seed proves nothing


def test_no_model_is_called_as_good_that_is_below_one_that_is_not() -> None:
    best = method("A", "fedavg", GM=[0.90, 0.90, 0.90])
    worse = method("B", "fedavg", GM=[0.87, 0.87, 0.87])
    uneven = method("C", "fedavg", GM=[0.91, 0.80, 0.82])  # ahead on one seed, far behind on the others
    assert [entry.name for entry in comparison(best, uneven).level] == ["A", "C"]
    assert [entry.name for entry in comparison(best, worse, uneven).level] == ["A"]


def test_the_tables_and_the_plot_know_deeper_tiers(tmp_path: Path) -> None:
    deep = comparison(method("PerMFL", "permfl", PM=[0.90, 0.91], TM2=[0.97, 0.96]))
    assert "the tier 2 models of PerMFL, with 96.5 %" in verdict(deep)
    assert "TM2" in text_of(methods_table([deep]))
    assert plot_comparisons([deep], tmp_path / "plot.png", "title").exists()


def test_links_below_the_teams_and_to_the_server_are_counted_apart() -> None:
    assert link_bytes(PERMFL.results[0]) == (5000, 1000)
    assert link_bytes(TUNED.results[0]) == (0, 1_000_500)


def test_the_table_of_methods_has_a_line_per_model_and_stars_what_is_not_clearly_behind() -> None:
    both = [comparison(FEDAVG, TUNED, PERMFL, NEAR), comparison(FEDAVG, TUNED, PERMFL, NEAR, title="teams apart")]
    lines = [line.rstrip() for line in text_of(methods_table(both)).splitlines()]
    assert sum(" GM " in line for line in lines) == 2
    (permfl,) = (line for line in lines if line.startswith("PerMFL"))
    assert permfl.split() == ["PerMFL", "PM", "90.0±1.0*", "90.0±1.0*"]
    (tuned,) = (line for line in lines if line.startswith("  + fine-tuning"))
    assert tuned.split()[-1] == "80.0±1.0"
    assert sum("*" in line for line in lines) == 2


def test_the_table_of_methods_leaves_the_spread_out_where_it_does_not_fit() -> None:
    four = [comparison(FEDAVG, PERMFL, title=title) for title in ("all alike", "teams apart", "related teams", "own")]
    wide, narrow = text_of(methods_table(four, width=70)), text_of(methods_table(four, width=60), width=60)
    assert "90.0±1.0*" in wide
    assert "90.0*" in narrow
    assert "±" not in narrow
    assert "…" not in wide + narrow


def test_plots_are_written_whole_and_leave_no_part_behind(tmp_path: Path) -> None:
    path = plot_comparisons([comparison(FEDAVG, TUNED, PERMFL, NEAR)] * 4, tmp_path / "plot.png", "title")
    height, width, _ = imread(path).shape
    assert width > height > 400
    assert [item.name for item in tmp_path.iterdir()] == ["plot.png"]


def test_a_real_run_is_reported_with_its_backend_and_teams(tmp_path: Path) -> None:
    values = {"algorithm": "hierfavg", "tree": "15x2", "rounds": 1, "settings": {"local_steps": 1, "team_steps": 1}}
    result = execute(make_config(values), tmp_path / "run")
    found = backend(result)
    assert found is not None
    assert found[0] in ("native", "fused")
    assert len(by_node(result, "TM", 1)) == 15
    text = text_of(run_report(result, teams=True))
    assert "and 3 more" in text
    assert found[0] in text
    assert "palmette run fedavg" in text.replace("\n", " ")


@pytest.mark.parametrize(
    ("values", "steps", "told"),
    [
        # 4 devices of 600 steps each: 30 rounds of 20
        ({"algorithm": "permfl"}, 2400, "fedavg --config runs/x/config.toml --rounds 30"),
        (
            {"algorithm": "permfl", "settings": {"alpha": 0.3, "local_steps": 10, "batch_size": "full"}},
            2400,
            "fedavg --config runs/x/config.toml --rounds 60 --set alpha=0.3 --set local_steps=10 --set batch_size=full",
        ),
        # by device, which cannot be typed: left at its default
        (
            {"algorithm": "permfl", "settings": {"alpha": {"device-0": 0.3}}},
            80,
            "fedavg --config runs/x/config.toml --rounds 1",
        ),
        # 50 rounds are 5 of 10; 7 rounds are 1 of 7, 11 only 11 of 1
        ({"algorithm": "fedavg"}, 4000, "permfl --config runs/x/config.toml --rounds 5"),
        ({"algorithm": "fedavg"}, 560, "permfl --config runs/x/config.toml --rounds 1 --set team_steps=7"),
        ({"algorithm": "fedavg"}, 880, "permfl --config runs/x/config.toml --rounds 11 --set team_steps=1"),
    ],
)  # fmt: skip
def test_the_next_command_gives_another_method_as_many_steps(values: dict[str, Any], steps: int, told: str) -> None:
    result = made_up("permfl", PM=[0.5] * 4)
    result.config = make_config({"rounds": 1, **values})
    result.timings["device_steps"] = steps
    assert next_command(result) == f"palmette run {told}"


def test_the_next_command_of_a_real_run_takes_as_many_device_steps(tmp_path: Path) -> None:
    settings = {"team_steps": 3, "local_steps": 4, "alpha": 0.1}
    first = execute(make_config({"algorithm": "permfl", "rounds": 2, "settings": settings}), tmp_path / "one")
    command = next_command(first)
    assert command is not None
    done = CliRunner().invoke(app, [*shlex.split(command)[1:], "--out", str(tmp_path / "two"), "--quiet"])
    assert done.exit_code == 0, done.output
    second = load(tmp_path / "two")
    assert second.config.algorithm == "fedavg"
    assert second.timings["device_steps"] == first.timings["device_steps"]
    assert second.config.settings["alpha"] == 0.1


@pytest.mark.parametrize(
    "more", [{"given": {"data": {"object": "palmette.Population"}}}, {"participation": {"teams": 0.5}}]
)
def test_no_next_command_is_told_where_it_would_not_be_fair_or_possible(more: dict[str, Any]) -> None:
    result = made_up("permfl", PM=[0.5] * 4)
    result.config = make_config({"algorithm": "permfl", "rounds": 1, **more})
    assert next_command(result) is None
