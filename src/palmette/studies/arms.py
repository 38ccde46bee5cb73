"""The methods of a study as its user named them: algorithms, objects or folders of runs, with their settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palmette.algorithms import ALGORITHMS, check_name, kind_of
from palmette.errors import BadInput, nearest
from palmette.learner import Optimiser
from palmette.population import Population
from palmette.protocol import Algorithm
from palmette.protocol.definition import check_method
from palmette.protocol.importing import whole_path
from palmette.protocol.settings import described
from palmette.runs import Result, RunConfig, make_config, prepare
from palmette.runs.config import rounds_of
from palmette.runs.folder import CONFIG, Folder
from palmette.runs.kept import config_in
from palmette.runs.objects import is_named
from palmette.runs.sections import EngineConfig
from palmette.studies.plan import Arm, is_study
from palmette.studies.steps import NOTHING, Objects
from palmette.values import shown, whole


def is_run(what: Any) -> bool:
    """Return whether something that was named is the folder of a run; the name of an algorithm is the algorithm."""
    return isinstance(what, str | Path) and what not in ALGORITHMS and (Path(what) / CONFIG).is_file()


def also_a_run(word: str) -> str:
    """Say that a word was taken for an algorithm though a run lies in a folder of that name; nothing where none does."""
    if word not in ALGORITHMS or not (Path(word) / CONFIG).is_file():
        return ""
    return f"{word} is the algorithm; the run in the folder of that name is ./{word}."


def arms_of_runs(folders: Iterable[Path], taken: Iterable[str] = ()) -> list[Arm]:
    """Return the methods that some runs are of; runs that differ in their seed only are one method.

    Args:
        folders: The folders.
        taken: Names that other methods have.
    """
    used = set(taken)
    found: list[tuple[dict[str, Any], Arm]] = []
    for folder in folders:
        config = config_in(Folder.open(folder))
        key = {name: value for name, value in config.model_dump().items() if name not in ("seed", "versions")}
        place = str(folder.absolute())
        same = next((at for at, (other, arm) in enumerate(found) if other == key), None)
        if same is None:
            found.append((key, Arm(_free(config.label, folder, used), config, {config.seed: place})))
            continue
        arm = found[same][1]
        if config.seed in arm.runs:
            raise BadInput(f"{folder} and {arm.runs[config.seed]} are the same run; name it once")
        found[same] = (key, replace(arm, runs={**arm.runs, config.seed: place}))
    return [arm for _, arm in found]


def _free(label: str, folder: Path, used: set[str]) -> str:
    """Return a name for the method of a folder that no other has."""
    for name in (label, folder.absolute().name, str(folder).strip("/.").replace("/", "-")):
        if name not in used:
            used.add(name)
            return name
    raise BadInput(f"there is another method named like {folder}; rename the folder")


@dataclasses.dataclass(frozen=True)
class Base:
    """What all methods of a study share, as Python gave it."""

    population: Any
    model: Any
    tree: Any
    rounds: int | None
    participation: Mapping[str, Any] | None
    links: Mapping[str, Mapping[str, Any]] | None
    clock: Mapping[str, Any] | None
    loss: float
    evaluate_every: int | str
    evaluate_on: int | str
    metrics: str | Sequence[str]
    optimiser: Optimiser | Mapping[str, Any] | None
    engine: Mapping[str, Any]

    def arm(self, name: str, method: str | Algorithm, settings: Mapping[str, Any]) -> tuple[Arm, Objects]:
        """Return a method with what of it a config cannot hold."""
        for word in self.engine:
            if word not in EngineConfig.model_fields:
                raise BadInput(f"there is no keyword {word!r}{nearest(word, EngineConfig.model_fields)}")
        own = None if isinstance(method, str) else check_method(method)
        if own is not None:
            check_name(type(own))
        values: dict[str, Any] = {
            "algorithm": method if own is None else own.name,
            "settings": dict(settings) if own is None else dataclasses.asdict(own),  # type: ignore[call-overload]
            "data": _table(self.population, "data")
            if not isinstance(self.population, Population)
            else {"name": "arrays"},
            "model": _table(self.model, "model") if isinstance(self.model, str | Mapping) else {"name": "module"},
            "participation": dict(self.participation or {}),
            "links": dict(self.links or {}),
            "clock": dict(self.clock or {}),
            "loss": self.loss,
            "evaluate_every": self.evaluate_every,
            "evaluate_on": self.evaluate_on,
            "metrics": self.metrics if isinstance(self.metrics, str) else list(self.metrics),
            "optimiser": _optimiser(self.optimiser),
            "engine": dict(self.engine),
        }
        values |= {} if self.rounds is None else {"rounds": self.rounds}
        people = self.population if isinstance(self.population, Population) else None
        if people is not None and self.tree is not None:
            raise BadInput("the population has its tree already; leave tree= out")
        if people is not None or self.tree is not None:
            values["tree"] = people.tree.spec() if people is not None else self.tree
        if people is not None and people.tree.labels[-1] is not None:
            values["server"] = people.tree.labels[-1][0]
        if own is not None and not is_named(own):
            values["given"] = {"algorithm": {"object": f"{type(own).__module__}.{type(own).__qualname__}"}}
        config = make_config(values)
        if own is not None and self.rounds is None:
            config = config.model_copy(update={"rounds": rounds_of(own, config.make_tree())})
        return self._resolved(name, config, own, people)

    def _resolved(
        self, name: str, config: RunConfig, own: Algorithm | None, people: Population | None
    ) -> tuple[Arm, Objects]:
        """Return the arm with objects written down where a config can hold them, so that other processes may run it."""
        task = None if isinstance(self.model, str | Mapping) else self.model
        if people is None and task is None and (own is None or is_named(own)):
            return Arm(name, config), NOTHING
        if own is not None and is_named(own):
            own = None
        probe = people if people is not None else config.population()
        made = prepare(config, own, probe, task)
        resolved = config.resolved(made.algorithm, probe, made.task)
        if people is None:
            resolved = resolved.model_copy(update={"data": config.data})
        keep = {role for role, what in resolved.given.items() if role == "algorithm" or not what.again}
        settings = config.settings if "algorithm" not in keep else resolved.settings
        written = resolved.model_copy(update={"versions": {}, "settings": settings})
        objects = Objects(
            own if "algorithm" in keep else None,
            people if "data" in keep else None,
            task if {"model", "loss", "metrics"} & keep else None,
        )
        return Arm(name, written), objects


def _optimiser(given: Optimiser | Mapping[str, Any] | None) -> dict[str, Any]:
    return given.model_dump() if isinstance(given, Optimiser) else dict(given or {})


def _table(what: Any, role: str) -> dict[str, Any]:
    if isinstance(what, str):
        return {"name": what}
    if isinstance(what, Mapping):
        return dict(what)
    raise BadInput(f"{role} = {shown(what)} must be a name, a mapping with a name and options, or a population")


def named_methods(methods: Any) -> dict[str, Any]:
    """Return the methods by what to call them."""
    if isinstance(methods, Mapping):
        return dict(methods)
    if isinstance(methods, str | Path | Algorithm | Result):
        methods = [methods]
    found: dict[str, Any] = {}
    runs = 0
    for one in methods:
        if isinstance(one, Result) or is_run(one):
            runs += 1
            found[f"\0{runs}"] = one  # named when their configs are read
            continue
        name = whole_path(one).rpartition(":")[2] if isinstance(one, str) else check_method(one).name
        if name in found:
            raise BadInput(f"{name} is named twice; call them differently: {{'one': {name!r}, 'other': {name!r}}}")
        found[name] = one
    if not found:
        raise BadInput("name at least one method")
    return found


def arms_of(named: Mapping[str, Any], base: Base, settings: Mapping[str, Any]) -> tuple[list[Arm], dict[str, Objects]]:
    """Return the methods with their settings, and what of each a config cannot hold, by its name."""
    runs = {name: one for name, one in named.items() if isinstance(one, Result) or is_run(one)}
    fresh = {name: one for name, one in named.items() if name not in runs}
    folders = [one.folder if isinstance(one, Result) else Path(one) for one in runs.values()]
    arms = arms_of_runs(folders, fresh)
    shared_out(settings, named)
    objects: dict[str, Objects] = {}
    for name, one in fresh.items():
        if isinstance(one, Path) or (isinstance(one, str) and is_study(Path(one))):
            raise BadInput(f"{one} is not the folder of a run: there is no {CONFIG} in it")
        arm, given = base.arm(name, one, shared_settings(settings, named, name))
        arms.append(arm)
        objects[name] = given
    return arms, objects


def shared_settings(settings: Mapping[str, Any], named: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the settings of one method: those for all that it has, and its own."""
    one = named.get(name, name)
    kind = kind_of(one) if isinstance(one, str) else type(one)
    known = {*described(kind), "preset"} if isinstance(one, str) else set()
    shared = {key: value for key, value in settings.items() if key not in named and key in known}
    own = settings.get(name, {}) if name in named else {}
    if own and not isinstance(one, str):
        raise BadInput(f"settings[{name!r}] is for a method given by name; this one is an object with its settings")
    return {**shared, **dict(own)}


def shared_out(settings: Mapping[str, Any], named: Mapping[str, Any]) -> list[tuple[str, list[str], list[str]]]:
    """Return every setting for all methods with the methods that have it, and all; one that none has is refused."""
    fresh = {name: one for name, one in named.items() if isinstance(one, str) and not is_run(one)}
    kinds = {name: described(kind_of(one)) for name, one in fresh.items()}
    known = {key for kind in kinds.values() for key in kind} | {"preset"}
    found = []
    for key in settings:
        if key not in named:
            having = [name for name, kind in kinds.items() if key in kind or key == "preset"]
            if not having:
                raise BadInput(f"none of the methods has the setting {key!r}{nearest(key, [*known, *fresh])}")
            found.append((key, having, list(kinds)))
    return found


def lacking(key: str, having: Sequence[str], names: Sequence[str]) -> str:
    """Say which methods a setting for all is not for."""
    without = [name for name in names if name not in having]
    return f"{key} is no setting of {', '.join(without)}; it is set for {', '.join(having)}."


def chosen_seeds(seeds: Any) -> tuple[int, ...] | None:
    """Return the seeds that were named, or as many as were asked for; ``None`` where nothing was said."""
    if seeds is None:
        return None
    if isinstance(seeds, Sequence) and not isinstance(seeds, str):
        found = tuple(whole("seeds", seed, 0, 2**63 - 1) for seed in seeds)
        if not found or len(set(found)) < len(found):
            raise BadInput(f"seeds = {shown(seeds)} must be different numbers, at least one")
        return found
    return tuple(range(whole("seeds", seeds, 1, 1000)))
