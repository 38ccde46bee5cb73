"""The page: one file of HTML that tells a run or a study, and the same page live while it goes on."""

from __future__ import annotations

from pathlib import Path

from palmette.errors import BadInput
from palmette.page.collect import collect
from palmette.page.html import page, write
from palmette.runs import Result
from palmette.runs.folder import REPORT
from palmette.studies.study import Study


def write_report(*what: str | Path | Result | Study, out: str | Path | None = None, theory: bool = True) -> Path:
    """Write a page about runs or studies, one file of HTML that loads nothing, and return where it is.

    Several runs on one page are compared: which method is ahead, on which devices, and at what cost.

    Args:
        *what: Runs and studies: their folders, results or studies.
        out: The file; by default ``report.html`` in the folder of the run or study, and in the current folder where there are
            several.
        theory: Whether to work out which conditions of the algorithm's theorem hold, for which the samples are read again.
    """
    if not what:
        raise BadInput("name at least one run or study to report on")
    folders = [one.folder if isinstance(one, Result | Study) else Path(one) for one in what]
    place = (folders[0] / REPORT if len(folders) == 1 else Path(REPORT)) if out is None else Path(out)
    check_place(place, folders)
    return write(page(collect(folders, theory=theory)), place)


def check_place(place: Path, folders: list[Path]) -> None:
    """Refuse a file that a page cannot be written to, before anything is computed."""
    if place.is_dir():
        raise BadInput(f"{place} is a folder; name a file in it, as in {place / REPORT}")
    if not place.parent.is_dir() and place.parent not in folders:
        raise BadInput(f"there is no folder {place.parent} to write {place.name} to")
    if place.suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"{place}: a page is a file of HTML; call it {place.with_suffix('.html').name}")
