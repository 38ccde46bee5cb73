"""Files of Python that a user names by their path: loaded as modules, with plain sentences for what is wrong with them."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from palmette.errors import BadInput


class MissingFile(BadInput):
    """There is no such file."""


_FILE = re.compile(r"(?P<file>.*\.py)(?::(?P<name>[^/:]*))?", re.DOTALL)
_loaded: dict[Path, tuple[bytes, dict[str, Any]]] = {}


def is_file(path: str) -> bool:
    """Tell whether a text names a file, such as ``./mine.py`` or ``mine.py:Class``, rather than a module."""
    return bool(_FILE.fullmatch(path)) or "/" in path.partition(":")[0]


def parts_of(path: str) -> tuple[Path, str]:
    """Return the file that a text names, from the root of the disk, and the name in it, which may be empty."""
    found = _FILE.fullmatch(path)
    if found is None:
        file, _, name = path.partition(":")
        there = Path(f"{file}.py").expanduser().is_file()
        raise BadInput(
            f"{file} is no file of Python: its name must end in .py"
            + (f"; did you mean {file}.py{':' if name else ''}{name}?" if there else "")
        )
    return Path(os.path.abspath(Path(found["file"]).expanduser())), found["name"] or ""


def load_file(file: Path) -> dict[str, Any]:
    """Load a file of Python as a module and return what it holds; modules beside it are found too.

    A file is loaded once, and again when its text has changed. What it prints goes to standard error, as a command's standard
    output is its result.

    Args:
        file: The file, from the root of the disk.
    """
    text = _read(file)
    if file in _loaded and _loaded[file][0] == text:
        return _loaded[file][1]
    tree = _parsed(file, text)
    _refuse_relative(file, tree)
    digest = hashlib.sha256(os.fsencode(file)).hexdigest()[:8]  # tells two files of one name apart
    name = re.sub(r"\W", "_", file.stem) + f"_{digest}"
    module = ModuleType(name)
    module.__file__ = str(file)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # after all others, so that no file beside it hides an installed module
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        with redirect_stdout(sys.stderr):
            exec(compile(tree, str(file), "exec"), vars(module))
        problem = _hidden(file, tree)
    except (Exception, SystemExit) as error:  # whatever a file of somebody else raises
        problem = _hidden(file, tree) or _told(file, error)
    if problem:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise BadInput(problem)
    _loaded[file] = text, vars(module)
    return vars(module)


def shown(file: Path) -> str:
    """Write a file's path as briefly as one can from the current folder."""
    here = Path.cwd()
    return str(file.relative_to(here)) if file.is_relative_to(here) else str(file)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise MissingFile(f"there is no file {shown(file)}{_near(file)}") from None
    except IsADirectoryError:
        raise BadInput(f"{shown(file)} is a folder, not a file of Python") from None
    except OSError as error:
        raise BadInput(f"the file {shown(file)} cannot be read: {error.strerror}") from None


def _near(file: Path) -> str:
    """Say where a file of that name is, where it is near: a user may stand in another folder than they think."""
    around = [file.parent.parent / file.name, *sorted(file.parent.glob(f"*/{file.name}"))]
    found = next((place for place in around if place.is_file()), None)
    return "" if found is None else f"; there is {shown(found)}"


def _parsed(file: Path, text: bytes) -> ast.Module:
    try:
        return ast.parse(text, str(file))
    except SyntaxError as error:
        where = f" in line {error.lineno}" if error.lineno else ""
        raise BadInput(f"{shown(file)} has a syntax error{where}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:  # a zero byte; brackets without end
        raise BadInput(f"{shown(file)} is no file of Python: {error}") from None


def _refuse_relative(file: Path, tree: ast.Module) -> None:
    """Refuse a file that imports relative to its package, which a file by itself does not have."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            inside, root = [file.stem], file.parent
            while (root / "__init__.py").is_file():
                inside, root = [root.name, *inside], root.parent
            path = ".".join(inside) if len(inside) > 1 else f"my_package.{file.stem}"
            raise BadInput(
                f"{shown(file)} has a relative import in line {node.lineno} (from {'.' * node.level}{node.module or ''} "
                f"import ...), which needs a package: name it by its import path, {path}:MyMethod, from the folder "
                f"{root if len(inside) > 1 else 'that holds the package'}, or import without the dot"
            )


def _imports(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a file imports, by their first name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def _hidden(file: Path, tree: ast.Module) -> str:
    """Say where Python took another module than the one of that name beside the file."""
    for name in _imports(tree):
        beside = [
            place for place in (file.parent / f"{name}.py", file.parent / name / "__init__.py") if place.is_file()
        ]
        taken = getattr(sys.modules.get(name), "__file__", None)
        if beside and taken and Path(taken) not in beside and Path(taken) != file:
            return (
                f"{shown(file)} imports {name!r}, and Python took {taken} in place of {shown(beside[0])}: give the one beside "
                "your file another name"
            )
    return ""


def _told(file: Path, error: BaseException) -> str:
    """Say what went wrong while a file was loaded, with the line."""
    lines = [step.lineno for step in traceback.extract_tb(error.__traceback__) if step.filename == str(file)]
    where = f" in line {lines[-1]}" if lines else ""
    if isinstance(error, ModuleNotFoundError):
        return (
            f"{shown(file)} cannot be loaded: it needs the module {error.name!r}{where}, which is neither installed nor "
            "beside it"
        )
    if isinstance(error, SyntaxError) and error.filename != str(file):
        return (
            f"{shown(file)} cannot be loaded: {error.filename} has a syntax error in line {error.lineno}: {error.msg}"
        )
    if isinstance(error, SystemExit):
        return (
            f"{shown(file)} cannot be loaded: it ends the program{where}; put what is to run under "
            '`if __name__ == "__main__":`'
        )
    return f"{shown(file)} cannot be loaded:{where} {type(error).__name__}: {error}"
