"""The native kernel agrees with the other backends, gives the same bits however it is called, and can be left out."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import palmette as pm
from chains import CHAINS, learner, trained
from palmette.algorithms import PerMFL
from palmette.engines.simulate import Simulation
from palmette.errors import BadInput, Diverged, PalmetteError
from palmette.learner import Epochs, Learner, LocalWork, batches, kernel, native
from palmette.learner.native import NativeBackend
from palmette.population import Population
from palmette.task import Task, make_task
from palmette.tree import Tree

KERNEL = kernel.find()
built = pytest.mark.skipif(isinstance(KERNEL, str), reason=f"no native kernel: {KERNEL}")

CLOSE: dict[str, Any] = {"rtol": 2e-5, "atol": 2e-6}
"""How far rows may be apart after 40 steps in float32; each is of the size of one."""

LOSSES = {"cross-entropy": 5, "squared": 1, "logistic": 1}
PER_ROW = torch.tensor([0.02, 0.0, 0.1, 0.05])
DESCENTS: dict[str, dict[str, Any]] = {
    "pulled": {},
    "plain": {"pull": 0.0, "centre": None},
    "shifted": {"pull": 0.0, "centre": None, "shift": True},
    "pulled and shifted": {"shift": True},
    "rate per row": {"lr": PER_ROW},
    "pull per row": {"pull": 5 * PER_ROW},
    "steps per row": {"steps": torch.tensor([3, 0, 40, 7])},
    "epochs": {"steps": Epochs(9.5)},
    "half an epoch": {"steps": Epochs(0.5)},
    "one sample": {"batch": "one"},
    "far away": {"pull": 10.0},  # all of a row is replaced by its centre
}


def both(chain: list[nn.Module], other: str = "fused", loss: str = "cross-entropy", **options: Any) -> list[Tensor]:
    """Train the same with the kernel and with another backend."""
    descent = options.pop("descent", {})
    made = [learner(chain, loss=loss, backend=name, **options) for name in ("native", other)]
    assert [of.backend.name for of in made] == ["native", other]
    if descent.pop("shift", False):
        descent["shift"] = torch.linspace(-0.02, 0.02, 4 * made[0].width).view(4, -1)
    return [trained(of, **descent) for of in made]


@built
@pytest.mark.parametrize("batch", ["next", "same", "full"])
@pytest.mark.parametrize("few", [False, True], ids=["full batches", "small devices"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("chain", CHAINS)
def test_the_kernel_agrees_with_stacked_products_and_with_plain_autograd(
    chain: str, loss: str, few: bool, batch: str
) -> None:
    for other in ("fused", "loop"):
        found, expected = both(CHAINS[chain](LOSSES[loss]), other, loss, few=few, descent={"batch": batch})
        if chain == "without bias":  # one row in some hundred meets the bend of a rectified unit, and is a little off
            bent = (found - expected).abs().amax(1).argmax()
            torch.testing.assert_close(found[bent], expected[bent], rtol=0, atol=1e-3)
            found[bent] = expected[bent]
        torch.testing.assert_close(found, expected, **CLOSE)
        assert (found - expected).abs().max() < (found[0] - found[1]).abs().max() / 100


@built
@pytest.mark.parametrize("few", [False, True], ids=["full batches", "small devices"])
@pytest.mark.parametrize("descent", DESCENTS)
def test_every_kind_of_descent_agrees(descent: str, few: bool) -> None:
    for other in ("fused", "loop"):
        found, expected = both(CHAINS["narrow"](5), other, few=few, descent=dict(DESCENTS[descent]))
        torch.testing.assert_close(found, expected, **CLOSE)


@built
@pytest.mark.parametrize("batch", [1, 2, 7, 13, 30])
@pytest.mark.parametrize("inputs", [1, 3, 15, 16, 17, 33, 64])
@pytest.mark.parametrize("outputs", [2, 9, 16, 17, 40])
def test_all_sizes_agree(inputs: int, outputs: int, batch: int) -> None:
    generator = torch.Generator().manual_seed(inputs * outputs)
    people = Population.from_arrays(
        torch.randn(120, inputs, generator=generator).numpy(),
        torch.randint(0, outputs, (120,), generator=generator).numpy(),
        device=np.repeat(np.arange(4), 30),
        test=np.tile(np.arange(30) >= 25, 4),
        classes=outputs,
    )
    torch.manual_seed(1)
    task = Task(nn.Sequential(nn.Linear(inputs, 7), nn.Tanh(), nn.Linear(7, outputs)))
    found, expected = (trained(Learner(task, people, batch_size=batch, backend=name)) for name in ("native", "fused"))
    torch.testing.assert_close(found, expected, **CLOSE)


@built
@pytest.mark.parametrize("shift", [-3.0, 0.0, 3.0], ids=["few at work", "half of them", "all"])
@pytest.mark.parametrize("hidden", [5, 150])
def test_rectified_units_agree_however_many_are_at_work(hidden: int, shift: float) -> None:
    # The kernel leaves out the zeros behind them, where there are enough, and looks at 128 units at a time.
    generator = torch.Generator().manual_seed(hidden)
    people = Population.from_arrays(
        torch.randn(80, 170, generator=generator).numpy(),
        torch.randint(0, 5, (80,), generator=generator).numpy(),
        device=np.repeat(np.arange(4), 20),
        classes=5,
    )
    torch.manual_seed(1)
    first = nn.Linear(170, hidden)
    nn.init.normal_(first.weight, std=0.1)
    nn.init.constant_(first.bias, shift)
    task = Task(nn.Sequential(first, nn.ReLU(), nn.Linear(hidden, 5)))
    made = [Learner(task, people, batch_size=9, backend=name) for name in ("native", "loop")]
    found, expected = (trained(of, steps=10, lr=0.02) for of in made)
    torch.testing.assert_close(found, expected, **CLOSE)


@built
@pytest.mark.parametrize("only", ["head", "body"])
def test_parts_and_frozen_layers_stay_as_they_are(only: str) -> None:
    chain = [nn.Flatten(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 8), nn.Sigmoid(), nn.Linear(8, 5)]
    task = {"parts": {"head": "5.*"}, "l2": 0.1}
    found, expected = both(chain, task=task, descent={"only": only})
    torch.testing.assert_close(found, expected, **CLOSE)
    head = 8 * 5 + 5
    start = learner(chain, backend="native", task=task).initial() + torch.arange(4.0)[:, None] / 100
    kept = found[:, :-head] if only == "head" else found[:, -head:]
    assert torch.equal(kept, start[:, :-head] if only == "head" else start[:, -head:])
    frozen = [nn.Flatten(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 8), nn.Sigmoid(), nn.Linear(8, 5)]
    frozen[3].requires_grad_(False)
    torch.testing.assert_close(*both(frozen), **CLOSE)
    frozen[3].weight.requires_grad_(True)  # a layer of which the bias alone is frozen
    torch.testing.assert_close(*both(frozen), **CLOSE)


@built
def test_targets_of_several_numbers_agree() -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(120, 6, generator=generator), torch.randn(120, 18, generator=generator)
    people = Population.from_arrays(x.numpy(), y.numpy(), device=np.repeat(np.arange(4), 30), test=0.2)
    task = Task(nn.Linear(6, 18), loss="squared")
    found, expected = (trained(Learner(task, people, batch_size=6, backend=name)) for name in ("native", "fused"))
    torch.testing.assert_close(found, expected, **CLOSE)


@built
def test_bytes_and_floats_in_place_have_the_same_bits() -> None:
    chain = CHAINS["narrow"](5)
    floats, raw = (learner(chain, backend="native", memory=memory) for memory in (1 << 20, 0))
    assert (floats.data.source[0].dtype, raw.data.source[0].dtype) == (torch.float32, torch.uint8)
    assert torch.equal(trained(floats), trained(raw))


@built
@pytest.mark.parametrize("chain", CHAINS)
def test_instruction_sets_have_the_same_bits(chain: str) -> None:
    if isinstance(KERNEL, str) or KERNEL.instructions != 2:
        pytest.skip("this processor has one of the instruction sets only")
    of = learner(CHAINS[chain](5), backend="native")
    assert isinstance(of.backend, NativeBackend)
    best = trained(of)
    of.backend.kernel = kernel.Kernel(KERNEL.path, 1)
    assert torch.equal(best, trained(of))
    assert (of.backend.kernel.instructions, KERNEL.instructions) == (1, 2)


@built
def test_threads_and_chunks_change_no_bit() -> None:
    people = crowd()
    task = make_task("dnn", people.shape, people.classes, hidden=(40,))
    of, ids = Learner(task, people, batch_size=20, backend="native"), torch.arange(people.devices)
    rows = of.initial() + torch.arange(float(len(ids)))[:, None] / 100

    def descend(some: Tensor, threads: int) -> Tensor:
        of.inside = threads
        with torch.no_grad():
            work = LocalWork(of, some, 0, torch.zeros_like(some))
            return work.descend(rows[some], steps=300, lr=0.1, pull=0.2, centre=rows[some])

    whole = descend(ids, 1)
    assert torch.equal(whole, descend(ids, 2))
    assert torch.equal(whole, descend(ids, 16))
    for chunk in (1, 5):
        assert torch.equal(whole, torch.cat([descend(some, 3) for some in ids.split(chunk)]))


@built
@pytest.mark.parametrize("loss", LOSSES)
def test_what_the_kernel_reads_lives_as_long_as_it_reads_it(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Several threads may make the same things at once, and only those of the last one are kept for the next call.
    chain = CHAINS["narrow"](LOSSES[loss])
    expected = trained(learner(chain, loss=loss, backend="native"))
    monkeypatch.setattr(native, "primes", lambda: batches.primes().copy())
    for _ in range(20):
        of = learner(chain, loss=loss, backend="native")
        of.data.y = of.data.y.clone()
        with ThreadPoolExecutor(4) as pool:
            assert all(torch.equal(found, expected) for found in pool.map(lambda _, of=of: trained(of), range(4)))


@built
@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": torch.full((3,), 0.1)},
        {"pull": torch.full((5,), 0.1)},
        {"steps": torch.tensor([1, 2, 3])},
        {"centre": torch.zeros(3, 314)},
        {"centre": torch.zeros(4, 313)},
        {"shift": torch.zeros(2, 314)},
    ],
)
def test_what_does_not_fit_the_rows_is_refused_before_it_is_read(wrong: dict[str, Any]) -> None:
    with pytest.raises((PalmetteError, RuntimeError)):
        trained(learner(CHAINS["narrow"](5), backend="native"), **wrong)


@built
def test_a_descent_in_many_calls_has_the_bits_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    of, found = learner(CHAINS["narrow"](5), backend="native"), []
    for most in (1 << 20, 1, 7, 40):
        monkeypatch.setattr("palmette.learner.native.CALL_STEPS", most)
        found.append(trained(of, steps=torch.tensor([0, 33, 90, 5])))
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert not torch.equal(found[0], trained(of, steps=torch.tensor([0, 33, 89, 5])))


def crowd() -> Population:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(12 * 40, 20)).astype(np.float32)
    device, test = np.repeat(np.arange(12), 40), np.tile(np.arange(40) >= 32, 12)
    return Population.from_arrays(x, generator.integers(0, 3, len(x)), tree="3x4", device=device, test=test, classes=3)


@built
def test_a_simulation_has_the_same_bits_with_any_number_of_threads_and_goes_on_after_a_stop() -> None:
    people = crowd()

    def simulation(**options: Any) -> Simulation:
        task = make_task("mclr", people.shape, people.classes)
        return Simulation(PerMFL(team_steps=2, local_steps=5, alpha=0.1), people, task, rounds=4, **options)

    runs = [simulation(threads=threads) for threads in (1, 2, 7)]
    for run in runs:
        assert run.learner.backend.name == "native"
        for _ in range(4):
            run.step()
    resumed, half = simulation(threads=2), simulation(threads=1)
    for _ in range(2):
        half.step()
    resumed.restore(half.state())
    for _ in range(2):
        resumed.step()
    for other in (*runs[1:], resumed):
        assert torch.equal(runs[0].model(), other.model())
        assert torch.equal(runs[0].device_models(torch.arange(12)), other.device_models(torch.arange(12)))


@built
def test_what_is_not_a_number_is_passed_on_and_ends_the_run() -> None:
    people = crowd()
    task = make_task("dnn", people.shape, people.classes, hidden=(5,))
    run = Simulation(PerMFL(team_steps=3, local_steps=20, alpha=1e30), people, task, rounds=4)
    assert run.learner.backend.name == "native"
    with pytest.raises(Diverged):
        run.step()


@built
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.Tanh(), nn.Sigmoid()])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_sample_that_is_not_a_number_spoils_its_own_device_alone(activation: nn.Module, loss: str) -> None:
    of = learner([nn.Flatten(), nn.Linear(12, 9), activation, nn.Linear(9, LOSSES[loss])], loss=loss, backend="native")
    features = of.data.source[0].clone()
    features[35] = torch.nan  # of the second device
    of.data = of.data.replaced(features)
    rows = trained(of, "full", steps=2)
    assert rows.isfinite().all(1).tolist() == [True, False, True, True]


@built
@pytest.mark.parametrize(("layer", "function"), [(nn.Tanh(), torch.tanh), (nn.Sigmoid(), torch.sigmoid)])
def test_functions_are_as_exact_as_torch_s(layer: nn.Module, function: Any) -> None:
    # A step of length one from a weight of zero, towards a target of one, is the value that enters the weight.
    values = torch.cat([torch.linspace(-12, 12, 197), torch.tensor([0.0, 1e-6, -1e-6])])
    chain = nn.Sequential(nn.Linear(1, 1, bias=False), layer, nn.Linear(1, 1, bias=False))
    nn.init.ones_(chain[0].weight), nn.init.zeros_(chain[2].weight)
    of = Learner(Task(chain, loss="squared", parts={"head": "2.*"}), numbers(values, torch.ones(200)), batch_size=1)
    assert of.backend.name == "native"
    work = LocalWork(of, torch.arange(200), 0, torch.zeros(200, dtype=torch.int64))
    found = work.descend(of.initial().repeat(200, 1), steps=1, lr=1.0, only="head")
    torch.testing.assert_close(found[:, 1].double(), function(values.double()), rtol=5e-7, atol=1e-12)


@built
def test_the_batches_are_those_of_the_other_backends() -> None:
    # The steps of a bias depend on the targets alone, and these tell the samples apart.
    sizes = [1, 3, 7, 30, 31, 64, 100]
    targets = torch.cat([torch.arange(size) + 0.5 for size in sizes])
    people = numbers(torch.zeros(len(targets)), targets, sizes)
    made = [
        Learner(Task(nn.Linear(1, 1), loss="squared"), people, batch_size=7, backend=name)
        for name in ("native", "loop")
    ]
    for steps in (1, 5, 40, Epochs(1), Epochs(2.5)):
        for exchange in range(3):
            native, loop = (
                LocalWork(of, torch.arange(7), 2, torch.full((7,), exchange)).descend(
                    torch.zeros(7, of.width), steps=steps, lr=0.3
                )
                for of in made
            )
            torch.testing.assert_close(native, loop, rtol=1e-5, atol=1e-5)


def numbers(x: Tensor, y: Tensor, sizes: list[int] | None = None) -> Population:
    """Samples of one feature and one target each; by default every device has one."""
    count = torch.tensor(sizes or [1] * len(x))
    start = torch.cat([torch.zeros(1, dtype=torch.int64), count.cumsum(0)])
    return Population(
        tree=Tree.parse(str(len(count))), x=x[:, None], y=y[:, None], start=start, train=count, classes=None
    )


@built
def test_what_the_kernel_does_not_do_is_done_by_the_fused_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the kernel was called")

    chain = CHAINS["narrow"](5)
    of = learner(chain, backend="native")
    monkeypatch.setattr(kernel.Kernel, "descend", refuse)
    found = trained(of, extra=lambda rows: 0.3 * rows)
    assert torch.equal(found, trained(learner(chain), extra=lambda rows: 0.3 * rows))
    with pytest.raises(AssertionError, match="the kernel was called"):
        trained(of)


@built
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dtype": torch.float64}, "for float32 on a CPU, not for float64 on cpu"),
        ({"chain": [nn.Flatten(), nn.Linear(12, 5), nn.GELU()]}, "not a chain of linear layers"),
    ],
)
def test_what_the_kernel_is_not_for_is_refused_by_name_and_left_out_by_auto(options: dict[str, Any], text: str) -> None:
    chain = options.pop("chain", CHAINS["narrow"](5))
    with pytest.raises(BadInput, match=text):
        learner(chain, backend="native", **options)
    assert learner(chain, backend="auto", **options).backend.name == "fused"


def test_without_the_kernel_the_fused_backend_is_taken_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kernel, "__file__", str(tmp_path / "__init__.py"))
    find = kernel.find.__wrapped__
    monkeypatch.setattr(kernel, "find", find)
    chain = CHAINS["narrow"](5)
    of = learner(chain, backend="auto")
    assert of.backend.name == "fused"
    assert "no native kernel, because it was not built when Palmette was installed" in of.reason
    assert torch.equal(trained(of), trained(learner(chain)))
    monkeypatch.setattr(kernel, "find", lambda: "it is hidden")
    assert kernel.version() == "none"
    with pytest.raises(BadInput, match="there is no native kernel, because it is hidden; use backend 'auto'"):
        learner(chain, backend="native")
    monkeypatch.setattr(kernel, "find", find)
    (tmp_path / "library.so").write_bytes(b"not a library")
    assert "cannot be loaded" in str(kernel.find())


@built
def test_a_processor_without_the_instructions_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "INSTRUCTIONS", {})
    assert kernel.find.__wrapped__() == "this processor has neither AVX2 nor NEON"


@built
def test_samples_outside_the_population_are_refused() -> None:
    of = learner(CHAINS["narrow"](5), backend="native")
    work = LocalWork(of, torch.arange(4), 3, torch.zeros(4, dtype=torch.int64))
    work._first = work._first + 100
    with pytest.raises(PalmetteError, match="do not lie within the population"):
        work.descend(of.initial().repeat(4, 1), steps=1, lr=0.1)
    y = of.data.y.clone()
    y[3] = 5  # beyond the last class
    of.data.y = y
    assert NativeBackend(of.task, torch.float32, torch.device("cpu"))._bind(of.data) is None


@built
def test_the_structures_are_those_of_the_header() -> None:
    # Numbers of eight bytes each, but for the two floats of the samples, which lie side by side.
    assert ctypes.sizeof(kernel.Operation) == 8 * 6
    for structure, fields in ((kernel.Layer, 9), (kernel.Samples, 7), (kernel.Plan, 9), (kernel.Descent, 20)):
        assert ctypes.sizeof(structure) == 8 * fields


@built
def test_a_run_names_the_kernel_and_says_when_it_goes_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"settings": {"alpha": 0.1, "team_steps": 2}, "out": tmp_path / "run"}
    pm.run("permfl", crowd(), "mclr", rounds=2, **given)
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "backend native (" in log
    assert "the native kernel uses" in log
    assert f'kernel = "native-{kernel.ARITHMETIC}"' in (tmp_path / "run" / "config.toml").read_text()
    monkeypatch.setattr(kernel, "find", lambda: "it is hidden")
    with pytest.warns(UserWarning, match=rf"began with kernel native-{kernel.ARITHMETIC} \(now none\)"):
        pm.resume(tmp_path / "run", population=crowd(), rounds=3)
    assert "backend fused (native cannot run" in (tmp_path / "run" / "log.txt").read_text()
