"""What a study comes to as sheets of text: the same on a terminal, in Markdown and in LaTeX."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palmette.report import words

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$",
}  # fmt: skip

_FURTHER: Mapping[str, Callable[[float], str]] = {
    "time": words.duration,
    "replies_missing": lambda count: f"{count:,.0f}",
}
"""What a run may cost besides steps and bytes, each with how it is written."""


@dataclass(frozen=True)
class Sheet:
    """A table of text with a caption.

    Attributes:
        title: What it is about; the head of the first column.
        columns: The heads of the others; a line break in one is for narrow terminals.
        rows: The first cell of every row names what the row is about.
        best: The cells, as (row, column), that no other in their column beats.
        note: What one must know to read it.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]] = field(default_factory=frozenset)
    note: str = ""


def sheets(summary: Mapping[str, Any]) -> list[Sheet]:
    """Return the sheets of a study: how good the models are, device by device, and what a run costs."""
    methods = [one for one in summary["methods"] if one["models"]]
    if not methods:
        return []
    made = [_models(summary, methods)]
    if len(methods) > 1 or summary["reference"]:
        made.append(_devices(summary, methods))
    return [*made, _costs(methods)]


def _models(summary: Mapping[str, Any], methods: Sequence[Mapping[str, Any]]) -> Sheet:
    percent = is_share(summary["metric"])
    kinds = sorted({kind for one in methods for kind in one["models"]}, key=rank)
    rows = []
    for one in methods:
        cells = [with_spread(one["models"].get(kind), percent) for kind in kinds]
        worst = number(one["models"].get("PM", {}).get("worst_decile", math.nan), percent)
        rows.append((_name(one), *cells, worst))
    sign = -1 if summary["better"] == "lower" else 1
    best = set()
    for column, kind in enumerate(kinds):
        means = [sign * one["models"][kind]["mean"] if kind in one["models"] else -math.inf for one in methods]
        if len(methods) > 1:
            best.add((means.index(max(means)), column))
    seeds = len(summary["seeds"])
    unit = " in %" if percent else ""
    spread = f" ± standard deviation over the {seeds} seeds" if seeds > 1 else " (one seed, so no spread)"
    note = f"Mean over all test samples{spread}; worst tenth: mean of the tenth of the devices whose PM fare worst."
    return Sheet(f"test {summary['metric']}{unit}", (*kinds, "worst\ntenth"), tuple(rows), frozenset(best), note)


def _devices(summary: Mapping[str, Any], methods: Sequence[Mapping[str, Any]]) -> Sheet:
    percent, against = is_share(summary["metric"]), summary["against"]
    columns = (f"vs\n{against}", "95 %\ninterval", "worse\nthan local", "worse\nthan team")
    rows = []
    for one in methods:
        gap = one.get("difference")
        found = ("-", "-") if gap is None else (signed(gap["mean"], percent), interval(gap, percent))
        hurt = [_share(one["hurt"].get(key, math.nan)) for key in ("local", "team")]
        rows.append((_name(one), *found, *hurt))
    unit = "percentage points" if percent else f"units of the {summary['metric']} (positive is better)"
    note = (
        f"Every device counts the same. vs {against}: how much better a device's PM is than with {against}, in {unit}, with "
        "the bootstrap interval. Worse than local, than team: the share of devices whose PM does worse than local training, "
        "than their team's own model (TM) of the same method."
    )
    if summary["reference"] not in (None, "local"):
        note += f" Local training is {summary['reference']} here."
    if not summary["reference"]:
        note += " Local training is not among these runs; add local to see whom a method hurts."
    return Sheet("personal models (PM)", columns, tuple(rows), note=note)


def _costs(methods: Sequence[Mapping[str, Any]]) -> Sheet:
    tiers = sorted({link["tier"] for one in methods for link in one["links"]})
    server = max(tiers, default=0)
    further = {"time": "simulated\nclock", "replies_missing": "replies\nmissing"}
    further = {key: head for key, head in further.items() if any(key in one for one in methods)}
    columns = ["rounds", "steps\nper device", *(_link(tier, server) for tier in tiers), *further.values()]
    rows = []
    for one in methods:
        links = {link["tier"]: link["bytes_up"] + link["bytes_down"] for link in one["links"]}
        sent = [words.size(round(links[tier])) if tier in links else "-" for tier in tiers]
        more = ["-" if key not in one else _FURTHER[key](one[key]) for key in further]
        rows.append((_name(one), f"{one['rounds']:,}", f"{one['steps_per_device']:,.0f}", *sent, *more))
    note = "Of one run. Steps: every mini-batch gradient of a device counts, fine-tuning too. Bytes: up and down."
    note += " Simulated clock: until the end of the run." if "time" in further else ""
    note += " Replies missing: those that did not enter." if "replies_missing" in further else ""
    return Sheet("cost of a run", tuple(columns), tuple(rows), note=note)


# -- cells -------------------------------------------------------------------------------------------------------------


def is_share(metric: str) -> bool:
    """Whether a metric is a share, written in per cent."""
    return metric == "accuracy"


def rank(kind: str) -> tuple[bool, bool, int, str]:
    """Return where a kind of model stands: PM, TM, TM2 ..., GM."""
    return kind == "GM", kind != "PM", len(kind), kind


def number(value: float | None, percent: bool) -> str:
    """Write a number as a table shows it; a dash where there is none."""
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * value:.1f}" if percent else f"{value:.4g}"


def with_spread(model: Mapping[str, Any] | None, percent: bool) -> str:
    """Write a mean with its spread over the seeds, where there is one."""
    if model is None:
        return "-"
    spread = model["spread"]
    told = "" if spread is None or math.isnan(spread) else f"±{100 * spread:.1f}" if percent else f"±{spread:.2g}"
    return number(model["mean"], percent) + told


def signed(value: float | None, percent: bool) -> str:
    """Write a difference with its sign."""
    if value is None or math.isnan(value):
        return "-"
    return f"{100 * value:+.1f}".replace("-", "−") if percent else f"{value:+.3g}".replace("-", "−")


def interval(gap: Mapping[str, Any], percent: bool) -> str:
    """Write an interval."""
    low, high = signed(gap["low"], percent), signed(gap["high"], percent)
    return "-" if low == "-" else f"{low} to {high}"


def _share(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{100 * value:.0f} %"


def _name(one: Mapping[str, Any]) -> str:
    missing = len(one["missing"])
    seeds = f" ({len(one['seeds'])} of {len(one['seeds']) + missing} seeds)" if missing else ""
    return f"{one['method']}{seeds}"


def _link(tier: int, server: int) -> str:
    if tier == server:
        return "to the\nserver"
    return words.link_name(tier, server, flat=False).replace(" - ", " -\n")


# -- files -------------------------------------------------------------------------------------------------------------


def markdown(made: Sequence[Sheet]) -> str:
    """Write sheets as Markdown; the best of a column is bold."""
    parts = []
    for sheet in made:
        lines = [_markdown_row((sheet.title, *sheet.columns)), "|---|" + "---:|" * len(sheet.columns)]
        for place, row in enumerate(sheet.rows):
            cells = [f"**{cell}**" if (place, column) in sheet.best else cell for column, cell in enumerate(row[1:])]
            lines.append(_markdown_row((row[0], *cells)))
        parts.append("\n".join(lines) + (f"\n\n{sheet.note}" if sheet.note else ""))
    return "\n\n".join(parts) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def latex(made: Sequence[Sheet]) -> str:
    """Write sheets as LaTeX tables (package booktabs); the best of a column is bold."""
    parts = ["% needs \\usepackage{booktabs}"]
    for sheet in made:
        head = " & ".join(map(_tex, (sheet.title, *sheet.columns)))
        body = []
        for place, row in enumerate(sheet.rows):
            cells = [
                f"\\textbf{{{_tex(cell)}}}" if (place, column) in sheet.best else _tex(cell)
                for column, cell in enumerate(row[1:])
            ]
            body.append(" & ".join([_tex(row[0]), *cells]) + r" \\")
        align = "l" + "r" * len(sheet.columns)
        lines = [
            r"\begin{table}",
            r"\centering",
            f"\\begin{{tabular}}{{{align}}}",
            r"\toprule",
            head + r" \\",
            r"\midrule",
        ]
        lines += [*body, r"\bottomrule", r"\end{tabular}", f"\\caption{{{_tex(sheet.note)}}}", r"\end{table}"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _tex(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text.replace("\n", " "))


def as_csv(summary: Mapping[str, Any]) -> str:
    """Write one line for every method, kind of model and seed, with what belongs to the method as a whole beside it."""
    metric, out = summary["metric"], io.StringIO()
    names = ["method", "algorithm", "model", "metric", "seed", "value", "mean", "spread", "worst_decile"]
    names += [
        "difference",
        "difference_low",
        "difference_high",
        "hurt_local",
        "hurt_team",
        "rounds",
        "steps_per_device",
    ]
    tiers = sorted({link["tier"] for one in summary["methods"] for link in one["links"]})
    names += [f"bytes_{way}_link_{tier}" for tier in tiers for way in ("up", "down")]
    more = [key for key in _FURTHER if any(key in one for one in summary["methods"])]
    names += more
    writer = csv.DictWriter(out, names, lineterminator="\n", restval="")
    writer.writeheader()
    for one in summary["methods"]:
        whole = {key: one[key] for key in ("method", "algorithm", "rounds", "steps_per_device")}
        whole |= {key: one[key] for key in more if key in one}
        for link in one["links"]:
            whole |= {f"bytes_{way}_link_{link['tier']}": link[f"bytes_{way}"] for way in ("up", "down")}
        for kind, model in one["models"].items():
            about = {**whole, "model": kind, "metric": metric}
            about |= {key: model[key] for key in ("mean", "spread", "worst_decile")}
            if kind == "PM":
                gap = one.get("difference") or {}
                about |= {"difference": gap.get("mean"), "difference_low": gap.get("low")}
                about |= {"difference_high": gap.get("high")}
                about |= {f"hurt_{key}": value for key, value in one["hurt"].items()}
            for seed, value in model["by_seed"].items():
                writer.writerow({key: _plain(cell) for key, cell in {**about, "seed": seed, "value": value}.items()})
    return out.getvalue()


def _plain(value: Any) -> Any:
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
