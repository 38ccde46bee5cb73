"""A kit: the folder that one node of a federation runs from, with all it may know and nothing of anybody else.

``node.json`` says who it is, who its parent and its children are and what is trained; ``certificate.pem``, ``key.pem`` and
``ca.pem`` are its identity. A device whose samples were dealt out has them in ``data``. The folders ``state`` and ``models``
come to be when it runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from palmette.deploy.tls import Identity
from palmette.engines.setup import Setup, known_settings
from palmette.errors import BadInput
from palmette.files import MissingFile
from palmette.guards.texts import from_json
from palmette.learner import Learner
from palmette.links.forms import Forms
from palmette.population import Encoding, Population, load_population
from palmette.protocol import Algorithm
from palmette.runs.config import RunConfig
from palmette.runs.reading import make_config
from palmette.task import Task
from palmette.tree import Tree
from palmette.values import shown

NODE, DATA, STATE, MODELS, RUN = "node.json", "data", "state", "models", "run"
CERTIFICATE, KEY, AUTHORITY = "certificate.pem", "key.pem", "ca.pem"
FORMAT = 1
_MOST = 1 << 28  # bytes of a node.json: a server's, which knows the whole tree
_TYPES = {"float32": torch.float32, "float64": torch.float64, "uint8": torch.uint8, "int64": torch.int64}


class Place(BaseModel):
    """Another node, as its neighbour knows it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    id: str
    address: str | None = None
    below: tuple[int, ...] = ()


class Shape(BaseModel):
    """What every sample is like."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shape: tuple[int, ...]
    type: str
    classes: int | None
    affine: tuple[float, float] | None = None
    target: str = "int64"
    labels: int = 1
    encoding: dict[str, Any] | None = None


class Known(BaseModel):
    """What a node knows of the tree: see `palmette.tree.view`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    parents: list[list[int]]
    labels: list[list[str]]
    addresses: list[list[int]]

    @staticmethod
    def of(tree: Tree) -> Known:
        """Write down a tree."""
        return Known(
            parents=[parent.tolist() for parent in tree.parents],
            labels=[tree.names(tier) for tier in range(tree.tiers)],
            addresses=[numbers.tolist() for numbers in tree.addresses],
        )

    def tree(self) -> Tree:
        """Return the tree."""
        return Tree(
            tuple(np.array(parent, dtype=np.int64) for parent in self.parents),
            tuple(tuple(names) for names in self.labels),
            tuple(np.array(numbers, dtype=np.int64) for numbers in self.addresses),
        )


class NodeFile(BaseModel):
    """What ``node.json`` says.

    Attributes:
        format: Version of this format.
        federation: The federation's name.
        name: The node's name.
        id: Its opaque id, which its certificate shows.
        tier: Its tier; 0 is the devices.
        plain: Whether everything runs on this machine without certificates.
        listen: Where it waits for its children.
        parent: Its parent, and where that is reached.
        children: Its children.
        operator: The id of those who may ask the server for its status.
        known: What it knows of the tree.
        samples: Training samples of the nodes it knows, tier by tier, where they were dealt out.
        top: The tier under which the link of a method without teams is counted.
        kinds: The kinds of models that are measured.
        config: The config of the run, without the data.
        data: What every sample is like.
        dealt: Whether a device's samples are in its kit.
        deadline: Seconds that it waits for its children's replies at most.
        patience: Seconds that it waits for a child whose connection was lost.
        begin_after: Seconds after which it goes on without children that were never there.
        limit: Bytes of the largest message.
        above: What messages from its parent are like, by their kind; and ...
        below: ... those from its children.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    federation: str
    name: str
    id: str
    tier: int
    plain: bool = False
    listen: str | None = None
    parent: Place | None = None
    children: list[Place] = []
    operator: str | None = None
    known: Known
    samples: list[list[int]]
    top: int
    kinds: tuple[str, ...]
    config: dict[str, Any]
    data: Shape
    dealt: bool
    deadline: float | None
    patience: float
    begin_after: float | None
    limit: int
    above: dict[str, Forms] = {}
    below: dict[str, Forms] = {}


class Kit:
    """The kit of one node, read from its folder.

    Args:
        folder: The kit.
        data: Where a device's own samples are, where they were not dealt out.

    Attributes:
        notes: What was guessed or left out when a device's own samples were read, in sentences.
    """

    notes: list[str]

    def __init__(self, folder: Path, data: Path | None = None) -> None:
        self.folder, self._data, self.notes = folder, data, []
        try:
            told = from_json((folder / NODE).read_bytes(), _MOST)
        except OSError as error:
            why = f"cannot read its {NODE} ({error.strerror})" if folder.is_dir() else "there is no such folder"
            raise BadInput(f"{folder} is no kit of a node: {why}") from None
        except (ValueError, BadInput) as error:
            raise BadInput(f"{folder / NODE} is damaged ({error}); make the kit again") from None
        version = told.get("format") if isinstance(told, dict) else None
        if version != FORMAT:
            raise BadInput(f"{folder / NODE} has the format {shown(version)}; this Palmette reads {FORMAT}")
        try:
            self.node = NodeFile.model_validate(told)
        except ValidationError as error:
            raise BadInput(f"{folder / NODE} is damaged ({error.errors()[0]['msg']}); make the kit again") from None
        self.tree = self.node.known.tree()

    @property
    def identity(self) -> Identity | None:
        """What the node shows of itself; ``None`` in plain text on one machine."""
        if self.node.plain:
            return None
        try:
            parts = [(self.folder / name).read_bytes() for name in (CERTIFICATE, KEY, AUTHORITY)]
        except OSError as error:
            raise BadInput(
                f"the kit {self.folder} is not whole: cannot read {error.filename} ({error.strerror})"
            ) from None
        return Identity(*parts)

    @property
    def config(self) -> RunConfig:
        """The config of the run."""
        return make_config(self.node.config, kept=True)

    def method(self) -> Algorithm:
        """Return the algorithm, with the settings by name of the nodes that this one knows."""
        return known_settings(self.config.method(), self.tree)

    def _check_code(self) -> None:
        """Refuse code of the user's own that is not here, or is not what it was when the kits were made."""
        try:
            changed = self.config.changed_code()
        except MissingFile as error:
            raise BadInput(f"{error}; no code is sent, so put the file there on every machine") from None
        if changed:
            raise BadInput(f"{changed} when the kits were made; every machine must have the same")

    def setup(self) -> Setup:
        """Return what the node's machine is told."""
        self._check_code()
        node, config, method = self.node, self.config, self.method()
        people = self.population()
        task = config.task(people).with_parts(method.parts, whole=method.whole_part)
        learner = learner_of(config, method, people, task)
        samples = [torch.tensor(counts, dtype=torch.int64) for counts in node.samples]
        if node.tier == 0 and not node.dealt:
            samples = [learner.samples.clone() for _ in samples]
        return Setup(
            algorithm=method,
            tree=self.tree,
            tier=node.tier,
            layout=task.layout,
            initial=learner.initial(),
            links=config.make_links(self.tree, flat=False),
            samples=samples,
            seed=config.seed,
            top=node.top,
            learner=learner if node.tier == 0 else None,
            below=tuple(child.below for child in node.children),
            kinds=node.kinds,
        )

    def population(self) -> Population:
        """Return a device's samples; above the devices a few that are nobody's, to make the model for."""
        if self._data is not None and (self.node.tier or self.node.dealt):
            why = "its samples are in its kit" if self.node.dealt and not self.node.tier else "it is no device"
            raise BadInput(f"{self.node.name!r} has no use for --data {self._data}: {why}; leave it out")
        if self.node.tier:
            return stand_in(self.node.data, self.tree)
        if self.node.dealt:
            made = load_population(self.folder / DATA)
        else:
            from palmette.deploy.own import read_own  # it reads tables

            made, self.notes = read_own(self._data, self.node, self.config.seed)
        if made.shape != self.node.data.shape or made.classes != self.node.data.classes:
            raise BadInput(
                f"the samples of {self.node.name!r} have the shape {made.shape} and {made.classes} classes; this federation "
                f"has {self.node.data.shape} and {self.node.data.classes}"
            )
        return Population(
            self.tree, made.x, made.y, made.start, made.train, made.affine, made.classes, made.source, made.encoding
        )


def learner_of(config: RunConfig, method: Algorithm, people: Population, task: Task) -> Learner:
    """Return what does local work in a kit; the backend is the one that was chosen for all."""
    return Learner(
        task,
        people,
        seed=config.seed,
        batch_size=method.batch_size,
        dtype=config.dtype(),
        device=config.engine.device,
        backend=config.engine.took or config.engine.backend,
        held_out=method.held_out if config.engine.held_out is None else config.engine.held_out,
        optimiser=config.optimiser,
    )


def stand_in(data: Shape, tree: Tree) -> Population:
    """Return samples that are nobody's, four of each device, for those who need the model but have no samples."""
    count = 4 * tree.devices
    target = (count,) if data.labels == 1 else (count, data.labels)
    return Population(
        tree,
        torch.zeros((count, *data.shape), dtype=_TYPES[data.type]),
        torch.zeros(target, dtype=_TYPES[data.target]),
        torch.arange(0, count + 1, 4),
        torch.full((tree.devices,), 3),
        affine=data.affine,
        classes=data.classes,
        source="nobody's",
        encoding=None if data.encoding is None else Encoding.from_dict(data.encoding),
    )


def shape_of(people: Population) -> Shape:
    """Write down what every sample of a population is like."""
    return Shape(
        shape=people.shape,
        type=str(people.x.dtype).removeprefix("torch."),
        classes=people.classes,
        affine=people.affine,
        target=str(people.y.dtype).removeprefix("torch."),
        labels=1 if people.y.dim() == 1 else int(people.y[0].numel()),
        encoding=None if people.encoding is None else people.encoding.as_dict(),
    )
