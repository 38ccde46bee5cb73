"""Tasks by the name of a model, the import path of what makes one, or from a module."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from palmette.errors import BadInput, nearest
from palmette.task import own
from palmette.task.buffers import Place
from palmette.task.buffers import running as statistics
from palmette.task.losses import PerSample
from palmette.task.models import MODELS
from palmette.task.parts import Patterns
from palmette.task.task import Task
from palmette.values import plain, refuse_larger_than_memory, rough, shown
from palmette.values import seed as checked


def check_name(model: str) -> None:
    """Refuse a name that no model has."""
    if model not in MODELS:
        by_path = " Write a model of your own as its import path, my_module:make, or its file, mine.py:make."
        raise BadInput(f"unknown model {model!r}{nearest(model, MODELS)}{by_path if '.' in model else ''}")


def make_task(
    model: str | nn.Module,
    shape: tuple[int, ...],
    classes: int | None,
    *,
    seed: int = 0,
    loss: str | PerSample | None = None,
    l2: float = 0.0,
    parts: Mapping[str, Patterns] | None = None,
    freeze: Patterns = (),
    buffers: Place | None = None,
    words: Sequence[str] | None = None,
    **options: Any,
) -> Task:
    """Make a task from a model's name (or a module) and the shape and classes of the samples.

    Args:
        model: A name of `palmette.task.models.MODELS`; the import path ``"my_module:make"`` or the file ``"./mine.py:make"`` of
            what makes a module, see `palmette.task.own`; or any module.
        shape: Shape of one sample.
        classes: Number of classes, or ``None`` for regression.
        seed: Draws the initial weights of a named model.
        loss: Defaults to that of a named model, else to cross-entropy with classes and to squared error without.
        l2: Weight of the squared norm in every device's objective.
        parts: Names for parts of the model; see `Task`.
        freeze: Patterns of parameters to freeze; see `Task`.
        buffers: Where running statistics belong; see `Task`. Of a named model they are averaged unless this says otherwise.
        words: What the classes stand for where samples are tokens of text, for models that spell words (``population.words``).
        **options: The model's own settings, such as ``hidden``.
    """
    usual = MODELS[model].loss if isinstance(model, str) and model in MODELS else None
    chosen = loss or usual or ("squared" if classes is None else "cross-entropy")
    about: dict[str, Any] = {"l2": l2, "parts": parts or {}, "freeze": freeze, "buffers": buffers}
    if isinstance(model, nn.Module):
        if options:
            raise BadInput(f"a module takes no settings, but {sorted(options)} were given")
        return Task(model, chosen, **about, name=type(model).__name__.lower())
    options = plain(options)
    if model not in MODELS and own.is_path(model):
        given = {"shape": tuple(shape), "outputs": classes or 1, "seed": checked(seed), "words": words}
        recipe = {"name": own.whole_path(model), "seed": seed, **options}
        return Task(own.make(model, given, options), chosen, **about, name=own.title(model), recipe=recipe)
    check_name(model)
    known = inspect.signature(MODELS[model].make).parameters
    spelled = {"words": words} if "words" in known else {}
    try:
        with torch.device("meta"):  # as large as it would be, without a single number
            like = MODELS[model].make(shape, classes or 1, seed=checked(seed), **spelled, **options)
        count = sum(one.numel() for one in like.parameters())
        refuse_larger_than_memory(f"a model {model!r} of {rough(count)} parameters", 4 * count, "make it smaller")
        module = MODELS[model].make(shape, classes or 1, seed=checked(seed), **spelled, **options)
    except (TypeError, RuntimeError, MemoryError, OverflowError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise BadInput(f"model {model!r} cannot be made with {shown(options)}: {why}") from None
    if buffers is None and statistics(module):
        about["buffers"] = "averaged"  # so that a team's and the global model are whole; the log of a run says so
    if "words" in known and words is None:
        about["told"] = (f"the model {model} has a vector for each token, because the data bring no words to spell",)
    defaults = {name: known[name].default for name in known if name not in ("shape", "outputs", "seed", "words")}
    return Task(module, chosen, **about, name=model, recipe={"name": model, "seed": seed, **defaults, **options})
