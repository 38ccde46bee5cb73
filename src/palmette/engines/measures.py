"""Metrics of all outputs together, as people in other fields measure: AUC, F1, calibration, R2 and others, by scikit-learn.

A metric here is a function of all outputs and all targets of some samples, not a mean over samples; so it has one value for
each device, for each team and for all samples pooled, and the value of a team is not the mean of its devices'.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from palmette.errors import BadInput, nearest
from palmette.imports import import_names
from palmette.task import by_class
from palmette.values import one_line, shown

Measure = Callable[[Tensor, Tensor], float]
"""``(outputs, targets) -> number`` over some samples; NaN where it is not defined."""

_BINS = 10  # of confidence, for calibration


def _auc(outputs: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve: with two classes that of the second, with more the mean over the classes that occur."""
    from sklearn.metrics import roc_auc_score

    chances, labels = outputs.double().softmax(1).numpy(), targets.numpy()
    there = np.unique(labels)
    if len(there) < 2:
        return math.nan
    if chances.shape[1] == 2:
        return float(roc_auc_score(labels, chances[:, 1]))
    return float(np.mean([roc_auc_score(labels == one, chances[:, one]) for one in there]))


def _f1(outputs: Tensor, targets: Tensor) -> float:
    """F1 score: with two classes that of the second, with more the mean over the classes that occur."""
    from sklearn.metrics import f1_score

    labels, guesses = targets.numpy(), outputs.argmax(1).numpy()
    two = outputs.shape[1] == 2
    return float(f1_score(labels, guesses, average="binary" if two else "macro", zero_division=0.0))


def _balanced(outputs: Tensor, targets: Tensor) -> float:
    """Balanced accuracy: the mean over the classes that occur of the part that is recognised."""
    from sklearn.metrics import recall_score

    labels, guesses = targets.numpy(), outputs.argmax(1).numpy()
    return float(recall_score(labels, guesses, labels=np.unique(labels), average="macro", zero_division=0.0))


def _calibration(outputs: Tensor, targets: Tensor) -> float:
    """Expected calibration error: how far confidence and accuracy differ, over ten bins of confidence; 0 is best."""
    from sklearn.calibration import calibration_curve

    chances = outputs.double().softmax(1)
    confidence, guesses = chances.max(1)
    right, sure = (guesses == targets).numpy(), confidence.numpy().clip(0, 1)
    share, mean = calibration_curve(right, sure, n_bins=_BINS)
    counts = np.bincount(np.searchsorted(np.linspace(0, 1, _BINS + 1)[1:-1], sure), minlength=_BINS)
    return float((np.abs(share - mean) * counts[counts > 0]).sum() / len(sure))


def _r2(outputs: Tensor, targets: Tensor) -> float:
    """Coefficient of determination: 1 is best, 0 is as good as the mean."""
    from sklearn.metrics import r2_score

    if len(targets) < 2:
        return math.nan
    flat = targets.reshape(len(targets), -1).double().numpy()
    return float(r2_score(flat, outputs.reshape(len(targets), -1).double().numpy()))


def _rmse(outputs: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error, in the units of the target; 0 is best."""
    from sklearn.metrics import mean_squared_error

    flat = targets.reshape(len(targets), -1).double().numpy()
    return math.sqrt(mean_squared_error(flat, outputs.reshape(len(targets), -1).double().numpy()))


def _perplexity(outputs: Tensor, targets: Tensor) -> float:
    """Perplexity: exp of the total negative log likelihood over the total number of words; 1 is best."""
    total = float(F.cross_entropy(outputs.double().flatten(0, -2), targets.flatten(), reduction="sum"))
    return _exp(total / targets.numel())


def _exp(mean: float) -> float:
    return math.exp(min(mean, 700.0))


@dataclass(frozen=True)
class Entry:
    """One row of the table of metrics.

    Attributes:
        measure: The function.
        classes: Whether it is for class labels; else for regression.
    """

    measure: Measure
    classes: bool


MEASURES = {
    "auc": Entry(_auc, True),
    "f1": Entry(_f1, True),
    "balanced-accuracy": Entry(_balanced, True),
    "calibration": Entry(_calibration, True),
    "perplexity": Entry(_perplexity, True),
    "r2": Entry(_r2, False),
    "rmse": Entry(_rmse, False),
}


def make_measures(names: Iterable[str], classes: int | None, *, text: bool = False) -> dict[str, Measure]:
    """Return the wanted metrics by name.

    Args:
        names: Names of `MEASURES`, or import paths of functions ``(outputs, targets) -> one number`` or one per sample.
        classes: Number of classes; ``None`` for regression.
        text: Whether a sample has several labels, as the words of a text are.
    """
    found: dict[str, Measure] = {}
    for name in names:
        if ":" in name:
            found[name.rpartition(":")[2]] = _imported(name)
            continue
        if name not in MEASURES:
            raise BadInput(f"there is no metric {shown(name)}{nearest(name, MEASURES)}")
        if MEASURES[name].classes != (classes is not None):
            kind = "class labels" if MEASURES[name].classes else "regression"
            fitting = ", ".join(one for one, entry in MEASURES.items() if entry.classes == (classes is not None))
            raise BadInput(f"the metric {name!r} is for {kind}; here there is {fitting}")
        if text and name != "perplexity":
            raise BadInput(f"the metric {name!r} is for one label per sample; for text there is perplexity")
        found[name] = MEASURES[name].measure if classes is None else _of_classes(MEASURES[name].measure)
    return found


def _of_classes(measure: Measure) -> Measure:
    """Return a metric of class labels that also takes the one output of logistic regression."""
    return lambda outputs, targets: measure(by_class(outputs), targets)


def check_measures(names: Iterable[str]) -> None:
    """Refuse names that are no metrics, as far as this can be said without data."""
    for name in names:
        if ":" not in name and name not in MEASURES:
            raise BadInput(f"metrics: there is no metric {shown(name)}{nearest(name, MEASURES)}")


def named(metrics: str | Iterable[str | Callable[..., Any]]) -> str | list[str]:
    """Return metrics as a config names them: a function by its import path, which finds it again."""
    return metrics if isinstance(metrics, str) else [one if isinstance(one, str) else _path_of(one) for one in metrics]


def _path_of(function: Any) -> str:
    if not isinstance(function, FunctionType):
        raise BadInput(f"metrics: {shown(function)} is neither the name of a metric nor a function")
    path = f"{function.__module__}:{function.__name__}"
    home = sys.modules.get(function.__module__)
    if home is None or vars(home).get(function.__name__) is not function:
        raise BadInput(
            f"metrics: the function {function.__qualname__!r} cannot be found again, as it is not at the top of a module or a "
            "notebook; define it there, not inside another function"
        )
    return path


def _imported(path: str) -> Measure:
    found, name = import_names(path, "the metric", "my_metric")
    function = found.get(name)
    if not callable(function):
        names = [word for word, one in found.items() if callable(one) and not word.startswith("_")]
        raise BadInput(f"the module {path.partition(':')[0]} has no function {name!r}{nearest(name, names)}")

    def measure(outputs: Tensor, targets: Tensor) -> float:
        try:
            value: Any = function(outputs, targets)
            numbers = torch.as_tensor(value, dtype=torch.float64)
        except Exception as error:  # whatever a function of somebody else raises
            raise BadInput(f"the metric {path} failed: {type(error).__name__}: {one_line(str(error))}") from error
        if numbers.dim() and numbers.shape != (len(targets),):
            raise BadInput(
                f"the metric {path} gave shape {tuple(numbers.shape)} for {len(targets)} samples; it must give one number, or "
                "one per sample"
            )
        return float(numbers.mean())

    return measure


def perplexity_of(losses: Tensor, counts: Tensor) -> Whole:
    """Return the perplexity as it follows from the losses of each device, without the outputs, which may be very many.

    Args:
        losses: The sum of the cross-entropy over each device's samples.
        counts: Number of its samples. Each has as many words as any other, so a mean over samples is one over words.
    """

    def measure(some: Tensor, number: Tensor) -> float:
        return _exp(float(some.sum() / number.sum())) if bool(number.sum() > 0) else math.nan

    return Whole(losses, counts, torch.arange(len(losses)), {"perplexity": measure})


@dataclass(frozen=True, eq=False)
class Whole:
    """All outputs of one kind of model on test samples, to be measured together or in groups.

    Attributes:
        outputs: One row per sample.
        targets: Their targets.
        device: Their devices.
        measures: The metrics.
    """

    outputs: Tensor
    targets: Tensor
    device: Tensor
    measures: Mapping[str, Measure]

    def only(self, who: Tensor) -> Whole:
        """Return the outputs of some devices (bool)."""
        some = who[self.device]
        return Whole(self.outputs[some], self.targets[some], self.device[some], self.measures)

    def of(self, metric: str, some: Tensor) -> float:
        """Return a metric over some samples (bool); NaN for none."""
        if not bool(some.any()):
            return math.nan
        return self.measures[metric](self.outputs[some], self.targets[some])

    def by_group(self, metric: str, group: Tensor, groups: int) -> Tensor:
        """Return a metric for every group of devices; ``group`` is the group of each device."""
        owner = group[self.device]
        order = torch.argsort(owner, stable=True)
        counts = torch.bincount(owner, minlength=groups).tolist()
        parts = zip(self.outputs[order].split(counts), self.targets[order].split(counts), strict=True)
        values = [self.measures[metric](x, y) if len(y) else math.nan for x, y in parts]
        return torch.tensor(values, dtype=torch.float64)
