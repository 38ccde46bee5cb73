"""The server of a federation: it runs the rounds, measures the models and writes the run's folder."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from palmette.deploy.journal import Journal
from palmette.deploy.kit import RUN, Kit
from palmette.deploy.models import save_team
from palmette.deploy.newcomers import Newcomer
from palmette.deploy.node import Node
from palmette.deploy.outcome import History, write_run
from palmette.engines.aside import end, scores
from palmette.engines.evaluation import Scores
from palmette.engines.separate import scores_of
from palmette.errors import PalmetteError
from palmette.links.wire import Envelope
from palmette.protocol import ModelKind
from palmette.protocol.stages import Stages
from palmette.runs.files import Unwritable

_LINGER = 5.0  # seconds that the server stays for those who ask how it ended
_AGAIN = 1.0  # seconds before something is tried again: a round in which nobody was there, a disk that was full


class Server(Node):
    """The server of a federation.

    Args:
        kit: Its kit.
        journal: Where it tells what happens.
    """

    round, finished = 0, False
    _stop = threading.Event()

    def __init__(self, kit: Kit, journal: Journal) -> None:
        super().__init__(kit, journal)
        config = kit.config
        self.rounds = config.rounds
        self._stages = Stages(self.setup.algorithm, self.setup.tree, self.rounds)
        self._history = History(kit)
        self._every = 1 if config.evaluate_every == "auto" else config.evaluate_every
        self.result = ""

    def resume(self, told: dict[str, Any]) -> None:
        """Take from the disk which round is next."""
        self.round, self.finished = int(told.get("round", 0)), bool(told.get("finished"))

    def also_kept(self) -> dict[str, Any]:
        """Return what is kept beside the machine: also which round is next."""
        return {**super().also_kept(), "round": self.round, "finished": self.finished}

    def run(self, stop: threading.Event) -> None:
        """Run the training to its end, or until told to stop."""
        self._stop = stop
        if self.finished:
            self.result = str(self.kit.folder / RUN)
            self.journal.line(f"this training is over already; its results are in {self.result}")
            return
        assert self.below is not None
        self.journal.line(f"listens on port {self.below.start()}; {len(self.children)} children are expected")
        try:
            told = self._history.told_in_the_end()
            if told is None:
                self._train()
            if not stop.is_set():
                self._finish(told)
                stop.wait(_LINGER)
        except PalmetteError as error:
            self.journal.line(f"the training failed: {error}")
            end(self.machine, replace(self._start("end"), body={"failed": str(error)}))
            raise
        finally:
            self.close()

    def _train(self) -> None:
        """Wait for the children and run all rounds."""
        while not self._stop.is_set() and not self.gather():
            pass
        if not self._stop.is_set() and not self._history.has(self.round) and self._due():
            self._evaluate()  # at the beginning, or where a server that crashed had come to
        while self.round < self.rounds and not self._stop.is_set():
            self._step()

    def _start(self, kind: str = "ask") -> Envelope:
        stage, turn = self._stages.at(min(self.round, self.rounds - 1))
        return Envelope(kind=kind, round=self.round, rounds=self.rounds, stage=stage, turn=turn)

    def _step(self) -> None:
        """Run one round and keep what it came to; a round for which nobody is there waits."""
        assert self.below is not None
        self.machine.desk.listen()
        while not self.below.connected():
            self.phase = f"round {self.round + 1} of {self.rounds} waits: no child is connected"
            if self._stop.wait(_AGAIN):
                return
            self.machine.desk.listen()
        if self.newcomers.join(self.round):
            self._written("who is counted", self.keep)  # before the first message that counts them
        self.phase, began = f"round {self.round + 1} of {self.rounds}", time.monotonic()
        self.machine.begin(self._start())
        self.round += 1
        self._written(f"round {self.round}", self.keep)
        seconds = time.monotonic() - began
        self._history.seconds += seconds
        told = ""
        if self._due():
            told = self._evaluate()
        self.journal.line(f"round {self.round} of {self.rounds}: {seconds:.2f} s{told}")

    def _due(self) -> bool:
        return self.round % self._every == 0 or self.round in (1, self.rounds)

    def _written(self, what: str, write: Callable[[], None]) -> None:
        """Put something on the disk before the training goes on, however long the disk is full."""
        while not self._stop.is_set():
            try:
                write()
                return
            except (OSError, Unwritable) as error:
                self.phase = f"waits for its disk: {what} cannot be kept: {error}"
                self.journal.event("failed", self.node.name, self.phase)
                self._stop.wait(_AGAIN)

    def _evaluate(self) -> str:
        """Measure the models on the devices, and say how good they are."""
        self.phase = f"evaluating after round {self.round}"
        with torch.no_grad():
            found: dict[ModelKind, Scores] = scores_of(scores(self.machine, self._start("evaluate")))
        if not found:
            self.journal.event("failed", self.node.name, "no device answered the evaluation")
            return ""
        self._history.record(found, self.round, self.setup.tree)
        self._written(f"what was measured after round {self.round}", self._history.keep)
        lead = next(iter(found.values())).sums.keys() - {"loss"}
        metric = min(lead) if lead else "loss"
        self.scores = {kind: {name: score.by_samples(name) for name in score.sums} for kind, score in found.items()}
        if "model" in self.machine.declared:
            self._written("the global model", lambda: save_team(self.kit, self.machine, self._start()))
        return "; " + metric + " " + ", ".join(f"{kind} {each[metric]:.4f}" for kind, each in self.scores.items())

    def _finish(self, told: dict[str, Any] | None) -> None:
        """Tell everybody that the training is over, gather what crossed the links, and write the run's folder.

        Args:
            told: What everybody told, where a server that crashed had gathered it: nobody is there to tell it again.
        """
        self.phase, self.over = "ending", True
        body = end(self.machine, self._start("end")) if told is None else told
        self._written("what the nodes told", lambda: self._history.keep_the_end(body))
        self._written(
            "the folder of the run",
            lambda: write_run(self.kit, self.machine, self._history, body, self.newcomers.counted),
        )
        if self._stop.is_set():
            return  # started again, it ends anew
        self.result, self.phase, self.finished = str(self.kit.folder / RUN), "finished", True
        self._written("the end", self.keep)
        self.journal.line(f"the training is over; its results are in {self.result}")

    def operate(self, data: bytes) -> bytes:
        """Answer the operator."""
        try:
            told = json.loads(data)
            do = told["do"]
        except (ValueError, KeyError, TypeError):
            raise PalmetteError("the operator's message makes no sense") from None
        if do == "status":
            status = self.status(float(told.get("seconds", 3.0)))
            return json.dumps(
                {**status, "federation": self.node.federation, "rounds": self.rounds, "result": self.result}
            ).encode()
        if do == "revoke":
            return json.dumps({"reached": self.revoke(told)}).encode()
        if do == "enrol":
            self.newcomers.admit(Newcomer.model_validate(told["newcomer"]))
            return b"{}"
        raise PalmetteError(f"the server does not know how to {str(do)[:40]!r}")
