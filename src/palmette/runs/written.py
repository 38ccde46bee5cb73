"""Files of single models for others, each named after its node."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path
from urllib.parse import quote

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from palmette.errors import PalmetteError
from palmette.values import one_line

_LONGEST = 200  # letters of a file's name before its ending; disks allow 255 bytes


def save_tensors(tensors: dict[str, Tensor], path: Path, about: dict[str, str]) -> None:
    """Write a safetensors file as a whole; a symbolic link in its place is replaced, and never followed."""
    part = path.with_name(f".{path.name[:200]}.part")
    part.unlink(missing_ok=True)
    try:
        save_file(tensors, part, metadata=about)
        os.replace(part, path)
    except (OSError, SafetensorError) as error:
        part.unlink(missing_ok=True)
        raise PalmetteError(f"cannot write {path}: {one_line(str(error))}") from None


def file_names(names: list[str]) -> list[str]:
    """Return a file name for every node that any disk can hold and tell from the others."""
    quoted = [quote(name, safe=" ") for name in names]
    times = Counter(text.casefold() for text in quoted)
    return [
        text
        if len(text) <= _LONGEST and times[text.casefold()] == 1
        else f"{text[: _LONGEST - 17]}-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
        for name, text in zip(names, quoted, strict=True)
    ]
