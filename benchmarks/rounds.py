"""Rounds in which every server is measured once, each at a load that it carries.

In the first round a server that does not carry what is asked is tried with half as many streams,
a quarter …, and the product is measured beside it at the same. What was measured stays: a server
that is behind is a row too.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.measuring import CARRIED, Measurement
from benchmarks.plan import BenchmarkFailed
from benchmarks.servers import PacedLoad, Running, Server
from benchmarks.servers.product import Product

LEAST_STREAMS = 4


class Runner(Protocol):
    """A server that runs; `Started` is one."""

    @property
    def server(self) -> Server: ...
    @property
    def running(self) -> Running: ...
    def again(self) -> None:
        """End it and start it anew."""
        ...


Measure = Callable[[Running, PacedLoad], Measurement]
"""Raises BenchmarkFailed when the load cannot be run, or one answer was wrong or reset."""


@dataclass(slots=True)
class Entry:
    """One server at one load, measured once in each round.

    asked, load: what was to be carried, and what is; they differ in streams alone.
    """

    started: Runner
    asked: PacedLoad
    load: PacedLoad
    found: list[Measurement] = field(default_factory=list)

    @property
    def server(self) -> Server:
        return self.started.server

    @property
    def running(self) -> Running:
        return self.started.running

    @property
    def carried(self) -> bool:
        paces = [each.pace(self.load) for each in self.found]
        return bool(paces) and statistics.median(paces) >= CARRIED

    def halved(self) -> Entry:
        load = dataclasses.replace(self.load, streams=self.load.streams // 2)
        return Entry(self.started, self.asked, load)

    def us(self, role: str) -> list[float]:
        """Return µs of CPU per token of a part, one for each round; none without that part."""
        values = (each.us_per_token(role) for each in self.found)
        return [value for value in values if value is not None]

    def all_us(self) -> list[float]:
        return [each.all_us_per_token() for each in self.found]


class Rounds:
    """Measures entries in turns.

    entries: the product's first; grows and shrinks as loads are carried or fail.
    notes: what was not measured, and why.
    say: prints progress.
    """

    def __init__(
        self, entries: list[Entry], measure: Measure, notes: list[str], say: Callable[[str], None]
    ) -> None:
        self.entries = entries
        self._product = entries[0].started
        self._measure_once = measure
        self._notes = notes
        self._say = say

    def run(self, runs: int) -> None:
        """Measure every entry `runs` times.

        Raises:
          BenchmarkFailed: the product failed, or carries nothing.
        """
        for entry in list(self.entries):
            self._measure_or_drop(entry, 1, runs)
            if entry in self.entries:
                self._beside(entry)
            if not entry.carried:
                self._add_carried(entry, runs)
        self._more_rounds(list(self.entries), runs)
        # The first round may have been carried, and the median of all of them is not.
        for entry in list(self.entries):
            others = (each for each in self.entries if each.started is entry.started)
            carried_first = entry.found[0].pace(entry.load) >= CARRIED
            if carried_first and not any(each.carried for each in others):
                before = len(self.entries)
                self._add_carried(entry, runs)
                self._more_rounds(self.entries[before:], runs)

    def _more_rounds(self, some: list[Entry], runs: int) -> None:
        """Measure `some` of the entries in all rounds but the first."""
        for number in range(2, runs + 1):
            for entry in some:
                if entry in self.entries:
                    self._measure_or_drop(entry, number, runs)

    def is_product(self, entry: Entry) -> bool:
        return entry.started is self._product

    def _measure_or_drop(self, entry: Entry, number: int, runs: int) -> None:
        """Measure.

        A peer may fail, since overloaded ones refuse answers or cut them: it is started anew, and
        this load of it becomes a note. The product may not, with either front end.
        """
        self._say(f"{entry.load.name}: round {number} of {runs}, {entry.server.name}")
        try:
            self._measure(entry)
        except BenchmarkFailed as exc:
            if isinstance(entry.server, Product):
                raise
            self._say(str(exc))
            self._notes.append(f"not measured: {exc}")
            entry.started.again()
            if entry in self.entries:
                self.entries.remove(entry)
            entry.found.clear()

    def _measure(self, entry: Entry) -> None:
        try:
            found = self._measure_once(entry.running, entry.load)
        except BenchmarkFailed as exc:
            raise BenchmarkFailed(f"{entry.server.name} at {entry.load.name}: {exc}") from exc
        entry.found.append(found)
        if found.pace(entry.load) < CARRIED:
            # What it could not carry must not burden what comes next: gateways go on reading
            # answers for a while after their callers left.
            entry.started.again()

    def _beside(self, entry: Entry) -> None:
        """See that the product is measured at the load of `entry` too."""
        if not any(self.is_product(each) and each.load == entry.load for each in self.entries):
            product = Entry(self._product, entry.asked, entry.load)
            self._say(f"{entry.load.name}: {product.server.name} beside {entry.server.name}")
            self._measure(product)
            self.entries.append(product)

    def _add_carried(self, entry: Entry, runs: int) -> None:
        """Add the same server at the largest half of its load that it carries, and the product."""
        lower = entry
        while not lower.carried:
            self._say(f"{lower.server.name} does not carry {lower.load.name}: half of it is tried")
            lower = lower.halved()
            if lower.load.streams < LEAST_STREAMS:
                name = entry.server.name
                why = f"{name} carries no load: it is behind with {LEAST_STREAMS} streams"
                if isinstance(entry.server, Product):
                    raise BenchmarkFailed(why)
                self._notes.append(why)
                return
            self._measure_or_drop(lower, 1, runs)
        self.entries.append(lower)
        self._beside(lower)
