"""A small encoder of texts: a vector for each word, and their sum for a text.

Run as a script it learns the vectors from `corpus.txt`, so that words of the same messages have similar ones, and saves them in
`encoder.safetensors`.
"""

import re
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

LENGTH, WIDTH = 12, 8  # words of a text that are read; numbers of a vector
FILE = "encoder.safetensors"
TEXTS = Path("corpus.txt").read_text(encoding="utf-8").splitlines()
WORDS = {word: number for number, word in enumerate(sorted({word for text in TEXTS for word in text.split()}), 1)}


class Encoder(nn.Module):
    """Words as numbers in, one vector of length one out; the number 0 is no word."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Embedding(len(WORDS) + 1, WIDTH, padding_idx=0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the vectors of texts."""
        return nn.functional.normalize(self.vectors(tokens).sum(1))


def tokens(texts: list[str]) -> Tensor:
    """Write texts as rows of numbers."""
    found = [[WORDS.get(word, 0) for word in re.findall(r"\w+", text.lower())][:LENGTH] for text in texts]
    return torch.tensor([row + [0] * (LENGTH - len(row)) for row in found])


def load() -> Encoder:
    """Return the encoder that was saved."""
    encoder = Encoder()
    load_model(encoder, FILE)
    return encoder


def learn() -> Encoder:
    """Learn the vectors: how much more often two words meet than by chance, brought down to a few numbers a word."""
    there = np.zeros((len(TEXTS), len(WORDS) + 1))
    np.put_along_axis(there, tokens(TEXTS).numpy(), 1, axis=1)
    there[:, 0] = 0
    meet, often = there.T @ there, there.sum(0)
    chance = np.outer(often, often) / len(TEXTS)
    ways, strengths, _ = np.linalg.svd(np.log(np.maximum(meet, 1) / np.maximum(chance, 1)).clip(0))
    encoder = Encoder()
    encoder.vectors.weight.data = torch.tensor(ways[:, :WIDTH] * strengths[:WIDTH] ** 0.5, dtype=torch.float32)
    return encoder


if __name__ == "__main__":
    save_model(learn(), FILE)
