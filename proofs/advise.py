"""Write what the study behind ``palmette advise`` found into docs/measured/advise.md, with pictures (``make prove-advise``)."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pages
from pages import DOCS

PAGE = DOCS / "measured/advise.md"


def number(cell: Mapping[str, Any], whole: bool) -> str:
    """Write a number of a table, with its spread over seeds where there is one."""
    if cell["ours"] is None:
        return ""
    spread = "" if cell["spread"] is None else f" ± {cell['spread']:.3f}"
    return f"{cell['ours']:.0f}" if whole else f"{cell['ours']:.4f}{spread}"


def table(found: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of the study."""
    titles = [column["title"] for column in found["columns"]]
    rows = [
        [row["title"], *(number(cell, "within" in title) for title, cell in zip(titles, row["cells"], strict=True))]
        for row in found["rows"]
    ]
    return pages.table(["", *titles], rows)


def targets(found: list[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table of what was hoped for."""
    rows = [[f"{one['says']} {one['note']}".strip(), f"{one['parts'][0]['mean']:.4g}", one["verdict"]] for one in found]
    return pages.table(["target, on the judged half", "found", "verdict"], rows)


def main(folder: Path) -> None:
    """Write the page from the folder of the study."""
    found = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    scores = [line for one in found["tables"][1:] for line in (f"**{one['title']}**", "", *table(one), "")]
    for mark, lines in (
        ("targets", targets(found["claims"])),
        ("regret", table(found["tables"][0])),
        ("scores", scores[:-1]),
    ):
        pages.write(PAGE, mark, "advise", lines)
    for path in map(Path, found["figures"]):
        shutil.copyfile(path, DOCS / "images" / path.name)
    kept = {key: value for key, value in found.items() if key not in ("folder", "figures", "seconds")}
    (DOCS / "measured/advise.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/reproduce/advise-whole"))
