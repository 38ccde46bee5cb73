"""Data sets of text: what a sample is, who has it, what is taken out, and files that are damaged."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import palmette as pm
from palmette.cli.collection import about
from palmette.datasets import DATASETS, load
from palmette.datasets.newsgroups import address, clean
from palmette.datasets.text import split_words
from palmette.datasets.wikitext import TOPICS, pages, topic
from palmette.errors import BadInput
from palmette.runs.objects import hash_samples

POSTS = {
    (
        "sci.space",
        3,
    ): "From: Ann <Ann@Moon.org>\nSubject: Rockets\n\nIn article <1> bob@x.org writes:\n> quoted words\nRockets fly!\n",
    ("sci.space", 20): "From: ann@moon.org (Ann B.)\nLines: 2\n\nThey fly high, very high.\n--\nAnn, on the moon\n",
    ("sci.med", 5): "From: bob@x.org\n\nDoctors don't fly at all, I say to you.\n",
    ("rec.autos", 7): "From: bob@x.org\n\nCars drive on roads, and caf\xe9s are beside the roads.\n",
}
WIKI = (
    " \n = Battle of Somewhere = \n \n Armies met and fought . \n \n = = Aftermath = = \n \n Nobody won . \n = 1 and x = \n"
    " text goes on . \n \n = Du Fu = \n \n A poet of the Tang dynasty . \n"
)


def write(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def words_of(pool: Any, device: str) -> list[str]:
    """Return a device's windows as texts."""
    at = pool.tree.names(0).index(device)
    some = np.concatenate([pool.x, pool.y[:, -1:]], 1)[pool.start[at] : pool.start[at + 1]]
    return [" ".join(pool.words[token] for token in row) for row in some]


@pytest.fixture
def roles(tmp_path: Path) -> Path:
    rows = [
        {"play": "hamlet", "role": "HAMLET", "speeches": ["To be, or not to be.", "Words, words, words!"]},
        {"play": "hamlet", "role": "GHOST", "speeches": ["Mark me."]},
        {"play": "lear", "role": "FOOL", "speeches": ["To be so old, and not so wise."]},
    ]
    write(tmp_path / "shakespeare" / "shakespeare_roles.jsonl.gz", lines(rows))
    return tmp_path


def test_a_devices_text_is_cut_into_windows_whose_every_place_predicts_the_next_token(roles: Path) -> None:
    pool = load("shakespeare", folder=roles, length=4)
    assert pool.tree is not None
    assert pool.tree.names(1) == ["hamlet", "lear"]
    assert pool.tree.names(0) == ["hamlet/HAMLET", "lear/FOOL"]  # the ghost has no five tokens
    assert pool.notes == ("1 device has fewer than 5 tokens and is left out, 4 tokens in all (data.length = 4)",)
    assert pm.make_population("shakespeare", folder=roles, length=4, test=0.4, least=1).notes == pool.notes
    assert words_of(pool, "hamlet/HAMLET") == ["to be , or not", "to be . <eos> words", ", words , words !"]
    assert np.array_equal(pool.x[:, 1:], pool.y[:, :-1])
    assert pool.x.dtype == pool.y.dtype == np.int64
    # By count, then by the alphabet; the ghost's words count too.
    assert pool.words == (
        *("<unk>", "<eos>", ",", ".", "be", "to", "words", "not", "so", "!", "and", "mark", "me", "old", "or", "wise"),
    )
    assert pool.classes == len(pool.words)
    small = load("shakespeare", folder=roles, length=4, vocabulary=5)
    assert words_of(small, "hamlet/HAMLET")[0] == "<unk> be , <unk> <unk>"
    letters = load("shakespeare", folder=roles, task="characters", length=7)
    assert words_of(letters, "hamlet/HAMLET")[0] == "T o   b e ,   o"


def test_words_are_lower_case_and_a_run_of_one_sign_is_one_sign() -> None:
    assert split_words("Don't -- STOP_it... 42 caf\xe9s!!") == [
        "don't",
        "-",
        "stop",
        "_",
        "it",
        ".",
        "42",
        "caf\xe9s",
        "!",
    ]


def test_options_that_mean_nothing_are_refused(roles: Path) -> None:
    for options, why in (
        ({"task": "lines"}, "task = 'lines' must be 'words'"),
        ({"length": 0}, "length"),
        ({"length": 50}, "no text of 51 tokens .the longest has 16., as length = 50 needs; lower length"),
        ({"vocabulary": 2}, "vocabulary"),
    ):
        with pytest.raises(BadInput, match=why):
            load("shakespeare", folder=roles, **options)
    with pytest.raises(BadInput, match=r"shakespeare needs the file shakespeare_roles\.jsonl\.gz, looked for at"):
        load("shakespeare", folder=roles / "nowhere")


# -- newsgroups ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def posts(tmp_path: Path) -> Path:
    rows = [{"group": group, "id": str(number), "text": text} for (group, number), text in POSTS.items()]
    write(tmp_path / "lines" / "newsgroups20" / "all.jsonl.gz", lines(rows))
    with tarfile.open(tmp_path / "20news-bydate.tar.gz", "w:gz") as archive:
        # As the public archive has them: newest first, in two folders, in Latin-1.
        for part, ((group, number), text) in zip(itertools.cycle(("test", "train")), reversed(POSTS.items())):
            entry = tarfile.TarInfo(f"20news-bydate-{part}/{group}/{number}")
            entry.size = len(data := text.encode("latin-1"))
            archive.addfile(entry, io.BytesIO(data))
    return tmp_path


def test_posts_belong_to_authors_in_newsgroups_or_to_newsgroups_in_topics(posts: Path) -> None:
    pool = load("newsgroups", folder=posts, length=2)
    assert pool.tree is not None
    assert pool.tree.names(0) == ["rec.autos/bob@x.org", "sci.med/bob@x.org", "sci.space/ann@moon.org"]
    assert pool.tree.names(1) == ["rec.autos", "sci.med", "sci.space"]
    # Two spellings of one address; no headers, no quotes, no signature.
    assert words_of(pool, "sci.space/ann@moon.org") == [
        "rockets fly !",
        "<eos> they fly",
        "high , very",
        "high . <eos>",
    ]
    topics = load("newsgroups", folder=posts, length=2, device="newsgroup")
    assert topics.tree is not None
    assert topics.tree.names(1) == ["rec", "sci"]
    assert topics.tree.names(0) == ["rec/rec.autos", "sci/sci.med", "sci/sci.space"]
    with pytest.raises(BadInput, match="device = 'topic' must be 'author' or 'newsgroup'"):
        load("newsgroups", folder=posts, device="topic")
    with pytest.raises(BadInput, match="quotes must be true or false, not 'no'"):
        load("newsgroups", folder=posts, quotes="no")


def test_the_public_archive_and_lines_of_json_give_the_same_samples(posts: Path) -> None:
    one, other = (load("newsgroups", folder=one, length=5) for one in (posts, posts / "lines"))
    assert one.words == other.words
    assert np.array_equal(one.x, other.x)
    assert "caf\xe9s" in (one.words or ())


def test_files_that_serve_instead_of_the_download_count_as_here(posts: Path, tmp_path: Path) -> None:
    assert about(DATASETS["newsgroups"], posts / "lines")["here"]
    for part in ("train", "valid", "test"):
        assert not about(DATASETS["wikitext"], tmp_path)["here"]  # with some parts only there is more to download
        write(tmp_path / "wikitext-2" / f"wiki.{part}.tokens", WIKI)
    assert about(DATASETS["wikitext"], tmp_path)["here"]


def test_what_is_taken_out_of_a_post() -> None:
    body = "Me> Old.\n  : older\nNew: yes.\nX wrote:\nM" + "!" * 60 + "\nMine.\n--\nSigned\n"
    assert clean(body, quotes=False, signatures=False) == "New: yes.\nMine."
    assert clean(body, quotes=True, signatures=False) == "Me> Old.\n  : older\nNew: yes.\nX wrote:\nMine."
    assert clean(body, quotes=False, signatures=True) == "New: yes.\nMine.\n--\nSigned"
    assert address("Subject: a\nFrom:  HOST!User (Some One)\n") == "host!user"
    assert address("From: (Only a Name)") == "only a name"
    assert address("Subject: none") == "unknown"


# -- wikitext ------------------------------------------------------------------------------------------------------------


def test_pages_are_devices_and_words_of_their_titles_topics(tmp_path: Path) -> None:
    found = pages(WIKI)
    assert [title for title, _ in found] == ["Battle of Somewhere", "Du Fu"]
    assert "= 1 and x =" in found[0][1]  # a formula is no title
    assert [topic(title) for title, _ in found] == ["battle", "other"]
    assert topic("Sonic the Hedgehog ( 1991 video game )") == "video game"
    assert len({word for some in TOPICS.values() for word in some}) == sum(
        map(len, TOPICS.values())
    )  # each in one topic
    for part in ("train", "valid", "test"):
        write(tmp_path / "unpacked" / "wikitext-2" / f"wiki.{part}.tokens", WIKI)
    with zipfile.ZipFile(tmp_path / "wikitext-2-v1.zip", "w") as archive:
        for part in ("train", "valid", "test"):
            archive.writestr(f"wikitext-2/wiki.{part}.tokens", WIKI)
    pool, other = load("wikitext", folder=tmp_path, length=3), load("wikitext", folder=tmp_path / "unpacked", length=3)
    assert np.array_equal(pool.x, other.x)
    assert pool.tree is not None
    assert pool.tree.names(0)[0] == "battle/test-1 Battle of Somewhere"
    assert words_of(pool, "battle/test-1 Battle of Somewhere")[0] == "= Battle of Somewhere"
    write(tmp_path / "some" / "wikitext2_valid_test" / "valid.txt.gz", WIKI)
    with pytest.warns(UserWarning, match="there is no train and no test part in .*wikitext2_valid_test"):
        assert load("wikitext", folder=tmp_path / "some", length=3).tree.devices == 2
    write(tmp_path / "some" / "wikitext2_valid_test" / "valid.txt.gz", "no title\n")
    with pytest.warns(UserWarning, match="no train"), pytest.raises(BadInput, match=r"valid.txt.gz has no page"):
        load("wikitext", folder=tmp_path / "some")


# -- damaged files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "file", "data"),
    [
        ("shakespeare", "shakespeare_roles.jsonl.gz", b""),
        ("shakespeare", "shakespeare_roles.jsonl.gz", b"no gzip"),
        ("shakespeare", "shakespeare_roles.jsonl.gz", gzip.compress(b'{"play": "x"}\n', mtime=0)),
        ("shakespeare", "shakespeare_roles.jsonl.gz", gzip.compress(b"{}{}\n", mtime=0)),
        (
            "shakespeare",
            "shakespeare_roles.jsonl.gz",
            gzip.compress(b'{"play": "x", "role": "y", "speeches": 3}\n', mtime=0),
        ),
        ("shakespeare", "shakespeare_roles.jsonl.gz", gzip.compress(b"\xff\xfe\n", mtime=0)),
        ("newsgroups", "20news-bydate.tar.gz", b"no tar"),
        ("newsgroups", "all.jsonl.gz", gzip.compress(b'{"group": "a.b", "id": "x", "text": "y"}\n', mtime=0)),
        ("wikitext", "wikitext-2-v1.zip", b"no zip"),
    ],
)
def test_damaged_files_are_named(name: str, file: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(data)
    with pytest.raises(BadInput, match=file.replace(".", r"\.")):
        load(name, folder=tmp_path)


def test_truncated_files_are_named(posts: Path, roles: Path) -> None:
    for name, file in (
        ("newsgroups", "20news-bydate.tar.gz"),
        ("shakespeare", "shakespeare/shakespeare_roles.jsonl.gz"),
    ):
        path = posts / file
        path.write_bytes(path.read_bytes()[:-20])
        with pytest.raises(BadInput, match=f"{path} is damaged .*get it again"):
            load(name, folder=posts)
    with zipfile.ZipFile(posts / "wikitext-2-v1.zip", "w") as archive:
        archive.writestr("wikitext-2/wiki.train.tokens", WIKI)
    with pytest.raises(BadInput, match=r"wikitext-2-v1\.zip holds no file 'wikitext-2/wiki\.valid\.tokens'"):
        load("wikitext", folder=posts)


# -- real files ----------------------------------------------------------------------------------------------------------


def test_the_real_plays_are_pinned(data_folder: Path) -> None:
    people = pm.make_population("shakespeare", vocabulary=2000, folder=data_folder)
    assert (people.devices, people.tree.size(1), len(people.x), people.classes) == (826, 37, 46927, 2000)
    assert hash_samples(people) == "934d6337c86ed75bdb136952ad941a05"
    few = pm.make_population("shakespeare", vocabulary=2000, per_team=2, least=20, folder=data_folder)
    assert few.words == people.words  # the vocabulary does not depend on who is chosen
    assert few.devices == 74
    assert int(few.start.diff().min()) >= 20


def test_real_posts_and_pages_are_pinned(data_folder: Path, tmp_path: Path) -> None:
    with gzip.open(data_folder / "newsgroups20" / "all.jsonl.gz", "rb") as file:  # all of them take too long for a test
        write(tmp_path / "all.jsonl.gz", b"".join(itertools.islice(file, 1000)))
    people = pm.make_population("newsgroups", folder=tmp_path)
    assert (people.devices, people.tree.size(1)) == (305, 2)
    assert hash_samples(people) == "15d8217b724ace5b2074897141fe34ac"
    with pytest.warns(UserWarning, match="there is no train part"):
        people = pm.make_population("wikitext", folder=data_folder)
    assert (people.devices, people.tree.size(1), len(people.x)) == (120, 9, 21867)
    assert hash_samples(people) == "e2f5475f5b49786782098f2edb829e99"
