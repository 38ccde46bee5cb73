"""What is learned: a torch module, its loss and its metrics."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from palmette.address import mix, uniform
from palmette.errors import BadInput, nearest
from palmette.task import buffers, modules
from palmette.task.buffers import Place
from palmette.task.layout import Layout
from palmette.task.losses import LOSSES, METRICS, PerSample
from palmette.task.models import MODELS
from palmette.task.parts import BUFFERS, Patterns, named_by, split
from palmette.values import one_line, shown


class AddressedDropout(nn.Module):
    """Dropout whose mask is a function of an address, so that it is the same in every backend and every run."""

    address: Tensor

    def __init__(self, rate: float, layer: int) -> None:
        super().__init__()
        self.rate, self.layer = rate, layer
        self.register_buffer("address", torch.zeros((), dtype=torch.int64))

    def forward(self, value: Tensor) -> Tensor:
        """Zero a share of the entries and scale up the rest while training."""
        if not self.training or self.rate == 0:
            return value
        counter = torch.arange(value.numel(), device=value.device).reshape(value.shape)
        keep = uniform(mix(self.address + self.layer, counter)) >= self.rate
        return value * keep / (1 - self.rate) if self.rate < 1 else torch.zeros_like(value)


@dataclass(frozen=True, eq=False)
class Task:
    """What is learned: a torch module with its loss and its metrics.

    Attributes:
        module: Any `torch.nn.Module`; its present parameters are the initial model. Frozen parameters (``requires_grad=False``)
            stay as they are: they are not trained, not sent and kept once.
        loss: A name of `LOSSES`, or a function ``(output, target) -> one value per sample``.
        metrics: Functions ``(output, target) -> one value per sample``; by default those that fit the loss. A loss of your own
            has the accuracy where targets are class labels and the outputs one score per class.
        l2: Weight of ``l2 / 2 * |theta|^2`` in every device's objective.
        name: What to call the model in results.
        parts: Names for parts of the model, each with a pattern of parameter names or several: ``{"head": "4.*"}`` or
            ``{"head": pm.parts.last(1)}``. What no pattern names is the part ``"body"``.
        freeze: Patterns of parameters to freeze besides those with ``requires_grad=False``; the module itself is not changed.
        buffers: Where the running statistics of batch normalisation belong: ``"own"``, each device keeps its own and they never
            cross a link; ``"averaged"``, they are a part of every model and averaged with it.
        recipe: How `make_task` made a named model, or one by import path: its name, seed and options; ``None`` for a module.
        told: Sentences about how the model was made, for the log of a run.
        learned: The parameters that are learned: their names, shapes and parts, in the order in which a flat row holds them.
        running: The running statistics of batch normalisation, in the same form; ``None`` where there are none.
        layout: What a model's row holds in all: what is learned and, where they are averaged, the running statistics.
    """

    module: nn.Module
    loss: str | PerSample = "cross-entropy"
    metrics: dict[str, PerSample] | None = None
    l2: float = 0.0
    name: str = "module"
    parts: Mapping[str, Patterns] = field(default_factory=dict)
    freeze: Patterns = ()
    buffers: Place | None = None
    recipe: Mapping[str, Any] | None = None
    told: tuple[str, ...] = ()
    layout: Layout = field(init=False)
    learned: Layout = field(init=False)
    running: Layout | None = field(init=False)

    def __post_init__(self) -> None:
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise BadInput(f"unknown loss {self.loss!r}{nearest(self.loss, LOSSES)}")
        if not isinstance(self.loss, str) and not callable(self.loss):
            raise BadInput(f"loss must be one of {', '.join(LOSSES)} or a function, not {shown(self.loss)}")
        if isinstance(self.l2, bool) or not isinstance(self.l2, int | float) or not 0 <= self.l2 < float("inf"):
            raise BadInput(f"l2 must be a finite number of at least 0, not {shown(self.l2)}")
        modules.check(self.module)
        buffers.check(self.module, self.buffers)
        names = [name for name, _ in self.module.named_parameters()]
        frozen = named_by(self.freeze, names, "freeze") if self.freeze else set()
        shapes = {n: p.shape for n, p in self.module.named_parameters() if p.requires_grad and n not in frozen}
        if not shapes:
            why = ": all of them are frozen (requires_grad=False, or named by freeze)" if names else ""
            raise BadInput(f"{type(self.module).__name__} has no parameters to learn{why}")
        kept = [name for name in names if name not in shapes]
        learned = Layout(tuple(shapes), tuple(shapes.values()), split(self.parts, names, kept))
        moving = {name: value.shape for name, value in buffers.running(self.module).items()}
        running = Layout(tuple(moving), tuple(moving.values()), {BUFFERS: tuple(moving)}) if moving else None
        object.__setattr__(self, "learned", learned)
        object.__setattr__(self, "running", running)
        object.__setattr__(self, "layout", learned if running is None or self.buffers == "own" else learned + running)

    @cached_property
    def per_sample_loss(self) -> PerSample:
        """The loss as a function that gives one value per sample."""
        return LOSSES[self.loss] if isinstance(self.loss, str) else self.loss

    @cached_property
    def per_sample_metrics(self) -> dict[str, PerSample]:
        """The metrics, the loss among them."""
        fitting = METRICS[self.loss] if isinstance(self.loss, str) else {}
        return {"loss": self.per_sample_loss, **(fitting if self.metrics is None else self.metrics)}

    def initial(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the initial model as a flat row; frozen parameters are no part of it.

        Args:
            dtype: The type of the numbers.
        """
        return self.layout.flatten({name: value.to(dtype) for name, value in self._values(self.layout)})

    def initial_running(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the running statistics before any training as a flat row; it is empty where there are none.

        Args:
            dtype: The type of the numbers.
        """
        if self.running is None:
            return torch.zeros(0, dtype=dtype)
        return self.running.flatten({name: value.to(dtype) for name, value in self._values(self.running)})

    def _values(self, layout: Layout) -> Iterator[tuple[str, Tensor]]:
        """Yield the module's own tensors that a layout names."""
        there = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return ((name, there[name].detach().cpu()) for name in layout.names)

    def named(self, row: Tensor) -> dict[str, Tensor]:
        """View a row, with or without running statistics at its end, as tensors by name.

        Args:
            row: The row of one model.
        """
        return (self.learned if row.shape[-1] == self.learned.width else self.layout).unflatten(row)

    @property
    def own_running(self) -> bool:
        """Whether every device keeps running statistics of its own."""
        return self.running is not None and self.buffers == "own"

    @cached_property
    def mixes_samples(self) -> bool:
        """Whether a sample's output while training depends on the samples beside it, as batch normalisation makes it."""
        return buffers.mixes_samples(self.module)

    @cached_property
    def frozen(self) -> dict[str, Tensor]:
        """The parameters that are not learned and the buffers that stay as they are, by name: the same for every node.

        Buffers that a module does not save (``persistent=False``) are not among them.
        """
        moving = set(self.learned.names) | set(self.running.names if self.running is not None else ())
        there = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        saved = self.module.state_dict()
        return {n: value.detach().cpu() for n, value in there.items() if n not in moving and n in saved}

    @cached_property
    def tied(self) -> dict[str, str]:
        """Other names of what several layers share, each with the name under which it is learned, kept or frozen."""
        module, saved = self.module, self.module.state_dict()
        named = {id(value): name for name, value in (*module.named_parameters(), *module.named_buffers())}
        every = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        return {name: named[id(value)] for name, value in every if named[id(value)] != name and name in saved}

    def replica(self, *, training: bool, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """Copy the module for functional calls; its parameters are only shapes, its dropout is addressed."""
        module = copy.deepcopy(self.module).to(device=device, dtype=dtype)
        for number, (name, layer) in enumerate(list(module.named_modules(remove_duplicate=False))):
            if isinstance(layer, nn.Dropout):
                parent = module.get_submodule(name.rpartition(".")[0]) if "." in name else module
                setattr(parent, name.rpartition(".")[2], AddressedDropout(layer.p, number))
        module.requires_grad_(False)
        at_work = buffers.in_training(self.module) if training else ()
        for name, layer in module.named_modules():
            layer.training = name in at_work
            if isinstance(layer, nn.modules.batchnorm._NormBase):
                layer.num_batches_tracked = None  # counts batches for momentum=None alone
        return module

    def fitted(self, features: Tensor, targets: Tensor, classes: int | None) -> Task:
        """Return the task for a population, after one forward pass on a few of its samples.

        What cannot be learned is refused with the reason. A loss of the user's own, given without metrics, gets the accuracy
        where targets are class labels and the outputs one score per class.
        """
        output = self._checked(features, targets, classes)
        scores = output.dim() == 2 and targets.dim() == 1 and classes is not None and output.shape[1] >= max(2, classes)
        if isinstance(self.loss, str) or self.metrics is not None or targets.is_floating_point() or not scores:
            return self
        return replace(self, metrics=METRICS["cross-entropy"])

    def check_targets(self, targets: Tensor, classes: int | None) -> None:
        """Refuse targets that the logistic loss is not for: others than two classes, or than -1 and 1."""
        if self.loss != "logistic":
            return
        if classes is not None and classes > 2:
            raise BadInput(
                f"the logistic loss is for 2 classes, and the data have {classes}; use cross-entropy (model.loss) with a "
                "model such as mclr"
            )
        if classes is None and not bool((targets.abs() == 1).all()):
            raise BadInput(
                "the logistic loss takes the classes 0 and 1 as whole numbers, or targets of -1 and 1; these are other numbers"
            )

    def _other_samples(self, features: Tensor) -> str:
        """Say that a named model is not for such samples, as a further sentence; nothing where it is."""
        named = MODELS.get(self.recipe["name"]) if self.recipe is not None else None
        if named is None or features.is_floating_point() == (not named.tokens):
            return ""
        if features.is_floating_point():
            return f". The model {self.name!r} is for tokens of text, and these samples are real numbers"
        others = ", ".join(name for name, model in MODELS.items() if model.tokens)
        return f". These samples are tokens of text; choose a model for them: {others}"

    def with_parts(self, wanted: Mapping[str, Patterns], *, whole: bool = False) -> Task:
        """Return the task with further parts; those it has already stay as they are.

        A part that nobody named and that would be all that is trained is refused: it would leave the others nothing.

        Args:
            wanted: The parts, each with the pattern to take where nobody named it.
            whole: Whether a part may be all there is nevertheless.
        """
        missing = {part: patterns for part, patterns in wanted.items() if part not in self.parts}
        made = replace(self, parts={**self.parts, **missing}) if missing else self
        for part, patterns in missing.items():
            if not whole and len(made.learned.parts[part]) == len(made.learned.names):
                raise BadInput(
                    f"the part {part!r} of a model is {shown(patterns)} of its layers where nothing else is said, and of the "
                    f"model {self.name!r} that is all there is to train: nothing is left for the other parts. Choose a model "
                    f"with more layers, such as dnn, or name the part yourself: --set model.parts.{part}='*' makes it the "
                    "whole model"
                )
        return made

    def _checked(self, features: Tensor, targets: Tensor, classes: int | None) -> Tensor:
        """Return the output of one forward pass, or refuse what cannot be learned."""
        try:
            module = self.replica(training=False, dtype=_floating(features), device=features.device)
        except Exception as error:  # a module can hold anything
            raise BadInput(f"model {self.name!r} cannot be copied (copy.deepcopy): {one_line(str(error))}") from None
        try:
            output = module(features)
        except Exception as error:  # a user's forward can raise anything
            text = modules.no_output(self.name, tuple(features.shape[1:]), error, self.module)
            raise BadInput(text + self._other_samples(features)) from None
        if not isinstance(output, Tensor):
            raise BadInput(modules.no_tensor(self.name, output, self.module))
        if self.loss == "cross-entropy" and classes is not None and output.shape[-1] < classes:
            raise BadInput(
                f"model {self.name!r} has {output.shape[-1]} outputs but the labels go up to {classes - 1}: "
                f"give it at least {classes} outputs"
            )
        try:
            values = self.per_sample_loss(output, targets)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise BadInput(
                f"the outputs of model {self.name!r}, of shape {tuple(output.shape[1:])}, do not fit targets of shape "
                f"{tuple(targets.shape[1:])}: {one_line(str(error))}"
            ) from None
        if not isinstance(values, Tensor):
            raise BadInput(f"the loss gave a {type(values).__name__}; it must give a tensor of one value per sample")
        if values.shape != (len(targets),):
            raise BadInput(
                f"the loss gave shape {tuple(values.shape)} for {len(targets)} samples; it must give one value per "
                "sample (reduction='none')"
            )
        return output


def _floating(features: Tensor) -> torch.dtype:
    return features.dtype if features.is_floating_point() else torch.float32
