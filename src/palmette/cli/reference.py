"""All about one algorithm, data set, model or experiment, as data; and all of them as the page docs/reference/settings.md."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from palmette.algorithms import ALGORITHMS, FAMILIES, family_of, kind_of, models_of
from palmette.cli.collection import about
from palmette.cli.keys import data_keys, general_keys, model_keys, partition_keys, settings_of, table_keys
from palmette.datasets import DATASETS
from palmette.errors import BadInput, nearest
from palmette.population import PARTITIONS
from palmette.reproduce import Experiment, names, own_names, read
from palmette.task import make_task, own
from palmette.task.models import MODELS

_OWN = (
    "`--data visits.csv` takes a CSV or Parquet file, or a folder of them; see [your own data](../how-to/own-data.md)."
)

_MODELS = (
    "PM: every device gets a model of its own. TM: every team does. GM: there is a global model. These are the models with\n"
    "the default settings. How to add a method of your own: [write an algorithm](../tutorials/writing-an-algorithm.md)."
)

_ABSENT = (
    "A node misses a round when it is not asked (participation), does not answer, or its reply is lost, late or damaged; see\n"
    "[links one can trust](../how-to/reliability.md). A team that misses one takes its devices with it. A parent that nobody\n"
    "answers keeps the model it has."
)

NAMES: Mapping[str, Iterable[str]] = {
    "algorithms": ALGORITHMS,
    "datasets": DATASETS,
    "models": MODELS,
    "experiments": [*names(), *own_names()],
}


def entry(topic: str, name: str, *, layers: bool = True) -> dict[str, Any]:
    """Return what there is to know about one entry of a topic; an algorithm or a model may also be an import path.

    Args:
        topic: The topic.
        name: The name of the entry.
        layers: Whether to tell a model's layers, for which it has to be made.
    """
    makers: dict[str, Callable[[str], dict[str, Any]]] = {
        "algorithms": _algorithm,
        "datasets": _dataset,
        "models": _model,
        "experiments": _experiment,
    }
    if topic == "models" and own.is_path(name):
        return {"name": name, **_own_model(name)}
    if topic != "algorithms" and name not in NAMES[topic]:
        raise BadInput(f"there is no {name!r} among the {topic}{nearest(name, NAMES[topic])}")
    made = {"layers": _layers(name)} if topic == "models" and layers else {}
    return {"name": name, **makers[topic](name), **made}


def _algorithm(name: str) -> dict[str, Any]:
    kind = kind_of(name)
    return {
        "family": family_of(name),
        "summary": _first_line(kind),
        **({"paper": kind.paper} if kind.paper else {}),
        **({"absent": kind.absent} if kind.absent else {}),
        "models": list(models_of(kind)),
        "flat": kind.flat is True,  # where a setting decides it, the setting says so
        "tiers": kind.tiers,
        "settings": [key.as_dict() for key in settings_of(name)],
        "presets": {preset: dict(values) for preset, values in kind.presets.items()},
        "example": f"palmette run {name}"
        + (" --model dnn" if kind.parts and not kind.whole_part else ""),  # a model of one layer has no parts
    }


def _dataset(name: str) -> dict[str, Any]:
    return {
        "summary": DATASETS[name].description,
        "partition": DATASETS[name].partition,
        **{key: value for key, value in about(DATASETS[name], None).items() if key != "description"},
        "settings": [key.as_dict() for key in data_keys(name) if key.name != "data.name"],
        "example": f"palmette run permfl --data {name}"
        + (f" --model {model}" if (model := DATASETS[name].model) else ""),
    }


def _model(name: str) -> dict[str, Any]:
    data = f" --data {MODELS[name].data}" if MODELS[name].data else ""
    return {
        "summary": _first_line(MODELS[name].make),
        "settings": [key.as_dict() for key in model_keys(name) if key.name != "model.name"],
        "backend": MODELS[name].backends,
        "made_for": MODELS[name].example,
        "example": f"palmette run permfl{data} --model {name}",
    }


def _own_model(path: str) -> dict[str, Any]:
    """Return what there is to know about a model of the user's own without data."""
    return {
        "summary": _first_line(own.find(path)),
        "settings": [key.as_dict() for key in model_keys(path) if key.name != "model.name"],
        "example": f"palmette run permfl --model {path}",
    }


def _layers(name: str) -> list[dict[str, Any]]:
    """Return a model's layers as it is made for its example samples."""
    layout = make_task(name, MODELS[name].shape, MODELS[name].outputs).layout
    return [layer._asdict() | {"size": layer.size} for layer in layout.layers]


def _experiment(name: str) -> dict[str, Any]:
    experiment = read(name)
    return {
        "summary": experiment.title,
        "paper": experiment.paper,
        "about": experiment.about,
        "unstated": experiment.unstated,
        "studies": {one["name"]: _study(experiment, one) for one in experiment.studies},
        "claims": {claim.id: claim.says for claim in experiment.claims},
        "settings": [],
        "example": f"palmette reproduce {name}",
    }


def _study(experiment: Experiment, given: Mapping[str, Any]) -> str:
    """Say what a study of an experiment is, and what its small size does with it."""
    if why := experiment.left_out(given, "quick"):
        return f"{given['title']}; only with --size whole: {why}"
    made = experiment.study(given, "quick")
    cuts = experiment.cuts(given, stand_in=bool(made and made.stands_in))
    cut = f"; quick: {', '.join(cuts)}" if cuts else ""
    return f"{given['title']}{cut}{f'; {made.stands_in}' if made and made.stands_in else ''}"


def _first_line(documented: Any) -> str:
    return (inspect.getdoc(documented) or "").split("\n", 1)[0].replace("``", "")


# -- the page --------------------------------------------------------------------------------------------------------------


def markdown() -> str:
    """Write every setting there is as one page."""
    lines = [
        "# Settings",
        "",
        "Every setting, with its default and what it means. This page is written by `make docs` from the docstrings; in the",
        "terminal, `palmette list algorithms permfl` shows the same of one algorithm. On the command line a setting is given",
        "by `--set`, as in `palmette run permfl --set alpha=0.1 --set data.shift=rotate`; in a `config.toml`, an algorithm's",
        "settings stand under `[settings]`, and `data.shift` is `shift` under `[data]`.",
        "",
        "## A run",
        "",
        "`links.devices` is the link between devices and their teams; `links.teams`, `links.tier2` ... take the same keys, and",
        "`links.all` holds for every link that says nothing itself. See [links one can trust](../how-to/reliability.md).",
        "",
        *_table([key.as_dict() for key in general_keys()]),
    ]
    titles = {"algorithms": "Algorithms", "datasets": "Data sets", "models": "Models"}
    for topic, title in titles.items():
        lines += ["", f"## {title}"]
        if topic == "algorithms":
            lines += _algorithms()
            continue
        for name in NAMES[topic]:
            lines += ["", *_section(entry(topic, name, layers=False))]
        if topic == "datasets":
            lines += _partitions()
            lines += ["", "### A table of your own", "", _OWN, "", *_table([key.as_dict() for key in table_keys()])]
    return "\n".join(lines) + "\n"


def _missing() -> list[str]:
    """Write what every algorithm does about nodes that miss a round, those that do the same together."""
    does: dict[str, list[str]] = {}
    for name in ALGORITHMS:
        does.setdefault(kind_of(name).absent, []).append(f"[{name}](#{name})")
    lines = [
        "",
        "**When nodes miss a round**",
        "",
        _ABSENT,
        "",
        "| algorithms | what a node that misses a round means |",
    ]
    return [*lines, "|---|---|", *(f"| {', '.join(names)} | {absent} |" for absent, names in does.items()), ""]


def _partitions() -> list[str]:
    """Write the options of every partition."""
    lines = [
        "",
        "### Partitions",
        "",
        "Any data set that is dealt out takes any of these; see [data sets](datasets.md).",
    ]
    for name, kind in PARTITIONS.items():
        about = _sentence(_first_line(kind))
        lines += ["", f"`data.partition={name}`: {about}", "", *_table([key.as_dict() for key in partition_keys(name)])]
    return lines


def _algorithms() -> list[str]:
    """Write the algorithms family by family: first a table that leads to each, then each with its settings."""
    lines = ["", _MODELS, *_missing()]
    sections: list[str] = []
    for family, kinds in FAMILIES.items():
        lines += ["", f"**{family}**", "", "| algorithm | models | what it is |", "|---|---|---|"]
        sections += ["", f"### {family}"]
        for kind in kinds:
            told = entry("algorithms", kind.name)
            lines.append(f"| [{kind.name}](#{kind.name}) | {' '.join(told['models'])} | {_sentence(told['summary'])} |")
            sections += ["", *_section(told, depth=4)]
    return lines + sections


def _section(told: Mapping[str, Any], depth: int = 3) -> list[str]:
    lines = [f"{'#' * depth} {told['name']}", "", _sentence(told["summary"])]
    if "paper" in told:
        lines += ["", f"*{told['paper']}*"]
    if "absent" in told:
        lines += ["", told["absent"]]
    if "backend" in told:
        lines += ["", f"Backend: {told['backend']}."]
    lines += ["", *_table(told["settings"])]
    for preset, values in told.get("presets", {}).items():
        lines += ["", f"Preset `{preset}`: {', '.join(f'{key} = {shown(value)}' for key, value in values.items())}."]
    return lines


def _table(settings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Write settings as a table of two columns, which a phone has room for."""
    lines = ["| setting | meaning |", "|---|---|"]
    for one in settings:
        default = "" if one["default"] is None else f"*default* `{shown(one['default'])}`; "
        lines.append(f"| `{one['name']}` | {one['about']}<br>{default}*values* {one['allowed']} |")
    return lines


def shown(value: Any) -> str:
    """Write a value as one would type it."""
    return str(value).replace("'", '"') if isinstance(value, list | dict) else str(value)


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(markdown(), encoding="utf-8")
