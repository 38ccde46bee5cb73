"""From the methods and options of ``palmette compare`` to checked configs; all problems are told at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from palmette.algorithms import kind_of, source_of
from palmette.cli.configure import configure, is_known, say_code
from palmette.cli.keys import GROUPS, TOP
from palmette.errors import BadInput, nearest
from palmette.files import is_file
from palmette.protocol.importing import whole_path
from palmette.protocol.settings import described
from palmette.runs import read_config
from palmette.runs.folder import CONFIG
from palmette.studies.arms import also_a_run, arms_of_runs, is_run, lacking
from palmette.studies.compare import LOCAL
from palmette.studies.plan import Arm, is_study
from palmette.values import one_line

# What of a run's config says on whom and with which model it was: other methods are run on the same.
_SHARED = (
    "tree",
    "server",
    "data",
    "model",
    "optimiser",
    "participation",
    "loss",
    "evaluate_every",
    "evaluate_on",
    "metrics",
    "engine",
    "given",
)


def arms_of(
    words: Sequence[str],
    *,
    file: Path | None,
    options: Mapping[str, Any],
    assignments: Sequence[str],
    local: bool,
) -> tuple[list[Arm], list[str]]:
    """Return the methods that were named, and sentences about what was decided.

    Args:
        words: Algorithms, ``NAME=ALGORITHM``, and folders of runs.
        file: A config file.
        options: Values by dotted key; those that are ``None`` were not given.
        assignments: ``key=value`` texts; ``METHOD.key=value`` is for one method.
        local: Whether to add local training where it is not among them.
    """
    folders = [Path(word) for word in words if is_run(word)]
    fresh = _fresh([word for word in words if not is_run(word)])
    arms = arms_of_runs(folders, fresh)
    base: dict[str, Any] = {}
    notes = [text for word in words if (text := also_a_run(word))]
    if file is None and folders and (fresh or local):
        kept = read_config(folders[0] / CONFIG)
        chosen = {role: options.get(f"{role}.name") for role in ("model", "data")}
        say_code(folders[0], arms[0].config, algorithm="another one", **chosen)
        base = {key: kept[key] for key in _SHARED if key in kept}
    if local and fresh and not any(arm.config.algorithm == LOCAL for arm in arms) and LOCAL not in fresh.values():
        fresh[LOCAL] = LOCAL
        reference = LOCAL
    else:
        reference = ""
    given, told, problems = share_out(assignments, fresh, [arm.name for arm in arms])
    notes += told
    for name, algorithm in fresh.items():
        try:
            config = configure(algorithm, file=file, base=base, options=options, assignments=given[name])
        except BadInput as error:
            problems.append(str(error))
            continue
        arms.append(Arm(name, config, role="reference" if name == reference else "method"))
    if problems:
        raise BadInput("; ".join(dict.fromkeys(map(one_line, problems))))
    return [replace(arm, config=arm.config) for arm in arms], notes


def _fresh(words: Sequence[str]) -> dict[str, str]:
    """Return the algorithms to be run, by what to call them."""
    found: dict[str, str] = {}
    for word in words:
        if Path(word).is_dir() and not is_known(word):
            what = "a study; look at it with palmette show" if is_study(Path(word)) else f"a folder without {CONFIG}"
            raise BadInput(f"{word} is {what}, not a run or an algorithm")
        name, equals, algorithm = word.partition("=")
        if not equals or "/" in name:  # a folder's name may have the sign
            of_python = is_file(word) and (".py" in word or Path(f"{word}.py").is_file())
            name, algorithm = (whole_path(word) if of_python else word).rpartition(":")[2], word
        if not name or not algorithm or "/" in name or name.startswith("."):
            raise BadInput(f"{word!r} is neither an algorithm nor the folder of a run; write permfl, or mine=permfl")
        if name in GROUPS or name in TOP:
            raise BadInput(f"a method cannot be called {name!r}, which is a group of settings; call it otherwise")
        if name in found:
            raise BadInput(
                f"{name} is named twice; give each a name of its own, as in one={found[name]} other={algorithm} "
                "--set one.alpha=0.1"
            )
        found[name] = algorithm
    return found


def share_out(
    assignments: Sequence[str], fresh: Mapping[str, str], runs: Sequence[str]
) -> tuple[dict[str, list[str]], list[str], list[str]]:
    """Give every ``--set`` to the methods it is for; return them by method, what is to be told, and what is wrong.

    Args:
        assignments: ``key=value`` texts.
        fresh: The algorithms to be run, by name.
        runs: The names of methods that were run already.
    """
    given: dict[str, list[str]] = {name: [] for name in fresh}
    told, problems = [], []
    kinds = {name: kind_of(one) for name, one in fresh.items() if is_known(one)}
    known = {name: {*described(kind), "preset"} for name, kind in kinds.items()}
    by_class = {kind.name: name for name, kind in kinds.items() if ":" in source_of(fresh[name])}  # of a file, say
    for text in assignments:
        key, equals, value = (part.strip() for part in text.partition("="))
        head, dot, rest = key.partition(".")
        head = head if head in (*fresh, *runs, *GROUPS) else by_class.get(head, head)
        if dot and head in fresh:
            given[head].append(f"{rest}{equals}{value}")
        elif dot and head in runs:
            problems.append(f"--set {key}: {head} is a run that is there already; its settings stay")
        elif dot and head not in GROUPS:
            problems.append(f"--set {key}: there is no method {head!r}{nearest(head, [*fresh, *GROUPS])}")
        elif dot or key in TOP or not equals or key in GROUPS:
            for one in given.values():
                one.append(text)
        else:
            having = [name for name in fresh if key in known.get(name, ())]
            if not having and known:
                every = {word for words in known.values() for word in words}
                problems.append(f"--set {key}: none of the methods has the setting {key!r}{nearest(key, every)}")
            for name in having:
                given[name].append(text)
            if having and len(having) < len(known):
                told.append(lacking(key, having, list(known)))
    return given, told, problems
