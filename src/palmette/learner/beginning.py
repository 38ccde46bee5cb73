"""A frozen beginning: what the first layers give for a sample never changes, so it is computed once and kept."""

from __future__ import annotations

import copy
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, fx, nn

from palmette.learner.samples import Samples
from palmette.learner.threads import one_thread_inside
from palmette.task import Task
from palmette.task.buffers import in_training
from palmette.values import one_line

_NUMBERS = 1 << 18  # numbers of the samples that go through the beginning at once
_MOST = 256  # samples that do


@dataclass(frozen=True, eq=False)
class Beginning:
    """The first layers of a model, which learn nothing, apart from the rest.

    Attributes:
        module: The first layers.
        rest: The task whose module is the others; its rows are those of the whole task.
        layers: How many frozen layers are in it.
    """

    module: nn.Module
    rest: Task
    layers: int


def apart(task: Task, x: Tensor, dtype: torch.dtype) -> Beginning | str | None:
    """Return a task's frozen beginning, why it cannot be computed once, or nothing where the model has none.

    Args:
        task: What is learned.
        x: A few samples to try it on.
        dtype: Type of the features.
    """
    module = copy.deepcopy(task.module)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name in task.learned.names)
    if all(parameter.requires_grad for parameter in module.parameters()):
        return None
    at_work, other = in_training(module), copy.deepcopy(module)
    try:
        with _mode(module, at_work), _mode(other, set()):
            graph, evaluated = _Tracer().trace(module), _Tracer().trace(other)
        cuts = _cuts(list(graph.nodes), module)
    except Exception as error:  # a user's forward can raise anything when it is called with a proxy
        text = str(error).strip() or type(error).__name__
        return f"torch.fx cannot follow the model ({text.splitlines()[0]})"
    if cuts and str(graph) != str(evaluated):
        return "its forward looks at self.training, and torch.fx can only follow one of its ways"
    whys: list[str] = []
    for cut, before in reversed(cuts):  # what comes after an encoder, such as dropout, may be more than can be kept
        begin = fx.GraphModule(module, _part(graph, cut, before, first=True))
        begin.requires_grad_(False).to(x.device, dtype)
        if why := _unsteady(begin, at_work, x):
            whys.append(why)
        else:
            rest = fx.GraphModule(module, _part(graph, cut, before, first=False))
            rest.training = module.training
            inner = _task(task, rest)
            if inner is None:
                return "a frozen layer and a learned one share a parameter"
            frozen = {str(node.target) for node in before if node.op == "call_module"} & _with_parameters(module)
            return Beginning(begin.eval(), inner, len(frozen))
    return whys[0] if whys else None


@contextmanager
def _mode(module: nn.Module, at_work: set[str]) -> Iterator[None]:
    """Put some layers of a module into training mode and the others into evaluation mode, for a while."""
    before = [(layer, layer.training) for layer in module.modules()]
    for name, layer in module.named_modules():
        layer.training = name in at_work
    try:
        yield
    finally:
        for layer, mode in before:
            layer.training = mode


def _with_parameters(module: nn.Module) -> set[str]:
    return {name for name, layer in module.named_modules() if any(True for _ in layer.parameters())}


class _Tracer(fx.Tracer):
    """Follows a module down to torch's own layers and to those that learn nothing, whatever these do inside."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = list(m.parameters())
        frozen = bool(own) and not any(parameter.requires_grad for parameter in own)
        return frozen or super().is_leaf_module(m, module_qualified_name)


def _cuts(nodes: list[fx.Node], module: nn.Module) -> list[tuple[fx.Node, set[fx.Node]]]:
    """Return the values that no learned parameter enters and through which alone the samples reach the rest, in order.

    With each comes all that it is made from, itself included.
    """
    found: list[tuple[fx.Node, set[fx.Node]]] = []
    if sum(node.op == "placeholder" for node in nodes) != 1:
        return found
    learned = {name for name, parameter in module.named_parameters(remove_duplicate=False) if parameter.requires_grad}
    heavy = _with_parameters(module)
    made_from: dict[fx.Node, set[fx.Node]] = {}
    touched: set[fx.Node] = set()  # depends on what is learned
    for node in nodes:
        made_from[node] = {node}.union(*(made_from[given] for given in node.all_input_nodes))
        target = str(node.target)
        own = node.op in ("call_module", "get_attr") and any(
            name == target or name.startswith(f"{target}.") for name in learned
        )
        if own or node.op == "output" or not touched.isdisjoint(node.all_input_nodes):
            touched.add(node)
            continue
        before = made_from[node]
        worth = any(one.op == "call_module" and str(one.target) in heavy for one in before)
        alone = all(user in before for one in before - {node} for user in one.users)
        if worth and alone and any(one.op == "placeholder" for one in before):
            found.append((node, before))
    return found


def _part(graph: fx.Graph, cut: fx.Node, before: set[fx.Node], *, first: bool) -> fx.Graph:
    """Return the graph up to a value, or from it on."""
    part, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    if not first:
        copies[cut] = part.placeholder("features")
    for node in graph.nodes:
        if (node in before) == first and node.op != "output":
            copies[node] = part.node_copy(node, lambda given: copies[given])
    end = cut if first else next(node for node in graph.nodes if node.op == "output").args[0]
    part.output(fx.node.map_arg(end, lambda given: copies[given]))
    return part


def _task(task: Task, rest: nn.Module) -> Task | None:
    """Return the task of the rest, with rows in the order of the whole task's."""
    if {name for name, value in rest.named_parameters() if value.requires_grad} != set(task.learned.names):
        return None
    inner = Task(rest, task.loss, task.metrics, task.l2, task.name, buffers=task.buffers)
    if set(inner.layout.names) != set(task.layout.names):
        return None
    for name in ("layout", "learned", "running"):
        object.__setattr__(inner, name, getattr(task, name))
    return inner


def _unsteady(begin: nn.Module, at_work: set[str], x: Tensor) -> str | None:
    """Return why what a beginning gives for a sample cannot be kept; nothing where it can."""
    changing = (
        "dropout, batch normalisation or augmentation in it gives other values at every step; put it into evaluation "
        "mode, as in model.encoder.eval(), to have its features computed once"
    )
    if any(name in at_work and _changes(layer) for name, layer in begin.named_modules()):
        return changing
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            with _mode(begin, at_work):
                first, again = begin(x), begin(x)
            with _mode(begin, set()):
                evaluated, alone = begin(x), [begin(one) for one in x.split(1)]
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return f"it cannot take one sample alone ({one_line(str(error))})"
    if not isinstance(first, Tensor) or len(first) != len(x) or not first.is_floating_point():
        return "what it gives is no tensor of floating-point numbers with one line per sample"
    if not first.equal(again) or not first.equal(evaluated):
        return changing
    if any(len(one) != 1 for one in alone) or not torch.allclose(torch.cat(alone), first, rtol=1e-3, atol=1e-5):
        return "what it gives for a sample depends on the samples beside it"
    return None


def _changes(layer: nn.Module) -> bool:
    """Return whether a layer in training mode gives other values than in evaluation mode."""
    if isinstance(layer, nn.modules.dropout._DropoutNd):
        return layer.p > 0
    return isinstance(layer, nn.modules.batchnorm._NormBase) and layer.track_running_stats


def encode(samples: Samples, module: nn.Module, memory: int) -> Samples:
    """Return samples with what a module gives for them in the place of their features.

    They are computed a block at a time, on all cores; where they would take more than ``memory`` bytes they lie in a temporary
    file that is gone with the process.
    """
    total = len(samples.y)
    with torch.no_grad():
        probe = module(samples.features(torch.arange(min(1, total), device=samples.device)))
    shape = (total, *probe.shape[1:])
    room = probe[0].numel() * samples.rows_dtype.itemsize * total
    on_disk = room > memory
    kept = _file(shape, samples.rows_dtype) if on_disk else torch.empty(shape, dtype=samples.rows_dtype)
    kept = kept if on_disk else kept.to(samples.device)
    size = max(1, min(_MOST, _NUMBERS // samples.width))
    replicas = [copy.deepcopy(module) for _ in range((os.cpu_count() or 1) if samples.device.type == "cpu" else 1)]

    def work(number: int) -> None:
        torch.set_num_threads(1)
        blocks = torch.arange(total, device=samples.device).split(size)
        with torch.no_grad():
            for block in blocks[number :: len(replicas)]:
                low, high = int(block[0]), int(block[-1]) + 1
                kept[low:high] = replicas[number](samples.features(block)).to(kept)

    with one_thread_inside(), ThreadPoolExecutor(len(replicas)) as pool:
        for done in [pool.submit(work, number) for number in range(len(replicas))]:
            done.result()
    return samples.replaced(kept)


def _file(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return zeros that lie in a file without a name."""
    handle, name = tempfile.mkstemp(prefix="palmette-features-")
    os.close(handle)
    try:
        kind = np.float64 if dtype == torch.float64 else np.float32
        return torch.from_numpy(np.memmap(name, dtype=kind, mode="w+", shape=shape))
    finally:
        Path(name).unlink()
