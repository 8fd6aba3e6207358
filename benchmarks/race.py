"""Rounds in which every contender makes a few starts in a row, in a new random order each time; then medians, and ratios within rounds.

A few in a row, because a start leaves work behind that the kernel does later (a network namespace takes it milliseconds to take apart):
whoever came next would pay for it. So a contender waits for its own leftovers only, and between two contenders there is a pause.

The ratio of two medians on a shared machine says more about the neighbours than about the programs. So ratios are taken within rounds:
whatever disturbs lasts longer than a round and hits both. The median of those ratios comes with the interval that holds it with 95 %
probability (order statistics, no assumption about the distribution). Beside it stands the same of the quickest starts of each round:
neighbours only ever add, so on a crowded machine that is nearer to what the programs themselves cost.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.contender import Contender, ContenderFailed

BURST = 5
PAUSE = 0.02
MOST_PATIENT = 0.5


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of paired ratios, and its 95 % interval."""

    median: float
    low: float
    high: float


@dataclass(slots=True)
class Result:
    """One contender: the seconds of its starts, one list per round. ``failed``: why there are none, or no more."""

    name: str
    note: str = ""
    rounds: list[list[float]] = field(default_factory=list)
    failed: str = ""

    @property
    def seconds(self) -> list[float]:
        return [second for burst in self.rounds for second in burst]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def p90(self) -> float:
        return quantile(self.seconds, 0.9)

    @property
    def least(self) -> float:
        return min(self.seconds)


def quantile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def paired(over: Result, under: Result, of: Callable[[list[float]], float] = statistics.median) -> Ratio:
    """``over`` / ``under``, round by round. ``of``: what stands for the starts of a round, their median or their ``min``."""
    ratios = sorted(of(a) / of(b) for a, b in zip(over.rounds, under.rounds, strict=False))
    n = len(ratios)
    reach = math.ceil(0.98 * math.sqrt(n))
    return Ratio(statistics.median(ratios), ratios[max(0, n // 2 - reach)], ratios[min(n - 1, n // 2 + reach)])


class Progress:
    """A line on stderr now and then, rewritten in place on a terminal."""

    def __init__(self, what: str, total: int) -> None:
        self._what, self._total, self._last = what, total, time.monotonic()
        self._started = self._last

    def step(self, done: int) -> None:
        now = time.monotonic()
        if now - self._last < (0.5 if sys.stderr.isatty() else 10):
            return
        self._last = now
        left = (now - self._started) / done * (self._total - done)
        end = "\r" if sys.stderr.isatty() else "\n"
        print(f"  {self._what}: round {done} of {self._total}, {left:.0f} s left   ", end=end, file=sys.stderr, flush=True)

    def done(self) -> None:
        if sys.stderr.isatty():
            print(" " * 78, end="\r", file=sys.stderr, flush=True)


class Patience:
    """Waits, within a budget of seconds, for moments in which nobody else runs: no neighbour, no kernel thread tidying up after the last
    contender."""

    def __init__(self, budget: float) -> None:
        self.left = budget
        self.waited = 0.0

    def settle(self, pause: float) -> None:
        time.sleep(pause)
        before = time.monotonic()
        until = before + MOST_PATIENT
        while self.left > 0 and before < until and any(_others_run() for _ in range(3)):
            time.sleep(0.05)
            took = time.monotonic() - before
            self.left, self.waited, before = self.left - took, self.waited + took, before + took


def _others_run() -> bool:
    """Is anything but us runnable right now? proc_loadavg(5)"""
    time.sleep(0.001)
    with open("/proc/loadavg") as line:
        return int(line.read().split()[3].partition("/")[0]) > 1


def race(
    what: str,
    contenders: Sequence[Contender],
    starts: int,
    *,
    burst: int = BURST,
    seed: int = 0,
    limit: float = 120.0,
    patience: float = 0.0,
) -> list[Result]:
    """``starts`` of every contender, ``burst`` in a round. Whoever fails is out. ``limit``: seconds after which no new round begins;
    ``patience``: of these, seconds to wait for quiet moments."""
    results = {c.name: Result(c.name, c.note) for c in contenders}
    running, rounds = list(contenders), max(1, math.ceil(starts / burst))
    order, progress, patient = random.Random(seed), Progress(what, rounds), Patience(patience)
    until = time.monotonic() + limit
    for number in range(1, rounds + 1):
        order.shuffle(running)
        for contender in tuple(running):
            patient.settle(PAUSE)
            try:
                results[contender.name].rounds.append(contender.run(burst))
            except ContenderFailed as error:
                results[contender.name].failed = f"round {number}: {error}"
                running.remove(contender)
        progress.step(number)
        if time.monotonic() > until and number < rounds:
            print(f"  {what}: stopped after {number} of {rounds} rounds, {limit:.0f} s are over", file=sys.stderr)
            break
    progress.done()
    if patient.waited > 1:
        print(f"  {what}: waited {patient.waited:.0f} s for quiet moments", file=sys.stderr)
    return list(results.values())
