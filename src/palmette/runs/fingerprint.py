"""What a run is known by: a digest of each of its parts and its settings, and the environment it began in.

A stopped run goes on only with what it began with. Where something differs, the sentence says what.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, PalmetteWarning
from palmette.learner import kernel
from palmette.population import Population
from palmette.runs.config import RunConfig, own_version
from palmette.runs.digests import described, digest_of
from palmette.runs.files import Damaged
from palmette.runs.folder import CONFIG, IDENTITY, Folder
from palmette.runs.opening import digest

# What a run's parts are called in a sentence.
PARTS = {
    "samples": "the samples",
    "labels": "the labels",
    "split": "the split into devices, training and test samples",
    "tree": "the tree",
    "algorithm": "the algorithm's code",
    "model": "the model",
    "weights": "the model's initial weights",
    "loss": "the loss",
    "metrics": "the metrics",
}
POPULATION = ("samples", "labels", "split", "tree")  # the parts that make a population
# The tree has a part of its own; what was given as an object is looked at itself; where rows lie, whether the last state is
# kept, how many threads compute and whether step sizes are looked at first changes no result. A run that goes on with another
# backend than it took is told by itself.
_FREE = ("engine.store", "engine.keep_state", "engine.threads", "engine.check_steps", "engine.took")
_APART = ("tree", "server", "given", "versions", "settings", "algorithm", *_FREE)
_TEXTS = TypeAdapter(dict[str, str])
_TOLD = 5  # settings that are named in a sentence
_SHORT = 200  # letters of a setting that are kept as they are


@dataclass(frozen=True)
class Fingerprint:
    """What a run is about.

    Attributes:
        parts: A digest by name of the part; see `PARTS`.
        settings: Every setting as text, by its dotted name.
        environment: What the last bits of a result may depend on besides: versions and the processor's abilities.
    """

    parts: Mapping[str, str]
    settings: Mapping[str, str]
    environment: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """One digest of all parts and settings; the number of rounds is left out, since a run may be made longer."""
        settings = {name: value for name, value in self.settings.items() if name != "rounds"}
        return digest_of(json.dumps([dict(self.parts), settings], sort_keys=True))

    def differences(self, now: Fingerprint) -> list[str]:
        """Return what is not as it was, in words; nothing where it is the same run, or the same with other rounds."""
        told = [
            f"{name.removeprefix('settings.')} (was {was}, is {given})"
            for name, was, given in _changes(self.settings, now.settings)
            if name != "rounds"
        ]
        parts = [PARTS.get(name, name) for name, _, _ in _changes(self.parts, now.parts)]
        more = f" and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
        return parts + ([f"the setting{'s' if len(told) > 1 else ''} {', '.join(told[:_TOLD])}{more}"] if told else [])

    def other_environment(self, now: Fingerprint) -> list[str]:
        """Return what the run began with and what there is now, where they differ."""
        return [f"{name} {was} (now {given})" for name, was, given in _changes(self.environment, now.environment)]


def fingerprint(simulation: Simulation, config: RunConfig) -> Fingerprint:
    """Look at all that decides a run: every sample and label, the split, the tree, the objects and the settings."""
    task, module = simulation.task, simulation.task.module
    named = [f"{name} {tensor.dtype}" for name, tensor in module.named_parameters()]
    parts = {
        **of_population(simulation.population),
        "algorithm": digest_of(described(type(simulation.algorithm))),
        "model": digest_of(described(module)),
        "weights": digest_of(*named, *(tensor.detach() for tensor in module.parameters())),
        "loss": digest_of(described(task.loss)),
        "metrics": digest_of(described(task.metrics)),
    }
    return Fingerprint(parts, _settings(simulation, config), environment())


def of_population(population: Population) -> dict[str, str]:
    """Return the digests of the parts that are the population: the samples, the labels, the split and the tree."""
    tree = population.tree
    return {
        "samples": digest_of(population.x, repr(population.affine)),
        "labels": digest_of(population.y, repr(population.classes)),
        "split": digest_of(
            population.start, population.train, *([] if population.unseen is None else [population.unseen])
        ),
        "tree": digest_of(*map(torch.from_numpy, tree.parents), json.dumps(tree.labels)),
    }


def kept_in(folder: Folder) -> Fingerprint:
    """Return what the run in a folder began with."""
    kept = folder.read_sealed(IDENTITY)
    try:
        return Fingerprint(
            **{name: _TEXTS.validate_python(kept[name]) for name in ("parts", "settings", "environment")}
        )
    except (KeyError, ValidationError):
        raise Damaged(f"{folder.path / IDENTITY} is damaged: it does not say what the run is about", IDENTITY) from None


def of_another_population(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return in words what makes two populations differ, by the digests of the parts of two runs; nothing if they are one."""
    return [PARTS[part] for part in POPULATION if one.get(part) != other.get(part)]


def recognised(folder: Folder, mine: Fingerprint) -> Fingerprint:
    """Return what the run in a folder began with; another run is refused, and another environment said aloud."""
    if not folder.has(IDENTITY):
        return mine
    began = kept_in(folder)
    if differ := began.differences(mine):
        raise BadInput(
            f"this is not the run that was stopped in {folder.path}; what differs: {'; '.join(differ)}. Give what it began "
            "with, or start a new run"
        )
    if other := began.other_environment(mine):
        warnings.warn(
            f"the run in {folder.path} began with {', '.join(other)}: its last bits may differ from those of a run that "
            "was never stopped",
            PalmetteWarning,
            stacklevel=2,
        )
    return began


def introduce(folder: Folder, mine: Fingerprint, began: Fingerprint, config: bytes) -> None:
    """Write down what a run is about and which environment it began in, then its config.

    A folder without both holds nothing yet.
    """
    kept = {"parts": mine.parts, "settings": mine.settings, "environment": began.environment}
    folder.write_sealed(IDENTITY, {"config": digest(config), **kept})
    folder.write(CONFIG, config)
    if other := began.other_environment(mine):
        folder.log(f"warning: it began with {', '.join(other)}: its last bits may differ")


def environment() -> dict[str, str]:
    """Return what the last bits of a result may depend on besides what a run is given."""
    processor = torch.backends.cpu.get_cpu_capability()
    return {
        "palmette": own_version(),
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "CPU": processor,
        "kernel": kernel.version(),
    }


def _settings(simulation: Simulation, config: RunConfig) -> dict[str, str]:
    """Return all settings as they are in force: of the objects where the config only names them."""
    method = simulation.algorithm
    found = dict(_flat(tomllib.loads(config.to_toml())))
    kept = {name: value for name, value in found.items() if name not in _APART and name.split(".")[0] not in _APART}
    # Of a model by its file, the name without the folder: the file may be moved.
    kept |= {"algorithm": method.name, "model.name": simulation.task.name, "model.l2": simulation.task.l2}
    kept |= dict(_flat({"settings": dataclasses.asdict(method)}))  # type: ignore[call-overload]
    return {name: _text(value) for name, value in sorted(kept.items()) if value is not None}


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _text(value: Any) -> str:
    """Write a setting; 1 and 1.0 are the same."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53:
        return repr(float(value)).removesuffix(".0")
    text = value if isinstance(value, str) else json.dumps(value, default=described)
    return text if len(text) <= _SHORT else f"{text[:20]}... (hash {digest_of(text)[:16]})"


def _changes(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(was.keys() | now.keys()):
        if was.get(name) != now.get(name):
            yield name, was.get(name, "not set"), now.get(name, "not set")
