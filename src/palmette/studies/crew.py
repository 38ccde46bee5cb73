"""Running many runs at once: this process takes one after the other, and so do processes beside it, one for each other core.

A chain is a generator that yields trials and is sent how each ended, so what is tried next may depend on what came out.
Every run computes on one thread when there are several processes; the results do not depend on who computed what.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from functools import partial

from palmette.runs.stopping import hearing
from palmette.studies.helper import Helper
from palmette.studies.trials import Eyes, Outcome, Populations, Told, Trial, run_trial

Chain = Generator[Trial, Outcome, None]
_WAIT = 0.2  # seconds between two looks whether there is work, so that a signal is heard


class Queue:
    """The trials that wait, and the chains they come from; all threads take from it.

    Args:
        chains: What is to be run.
        known: Returns how a trial ended that needs no running, else ``None``.
        told: Is called with every outcome, one at a time.
    """

    def __init__(
        self,
        chains: Iterable[Chain],
        known: Callable[[Trial], Outcome | None],
        told: Callable[[Outcome], None],
    ) -> None:
        self._known, self._told = known, told
        self._change = threading.Condition()
        self._waiting: deque[tuple[Chain, Trial]] = deque()
        self._busy = 0
        self.stopping = False
        for chain in chains:
            self._advance(chain, None, last=True)

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> tuple[Chain, Trial] | None:
        """Return the next trial; wait for it while others work, and return ``None`` when there will be none."""
        with self._change:
            while True:
                if self.stopping:
                    return None
                if self._waiting:
                    self._busy += 1
                    return self._waiting.popleft()
                if not self._busy:
                    return None
                self._change.wait(_WAIT)

    def give(self, chain: Chain, outcome: Outcome) -> None:
        """Say how a trial ended; what its chain wants next comes first."""
        self._tell(outcome)
        if outcome.end != "stopped":
            self._advance(chain, outcome)
        with self._change:
            self._busy -= 1
            self._change.notify_all()

    def stop(self) -> None:
        """Give out no more trials."""
        self.stopping = True

    def _advance(self, chain: Chain, outcome: Outcome | None, *, last: bool = False) -> None:
        """Put what a chain wants next among those that wait; what needs no running is answered at once."""
        while (trial := _next(chain, outcome)) is not None:
            outcome = self._known(trial)
            if outcome is None:
                with self._change:
                    (self._waiting.append if last else self._waiting.appendleft)((chain, trial))
                return
            self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        with self._change:
            self._told(outcome)


def _next(chain: Chain, outcome: Outcome | None) -> Trial | None:
    try:
        return next(chain) if outcome is None else chain.send(outcome)
    except StopIteration:
        return None


class Crew:
    """Those who run the trials of a study.

    Args:
        jobs: Runs at the same time.
        eyes: Is told how they go on.
        known: Returns how a trial ended that needs no running, else ``None``.
        told: Is called with every outcome, one at a time.
    """

    def __init__(
        self,
        jobs: int,
        eyes: Eyes,
        known: Callable[[Trial], Outcome | None],
        told: Callable[[Outcome], None],
    ) -> None:
        self._jobs, self._eyes, self._known, self._told = jobs, eyes, known, told
        self._helpers: dict[int, Helper] = {}
        self._populations = Populations()
        self._queue: Queue | None = None
        self._problem: BaseException | None = None
        self._said: set[tuple[str, str]] = set()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *problem: object) -> None:
        """End the processes beside this one."""
        for helper in list(self._helpers.values()):
            helper.end()

    def run(self, chains: Iterable[Chain]) -> bool:
        """Run chains to their end and return whether they came there; else the user stopped them."""
        queue = self._queue = Queue(chains, self._known, self._hear)
        beside = [threading.Thread(target=self._beside, args=(queue, number)) for number in range(self._jobs - 1)]
        beside = beside[: max(0, len(queue) - 1)]
        with hearing(partial(self._asked_to_stop, queue)):
            for thread in beside:
                thread.start()
            try:
                self._here(queue, threads=1 if beside else None)
                for helper in list(self._helpers.values()):
                    helper.abandon()
                while any(thread.is_alive() for thread in beside):
                    for thread in beside:
                        thread.join(_WAIT)
            except BaseException:
                queue.stop()
                for helper in list(self._helpers.values()):
                    helper.end()
                raise
        if self._problem is not None:
            raise self._problem
        return not queue.stopping

    def _here(self, queue: Queue, threads: int | None) -> None:
        while (found := queue.take()) is not None:
            chain, trial = found
            self._begun(trial)
            observer = Told(self._begin(trial), self._round(trial), lambda: self._stop(queue), lambda: queue.stopping)
            queue.give(chain, run_trial(trial, self._populations, observer, threads))

    def _beside(self, queue: Queue, number: int) -> None:
        """Hand trials to a process, in a thread of its own."""
        try:
            helper = self._helpers.get(number)
            if helper is None or not helper.alive:
                helper = self._helpers[number] = Helper()
            # Only then: a trial that waits for a process to load could have been run here in the meantime.
            while helper.alive and helper.ready() and (found := queue.take()) is not None:
                chain, trial = found
                self._begun(trial)
                queue.give(chain, helper.run(trial, self._begin(trial), self._round(trial)))
        except BaseException as error:  # a bug: it is raised again in the main thread
            self._problem = error
            queue.stop()

    # -- telling -------------------------------------------------------------------------------------------------------

    def _begun(self, trial: Trial) -> None:
        self._eyes.begin(trial, 0)

    def _begin(self, trial: Trial) -> Callable[[int], None]:
        return lambda rounds: self._eyes.begin(trial, rounds)

    def _round(self, trial: Trial) -> Callable[[int, int, dict[str, float]], None]:
        return lambda done, rounds, scores: self._eyes.round(trial, done, rounds, scores)

    def _hear(self, outcome: Outcome) -> None:
        self._told(outcome)
        self._eyes.end(outcome)
        for text in outcome.warnings:
            if (outcome.trial.arm, text) not in self._said:
                self._said.add((outcome.trial.arm, text))
                self._eyes.say(f"{outcome.trial.name}: warning: {text}")

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _stop(self, queue: Queue) -> None:
        """Finish the rounds under way, everywhere."""
        if not queue.stopping:
            queue.stop()
            self._eyes.stopping()
            for helper in list(self._helpers.values()):
                helper.stop()

    def _asked_to_stop(self, queue: Queue) -> None:
        """Finish the rounds under way when asked for the first time; end at once at the second."""
        if queue.stopping:
            raise KeyboardInterrupt
        self._stop(queue)
