"""Write what the study behind ``palmette advise`` found into ``docs/advise.md``, with its pictures; see ``make prove-advise``."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pages import write

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "advise.md"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}" if float(value).is_integer() and abs(value) >= 1 else f"{value:.4f}"


def table(found: Mapping[str, Any]) -> str:
    titles = [column["title"] for column in found["columns"]]
    lines = [f"| {' | '.join(['', *titles])} |", f"|{'---|' * (len(titles) + 1)}"]
    for row in found["rows"]:
        cells = [
            number(cell["ours"]) + (f" ± {cell['spread']:.3f}" if cell["spread"] is not None else "")
            for cell in row["cells"]
        ]
        lines.append(f"| {' | '.join([row['title'], *cells])} |")
    return "\n".join(lines)


def targets(found: list[Mapping[str, Any]]) -> str:
    lines = ["| target, on the judged half | found | |", "|---|---|---|"]
    for one in found:
        told = f"{one['parts'][0]['mean']:.4g}"
        lines.append(f"| {one['says']}{' ' + one['note'] if one['note'] else ''} | {told} | {one['verdict']} |")
    return "\n".join(lines)


def main(folder: Path) -> None:
    found = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    write(PAGE, "targets", targets(found["claims"]))
    write(PAGE, "regret", table(found["tables"][0]))
    write(PAGE, "scores", "\n\n".join(f"**{one['title']}**\n\n{table(one)}" for one in found["tables"][1:]))
    for path in map(Path, found["figures"]):
        shutil.copyfile(path, DOCS / "images" / path.name)
    kept = {key: value for key, value in found.items() if key not in ("folder", "figures", "seconds")}
    (DOCS / "advise.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/reproduce/advise-whole"))
