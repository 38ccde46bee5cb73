"""Modules that cannot be learned as they are, each refused with the way out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.weight_norm import WeightNorm

from palmette.errors import BadInput
from palmette.task.buffers import in_training
from palmette.values import one_line, shown

_ONE_OF_MANY = (
    "Wrap it in a module of your own whose forward returns the tensor to learn from, as in: outputs, _ = self.{name}(x); "
    "return self.last(outputs[:, -1])"
)


def check(module: nn.Module) -> None:
    """Refuse modules that cannot be copied and called with other parameters, or whose random numbers are their own."""
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            raise BadInput(
                f"the parameter {name!r} has no shape yet, because its layer is a lazy one; call the model once on a batch, "
                "as in model(x), before you give it to Palmette"
            )
        if parameter.is_complex():
            raise BadInput(
                f"the parameter {name!r} is complex; Palmette learns real numbers only, so keep its real and imaginary parts "
                "as two parameters"
            )
    training = in_training(module)
    for name, layer in module.named_modules():
        if problem := _problem(layer, at_work=name in training):
            where = f"layer {name!r}" if name else "the model"
            raise BadInput(f"{where} is {type(layer).__name__}{problem}")


def _problem(layer: nn.Module, *, at_work: bool) -> str | None:
    """Return what is wrong with a layer and what to do about it, as the end of a sentence."""
    unrepeatable = "whose random numbers could not be repeated"
    if isinstance(layer, torch.jit.ScriptModule):
        return ", a module compiled by torch.jit, whose parameters cannot be exchanged; give the nn.Module it was made from"
    if isinstance(layer, nn.DataParallel):
        return ", which cannot be called with other parameters; give the module inside it, model.module"
    if isinstance(layer, nn.SyncBatchNorm):
        return ", which needs a GPU and torch.distributed; use nn.BatchNorm1d, 2d or 3d, or nn.GroupNorm"
    if any(isinstance(hook, WeightNorm) for hook in layer._forward_pre_hooks.values()):
        return (
            " with torch.nn.utils.weight_norm, which cannot be copied; use torch.nn.utils.parametrizations.weight_norm, "
            "which computes the same"
        )
    if isinstance(layer, nn.modules.dropout._DropoutNd) and not isinstance(layer, nn.Dropout):
        return f", {unrepeatable}; use nn.Dropout instead"
    if not at_work:
        return None
    if isinstance(layer, nn.RNNBase) and layer.dropout and layer.num_layers > 1:
        return (
            f" with dropout={layer.dropout} between its layers, {unrepeatable}; use dropout=0, or several of one layer with "
            "nn.Dropout between them"
        )
    if isinstance(layer, nn.MultiheadAttention) and layer.dropout:
        return (
            f" with dropout={layer.dropout}, {unrepeatable}; switch it off in all such layers with: for layer in "
            "model.modules(): if isinstance(layer, nn.MultiheadAttention): layer.dropout = 0.0 (nn.Dropout may stay)"
        )
    return None


def no_tensor(model: str, output: Any, module: nn.Module) -> str:
    """Return the sentence for a model that gives anything but one tensor."""
    text = f"model {model!r} gave a {type(output).__name__}; it must give one tensor. "
    own = type(module).__name__.lower()
    if isinstance(output, Mapping):
        known = [str(key) for key in output]
        return (
            f"{text}Wrap it in a module of your own whose forward returns one of its values ({shown(known)}), as in: "
            f"return self.{own}(x)[{(known or ['logits'])[0]!r}]"
        )
    return text + _ONE_OF_MANY.format(name=own)


def no_output(model: str, shape: tuple[int, ...], error: Exception, module: nn.Module) -> str:
    """Return the sentence for a model that fails on samples."""
    plain = isinstance(error, RuntimeError | ValueError | TypeError | IndexError)
    why = one_line(str(error)) if plain else one_line(f"{type(error).__name__}: {error}")
    text = f"model {model!r} cannot take samples of shape {shape}: {why}"
    for name, layer in module.named_modules():
        if not isinstance(layer, nn.Sequential):
            continue
        for own, inner in layer.named_children():
            if isinstance(inner, nn.RNNBase | nn.MultiheadAttention):
                kind, at = type(inner).__name__, f"{name}.{own}" if name else own
                needs = "takes three tensors" if isinstance(inner, nn.MultiheadAttention) else "gives a tuple"
                hint = _ONE_OF_MANY.format(name=kind.lower()) if needs.startswith("gives") else _ATTENTION
                return f"{text}. Layer {at!r} is nn.{kind}, which {needs} and cannot stand in nn.Sequential. {hint}"
    if isinstance(module, nn.MultiheadAttention):
        return f"{text}. {_ATTENTION}"
    if isinstance(error, TypeError) and "required positional argument" in why:
        return f"{text}. Palmette calls a model with one tensor, the samples; wrap one that takes more in a module of your own"
    return text


_ATTENTION = (
    "Wrap it in a module of your own, as in: mixed, _ = self.attention(x, x, x); return self.last(mixed.mean(1))"
)
