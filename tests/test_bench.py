import dataclasses
import io
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from palmette.bench import ENGINES, WORKLOADS, Timing, Workload, benchmark, in_jax
from palmette.bench import peer as peer_module
from palmette.bench.engines import Lane, lanes
from palmette.bench.figures import FIGURES, figures
from palmette.bench.jobs import PARTS, Job, jobs
from palmette.bench.limit import _multiplications, core, products, sgemm
from palmette.bench.markdown import markdown
from palmette.bench.measure import measure, paired, rows, turns
from palmette.bench.run import Benchmark
from palmette.bench.scaling import CROWDS, Crowd, scaling
from palmette.bench.show import plot, report
from palmette.bench.workloads import Case, pick
from palmette.cli.app import app
from palmette.errors import BadInput, PalmetteError

TINY = Workload(
    "tiny", "dnn", (6,), {"hidden": (4,)}, tree="2x3", batch=3, local_steps=2, team_steps=2, samples=8, tests=2
)
FAST = Timing(repeats=2, seconds=0.0)
NAMES = ("workload", "engine", "threads", "device_steps_per_second", "ratio_to_limit")


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def made() -> Benchmark:
    return benchmark([TINY], threads=[2], timing=FAST)


def test_every_engine_has_a_row_with_positive_speed_and_ratio(made: Benchmark) -> None:
    expected = {name for name, engine in ENGINES.items() if not engine.missing()}
    assert {row["engine"] for row in made.rows} == expected
    for row in made.rows:
        assert set(NAMES) <= row.keys()
        assert row["device_steps_per_second"] > 0
        assert row["ratio_to_limit"] > 0
        assert 0 < row["low"] <= row["device_steps_per_second"] <= row["high"]


def test_only_the_simulator_runs_at_more_threads_and_one_is_always_among_them(made: Benchmark) -> None:
    at = {(row["engine"], row["threads"]) for row in made.rows}
    assert {threads for engine, threads in at if engine == "simulator"} == {1, 2}
    assert {threads for engine, threads in at if engine != "simulator"} == {1}
    ups = {(row["engine"], row["threads"]): row["speed_up"] for row in made.rows}
    assert ups["simulator", 2] > 0
    assert ups["simulator", 1] is None


def test_overhead_is_what_the_simulator_adds_to_the_learner(made: Benchmark) -> None:
    overheads = {(row["engine"], row["threads"]): row["overhead"] for row in made.rows}
    assert overheads["simulator", 1] > 0
    assert [key for key, value in overheads.items() if value is not None] == [("simulator", 1)]


@pytest.mark.parametrize("name", [name for name, engine in ENGINES.items() if not engine.missing()])
def test_every_engine_takes_the_steps_of_its_workload(name: str) -> None:
    unit = ENGINES[name].make(Case(TINY, Clock()), 1).unit
    if name in ("core", "sgemm"):
        assert unit() == unit() > 0
    else:
        assert unit() == unit() == 6 * 2 * (2 if name == "simulator" else 1)


def test_a_core_s_limits_count_the_multiplications_of_all_products() -> None:
    # Forward and gradient of both layers, and what goes back from the second to the first: of 3 samples, for 6 x 2 steps.
    assert _multiplications(Case(TINY, Clock())) == 12 * 3 * (2 * 6 * 4 + 3 * 4 * 10)
    large = Case(WORKLOADS["dnn 784-100-10"], Clock())
    assert sgemm(large)() == pytest.approx(800, rel=0.1)  # nearly the steps of an exchange
    if not ENGINES["core"].missing():
        assert core(large)() == pytest.approx(800, rel=0.01)


def test_engines_that_do_not_fit_a_workload_are_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_jax, "find_spec", lambda name: True)
    monkeypatch.setattr(in_jax, "by_hand", lambda case: lambda: 1)
    images = replace(TINY, name="images", model="cnn", shape=(1, 8, 8), options={})
    lanes_, notes = lanes(Case(images, Clock()), ["jax", "native", "plain"], [1])
    assert [lane.engine for lane in lanes_] == ["plain"]
    assert "images has no row of JAX" in " ".join(notes)
    assert "native" in " ".join(notes)
    monkeypatch.setattr(in_jax, "find_spec", lambda name: None)
    assert lanes(Case(TINY, Clock()), ["fedjax"], [1]) == ([], [in_jax.MISSING.format("fedjax")])


def test_an_engine_that_is_not_installed_is_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "installed", lambda: False)
    result = benchmark([TINY], ["limit", "pfl"], timing=FAST)
    assert [row["engine"] for row in result.rows] == ["limit"]
    assert "make bench" in result.notes[0]


CHAINS = ["mclr 784-10", "dnn 784-100-10", "mclr 60-10", "dnn 60-20-10", "cnn 32-64"]


def test_the_issue_s_workloads_are_there_with_their_models() -> None:
    assert [name for name, workload in WORKLOADS.items() if workload.chain] == CHAINS
    others = [name for name in WORKLOADS if name not in CHAINS]
    assert others == ["lstm 16-32", "lstm 8-128-128", "resnet 8", "conv1d 8-64-64", "transformer 64x2"]
    for workload in WORKLOADS.values():
        # pfl-research stops at the end of a device's samples, so one pass must hold all steps.
        assert workload.samples >= workload.batch * workload.local_steps
        assert workload.tree == "4x10" or workload.name in others


def test_models_that_are_no_chains_are_measured_without_what_is_for_chains() -> None:
    small = dataclasses.replace(WORKLOADS["transformer 64x2"], tree="1x2", batch=2, samples=8, tests=2)
    chains = ["core", "sgemm", "limit", "limit-chunked", "fused"]
    made = benchmark([small], [*chains, "native", "simulator", "plain"], threads=[1], timing=FAST)
    assert {row["engine"] for row in made.rows} == {"simulator", "plain"}
    told = [note for note in made.notes if "chains" in note]
    wanted = [f"{name} is for chains of dense layers and convolutions alone" for name in chains]
    assert told == [text for text in wanted if text in told]
    assert set(wanted) - set(told) <= {wanted[0]}, "only the core's own rate needs the kernel"


def test_the_limit_has_the_products_of_all_layers() -> None:
    dnn, cnn = (Case(WORKLOADS[name], Clock()).task.module for name in ("dnn 784-100-10", "cnn 32-64"))
    with torch.no_grad():
        assert products(dnn, torch.zeros(20, 784)) == [(20, 784, 100), (20, 100, 10)]
        found = products(cnn, torch.zeros(20, 1, 28, 28))
    assert found == [(15680, 9, 32), (3920, 288, 64), (20, 3136, 128), (20, 128, 10)]
    with pytest.raises(BadInput, match="chains of layers"):
        products(torch.nn.Linear(2, 2), torch.zeros(1, 2))


def test_names_match_without_regard_to_dashes_and_case() -> None:
    assert pick("workload", ["Mclr-60-10", "cnn_32-64"], WORKLOADS) == [WORKLOADS["mclr 60-10"], WORKLOADS["cnn 32-64"]]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"workloads": ["mclr-784"]}, "unknown workload 'mclr-784'; did you mean 'mclr 784-10'"),
        ({"engines": ["fusd"]}, "unknown engine 'fusd'; did you mean 'fused'"),
        ({"threads": [0]}, "threads must be at least 1, not 0"),
        ({"timing": Timing(repeats=0)}, "repeats must be at least 1, not 0"),
        ({"clock": "sun"}, "clock must be 'wall' or 'cpu', not 'sun'"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(options: dict, text: str) -> None:
    with pytest.raises(BadInput, match=text):
        benchmark(**options)


def test_engines_take_turns_and_each_repeat_starts_one_later() -> None:
    assert [turns(3, repeat) for repeat in range(4)] == [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]
    calls: list[str] = []
    clock = Clock()

    def unit(name: str) -> int:
        calls.append(name)
        clock.now += 1.0
        return 5

    lanes = [Lane(name, 1, lambda name=name: unit(name)) for name in "abc"]
    trials = measure(lanes, Timing(repeats=3, seconds=0.5), clock)
    assert "".join(calls) == "aabbcc" + "abc" + "bca" + "cab"
    assert all(trial.rate == 5 for own in trials for trial in own)


def test_short_units_are_repeated_until_a_turn_is_long_enough() -> None:
    clock, calls = Clock(), [0]

    def unit() -> int:
        calls[0] += 1
        clock.now += 0.1
        return 1

    measure([Lane("a", 1, unit)], Timing(repeats=1, seconds=0.35), clock)
    assert calls[0] == 2 + 4


def test_ratios_are_taken_within_a_repeat() -> None:
    # The machine halves its speed in the second repeat: medians of speeds move, paired ratios do not.
    assert paired([10.0, 5.0, 10.0], [20.0, 10.0, 20.0]) == 0.5
    assert paired(None, [1.0]) is None
    clock = Clock()
    pace = iter([1, 1, 1, 1, 1, 2, 8, 4])  # two warm-ups of each, then turns ab and ba

    def unit() -> int:
        clock.now += next(pace)
        return 8

    lanes = [Lane("limit", 1, unit), Lane("fused", 1, unit)]
    made = rows("w", lanes, measure(lanes, Timing(repeats=2, seconds=0.0), clock))
    assert made[1]["ratio_to_limit"] == 0.5
    assert made[1]["device_steps_per_second"] == (4 + 1) / 2


def test_figures_hold_promises_against_the_rows() -> None:
    base = dict.fromkeys(("ratio_to_limit", "fused_ratio", "simulator_ratio", "speed_up", "overhead"))
    row = {"workload": "mclr 784-10", "threads": 1, **base}
    found = figures(
        [
            row | {"engine": "fused", "ratio_to_limit": 0.9},  # the bare learner is not what is promised
            row | {"engine": "simulator", "ratio_to_limit": 0.6, "overhead": 0.05},
            row | {"engine": "jax", "simulator_ratio": 1.4},
            row | {"engine": "simulator", "threads": 2, "speed_up": 1.6},
        ]
    )
    assert [(entry["measured"], entry["met"]) for entry in found] == [
        (1.4, False),
        (0.6, False),
        (1.6, True),
        (0.05, True),
    ]
    large = {"devices": 100_000, "time_ratio_to_1000": 1.4}
    assert [(entry["measured"], entry["met"]) for entry in figures([], [large])] == [(1.4, False)]
    job = {"job": "cnn 32-64", "seconds": 20.0, "estimate": 2.0, "peak_bytes": 1.5e9}
    assert [(entry["measured"], entry["met"]) for entry in figures([], [], [job])] == [(0.1, False), (1.5, True)]
    assert {figure.workload for figure in FIGURES} <= WORKLOADS.keys()
    assert {figure.engine for figure in FIGURES} <= ENGINES.keys()


def test_no_promise_is_made_of_the_bare_learner() -> None:
    assert not {figure.field for figure in FIGURES} & {"fused_ratio"}
    assert "fused" not in {figure.engine for figure in FIGURES}


@pytest.mark.slow
def test_a_whole_job_is_the_sum_of_its_parts() -> None:
    made = benchmark([TINY], ["simulator"], [1], timing=Timing(1, 0.0), clock="cpu", whole=(Job("mclr 60-10", 1),))
    (row,) = made.jobs
    assert row["seconds"] == pytest.approx(sum(row[part] for part in PARTS))
    assert row["import"] > 0
    assert row["training"] > 0
    assert row["peak_bytes"] > 1e7
    screen = Console(width=80, record=True, file=io.StringIO())
    screen.print(report(made))
    text = screen.export_text()
    assert "whole job" in text
    assert "…" not in text
    assert "| whole job | rounds | seconds | import |" in markdown(made)


@pytest.mark.slow
def test_a_job_that_fails_says_why() -> None:
    with pytest.raises(PalmetteError, match="the job no such failed: KeyError: 'no such'"):
        jobs((Job("no such", 1),), 1, "wall")


def test_processor_time_measures_one_thread_only() -> None:
    result = benchmark([TINY], ["simulator"], [1, 2], timing=FAST, clock="cpu")
    assert [row["threads"] for row in result.rows] == [1]
    assert "processor time" in result.notes[0]


def test_scaling_gives_a_row_per_population_and_bounds_who_takes_part() -> None:
    crowds = (Crowd(2, 3, 3), Crowd(10, 100, 2))
    found = scaling(crowds, FAST, Clock(), team_steps=1)
    assert [(row["devices"], row["participants"]) for row in found] == [(6, 6), (1000, 20)]
    assert found[1]["time_ratio_to_1000"] == 1
    assert [crowd.devices for crowd in CROWDS] == [40, 400, 1_000, 4_000, 100_000]
    assert max(crowd.participants for crowd in CROWDS) == 2_000


def test_tables_fit_eighty_columns(made: Benchmark) -> None:
    screen = Console(width=80, record=True, file=io.StringIO())
    screen.print(report(made))
    text = screen.export_text()
    assert "fused" in text
    assert "…" not in text


def test_markdown_has_a_table_line_for_every_engine(made: Benchmark) -> None:
    text = markdown(made)
    assert text.count("\n| simulator, 2 threads |") == 3  # its speed, its ratio to the limit and to one thread
    assert f"torch {torch.__version__}" in text


def test_the_plot_is_written_whole_or_not_at_all(made: Benchmark, tmp_path) -> None:
    path = plot(made, tmp_path / "bench.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [entry.name for entry in tmp_path.iterdir()] == ["bench.png"]
    with pytest.raises(PalmetteError, match="cannot write"):
        plot(made, tmp_path / "none" / "bench.png")


def test_the_command_ends_with_one_line_of_json(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setitem(WORKLOADS, "tiny", TINY)
    options = ["--workload", "tiny", "--engine", "limit", "--engine", "fused", "--repeats", "1", "--quick", "--json"]
    files = ["--plot", str(tmp_path / "bench.png"), "--markdown", str(tmp_path / "bench.md")]
    result = CliRunner().invoke(app, ["bench", *options, *files])
    assert result.exit_code == 0, result.output
    last = json.loads(result.stdout.splitlines()[-1])
    assert [row["engine"] for row in last["rows"]] == ["limit", "fused"]
    assert last["machine"]["torch"] == torch.__version__
    assert (tmp_path / "bench.png").exists()
    assert "| fused |" in (tmp_path / "bench.md").read_text()


def test_the_command_shows_a_table_and_refuses_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKLOADS, "tiny", TINY)
    shown = CliRunner().invoke(app, ["bench", "--workload", "tiny", "--engine", "fused", "--quick", "-q"])
    assert shown.exit_code == 0
    assert "fused" in shown.stdout
    refused = CliRunner().invoke(app, ["bench", "--engine", "fusd"])
    assert refused.exit_code == 2
    assert "did you mean 'fused'" in refused.stderr
    refused = CliRunner().invoke(app, ["bench", "--plot", "/nowhere/bench.png"])
    assert refused.exit_code == 2
    assert "/nowhere" in refused.stderr


def test_the_command_loads_the_benchmark_only_when_it_runs() -> None:
    code = "import sys, palmette.cli.bench; sys.exit('palmette.bench' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
