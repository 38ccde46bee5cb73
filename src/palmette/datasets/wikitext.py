"""WikiText-2: pages of Wikipedia as devices, the topic of a page's title as its team.

The topic is the first row of `TOPICS` with a word that occurs in the title; a page that fits none is in the team ``other``. The
first five rows are the topics of the Group Personalized FL paper, which does not say by which words it chose them.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from palmette.datasets import archives, files
from palmette.datasets.dataset import Dataset, File
from palmette.datasets.pool import Pool
from palmette.datasets.text import WORDS, Author, Unit, language
from palmette.errors import BadInput, PalmetteWarning

TOPICS: dict[str, tuple[str, ...]] = {
    "battle": (
        *(
            "battle",
            "war",
            "military",
            "army",
            "navy",
            "raid",
            "siege",
            "operation",
            "invasion",
            "battalion",
            "squadron",
        ),
        *(
            "regiment",
            "brigade",
            "division",
            "battleship",
            "warship",
            "cruiser",
            "destroyer",
            "submarine",
            "tank",
            "fort",
        ),
        *("uss", "hms", "sms", "campaign", "raaf", "raf"),
    ),
    "film": ("film", "films", "episode", "office", "television", "tv", "day", "x-files", "simpsons"),
    "video game": ("video", "game", "games"),
    "music": ("song", "album", "tour", "band", "ep", "soundtrack", "blues", "symphony", "opera"),
    "disease": ("disease", "syndrome", "virus", "cancer", "fever", "disorder"),
    "storm": ("hurricane", "storm", "typhoon", "cyclone", "tropical", "tornado"),
    "road": ("route", "highway", "road", "interchange", "bridge", "street", "railway", "station", "interstate", "line"),
    "sport": (
        *(
            "football",
            "basketball",
            "team",
            "season",
            "cup",
            "race",
            "olympics",
            "shield",
            "championship",
            "bowl",
            "match",
        ),
        *("wrestlemania", "league", "prix", "series"),
    ),
    "place": (
        "park",
        "site",
        "mount",
        "mountains",
        "river",
        "island",
        "city",
        "county",
        "castle",
        "temple",
        "church",
        "creek",
    ),
}
_PLACES = ("wikitext-2", "wikitext2", "wikitext", "")
_PARTS = ("train", "valid", "test")
_KEPT = tuple(File(f"{part}.txt.gz", ("wikitext2_valid_test", *_PLACES)) for part in _PARTS)
_UNPACKED = tuple(File(f"wiki.{part}.tokens", _PLACES) for part in _PARTS)
_ZIP = File(
    "wikitext-2-v1.zip",
    _PLACES,
    sha256="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    url="https://wikitext.smerity.com/wikitext-2-v1.zip",
    instead=(_UNPACKED, _KEPT),
)
_TITLE = re.compile(r"^ = ([^=].*?) = $")


def wikitext(
    *, folder: str | Path | None = None, task: Unit = "words", length: int | None = None, vocabulary: int = WORDS
) -> Pool:
    """Return the pages of WikiText-2 as samples of a language model; a device is a page, a team a topic.

    The text comes cut into words, upper and lower case as they are, with rare ones as ``<unk>`` already. Each line, headings
    among them, has ``<eos>`` at its end. The pages of the public training, validation and test part are all devices alike.

    Args:
        folder: Where the files are.
        task: What is learned: ``"words"``, the next word, or ``"characters"``, the next character.
        length: Tokens of a sample; by default 20 words or 80 characters. Samples do not overlap.
        vocabulary: Size of the vocabulary, made of all devices' text; rarer tokens are ``<unk>``.
    """
    texts: dict[Author, list[str]] = {}
    for part, path, text in _parts(folder):
        found = pages(text)
        if not found:
            raise BadInput(f"{path} has no page, a line ' = Title = ' between empty lines; get it again")
        for number, (title, lines) in enumerate(found, 1):
            texts[Author(topic(title), f"{part}-{number} {title}")] = lines
    return language("wikitext", texts, task=task, length=length, vocabulary=vocabulary, words=str.split)


def pages(text: str) -> list[tuple[str, list[str]]]:
    """Return the title and the lines of every page."""
    found: list[tuple[str, list[str]]] = []
    lines = [line.rstrip("\n") for line in text.split("\n")]
    for before, line, after in zip(["", *lines], lines, [*lines[1:], ""], strict=False):
        title = _TITLE.match(line)
        # A formula may look like a title, but stands within a paragraph.
        if title is not None and not before.strip() and not after.strip():
            found.append((title[1], []))
        if found and line.strip():
            found[-1][1].append(line.strip())
    return found


def topic(title: str) -> str:
    """Return the topic of a title."""
    words = set(title.lower().split())
    return next((name for name, some in TOPICS.items() if words & set(some)), "other")


def _parts(folder: str | Path | None) -> list[tuple[str, Path, str]]:
    """Return the parts that are there, each with its file and its text."""
    if (path := archives.present(_ZIP, folder)) is not None:
        texts = archives.read_zip(path, [f"wikitext-2/{file.name}" for file in _UNPACKED])
        return [(part, path, text) for part, text in zip(_PARTS, texts, strict=True)]
    there = [
        (part, path)
        for part, *both in zip(_PARTS, _UNPACKED, _KEPT, strict=True)
        if (path := archives.present(both[0], folder) or archives.present(both[1], folder)) is not None
    ]
    if not there:
        files.find("wikitext", _ZIP, folder)  # which says where it was looked for
    missing = [part for part in _PARTS if part not in dict(there)]
    if missing:
        warnings.warn(
            f"wikitext: there is no {' and no '.join(missing)} part in {there[0][1].parent}; the pages of the others are used",
            PalmetteWarning,
            stacklevel=2,
        )
    return [(part, path, archives.read_text(path)) for part, path in there]


WIKITEXT = Dataset(
    "WikiText-2, the next word or character: pages of Wikipedia as devices, topics of their titles as teams",
    wikitext,
    natural=True,
    model="lm",
    files=(_ZIP,),
    licence="CC BY-SA 3.0, Wikipedia",
    origin="S. Merity, C. Xiong, J. Bradbury and R. Socher, Pointer Sentinel Mixture Models, 2016",
    how="Unpacked files (wiki.train.tokens, wiki.valid.tokens, wiki.test.tokens) or gzipped ones (train.txt.gz, valid.txt.gz, "
    "test.txt.gz) are read too; parts that are missing are left out, and a run says so.",
)
