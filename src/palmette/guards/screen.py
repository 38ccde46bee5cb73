"""What is drawn on a terminal with rich: tables, bars and styled text, with all text in them made visible.

A test sees to it that no other module takes rich's own `Console` and `Text`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

import rich.text
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style

from palmette.guards.terminal import Guarded
from palmette.guards.visible import visible

_LONG = 10_000  # letters of one text that are drawn


class Text(rich.text.Text):
    """A text with a style; what would act on a terminal is shown from the start, so that its width is known."""

    def __init__(self, text: str = "", style: str | Style = "", **options: Any) -> None:
        super().__init__(_drawn(text), style, **options)

    def append(self, text: rich.text.Text | str, style: str | Style | None = None) -> Text:
        """Add a text at the end; see rich."""
        super().append(_drawn(text) if isinstance(text, str) else text, style)
        return self


def _drawn(text: str) -> str:
    """Return a text as it is drawn; of a cell of a million letters, which would take minutes, both ends."""
    text = text if len(text) <= _LONG else f"{text[: _LONG // 2]} ... {text[-_LONG // 2 :]}"
    return visible(text, lines=True)


class Screen(Console):
    """A console that draws text as it is: without markup, and with all that would act on a terminal made visible.

    Args:
        stderr: Whether it writes to standard error.
        **options: Options of rich's console.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        super().__init__(**{"stderr": stderr, "highlight": False, "markup": False, "emoji": False, **options})

    @property
    def file(self) -> IO[str]:
        """Where it writes: past the guard, because its own styles are escape sequences, too."""
        found = Console.file.fget(self)  # type: ignore[attr-defined]
        return found.unguarded if isinstance(found, Guarded) else found

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(self, text: str, **options: Any) -> rich.text.Text:
        """Make a text of a plain string; see rich."""
        return super().render_str(_drawn(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Draw anything; see rich."""
        for segment in super().render(renderable, options):
            harmless = segment.control or segment.text.isprintable()
            yield segment if harmless else Segment(visible(segment.text, lines=True), segment.style)
