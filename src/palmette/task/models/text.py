"""Models of text: every place of a sample predicts the token that follows it, out of the vocabulary.

A sample is a row of tokens, and the outputs are ``(samples, length, vocabulary)``. No place sees what comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from palmette.errors import BadInput
from palmette.task.models.layers import bare, check_room, draw
from palmette.values import fraction, shown, whole

_PAD, _BEGIN, _STOP = range(3)  # letters that stand before, after and beyond those of a word


class Spelling(nn.Module):
    """Vectors of words made from their letters: convolutions over the letters, the largest value of each filter, a highway.

    Args:
        words: The vocabulary.
        letters: Numbers that stand for a letter.
        filters: Filters of each width.
        widths: Widths of the convolutions, in letters.
        longest: Letters of a word that are looked at.
    """

    spelled: Tensor

    def __init__(self, words: Sequence[str], letters: int, filters: int, widths: Sequence[int], longest: int) -> None:
        super().__init__()
        spelled, alphabet = spell(words, longest, max(widths))
        self.register_buffer("spelled", spelled)
        self.widths, size = tuple(widths), filters * len(widths)
        self.letters = bare(nn.Embedding, alphabet, letters)
        self.filters = nn.ModuleList(bare(nn.Linear, width * letters, filters) for width in widths)
        self.gate, self.change = bare(nn.Linear, size, size), bare(nn.Linear, size, size)

    def forward(self, x: Tensor) -> Tensor:
        """Return a vector for every token."""
        letters = self.letters(self.spelled[x])
        found = [layer(beside(letters, width)) for width, layer in zip(self.widths, self.filters, strict=True)]
        vectors = torch.cat([value.amax(-2).tanh() for value in found], -1)
        gate = self.gate(vectors).sigmoid()
        changed: Tensor = gate * self.change(vectors).relu() + (1 - gate) * vectors
        return changed


class Recurrent(nn.Module):
    """Vectors of tokens, an LSTM over them, and a linear layer for the next token."""

    def __init__(self, tokens: nn.Module, width: int, hidden: int, layers: int, outputs: int, dropout: float) -> None:
        super().__init__()
        check_room(max(outputs, 4 * hidden), hidden)
        self.tokens = tokens
        self.lstm = bare(nn.LSTM, width, hidden, num_layers=layers, batch_first=True)
        # There is none at 0, so that the model is a plain chain.
        self.dropout = nn.Dropout(dropout) if dropout else None
        self.last = bare(nn.Linear, hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the next token at every place."""
        hidden = self.lstm(self.tokens(x))[0]
        output: Tensor = self.last(hidden if self.dropout is None else self.dropout(hidden))
        return output


class Causal(nn.Module):
    """Vectors of tokens and of places, layers of attention to what came before, and a linear layer for the next token."""

    mask: Tensor

    def __init__(
        self, length: int, outputs: int, width: int, heads: int, layers: int, inner: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens, self.places = bare(nn.Embedding, outputs, width), bare(nn.Embedding, length, width)
        self.layers = nn.ModuleList(_attending(width, heads, inner, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.last = bare(nn.Linear, width, outputs)
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the next token at every place."""
        value = self.tokens(x) + self.places.weight
        for layer in self.layers:
            value = layer(value, src_mask=self.mask)
        output: Tensor = self.last(self.norm(value))
        return output


def lm(
    shape: Sequence[int],
    outputs: int,
    *,
    seed: int = 0,
    words: Sequence[str] | None = None,
    letters: int = 8,
    filters: int = 16,
    widths: Sequence[int] = (1, 2, 3),
    longest: int = 12,
    hidden: int = 64,
    layers: int = 2,
    dropout: float = 0.0,
) -> nn.Module:
    """Language model of Group Personalized FL: words from their letters by convolutions, then an LSTM of two layers.

    The paper has vectors of 100 numbers for words and 512 hidden units (``filters = 25``, ``widths = [1, 2, 3, 4]``,
    ``hidden = 512``) with a vocabulary of about 33,000; it does not say more of the convolutions, so they are as in the paper
    it refers to (Kim et al., Character-Aware Neural Language Models, 2016): filters of several widths, tanh, the largest value
    of each, and a highway layer. Tokens that have no spelling get a vector each instead, as large as filters x widths.

    Args:
        shape: Shape of one sample: its length.
        outputs: Size of the vocabulary.
        seed: Seed of the initial weights.
        words: The vocabulary; the data bring it.
        letters: Numbers that stand for a letter.
        filters: Filters of each width; a word's vector has one number for each filter.
        widths: Widths of the convolutions, in letters.
        longest: Letters of a word that are looked at; longer words are cut.
        hidden: Hidden units of each LSTM layer.
        layers: Number of LSTM layers.
        dropout: Share of the last hidden units that is dropped while training.
    """
    _check_text("lm", shape)
    spans = widths if isinstance(widths, Sequence) and not isinstance(widths, str) else [widths]
    spans = [whole("widths", span, 1, 100) for span in spans]
    if not spans:
        raise BadInput("widths = [] names no convolution; give at least one width")
    sizes = {"letters": letters, "filters": filters, "longest": longest, "hidden": hidden, "layers": layers}
    letters, filters, longest, hidden, layers = (whole(name, size, 1) for name, size in sizes.items())
    if words is not None and len(words) != outputs:
        raise BadInput(f"words has {len(words)} entries for a vocabulary of {outputs}; they must be equal")
    width = filters * len(spans)
    tokens = bare(nn.Embedding, outputs, width) if words is None else Spelling(words, letters, filters, spans, longest)
    return draw(Recurrent(tokens, width, hidden, layers, outputs, fraction("dropout", dropout)), seed)


def charlstm(
    shape: Sequence[int],
    outputs: int,
    *,
    seed: int = 0,
    embedding: int = 8,
    hidden: int = 256,
    layers: int = 2,
    dropout: float = 0.0,
) -> nn.Module:
    """LSTM over characters with the sizes of LEAF and FedProx: vectors of 8 numbers, two layers of 256 hidden units.

    Theirs predicts the one character after a window; this one predicts the next character at every place.

    Args:
        shape: Shape of one sample: its length.
        outputs: Size of the vocabulary.
        seed: Seed of the initial weights.
        embedding: Numbers that stand for a character.
        hidden: Hidden units of each LSTM layer.
        layers: Number of LSTM layers.
        dropout: Share of the last hidden units that is dropped while training.
    """
    _check_text("charlstm", shape)
    sizes = {"embedding": embedding, "hidden": hidden, "layers": layers}
    embedding, hidden, layers = (whole(name, size, 1) for name, size in sizes.items())
    tokens = bare(nn.Embedding, outputs, embedding)
    return draw(Recurrent(tokens, embedding, hidden, layers, outputs, fraction("dropout", dropout)), seed)


def transformer(
    shape: Sequence[int],
    outputs: int,
    *,
    seed: int = 0,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    inner: int = 128,
    dropout: float = 0.0,
) -> nn.Module:
    """Small transformer for text: vectors of tokens and places, layers of attention to what came before.

    Args:
        shape: Shape of one sample: its length.
        outputs: Size of the vocabulary.
        seed: Seed of the initial weights.
        width: Numbers that stand for a token, in every layer.
        heads: Heads of attention; width must be a multiple of it.
        layers: Number of layers.
        inner: Hidden units of the fully connected part of each layer.
        dropout: Share of the values after attention and after each fully connected part that is dropped while training;
            attention itself drops nothing.
    """
    length = _check_text("transformer", shape)
    sizes = {"width": width, "heads": heads, "layers": layers, "inner": inner}
    width, heads, layers, inner = (whole(name, size, 1) for name, size in sizes.items())
    if width % heads:
        raise BadInput(f"width = {width} must be a multiple of heads = {heads}")
    return draw(Causal(length, outputs, width, heads, layers, inner, fraction("dropout", dropout)), seed)


def beside(letters: Tensor, width: int) -> Tensor:
    """Return so many neighbouring letters' vectors as one, at every place of a word: what a convolution multiplies.

    A convolution written as a product is fast for many devices at once.

    Args:
        letters: Vectors ``(..., letters of a word, numbers)``.
        width: How many.
    """
    places = letters.shape[-2] - width + 1
    return torch.cat([letters[..., first : first + places, :] for first in range(width)], -1)


def spell(words: Sequence[str], longest: int, shortest: int = 1) -> tuple[Tensor, int]:
    """Return the letters of every word as numbers, one row per word, and how many different ones there are.

    A word stands between a sign for its beginning and one for its end; rows are filled up behind it.

    Args:
        words: The words.
        longest: Letters of a word that are looked at.
        shortest: Least length of a row.
    """
    alphabet = {letter: at for at, letter in enumerate(sorted(set("".join(words))), _STOP + 1)}
    size = max(shortest, min(longest, max(map(len, words))) + 2)
    rows = torch.full((len(words), size), _PAD)
    for row, word in zip(rows, words, strict=True):
        numbers = [_BEGIN, *(alphabet[letter] for letter in word[:longest]), _STOP]
        row[: len(numbers)] = torch.tensor(numbers)
    return rows, len(alphabet) + _STOP + 1


def _attending(width: int, heads: int, inner: int, dropout: float) -> nn.Module:
    options = {"nhead": heads, "dropout": dropout, "activation": "gelu", "batch_first": True, "norm_first": True}
    layer = cast(nn.TransformerEncoderLayer, bare(nn.TransformerEncoderLayer, width, dim_feedforward=inner, **options))
    layer.self_attn.dropout = 0.0  # its random numbers could not be repeated
    return layer


def _check_text(name: str, shape: Sequence[int]) -> int:
    """Return the length of a sample of text, or refuse samples that are none."""
    if len(shape) != 1:
        raise BadInput(f"{name} is for text: a sample is one row of tokens, not of shape {shown(tuple(shape))}")
    return shape[0]
