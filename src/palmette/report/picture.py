"""How every plot is written: whole or not at all, the same bytes for the same numbers, one line when it cannot be."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palmette.errors import BadInput, PalmetteError, PalmetteWarning

if TYPE_CHECKING:  # who only checks the name of a file does not wait for matplotlib
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".pdf", ".svg")
# Dates would make two writings of one plot differ.
_ABOUT: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
_NO_SIGN = re.compile(r"Glyph (\d+)")


def check_file(option: str, file: Path) -> None:
    """Refuse a file that cannot be written because of where it is to lie, before any work is done.

    Args:
        option: What named it, as the user wrote it.
        file: The file.
    """
    if not file.parent.is_dir():
        raise BadInput(f"{option} {file}: there is no folder {file.parent}")
    if file.is_dir():
        raise BadInput(f"{option} {file} is a folder; name a file in it")


def check_picture(option: str, file: Path) -> None:
    """Refuse a file that no plot can be written to: where it is to lie, and by the end of its name."""
    check_file(option, file)
    if file.suffix.lower() not in SUFFIXES:
        raise BadInput(f"{option} {file}: write it as {', '.join(SUFFIXES)}, by the end of its name")


def save(figure: Figure, path: Path, *, hint: str = "", dpi: int | None = None) -> Path:
    """Write a figure as PNG, PDF or SVG, by the end of the file's name, and return where.

    Args:
        figure: What was drawn.
        path: The file.
        hint: What to add where it cannot be written.
        dpi: Dots per inch of a PNG; the figure's own by default.
    """
    from palmette.report.style import FILES, settings

    kind = path.suffix.lower().removeprefix(".")
    with _whole(path, hint) as part, settings(FILES), warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        figure.savefig(part, format=kind, metadata=_ABOUT[kind], dpi=dpi or "figure")
    _pass_on(heard)
    return path


def save_text(text: str, path: Path) -> Path:
    """Write what belongs to a plot, such as its numbers, and return where."""
    with _whole(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


@contextmanager
def _whole(path: Path, hint: str = "") -> Iterator[Path]:
    """Give a file to write to, which takes its place when it is complete; what goes wrong is told in one line."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise PalmetteError(f"cannot write {path}: {error.strerror}{hint}") from None


def _pass_on(heard: list[warnings.WarningMessage]) -> None:
    """Say what matplotlib said; of letters that its font lacks, one line for all."""
    missing = []
    for one in heard:
        if found := _NO_SIGN.match(str(one.message)):
            missing.append(chr(int(found[1])))
        else:
            warnings.warn(str(one.message), one.category, stacklevel=3)
    if missing:
        signs = ", ".join(dict.fromkeys(missing))
        warnings.warn(
            f"the font of the plot has no sign for {signs}; a box stands in their place", PalmetteWarning, stacklevel=3
        )
