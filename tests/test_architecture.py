"""The listing of the package is its plan: every part may import only the parts below it."""

from __future__ import annotations

import ast
from pathlib import Path

import palmette

PACKAGE = Path(palmette.__file__).parent
# From the ground up; parts in one line do not know each other.
LAYERS = (
    ("guards",),
    ("errors",),
    ("address", "files", "values"),
    ("imports",),
    ("track",),
    ("tree",),
    ("datasets",),
    ("population", "task"),
    ("learner", "tables"),
    ("protocol",),
    ("links", "blocks"),
    ("algorithms", "engines"),
    ("theory",),
    ("runs",),
    ("report",),
    ("studies", "bench", "testing"),
    ("figures", "page"),
    ("reproduce", "deploy"),
    ("cli",),
    ("__main__",),
)
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}


def imports(file: Path) -> set[str]:
    """The parts of the package a file imports at run time."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "palmette":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("palmette."):
            found.add(str(node.module).split(".")[1])
    return found


def test_every_part_has_its_place_in_the_plan() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__"} == set(RANK)


def test_imports_go_down_only() -> None:
    wrong = []
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.parent == PACKAGE and file.stem == "__init__":
            continue
        part = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        wrong += [
            f"{file.relative_to(PACKAGE)} imports {other}"
            for other in imports(file) - {part}
            if RANK[other] >= RANK[part]
        ]
    assert wrong == []


def test_tests_work_in_a_temporary_folder() -> None:
    root = Path(__file__).parents[1]
    assert not Path.cwd().is_relative_to(root)
    assert not list(root.glob("*/identity.json")), "the folder of a run among the sources"
