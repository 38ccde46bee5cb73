"""Models of text: every backend agrees, no place sees what follows, weights come from the seed, and a word model learns."""

from __future__ import annotations

import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import palmette as pm
from palmette.engines.measures import make_measures
from palmette.errors import BadInput
from palmette.learner import Learner, LocalWork
from palmette.learner.smoothness import curvature
from palmette.runs import make_config, prepare
from palmette.task import LOSSES, Task, make_task
from palmette.task.losses import METRICS
from palmette.task.models.text import spell

WORDS = ("<unk>", "<eos>", "a", "bee", "cat", "caterpillar", "do")
SMALL: dict[str, dict[str, Any]] = {
    "lm": {"hidden": 5, "filters": 3, "letters": 4, "longest": 6},
    "charlstm": {"hidden": 5, "embedding": 3},
    "transformer": {"width": 8, "heads": 2, "inner": 6},
}
BACKENDS = dict.fromkeys(("lm", "charlstm", "transformer"), "fused")


def people(length: int = 6) -> pm.Population:
    random = np.random.default_rng(1)
    windows = [random.integers(0, len(WORDS), (size, length + 1)) for size in (12, 5, 9, 3)]
    x, y = [window[:, :-1] for window in windows], [window[:, 1:] for window in windows]
    return pm.Population.from_arrays(x, y, tree="2x2", classes=len(WORDS))


def task(name: str, **options: Any) -> Task:
    return make_task(name, (6,), len(WORDS), seed=1, words=WORDS, **{**SMALL[name], **options})


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_backends_agree_on_descents_and_scores(name: str, dropout: float) -> None:
    population, made = people(), task(name, dropout=dropout)
    ids, expected = torch.arange(4), None
    for backend in ("loop", BACKENDS[name]):  # torch has no stacked form of an LSTM in float64
        learner = Learner(made, population, seed=3, batch_size=4, backend=backend, dtype=torch.float64)
        noise = torch.randn(4, learner.width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        rows = learner.initial() + 0.1 * noise
        found = LocalWork(learner, ids, 2, torch.full_like(ids, 4)).descend(
            rows, steps=3, lr=0.5, pull=0.1, centre=rows
        )
        scores = learner.scorer.sums(found, ids, ids, "test")
        shared = learner.scorer.sums(found[:1], torch.zeros_like(ids), ids, "test")
        every = [found, *scores.values(), *shared.values()]
        expected = expected or every
        for one, other in zip(every, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    assert Learner(made, population).backend.name == BACKENDS[name]


@pytest.mark.parametrize("name", SMALL)
def test_no_place_sees_what_follows_it(name: str) -> None:
    module = task(name).module.eval()
    x = torch.tensor([[2, 3, 4, 5, 6, 2]])
    y = x.clone()
    y[0, 4:] = torch.tensor([3, 1])
    with torch.no_grad():
        before, after = module(x), module(y)
    assert before.shape == (1, 6, len(WORDS))
    torch.testing.assert_close(before[:, :4], after[:, :4])
    assert not torch.allclose(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize("name", SMALL)
def test_weights_come_from_the_seed_alone_and_the_head_is_the_output_layer(name: str) -> None:
    torch.manual_seed(1)
    one = task(name)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    other = task(name)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(one.initial(), other.initial())
    assert not torch.equal(
        one.initial(), make_task(name, (6,), len(WORDS), seed=2, words=WORDS, **SMALL[name]).initial()
    )
    named = dict(one.module.named_parameters())
    assert all(float(value.detach().std()) > 0 for key, value in named.items() if "norm" not in key)
    assert all(bool((value == 1).all()) for key, value in named.items() if key.endswith("norm.weight"))
    parts = Task(one.module, parts={"head": pm.parts.last(1)})
    assert parts.layout.parts["head"] == ("last.weight", "last.bias")


def test_an_lstm_draws_within_the_bound_of_its_hidden_units() -> None:
    made = make_task("charlstm", (80,), 82).module
    weights = {name: weight.detach() for name, weight in made.named_parameters()}
    assert 0.9 / 16 < float(weights["lstm.weight_ih_l0"].abs().max()) <= 1 / 16  # 256 hidden units, 8 numbers come in
    assert sum(weight.numel() for weight in weights.values()) == 82 * 8 + 4 * 256 * (8 + 3 * 256 + 4) + 257 * 82


def test_words_are_spelled_between_a_beginning_and_an_end() -> None:
    rows, letters = spell(("ab", "b", "cabbage"), 4)
    assert rows.tolist() == [[1, 3, 4, 2, 0, 0], [1, 4, 2, 0, 0, 0], [1, 5, 3, 4, 4, 2]]
    assert letters == 8  # a, b, c, e, g and three signs
    module = task("lm").module
    tokens = module.get_submodule("tokens")
    with torch.no_grad():
        vectors = tokens(torch.arange(len(WORDS))[None])[0]
    assert vectors.shape == (len(WORDS), 9)
    assert len(torch.unique(vectors, dim=0)) == len(WORDS)
    plain = make_task("lm", (6,), len(WORDS), **SMALL["lm"]).module  # without spelling
    assert type(plain.get_submodule("tokens")) is torch.nn.Embedding


def test_settings_that_fit_no_text_are_refused() -> None:
    for name, shape, options, why in (
        ("lm", (1, 28, 28), {}, r"lm is for text: a sample is one row of tokens, not of shape \(1, 28, 28\)"),
        ("lm", (6,), {"widths": []}, "names no convolution"),
        ("lm", (6,), {"hidden": 0}, "hidden"),
        ("lm", (6,), {"words": WORDS[:3]}, "words has 3 entries for a vocabulary of 7"),
        ("transformer", (6,), {"width": 9, "heads": 2}, "width = 9 must be a multiple of heads = 2"),
        ("charlstm", (6,), {"dropout": 2}, "dropout"),
    ):
        with pytest.raises(BadInput, match=why):
            make_task(name, shape, len(WORDS), **options)
    with pytest.raises(
        BadInput, match="These samples are tokens of text; choose a model for them: lm, charlstm, transformer"
    ):
        pm.run("fedavg", people(), "mclr", rounds=1)
    floats = pm.Population.from_arrays(np.zeros((8, 6)), np.arange(8) % 2, tree="2x2", device=np.arange(8) % 4)
    with pytest.raises(BadInput, match="'charlstm' is for tokens of text, and these samples are real numbers"):
        pm.run("fedavg", floats, "charlstm", rounds=1)


def test_the_loss_of_a_text_is_the_mean_over_its_places() -> None:
    random = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 4, 5, generator=random, dtype=torch.float64)
    targets = torch.randint(0, 5, (3, 4), generator=random)
    each = -outputs.log_softmax(2).gather(2, targets[..., None]).squeeze(2)
    torch.testing.assert_close(LOSSES["cross-entropy"](outputs, targets), each.mean(1))
    right = (outputs.argmax(2) == targets).double().mean(1)
    assert torch.equal(METRICS["cross-entropy"]["accuracy"](outputs, targets), right)
    found = make_measures(["perplexity"], 5)["perplexity"](outputs, targets)
    assert found == pytest.approx(float(each.mean().exp()))
    with pytest.raises(BadInput, match="'auc' is for one label per sample; for text there is perplexity"):
        make_measures(["auc"], 5, text=True)


def test_the_curvature_of_text_is_looked_at_on_fewer_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Learner(task("charlstm"), people(), dtype=torch.float64)
    assert curvature(learner).devices == 4
    monkeypatch.setattr("palmette.learner.smoothness._WORK", 0)
    assert curvature(learner).devices == 2


def test_a_method_for_one_label_per_sample_is_refused_before_it_trains(tmp_path: Path) -> None:
    with pytest.raises(pm.BadInput, match="pfedgp is for one label per sample, and each sample of arrays has 6"):
        pm.run("pfedgp", people(), task("lm"), rounds=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_word_model_without_words_says_so() -> None:
    config = make_config({"algorithm": "local", "rounds": 1, "model": {"name": "lm", **SMALL["lm"]}})
    told = "the model lm has a vector for each token, because the data bring no words to spell"
    assert told in prepare(config, population=people()).learner.told
    assert not task("lm").told


# -- a word model learns -------------------------------------------------------------------------------------------------


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    """Two plays whose roles say things that are easy to foretell, each play in an order of its own."""
    random = np.random.default_rng(0)
    rows = []
    for play, order in (("rise", 1), ("fall", -1)):
        for role in ("ANN", "BOB", "CID"):
            names = ["one", "two", "three", "four", "five", "six", "seven"][::order]
            begins = random.integers(0, 7, 30).tolist()
            speeches = [" ".join(names[(begin + at) % 7] for at in range(6)) for begin in begins]
            rows.append({"play": play, "role": role, "speeches": speeches})
    with gzip.open(tmp_path / "shakespeare_roles.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return tmp_path


def test_a_word_model_learns_and_its_perplexity_is_exp_of_its_loss(
    plays: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It would take longer than the training, and Adam's steps have no bound that it could be compared with.
    monkeypatch.setattr(sys.modules["palmette.theory.advice"], "curvature", None)
    population = pm.make_population("shakespeare", folder=plays, length=6)
    settings = {"alpha": 0.02, "batch_size": 8, "local_steps": 10, "tune_steps": 10}
    options = {"settings": settings, "metrics": ["perplexity"], "optimiser": {"name": "adam"}}
    task = make_task("lm", (6,), population.classes, words=population.words, hidden=16, layers=1)
    result = pm.run("fedavg", population, task, rounds=5, **options)
    last = result.last("GM", "perplexity")
    assert last < 9 / 3  # it begins near the number of words, nine
    assert result.last("PM", "perplexity") < last / 1.5  # plays differ
    assert last == pytest.approx(math.exp(result.last("GM", "loss")), rel=1e-6)
    # The vocabulary travels with the models, and they are made again from the folder.
    assert result.encoding is not None
    assert result.encoding.words == population.words
    module = result.module("GM")
    x: Tensor = population.x[:4]
    torch.testing.assert_close(module(x), result.predict(x, "GM"))
    assert result.config.model.name == "lm"
    assert not result.config.given
