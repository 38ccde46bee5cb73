"""The public names: all there, all documented, none loaded before it is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import palmette


def test_every_public_name_is_found_and_documented() -> None:
    text = Path(palmette.__file__).read_text(encoding="utf-8")
    names = re.findall(r" as (\w+)$", text, re.MULTILINE)
    assert len(names) > 30
    for name in names:
        value = getattr(palmette, name)
        assert name in ("ALGORITHMS", "settings") or value.__doc__, name
    assert sorted(names) == palmette.__all__
    assert set(names) <= set(dir(palmette))


def test_a_star_import_gives_the_public_names() -> None:
    code = "from palmette import *; assert Tree.parse('2x3').devices == 6; assert models.MODELS"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_python_dash_m_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "palmette", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout[:9]) == (0, "palmette ")


def test_importing_palmette_does_not_wait_for_torch() -> None:
    code = "import sys, palmette; assert 'torch' not in sys.modules; palmette.Tree; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
