"""JSON and TOML of others, read without letting them take more memory or time than their size allows."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

MOST = 1 << 26  # bytes of a file of settings or facts; one of a million names has a fifth of that
_DOTS = 128  # parts of one key: trees have at most 64 tiers
# The reader of TOML keeps every beginning of a dotted key, so that a key of 100,000 parts would take 40 GB.
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_CHAIN = re.compile(rf"""(?<![A-Za-z0-9_"'-])(?:{_PART}[ \t]*+\.[ \t]*+){{{_DOTS}}}""")


def from_json(data: bytes, most: int = MOST) -> Any:
    """Read JSON; what is none, is nested without end, or has more than so many bytes, is a `ValueError`."""
    try:
        return json.loads(_small(data, most))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def from_toml(data: bytes) -> dict[str, Any]:
    """Read TOML; what is none, or is nested without end, is a `ValueError`."""
    text = _small(data).decode("utf-8")
    if _CHAIN.search(text):
        raise ValueError(f"it has a key of more than {_DOTS} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _small(data: bytes, most: int = MOST) -> bytes:
    if len(data) > most:
        raise ValueError(f"it has {len(data):,} bytes, and may have {most:,}")
    return data
