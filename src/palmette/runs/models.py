"""The models that a run left: as tensors, as modules, as files, and what they predict."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from palmette.errors import BadInput, PalmetteWarning, nearest
from palmette.learner import Batch
from palmette.population import Encoding
from palmette.protocol import Algorithm, ModelKind
from palmette.runs import kept
from palmette.runs.config import RunConfig
from palmette.runs.folder import ENCODING, FROZEN, ROWS, Folder, model_file
from palmette.runs.written import file_names, save_tensors
from palmette.task import make_task
from palmette.values import one_line, refuse_larger_than_memory


class Models(ABC):
    """The models in a run's folder.

    Attributes:
        folder: Where they lie.
        config: The run's config.
        finished: Whether the run came to its end; before it there are no models.
        trusted: Whether code that the config names may be run.
    """

    folder: Path
    config: RunConfig
    finished: bool
    trusted: bool
    _files: Folder

    @property
    @abstractmethod
    def kinds(self) -> list[ModelKind]:
        """Which kinds of models there are."""

    def names(self, kind: ModelKind = "PM") -> list[str]:
        """Return the names of the nodes that have a model of this kind, in the order of `tensors`.

        Args:
            kind: ``"PM"``, ``"TM"`` or ``"GM"``, as in `module`.
        """
        return list(self._about(kind)["nodes"])

    def tensors(self, kind: ModelKind = "PM") -> dict[str, Tensor]:
        """Return the parameters of all models of a kind, by name, with one line per node; `frozen` has the others.

        Running statistics of batch normalisation are among them.

        Args:
            kind: ``"PM"``, ``"TM"`` or ``"GM"``, as in `module`.
        """
        with self._sheets(kind) as file:
            return {name: part[:] for name, part in file.items()}

    @cached_property
    def encoding(self) -> Encoding | None:
        """How a table's columns became the inputs of the models, with the names of the classes; ``None`` without a table."""
        self._files.check(ENCODING)
        return kept.encoding(self._files)

    @property
    def frozen(self) -> dict[str, Tensor]:
        """Parameters and buffers that were frozen and are the same in all models, by name; mostly there are none."""
        self._files.check(FROZEN)
        if not self._files.has(FROZEN):
            return {}
        with self._opened(FROZEN) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping

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
        with torch.no_grad(), self._sheets(kind) as file:
            values = {key: part[line] for key, part in file.items()}
        return self._whole(values, kind)

    def _whole(self, values: dict[str, Tensor], kind: ModelKind) -> dict[str, Tensor]:
        """Add to a node's tensors what is frozen, and the further names of parameters that layers share."""
        values = {**values, **self.frozen}
        tied = self._about(kind)["model"].get("tied", {})
        if lost := set(tied.values()) - values.keys():
            raise BadInput(f"{self.folder / model_file(kind)} lacks the parameter {min(lost)!r}, which layers share")
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
            made = self._made(values, about)
        _fill(made, values, f"the {kind} of {node!r}" if node is not None else f"the {kind}")
        return made

    def _made(self, values: dict[str, Tensor], about: dict[str, Any]) -> nn.Module:
        """Make the run's model again, with a place for some numbers."""
        model, words = self.config.model, None if self.encoding is None else self.encoding.words
        if "model" in self.config.given:
            self.refuse_code("model", model.name)
            if changed := self.config.changed_model():
                told = f"{changed} when this run was made: what the model computes may differ"
                warnings.warn(told, PalmetteWarning, stacklevel=4)
        else:  # as large as the config says only where the numbers are there
            with torch.device("meta"):
                task = make_task(model.name, tuple(about["shape"]), about["classes"], words=words, **model.options)
            check_shapes(task.module, values, f"the model {model.name!r} of the config")
        made = make_task(model.name, tuple(about["shape"]), about["classes"], words=words, **model.options).module
        return made.to(next(iter(values.values())).dtype)

    def refuse_code(self, role: str, path: str) -> None:
        """Refuse to run code that the run names, where nobody said that it can be trusted.

        Args:
            role: What it is, as in ``"model"``.
            path: Its import path or file.
        """
        if not self.trusted:
            raise BadInput(
                f"the {role} of the run in {self.folder} is code, {path}, which would have to be run. If you trust who made "
                "this run, say so: --trust on the command line, pm.load(..., trust=True) in Python"
            )

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
        with self._lines(ROWS, len(self.names("PM"))) as file:
            rows = {key: part[line] for key, part in file.items()}
        if "model" not in rows:
            raise BadInput(f"{self.folder / ROWS} has no rows named 'model'; no run wrote this")
        if method is None and "algorithm" in self.config.given:
            self.refuse_code("algorithm", self.config.source)
            if changed := self.config.changed_code():
                told = f"{changed} when this run was made: what it predicts may differ"
                warnings.warn(told, PalmetteWarning, stacklevel=3)
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

        Args:
            target: The folder to write to.
            kind: ``"PM"``, ``"TM"`` or ``"GM"``, as in `module`.
        """
        folder, names = Path(target), self.names(kind)
        written = [folder / f"{name}.safetensors" for name in file_names(names)]
        folder.mkdir(parents=True, exist_ok=True)
        with self._sheets(kind) as parts:
            for line, path in enumerate(written):
                rows = {key: part[line] for key, part in parts.items()}
                save_tensors(self._whole(rows, kind), path, {"node": names[line]})
        return written

    def _file(self, kind: ModelKind) -> Path:
        path = self.folder / model_file(kind)
        if not self.finished:
            raise BadInput(
                f"the run in {self.folder} is not finished and has no models yet; go on with 'palmette resume {self.folder}'"
            )
        self._files.check(path.name)
        if not path.exists() and kind in self.kinds:
            raise BadInput(
                f"the {kind} are not in {self.folder}: this training was on real machines, where each node keeps its own "
                "model, in the folder 'models' of its kit"
            )
        if not path.exists():
            raise BadInput(f"{self.config.title} has no model of the kind {kind}; it has {', '.join(self.kinds)}")
        return path

    def _about(self, kind: ModelKind) -> dict[str, Any]:
        self._file(kind)
        return kept.about_models(self._files, model_file(kind))

    def _sheets(self, kind: ModelKind) -> AbstractContextManager[dict[str, Any]]:
        """Give the tensors of all models of a kind, to be cut line by line."""
        return self._lines(self._file(kind).name, len(self.names(kind)))

    @contextmanager
    def _lines(self, name: str, count: int) -> Iterator[dict[str, Any]]:
        """Give the tensors of a file, to be cut; each has a line for every node."""
        with self._opened(name) as file:
            parts = {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
            if not parts or any(part.get_shape()[:1] != [count] for part in parts.values()):
                raise BadInput(
                    f"{self.folder / name} does not have a line for each of {count} nodes; no run wrote this"
                )
            yield parts

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        """Give a file of tensors; what cannot be read of it is refused."""
        path = self.folder / name
        refuse_larger_than_memory(f"the tensors in {path}", path.stat().st_size, "use a larger machine")
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except SafetensorError as error:
            raise BadInput(f"cannot read {path}: {one_line(str(error))}") from None


def check_shapes(module: nn.Module, values: dict[str, Tensor], what: str) -> None:
    """Refuse numbers that are not those of a module's parameters; the module need not have any numbers itself."""
    wanted = {name: tuple(one.shape) for name, one in module.named_parameters(remove_duplicate=False)}
    for name, shape in wanted.items():
        if name not in values or tuple(values[name].shape) != shape:
            there = f"of shape {tuple(values[name].shape)}" if name in values else "missing"
            raise BadInput(f"{what} has the parameter {name!r} of shape {shape}, and in the run's file it is {there}")
        if not values[name].is_floating_point():
            raise BadInput(
                f"{what} has the parameter {name!r}, which is of type {values[name].dtype} in the run's file"
            )
    if not wanted:
        raise BadInput(f"{what} has no parameters")


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
