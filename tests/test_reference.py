"""Every setting has a sentence, and lists, errors and the page docs/reference/settings.md show it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field
from typer.testing import CliRunner

from palmette.algorithms import ALGORITHMS, algorithm
from palmette.cli.app import app
from palmette.cli.keys import data_keys, general_keys, known_keys, model_keys, settings_of
from palmette.cli.reference import NAMES, markdown
from palmette.datasets import DATASETS
from palmette.errors import BadInput
from palmette.protocol.sentences import allowed, brief, letter, sentences, suggestion
from palmette.protocol.settings import described
from palmette.runs.config import RunConfig
from palmette.runs.sections import EngineConfig, ModelConfig
from palmette.task.models import MODELS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"


def palmette(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def said(text: str) -> str:
    return " ".join(text.split())


def all_keys() -> dict[str, list[Any]]:
    keys = {name: settings_of(name) for name in ALGORITHMS}
    keys |= {"run": general_keys(), "data": data_keys()}
    keys |= {f"data {name}": data_keys(name) for name in DATASETS}
    return keys | {f"model {name}": model_keys(name) for name in MODELS}


@pytest.mark.parametrize(
    ("where", "keys"), all_keys().items(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_setting_has_a_whole_sentence_and_says_what_it_allows(where: str, keys: list[Any]) -> None:
    assert keys
    for key in keys:
        assert len(key.sentence) > 15, key.name
        assert key.sentence[0].isupper() or key.sentence[0] in '"`', key.name
        assert key.sentence.endswith("."), key.name
        assert "`" not in key.sentence, key.name
        assert key.values, key.name


def test_the_page_of_settings_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run `make docs`"


def test_what_is_said_of_other_options_belongs_to_none_before_them() -> None:
    def function(*, one: int = 1, **others: int) -> None:
        """Do nothing.

        Args:
            one: The first.
            **others: All others,
                and there are many.
        """

    assert sentences(function)["one"] == "The first."


def test_sentences_come_from_the_class_then_from_those_it_is_derived_from() -> None:
    class Base:
        """Base.

        Attributes:
            a: One thing that goes
                on (K in the paper).
            b: Another.
        """

    class Derived(Base):
        """Derived.

        Attributes:
            b: Its own ``word``.

        Other:
            c: Not a setting.
        """

    assert sentences(Derived) == {"a": "One thing that goes on (K in the paper).", "b": "Its own word."}
    assert letter("One thing (K in the paper).") == "K"
    assert letter("One thing.") is None
    assert brief("One thing (K in the paper).") == "one thing"


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "whole number"),
        (Annotated[float, Field(gt=0, le=1)], "number above 0 and at most 1"),
        (Literal["auto"] | Annotated[int, Field(ge=1)], '"auto" or whole number of at least 1'),
        (tuple[float, ...] | None, "a list of: number"),
        (
            int | tuple[int, ...] | dict[str, int],
            "whole number or a list of these or one value per node name {name=value}",
        ),
        (dict[str, Annotated[float, Field(ge=0)]], "one value per node name {name=value}: number of at least 0"),
        (object, "any value"),
    ],
)
def test_types_are_told_in_words(annotation: Any, words: str) -> None:
    assert allowed(annotation) == words


@pytest.mark.parametrize(
    ("name", "word", "meant"),
    [
        *(("permfl", word, "alpha") for word in ("lr", "learning_rate", "learning-rate", "step_size")),
        *(("permfl", word, "lam") for word in ("lambda", "lamda", "mu")),
        *(("permfl", word, "local_steps") for word in ("L", "epochs", "local_epochs", "E")),
        *(("permfl", word, "batch_size") for word in ("batch", "batchsize", "B")),
        *(("permfl", word, "rounds") for word in ("T", "num_rounds", "global_rounds")),
        ("permfl", "K", "team_steps"),
        ("sfedhp", "K", "local_steps"),  # each paper has its own letters
        ("sfedhp", "R", "team_steps"),
        ("groupperfl", "K", "local_epochs"),
        ("groupperfl", "S", "clients"),
        ("l2gd", "lr", "eta"),
        ("l2gd", "p_0", "between"),
        ("permfl", "dtype", "engine.dtype"),
        ("permfl", "dataset", "data.name"),
        ("permfl", "weight_decay", "model.l2"),
        ("permfl", "gama", "gamma"),
    ],
)
def test_a_setting_is_found_by_its_usual_name_and_by_its_papers_letter(name: str, word: str, meant: str) -> None:
    done = palmette("run", name, "--set", f"{word}=1")
    assert done.exit_code == 2
    assert (
        f"unknown setting '{word}'; did you mean '{meant}' ({brief(known_keys(name, 'mclr')[meant])})?" in done.stderr
    )


def test_what_is_meant_by_nothing_gets_the_list() -> None:
    assert suggestion("zzz", {"alpha": "", "beta": "", "engine.chunk": ""}) == "; there is alpha, beta"
    assert suggestion("engine.zzz", {"engine.chunk": ""}) == "; there is engine.chunk"


def test_errors_about_a_value_show_the_sentence_of_the_setting() -> None:
    with pytest.raises(BadInput) as caught:
        algorithm("permfl", lam=-1)
    assert str(caught.value).endswith(f"not -1 ({brief(described(ALGORITHMS['permfl'])['lam'])})")
    done = palmette("run", "permfl", "--rounds", "0", "--set", "engine.dtype=float16", "--set", "model.l2=-1")
    for value, kind, name in ((0, RunConfig, "rounds"), ("float16", EngineConfig, "dtype"), (-1, ModelConfig, "l2")):
        assert f"not {value!r} ({brief(sentences(kind)[name])})" in done.stderr


# -- palmette list TOPIC NAME ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("topic", "name"), [(topic, name) for topic, names in NAMES.items() for name in names])
def test_one_entry_is_shown_whole_and_fits(topic: str, name: str) -> None:
    done = palmette("list", topic, name)
    assert done.exit_code == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    told = json.loads(palmette("list", topic, name, "--json").stdout)
    assert told["name"] == name
    text = said(done.stdout)
    assert said(told["summary"]) in text
    for one in told["settings"]:
        assert one["name"] in text


def test_an_algorithm_is_shown_with_paper_sentences_values_letters_and_presets() -> None:
    told = json.loads(palmette("list", "algorithms", "permfl", "--json").stdout)
    steps = next(one for one in told["settings"] if one["name"] == "local_steps")
    assert steps["about"] == "Gradient steps of a device each time its team asks (L in the paper)."
    assert (steps["default"], steps["allowed"], steps["letter"]) == (20, "whole number of at least 1", "L")
    assert told["presets"]["published"]["beta"] == 0.6
    text = palmette("list", "algorithms", "permfl").stdout
    for part in ("Banerjee", "alpha=0.05", "Learning rate of the devices", "Preset published", "beta=0.6"):
        assert part in text


def test_an_entry_that_is_not_there_is_answered_with_the_nearest() -> None:
    for topic, word, meant in (
        ("algorithms", "prmfl", "permfl"),
        ("datasets", "diggits", "digits"),
        ("models", "dn", "dnn"),
    ):
        done = palmette("list", topic, word)
        assert done.exit_code == 2
        assert f"did you mean '{meant}'?" in done.stderr
