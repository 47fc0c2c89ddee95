"""CPU per token at a steady pace: N streams, each with R tokens a second.

Streams are opened and settle; then, in a window of some seconds, the CPU time of every process is
read from the kernel and divided by the messages that the client received in that window. Opening
is not measured. Servers of gRPC are called through the same Envoy; those of SSE directly.

In each round every server is measured once, one after the other, with the same client, so that
product and peers meet the same machine. A server from which less than 97 % of the due messages
come does not carry that load: it is measured with half as many streams too, or a quarter …,
beside the product at the same. A server that is behind has much to send at once and is cheaper
per token than one that keeps up; of its two ratios the one that is worse for the product is
quoted.

The product's tokens come from an engine in another process, whose CPU is a column of its own; a
peer's tokens lie in its own memory and cost it next to nothing. "all" is every process but the
client.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks.cpu import ELSEWHERE
from benchmarks.machine import machine
from benchmarks.measuring import (
    CLIENT,
    CONNECTIONS,
    Measurement,
    measure,
    notes_of_other_work,
)
from benchmarks.picture import Dot, dots
from benchmarks.plan import BenchmarkFailed, CannotRun, Plan
from benchmarks.result import Result
from benchmarks.servers import TOKEN, PacedLoad, Running, Server
from benchmarks.servers.peers import PEERS
from benchmarks.servers.product import Product
from benchmarks.servers.started import Started
from benchmarks.spread import ratios, spread, text
from benchmarks.table import Column, Row, ratio

RUNS, QUICK_RUNS = 5, 2
WINDOW_S, QUICK_WINDOW_S = 6.0, 3.0
WARM_S, QUICK_WARM_S = 2.0, 1.0

HEADLINE = (512, 100.0)
LOADS: dict[str, tuple[int, float]] = {
    "512x100": HEADLINE,
    "64x50": (64, 50.0),
    "512x50": (512, 50.0),
    "2048x25": (2048, 25.0),
}
CARRIED = 0.97
"""Share of the due tokens that must arrive for a load to count as carried."""
LEAST_STREAMS = 4
SEARCH_FROM_PER_S = {"LiteLLM": 6400.0}
"""Tokens per second of all streams where the search for a server's load begins, if a load too
large costs it a minute instead of being late. Three times what it carries on a core, so that
nothing which it could carry is left out."""
MIB = 1024 * 1024

PRODUCT = "rrpa batched"
_ALL: tuple[Server, ...] = (Product("batched"), Product("grpcio"), *PEERS)
SERVERS = {each.name: each for each in _ALL}
QUICK = ("rrpa batched", "grpc.aio", "C++ gRPC")


def _source(row: Row) -> str:
    """Show what the server's tokens come from, where that is another process."""
    found = row.get("engine_us") or row.get("upstream_us")
    return "–" if found is None else text(found)


COLUMNS = [
    Column("load", "load", number=False),
    Column("server", "server", number=False),
    Column("sidecar or server, µs/token", "server_us"),
    Column("product is", show=partial(ratio, key="ratio")),
    Column("engine or upstream", show=_source),
    Column("Envoy", "envoy_us"),
    Column("all", "all_us"),
    Column("product's all is", show=partial(ratio, key="all_ratio")),
    Column("of a core", show=lambda row: f"{row['server_cores']['median']:.0%}"),
    Column("RSS, MiB", show=lambda row: f"{row['server_rss_mib']['median']:.0f}"),
    Column("other work", show=lambda row: f"{row['elsewhere_cores']['median']:.0%}"),
    Column("pace", show=lambda row: f"{row['pace']['median']:.1%}"),
]

OPTIONS = [
    click.Option(
        ["--load", "loads"],
        multiple=True,
        type=click.Choice(list(LOADS)),
        help="STREAMSxTOKENS/S; may be repeated.  [default: all, with --quick 512x100]",
    ),
    click.Option(
        ["--window", "window_s"],
        type=click.FloatRange(min=0.1),
        help=f"Seconds to measure.  [default: {WINDOW_S:g}, with --quick {QUICK_WINDOW_S:g}]",
    ),
    click.Option(
        ["--server", "servers"],
        multiple=True,
        type=click.Choice(list(SERVERS)),
        help="Beside the product; may be repeated.  [default: all, with --quick grpc.aio and C++]",
    ),
]


@dataclass(slots=True)
class Entry:
    """One server at one load, measured once in each round.

    asked, load: what was to be carried, and what is; they differ in streams alone.
    """

    started: Started
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
    def is_product(self) -> bool:
        return self.server.name == PRODUCT

    @property
    def carried(self) -> bool:
        paces = [each.pace(self.load) for each in self.found]
        return bool(paces) and statistics.median(paces) >= CARRIED

    def halved(self) -> Entry:
        load = dataclasses.replace(self.load, streams=self.load.streams // 2)
        return Entry(self.started, self.asked, load)

    def us(self, role: str) -> list[float]:
        values = (each.us_per_token(role) for each in self.found)
        return [value for value in values if value is not None]

    def all_us(self) -> list[float]:
        return [each.all_us_per_token() for each in self.found]


def run(plan: Plan) -> Result:
    """Measure every load, and quote the first."""
    names = list(plan.extra.get("loads") or ([*LOADS][:1] if plan.quick else LOADS))
    about = {
        "streams × tokens/s": ", ".join(names),
        "token": f"{len(TOKEN)} bytes of ASCII",
        "window_s": _seconds(plan)[1],
        "rounds": plan.runs,
        "connections": CONNECTIONS,
        "quick": plan.quick,
        "shapes": {},
    }
    result = Result("paced", machine(), about)
    for name in names:
        streams, rate = LOADS[name]
        load = PacedLoad(streams, rate, seconds=sum(_seconds(plan)))
        with ExitStack() as stack:
            entries = _started(plan, stack, load, result)
            _rounds(plan, entries, result)
        _report(entries, result, headline=name == names[0])
    result.notes += notes_of_other_work(result.results)
    return result


def _seconds(plan: Plan) -> tuple[float, float]:
    """Return how long to settle, and how long to measure."""
    warm_s, seconds = (QUICK_WARM_S, QUICK_WINDOW_S) if plan.quick else (WARM_S, WINDOW_S)
    return warm_s, plan.extra.get("window_s") or seconds


def _started(plan: Plan, stack: ExitStack, load: PacedLoad, result: Result) -> list[Entry]:
    """Start all servers that can be; the others become notes."""
    entries: list[Entry] = []
    wanted = plan.extra.get("servers") or (QUICK if plan.quick else SERVERS)
    for name in dict.fromkeys([PRODUCT, *wanted]):
        server = SERVERS[name]
        plan.say(f"{load.name}: starting {name}")
        try:
            started = Started(stack, server, load, plan.workdir)
        except CannotRun as exc:
            plan.say(f"{name} is left out: {exc}")
            result.notes.append(f"{name} was left out at {load.name}: {exc}")
            continue
        result.load["shapes"][name] = server.shape
        entry = Entry(started, load, load)
        while entry.load.total_per_s > SEARCH_FROM_PER_S.get(name, math.inf):
            entry = entry.halved()
        entries.append(entry)
    return entries


def _rounds(plan: Plan, entries: list[Entry], result: Result) -> None:
    """Measure every entry once in each round; the first round adds what is not carried."""
    for entry in list(entries):
        _measure_or_drop(plan, entry, entries, 1, result)
        if entry in entries:
            _beside(plan, entry, entries)
        if not entry.carried:
            _add_carried(plan, entry, entries, result)
    for number in range(2, plan.runs + 1):
        for entry in list(entries):
            _measure_or_drop(plan, entry, entries, number, result)


def _measure_or_drop(
    plan: Plan, entry: Entry, entries: list[Entry], number: int, result: Result
) -> None:
    """Measure.

    A peer may fail, since overloaded ones refuse answers or cut them: it is started anew, and
    this load of it becomes a note. The product may not.
    """
    try:
        _measure(plan, entry, number)
    except BenchmarkFailed as exc:
        if isinstance(entry.server, Product):
            raise
        plan.say(str(exc))
        result.notes.append(f"not measured: {exc}")
        entry.started.again()
        if entry in entries:
            entries.remove(entry)
        entry.found.clear()


def _beside(plan: Plan, entry: Entry, entries: list[Entry]) -> None:
    """See that the product is measured at the load of `entry` too."""
    if not any(each.is_product and each.load == entry.load for each in entries):
        product = Entry(entries[0].started, entry.asked, entry.load)
        _measure(plan, product, 1)
        entries.append(product)


def _measure(plan: Plan, entry: Entry, number: int) -> None:
    plan.say(f"{entry.load.name}: round {number} of {plan.runs}, {entry.server.name}")
    warm_s, seconds = _seconds(plan)
    try:
        found = measure(
            entry.running, entry.load, warm_s=warm_s, seconds=seconds, workdir=plan.workdir
        )
    except BenchmarkFailed as exc:
        raise BenchmarkFailed(f"{entry.server.name} at {entry.load.name}: {exc}") from exc
    entry.found.append(found)
    if found.pace(entry.load) < CARRIED:
        # What it could not carry must not burden what comes next: gateways go on reading
        # answers for a while after their callers left.
        entry.started.again()


def _add_carried(plan: Plan, entry: Entry, entries: list[Entry], result: Result) -> None:
    """Add the same server at the largest half of its load that it carries, and the product."""
    lower = entry
    while not lower.carried:
        plan.say(f"{lower.server.name} does not carry {lower.load.name}, it is tried with half")
        lower = lower.halved()
        if lower.load.streams < LEAST_STREAMS:
            why = f"{entry.server.name} carries no load: of {LEAST_STREAMS} streams it is behind"
            if isinstance(entry.server, Product):
                raise BenchmarkFailed(why)
            result.notes.append(why)
            return
        _measure_or_drop(plan, lower, entries, 1, result)
    entries.append(lower)
    _beside(plan, lower, entries)


def _report(entries: list[Entry], result: Result, *, headline: bool) -> None:
    """Add a row for each entry, and the ratios if this load is the one that is quoted."""
    product_at = {each.load: each for each in entries if each.is_product}
    for entry in sorted(entries, key=lambda each: -each.load.streams):
        row = _row(entry)
        if not entry.is_product:
            product = product_at[entry.load]
            row["ratio"] = ratios(product.us("server"), entry.us("server"))
            row["all_ratio"] = ratios(product.all_us(), entry.all_us())
        if headline and entry.server in PEERS:
            name = entry.server.name
            # The worse for the product, if there are two.
            result.ratios[name] = max(row["ratio"]["median"], result.ratios.get(name, 0))
        if not entry.carried:
            result.notes.append(
                f"{entry.server.name} did not carry {entry.load.name}:"
                f" {row['pace']['median']:.1%} of the due messages came,"
                f" with {row['delivered']['median']:.1%} of the tokens"
            )
        result.results.append(row)


def _row(entry: Entry) -> Row:
    row: Row = {
        "server": entry.server.name,
        "ours": isinstance(entry.server, Product),
        "load": entry.load.name,
        "load_asked": entry.asked.name,
        "streams": entry.load.streams,
        "tokens_per_s": entry.load.tokens_per_s,
        "carried": entry.carried,
    }
    for role in sorted({*entry.running.parts, CLIENT}):
        row[f"{role}_us"] = spread(entry.us(role))
    row["all_us"] = spread(entry.all_us())
    row["pace"] = spread([each.pace(entry.load) for each in entry.found])
    row["delivered"] = spread([each.delivered(entry.load) for each in entry.found])
    row["server_cores"] = spread([each.cores("server") for each in entry.found])
    row["elsewhere_cores"] = spread([each.cores(ELSEWHERE) for each in entry.found])
    row["server_rss_mib"] = spread([each.rss_bytes["server"] / MIB for each in entry.found])
    return row


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw the servers at the first load, the cheapest at the top."""
    asked = document["results"][0]["load_asked"]
    rows = [row for row in document["results"] if row["load_asked"] == asked]
    # One that does not carry it is shown where it does; the product beside it is not repeated.
    shown = [row for row in rows if row["load"] == asked or not row["ours"]]
    shown.sort(key=lambda row: row["server_us"]["median"])
    dots(
        path,
        title=f"CPU per token of the server's process: {rows[0]['streams']} streams,"
        f" {rows[0]['tokens_per_s']:g} tokens/s each",
        unit="µs of CPU per token, logarithmic scale",
        shown=[Dot(_label(row), row["server_us"], ours=row["ours"]) for row in shown],
    )


def _label(row: Row) -> str:
    if row["load"] != row["load_asked"]:
        return f"{row['server']}, {row['load']}"
    return row["server"] if row["carried"] else f"{row['server']}, behind"
