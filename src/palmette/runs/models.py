"""The models that a run left: as tensors, as modules, as files, and what they predict."""

from __future__ import annotations

import copy
import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from palmette.errors import BadInput, PalmetteWarning, nearest
from palmette.learner import Batch
from palmette.population import Encoding
from palmette.protocol import Algorithm, ModelKind
from palmette.runs.config import RunConfig
from palmette.runs.folder import ENCODING, FROZEN, ROWS, Folder, model_file
from palmette.task import make_task
from palmette.values import one_line

_LONGEST = 200  # letters of a file's name before its ending; disks allow 255 bytes


class Models(ABC):
    """The models in a run's folder.

    Attributes:
        folder: Where they lie.
        config: The run's config.
        finished: Whether the run came to its end; before it there are no models.
    """

    folder: Path
    config: RunConfig
    finished: bool
    _files: Folder

    @property
    @abstractmethod
    def kinds(self) -> list[ModelKind]:
        """Which kinds of models there are."""

    def names(self, kind: ModelKind = "PM") -> list[str]:
        """Return the names of the nodes that have a model of this kind, in the order of `tensors`."""
        return list(self._about(kind)["nodes"])

    def tensors(self, kind: ModelKind = "PM") -> dict[str, Tensor]:
        """Return the parameters of all models of a kind, by name, with one line per node; `frozen` has the others.

        Running statistics of batch normalisation are among them.
        """
        with safe_open(self._file(kind), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping

    @cached_property
    def encoding(self) -> Encoding | None:
        """How a table's columns became the inputs of the models, with the names of the classes; ``None`` without a table."""
        self._files.check(ENCODING)
        if not (self.folder / ENCODING).exists():
            return None
        try:
            return Encoding.from_dict(json.loads((self.folder / ENCODING).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise BadInput(f"cannot read {self.folder / ENCODING}: {error!r}") from None

    @property
    def frozen(self) -> dict[str, Tensor]:
        """Parameters and buffers that were frozen and are the same in all models, by name; mostly there are none."""
        self._files.check(FROZEN)
        return load_file(self.folder / FROZEN) if (self.folder / FROZEN).exists() else {}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample."""
        return tuple(self._about(self.kinds[0])["model"]["shape"])

    def state_dict(self, kind: ModelKind = "PM", node: str | None = None) -> dict[str, Tensor]:
        """Return one node's model as `torch.nn.Module.load_state_dict` takes it.

        Args:
            kind: ``"PM"``, ``"TM"`` or ``"GM"``, as in `module`.
            node: The device's or team's name; not needed for the global model.
        """
        names = self.names(kind)
        name = names[0] if node is None and len(names) == 1 else node
        if name not in names:
            raise BadInput(f"no {kind} of {name!r}{nearest(str(name), names)}")
        line = names.index(name)
        with torch.no_grad(), safe_open(self._file(kind), framework="pt") as file:
            values = {key: file.get_slice(key)[line] for key in file.keys()}  # noqa: SIM118 - not a mapping
        return self._whole(values, kind)

    def _whole(self, values: dict[str, Tensor], kind: ModelKind) -> dict[str, Tensor]:
        """Add to a node's tensors what is frozen, and the further names of parameters that layers share."""
        values = {**values, **self.frozen}
        tied = self._about(kind)["model"].get("tied", {})
        return {**values, **{name: values[own].clone() for name, own in tied.items()}}

    def module(self, kind: ModelKind = "PM", node: str | None = None, into: nn.Module | None = None) -> nn.Module:
        """Return one node's model as a torch module, a new one every time.

        Args:
            kind: ``"PM"``, ``"TM"`` or ``"GM"``; in deeper trees also ``"TM2"`` for the nodes of tier 2, and so on.
            node: The device's or team's name; not needed for the global model.
            into: A module of the same layers, for a run whose model was a module of your own. It is copied, in its own type
                of numbers, and itself stays as it is.
        """
        values, about = self.state_dict(kind, node), self._about(kind)["model"]
        if into is not None:
            made = copy.deepcopy(into)
        elif (own := self.config.given.get("model")) is not None and not own.again:
            raise BadInput("this run's model was a module of your own: give one of the same layers with into=")
        else:
            model = self.config.model
            if changed := self.config.changed_model():
                warnings.warn(
                    f"{changed} when this run was made: what the model computes may differ",
                    PalmetteWarning,
                    stacklevel=3,
                )
            words = None if self.encoding is None else self.encoding.words
            made = make_task(model.name, tuple(about["shape"]), about["classes"], words=words, **model.options).module
            made = made.to(next(iter(values.values())).dtype)
        _fill(made, values, f"the {kind} of {node!r}" if node is not None else f"the {kind}")
        return made

    def predict(
        self,
        x: Tensor,
        kind: ModelKind = "PM",
        node: str | None = None,
        *,
        into: nn.Module | None = None,
        method: Algorithm | None = None,
    ) -> Tensor:
        """Return the outputs of one node for samples, as evaluation computes them.

        Most methods predict with the node's model; what a method's own `Algorithm.predict` does is done here too.

        Args:
            x: Samples ``(samples, ...)``, with features as the model was trained on them.
            kind: ``"PM"``, ``"TM"`` or ``"GM"``, as in `module`.
            node: The device's or team's name; not needed for the global model.
            into: A module of the same layers, where the run's model was your own.
            method: The algorithm, where it was an object of your own that predicts in a way of its own.
        """
        module = self.module(kind, node, into)
        own = kind == "PM" and (self.folder / ROWS).exists()
        work: Callable[[Tensor], Tensor] = self._own_way(node, module, method) if own else module.eval()
        try:
            with torch.no_grad():
                return work(x)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise BadInput(
                f"model {self.config.model.title!r} cannot take samples of shape {tuple(x.shape[1:])}: {one_line(str(error))}"
            ) from None

    def _own_way(self, node: str | None, module: nn.Module, method: Algorithm | None) -> Callable[[Tensor], Tensor]:
        """Return what predicts as a device does by the algorithm's own rule, from all it keeps."""
        if method is None and not self.config.source:
            raise BadInput(
                f"{self.config.title} predicts in a way of its own, and a folder holds no code: give method=, the algorithm"
            )
        self._files.check(ROWS)
        line = 0 if node is None else self.names("PM").index(node)
        with safe_open(self.folder / ROWS, framework="pt") as file:
            rows = {key: file.get_slice(key)[line] for key in file.keys()}  # noqa: SIM118 - not a mapping
        if method is None and (changed := self.config.changed_code()):
            warnings.warn(
                f"{changed} when this run was made: what it predicts may differ", PalmetteWarning, stacklevel=3
            )
        dtype, algorithm = rows["model"].dtype, method or self.config.method()
        # The module comes with its layers in the modes they trained in, which say what a row holds.
        task = make_task(module, (), None, loss="squared", **self.config.model.about)
        running = task.initial_running(dtype) if task.own_running else None
        replica = task.replica(training=False, dtype=dtype, device=torch.device("cpu"))
        return lambda x: algorithm.predict(rows, Batch(x, x, None, task, replica, {}, running))

    def save_models(self, target: str | Path, kind: ModelKind = "PM") -> list[Path]:
        """Write every node's model to a safetensors file of its own, named after the node; what is frozen is in each.

        A name that is too long for a file, or that differs from another only in upper and lower case, is cut and ends in a
        digest of the whole name. Every file holds the node's name as its metadata ``node``.
        """
        folder, names = Path(target), self.names(kind)
        written = [folder / f"{name}.safetensors" for name in file_names(names)]
        folder.mkdir(parents=True, exist_ok=True)
        with safe_open(self._file(kind), framework="pt") as file:
            parts = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
            for line, path in enumerate(written):
                rows = {key: part[line] for key, part in parts.items()}
                save_file(self._whole(rows, kind), path, metadata={"node": names[line]})
        return written

    def _file(self, kind: ModelKind) -> Path:
        path = self.folder / model_file(kind)
        if not self.finished:
            raise BadInput(
                f"the run in {self.folder} is not finished and has no models yet; go on with 'palmette resume {self.folder}'"
            )
        self._files.check(path.name)
        if not path.exists():
            raise BadInput(f"{self.config.title} has no model of the kind {kind}; it has {', '.join(self.kinds)}")
        return path

    def _about(self, kind: ModelKind) -> dict[str, Any]:
        self._file(kind)
        return self._files.read_about(model_file(kind))


def file_names(names: list[str]) -> list[str]:
    """Return a file name for every node that any disk can hold and tell from the others."""
    quoted = [quote(name, safe=" ") for name in names]
    times = Counter(text.casefold() for text in quoted)
    return [
        text
        if len(text) <= _LONGEST and times[text.casefold()] == 1
        else f"{text[: _LONGEST - 17]}-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
        for name, text in zip(names, quoted, strict=True)
    ]


def _fill(module: nn.Module, values: dict[str, Tensor], what: str) -> None:
    """Put a model's numbers into a module that has a place for each of them."""
    parameters: dict[str, Tensor] = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    missing = next((key for key in values if key not in parameters), None)
    if missing is not None:
        raise BadInput(f"{what} has the parameter {missing!r}, which the module given with into= does not have")
    for key, value in values.items():
        if parameters[key].shape != value.shape:
            here, there = tuple(parameters[key].shape), tuple(value.shape)
            raise BadInput(f"{what} has the parameter {key!r} of shape {there}; that of the module given is {here}")
        with torch.no_grad():
            parameters[key].copy_(value)
