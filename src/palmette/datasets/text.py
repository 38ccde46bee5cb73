"""What data sets of text have in common: tokens, the vocabulary, and windows of each device's text.

A device's text is one stream of tokens, words or characters, with ``<eos>`` at the end of every piece: a speech, a post or a
line. It is cut into windows of ``length`` + 1 tokens that do not overlap. A sample is one window: its first ``length`` tokens
are the features, its last ``length`` tokens the targets, so that every place predicts the token after it. Nothing is padded:
the rest of a stream, and a device with less than one window, are left out. A device's training and test samples are windows
of one stream, so they may be neighbours.

The vocabulary is made of all devices' text, training and test windows alike, as the papers do: ``<unk>``, ``<eos>``, then
tokens by how often they occur and, of equal ones, in the order of their characters. All others are ``<unk>``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from palmette.datasets.natural import left_out, plant
from palmette.datasets.pool import Pool
from palmette.errors import BadInput
from palmette.tree import Ints
from palmette.values import shown, whole

Unit = Literal["words", "characters"]
UNKNOWN, END = "<unk>", "<eos>"
WORDS = 10_000  # entries of a vocabulary by default

_LENGTH = {"words": 20, "characters": 80}
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*|\d+|[^\w\s]|_")
_RUN = re.compile(r"([!-/:-@\[-`{-~])\1+")
_LONGEST = 100_000  # tokens of a window, so that a slip of the finger does not fill the memory


class Author(NamedTuple):
    """Whose text it is: a device and its team."""

    team: str
    device: str


def split_words(text: str) -> list[str]:
    """Cut a text into lower-case words, numbers and signs; an apostrophe inside a word belongs to it.

    A run of one sign, such as a line of dashes, is one sign.
    """
    return _WORD.findall(_RUN.sub(r"\1", text.lower()))


def language(
    name: str,
    texts: Mapping[Author, Iterable[str]],
    *,
    task: str,
    length: int | None,
    vocabulary: int,
    words: Callable[[str], list[str]] = split_words,
) -> Pool:
    """Make the samples of a language model from the texts of devices.

    Args:
        name: What the data are called.
        texts: Every device's pieces of text, in their order.
        task: What is learned: ``"words"``, the next word, or ``"characters"``, the next character.
        length: Tokens of a sample; ``None`` for 20 words or 80 characters.
        vocabulary: Entries of the vocabulary, ``<unk>`` and ``<eos>`` among them.
        words: Cuts a piece into words.
    """
    if not isinstance(task, str) or task not in _LENGTH:
        raise BadInput(f"task = {shown(task)} must be 'words' (the next word) or 'characters' (the next character)")
    size = whole("length", _LENGTH[task] if length is None else length, 1, _LONGEST)
    most = whole("vocabulary", vocabulary, 3)
    # A number for every token, in the order in which they first occur; the vocabulary is only known at the end.
    number: defaultdict[str, int] = defaultdict()
    number.default_factory = number.__len__
    cut = words if task == "words" else list
    authors = sorted(texts)  # the order of the tree
    streams = [_stream(texts[author], cut, number) for author in authors]
    known = list(number)
    kept, place = _vocabulary(known, np.bincount(np.concatenate(streams), minlength=len(known)), most)
    there = [at for at, stream in enumerate(streams) if len(stream) > size]
    if not there:
        longest = max((len(stream) for stream in streams), default=0)
        raise BadInput(
            f"{name} has no text of {size + 1} tokens (the longest has {longest}), as length = {size} needs; lower length"
        )
    windows = [streams[at][: len(streams[at]) // (size + 1) * (size + 1)].reshape(-1, size + 1) for at in there]
    cells = place[np.concatenate(windows)]
    start: Ints = np.cumsum([0, *map(len, windows)], dtype=np.int64)
    names = [f"{authors[at].team}/{authors[at].device}" for at in there]
    tree = plant(names, [authors[at].team for at in there])
    short = np.array([len(stream) for stream in streams if len(stream) <= size], dtype=np.int64)
    notes = left_out(short, f"fewer than {size + 1:,} tokens", "token", f"data.length = {size:,}")
    return Pool(cells[:, :-1], cells[:, 1:], len(kept), start=start, name=name, tree=tree, words=kept, notes=notes)


def _stream(pieces: Iterable[str], cut: Callable[[str], list[str]], number: Mapping[str, int]) -> Ints:
    tokens = [token for piece in pieces for token in (*cut(piece), END)]
    return np.fromiter(map(number.__getitem__, tokens), dtype=np.int64, count=len(tokens))


def _vocabulary(known: list[str], counts: Ints, most: int) -> tuple[tuple[str, ...], Ints]:
    """Return the vocabulary and, for every token that occurs, its place in it."""
    special = (UNKNOWN, END)
    order = sorted(
        (at for at, token in enumerate(known) if token not in special), key=lambda at: (-counts[at], known[at])
    )
    kept = (*special, *(known[at] for at in order[: most - len(special)]))
    where = {token: at for at, token in enumerate(kept)}
    return kept, np.array([where.get(token, 0) for token in known], dtype=np.int64)
