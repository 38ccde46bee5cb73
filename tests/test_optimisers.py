"""The devices' optimisers are torch's own: the same steps, stacked; remembered or begun anew; scheduled over rounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import palmette as pm
from palmette.errors import BadInput
from palmette.learner import Learner, LocalWork, Optimiser
from palmette.protocol import State
from palmette.task import make_task
from palmette.theory import check, warnings_of
from test_backends import SIZES, close, population, rows

RULES: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "decay": ({"weight_decay": 0.1}, lambda p: torch.optim.SGD(p, lr=0.05)),
    "momentum": ({"momentum": 0.8}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8)),
    "nesterov": (
        {"momentum": 0.8, "nesterov": True},
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.8, nesterov=True),
    ),
    "adam": ({"name": "adam"}, lambda p: torch.optim.Adam(p, lr=0.05)),
    "adamw": ({"name": "adam", "weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1)),
    "adam betas": (
        {"name": "adam", "beta1": 0.5, "beta2": 0.9, "epsilon": 0.01},
        lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.5, 0.9), eps=0.01),
    ),
    "clipped": ({"clip": 0.3}, lambda p: torch.optim.SGD(p, lr=0.05)),
    "clipped adam": ({"name": "adam", "clip": 0.3}, lambda p: torch.optim.Adam(p, lr=0.05)),
}


def learner(backend: str = "fused", **local: Any) -> Learner:
    people = population()
    task = make_task("dnn", people.shape, 3, seed=1, hidden=(9, 5), l2=0.01, parts={"head": "last(1)"})
    options: dict[str, Any] = {"seed": 3, "batch_size": 8, "backend": backend, "dtype": torch.float64}
    return Learner(task, people, **options, optimiser=Optimiser(**local))


def work(of: Learner, round_: int = 2, kept: Any = None) -> LocalWork:
    ids = torch.arange(len(SIZES))
    return LocalWork(of, ids, round_, torch.full_like(ids, 4), kept)


def by_torch(of: Learner, row: Tensor, device: int, steps: int, make: Any, clip: float | None, l2: float) -> Tensor:
    """Take the steps with torch's own optimiser, on all training samples of a device."""
    leaf = row.clone().requires_grad_(True)
    optimiser = make([leaf])
    first, count = int(of.population.start[device]), int(of.population.train[device])
    x = of.population.features(torch.arange(first, first + count), torch.float64)
    y = of.population.y[first : first + count]
    module = of.task.replica(training=True, dtype=torch.float64, device=torch.device("cpu"))
    for _ in range(steps):
        optimiser.zero_grad()
        output = torch.func.functional_call(module, of.task.layout.unflatten(leaf), (x,))
        (nn.functional.cross_entropy(output, y) + l2 / 2 * leaf.square().sum()).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_([leaf], clip)
        optimiser.step()
    return leaf.detach()


@pytest.mark.parametrize("name", [name for name in RULES if name != "decay"])
def test_steps_are_those_of_torch(name: str) -> None:
    local, make = RULES[name]
    of = learner(**local)
    start = rows(of)
    found = work(of).descend(start, steps=4, lr=0.05, batch="full")
    for device in range(len(SIZES)):
        expected = by_torch(of, start[device], device, 4, make, local.get("clip"), 0.01)
        # torch adds a millionth to a gradient's length before it divides by it.
        torch.testing.assert_close(found[device], expected, rtol=1e-9, atol=1e-6 if "clip" in local else 1e-9)


@pytest.mark.parametrize("only", [None, "head", "body"])
@pytest.mark.parametrize("name", RULES)
def test_backends_agree(name: str, only: str | None) -> None:
    expected = None
    for backend in ("loop", "vmap", "fused"):
        of = learner(backend, **RULES[name][0], keep=True)
        doing, start = work(of), rows(of)
        options: dict[str, Any] = {"pull": 0.4, "centre": rows(of, 7), "only": only}
        found = [doing.descend(start, steps=3, lr=0.05, **options)]
        uneven = torch.tensor([3, 0, 5, 2, 1])
        found.append(doing.descend(found[0], steps=uneven, lr=0.05, **options))
        found += doing.kept.values()
        expected = found if expected is None else expected
        for one, other in zip(found, expected, strict=True):
            close(one, other)
        if only is not None:
            stays = 1 - of.task.layout.mask(only, start)
            assert torch.equal(found[1] * stays, start * stays)


def test_decay_takes_off_a_share_of_the_model() -> None:
    with_, without = learner(weight_decay=0.2), learner()
    start = rows(with_)
    plain = work(without).descend(start, steps=1, lr=0.05)
    close(work(with_).descend(start, steps=1, lr=0.05), plain - 0.05 * 0.2 * start)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_what_is_kept_goes_on_and_what_is_not_begins_anew(name: str) -> None:
    local = RULES[name][0]
    once = work(learner(**local)).descend(rows(learner()), steps=6, lr=0.05, batch="full")
    for keep in (True, False):
        of = learner(**local, keep=keep)
        first = work(of)
        half = first.descend(rows(of), steps=3, lr=0.05, batch="full")
        second = work(of, kept=first.kept)
        found = second.descend(half, steps=3, lr=0.05, batch="full")
        assert torch.allclose(found, once, atol=1e-12) == keep
        assert set(second.kept) == (set(Optimiser(**local).memory(of.task.layout)) if keep else set())


def test_each_part_counts_its_own_steps() -> None:
    of = learner(name="adam", keep=True)
    doing = work(of)
    theta = doing.descend(rows(of), steps=3, lr=0.05, only="head")
    doing.descend(theta, steps=2, lr=0.05, only="body")
    assert list(of.task.layout.parts) == ["body", "head"]
    assert doing.kept["count"].tolist() == [[2.0, 3.0]] * 5
    alone = work(learner(name="adam")).descend(rows(of), steps=2, lr=0.05, only="body", batch="full")
    after = work(of, kept=doing.kept)
    after.kept["count"][:, 0] = 0
    for memory in ("first", "second"):
        after.kept[memory] = after.kept[memory] * of.task.layout.mask("head", theta)
    close(after.descend(rows(of), steps=2, lr=0.05, only="body", batch="full"), alone)


@pytest.mark.parametrize(
    ("local", "factors"),
    [
        ({}, [1.0, 1.0, 1.0, 1.0]),
        ({"schedule": "linear"}, [1.0, 0.75, 0.5, 0.25]),
        ({"schedule": "cosine"}, [1.0, 0.8535533905932737, 0.5, 0.1464466094067262]),
        ({"schedule": "step", "decay": 0.5, "decay_every": 2}, [1.0, 1.0, 0.5, 0.5]),
        ({"warmup": 2}, [1 / 3, 2 / 3, 1.0, 1.0]),
        ({"warmup": 1, "schedule": "linear"}, [0.5, 0.75, 0.5, 0.25]),
    ],
)
def test_schedules_over_rounds(local: dict[str, Any], factors: list[float]) -> None:
    rule = Optimiser(**local)
    assert [rule.factor(round_, lambda: 4) for round_ in range(4)] == pytest.approx(factors)


def test_a_schedule_is_in_force_and_makes_a_run_of_fixed_length() -> None:
    people = population()
    task = make_task("mclr", people.shape, 3)
    steep, flat = (
        pm.Simulation(pm.FedAvg(local_steps=1, alpha=alpha), people, task, rounds=4, optimiser=Optimiser(**local))
        for alpha, local in ((0.1, {"schedule": "linear"}), (0.05, {}))
    )
    for simulation in (steep, flat):
        simulation.round = 2
        simulation.step()
    assert torch.equal(steep.model(), flat.model())
    assert steep.looked_at_rounds
    assert not flat.looked_at_rounds


@pm.settings
class Remembering(pm.Algorithm):
    """Devices keep Adam's memory themselves, and send it along with nobody."""

    name: ClassVar[str] = "remembering"
    flat: ClassVar[bool] = True
    alpha: float = 0.01
    batch_size: int = 8

    rule: ClassVar[Optimiser] = Optimiser(name="adam")

    def keeps(self, node: Any, initial: Tensor) -> State:
        memory = {f"adam {name}": row.to(initial) for name, row in self.rule.memory(node.layout).items()}
        return {"model": initial} if node.tier else memory

    def device(self, node: Any, message: Any, state: State) -> Any:
        memory = {name.removeprefix("adam "): rows for name, rows in state.items()}
        theta, memory = node.optimise(message, self.rule, memory, steps=3, lr=self.alpha)
        return theta, {f"adam {name}": rows for name, rows in memory.items()}

    def server(self, node: Any, state: State) -> Any:
        replies = yield pm.Ask(state["model"], otherwise=state["model"])
        return {"model": replies.rows}


def test_a_program_may_keep_an_optimisers_memory_itself() -> None:
    people = population()
    task = make_task("dnn", people.shape, 3, hidden=(9,))
    own = pm.Simulation(Remembering(), people, task, rounds=3)

    @pm.settings
    class Kept(Remembering):
        name: ClassVar[str] = "kept"

        def keeps(self, node: Any, initial: Tensor) -> State:
            return {"model": initial} if node.tier else {}

        def device(self, node: Any, message: Any, state: State) -> Any:
            return node.descend(message, steps=3, lr=self.alpha), {}

    engine = pm.Simulation(Kept(), people, task, rounds=3, optimiser=Optimiser(name="adam", keep=True))
    for _ in range(3):
        own.step()
        engine.step()
    assert torch.equal(own.model(), engine.model())
    assert set(engine.stores[0].initial) == {"~first", "~second", "~count"}


def test_a_run_with_a_kept_optimiser_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    people = pm.make_population("digits", tree="2x2")
    options: dict[str, Any] = {"settings": {"alpha": 0.002}, "optimiser": {"name": "adam", "keep": True}}
    short = pm.run("permfl", people, "mclr", rounds=1, **options, out=tmp_path / "short")
    longer = pm.resume(short.folder, rounds=3)
    whole = pm.run("permfl", people, "mclr", rounds=3, **options, out=tmp_path / "whole")
    assert (longer.folder / "devices.safetensors").read_bytes() == (whole.folder / "devices.safetensors").read_bytes()
    assert whole.config.optimiser == Optimiser(name="adam", keep=True)
    anew = pm.run(
        *("permfl", people, "mclr"),
        rounds=3,
        settings={"alpha": 0.002},
        optimiser=Optimiser(name="adam"),
        out=tmp_path / "anew",
    )
    assert (anew.folder / "devices.safetensors").read_bytes() != (whole.folder / "devices.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("local", "told"),
    [
        ({"name": "adamw"}, "optimiser.name: should be 'sgd' or 'adam', not 'adamw'"),
        ({"momentum": 1.0}, "optimiser.momentum: should be less than 1, not 1.0"),
        ({"clip": -1}, "optimiser.clip: should be greater than 0, not -1"),
        ({"momentun": 0.9}, "unknown setting 'optimiser.momentun'; did you mean 'momentum'"),
    ],
)
def test_wrong_optimisers_are_refused_in_a_line(local: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput) as refused:
        pm.run("fedavg", population(), "mclr", rounds=1, optimiser=local)
    assert told in str(refused.value)


def test_bounds_of_plain_steps_are_not_told_of_others() -> None:
    people = population()
    task = make_task("mclr", people.shape, 3)
    with pytest.raises(
        BadInput, match=r"alpha = 'auto' is the largest learning rate .* and optimiser.\* asks for others"
    ):
        pm.Simulation(pm.FedAvg(alpha="auto"), people, task, rounds=1, optimiser=Optimiser(momentum=0.5))
    told = [
        warnings_of(pm.Simulation(pm.FedAvg(alpha=100.0), people, task, rounds=1, optimiser=Optimiser(**local)))
        for local in ({}, {"name": "adam"})
    ]
    assert (len(told[0]), len(told[1])) == (1, 0)
    people = pm.make_population("digits", tree="2x2")
    task = make_task("mclr", people.shape, people.classes)
    clipped = pm.Simulation(pm.PerMFL(), people, task, rounds=1, optimiser=Optimiser(clip=1.0))
    with pytest.raises(BadInput, match="the theorems of permfl are about plain gradient steps"):
        check(clipped)


def test_steps_of_a_part_that_is_empty_change_nothing() -> None:
    people = population()
    task = make_task("mclr", people.shape, 3, parts={"head": "last(1)"})
    of = Learner(task, people, batch_size=8, optimiser=Optimiser(name="adam"))
    start = of.initial().repeat(len(SIZES), 1)
    assert torch.equal(work(of).descend(start, steps=2, lr=0.1, only="body"), start)
