"""Sparse rows on a link: what is sent, what it costs, what arrives."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from palmette.blocks import logcosh
from palmette.engines.separate import run_separately
from palmette.engines.simulate import Simulation
from palmette.links import Link
from palmette.links.ledger import total_payload
from palmette.links.sparse import Sparse, density, plain, prune, published_bytes
from palmette.links.wire import Envelope, decode, encode
from palmette.protocol import Algorithm, Ask, Device, Inner, Node, Server, State
from palmette.protocol.settings import BatchSize, settings
from problems import regression, simulate, task_of
from test_contract import assert_separate_is_stacked


def rows_of(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(shape, generator=generator, dtype=torch.float64)
    return torch.where(torch.rand(shape, generator=generator) < 0.3, rows, 0.0).to(dtype)


# -- pruning -----------------------------------------------------------------------------------------------------------


def test_entries_up_to_the_tolerance_become_zero_and_others_stay_as_they_are() -> None:
    rows = torch.tensor([[0.5, -0.1, 0.1, 0.10001, -3.0, 0.0]], dtype=torch.float64)
    assert prune(rows, 0.1).tolist() == [[0.5, 0.0, 0.0, 0.10001, -3.0, 0.0]]
    assert Sparse(rows, 0.1).rows.tolist() == prune(rows, 0.1).tolist()
    assert rows[0, 1] == -0.1  # the input is not written into


def test_what_is_not_a_number_is_not_hidden() -> None:
    assert bool(Sparse(torch.tensor([[math.nan, 1.0]]), 0.5).rows.isnan().any())


def test_density_counts_entries_above_the_tolerance() -> None:
    assert density(torch.tensor([[0.0, 0.2, -0.2, 0.1], [1.0, 1.0, 1.0, 1.0]]), 0.1).tolist() == [0.5, 1.0]


# -- encoding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (1, 8), (3, 9), (2, 4, 5), (1, 0), (4, 1001)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_sparse_rows_come_back_bit_for_bit(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    rows = rows_of(shape, dtype=dtype)
    back = decode(encode(Envelope(body=Sparse(rows)))).body.rows
    assert back.dtype == dtype
    assert torch.equal(back, rows)


def test_a_row_costs_one_bit_per_entry_and_its_values() -> None:
    rows = torch.tensor([[1.0, 0, 0, 0, 0, 0, 0, 0, 2.0], [0] * 9])
    assert Sparse(rows).sizes().tolist() == [2 + 2 * 4, 2]
    assert Sparse(rows.double()).sizes().tolist() == [2 + 2 * 8, 2]
    assert total_payload({"x": Sparse(rows), "k": 1}, torch.tensor([0, 0, 1]), 3) == 10 + 10 + 2 + 3 * 8


def test_the_papers_formula_counts_zeros_twice_and_64_bits_per_value() -> None:
    rows = torch.zeros(1, 79510)
    rows[0, : 79510 // 5] = 1
    bits = 8 * float(published_bytes(rows, 0.0)[0])
    assert bits == 64 * 15902 + (79510 - 15902) + 79510
    assert bits / (64 * 79510) == pytest.approx(0.228, abs=5e-4)


def test_an_envelope_carries_as_many_bytes_of_its_body_as_the_ledger_counts() -> None:
    sparse, dense = Sparse(rows_of((1, 333)), 0.2), torch.ones(1, 5)
    body = {"x": sparse, "steps": 3, "c": dense}
    data = encode(Envelope(body=body))
    header = 25 + int.from_bytes(data[21:25], "little")
    assert len(data) - header == total_payload(body, None, 1)
    got = plain(decode(data).body)
    assert list(got) == ["x", "steps", "c"]
    assert torch.equal(got["x"], sparse.rows)
    assert torch.equal(got["c"], dense)
    assert got["steps"] == 3


def test_a_bare_sparse_body_arrives_too() -> None:
    sparse = Sparse(rows_of((1, 20)))
    assert torch.equal(plain(decode(encode(Envelope(body=sparse))).body), sparse.rows)


# -- in an exchange ----------------------------------------------------------------------------------------------------


@settings
class Echo(Algorithm):
    """Sends sparse rows both ways, in messages and in replies, bare and by name."""

    name: ClassVar[str] = "echo"
    paper: ClassVar[str] = "a test program"
    tolerance: float = 0.3
    batch_size: BatchSize = "full"

    def device(self, node: Device, message: Any, state: State) -> tuple[Any, State]:
        assert isinstance(message["w"], Tensor)
        return Sparse(node.descend(message["w"], steps=2, lr=0.1), self.tolerance), state

    def team(self, node: Node, message: Any, state: State) -> Inner:
        got = yield Ask({"w": Sparse(message["x"], self.tolerance), "k": 1}, otherwise=message["x"])
        return {"y": Sparse(got.rows, self.tolerance), "n": got.rows[:, :1]}, state

    def server(self, node: Node, state: State) -> Server:
        x = state["model"]
        got = yield Ask({"x": Sparse(x, self.tolerance)}, otherwise={"y": x, "n": x[:, :1]})
        return {"model": got["y"] + 0.01}


def test_separate_nodes_send_and_count_the_very_bytes_of_the_simulation() -> None:
    population = regression([3, 2, 4], unequal=True, dimension=19)
    for links in ({}, {0: Link(loss=0.3)}):
        stacked = simulate(Echo(), population, 3, dtype=torch.float32, chunk=1, links=links)
        other = Simulation(Echo(), population, task_of(population), rounds=3, links=links)
        assert_separate_is_stacked(run_separately(other, 3), stacked)
        dense = 19 * 4 * 3 * 3
        assert 0 < stacked.ledger.totals()[2].bytes_up < dense


def test_each_parents_row_is_counted_for_each_of_its_children() -> None:
    """By hand: the first round starts from a model of which nothing is above the tolerance."""
    population = regression([3, 2, 4], dimension=19)
    simulation = simulate(Echo(tolerance=1e9), population, 1, dtype=torch.float32)
    mask = math.ceil(19 / 8)
    assert simulation.ledger.at(0, 2).bytes_down == 3 * mask
    assert simulation.ledger.at(0, 2).bytes_up == 3 * (mask + 4)
    assert simulation.ledger.at(0, 1).bytes_down == 9 * (mask + 8)
    assert simulation.ledger.at(0, 1).bytes_up == 9 * mask


# -- log-cosh ----------------------------------------------------------------------------------------------------------


def test_the_gradient_of_log_cosh_is_tanh() -> None:
    rows = torch.linspace(-2, 2, 41, dtype=torch.float64)[None].requires_grad_()
    (slope,) = torch.autograd.grad(logcosh.value(rows, 0.5).sum(), rows)
    torch.testing.assert_close(slope, logcosh.gradient(rows.detach(), 0.5), atol=1e-12, rtol=0)
    torch.testing.assert_close(slope, torch.tanh(rows.detach() / 0.5), atol=1e-12, rtol=0)


def test_log_cosh_is_the_textbook_value_near_zero() -> None:
    rows = torch.tensor([[0.0, 0.3, -1.0]], dtype=torch.float64)
    expected = sum(0.7 * math.log(math.cosh(v / 0.7)) for v in (0.0, 0.3, -1.0))
    assert float(logcosh.value(rows, 0.7)) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_far_from_zero_log_cosh_is_the_absolute_value_less_rho_log_2_and_never_overflows(dtype: torch.dtype) -> None:
    rho = 6e-5
    rows = torch.tensor([[1.0], [-1e6], [1e30]], dtype=dtype)
    value = logcosh.value(rows, rho)
    assert bool(value.isfinite().all())
    torch.testing.assert_close(value, rows.abs()[:, 0] - rho * math.log(2), rtol=1e-6, atol=0)
    assert logcosh.gradient(rows, rho).tolist() == [[1.0], [-1.0], [1.0]]
