"""Every command with its arguments and options, as the page docs/reference/commands.md.

It is read from the functions themselves, not from what typer makes of them, which differs from version to version.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.models import ArgumentInfo, OptionInfo

from palmette.cli.app import app

_EXAMPLE = "[bold]Example:[/bold]"
_MARKUP = re.compile(r"\[/?(bold|dim)\]")

_INTRO = """\
# Commands

Every command with all its options. This page is written by `make docs` from the command line itself; in the terminal,
`palmette --help` lists the commands and `palmette run --help` shows the options of one.

- **Standard output** has the result: tables or, with `--json`, one line with one JSON object ([what is in it](json.md)).
  Progress, warnings and errors go to standard error.
- **The exit code** is 0 when the command did its work, 1 when it failed, 2 when what was given cannot be used
  ([all of them](exit-codes.md)).
- **Settings** of algorithms, data, models and links are no options; all are given by `--set KEY=VALUE`
  ([every setting](settings.md)) or in a [config file](config.md).
"""


@dataclass(frozen=True)
class Parameter:
    """An argument or an option of a command.

    Attributes:
        names: How an option is written, such as ``("--quiet", "-q")``; of an argument, nothing.
        value: The word for its value, such as ``FILE``; empty for a switch.
        about: What it is for.
        required: Whether it must be given.
    """

    names: tuple[str, ...]
    value: str
    about: str
    required: bool


def all_commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Give every command by its words, those of groups after the others."""
    yield from _commands("palmette", app)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from _commands(f"palmette {group.name}", group.typer_instance)


def _commands(words: str, group: typer.Typer) -> Iterator[tuple[str, Callable[..., Any]]]:
    for one in group.registered_commands:
        assert one.callback is not None
        yield f"{words} {one.name or one.callback.__name__.replace('_', '-')}", one.callback


def parameters(command: Callable[..., Any]) -> list[Parameter]:
    """Return the arguments and options of a command, in the order of its help."""
    hints = get_type_hints(command, include_extras=True)
    return [_parameter(one, hints[one.name]) for one in inspect.signature(command).parameters.values()]


def _parameter(given: inspect.Parameter, hint: Any) -> Parameter:
    assert get_origin(hint) is Annotated, given.name
    kind, *extras = get_args(hint)
    info = next(extra for extra in extras if isinstance(extra, ArgumentInfo | OptionInfo))
    required = given.default is inspect.Parameter.empty
    about = _plain(info.help or "")
    shown = not required and given.default not in (None, False, ()) and info.show_default
    if shown:
        default = given.default.value if isinstance(given.default, Enum) else given.default
        default = "yes" if default is True else default
        about = f"{about} (default: {default})"
    choices = [one.value for one in kind] if inspect.isclass(kind) and issubclass(kind, Enum) else []
    value = info.metavar or _or(choices) or ("" if kind is bool else _word(kind))
    value = value.strip("[]").replace("|", " or ")
    if isinstance(info, ArgumentInfo):
        return Parameter((), value if info.metavar else given.name.upper(), _with(about, choices), required)
    # What is written first in `typer.Option("--quiet", "-q")` is kept as its default.
    said = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str) and one.startswith("-")]
    names = [name for one in said for name in one.split("/")]  # a switch and what turns it off
    return Parameter(tuple(names) or (f"--{given.name.replace('_', '-')}",), value, about, required)


def _word(kind: Any) -> str:
    """Return the word for a value that has none of its own: what kind of number it is."""
    return "N" if kind is int else "NUMBER" if kind is float else "TEXT"


def _or(words: Iterable[str]) -> str:
    first, last = (listed := list(words))[:-1], listed[-1:]
    return " or ".join([", ".join(first), *last]) if first else "".join(last)


def _with(about: str, choices: list[str]) -> str:
    return f"{about.removesuffix('.')}: {_or(choices)}." if choices else about


def _plain(text: str) -> str:
    """Return a help text as Markdown: without the terminal's markup, in one line."""
    plain = _MARKUP.sub("", text).replace("\\[", "[")
    return " ".join(plain.split()).replace("<", "\\<").replace("*", "\\*")


# -- the page --------------------------------------------------------------------------------------------------------------


def markdown() -> str:
    """Write every command as one page."""
    known = list(all_commands())
    lines = [_INTRO, "| command | what it does |", "|---|---|"]
    for words, command in known:
        lines.append(f"| [{words}](#{words.replace(' ', '-')}) | {_plain(_paragraphs(command)[0])} |")
    for words, command in known:
        lines += ["", f"## {words}", "", *_section(words, command)]
    return "\n".join(lines) + "\n"


def _paragraphs(command: Callable[..., Any]) -> list[str]:
    return (inspect.getdoc(command) or "").split("\n\n")


def _section(words: str, command: Callable[..., Any]) -> list[str]:
    known = parameters(command)
    arguments = [one for one in known if not one.names]
    usage = [one.value if one.required else f"[{one.value}]" for one in arguments]
    first, *rest = _paragraphs(command)
    lines = [_plain(first), "", "```text", " ".join([words, "[OPTIONS]", *usage]), "```"]
    for paragraph in rest:
        if paragraph.startswith(_EXAMPLE):
            example = " ".join(_MARKUP.sub("", paragraph).removeprefix("Example:").replace("\\[", "[").split())
            lines += ["", "For instance:", "", "```text", example, "```"]
        else:
            lines += ["", _plain(paragraph)]
    if arguments:
        lines += ["", "| argument | what it is |", "|---|---|"]
        lines += [f"| {one.value} | {one.about} |" for one in arguments]
    if options := [one for one in known if one.names]:
        lines += ["", "| option | what it does |", "|---|---|"]
        lines += [f"| {_written(one)} | {one.about}{' Required.' if one.required else ''} |" for one in options]
    return lines


def _written(option: Parameter) -> str:
    names = ", ".join(f"`{name}`" for name in option.names)
    return f"{names} *{option.value}*" if option.value else names


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(markdown(), encoding="utf-8")
