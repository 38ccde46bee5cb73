"""Text that other people wrote, made harmless for a terminal: what would act on it is shown instead.

Names of devices, teams, columns and files come from tables, configs and folders of others. A terminal obeys control characters
in them: an escape sequence can move the cursor, rename the window, or hide a line. Files keep such names as they are.
"""

from __future__ import annotations

import re

# Control characters (C0, DEL, C1), separators of lines, marks that turn the direction of text, characters without any width,
# and halves of characters that came from a wrong decoding. Joiners (U+200C, U+200D) stay: words of many languages need them.
_ACTING = (
    "\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f"
)
_ALL = re.compile(f"[{_ACTING}]")
_IN_LINES = re.compile(f"(?![\n\t])[{_ACTING}]")


def visible(text: str, *, lines: bool = False) -> str:
    r"""Return a text with every character that would act on a terminal as its escape, such as ``\x1b``.

    Args:
        text: Any text.
        lines: Whether it may have several lines; then ends of lines and tabs stay as they are.
    """
    return (_IN_LINES if lines else _ALL).sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
