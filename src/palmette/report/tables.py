"""Tables for a terminal of 80 columns: one run, or several methods side by side."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table

from palmette.algorithms import algorithm
from palmette.guards.screen import Text
from palmette.guards.visible import visible
from palmette.protocol import ModelKind, model_kind
from palmette.report import absences, words
from palmette.report.numbers import Comparison, backend, by_node, device_count, seconds, top
from palmette.runs import Result
from palmette.runs.folder import CONFIG
from palmette.runs.metrics import TRAINED
from palmette.runs.wording import model_style as model_style

_TEAMS = 12  # teams listed by name

_WORTH_TELLING = 0.1  # seconds that an estimate took


def run_report(result: Result, *, teams: bool = False) -> RenderableType:
    """Show one run: its models, links, speed and folder.

    Args:
        result: The run.
        teams: Whether to list the teams one by one.
    """
    if not result.finished:
        return unfinished_report(result)
    config = result.config
    title = Text.assemble(
        (config.title, "bold"),
        f" on {config.data.title}, tree {config.make_tree()}, model {config.model.title}, "
        f"{words.many(config.rounds, 'round')}, seed {config.seed}",
    )
    parts: list[RenderableType] = [_with_note(result, models_table(result))]
    if teams and (listed := teams_table(result)) is not None:
        parts.append(listed)
    if (further := measures_table(result)) is not None:
        parts.append(further)
    parts.append(_links_table(result))
    if (own := reports_table(result)) is not None:
        parts.append(own)
    parts.append(_facts(result))
    return Group(title, *(Padding(part, (1, 0, 0, 0)) for part in parts))


def measures_table(result: Result) -> Table | None:
    """Show further metrics of each kind of model: over all test samples together, and the mean over devices."""
    names = [name for name in result.metric_names if name not in (result.lead, "loss")]
    if not names:
        return None
    table = _table("all test samples (mean of devices)")
    for kind in result.kinds:
        table.add_column(Text(kind, f"bold {model_style(kind)}"), justify="right")
    for name in names:
        cells = [(result.last(kind, name), result.last(kind, name, weight="devices")) for kind in result.kinds]
        table.add_row(Text(name), *(f"{_short(all_)} ({_short(mean)})" for all_, mean in cells))
    return table


def _short(value: float) -> str:
    return "-" if value != value else f"{value:.3f}" if abs(value) < 100 else f"{value:.4g}"


def unfinished_report(result: Result) -> RenderableType:
    """Show how far a run is, what was measured so far, and how to go on."""
    config = result.config
    title = Text.assemble(
        (config.title, "bold"),
        f" on {config.data.title}, tree {config.make_tree()}, model {config.model.title}, ",
        f"seed {config.seed}",
    )
    state = "it is running now" if result.running else f"go on with: palmette resume {shlex.quote(str(result.folder))}"
    told = Text(f"not finished: {result.rounds_done} of {config.rounds} rounds done; {state}", style="yellow")
    parts: list[RenderableType] = [Text("nothing was measured yet")]
    if result.kinds:
        parts = [_with_note(result, models_table(result))]
    return Group(title, told, *(Padding(part, (1, 0, 0, 0)) for part in parts))


def runs_table(results: Sequence[Result], base: Path) -> RenderableType:
    """Show several runs, a line each.

    Args:
        results: The runs.
        base: The folder they are in.
    """
    kinds = [kind for kind in ("PM", "TM", "GM") if any(kind in result.kinds for result in results)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("run", overflow="fold", min_width=4)
    table.add_column("algorithm and data", overflow="fold", min_width=8)
    table.add_column("rounds", justify="right", no_wrap=True)
    for kind in kinds:
        table.add_column(kind, justify="right", no_wrap=True, header_style=f"bold {model_style(kind)}")
    times = [result.times for result in results]
    if any(times):
        table.add_column("clock", justify="right", no_wrap=True)
    table.add_column("seed", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for result, clock in zip(results, times, strict=True):
        config = result.config
        table.add_row(
            Text(visible(str(result.folder.relative_to(base)))),
            Text(f"{config.title} on {config.data.title}"),
            f"{result.rounds_done}/{config.rounds}",
            *(_score(result, kind) for kind in kinds),
            *([words.duration(clock[max(clock)]) if clock else "-"] if any(times) else []),
            str(config.seed),
            "finished" if result.finished else "running" if result.running else "stopped",
        )
    notes = ["PM, TM, GM: test accuracy of the devices' own models, of their teams' models and of the global model"]
    notes += ["*: the loss, where there is no accuracy"] if any(result.lead == "loss" for result in results) else []
    notes += ["clock: how long it took on the simulated clock"] if any(times) else []
    return Group(table, *(Text(note, style="dim") for note in notes))


def studies_table(studies: Sequence[Mapping[str, Any]], base: Path) -> Table:
    """Show several studies, a line each.

    Args:
        studies: What a list says about each.
        base: The folder they are in.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("study", overflow="fold", min_width=4)
    table.add_column("methods", overflow="fold", min_width=8)
    for name in ("seeds", "state"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in studies:
        names = one["methods"] if one["kind"] != "demo" else ["the demo"]
        methods = f"{', '.join(names[:6])}{f' and {len(names) - 6} more' if len(names) > 6 else ''}"
        what = f"{one['kind']}: {methods}" if one["kind"] != "demo" else methods
        state = "finished" if one["finished"] else "not finished"
        name = str(Path(one["study"]).relative_to(base))
        table.add_row(Text(name), Text(what), str(len(one["seeds"])), state)
    return table


def _score(result: Result, kind: ModelKind) -> str:
    if kind not in result.kinds:
        return "-"
    sample = " (sample)" if result.sampled and result.on == result.curve_on else ""
    return words.share(result.last(kind, result.lead)) + ("*" if result.lead == "loss" else "") + sample


def models_table(result: Result) -> Table:
    """Show each kind of model: last, best, mean over devices, worst decile."""
    metric = result.lead
    table = _table(f"test {metric}")
    new = {kind: result.curve(kind, metric, on="unseen") for kind in result.kinds}
    new = {kind: curve for kind, curve in new.items() if result.config.rounds in curve}
    best_of = "best (sampled)" if result.sampled else "best"
    for name in ("last", best_of, "in round", "mean of devices", "worst tenth", *(["unseen"] if new else [])):
        table.add_column(name, justify="right", min_width=5)
    for kind in result.kinds:
        best, round_ = result.best(kind, metric)
        table.add_row(
            Text.assemble((kind, f"bold {model_style(kind)}"), f" {words.whose(kind)}"),
            words.share(result.last(kind, metric)),
            words.share(best),
            str(round_),
            words.share(result.last(kind, metric, weight="devices")),
            words.share(result.last(kind, metric, weight="devices", statistic="worst-decile")),
            *([words.share(new[kind][result.config.rounds])] if kind in new else []),
        )
    return table


def _with_note(result: Result, table: Table) -> RenderableType:
    """Add to a table of models which devices it is about, where some are kept out of training or a sample was measured."""
    notes = []
    if TRAINED in result.on:
        notes.append("Devices that are kept out of training count in the column unseen only.")
    if result.sampled:
        rest = (
            "; all other numbers are about all devices after the last round." if result.on != result.curve_on else "."
        )
        what = "The best and its round are" if result.on != result.curve_on else "These numbers are"
        notes.append(f"{what} about the sample of devices that was measured in every round (evaluate_on){rest}")
    return Group(table, *(Text(note, style="dim") for note in notes)) if notes else table


def teams_table(result: Result) -> Table | None:
    """Show the last value team by team, or nothing where there are no teams."""
    metric = result.lead
    if top(result) < 2:
        return None
    values = {kind: by_node(result, kind, 1, metric) for kind in result.kinds}
    names = list(next(iter(values.values())))
    table = _table(f"test {metric} by team")
    for kind in result.kinds:
        table.add_column(kind, justify="right")
    for name in names[:_TEAMS]:
        table.add_row(Text(visible(name)), *(words.share(values[kind].get(name, math.nan)) for kind in result.kinds))
    if len(names) > _TEAMS:
        table.add_row(f"and {len(names) - _TEAMS} more", *("" for _ in result.kinds))
    return table


def reports_table(result: Result) -> Table | None:
    """Show what the algorithm itself tells of its nodes after the last round, or nothing where it tells nothing."""
    told = result.reports
    if not told:
        return None
    table, server = _table(f"{result.config.title} reports"), top(result)
    kinds = [
        kind
        for kind in (model_kind(tier, server) for tier in range(server + 1))
        if any(kind in by_kind for by_kind in told.values())
    ]
    for kind in kinds:
        table.add_column(words.nodes(kind), justify="right", header_style=f"bold {model_style(kind)}")
    for name, by_kind in told.items():
        table.add_row(
            Text(words.name(name)), *(words.number(by_kind[kind]) if kind in by_kind else "" for kind in kinds)
        )
    return table


def methods_table(comparisons: Sequence[Comparison], *, width: int = 80) -> Table:
    """Show several methods on several populations: a column for each population, a line for each kind of model.

    Args:
        comparisons: The populations, all with the same methods.
        width: Columns of the terminal; the spread over the seeds is left out where it does not fit.
    """
    spread = spread_fits(comparisons, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("test accuracy in %", no_wrap=True, vertical="bottom")
    table.add_column("", no_wrap=True)
    for comparison in comparisons:
        # A title is broken at its first space, so that the columns stay narrow.
        table.add_column(comparison.title.replace(" ", "\n", 1), justify="right", no_wrap=True, vertical="bottom")
    for line, entry in enumerate(comparisons[0].entries):
        cells = [_cell(comparison, line, spread=spread) for comparison in comparisons]
        table.add_row(Text(entry.label, style="bold"), Text(entry.kind, style=model_style(entry.kind)), *cells)
    return table


def spread_fits(comparisons: Sequence[Comparison], width: int) -> bool:
    """Whether `methods_table` shows the spread over the seeds: there are several, and the columns are wide enough."""
    return len(comparisons[0].entries[0].values) > 1 and width >= 30 + 10 * len(comparisons)


def _cell(comparison: Comparison, line: int, *, spread: bool) -> Text:
    """Write mean and spread of one model, with a star where none is clearly better."""
    entry = comparison.entries[line]
    text = f"{100 * entry.mean:.1f}" + (f"±{100 * entry.spread:.1f}" if spread else "")
    starred = entry in comparison.level
    return Text(text + ("*" if starred else " "), style="bold green" if starred else "")


def next_command(result: Result) -> str | None:
    """Return a command that runs another method on the same samples with as many device-steps, where there is one.

    The other method gets the run's step size, local steps and batch size where it has them as well, and the number of rounds
    that makes the steps of each device equal. None is told where a config cannot say which samples, or where only some nodes
    take part, because a flat method meets others of them than one with teams.
    """
    config = result.config
    own_model = config.given.get("model")
    if set(config.given) - {"model"} or (own_model is not None and not own_model.again) or config.participation:
        return None
    other = "fedavg" if config.algorithm != "fedavg" else "permfl" if top(result) > 1 else "local"
    default = algorithm(other)
    own: dict[str, Any] = {name: getattr(default, name) for name in ("alpha", "local_steps", "batch_size")}
    own.update({name: config.settings[name] for name in own if _plain(config.settings.get(name))})
    steps = result.timings["device_steps"] / device_count(result)  # of each device
    rounds = max(1, round(steps / own["local_steps"]))
    if other == "permfl":
        own["team_steps"] = max(number for number in range(1, 11) if rounds % number == 0)
        rounds //= own["team_steps"]
    chosen = [f"--set {name}={value}" for name, value in own.items() if value != getattr(default, name)]
    file = shlex.quote(str(result.folder / CONFIG))
    return " ".join([f"palmette run {other} --config {file} --rounds {rounds}", *chosen])


def _plain(value: Any) -> bool:
    """Whether a setting can be typed as one word, as those by node name cannot."""
    return isinstance(value, int | float | str)


def _links_table(result: Result) -> RenderableType:
    """Show what crossed every link and, where some replies did not enter, how many and why."""
    table, links, server = _table("traffic"), result.links, top(result)
    some = any(map(absences.missing, links))
    for name in ("exchanges", "up", "down", *(["missing"] if some else [])):
        table.add_column(name, justify="right")
    flat = all(link["tier"] == server for link in links)
    for link in links:
        table.add_row(
            words.link_name(link["tier"], server, flat=flat),
            f"{link['exchanges']:,}",
            words.size(link["bytes_up"]),
            words.size(link["bytes_down"]),
            *([f"{absences.missing(link):,}"] if some else []),
        )
    told = absences.missing_told(links)
    return Group(table, Text(told, style="dim")) if told else table


def _facts(result: Result) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _fact_lines(result):
        table.add_row(name, Text(value))
    return table


def _fact_lines(result: Result) -> Iterator[tuple[str, str]]:
    times = result.timings
    speed = f"{times['device_steps_per_second']:,.0f} per second"
    looked = times["seconds"].get("estimate", 0.0)
    first = f", {looked:.1f} s of it to look at step sizes first" if looked >= _WORTH_TELLING else ""
    yield "work", f"{times['device_steps']:,} device-steps, {speed}, {seconds(result):.1f} s in all{first}"
    if told := absences.wasted_told(result):
        yield "in vain", told
    if told := absences.clock_told(result):
        yield "clock", told
    if told := "; ".join(absences.absent_told(result)):
        yield "absent", told
    if result.outline:
        yield "outline", "; ".join(words.outline(result.outline))
    if (found := backend(result)) is not None:
        name, why = found
        yield "backend", f"{name} ({why})"
    yield "folder", str(result.folder)
    yield "page", f"palmette report {shlex.quote(str(result.folder))} --open"
    if (command := next_command(result)) is not None:
        yield "try next", command


def _table(title: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column(Text(title), no_wrap=True)  # a text, because names of metrics and algorithms may hold brackets
    return table
