"""The command ``palmette advise``."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palmette.cli import options
from palmette.cli.failures import Stopped, one_line_errors, print_json
from palmette.guards.terminal import say, tell

if TYPE_CHECKING:
    from palmette.studies.advising.advice import Advice

_BASE = "ladder"  # whose config data and model are read by
_METHODS_OWN = "advise chooses the settings of methods by itself; give only keys such as data.shift or model.hidden"


def advise(
    data: options.Data = None,
    tree: options.Tree = None,
    model: options.Model = None,
    steps: Annotated[
        int, typer.Option(metavar="N", help="Gradient steps that each device may take, fine-tuning counted.")
    ] = 400,
    local_steps: Annotated[
        int, typer.Option(metavar="N", help="Gradient steps of a device between two exchanges.")
    ] = 10,
    seed: options.Seed = None,
    settings: options.Set = None,
    config: options.Config = None,
    confirm: Annotated[
        bool, typer.Option("--try", help="Also train the two best on a part of the training samples, and compare them.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Advise on a method and its settings for your data, without training.

    [bold]Example:[/bold]  palmette advise --data digits --set data.shift=rotate

    It looks at how much teams differ, how much the devices of
    a team differ, and how noisy their samples are. From that
    it says which method to use for personal models, for team
    models and for one global model, with which settings, how
    good they would be and what they would cost. It takes
    some seconds and looks at no test sample.

    The last line is the command to run next.
    """
    with one_line_errors():
        from palmette.cli.configure import configure
        from palmette.studies.advising.advisor import advise as advice_for

        _refuse_settings(settings or [])
        given = {"data.name": data, "tree": tree, "model.name": model, "seed": seed}
        made = configure(_BASE, file=config, options=given, assignments=settings or [], base={"algorithm": _BASE})
        people = made.population()
        if people.classes is None and model is None and "model" not in made.model_fields_set and not made.data.own:
            made = made.model_copy(update={"model": made.model.model_copy(update={"name": "linear"})})
            model = "linear"  # the data of a name have a column for the intercept
        task = made.task(people)
        found = advice_for(people, task, steps=steps, local_steps=local_steps, seed=made.seed)
        found = replace(found, doubts=(*found.doubts, *_unheard(settings or [])))
        tried, stopped = None, False
        if confirm:
            from palmette.studies.advising.trying import confirm as confirmed

            try:
                tried = confirmed(found, task, local_steps=local_steps, seed=made.seed, told=say)
                found = tried.advice
            except KeyboardInterrupt:
                stopped = True
        again = {"--config": config, "--data": data, "--tree": tree, "--model": model, "--seed": seed}
        command = command_of(found, again, settings or [])
        if json:
            more = {} if tried is None else {"tried": tried.as_dict()}
            print_json({**found.as_dict(), **more, "command": command})
            _say_whether(stopped)
            return
        from palmette.cli.advised import picture
        from palmette.guards.screen import Screen

        Screen().print(picture(found, None if tried is None else tried.sentence))
        tell(f"\nRun this next:\n{command}")
        _say_whether(stopped)


def _say_whether(stopped: bool) -> None:
    """End as a command that was stopped, if the trial was: what was printed is the advice without it."""
    if stopped:
        raise Stopped("--try was stopped; this is the advice without it")


def _unheard(assignments: Sequence[str]) -> list[str]:
    """Say which settings of a run the advice does not know of, though its command repeats them."""
    groups = ("participation", "links", "clock", "loss", "optimiser")
    found = dict.fromkeys(text.partition("=")[0].partition(".")[0].strip() for text in assignments)
    return [
        f"The advice does not know of {group}.*: predictions and costs are those without, and the command repeats it."
        for group in found
        if group in groups
    ]


def _refuse_settings(assignments: Sequence[str]) -> None:
    """Refuse settings of a method, and rounds: they are what is advised on."""
    from palmette.cli.keys import GROUPS, TOP
    from palmette.errors import BadInput

    for text in assignments:
        key = text.partition("=")[0].strip()
        if key.partition(".")[0] not in {*GROUPS, *TOP} - {"settings", "rounds"}:
            raise BadInput(f"--set {text}: {_METHODS_OWN}")


def command_of(found: Advice, given: Mapping[str, str | int | Path | None], assignments: Sequence[str]) -> str:
    """Return the command that runs what is advised for personal models.

    Args:
        found: The advice.
        given: The options of the advice that are repeated.
        assignments: Those of its ``--set``.
    """
    made = found.personal.recipe
    words = ["palmette", "run", made.algorithm]
    for name, value in given.items():
        if value is not None:
            words += [name, str(value)]
    words += ["--rounds", str(made.rounds)]
    measured = [] if found.score != "R2" or any(text.startswith("metrics=") for text in assignments) else ["metrics=r2"]
    for text in (*assignments, *measured, *(f"{key}={value}" for key, value in _written(found).items())):
        words += ["--set", text]
    return shlex.join(words)


def _written(found: Advice) -> dict[str, str]:
    """Return settings as ``--set`` takes them, and pulls by name in short.

    For linear models the method finds the same pulls by itself; for networks all nodes get that of one with the mean number of
    samples.
    """
    linear = found.components.directions is not None
    short = {"lam": found.components.lam, "gamma": found.components.gamma}
    return {
        key: ("auto" if linear else _value(short[key])) if isinstance(value, Mapping) else _value(value)
        for key, value in found.personal.recipe.settings.items()
    }


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return "inf" if math.isinf(value) else f"{value:.4g}"
    return str(value)
