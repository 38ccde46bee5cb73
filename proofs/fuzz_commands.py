"""Commands of ``palmette`` in this process, with what they say held to account."""

from __future__ import annotations

import io
import sys
from functools import cache
from typing import Any

import typer.main

from palmette.cli.app import app
from palmette.guards.visible import visible

_REFUSALS = (1, 2)


class Refused(Exception):  # noqa: N818 - reads as what it is
    """A command said no, in one line and with the exit code for it."""


class BadlySaid(Exception):  # noqa: N818
    """A command said something in a way that nobody should have to read."""


@cache
def _app() -> Any:
    return typer.main.get_command(app)


def command(*words: object) -> str:
    """Run a command and return what it printed; a refusal is `Refused`, and bad manners are `BadlySaid`."""
    given = [str(word) for word in words]
    before = sys.stdout, sys.stderr
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in before]
    sys.stdout, sys.stderr = streams
    code: Any = 0
    try:
        _app().main(given, prog_name="palmette")
    except SystemExit as leaving:
        code = leaving.code
    finally:
        sys.stdout, sys.stderr = before
    out, said = (stream.buffer.getvalue().decode("utf-8") for stream in streams)  # type: ignore[attr-defined]
    if code not in (0, *_REFUSALS):
        raise BadlySaid(f"{given[0]} ended with the exit code {code!r}: {said[-300:]}")
    for text in (said,) if given[0] == "predict" else (out, said):  # predictions are data, and exact in a file
        if visible(text, lines=True) != text:
            raise BadlySaid(f"{given[0]} wrote control characters: {text[-300:]!r}")
    lines = said.splitlines()
    reports = given[0] == "verify" or given[:2] == ["data", "check"]  # what is wrong is what they print
    silent = code and not reports and (not lines or not lines[-1].startswith("palmette: "))
    if silent or "Traceback" in said:
        raise BadlySaid(f"{given[0]} ended with {code} and said {said[-300:]!r}")
    if code == 2 or (code == 1 and given[0] not in ("verify", "show", "compare")):
        raise Refused(lines[-1] if lines else out.strip().splitlines()[-1])
    return out
