"""Tables, sentences and plots say what the numbers say."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from matplotlib.image import imread
from rich.console import Console

from palmette.cli.demo import ENTRANTS, Entrant, run_demo
from palmette.protocol import ModelKind
from palmette.report import words
from palmette.report.numbers import Method, backend, by_node, clearly_differ, link_bytes
from palmette.report.plots import plot_methods
from palmette.report.tables import methods_table, next_command, run_report
from palmette.report.verdict import verdict
from palmette.runs import Result, RunConfig, execute, make_config
from palmette.runs.config import Given
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


def method(label: str, algorithm: str, main: ModelKind, **models: list[float]) -> Method:
    kinds: Any = tuple(models)
    return Method(label, made_up(algorithm, **models), kinds, main)


HERO = method("PerMFL", "permfl", "PM", PM=[0.90, 0.91, 0.89, 0.90], GM=[0.5] * 4)
TUNED = method("FedAvg + fine-tuning", "fedavg", "PM", PM=[0.80, 0.81, 0.79, 0.80])
PLAIN = method("FedAvg", "fedavg", "GM", GM=[0.7] * 4)
TEAMS = method("Teams alone", "hierfavg", "TM", TM=[0.95, 0.96, 0.94, 0.95])


def text_of(*what: Any) -> str:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    console.print(*what)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
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


def test_the_verdict_praises_the_method_when_it_won() -> None:
    won, cost = verdict([HERO, TUNED, PLAIN], HERO)
    assert won.startswith("For the devices PerMFL won: its devices' own models get 90.0 %")
    assert "10.0 points above the best method without teams, FedAvg + fine-tuning" in won
    assert "89.0 % for the worst tenth" in won
    assert "PerMFL moved 1.00 kB, against 1.00 MB for FedAvg + fine-tuning" in cost
    assert "for one model that serves everybody FedAvg is best: 70.0 %" in cost
    assert "PerMFL 50.0 %" in cost


def test_the_verdict_says_so_when_a_team_model_won() -> None:
    won, cost = verdict([HERO, TUNED, PLAIN, TEAMS], HERO)
    assert won.startswith("For the devices Teams alone won: its team models get 95.0 %")
    assert "PerMFL's own models reach 90.0 %, 5.0 points below that, and 10.0 points above" in won
    assert "Teams alone 1.00 kB" in cost


def test_the_verdict_and_the_tables_know_deeper_tiers(tmp_path: Path) -> None:
    deep = method("PerMFL", "permfl", "PM", PM=[0.90, 0.91, 0.89, 0.90], TM2=[0.97, 0.96, 0.97, 0.96])
    won, _ = verdict([deep, TUNED], deep)
    assert won.startswith("For the devices PerMFL won: its tier 2 models get 96.5 %")
    assert "TM2" in text_of(methods_table([deep, TUNED]))
    assert plot_methods([method("A", "permfl", "TM2", TM2=[0.9] * 4)], tmp_path / "plot.png", "title").exists()


def test_the_verdict_says_so_when_a_flat_method_won() -> None:
    best = method("FedAvg", "fedavg", "GM", GM=[0.99, 0.98, 0.99, 0.98])
    won, _ = verdict([HERO, best], HERO)
    assert won.startswith("For the devices FedAvg won: its global model gets")
    assert "above" not in won


def test_the_verdict_names_a_difference_that_could_be_luck() -> None:
    close = method("Other", "hierfavg", "TM", TM=[0.99, 0.80, 0.98, 0.85])
    assert "(which could be luck) below that" in verdict([HERO, close], HERO)[0]


def test_differences_are_judged_device_by_device() -> None:
    one = dict(zip(DEVICES, [0.5, 0.6, 0.7, 0.8], strict=True))
    assert clearly_differ({name: value + 0.01 for name, value in one.items()}, one)
    assert not clearly_differ(dict(zip(DEVICES, [0.6, 0.5, 0.8, 0.7], strict=True)), one)
    assert not clearly_differ({"device-0": 1.0}, {"device-0": 0.0})


def test_links_below_the_server_are_the_cheap_ones() -> None:
    assert link_bytes(HERO.result) == (5000, 1000)
    assert link_bytes(TUNED.result) == (0, 1_000_500)


def test_the_table_of_methods_has_a_line_per_model_and_fits() -> None:
    lines = text_of(methods_table([HERO, TUNED, PLAIN, TEAMS])).splitlines()
    assert sum(" GM " in line for line in lines) == 2
    (hero,) = (line for line in lines if line.startswith("PerMFL"))
    assert hero.split() == ["PerMFL", "PM", "0.900", "0.900", "0.900", "0.890", "5.00", "kB", "1.00", "kB", "1.0"]


def test_plots_are_written_whole_and_leave_no_part_behind(tmp_path: Path) -> None:
    path = plot_methods([HERO, TUNED, PLAIN, TEAMS], tmp_path / "plot.png", "title")
    height, width, _ = imread(path).shape
    assert width > height > 500
    assert [item.name for item in tmp_path.iterdir()] == ["plot.png"]


def test_a_real_run_is_reported_with_its_backend_and_teams(tmp_path: Path) -> None:
    values = {"algorithm": "hierfavg", "tree": "15x2", "rounds": 1, "settings": {"local_steps": 1, "team_steps": 1}}
    result = execute(make_config(values), tmp_path / "run")
    found = backend(result)
    assert found is not None
    assert found[0] == "fused"
    assert len(by_node(result, "TM", 1)) == 15
    text = text_of(run_report(result, teams=True))
    assert "and 3 more" in text
    assert "fused" in text
    assert "palmette run fedavg" in text.replace("\n", " ")


def test_no_next_command_is_told_for_samples_a_config_cannot_name() -> None:
    result = made_up("permfl", PM=[0.5] * 4)
    assert next_command(result) == "palmette run fedavg --config runs/x/config.toml"
    result.config = RunConfig(algorithm="permfl", given={"data": Given(object="palmette.Population")})
    assert next_command(result) is None


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Method], str, Path]:
    base = tmp_path_factory.mktemp("demo")
    console = Console(file=io.StringIO(), width=80, highlight=False)
    methods = run_demo(base, quiet=True, console=console)
    assert isinstance(console.file, io.StringIO)
    return {method.label: method for method in methods}, console.file.getvalue(), base


def test_in_the_demo_permfl_is_well_above_the_best_flat_model(demo: tuple[dict[str, Method], str, Path]) -> None:
    methods = demo[0]
    flat = [one.result.last(kind) for one in methods.values() if one.flat for kind in one.kinds]
    assert len(flat) == 3
    assert methods["PerMFL"].result.last("PM") >= max(flat) + 0.06


def test_the_demo_s_methods_met_the_same_samples(demo: tuple[dict[str, Method], str, Path]) -> None:
    configs = [one.result.config for one in demo[0].values()]
    assert len(configs) == 6
    assert len({(str(config.data), config.tree, config.seed, str(config.participation)) for config in configs}) == 1


def test_the_demo_prints_one_table_two_sentences_a_plot_and_folders(demo: tuple[dict[str, Method], str, Path]) -> None:
    _, text, base = demo
    flowing = " ".join(text.split())
    assert text.count("worst") >= 2
    assert all(entrant.label in text for entrant in ENTRANTS)
    assert "On the dear upper link" in flowing
    assert "demo.png" in text
    assert (base / "demo" / "demo.png").stat().st_size > 10_000
    assert {path.name for path in (base / "demo").iterdir() if path.is_dir()} == {one.folder for one in ENTRANTS}


def test_a_second_demo_takes_a_folder_of_its_own(tmp_path: Path) -> None:
    quick = [Entrant("A", "a", "local", 1, {"local_steps": 1}, ("PM",), "PM")]
    for _ in range(2):
        run_demo(tmp_path, entrants=quick, quiet=True, console=Console(file=io.StringIO()))
    assert {path.name for path in tmp_path.iterdir()} == {"demo", "demo-2"}
