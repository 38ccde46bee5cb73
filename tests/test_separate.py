"""Separate nodes: repeated messages, late replies, errors that travel."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch

from palmette.algorithms import FedAvg, PerMFL
from palmette.engines.aside import end
from palmette.engines.separate import Machine, Separate, run_separately
from palmette.engines.setup import setup_of
from palmette.engines.simulate import Simulation
from palmette.links.record import CORRUPT
from palmette.links.wire import Envelope, decode, encode
from palmette.protocol import Device, Inner, Node, State
from palmette.protocol.settings import settings
from problems import regression, simulate, task_of
from test_contract import assert_separate_is_stacked


@settings
class Sluggish(PerMFL):
    """PerMFL on devices that answer after a while of their own."""

    name: ClassVar[str] = "sluggish"

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        time.sleep(random.random() * 0.004)
        return super().device(node, message, state)


def test_the_order_of_arrival_changes_no_bit() -> None:
    population = regression([3, 4], unequal=True)
    given: dict[str, Any] = {"team_steps": 3, "local_steps": 2, "batch_size": 5}
    stacked = simulate(PerMFL(**given), population, 2, dtype=torch.float32, chunk=1)
    slow = Simulation(Sluggish(**given), population, task_of(population), rounds=2)
    assert_separate_is_stacked(run_separately(slow, 2), stacked)


def test_a_repeated_message_gets_the_stored_reply_and_no_second_training() -> None:
    population = regression("1x1")
    simulation = Simulation(PerMFL(), population, task_of(population), rounds=1)
    machine = Machine(setup_of(simulation, 0, 0))
    message = encode(Envelope(rounds=1, body=torch.zeros(1, 3)))
    first = machine.answer(message)
    state = {name: rows.clone() for name, rows in machine.state.items()}
    steps = machine.device_steps
    assert machine.answer(message) == first
    assert machine.device_steps == steps == 20
    assert all(torch.equal(machine.state[name], rows) for name, rows in state.items())
    again = machine.answer(encode(Envelope(rounds=1, path=(1,), base=0, body=torch.zeros(1, 3))))
    assert not torch.equal(decode(again).body, decode(first).body)  # another exchange draws other batches


@settings
class Failing(FedAvg):
    """FedAvg with a device that breaks down."""

    name: ClassVar[str] = "failing"

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        if node.tree.name(0, 0) == "device-1":
            raise RuntimeError("the disk of device 1 is full")
        return super().device(node, message, state)


def test_an_error_on_one_machine_reaches_the_server() -> None:
    population = regression("1x3")
    with pytest.raises(RuntimeError, match="disk of device 1"):
        run_separately(Simulation(Failing(), population, task_of(population), rounds=1), 1)


@settings
class FailingEarly(PerMFL):
    """PerMFL whose first team has a device that breaks down before the second team has asked anybody."""

    name: ClassVar[str] = "failing-early"
    over: ClassVar[threading.Event] = threading.Event()

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        raise RuntimeError("the disk of device 0 is full")

    def team(self, node: Node, message: Any, state: State) -> Inner:
        if node.tree.name(1, 0) == "team-1":
            self.over.wait(10)
        return (yield from super().team(node, message, state))


def test_a_team_whose_children_have_ended_does_not_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    population = regression("2x2")
    simulation = Simulation(FailingEarly(), population, task_of(population), rounds=1)
    join = threading.Thread.join

    def joined(thread: threading.Thread, timeout: float | None = None) -> None:
        if len(ended) == 4:  # the devices, which come first
            FailingEarly.over.set()
        join(thread, timeout=10)
        ended.append(not thread.is_alive())

    ended: list[bool] = []
    monkeypatch.setattr(threading.Thread, "join", joined)
    with pytest.raises(RuntimeError, match="disk of device 0"):
        run_separately(simulation, 1)
    assert ended == [True] * 6


def lying(federation: Separate, tier: int, number: int, kind: str, change: Any) -> None:
    """Let one machine's messages of some kind say something else."""
    machine, told = federation.machines[tier][number], federation.machines[tier][number].answer

    def answer(message: bytes) -> bytes | None:
        reply = told(message)
        word = decode(reply) if reply is not None else None
        return reply if word is None or word.kind != kind else encode(replace(word, body=change(word.body)))

    machine.answer = answer  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: torch.zeros(1, 7),
        lambda row: row.double(),
        lambda row: {"": row[0].sum().item()},
        lambda row: {"": row, "more": row},
    ],
)
def test_a_reply_that_does_not_go_with_the_others_is_dropped_and_recorded(change: Any) -> None:
    population = regression([3])
    simulation = Simulation(PerMFL(team_steps=2), population, task_of(population), rounds=2)
    with Separate(simulation) as federation:
        told: list[tuple[str, int]] = []
        federation.machines[1][0].desk.event = lambda what, child, detail: told.append((what, child))
        lying(federation, 0, 1, "reply", change)
        federation.step()
        assert told == [("damaged", 1)] * 2
        assert federation.record.tolist() == [[0, 1, 0, 1, CORRUPT], [0, 1, 1, 1, CORRUPT]]
    federation.settle()
    assert not federation.machines[0][1].took_part
    assert federation.machines[0][0].took_part


@pytest.mark.parametrize(
    ("tier", "change"),
    [
        (0, lambda told: {"PM/mse": torch.zeros(1, 2, dtype=torch.float64)}),
        (0, lambda told: {name: value * torch.nan for name, value in told.items()}),
        (0, lambda told: None),
        (1, lambda told: {name: value[:, :1] for name, value in told.items()}),
        (1, lambda told: {name: value.float() for name, value in told.items()}),
    ],
)
def test_scores_that_make_no_sense_are_left_out_and_nobody_elses(tier: int, change: Any) -> None:
    population = regression([2, 1])
    simulation = Simulation(PerMFL(), population, task_of(population), rounds=1)
    with Separate(simulation) as federation:
        sound = federation.evaluate()
        lying(federation, tier, 0, "scores", change)
        found = federation.evaluate()
    without = [False, True, True] if tier == 0 else [False, False, True]
    for kind, scores in found.items():
        assert (scores.count > 0).tolist() == without
        for name, sums in scores.sums.items():
            assert torch.equal(sums[without], sound[kind].sums[name][without])


@pytest.mark.parametrize(
    "change",
    [
        lambda told: {**told, "record": torch.tensor([[0, 5, 0, 0, 1]])},
        lambda told: {**told, "record": torch.zeros(3, 2, dtype=torch.int64)},
        lambda told: {"traffic": told["traffic"]},
    ],
)
def test_what_a_team_tells_in_the_end_is_left_out_where_it_makes_no_sense(change: Any) -> None:
    population = regression([2, 2])
    simulation = Simulation(PerMFL(), population, task_of(population), rounds=1)
    with Separate(simulation) as federation:
        federation.step()
        whole = end(federation.server, Envelope(kind="end"))
        lying(federation, 1, 0, "ended", change)
        found = end(federation.server, Envelope(kind="end"))
    assert len(found["record"]) == 0
    assert found["traffic"][:, 0].tolist() == whole["traffic"][:, 0].tolist()
    assert int(found["traffic"].sum()) < int(whole["traffic"].sum())
