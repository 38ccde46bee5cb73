"""What is asked of the nodes outside any exchange: how good the models are, and at the end what happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from palmette.engines.alone import scores_of_device
from palmette.engines.models import ASIDE
from palmette.links.ledger import joined, payload, table_of
from palmette.links.wire import Envelope, encode, pack
from palmette.protocol import model_kind

if TYPE_CHECKING:
    from palmette.engines.machine import Machine


def scores(machine: Machine, ask: Envelope) -> dict[str, Tensor]:
    """Measure the models on the devices below: the models above come down, each team adds its own, scores go up.

    Scores are sums over a device's test samples, ``"PM/accuracy"`` and so on, ``(1, devices below)``; a device that did not
    answer has no samples.
    """
    setup = machine.setup
    models = {kind: row.to(setup.initial.device) for kind, row in (ask.body or {}).items()}
    if machine.tier == 0:
        assert setup.learner is not None
        kept = (machine.state, machine.declared, machine.took_part)
        device = machine.device(ask, torch.tensor([ASIDE]))
        return scores_of_device(setup.algorithm, setup.learner, device, *kept, models, setup.kinds)
    if "model" in machine.declared:
        above = next(reversed(models.values()), None)
        own = machine.state["model"] if machine.took_part or above is None else above
        models[model_kind(machine.tier, setup.tree.top)] = own
    bodies = _sound(machine, _answers(machine, ask, models))
    traffic = machine.evaluated.at(ask.round, setup.top if setup.algorithm.flat else machine.tier)
    traffic.add(1, payload(models) * len(bodies), sum(map(payload, bodies.values())))
    names: Mapping[str, Tensor] = next(iter(bodies.values()), {})
    none = {child: torch.zeros(1, devices, dtype=torch.float64) for child, (devices, *_) in enumerate(setup.below)}
    return {name: torch.cat([bodies.get(child, {}).get(name, none[child]) for child in none], 1) for name in names}


def end(machine: Machine, ask: Envelope) -> dict[str, Any]:
    """Tell all below that the training is over; return who was absent when, what crossed the links below, and who is there.

    The ``samples`` are the numbers of training and test samples of the devices below, ``(2, devices)``; 0 of those that did
    not answer.
    """
    setup = machine.setup
    if setup.learner is not None:
        people = setup.learner.population
        return {"samples": torch.stack([people.train, people.tests])}
    own = {"record": machine.now.record.table(), "traffic": table_of(machine.ledger)}
    record, traffic = [own["record"]], [own["traffic"]]
    samples = [torch.zeros((2, devices), dtype=torch.int64) for devices, *_ in setup.below]
    for child, body in _answers(machine, ask, ask.body).items():
        told = body if isinstance(body, Mapping) else {}
        if why := _odd(machine, child, told, own):
            machine.desk.event("damaged", child, why)
            continue
        samples[child] = told["samples"]
        if machine.tier > 1:
            before = [sum(one[tier] for one in setup.below[:child]) for tier in range(machine.tier)]
            rows = told["record"].clone()
            rows[:, 3] += torch.tensor(before)[rows[:, 1] - 1]
            record.append(rows)
            traffic.append(told["traffic"])
    return {"record": torch.cat(record), "traffic": joined(traffic), "samples": torch.cat(samples, 1)}


def _odd(machine: Machine, child: int, told: Mapping[str, Any], own: Mapping[str, Tensor]) -> str:
    """Say why what a child tells of the training cannot be; an empty text where it can."""
    tables = {} if machine.tier == 1 else own
    samples = told.get("samples")
    if not isinstance(samples, Tensor) or samples.dtype != torch.int64:
        return "it says nothing of its samples"
    if samples.shape != (2, machine.setup.below[child][0]) or not all(
        _is_table(told.get(name), like) for name, like in tables.items()
    ):
        return "what it tells of the training makes no sense"
    if (
        tables
        and len(record := told["record"])
        and not 1 <= int(record[:, 1].min()) <= int(record[:, 1].max()) < machine.tier
    ):
        return "it tells of nodes that are not below it"
    return ""


def _answers(machine: Machine, ask: Envelope, body: Any) -> dict[int, Any]:
    """Ask all children something outside any exchange, and return what those that answer say."""
    seconds = machine.seconds_left()
    envelope, packed = machine.under(ask, ASIDE, seconds), pack(body)
    messages = {
        child: encode(replace(envelope, **machine.states_of(child)), packed) for child in range(machine.setup.children)
    }
    found = machine.desk.ask(envelope, messages, {}, seconds)
    return {
        child: reply.body
        for child, reply in sorted(found.items())
        if isinstance(reply, Envelope) and reply.kind != "error"
    }


def _sound(machine: Machine, bodies: Mapping[int, Any]) -> dict[int, Mapping[str, Tensor]]:
    """Leave out children whose scores are not one number of every kind for each device below them."""
    found: dict[int, Mapping[str, Tensor]] = {}
    for child, body in bodies.items():
        shape = (1, machine.setup.below[child][0])
        told = body if isinstance(body, Mapping) else {}
        if told and all(_are_scores(name, value, shape) for name, value in told.items()):
            found[child] = told
        else:
            machine.desk.event("damaged", child, "its scores make no sense")
    return found


def _are_scores(name: str, value: Any, shape: tuple[int, int]) -> bool:
    good = isinstance(value, Tensor) and value.dtype == torch.float64 and value.shape == shape
    return good and "/" in name and bool(value.isfinite().all() | name.endswith("/loss"))


def _is_table(value: Any, like: Tensor) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dtype == like.dtype
        and value.dim() == like.dim()
        and value.shape[1:] == like.shape[1:]
    )
