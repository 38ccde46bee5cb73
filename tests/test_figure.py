"""Figures for papers: every kind of every run, with its numbers, or one line that says why not."""

from __future__ import annotations

import csv
import io
import math
import shlex
import shutil
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from typer.testing import CliRunner

import palmette as pm
from palmette.cli.app import app
from palmette.figures.lines import gather
from palmette.figures.make import made
from palmette.report import style, words
from palmette.report.numbers import by_node
from palmette.runs import Interrupted, Result, execute, make_config
from palmette.studies.statistics import difference, hurt
from palmette.studies.summary import of_devices, teams_of

pytestmark = pytest.mark.xdist_group("figure")  # they share runs
KINDS = ("convergence", "devices", "traffic", "time", "tree", "paired")
EDGE = {"preset": "edge"}
WILD = ["a$b$c", "under_score^2", "<b>&bold</b>", "x" * 90, "two\\$words", "plain"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small real runs and a study, which the tests share."""
    base = tmp_path_factory.mktemp("figures")
    people = pm.make_population("digits", tree="2x3", shift="rotate")
    for name, method, settings in (
        ("permfl", "permfl", {"team_steps": 2, "local_steps": 2}),
        ("fedavg", "fedavg", {"local_steps": 4}),
        ("local", "local", {"local_steps": 4}),
    ):
        pm.run(method, people, rounds=3, settings=settings, clock=EDGE, out=base / name)
    flat = pm.make_population("digits", tree=5)
    pm.run("fedavg", flat, rounds=2, settings={"local_steps": 2}, clock=EDGE, out=base / "flat")
    deep = pm.make_population("digits", tree="2x2x2")
    pm.run("permfl", deep, rounds=2, settings={"team_steps": 2, "local_steps": 2}, clock=EDGE, out=base / "deep")
    config = {"algorithm": "fedavg", "data": {"name": "digits"}, "tree": "2x3", "rounds": 2}
    execute(make_config(config), base / "timeless")
    pm.compare(
        ["permfl", "fedavg"],
        "digits",
        tree="2x3",
        seeds=2,
        rounds=2,
        settings={"local_steps": 2},
        clock=EDGE,
        jobs=1,
        out=base / "study",
    )
    return base


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose nodes have names that are no letters and digits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    device = np.repeat(WILD, 20)
    team = np.repeat(["$x_1$ <i>north</i>", "south " * 20], 60)
    people = pm.Population.from_arrays(x, y, device=device, team=team)
    return pm.run(
        "permfl", people, rounds=2, settings={"team_steps": 2}, out=tmp_path_factory.mktemp("w") / "$r_1$"
    ).folder


def copies(folder: Path, base: Path, *names: str) -> list[Path]:
    """Copy a run to folders of other names, which tell the copies apart."""
    return [shutil.copytree(folder, base / name) for name in names]


def numbers(file: Path) -> list[dict[str, str]]:
    with open(file, encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def draw(*words: Any) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["figure", *map(str, words)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stderr


# -- what is drawn -----------------------------------------------------------------------------------------------------


def test_a_figure_shows_itself_in_a_notebook_that_does_not_use_matplotlib(runs: Path) -> None:
    image = pm.figure(str(runs / "permfl"), "convergence")._repr_png_()  # type: ignore[attr-defined]
    assert image.startswith(b"\x89PNG")
    assert 200 < imread(io.BytesIO(image)).shape[1] < 500


@pytest.mark.parametrize(
    ("kind", "suffix"), [*((kind, ".pdf") for kind in KINDS), ("tree", ".svg"), ("paired", ".svg"), ("traffic", ".png")]
)
def test_every_kind_is_written_in_every_form_the_same_bytes_each_time(
    kind: str, suffix: str, runs: Path, tmp_path: Path
) -> None:
    texts = []
    for name in ("one", "two"):
        out = tmp_path / f"{name}{suffix}"
        code, told = draw(runs / "study", "--kind", kind, "--out", out)
        assert code == 0, told
        assert f"wrote {out}" in told
        assert f"wrote {out.with_suffix('.csv')}" in told
        texts.append((out.read_bytes(), out.with_suffix(".csv").read_bytes()))
    assert texts[0] == texts[1]
    assert not list(tmp_path.glob(".*"))  # nothing half written is left
    picture = texts[0][0]
    if suffix == ".pdf":
        assert b"/FontFile2" in picture  # TrueType, in the file
        assert b"/Type3" not in picture
    elif suffix == ".svg":
        assert b"<text" in picture
        assert b"<dc:date>" not in picture
    else:
        height, width = imread(tmp_path / "one.png").shape[:2]
        assert width == round(style.WIDTHS["column"] * style.DPI)
        assert height > 400


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (kind, what)
        for kind in KINDS
        for what in (("permfl",), ("permfl", "fedavg", "local"), ("flat",), ("deep",))
        if kind != "paired" or len(what) > 1
    ],
)
def test_nothing_of_a_figure_is_cut_off_or_lies_over_another_text(kind: str, what: tuple[str, ...], runs: Path) -> None:
    # Wide figures have more room: the fullest of them are enough.
    for width in ("column", "page") if what != ("flat",) else ("column",):
        check_texts(made([runs / one for one in what], kind, width=width).figure)


def check_texts(figure: Figure) -> None:
    """Fail where a text leaves the figure, or one label of an axis or a legend lies over another."""
    figure.draw_without_rendering()
    whole = figure.bbox
    boxes = []
    for axes in figure.axes:
        shown = [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            shown += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        shown = [text for text in shown if text.get_visible() and text.get_text()]
        boxes += [(text.get_text(), text.get_window_extent()) for text in shown]
    for legend in figure.legends:
        boxes += [(text.get_text(), text.get_window_extent()) for text in legend.get_texts()]
    assert boxes
    for told, box in boxes:
        assert box.x0 >= whole.x0 - 1, told
        assert box.x1 <= whole.x1 + 1, told
        assert box.y0 >= whole.y0 - 1, told
        assert box.y1 <= whole.y1 + 1, told
    turned = {text.get_text() for axes in figure.axes for text in axes.texts if text.get_rotation() % 90}
    for place, (told, box) in enumerate(boxes):
        for other, theirs in boxes[place + 1 :]:
            if told not in turned and other not in turned:  # a box around turned text is larger than the text
                assert not box.shrunk(0.9, 0.9).overlaps(theirs.shrunk(0.9, 0.9)), (told, other)


@pytest.mark.parametrize("kind", ["convergence", "devices", "traffic", "tree"])
def test_names_are_shown_letter_by_letter(kind: str, wild: Path, tmp_path: Path) -> None:
    code, told = draw(wild, "--kind", kind, "--out", tmp_path / "f.svg")
    assert code == 0, told
    assert "warning" not in told
    if kind == "tree":
        text = (tmp_path / "f.svg").read_text(encoding="utf-8")
        assert "a$b$c" in text
        assert "under_score^2" in text
        assert "&lt;b&gt;&amp;bold&lt;/b&gt;" in text
        assert "\\$" in text  # of the name that has a backslash of its own
        assert {row["node"] for row in numbers(tmp_path / "f.csv") if row["tier"] == "0"} == set(WILD)


def test_a_dollar_sign_in_the_name_of_a_run_begins_no_formula(runs: Path, tmp_path: Path) -> None:
    folders = copies(runs / "permfl", tmp_path, "$x$", "$y_1$ " * 9)
    for kind in KINDS:
        figure = pm.figure(folders, kind, tmp_path / "f.svg")  # type: ignore[arg-type]
        check_texts(figure)
        assert "$x$" in (tmp_path / "f.svg").read_text(encoding="utf-8")


def test_letters_that_the_font_lacks_are_told_in_one_line(runs: Path, tmp_path: Path) -> None:
    folders = copies(runs / "permfl", tmp_path, "方法", "other")
    with pytest.warns(UserWarning, match="no sign for 方, 法; a box stands in their place") as heard:
        pm.figure(folders, "convergence", tmp_path / "f.png")
    assert len(heard) == 1


def test_a_long_legend_makes_the_figure_taller_and_not_the_panel_smaller(runs: Path, tmp_path: Path) -> None:
    folders = copies(
        runs / "permfl", tmp_path, *(f"a method with a long name of its own {number}" for number in range(12))
    )
    few, many = (made(some, "convergence").figure for some in (folders[:2], folders))
    for figure in (few, many):
        check_texts(figure)
    heights = [figure.axes[0].get_window_extent().height for figure in (few, many)]
    assert heights[1] > 0.85 * heights[0]
    assert many.get_figheight() > few.get_figheight() + 0.5


def test_lines_can_be_told_apart_without_their_colours() -> None:
    looks = [style.line(place) for place in range(style.SERIES)]
    assert len({(str(look["linestyle"]), look["marker"]) for look in looks}) == style.SERIES
    assert len({look["color"] for look in looks[:7]}) == 7


# -- the numbers -------------------------------------------------------------------------------------------------------


def test_the_numbers_of_convergence_are_those_of_the_run_with_the_spread_of_its_devices(
    runs: Path, tmp_path: Path
) -> None:
    result = Result(runs / "permfl")
    pm.figure(result, "convergence", tmp_path / "f.pdf")
    rows = numbers(tmp_path / "f.csv")
    assert {row["model"] for row in rows} == {"PM", "TM", "GM"}
    for kind in ("PM", "TM", "GM"):
        mine = {int(row["round"]): float(row["value"]) for row in rows if row["model"] == kind}
        assert mine == result.curve(kind)
    last = next(row for row in rows if row["model"] == "PM" and row["round"] == "3")
    low, high = np.quantile(list(by_node(result, "PM", 0).values()), [0.1, 0.9])
    assert (float(last["low"]), float(last["high"])) == pytest.approx((low, high))
    assert last["band"] == "middle 80 % of devices"


def test_seeds_are_drawn_as_their_mean_with_a_band(runs: Path, tmp_path: Path) -> None:
    study = pm.Study(runs / "study")
    pm.figure(study, "convergence", tmp_path / "f.pdf")
    row = next(row for row in numbers(tmp_path / "f.csv") if row["method"] == "permfl" and row["round"] == "2")
    values = [result.last("PM") for _, _, result in study.results([study.plan.arm("permfl")])]
    assert float(row["value"]) == pytest.approx(np.mean(values))
    assert float(row["high"]) - float(row["value"]) == pytest.approx(np.std(values, ddof=1))
    assert row["seeds"] == "2"


def test_runs_that_differ_in_the_seed_only_are_one_line(runs: Path) -> None:
    folders = [runs / "study" / "runs" / f"permfl-{seed}" for seed in (0, 1)]
    lines, _ = gather([*folders, runs / "study" / "runs" / "fedavg-0"])
    assert [(line.label, sorted(line.results)) for line in lines] == [("permfl", [0, 1]), ("fedavg", [0])]


def test_runs_of_one_method_are_told_apart_by_their_folders(runs: Path) -> None:
    lines, _ = gather([runs / "flat", runs / "fedavg"])
    assert [line.label for line in lines] == ["flat", "fedavg"]


def test_the_worst_tenth_that_is_marked_is_the_one_of_the_tables(runs: Path) -> None:
    result = Result(runs / "permfl")
    axes = made(result, "devices", model="PM").figure.axes[0]
    (mark,) = [line for line in axes.lines if line.get_marker() == "|"]
    assert mark.get_xdata()[0] == pytest.approx(result.last("PM", weight="devices", statistic="worst-decile"))  # type: ignore[index]


def test_the_numbers_of_traffic_end_with_the_bytes_of_the_run(runs: Path, tmp_path: Path) -> None:
    code, told = draw(runs / "permfl", runs / "local", "--kind", "traffic", "--out", tmp_path / "f.pdf")
    assert code == 0, told
    rows = numbers(tmp_path / "f.csv")
    links = Result(runs / "permfl").summary()["traffic"]["links"]
    sent = {"teams - devices": links[0], "server - teams": links[1]}
    for link, one in sent.items():
        mine = [float(row["bytes"]) for row in rows if row["method"] == "permfl" and row["link"] == link]
        assert mine[0] == 0
        assert mine == sorted(mine)
        assert mine[-1] == one["bytes_up"] + one["bytes_down"]
    assert {row["bytes"] for row in rows if row["method"] == "local"} == {"0.0"}


def test_the_numbers_of_time_are_those_of_the_clock_and_of_the_link_to_the_server(runs: Path, tmp_path: Path) -> None:
    code, told = draw(runs / "permfl", runs / "fedavg", "--kind", "time", "--model", "GM", "--out", tmp_path / "f.pdf")
    assert code == 0, told
    assert "until" not in told  # nobody asked for a target
    rows = [row for row in numbers(tmp_path / "f.csv") if row["method"] == "permfl"]
    result = Result(runs / "permfl")
    curve, times = result.curve("GM"), {0: 0.0, **result.times}
    assert [int(row["round"]) for row in rows] == sorted(curve)
    assert [float(row["seconds"]) for row in rows] == [times[round_] for round_ in sorted(curve)]
    assert times[3] > times[1] > 0
    assert [float(row["value"]) for row in rows] == [curve[round_] for round_ in sorted(curve)]
    upper = result.links[-1]
    assert float(rows[-1]["bytes_to_server"]) == upper["bytes_up"] + upper["bytes_down"]
    assert {row["target"] for row in rows} == {""}


@pytest.mark.parametrize("kind", ["time", "traffic"])
def test_a_target_is_marked_and_told_where_each_method_first_reaches_it(kind: str, runs: Path, tmp_path: Path) -> None:
    result = Result(runs / "permfl")
    curve = result.curve("PM")
    target = sorted(curve.values())[1]  # not reached at the start
    at = next(round_ for round_ in sorted(curve) if curve[round_] >= target)
    assert at > 0
    folders = (runs / "permfl", runs / "fedavg")
    out = ("--kind", kind, "--model", "PM", "--target", target, "--out", tmp_path / "f.pdf")
    code, told = draw(*folders, *out)
    assert code == 0, told
    marked = [row for row in numbers(tmp_path / "f.csv") if row["target"] and row["method"] == "permfl"]
    assert {(int(row["round"]), float(row["target"]), float(row["seconds"])) for row in marked} == {
        (at, target, result.times[at])
    }
    assert f"until PM accuracy is at least {target:g}: permfl after {words.many(at, 'round')}" in told
    assert words.duration(result.times[at]) in told
    figure = made(folders, kind, model="PM", target=target).figure
    circles = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "none"]
    assert len(circles) >= 1
    assert circles[0].get_ydata()[0] == curve[at]  # type: ignore[index]
    assert "circle: accuracy" in figure.legends[0].get_title().get_text()


def test_a_target_that_is_never_reached_is_told_and_of_a_loss_lower_is_better(runs: Path, tmp_path: Path) -> None:
    _, told = draw(runs / "permfl", "--kind", "time", "--target", "1", "--out", tmp_path / "f.pdf")
    assert "until test accuracy is at least 1: PM, TM, GM never" in told
    assert all(not row["target"] for row in numbers(tmp_path / "f.csv"))
    curve = Result(runs / "permfl").curve("GM", "loss")
    options = ("--kind", "time", "--metric", "loss", "--model", "GM", "--target", curve[3], "--out", tmp_path / "f.pdf")
    _, told = draw(runs / "permfl", *options)
    assert f"at most {curve[3]:g}: GM after " in told


def test_the_command_that_a_run_without_a_clock_is_answered_with_gives_it_one(runs: Path, tmp_path: Path) -> None:
    code, told = draw(runs / "timeless", "--kind", "time", "--out", tmp_path / "f.pdf")
    assert code == 2
    command = shlex.split(told.strip().partition("run it again with one: ")[2])
    done = CliRunner().invoke(app, [*command[1:], "--out", str(tmp_path / "timed"), "--quiet"])
    assert done.exit_code == 0, done.stderr
    assert draw(tmp_path / "timed", "--kind", "time", "--out", tmp_path / "f.pdf")[0] == 0


def test_the_tree_colours_every_node_by_its_own_model(runs: Path, tmp_path: Path) -> None:
    pm.figure(runs / "deep", "tree", tmp_path / "f.pdf")
    rows, result = numbers(tmp_path / "f.csv"), Result(runs / "deep")
    for tier, kind in enumerate(("PM", "TM", "TM2", "GM")):
        mine = {row["node"]: float(row["value"]) for row in rows if row["tier"] == str(tier)}
        assert mine == pytest.approx(by_node(result, kind, tier))
    pm.figure(runs / "deep", "tree", tmp_path / "f.pdf", model="GM")
    assert {row["model"] for row in numbers(tmp_path / "f.csv")} == {"GM"}


def test_the_devices_of_a_team_are_drawn_from_worst_to_best(runs: Path) -> None:
    for metric, sign in (("accuracy", 1), ("loss", -1)):
        rows = made(runs / "permfl", "tree", metric=metric).rows
        for team in ("team-0", "team-1"):
            values = [sign * row[7] for row in rows if row[1] == 0 and row[3] == team]
            assert len(values) == 3
            assert values == sorted(values)


def test_paired_differences_are_those_of_the_statistics(runs: Path, tmp_path: Path) -> None:
    pm.figure(runs / "study", "paired", tmp_path / "f.pdf", against="fedavg", method=["permfl", "fedavg"])
    rows = numbers(tmp_path / "f.csv")
    study = pm.Study(runs / "study")
    by_method = {
        name: {seed: r for _, seed, r in study.results([study.plan.arm(name)])} for name in ("permfl", "fedavg")
    }
    mine, theirs = (of_devices(by_method[name], "PM", "accuracy") for name in ("permfl", "fedavg"))
    found = difference(mine, theirs, teams_of(by_method))
    told = {row["what"]: float(row["value"]) for row in rows if row["what"] != "difference"}
    assert told == {"mean": found.mean, "low": found.low, "high": found.high, "hurt": hurt(mine, theirs)}
    each = [float(row["value"]) for row in rows if row["what"] == "difference"]
    assert len(each) == 12
    assert np.mean(each) == pytest.approx(found.mean)


def test_a_loss_is_better_when_it_is_lower(runs: Path, tmp_path: Path) -> None:
    pm.figure([runs / "local", runs / "permfl"], "paired", tmp_path / "f.pdf", metric="loss")
    mean = next(float(row["value"]) for row in numbers(tmp_path / "f.csv") if row["what"] == "mean")
    one, other = (by_node(Result(runs / name), "PM", 0, "loss") for name in ("permfl", "local"))
    assert mean == pytest.approx(np.mean([other[device] - one[device] for device in one]))
    check_texts(made([runs / "local", runs / "permfl"], "devices", metric="loss").figure)


def test_convergence_over_steps_counts_the_steps_of_a_device(runs: Path, tmp_path: Path) -> None:
    with pytest.warns(pm.PalmetteWarning, match="fedavg: its personal models take .* more steps"):
        pm.figure([runs / "fedavg", runs / "local"], "convergence", tmp_path / "f.pdf", over="steps")
    last = next(row for row in numbers(tmp_path / "f.csv") if row["method"] == "local" and row["round"] == "3")
    assert float(last["steps_per_device"]) == 12


def test_how_far_models_lie_apart_is_drawn_too(runs: Path, tmp_path: Path) -> None:
    result = Result(runs / "permfl")
    drawn = made(result, "convergence", metric="distance")
    assert drawn.notes == ["permfl has no distance of GM and is left out"]
    assert {row[3]: row[5] for row in drawn.rows if row[1] == "TM"} == result.curve("TM", "distance")
    assert drawn.figure.axes[0].get_ylabel() == "distance"
    check_texts(drawn.figure)
    code, told = draw(runs / "permfl", "--kind", "devices", "--metric", "distance", "--out", tmp_path / "f.pdf")
    assert code == 2
    assert "only convergence, traffic and time draw it" in told


# -- large, unfinished, odd --------------------------------------------------------------------------------------------


def test_a_tree_of_very_many_devices_is_drawn_in_groups_and_says_so(tmp_path: Path) -> None:
    people = pm.make_population("crowd", tree="4x300", samples=2, test_samples=2)
    folder = pm.run("local", people, rounds=1, settings={"local_steps": 1}, out=tmp_path / "r").folder
    drawn = made(folder, "tree")
    assert drawn.notes == [
        "local has 1,200 devices: each field of the outer ring is the mean of some of one node's devices, from worst to best"
    ]
    outer = [row for row in drawn.rows if row[1] == 0]
    assert len(outer) == 1000
    assert sum(row[4] for row in outer) == 1200
    check_texts(drawn.figure)
    assert (
        made(folder, "convergence").rows[0][8] == "± standard deviation over devices"
    )  # none is listed in every round


def test_a_thousand_devices_are_drawn_one_by_one(tmp_path: Path) -> None:
    people = pm.make_population("crowd", tree="100x10", samples=2, test_samples=2)
    folder = pm.run("local", people, rounds=1, settings={"local_steps": 1}, out=tmp_path / "r").folder
    drawn = made(folder, "tree")
    assert drawn.notes == []
    assert len([row for row in drawn.rows if row[1] == 0 and row[2]]) == 1000


def test_a_run_under_way_is_drawn_as_far_as_it_is(runs: Path, tmp_path: Path) -> None:
    class Stop:
        def begin(self, simulation: Any, rounds: int) -> None: ...
        def exchange(self, tier: int) -> None: ...
        def round(self, done: int, scores: Any) -> None:
            if done == 2:
                signal.raise_signal(signal.SIGINT)

        def stopping(self) -> None: ...

    people = pm.make_population("digits", tree="2x3")
    with pytest.raises(Interrupted):
        pm.run("permfl", people, rounds=4, settings={"team_steps": 2}, out=tmp_path / "half", observer=Stop())
    code, told = draw(tmp_path / "half", "--kind", "convergence", "--out", tmp_path / "f.pdf")
    assert code == 0, told
    assert "is not finished: drawn is what it came to after round 2 of 4" in told
    assert draw(tmp_path / "half", "--kind", "traffic", "--out", tmp_path / "f.pdf")[0] == 0
    code, told = draw(tmp_path / "half", "--kind", "convergence", "--over", "steps", "--out", tmp_path / "f.pdf")
    assert (code, told.count("\n")) == (2, 1)
    assert "draw it over rounds" in told


def test_a_run_that_diverged_is_drawn_as_far_as_it_was_sane(tmp_path: Path) -> None:
    people = pm.make_population("digits", tree="2x3")
    with pytest.raises(pm.Diverged), pytest.warns(UserWarning, match="alpha"):
        pm.run("permfl", people, rounds=5, settings={"alpha": 1e20}, out=tmp_path / "r")
    for kind in ("convergence", "devices", "tree"):
        code, told = draw(tmp_path / "r", "--kind", kind, "--out", tmp_path / "f.pdf")
        assert code == 0, told
        assert "diverged: drawn is what it came to after round 0 of 5" in told
    code, told = draw(tmp_path / "r", "--kind", "traffic", "--out", tmp_path / "f.pdf")
    assert (code, told.count("\n")) == (2, 1)
    assert "has counted no traffic yet" in told


def test_devices_without_a_number_are_left_out_aloud(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    device, split = np.repeat(["a", "b", "c"], 30), np.tile([0, 0, 1], 30)
    split[device == "c"] = 0  # it has no test sample
    with pytest.warns(UserWarning, match="'c' has no test samples"):
        people = pm.Population.from_arrays(x, y, device=device, test=split.astype(bool))
    one = pm.run("fedavg", people, rounds=1, clock=EDGE, out=tmp_path / "one").folder
    other = pm.run("local", people, rounds=1, clock=EDGE, out=tmp_path / "other").folder
    for kind in KINDS:
        drawn = made([one, other], kind)
        check_texts(drawn.figure)
        if kind == "devices":
            assert drawn.notes == [
                f"{name}: 1 devices without test samples are left out" for name in ("fedavg", "local")
            ]
        if kind == "tree":
            assert math.isnan(next(row[7] for row in drawn.rows if row[2] == "c"))
            assert ",c,server,1,PM,accuracy,," in drawn.csv()


def test_a_curve_of_few_measured_rounds_and_steps_that_it_leaves_out_are_told(tmp_path: Path) -> None:
    people = pm.make_population("digits", tree="2x2")
    settings = {"local_steps": 1, "tune_steps": 7}
    for every, told in ((5, ["only 3 of 10 rounds were measured", "take 7 more steps"]), (1, ["take 7 more steps"])):
        made = pm.run("fedavg", people, rounds=10, settings=settings, evaluate_every=every, out=tmp_path / str(every))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            pm.figure(made.folder, kind="convergence", over="steps")
        assert [part for part, one in zip(told, seen, strict=True) if part in str(one.message)] == told


# -- one line and no traceback -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("permfl --kind paired", "paired differences need two methods; there is permfl only"),
        ("permfl --kind convergence --metric nonsense", "has no nonsense of PM or TM or GM; there are the metrics accuracy"),
        ("local --kind convergence --model GM", "has no accuracy of GM; there are the metrics accuracy, loss of the models PM"),
        ("local --kind tree --model GM", "local has no accuracy of GM and is left out"),
        ("permfl flat --kind paired", "is of another population than"),
        ("permfl study --kind paired --against nobody", "--against nobody: it is not among what was given"),
        ("study --kind devices --method nobody", "--method nobody: it is not among what was given"),
        ("permfl fedavg --kind devices --model PM --model GM", "drawn for one kind of models"),
        ("permfl fedavg --kind traffic --model PM --model GM", "drawn for one kind of models"),
        ("permfl fedavg --kind time --model PM --model GM", "drawn for one kind of models"),
        ("permfl timeless --kind time", "has no simulated clock, so there is no time to draw; run it again with one"),
        ("permfl --kind tree --target 0.8", "--target is for --kind traffic and time"),
        ("permfl --kind time --target 80", "--target 80: accuracy lies between 0 and 1; write 0.8"),
        ("permfl --kind time --target nan", "it must be a finite number"),
        ("permfl fedavg --kind paired --model PM --model GM", "are of one kind of models"),
        ("nowhere --kind tree", "is neither a run nor a study"),
        (". --kind tree", "is neither a run nor a study"),
        ("permfl --kind pie", "Invalid value for '--kind'"),
        ("permfl --kind tree --over steps", "--over is for --kind convergence"),
        ("permfl --kind tree --against x", "--against is for --kind paired"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_told_in_one_line(words: str, told: str, runs: Path, tmp_path: Path) -> None:
    folders, options = words.split(" --", 1)
    code, said = draw(
        *(runs / folder for folder in folders.split()), *f"--{options}".split(), "--out", tmp_path / "f.pdf"
    )
    assert code == 2
    assert told in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("out", "told"),
    [("f.gif", "write it as .png, .pdf, .svg"), ("none/f.pdf", "there is no folder none"), (".", "is a folder")],
)
def test_a_file_that_cannot_be_written_is_told_before_anything_is_drawn(out: str, told: str, runs: Path) -> None:
    code, said = draw(runs / "permfl", "--kind", "tree", "--out", out)
    assert code == 2
    assert told in said
    assert said.count("\n") == 1


def test_a_csv_of_the_users_own_is_not_lost(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_text("device,site\na,b\n", encoding="utf-8")
    words = [runs / "permfl", "--kind", "tree", "--out", tmp_path / "f.pdf"]
    code, said = draw(*words)
    assert code == 2
    assert "holds something else" in said
    assert draw(*words, "--no-csv")[0] == 0
    assert (tmp_path / "f.csv").read_text(encoding="utf-8").startswith("device,site")


def test_an_older_figure_is_replaced(runs: Path, tmp_path: Path) -> None:
    for kind in ("tree", "devices"):
        code, said = draw(runs / "permfl", "--kind", kind, "--out", tmp_path / "f.pdf")
        assert code == 0, said
    assert "seed" in numbers(tmp_path / "f.csv")[0]


def test_a_run_without_numbers_has_nothing_to_draw(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = Result(runs / "permfl")
    monkeypatch.setattr(result, "metrics", result.metrics.slice(0, 0))
    with pytest.raises(pm.BadInput, match="has no numbers yet; there is nothing to draw"):
        pm.figure(result, "tree")


def test_more_methods_than_can_be_told_apart_are_refused(runs: Path, tmp_path: Path) -> None:
    folders = copies(runs / "permfl", tmp_path, *map(str, range(13)))
    with pytest.raises(
        pm.BadInput, match=r"13 methods are more than one figure can show \(12\); choose some with --method"
    ):
        made(folders, "devices")


def test_a_run_that_is_named_twice_is_drawn_once(runs: Path) -> None:
    drawn = made([runs / "permfl", runs / "." / "permfl", runs / "local"], "devices")
    assert drawn.notes == [f"{runs / 'permfl'} was named twice and is drawn once"]
    assert {row[0] for row in drawn.rows} == {"permfl", "local"}


def test_the_function_refuses_unknown_words(runs: Path) -> None:
    with pytest.raises(pm.BadInput, match="kind = 'pie' is unknown"):
        pm.figure(runs / "permfl", "pie")  # type: ignore[arg-type]
    with pytest.raises(pm.BadInput, match="width = 'huge' is unknown"):
        pm.figure(runs / "permfl", "tree", width="huge")  # type: ignore[arg-type]
    with pytest.raises(pm.BadInput, match="there is nothing to draw"):
        pm.figure([], "tree")


def test_a_users_own_settings_of_matplotlib_change_nothing(runs: Path, tmp_path: Path) -> None:
    from matplotlib import rc_context

    pm.figure(runs / "permfl", "devices", tmp_path / "one.svg")
    with rc_context({"font.size": 30, "axes.grid": False, "svg.fonttype": "path", "axes.facecolor": "black"}):
        pm.figure(runs / "permfl", "devices", tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
