"""Run the tests with the oldest version of every dependency that pyproject.toml allows, torch excepted.

Run by hand: ``make prove-bounds``; further arguments go to pytest. The environment is made in a temporary folder, from wheels
only, and removed. torch is the one of constraints.txt: an old one would need an old machine. Libraries of other years warn of
one another; here, unlike in ``make test``, a warning is no error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent


def oldest() -> list[str]:
    """Return every dependency at its lower bound, as pip reads it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [line.replace(">=", "==") for line in project["dependencies"] if not line.startswith("torch>=")]


def main() -> int:
    """Make the environment, say what is in it, run the tests."""
    with tempfile.TemporaryDirectory(prefix="palmette-bounds-") as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pinned = ["-c", str(ROOT / "constraints.txt"), "torch"]
        tests = ["pytest", "pytest-xdist", "hypothesis"]
        subprocess.run([*pip, "--only-binary=:all:", *pinned, *oldest(), *tests], check=True)
        subprocess.run([*pip, "--no-deps", "-e", str(ROOT)], check=True)
        subprocess.run([python, "-m", "pip", "list", "--disable-pip-version-check"], check=True)
        chosen = sys.argv[1:] or ["-n", "2", "--dist", "loadgroup"]
        words = ["-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default", "--disable-warnings", "--tb=short"]
        place = {**os.environ, "PYTHONPATH": str(ROOT / "src")}  # also where another copy of Palmette is installed
        return subprocess.run([python, "-m", "pytest", *words, *chosen], cwd=ROOT, env=place, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
