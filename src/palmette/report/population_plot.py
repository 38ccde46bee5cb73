"""The picture of a population: sizes, labels by team and by device, and how far they lie apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from palmette.population.description import Description
from palmette.report import style
from palmette.report.picture import save

_INK, _FAINT, _BAR, _CHANCE = style.INK, style.FAINT, style.BLUE, style.VERMILION
_TEAMS, _DEVICES = 40, 300  # lines of a picture; of more, so many at equal distances
_BARS = 40  # teams that have a bar each


def plot_population(about: Description, path: Path, title: str) -> Path:
    """Draw a population and write it as PNG, PDF or SVG, by the end of the file's name.

    Args:
        about: The population in numbers.
        path: The file.
        title: What it is.
    """
    figure = Figure(figsize=(10.5, 7.4), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(style.plain(title), fontsize=12, fontweight="bold")
    halves: Any = figure.subfigures(2, 1, height_ratios=(1, 1.35))
    upper, lower = halves
    first, second, third = upper.subplots(1, 3, width_ratios=(1, 1, 1.25))
    _team_sizes(first, about)
    _device_sizes(second, about)
    _distances(third, about)
    left, right = lower.subplots(1, 2)
    if about.label_counts is not None:
        image = _team_labels(left, about)
        _device_labels(right, about)
        bar = lower.colorbar(image, ax=[left, right], shrink=0.85, pad=0.01)
        bar.set_label("share of the training samples", fontsize=8.5, color=_INK)
        bar.ax.tick_params(labelsize=8)
        bar.outline.set_visible(False)
    else:
        _targets(left, right, about)
    return save(figure, path)


def _team_sizes(axes: Any, about: Description) -> None:
    sizes = about.team_sizes
    if not len(sizes):
        _bare(axes, "devices per team")
        axes.text(0.5, 0.5, "no teams: all devices\nare the server's", ha="center", va="center", color=_FAINT)
        axes.set_axis_off()
        return
    if len(sizes) <= _BARS:
        axes.bar(range(len(sizes)), sizes, color=_BAR, width=0.8)
        axes.set_xlim(-0.6, len(sizes) - 0.4)
        names = about.population.tree.names(1)
        named = len(names) <= 5 and max(map(len, names)) <= 10
        if named:
            axes.set_xticks(range(len(names)), [style.plain(name) for name in names])
        else:
            _integers(axes.xaxis)
        _bare(axes, "devices per team", "" if named else "team, in the order of the tree", "devices")
    else:
        _histogram(axes, sizes, f"devices per team ({len(sizes):,} teams)", "devices", "teams")


def _device_sizes(axes: Any, about: Description) -> None:
    sizes = about.population.start.diff().numpy()
    _histogram(axes, sizes, "samples per device", "samples, training and test", "devices")


def _histogram(axes: Any, sizes: Any, title: str, below: str, beside: str) -> None:
    low, high = int(sizes.min()), int(sizes.max())
    if low == high:
        axes.bar([0], [len(sizes)], color=_BAR, width=0.5)
        axes.set_xlim(-1, 1)
        axes.set_xticks([0], [f"{low:,} each"])
    elif high > 30 * max(low, 1):
        axes.hist(sizes, bins=np.geomspace(max(low, 1), high + 1, 24), color=_BAR)
        axes.set_xscale("log")
    elif high - low < 24:
        axes.hist(sizes, bins=np.arange(low, high + 2) - 0.5, color=_BAR, rwidth=0.85)
        _integers(axes.xaxis)
    else:
        axes.hist(sizes, bins=24, color=_BAR)
    _integers(axes.yaxis)
    _bare(axes, title, below, beside)


def _distances(axes: Any, about: Description) -> None:
    """Draw every distance as a bar, and as a tick the one that random groups of the same sizes have."""
    words = {
        "teams": "teams from all",
        "devices": "devices from\ntheir team" if len(about.team_sizes) else "devices from all",
    }
    lines = list(about.apart.items())
    for line, (_, one) in enumerate(lines):
        axes.barh(line, one.mean, color=_BAR, height=0.55)
        axes.vlines(
            one.chance, line - 0.38, line + 0.38, color=_CHANCE, linewidth=2.5, label="by chance" if not line else None
        )
        axes.text(max(one.mean, one.chance), line, f"  {one.mean:.2f}", va="center", fontsize=8.5, color=_INK)
    names = [f"{name.split(' of ')[0]}: {words[name.split(' of ')[1]]}" for name, _ in lines]
    axes.set_yticks(range(len(lines)), names, fontsize=8.5)
    axes.set_ylim(len(lines) - 0.45, -0.55)
    axes.set_xlim(0, 1.2 * max([0.05, *(max(one.mean, one.chance) for _, one in lines)]))
    _bare(axes, "how far apart, on average", "the line: random groups of the same sizes")
    axes.xaxis.label.set_color(_CHANCE)
    axes.tick_params(axis="y", length=0, labelsize=8.5)


def _team_labels(axes: Any, about: Description) -> Any:
    assert about.label_counts is not None
    counts, names = about.label_counts, about.population.tree.names(1) if len(about.team_sizes) else ["all devices"]
    some = _some(len(counts), _TEAMS)
    share = counts[some] / np.maximum(counts[some].sum(1, keepdims=True), 1)
    image = _shares(axes, share, about)
    short = [style.plain(names[one], 14) for one in some.tolist()]
    axes.set_yticks(range(len(some)), short, fontsize=8.5 if len(some) <= 20 else 6)
    left_out = f" ({len(some)} of {len(counts):,} shown)" if len(some) < len(counts) else ""
    axes.set_title(f"labels by team{left_out}" if len(about.team_sizes) else "labels", fontsize=10, color=_INK)
    return image


def _device_labels(axes: Any, about: Description) -> None:
    some = _some(len(about.devices), _DEVICES)
    _shares(axes, about.device_shares[some], about)
    team = about.population.tree.parents[0][about.devices[some]]
    edges = np.flatnonzero(np.diff(team)) + 0.5
    if len(edges) <= _TEAMS:
        axes.hlines(edges, -0.5, about.device_shares.shape[1] - 0.5, color=_CHANCE, linewidth=0.9)
    axes.set_yticks([])
    trains = about.population.devices - (0 if about.population.unseen is None else int(about.population.unseen.sum()))
    left_out = f" ({len(some)} of {trains:,} shown)" if len(some) < trains else ""
    axes.set_title(f"labels by device, team after team{left_out}", fontsize=10, color=_INK)


def _shares(axes: Any, share: Any, about: Description) -> Any:
    image = axes.imshow(
        share,
        aspect="auto",
        cmap="Blues",
        vmin=0,
        vmax=max(0.2, float(about.device_shares.max())),
        interpolation="nearest",
    )
    axes.set_xlabel("group of labels (label modulo 64)" if about.grouped else "label", fontsize=8.5, color=_INK)
    if share.shape[1] <= 20:
        axes.set_xticks(range(share.shape[1]))
    axes.tick_params(labelsize=8, length=0, colors=_INK)
    for side in axes.spines.values():
        side.set_visible(False)
    return image


def _targets(left: Any, right: Any, about: Description) -> None:
    """Draw the targets of a regression by team and by device."""
    assert about.targets is not None
    some = _some(len(about.targets), 4 * _TEAMS)
    mean, spread = about.targets[some].T
    left.errorbar(range(len(some)), mean, spread, fmt="o", markersize=4, color=_BAR, ecolor=_FAINT, elinewidth=1)
    if len(about.team_sizes):
        _integers(left.xaxis)
    else:
        left.set_xticks([0], ["all devices"])
        left.set_xlim(-1, 1)
    left_out = f" ({len(some)} of {len(about.targets):,} shown)" if len(some) < len(about.targets) else ""
    which, below = (" by team", "team, in the order of the tree") if len(about.team_sizes) else ("", "")
    _bare(left, f"target{which}: mean and standard deviation{left_out}", below, "target")
    right.hist(about.device_shares[:, 0], bins=30, color=_BAR)
    _integers(right.yaxis)
    _bare(right, "mean target of a device", "mean target", "devices")


def _some(count: int, most: int) -> Any:
    """Return so many numbers below a count at most, at equal distances."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def _integers(axis: Any) -> None:
    axis.set_major_locator(MaxNLocator(integer=True))


def _bare(axes: Any, title: str, below: str = "", beside: str = "") -> None:
    axes.set_title(title, fontsize=10, color=_INK)
    axes.set_xlabel(below, fontsize=8.5, color=_INK)
    axes.set_ylabel(beside, fontsize=8.5, color=_INK)
    axes.tick_params(labelsize=8, colors=_INK)
    style.bare(axes)
