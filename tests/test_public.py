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
    assert set(names) <= set(dir(palmette))


def test_importing_palmette_does_not_wait_for_torch() -> None:
    code = "import sys, palmette; assert 'torch' not in sys.modules; palmette.Tree; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
