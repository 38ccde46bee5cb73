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
    models, setup = dict(ask.body or {}), machine.setup
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
    """Tell all below that the training is over; return who was absent when, and what crossed the links below."""
    if not machine.setup.children:
        return {}
    records, traffic = [machine.now.record.table()], [table_of(machine.ledger)]
    for child, body in _answers(machine, ask, ask.body).items():
        told = body if isinstance(body, Mapping) else {}
        if not told:
            continue  # a device
        if not (_is_table(told.get("record"), records[0]) and _is_table(told.get("traffic"), traffic[0])):
            machine.desk.event("damaged", child, "what it tells of the training makes no sense")
            continue
        record = told["record"].clone()
        before = torch.tensor([sum(own[tier] for own in machine.setup.below[:child]) for tier in range(machine.tier)])
        if len(record) and not 1 <= int(record[:, 1].min()) <= int(record[:, 1].max()) < machine.tier:
            machine.desk.event("damaged", child, "it tells of nodes that are not below it")
            continue
        record[:, 3] += before[record[:, 1] - 1]
        records.append(record)
        traffic.append(told["traffic"])
    return {"record": torch.cat(records), "traffic": joined(traffic)}


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
