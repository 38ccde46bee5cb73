"""Train a head for every person over the frozen encoder, and ask the models of two people about new messages."""

import csv
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from encoder import WIDTH, load, tokens
from torch import nn

import palmette as pm

rows = list(csv.DictReader(Path("messages.csv").read_text(encoding="utf-8").splitlines()))
people = pm.Population.from_arrays(
    tokens([row["text"] for row in rows]).numpy(),
    np.array([row["urgent"] == "yes" for row in rows], dtype="int64"),
    device=[row["person"] for row in rows],
    team=[row["desk"] for row in rows],
    test=0.5,
)

torch.manual_seed(0)
model = nn.Sequential(OrderedDict(encoder=load(), head=nn.Linear(WIDTH, 2)))
task = pm.Task(model, freeze="encoder")  # the encoder is not trained and not sent; the head is

settings = {"alpha": 1.0, "local_steps": 10}
for method in ("ladder", "fedavg", "local"):
    result = pm.run(method, people, task, rounds=50, settings=settings, out=f"runs/{method}", progress=False)
    print(method, {kind: round(result.last(kind), 3) for kind in result.kinds})

texts = ["my parcel is lost", "the app has a bug", "refund my invoice please"]
result = pm.load("runs/ladder")
print(result.log[1])
for person in ("shipping-1", "accounts-1"):
    own = result.module("PM", person, into=model)
    with torch.no_grad():
        urgent = own(tokens(texts)).softmax(1)[:, 1].tolist()
    print(person, *(f"{text}: {chance:.0%}" for text, chance in zip(texts, urgent, strict=True)), sep=", ")
result.save_models("models")  # a file for each person, the encoder in each
