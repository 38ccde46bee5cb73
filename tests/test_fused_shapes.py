"""The fused backend has the gradient of plain autograd for small modules of any layers in any order."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from agreement import agree, drawn, task
from any_modules import First, modules
from palmette.learner import convolution

WAYS = (None, convolution.Direct, convolution.Columns, convolution.Grouped)


def _labels(n: int, batch: int) -> torch.Tensor:
    return torch.arange(n * batch).reshape(n, batch) * 13 % 5


@pytest.mark.parametrize("kind", ["images", "signals", "sequences", "numbers"])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 3), batch=st.integers(2, 4))
def test_modules_of_any_layers_agree(kind: str, data: st.DataObject, n: int, batch: int) -> None:
    shape, module = data.draw(modules(kind))
    way = data.draw(st.sampled_from(WAYS))
    with pytest.MonkeyPatch.context() as patch:
        if way is not None:
            patch.setattr(convolution, "choose", lambda *_, **__: way)
        agree(task(module), drawn((n, batch, *shape)), _labels(n, batch))


@pytest.mark.parametrize("devices", [1, 2])
def test_group_normalisation_takes_gradients_in_any_order_of_memory(devices: int) -> None:
    # Pooling gives them with the channels last, a grouped convolution before it takes them first.
    chain = [nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
    agree(task([*chain, nn.Flatten(), nn.Linear(64, 5)]), drawn((devices, 6, 1, 8, 8)), _labels(devices, 6))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_an_activation_leaves_the_hidden_units_before_it_as_they_are(kind: type[nn.RNNBase]) -> None:
    # The backward pass of a recurrent layer reads its outputs.
    chain = [First(kind(3, 4, batch_first=True)), nn.ReLU(), nn.Flatten(), nn.Linear(20, 5)]
    agree(task(chain), drawn((2, 6, 5, 3)), _labels(2, 6))
