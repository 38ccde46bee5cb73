"""How the columns of a table became the inputs of a model, as plain data that travels with the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter


@dataclass(frozen=True)
class Input:
    """One input of a model.

    A number ``v`` of the column becomes ``(v - subtract) / divide``. Where ``equals`` is given, the input is 1 for this
    category and 0 for any other.

    Attributes:
        column: The column it is made from.
        subtract: What is subtracted from a number: its mean over the training rows.
        divide: What it is divided by then: its standard deviation over the training rows.
        equals: The category that the input stands for.
        fill: What a missing number becomes; ``None`` for what is subtracted.
    """

    column: str
    subtract: float = 0.0
    divide: float = 1.0
    equals: str | None = None
    fill: float | None = None


@dataclass(frozen=True)
class Encoding:
    """How a table is read by the models that were trained on it.

    Attributes:
        inputs: The inputs of the model, in their order; none where a sample is no row of a table.
        label: The column that is learned.
        classes: The names of the classes, in the order of the model's outputs; ``None`` for regression.
        device: The column that names the device.
        team: The columns that name its teams, from the top down.
        missing: What is done with missing values: ``"refuse"``, ``"mean"`` or ``"drop"``.
        tokens: Whether the inputs are tokens: whole numbers that name something.
        image: Channels, height and width of images; ``None`` where samples are no images.
        affine: A scale and a shift of features that are bytes, such as pixels: a model takes ``x * scale + shift``.
    """

    inputs: tuple[Input, ...]
    label: str = "label"
    classes: tuple[str, ...] | None = None
    device: str = "device"
    team: tuple[str, ...] = ()
    missing: str = "refuse"
    tokens: bool = False
    image: tuple[int, ...] | None = None
    affine: tuple[float, float] | None = None

    @property
    def words(self) -> tuple[str, ...] | None:
        """What the tokens of a text stand for, which are then the classes too; ``None`` where samples are no text."""
        return self.classes if self.tokens and not self.inputs else None

    @property
    def columns(self) -> list[str]:
        """The columns that are features, each once."""
        return list(dict.fromkeys(one.column for one in self.inputs))

    def as_dict(self) -> dict[str, Any]:
        """Return the encoding as plain data; what says nothing is left out."""
        inputs = [
            {"column": one.column, "equals": one.equals}
            if one.equals is not None
            else {"column": one.column, "subtract": one.subtract, "divide": one.divide}
            | ({} if one.fill is None else {"fill": one.fill})
            for one in self.inputs
        ]
        plain = {key: value for key, value in asdict(self).items() if value is not None}
        return {**plain, "inputs": inputs}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Encoding:
        """Make an encoding from plain data; what is none is a `ValueError`."""
        found = TypeAdapter(Encoding).validate_python(values)
        for one in found.inputs:
            if not all(map(math.isfinite, (one.subtract, one.divide, one.fill or 0.0))) or not one.divide:
                raise ValueError(f"the column {one.column!r} is scaled by what is no number, or by 0")
        if found.missing not in ("refuse", "mean", "drop"):
            raise ValueError(f"missing is {found.missing[:40]!r}; it is refuse, mean or drop")
        if found.classes is not None and not found.classes:
            raise ValueError("it has no classes")
        return found
