"""How the command line fails: one line on standard error and an exit code that scripts can tell apart."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from palmette.errors import BadInput, PalmetteError
from palmette.guards.terminal import guarded, say, tell

try:
    from typer import TyperException
except ImportError:  # before 0.26 typer raised the errors of click
    from click import ClickException as TyperException  # type: ignore[import-not-found,no-redef,assignment,unused-ignore]

FAILED, BAD_INPUT, STOPPED = 1, 2, 130


class Stopped(PalmetteError):  # noqa: N818 - reads as what it is
    """Ctrl-C or SIGTERM ended the command; the message says how to go on."""


class OneLineGroup(TyperGroup):
    """Commands whose mistyped options are told in one line, like every other bad input."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the command line; see typer."""
        if rest:
            raise TypeError("give all but the arguments by name")
        with guarded():
            if not standalone_mode:
                return super().main(args, standalone_mode=False, **extra)
            try:
                code = super().main(args, standalone_mode=False, **extra)
            except TyperException as error:
                if text := error.format_message():  # none where the help was shown
                    say(text)
                code = error.exit_code
            sys.exit(code if isinstance(code, int) else 0)

    def make_context(self, *given: Any, **named: Any) -> Any:
        """Read the command's options; see typer."""
        with _stop_told():
            return super().make_context(*given, **named)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; see typer."""
        with _stop_told():
            return super().invoke(ctx)


@contextmanager
def _stop_told() -> Iterator[None]:
    """Say that Ctrl-C ended the command before or after its own work; typer would end it without a word."""
    try:
        yield
    except KeyboardInterrupt as error:
        _leave("stopped", STOPPED, error)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn what went wrong into one line and an exit code; bugs keep their traceback."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *rest, **more: say(f"warning: {message}")
            yield
    except Stopped as error:
        _leave(str(error), STOPPED, error)
    except KeyboardInterrupt as error:
        _leave("stopped", STOPPED, error)
    except BadInput as error:
        _leave(str(error), BAD_INPUT, error)
    except PalmetteError as error:
        _leave(str(error), FAILED, error)
    except MemoryError as error:
        _leave("there is not enough memory for this; use fewer devices or a smaller model", FAILED, error)
    except BrokenPipeError:
        raise  # the reader of our output went away; typer ends quietly
    except OSError as error:
        about = f" ({error.filename})" if error.filename else ""
        _leave(f"{error.strerror or error}{about}; what was written before is kept", FAILED, error)


def _leave(text: str, code: int, cause: BaseException) -> None:
    say(text)
    raise typer.Exit(code) from cause


def print_json(value: Any) -> None:
    """Print one line of JSON on standard output; what is not a number becomes null, as JSON has no NaN."""
    tell(json.dumps(_finite(value), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value
