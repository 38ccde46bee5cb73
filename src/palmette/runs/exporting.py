"""A run's models as files for others: safetensors with all that is needed to use them in plain torch, or ONNX."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palmette.errors import BadInput, PalmetteError
from palmette.population import Encoding
from palmette.protocol import ModelKind
from palmette.runs.folder import ROWS
from palmette.runs.nodes import Chosen, Nodes
from palmette.runs.result import Result
from palmette.runs.written import file_names, save_tensors
from palmette.values import one_line

FORMATS = ("safetensors", "onnx")
_FOLDERS = {"PM": "devices", "TM": "teams", "GM": "global"}


def export(
    run: Result | str | Path,
    target: str | Path,
    *,
    node: str | None = None,
    kind: ModelKind | None = None,
    format: str = "safetensors",  # noqa: A002 - what people call it
    into: nn.Module | None = None,
    trust: bool = False,
) -> list[Path]:
    """Write models of a run to files and return their paths.

    A safetensors file holds the tensors of `torch.nn.Module.load_state_dict`, and as its metadata ``palmette`` a JSON text with
    the node, the model and, for a table, its ``inputs`` (column, scaling, categories) and ``classes``. An ONNX file has the
    scaling of numbers built in; the order of its inputs is its metadata ``inputs``.

    Args:
        run: The run, or its folder.
        target: The folder to write to; of one node alone also a file.
        node: The device or team whose model is wanted; without it all models are written, in a folder for each kind.
        kind: Of which kind (``"PM"``, ``"TM"``, ``"GM"``), where nodes share a name, or only these of all.
        format: ``"safetensors"`` or ``"onnx"``, which needs ``pip install 'palmette[onnx]'``.
        into: A module of the same layers, for ONNX of a run whose model was a module of your own.
        trust: Whether code that the run names may be run, where ``run`` is a folder; see `palmette.load`.
    """
    if format not in FORMATS:
        raise BadInput(f"format = {format!r} is unknown; it is {' or '.join(FORMATS)}")
    result = run if isinstance(run, Result) else Result(Path(run), trust=trust)
    nodes, place = Nodes(result), Path(target)
    if node is not None:
        wanted = nodes.named(node, kind)
        single = place if place.suffix == f".{format}" else place / f"{file_names([wanted.node])[0]}.{format}"
        return [_write(result, wanted, single, format, into)]
    chosen = [one for one in nodes.all() if kind in (None, one.kind)]
    if not chosen:
        raise BadInput(f"the run has no models of the kind {kind}; it has {', '.join(result.kinds)}")
    written = []
    for one in dict.fromkeys(each.kind for each in chosen):
        mine = [each for each in chosen if each.kind == one]
        folder = place / _FOLDERS.get(one, one.replace("TM", "tier"))
        for each, name in zip(mine, file_names([each.node for each in mine]), strict=True):
            written.append(_write(result, each, folder / f"{name}.{format}", format, into))
    return written


def about(result: Result, chosen: Chosen) -> dict[str, Any]:
    """Return what somebody needs to know to use a model."""
    encoding = result.encoding.as_dict() if result.encoding is not None else None
    return result.config.about_model(chosen.node, chosen.kind, encoding)


def _write(result: Result, chosen: Chosen, path: Path, format_: str, into: nn.Module | None) -> Path:
    if path.exists():
        raise BadInput(f"{path} is there already; choose another place or remove it first")
    if chosen.kind == "PM" and (result.folder / ROWS).exists():
        raise BadInput(
            f"devices of {result.config.title} predict in a way of its own, from several rows, which is no module; "
            f"use Result.predict in Python, or read {ROWS} in the run's folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    told = about(result, chosen)
    if format_ == "safetensors":
        values = {name: value.contiguous() for name, value in result.state_dict(chosen.kind, chosen.node).items()}
        save_tensors(values, path, {"node": chosen.node, "palmette": json.dumps(told)})
    else:
        _onnx(result.module(chosen.kind, chosen.node, into).eval(), result, told, path)
    return path


class Scaled(nn.Module):
    """A model with the scaling of its inputs before it."""

    subtract: Tensor
    divide: Tensor

    def __init__(self, model: nn.Module, encoding: Encoding) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("subtract", torch.tensor([one.subtract for one in encoding.inputs]))
        self.register_buffer("divide", torch.tensor([one.divide for one in encoding.inputs]))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the inputs and give them to the model."""
        output: Tensor = self.model((x - self.subtract) / self.divide)
        return output


def _onnx(module: nn.Module, result: Result, told: dict[str, Any], path: Path) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch needs it
    except ImportError as error:
        raise BadInput(
            f"ONNX needs the package {error.name!r}, which is not installed; run: pip install 'palmette[onnx]'"
        ) from None
    encoding = result.encoding
    shape = tuple(result.shape)
    whole = encoding is not None and encoding.tokens
    if encoding is not None and encoding.inputs and not whole:
        module = Scaled(module, encoding)
    example = torch.zeros((2, *shape), dtype=torch.int64 if whole else torch.float32)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own parts
            made = torch.onnx.export(
                module.float().eval(),
                (example,),
                dynamo=True,
                input_names=["x"],
                output_names=["y"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                verbose=False,
            )
    except RuntimeError as error:
        raise PalmetteError(f"torch cannot write this model as ONNX: {one_line(str(error))[:300]}") from error
    assert made is not None
    made.save(str(path))
    file = onnx.load(str(path))
    for key, value in told.items():
        entry = file.metadata_props.add()
        entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)
    onnx.save(file, str(path))
