"""20 newsgroups: Usenet posts of 1993, by author within a newsgroup or by newsgroup within a topic.

What is learned is the body of a post. The headers, with the author's address and the name of the newsgroup, are never part of
it, nor are the lines of encoded files that some posts carry. Quoted lines, which are somebody else's, and signatures are taken
out too unless they are asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.utils import parseaddr
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from palmette.datasets import archives, files
from palmette.datasets.dataset import Dataset, File
from palmette.datasets.pool import Pool
from palmette.datasets.text import WORDS, Author, Unit, language
from palmette.errors import BadInput
from palmette.values import shown

_PLACES = ("newsgroups20", "20newsgroups", "")
_LINES = File("all.jsonl.gz", _PLACES)  # the same posts, one JSON object on a line
_TAR = File(
    "20news-bydate.tar.gz",
    _PLACES,
    sha256="8f1b2514ca22a5ade8fbb9cfa5727df95fa587f4c87b786e15c759fa66d95610",
    url="https://ndownloader.figshare.com/files/5975967",
    instead=((_LINES,),),
)
_PARTS = ("20news-bydate-train", "20news-bydate-test")
_FROM = re.compile(r"^From:(.*)$", re.M)
# Lines of another post: marked by > or | (perhaps after initials) or by a colon, and those that announce them.
_QUOTED = re.compile(r"\s*(?:\w{0,4}[>|]|:|In article\b)")
_SAID = ("writes:", "wrote:", "says:", "said:")
_ENCODED = re.compile(r"^M[ -`]{60}\n", re.M)  # a full line of a uuencoded file, which has no lower-case letters
_SIGNATURE = re.compile(r"^--\s*$", re.M)


class Post(NamedTuple):
    """A post: its newsgroup, its number and all of its text, headers and body."""

    group: str
    number: int
    text: str


def newsgroups(
    *,
    folder: str | Path | None = None,
    task: Unit = "words",
    device: Literal["author", "newsgroup"] = "author",
    length: int | None = None,
    vocabulary: int = WORDS,
    quotes: bool = False,
    signatures: bool = False,
) -> Pool:
    """Return the 18,846 posts of 20 newsgroups as samples of a language model.

    The posts of a device follow one another by newsgroup and number, each with ``<eos>`` at its end. Headers and
    lines of encoded files are taken out. Words are lower-case, characters are as they are. The vocabulary is made of all
    devices' text.

    Args:
        folder: Where the file is.
        task: What is learned: ``"words"``, the next word, or ``"characters"``, the next character.
        device: What a device is: ``"author"``, the posts of one address in one newsgroup, with the newsgroup as its team; or
            ``"newsgroup"``, with its top level (comp, rec, sci, talk, alt, soc, misc) as its team.
        length: Tokens of a sample; by default 20 words or 80 characters. Samples do not overlap.
        vocabulary: Size of the vocabulary, made of all devices' text; rarer tokens are ``<unk>``.
        quotes: Whether to keep lines that quote other posts.
        signatures: Whether to keep signatures: all after the last line that is ``--``.
    """
    if not isinstance(device, str) or device not in ("author", "newsgroup"):
        raise BadInput(f"device = {shown(device)} must be 'author' or 'newsgroup'")
    for name, value in (("quotes", quotes), ("signatures", signatures)):
        if not isinstance(value, bool):
            raise BadInput(f"{name} must be true or false, not {shown(value)}")
    texts: dict[Author, list[str]] = {}
    for post in _posts(folder):
        head, _, body = post.text.replace("\r\n", "\n").partition("\n\n")
        top = post.group.partition(".")[0]
        whose = Author(post.group, address(head)) if device == "author" else Author(top, post.group)
        texts.setdefault(whose, []).append(clean(body, quotes=quotes, signatures=signatures))
    return language("newsgroups", texts, task=task, length=length, vocabulary=vocabulary)


def address(head: str) -> str:
    """Return the address of a post's author in lower case, without the name that stands beside it; ``unknown`` for none."""
    found = _FROM.search(head)
    return "unknown" if found is None else _normalised(found[1])


@cache
def _normalised(line: str) -> str:
    line = " ".join(line.lower().split())
    return parseaddr(line)[1] or line.strip("() ") or "unknown"


def clean(body: str, *, quotes: bool, signatures: bool) -> str:
    """Return the body of a post without encoded files and, unless they are to stay, quoted lines and its signature."""
    if not signatures and (marks := list(_SIGNATURE.finditer(body))):
        body = body[: marks[-1].start()]
    body = _ENCODED.sub("", body)
    if not quotes:
        lines = body.split("\n")
        body = "\n".join(line for line in lines if not _QUOTED.match(line) and not line.rstrip().endswith(_SAID))
    return body.strip()


def _posts(folder: str | Path | None) -> list[Post]:
    """Read all posts, in the order of newsgroup and number, from whichever file is there."""
    lines = archives.present(_LINES, folder)
    path = lines or files.find("newsgroups", _TAR, folder)
    try:
        found = [
            Post(str(row["group"]), int(row["id"]), str(row["text"]))
            for row in (archives.read_json_lines(path, ("group", "id", "text")) if lines else _in_tar(path))
        ]
    except ValueError as fault:
        if isinstance(fault, BadInput):
            raise
        raise BadInput(f"{path} has a post without a number ({fault}); it is not the expected data set") from None
    if not found:
        raise BadInput(f"{path} has no posts in {' or '.join(_PARTS)}; it is not the expected data set, get it again")
    return sorted(found)


def _in_tar(path: Path) -> Iterator[dict[str, str]]:
    for name, data in archives.read_tar(path):
        part, *rest = name.removeprefix("./").split("/")
        if part in _PARTS and len(rest) == 2:
            yield {"group": rest[0], "id": rest[1], "text": data.decode("latin-1")}


NEWSGROUPS = Dataset(
    "18,846 posts of 20 newsgroups, the next word or character: authors as devices, newsgroups as teams",
    newsgroups,
    natural=True,
    model="lm",
    files=(_TAR,),
    licence="None is stated: public Usenet posts of 1993, used for research",
    origin="K. Lang, NewsWeeder, ICML 1995; the version by date of J. Rennie, as scikit-learn downloads it",
    how="The same posts may also lie there as all.jsonl.gz, one JSON object on a line with the keys group, id and text.",
)
