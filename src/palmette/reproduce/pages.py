"""``reproduction.md`` and ``reproduction.html``: all results in one place, written from what was kept, not by hand.

What both say is made once, as blocks; Markdown and HTML are two ways to write them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from palmette.errors import BadInput
from palmette.guards.texts import from_json
from palmette.reproduce import telling
from palmette.reproduce.blocks import Block, anchor, as_html, markdown
from palmette.reproduce.conduct import FIGURES, FORMAT, RESULTS
from palmette.reproduce.reading import names

KEPT, IMAGES = "reproduction", "images/reproduction"
PAPERS = {
    "pFedMT": "Banerjee, Yurtsever, Bhuyan: Personalized Multi-tier Federated Learning (pFedMT)",
    "PerMFL": "Banerjee, Dadras, Yurtsever, Bhuyan: Personalized Multi-tier Federated Learning (PerMFL)",
    "sFedHP": "Liu, Wang, Li, Yang, Xu, Zhou: Sparse Federated Learning with Hierarchical Personalized Models (sFedHP)",
    "Group Personalized FL": "Liu, Hui, Peng, Wang: Group Personalized Federated Learning",
    "Async-L2GD": "Lyu, Hanzely, Kolar: Personalized Federated Learning with Multiple Known Clusters (Async-L2GD)",
}
_MARKS = {"holds": "✓", "does not hold": "✗", "cannot be decided": "?"}


def results_in(*folders: Path) -> list[tuple[dict[str, Any], Path]]:
    """Return the results that lie in some folders, each with where its figures are; the first folder that has one counts.

    Args:
        *folders: Folders of experiments that were run, or of results that were written before.
    """
    found: dict[tuple[str, str], tuple[dict[str, Any], Path]] = {}
    for folder in folders:
        kept = [(path, path.parent / FIGURES) for path in sorted(folder.glob(f"*/{RESULTS}"))]
        kept += [(path, folder.parent / IMAGES) for path in sorted(folder.glob("*-quick.json"))]
        kept += [(path, folder.parent / IMAGES) for path in sorted(folder.glob("*-whole.json"))]
        for path, figures in kept:
            try:
                told = from_json(path.read_bytes())
                key = (told["name"], told["size"])
                if told["format"] != FORMAT:
                    raise ValueError(f"it has the format {told['format']}")
            except (ValueError, KeyError, TypeError) as error:
                raise BadInput(f"cannot read {path}: {error}; run the experiment again") from None
            found.setdefault(key, (told, figures))
    order = {name: place for place, name in enumerate(names())}
    return [found[key] for key in sorted(found, key=lambda key: (order.get(key[0], len(order)), key))]


def write(out: Path, *folders: Path) -> list[Path]:
    """Write both pages, the results and the figures into a folder, and return the files.

    Args:
        out: The folder.
        *folders: Where experiments were run; those whose results are in the folder already need not be there.
    """
    kept = out / KEPT
    results = results_in(*folders, kept)
    if not results:
        raise BadInput("there are no results yet; run an experiment first, as in palmette reproduce l2gd-table1")
    kept.mkdir(parents=True, exist_ok=True)
    (out / IMAGES).mkdir(parents=True, exist_ok=True)
    written = []
    for told, figures in results:
        for figure in told["figures"]:
            place = out / IMAGES / _picture(told, figure)
            source = figures / f"{figure['name']}.png"
            if source.is_file() and source.resolve() != place.resolve():
                shutil.copyfile(source, place)
        path = kept / f"{told['name']}-{told['size']}.json"
        lasting = _rounded({key: value for key, value in told.items() if key != "folder"})
        path.write_text(json.dumps(lasting, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        written.append(path)
    blocks = list(_page([told for told, _ in results], out))
    page = {"reproduction.md": markdown(blocks), "reproduction.html": as_html(blocks, out)}
    for name, text in page.items():
        (out / name).write_text(text, encoding="utf-8")
    return [*(out / name for name in page), *written]


def _rounded(value: Any) -> Any:
    """Return data whose numbers have digits that mean something."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(part) for key, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value


def _picture(told: Mapping[str, Any], figure: Mapping[str, Any]) -> str:
    """Return the file of a figure: the name is an experiment's own, and experiments at two sizes have two."""
    own = figure["name"].removeprefix(told["name"]).lstrip("-")
    return "-".join(filter(None, (told["name"], own, told["size"]))) + ".png"


# -- what the pages say ------------------------------------------------------------------------------------------------


def _page(results: Sequence[Mapping[str, Any]], out: Path) -> Iterable[Block]:
    yield Block("heading", "Do the papers' claims hold?", level=1)
    yield Block(
        "paragraph",
        "The tables and figures of the five papers that Palmette implements, run again, with a verdict on every claim. "
        "This page is written by `palmette reproduce --write docs` from the results beside it, not by hand.",
    )
    yield Block("paragraph", telling.READ)
    yield Block(
        "paragraph",
        "A verdict with the words *cut size* is about smaller runs than the paper's, one with *other data* about the data "
        "that stand in for its own: it says what happens there, and is a hint about the paper's setting, not a proof.",
    )
    yield Block(
        "paragraph",
        "A cell has our number after the last round with the standard deviation over seeds, and the paper's. It *agrees* "
        "where the two differ by no more than the table's tolerance (1 point for accuracies) or twice both standard "
        "deviations together; otherwise ours is *higher* or *lower*. Cells of *other data* than the paper's, and of a "
        "*cut size*, are not held against its numbers. The papers report the best round in places; we report the last.",
    )
    yield Block(
        "paragraph",
        f"{_total(results)}One of them: `palmette reproduce permfl-table1`; at its published size: `palmette reproduce "
        "permfl-table1 --size whole`; what there is: `palmette list experiments`.",
    )
    if lacking := [name for name in names() if name not in {told["name"] for told in results}]:
        yield Block("paragraph", f"**Not run yet, and not on this page:** {', '.join(lacking)}.")
    yield Block("heading", "All claims", level=2)
    yield from _summary(results)
    yield Block("heading", "What the papers got wrong", level=2)
    yield from _mistakes(results)
    for paper, title in PAPERS.items():
        mine = [told for told in results if told["paper"] == paper]
        if mine:
            yield Block("heading", title, level=2)
        for told in mine:
            yield from _experiment(told, out)
    others = [told for told in results if told["paper"] not in PAPERS]
    for told in others:
        yield from _experiment(told, out)


def _total(results: Sequence[Mapping[str, Any]]) -> str:
    """Say how long the small size of all experiments took, where that is known of each."""
    times = [told["seconds"] for told in results if told["size"] == "quick"]
    known = times and all(times)
    return (
        f"The small size of these {len(times)} experiments took {telling.duration(sum(times))} in all. "
        if known
        else ""
    )


def _summary(results: Sequence[Mapping[str, Any]]) -> Iterable[Block]:
    """Give the table of all claims, and how many hold."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for told in results:
        for claim in told["claims"]:
            one = found.setdefault((told["name"], claim["id"]), {"says": claim["says"]})
            one[told["size"]] = claim
    counts: dict[str, dict[str, int]] = {size: dict.fromkeys(_MARKS, 0) for size in telling.SIZES}
    rows = []
    for (name, number), one in found.items():
        cells = []
        for size in telling.SIZES:
            claim = one.get(size)
            if claim is None:
                cells.append("")
                continue
            counts[size][claim["verdict"]] += 1
            changed = [
                reading for reading, other in claim.get("readings", {}).items() if other["verdict"] != claim["verdict"]
            ]
            note = "".join(f"; {claim['readings'][reading]['verdict']}: {reading}" for reading in changed)
            cells.append(f"{_MARKS[claim['verdict']]} {telling.verdict(claim)}{note}")
        rows.append((number, one["says"], *cells, f"[{name}](#{anchor(name)})"))
    for size, words in telling.SIZES.items():
        if sum(counts[size].values()):
            held, failed, undecided = counts[size].values()
            tally = f"{held} hold, {failed} do not hold, {undecided} cannot be decided"
            yield Block("paragraph", f"At the {words}, of {held + failed + undecided} claims: {tally}.")
    yield Block("table", rows=(("", "claim", *telling.SIZES.values(), "experiment"), *rows))


def _mistakes(results: Sequence[Mapping[str, Any]]) -> Iterable[Block]:
    rows = []
    for told in {one["name"]: one for one in results}.values():
        for wrong in told["wrong"]:
            command = f"`{wrong['command']}`" if wrong["command"] else ""
            rows.append((told["paper"], wrong["says"], command))
    yield Block("table", rows=(("paper", "what is wrong", "the command that shows it"), *dict.fromkeys(rows)))


def _experiment(told: Mapping[str, Any], out: Path) -> Iterable[Block]:
    whole = told["size"] == "whole"
    yield Block("heading", told["name"] + (", published size" if whole else ""), level=3)
    yield Block("paragraph", f"**{told['title']}.** {told['about']}")
    again = f"palmette reproduce {told['name']}{' --size whole' if whole else ''}"
    took = (
        f", {telling.duration(told['seconds'])}" if told["seconds"] else ""
    )  # of parts that were put together it is not known
    yield Block("paragraph", f"`{again}`{took}, Palmette {told['version']}.")
    if cuts := telling.cuts(told["studies"]):
        yield Block("paragraph", "What is cut, left out or stands in for something else:")
        yield Block("list", items=tuple(cuts))
    if told["unstated"]:
        yield Block("paragraph", "What the paper does not state, and what was taken:")
        yield Block("list", items=tuple(told["unstated"]))
    for table in told["tables"]:
        yield from _table(table)
    for figure in told["figures"]:
        if (out / IMAGES / _picture(told, figure)).is_file():
            yield Block("picture", figure["title"], items=(f"{IMAGES}/{_picture(told, figure)}",))
    for claim in told["claims"]:
        yield from _claim(claim)


def _table(table: Mapping[str, Any]) -> Iterable[Block]:
    unit = table["unit"]
    head = (f"{table['title']}{f' ({unit})' if unit else ''}", *(column["title"] for column in table["columns"]))
    rows = []
    for row in table["rows"]:
        cells = [
            "\n".join(filter(None, (telling.ours(cell, unit), telling.theirs(cell, unit)))) for cell in row["cells"]
        ]
        rows.append((row["title"], *cells))
    yield Block("table", rows=(head, *rows))


def _claim(claim: Mapping[str, Any]) -> Iterable[Block]:
    why = f" ({claim['why']})" if claim["why"] else ""
    yield Block(
        "paragraph", f"**{claim['id']}** {claim['says']} **{_MARKS[claim['verdict']]} {telling.verdict(claim)}**{why}"
    )
    items = [telling.contrast(part, claim) for part in claim["parts"]]
    items += [claim["note"]] if claim["note"] else []
    for name, other in claim.get("readings", {}).items():
        same = "the same verdict" if other["verdict"] == claim["verdict"] else f"**{other['verdict']}**"
        parts = "; ".join(telling.contrast(part, claim) for part in other["parts"][:3])
        more = f" and {len(other['parts']) - 3} more" if len(other["parts"]) > 3 else ""
        items.append(f"Read otherwise, {name}: {same}. {parts}{more}")
    if items:
        yield Block("list", items=tuple(items))
