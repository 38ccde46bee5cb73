"""The file itself: data, style, script and chart library in one page of HTML that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from palmette.errors import PalmetteError

_STATIC = files("palmette.page") / "static"


@cache
def _asset(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """Return the page's own script: the numbered files of the static folder, in order, as one."""
    names = sorted(one.name for one in _STATIC.iterdir() if re.fullmatch(r"\d-.*\.js", one.name))
    return "\n".join(_asset(name) for name in names)


def page(data: dict[str, Any], *, live: bool = False) -> str:
    """Return the page of some data.

    Args:
        data: What `collect` returned.
        live: Whether it is served by ``palmette watch`` and asks for news.
    """
    # A script ends at "</script>", and a comment begins with "<!--", whatever stands around them: so no "<" at all.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    parts = {
        "POLICY": policy(live=live),
        "TITLE": html.escape(f"{data['title']} – Palmette"),
        "STYLE": _asset("page.css"),
        "DATA": text,
        "LIBRARY": _asset("plot.js"),
        "SCRIPT": _script(),
    }
    made = re.sub(r"@([A-Z]+)@", lambda found: parts[found[1]], _asset("page.html"))
    return made.replace('<html lang="en">', '<html lang="en" data-live>', 1) if live else made


def policy(*, live: bool) -> str:
    """Return the content security policy: only the page's own two scripts run, and nothing is loaded from anywhere."""
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in (_asset("plot.js"), _script()))
    news = " connect-src 'self';" if live else ""
    own = f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:;"
    return f"{own}{news} base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def write(text: str, path: Path) -> Path:
    """Write a page, whole or not at all.

    Args:
        text: The page.
        path: The file.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)  # in the folder of a stranger it may be a link to somewhere else
        with open(part, "x", encoding="utf-8") as file:
            file.write(text)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise PalmetteError(f"cannot write {path}: {error.strerror}") from None
    return path
