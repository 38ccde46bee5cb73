"""A population as a folder of arrays that are opened at once and read from disk as they are needed."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from tokenize import TokenError
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from palmette import values
from palmette.errors import BadInput
from palmette.guards.texts import from_json
from palmette.population.encoding import Encoding
from palmette.population.population import Population
from palmette.population.recipe import Recipe
from palmette.tree import Tree
from palmette.values import Array, one_line

ABOUT = "population.json"
Finite = Annotated[float, Field(allow_inf_nan=False)]
_LARGEST = 1 << 30  # bytes of it: ten million devices with names
_FORMAT = 1
_BLOCK = 1 << 24  # bytes that are hashed at once


# What numpy raises for the damaged description of an array is among them.
_FAULTS = (
    *(OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, MemoryError),
    *(SyntaxError, TokenError, EOFError),
)
_KINDS = {"start": ("int64", 1), "train": ("int64", 1), "unseen": ("bool", 1)}


class _Made(BaseModel):
    """What a population was made from."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class _About(BaseModel):
    """What is written down about a saved population."""

    labels: list[list[str] | None] = Field(min_length=2)
    affine: tuple[Finite, Finite] | None
    classes: Annotated[int, Field(ge=1, lt=2**31)] | None
    source: str
    encoding: dict[str, Any] | None
    notes: list[str] = []
    made: _Made | None
    fingerprint: str


class Packing:
    """The folder of a population while it is written: the features first, all else at the end.

    Args:
        path: The folder; there must be none yet.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = values.path("the population's folder", path).expanduser()
        if self.path.exists():
            raise BadInput(f"{self.path} is there already; choose another name or remove it first")
        self._part = self.path.with_name(f".{self.path.name}.part")
        try:
            shutil.rmtree(self._part, ignore_errors=True)
            self._part.mkdir(parents=True)
        except OSError as error:
            raise BadInput(f"cannot make the folder {self.path}: {error.strerror}") from None

    def room(self, name: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array on disk to be filled."""
        return np.lib.format.open_memmap(self._part / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)

    def finish(self, population: Population) -> Population:
        """Write what is not there yet, put the folder in its place and return the population as it lies there."""
        tree, recipe = population.tree, population.recipe
        for name in ("x", "y", "start", "train", "unseen"):
            tensor: Tensor | None = getattr(population, name)
            if tensor is not None and not (self._part / f"{name}.npy").exists():
                np.save(self._part / f"{name}.npy", tensor.numpy())
        for tier, parent in enumerate(tree.parents):
            np.save(self._part / f"parents-{tier}.npy", parent)
        for tier, given in enumerate(tree.fixed):
            if given is not None:
                np.save(self._part / f"addresses-{tier}.npy", given)
        digest = hashlib.sha256()
        for file in sorted(self._part.glob("*.npy")):
            digest.update(file.name.encode())
            with file.open("rb") as raw:
                while block := raw.read(_BLOCK):
                    digest.update(block)
        about = {
            "format": _FORMAT,
            "labels": tree.labels,
            "affine": population.affine,
            "classes": population.classes,
            "source": population.source,
            "encoding": population.encoding.as_dict() if population.encoding is not None else None,
            **({"notes": population.notes} if population.notes else {}),
            "made": {"values": dict(recipe.values), "seed": recipe.seed} if recipe is not None else None,
        }
        digest.update(json.dumps(about, sort_keys=True).encode())
        text = json.dumps({**about, "fingerprint": digest.hexdigest()[:32]}, ensure_ascii=False)
        (self._part / ABOUT).write_text(text, encoding="utf-8")
        self._part.rename(self.path)
        return load_population(self.path)

    def drop(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self._part, ignore_errors=True)


def save(population: Population, path: str | Path) -> None:
    """Write a population to a folder; see `Population.save`."""
    packing = Packing(path)
    try:
        packing.finish(population)
    except BaseException:
        packing.drop()
        raise


def is_saved(path: Path) -> bool:
    """Return whether a folder holds a population."""
    return path.is_dir() and (path / ABOUT).is_file()


def load_population(path: str | Path) -> Population:
    """Open a population that was saved with `Population.save` or packed with ``palmette data pack``.

    Its samples stay on disk and are read as they are needed.

    Args:
        path: The folder.
    """
    folder = values.path("the population's folder", path).expanduser()
    if not is_saved(folder):
        raise BadInput(f"{folder} is not the folder of a population: there is no {ABOUT} in it")
    try:
        told = from_json((folder / ABOUT).read_bytes(), _LARGEST)
        if told["format"] != _FORMAT:
            raise BadInput(f"{folder} has the format {told['format']}; this Palmette reads {_FORMAT}, pack it again")
        about = _About.model_validate(told)
        arrays = {file.stem: np.load(file, mmap_mode="c", allow_pickle=False) for file in folder.glob("*.npy")}
        parents = tuple(np.array(arrays[f"parents-{tier}"]) for tier in range(len(about.labels) - 1))
        labels = tuple(None if names is None else tuple(names) for names in about.labels)
        given = [arrays.get(f"addresses-{tier}") for tier in range(len(labels))]
        fixed = tuple(None if one is None else np.array(one) for one in given)
        tree = Tree(parents, labels, () if all(one is None for one in fixed) else fixed)
        tensors = {name: _tensor(arrays, name) for name in ("x", "y", "start", "train")}
        made = Population(
            tree,
            tensors["x"],
            tensors["y"],
            tensors["start"],
            tensors["train"],
            affine=about.affine,
            classes=about.classes,
            source=about.source,
            encoding=None if about.encoding is None else Encoding.from_dict(about.encoding),
            unseen=_tensor(arrays, "unseen") if "unseen" in arrays else None,
            notes=tuple(about.notes),
        )
        recipe = {"name": str(folder.absolute()), "fingerprint": about.fingerprint}
        return made.made_by(Recipe(recipe, about.made.seed if about.made is not None else 0))
    except _FAULTS as error:
        if isinstance(error, BadInput) and not isinstance(error.__cause__, Exception):
            raise
        raise BadInput(f"{folder} is damaged ({one_line(str(error))[:300]}); pack it again") from None


def _tensor(arrays: dict[str, Array], name: str) -> Tensor:
    """Return an array as a tensor, or refuse one of another kind than is saved."""
    kind, axes = _KINDS.get(name, ("", 0))
    array = arrays[name]
    if kind and (array.dtype != kind or array.ndim != axes):
        raise ValueError(f"{name} is of type {array.dtype} and shape {array.shape}, not {kind} with {axes} axis")
    if array.ndim < 1 or (name == "x" and array.ndim < 2):
        raise ValueError(f"{name} is of shape {array.shape}")
    return torch.from_numpy(array)
