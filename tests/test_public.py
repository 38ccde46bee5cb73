"""The public names: all there, all documented, none loaded before it is used."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import palmette


def test_every_public_name_is_found_and_documented() -> None:
    text = Path(palmette.__file__).read_text(encoding="utf-8")
    names = re.findall(r" as (\w+)$", text, re.MULTILINE)
    assert len(names) > 30
    for name in names:
        value = getattr(palmette, name)
        assert name == "ALGORITHMS" or value.__doc__, name
        assert name == "ALGORITHMS" or "ydantic" not in value.__doc__, name
    assert sorted(names) == palmette.__all__
    assert set(names) <= set(dir(palmette))


def test_python_dash_m_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "palmette", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout[:9]) == (0, "palmette ")


def test_importing_palmette_does_not_wait_for_torch_and_a_star_import_gives_the_public_names() -> None:
    code = (
        "import sys, palmette; assert 'torch' not in sys.modules; palmette.Tree; assert 'torch' in sys.modules; "
        "from palmette import *; assert Tree.parse('2x3').devices == 6; assert models.MODELS"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_no_submodule_hides_a_name_of_its_package() -> None:
    found = [
        module for module in pkgutil.walk_packages(palmette.__path__, "palmette.") if "__main__" not in module.name
    ]
    packages = [palmette, *(importlib.import_module(module.name) for module in found if module.ispkg)]
    for module in found:
        importlib.import_module(module.name)  # which binds it in its package, over what was there
    checked = 0
    for package in packages:
        for node in ast.walk(ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("palmette"):
                source = importlib.import_module(str(node.module))
                for name in node.names:
                    there = getattr(package, name.asname or name.name)
                    assert there is getattr(source, name.name), f"{package.__name__}.{name.name}"
                    checked += 1
            elif isinstance(node, ast.FunctionDef | ast.ClassDef) and node.col_offset == 0:
                assert not isinstance(getattr(package, node.name), ModuleType), f"{package.__name__}.{node.name}"
    assert checked > 50
