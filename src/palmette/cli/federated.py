"""A federation on the terminal: its tree with what every node does, and the table of the demo."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.tree import Tree

from palmette.guards.screen import Screen, Text
from palmette.report.words import size

if TYPE_CHECKING:
    from palmette.deploy.demo import Shown

_PAUSE = 1.0
_MANY = 40  # children of one node that are shown


def show(told: dict[str, Any]) -> None:
    """Show a federation once."""
    Screen().print(_picture(told))


def show_live(ask: Callable[[], dict[str, Any]]) -> None:
    """Show a federation again and again."""
    with Live(_picture(ask()), console=Screen(), auto_refresh=False) as live:
        while True:
            time.sleep(_PAUSE)
            live.update(_picture(ask()), refresh=True)


def _picture(told: dict[str, Any]) -> Group:
    title = Text(f"{told.get('federation', '')}: {told.get('phase', '')}", style="bold")
    return Group(title, _branch(told, Tree(_node(told))), *_recent(told))


def _branch(told: dict[str, Any], tree: Tree) -> Tree:
    children = told.get("children", [])
    for child in children[:_MANY]:
        _branch(child, tree.add(_node(child)))
    if len(children) > _MANY:
        there = sum(bool(child.get("connected")) for child in children)
        tree.add(Text(f"... {len(children)} in all, {there} of them connected", style="dim"))
    return tree


def _node(told: dict[str, Any]) -> Text:
    """Return one line about a node."""
    line = Text().append(str(told.get("name", "?")), "bold" if told.get("children") else "")
    connected = told.get("connected", True)
    line.append(f"  {told.get('phase', '')}", style="dim" if connected else "red")
    if scores := told.get("scores"):
        lead = min(set(next(iter(scores.values()))) - {"loss"} or {"loss"})
        line.append("  " + lead + " " + "  ".join(f"{kind} {each[lead]:.3f}" for kind, each in scores.items()))
    if link := told.get("link"):
        line.append(f"  {link['exchanges']} exchanges, {size(link['bytes_down'])} down, {size(link['bytes_up'])} up")
        if link["no_answer"]:
            line.append(f", {link['no_answer']} without an answer", style="yellow")
    if told.get("starts", 1) > 1:
        line.append(f"  started {told['starts']} times", style="yellow")
    return line


def _recent(told: dict[str, Any]) -> list[Text]:
    return [Text(str(line), style="dim") for line in told.get("recent", [])]


def show_demo(shown: Shown) -> None:
    """Show how the federation and the simulation compare."""
    table = Table("model", "federation", "simulation", box=None, pad_edge=False)
    for kind, (mine, other) in shown.scores.items():
        table.add_row(kind, f"{mine:.4f}", f"{other:.4f}")
    screen = Screen()
    screen.print(table)
    found, nodes = shown.parity, len(shown.kits.nodes)
    screen.print(f"same bits: {'yes' if found.same else 'NO'}, in all {found.states} rows that {nodes} nodes keep")
    for wrong in found.wrong[:5]:
        screen.print(f"  differs: {wrong}")
    rounds = f"{shown.training:.1f} s of them in {shown.kits.whole.rounds} rounds"
    screen.print(f"{shown.seconds:.0f} s with the start of the processes, {rounds}")
