"""The plot of a measured convergence beside the theorem's bound."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from palmette.theory import Check, Measured


def draw(measured: Measured, found: Check, path: Path) -> None:
    """Draw the squared distance to the optimum over the rounds, on a log axis, and save it as PNG."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    rounds = range(len(measured.distance))
    axes.semilogy(rounds, measured.distance, color="#0072B2", marker="o", markersize=3.5, label="measured")
    if measured.bound is not None:
        axes.semilogy(rounds, measured.bound, color="#D55E00", linestyle="--", label="bound of the theorem")
    axes.set_xlabel("global round")
    axes.set_ylabel("squared distance to the optimum")
    axes.set_title(f"{found.algorithm}: {found.theorem}", loc="left", fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=150)
