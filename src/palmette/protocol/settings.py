"""Settings of algorithms: checked frozen dataclasses, and errors that name every problem at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, cast, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from palmette.errors import BadInput
from palmette.protocol.sentences import brief, sentences, suggestion
from palmette.values import plain, pointed, shown

T = TypeVar("T")


def _no_bool(value: Any) -> Any:
    """Refuse true and false, which Python would take for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("should be a number")
    return value


NUMBER = BeforeValidator(_no_bool)
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), NUMBER]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), NUMBER]
Count = Annotated[int, Field(ge=1), NUMBER]
Share = Annotated[float, Field(ge=0, le=1), NUMBER]
Rate = Literal["auto"] | Positive | dict[str, Positive]
"""A device's step size: a number, one per device by name, or the largest that theory allows."""
BatchSize = Annotated[int, Field(ge=1)] | Literal["full"]


class Between(NamedTuple):
    """The values of a setting that tuning tries, drawn evenly on a logarithmic scale.

    Attributes:
        low: The smallest.
        high: The largest.
        whole: Whether they are whole numbers.
    """

    low: float
    high: float
    whole: bool = False


CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def settings(kind: type[T]) -> type[T]:
    """Make an algorithm's class a frozen dataclass whose settings are checked when an object is made.

    Use it as a decorator. Every annotated attribute of the class becomes a setting: it is given by name, converted to its type
    where that loses nothing, and refused with a reason where it does not fit. Attributes annotated ``ClassVar``, such as
    ``name`` and ``paper``, are no settings. For instance:

        @pm.settings
        class Halfway(pm.Algorithm):
            name: ClassVar[str] = "halfway"
            alpha: float = 0.1  # step size of the devices

    Args:
        kind: The class, a subclass of `palmette.Algorithm`.

    Returns:
        The same class as a dataclass: ``Halfway(alpha=0.2)`` makes an object, and no object changes afterwards.
    """
    return cast(type[T], dataclass(frozen=True, kw_only=True, config=CONFIG)(kind))


def described(kind: type[Any]) -> dict[str, str]:
    """Return every setting of an algorithm's class with its sentence, which is empty where nobody wrote one."""
    told = sentences(kind)
    return {field.name: told.get(field.name, "") for field in fields(kind)}


def build(kind: type[T], name: str, values: Mapping[str, Any]) -> T:
    """Make a settings object, turning all that is wrong with the values into one `BadInput`."""
    values = plain(values)
    known = described(kind)
    problems = [f"unknown setting {key!r}{suggestion(key, known)}" for key in values if key not in known]
    try:
        made = kind(**{key: value for key, value in values.items() if key in known})
    except ValidationError as error:
        for field, found in _by_field(error).items():
            about = f" ({brief(known[field])})" if known.get(field) else ""
            value = values.get(field)
            told = f"{field}: {' or '.join(dict.fromkeys(found))}, not {shown(value)}{pointed(value)}{about}"
            problems.append(told)
    if problems:
        raise BadInput(f"{name}: " + "; ".join(problems))
    return made


# What a value of several types may also be; what pydantic says of these is about Python.
_PLAIN = {
    "dict_type": "should be one value per node name, written {name=value}",
    "tuple_type": "should be a list",
}


def _by_field(error: ValidationError) -> dict[str, list[str]]:
    """Gather pydantic's messages by setting; a setting of several types has one message for each."""
    found: dict[str, list[str]] = {}
    for item in error.errors():
        field = str(item["loc"][0]) if item["loc"] else "settings"
        message = _PLAIN.get(item["type"], item["msg"].removeprefix("Value error, ").removeprefix("Input "))
        found.setdefault(field, []).append(message)
    return found
