"""Every key that ``--set`` takes: its default, the values it allows, and the sentence that says what it is."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel

from palmette.algorithms import kind_of
from palmette.datasets import DATASETS
from palmette.errors import BadInput
from palmette.learner import Optimiser
from palmette.population import PARTITIONS, make_population
from palmette.population.selection import Selection
from palmette.protocol.sentences import allowed, letter, sentences
from palmette.protocol.settings import described
from palmette.runs.config import RunConfig
from palmette.runs.linking import ALL, ClockConfig, LinkConfig
from palmette.runs.sections import DataConfig, EngineConfig, ModelConfig
from palmette.tables import read_folders, read_table
from palmette.tables.given import read_hub
from palmette.tables.open import APART
from palmette.task import own
from palmette.task.models import MODELS

TOP = ("rounds", "seed", "tree", "loss", "replay", "evaluate_every", "evaluate_on", "metrics")
GROUPS = ("data", "model", "optimiser", "participation", "links", "clock", "engine", "settings")
LINKS = {
    "devices": 'Participation of devices, the share or number of its devices that a team asks each time: "all", a share '
    'such as "50%" or 0.5, a number such as "5 devices" or 5, or "pass 5" for five at a time, each device once before any is '
    "asked again.",
    "teams": "Participation of teams: the share or number of its teams that the server asks each time, written the same way.",
    "tier2": "Participation of the nodes of tier 2, on trees of four tiers and more.",
    "tier3": "Participation of the nodes of tier 3, on trees of five tiers and more.",
}
_FINGERPRINT = "What the data were known by when a run wrote its config; other data are refused."
_FOUND = "Teams that are found: devices whose training samples are alike are put together, whatever the columns of teams say."
# Said by other keys, or by the data.
_ELSEWHERE = ("tree", "seed", "devices", "source", "options", "shape", "outputs", "words")


@dataclass(frozen=True)
class Key:
    """One key of ``--set``.

    Attributes:
        name: How it is written.
        default: Its default; ``None`` for none, or one that depends on other keys.
        values: The values it allows, in words.
        sentence: What it is.
    """

    name: str
    default: Any
    values: str
    sentence: str

    def as_dict(self) -> dict[str, Any]:
        """Return the key as data, with the paper's letter apart."""
        told = {"name": self.name, "default": self.default, "allowed": self.values, "about": self.sentence}
        return {**told, "letter": letter(self.sentence)}


def settings_of(algorithm: str) -> list[Key]:
    """Return the settings of an algorithm."""
    kind: Any = kind_of(algorithm)
    hints, told = get_type_hints(kind, include_extras=True), described(kind)
    return [
        Key(field.name, _plain(field.default), allowed(hints[field.name]), told[field.name])
        for field in dataclasses.fields(kind)
    ]


def general_keys() -> list[Key]:
    """Return the keys of a run that belong to no algorithm, data set or model."""
    top = [key for key in _fields(RunConfig) if key.name in TOP]
    links = [Key(f"participation.{name}", "all", "text or number", sentence) for name, sentence in LINKS.items()]
    return [*top, *links, *_link_keys("devices"), *_fields(ClockConfig, "clock."), *_engine_keys()]


def _engine_keys() -> list[Key]:
    return [*_fields(Optimiser, "optimiser."), *_fields(EngineConfig, "engine.")]


def _link_keys(name: str) -> list[Key]:
    """Return the keys of one link: of the devices, the teams, further tiers, or of all links."""
    return _fields(LinkConfig, f"links.{name}.")


def data_keys(source: str | None = None) -> list[Key]:
    """Return the keys of a data set: of all there are, or of one with the partition it has by default."""
    chosen = [DATASETS[source]] if source is not None else list(DATASETS.values())
    dealt = [entry.partition for entry in chosen if entry.partition] if source is not None else list(PARTITIONS)
    natural = any(entry.natural for entry in chosen)
    apart = {"partition"} if not dealt else set()  # how samples are dealt out
    apart |= {"tree", "given_teams"} if source is not None and natural else set()
    files = {name for name in ("folder", "pixels") if not any(name in entry.takes for entry in chosen)}
    general = [*_fields(DataConfig, "data."), *_options(make_population, "data.")]
    known: dict[str, Key] = {}
    for key in general:
        if key.name.removeprefix("data.") not in (*apart, *files):
            known.setdefault(key.name, key)
    for entry in chosen:
        own = [key for key in _options(entry.read, "data.", entry.own) if key.name.removeprefix("data.") in entry.own]
        _add(known, own, "" if source is not None else _name_of(entry))
    given = dict(DATASETS[source].options) if source is not None else {}
    for name in dealt:
        _add(known, _dealing_options(PARTITIONS[name], given), name)
    if natural:
        _add(known, _dealing_options(Selection, given), "" if source is not None else "data of devices of their own")
    return list(known.values())


def partition_keys(name: str) -> list[Key]:
    """Return the keys of a partition."""
    return _dealing_options(PARTITIONS[name], {})


def table_keys() -> list[Key]:
    """Return the keys of a table of one's own."""
    general = [key for key in _fields(DataConfig, "data.") if key.name not in ("data.folder", "data.tree")]
    own = [key for key in _options(read_table, "data.") if key.name.removeprefix("data.") not in APART]
    own += [key for key in _options(read_folders, "data.") if key.name in ("data.size", "data.grey")]
    own += [key for key in _options(read_hub, "data.") if key.name == "data.part"]
    own.append(Key("data.teams", None, '"found"', _FOUND))
    own += [key for key in _options(make_population, "data.") if key.name in ("data.found_by", "data.found_teams")]
    return [*general, *own, Key("data.fingerprint", None, "text", _FINGERPRINT)]


def model_keys(name: str) -> list[Key]:
    """Return the keys of a model; of one of the user's own, by its path, the arguments that it takes."""
    general = _fields(ModelConfig, "model.")
    return [*general, *(_options(MODELS[name].make, "model.") if name in MODELS else _of_own_model(name))]


def takes_any(model: str) -> bool:
    """Tell whether a model of the user's own takes settings of any name."""
    return model not in MODELS and "**" in own.settings(model, own.find(model))


def _of_own_model(path: str) -> list[Key]:
    """Return the arguments of what makes a model of the user's own, with the sentences of its docstring."""
    maker = own.find(path)
    of_class = isinstance(maker, type)
    call = maker.__init__ if of_class else maker
    try:
        hints = get_type_hints(call, include_extras=True)
    except (NameError, TypeError):  # hints that Python cannot follow say nothing
        hints = {}
    told = {**sentences(maker), **sentences(call)} if of_class else sentences(call)
    return [
        Key(f"model.{name}", _plain(one.default), allowed(hints.get(name, Any)), told.get(name, ""))
        for name, one in own.settings(path, maker).items()
        if name != "**"
    ]


def known_keys(algorithm: str | None, model: str) -> dict[str, str]:
    """Return every key that ``--set`` takes in a run of an algorithm with a model, with its sentence."""
    own = settings_of(algorithm) if algorithm is not None else []
    preset = {"preset": "Named set of settings, such as published."} if algorithm is not None else {}
    links = [key for name in (*list(LINKS)[1:], ALL) for key in _link_keys(name)]
    others = [*general_keys(), *links, *table_keys(), *data_keys(), *_keys_if_known(model)]
    return {**{key.name: key.sentence for key in own}, **preset, **{key.name: key.sentence for key in others}}


def _keys_if_known(model: str) -> list[Key]:
    """Return the keys of a model; of one that cannot be had, what every model has."""
    try:
        known = model in MODELS or (own.is_path(model) and own.find(model) is not None)
    except BadInput:  # what is wrong with it is said elsewhere
        known = False
    return model_keys(model) if known else _fields(ModelConfig, "model.")


def _fields(kind: type[BaseModel], prefix: str = "") -> list[Key]:
    told = sentences(kind)
    return [
        Key(
            prefix + name,
            _plain(field.default),
            allowed(Annotated[field.annotation, field] if field.metadata else field.annotation),
            told.get(name, ""),
        )
        for name, field in kind.model_fields.items()
    ]


def _options(function: Callable[..., Any], prefix: str, own: Sequence[str] = ()) -> list[Key]:
    """Return the keyword options of a function; ``own`` are among them whatever their name is elsewhere."""
    told, hints = sentences(function), get_type_hints(function, include_extras=True)
    return [
        Key(prefix + name, _plain(one.default), allowed(hints[name]), told.get(name, ""))
        for name, one in inspect.signature(function).parameters.items()
        if name not in _ELSEWHERE or name in own
    ]


def _dealing_options(kind: Any, given: Mapping[str, Any]) -> list[Key]:
    """Return the options of a partition, or of the choice of devices."""
    told, hints = sentences(kind), get_type_hints(kind, include_extras=True)
    return [
        Key(
            f"data.{field.name}",
            given.get(field.name, _plain(field.default)),
            allowed(hints[field.name]),
            told.get(field.name, ""),
        )
        for field in dataclasses.fields(kind)
    ]


def _add(known: dict[str, Key], keys: Iterable[Key], owner: str) -> None:
    """Add keys; where two owners have one name, both sentences are told."""
    for key in keys:
        new = dataclasses.replace(key, sentence=f"With {owner}: {key.sentence}") if owner else key
        old = known.get(key.name)
        if old is None or not old.sentence:
            known[key.name] = new
        elif old.sentence != new.sentence:
            known[key.name] = dataclasses.replace(old, default=None, sentence=f"{old.sentence} {new.sentence}")


def _name_of(entry: Any) -> str:
    return next(name for name, source in DATASETS.items() if source is entry)


def _plain(value: Any) -> Any:
    """Return a default as data; one that is made for each object, or not there, is none."""
    if value is dataclasses.MISSING or value is inspect.Parameter.empty:
        return None
    if isinstance(value, BaseModel):
        return None
    return list(value) if isinstance(value, tuple) else value
