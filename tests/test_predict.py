"""What programs see of models' outputs, and methods that predict from more than one model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import palmette as pm
from palmette.errors import BadInput, PalmetteError
from palmette.learner import Learner
from palmette.protocol import State
from palmette.task import Task, make_task
from test_backends import SIZES, close, population, rows, work
from test_buffers import normed


def learner(backend: str = "vmap", held_out: float = 0.0) -> Learner:
    people = population()
    task = make_task("dnn", people.shape, 3, seed=1, hidden=(9, 5), parts=HEAD)
    return Learner(task, people, batch_size=8, backend=backend, dtype=torch.float64, held_out=held_out)


HEAD = {"head": "last(1)"}


@pytest.mark.parametrize("backend", ["loop", "vmap", "fused"])
def test_outputs_and_features_are_those_of_the_module(backend: str) -> None:
    of = learner(backend)
    outputs, features = work(of).outputs(rows(of)), work(of).features(rows(of))
    train = of.population.train
    assert outputs.values.shape == (5, int(train.max()), 3)
    assert features.values.shape == (5, int(train.max()), 5)
    assert outputs.real.sum(1).tolist() == train.tolist()
    for device in range(len(SIZES)):
        module = of.task.replica(training=False, dtype=torch.float64, device=torch.device("cpu"))
        for name, value in of.task.layout.unflatten(rows(of)[device]).items():
            module.get_parameter(name).copy_(value)
        first, count = int(of.population.start[device]), int(train[device])
        index = torch.arange(first, first + count)
        x = of.population.features(index, torch.float64)
        real = outputs.real[device]
        close(outputs.values[device][real], module(x))
        close(features.values[device][real], module[:-1](x))
        assert torch.equal(outputs.targets[device][real], of.population.y[index])


def test_outputs_of_held_out_samples_and_never_of_test_ones() -> None:
    of = learner(held_out=0.5)
    outputs = work(of).outputs(rows(of), "held-out")
    assert outputs.real.sum(1).tolist() == of.held_out.tolist()
    for look in (work(of).outputs, work(of).features):
        with pytest.raises(PalmetteError, match="may not look at test data"):
            look(rows(of), "test")
    with pytest.raises(PalmetteError, match="none of these devices has held-out samples"):
        work(learner()).outputs(rows(of), "held-out")
    with pytest.raises(BadInput, match="no part 'neck'"):
        work(of).features(rows(of), of="neck")


def test_outputs_use_running_statistics() -> None:
    for buffers in ("own", "averaged"):
        found = []
        for backend in ("loop", "vmap"):
            task = Task(normed(), buffers=buffers)  # type: ignore[arg-type]
            of = Learner(task, population(), batch_size=8, backend=backend, dtype=torch.float64)
            doing = work(of)
            trained = doing.descend(of.initial().repeat(5, 1), steps=2, lr=0.1)
            found.append(doing.outputs(trained).values)
        close(found[0], found[1])


@pm.settings
class Mixed(pm.Algorithm):
    """Devices predict with the mean of the outputs of a model of their own and the global one."""

    name: ClassVar[str] = "mixed"
    flat: ClassVar[bool] = True
    alpha: float = 0.05
    share: float = 0.5
    batch_size: int = 8

    def keeps(self, node: Any, initial: Tensor) -> State:
        return {"model": initial} if node.tier else {"own": initial, "shared": initial}

    def device(self, node: Any, message: Any, state: State) -> Any:
        theta = node.descend(message, steps=3, lr=self.alpha)
        return theta, {"own": node.descend(state["own"], steps=3, lr=self.alpha), "shared": theta}

    def server(self, node: Any, state: State) -> Any:
        replies = yield pm.Ask(state["model"], otherwise=state["model"])
        return {"model": replies.rows}

    def adapt(self, node: Any, parent: Tensor, state: State) -> Any:
        return {"model": parent, "shared": parent}

    def predict(self, rows: Mapping[str, Tensor], batch: pm.Batch) -> Tensor:
        return self.share * batch.predict(rows["own"]) + (1 - self.share) * batch.predict(rows["shared"])


@pytest.mark.parametrize("backend", ["loop", "vmap", "fused"])
def test_evaluation_asks_the_method_how_devices_predict(backend: str) -> None:
    people = population()
    task = make_task("dnn", people.shape, 3, seed=1, hidden=(9,))
    simulation = pm.Simulation(Mixed(), people, task, rounds=2, backend=backend, dtype=torch.float64)
    for _ in range(2):
        simulation.step()
    scores = pm.evaluate(simulation)
    kept = simulation.stores[0].rows
    module = task.replica(training=False, dtype=torch.float64, device=torch.device("cpu"))
    shared = simulation.model()
    for device in range(len(SIZES)):
        index = torch.arange(int(people.start[device] + people.train[device]), int(people.start[device + 1]))
        x = people.features(index, torch.float64)
        outputs = [
            torch.func.functional_call(module, task.layout.unflatten(row), (x,))
            for row in (kept["own"][device], shared)
        ]
        loss = nn.functional.cross_entropy((outputs[0] + outputs[1]) / 2, people.y[index], reduction="sum")
        close(scores["PM"].sums["loss"][device], loss.detach())


def test_what_predicts_is_saved_and_predicts_again(tmp_path: Path) -> None:
    people = population()
    task = make_task("dnn", people.shape, 3, seed=1, hidden=(9,))
    result = pm.run(Mixed(share=0.25), people, task, rounds=2, out=tmp_path / "run")
    device = int(people.train.argmax())
    name = people.tree.names(0)[device]
    index = torch.arange(int(people.start[device] + people.train[device]), int(people.start[device + 1]))
    x, y = people.features(index, torch.float32), people.y[index]
    outputs = result.predict(x, node=name, method=Mixed(share=0.25))
    right = float((outputs.argmax(1) == y).float().mean())
    assert right == pytest.approx(result.last("PM", node=name))
    plain = result.module("GM")
    assert torch.allclose(result.predict(x, "GM"), plain(x), atol=1e-6)
    with pytest.raises(BadInput, match="devices of mixed predict in a way of its own, from several rows"):
        pm.export(result, tmp_path / "out", node=name)
    with pytest.raises(
        BadInput, match=r"^mixed predicts in a way of its own, and a folder holds no code: give method="
    ):
        result.predict(x, node=name)


def test_most_methods_predict_with_their_model(tmp_path: Path) -> None:
    people = pm.make_population("digits", tree="2x2")
    result = pm.run("permfl", people, "mclr", rounds=1, out=tmp_path / "run")
    x = people.features(torch.arange(5), torch.float32)
    node = result.names("PM")[1]
    assert torch.allclose(result.predict(x, node=node), result.module("PM", node)(x), atol=1e-6)
    assert not (tmp_path / "run" / "devices-rows.safetensors").exists()
    with pytest.raises(BadInput, match=r"cannot take samples of shape \(3,\)"):
        result.predict(torch.zeros(2, 3), node=node)


@pytest.mark.parametrize("buffers", ["own", "averaged"])
def test_a_layer_in_evaluation_mode_predicts_as_it_was_trained(buffers: Any, tmp_path: Path) -> None:
    def module() -> nn.Module:
        made = normed()
        made[1].eval()  # its statistics stay, so they are no part of a row
        return made

    alone = pm.Population.from_arrays([torch.randn(24, 1, 8, 8)], [torch.arange(24) % 3], test=0.25)
    result = pm.run(Mixed(share=1.0), alone, Task(module(), buffers=buffers), rounds=1, out=tmp_path / "run")
    x = alone.features(torch.arange(18, 24), torch.float32)
    outputs = result.predict(x, into=module(), method=Mixed(share=1.0))  # there is only one device to name
    right = float((outputs.argmax(1) == alone.y[18:]).float().mean())
    assert outputs.shape == (6, 3)
    assert right == pytest.approx(result.last("PM"))
