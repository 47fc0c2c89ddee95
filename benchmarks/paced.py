"""CPU per token at a steady pace: N streams, each with R tokens a second.

Streams are opened and settle; then, in a window of some seconds, the CPU time of every process is
read from the kernel and divided by the messages that the client received in that window. Opening
is not measured. Servers of gRPC are called through the same Envoy; those of SSE directly.

In each round every server is measured once, one after the other, with the same client, so that
product and peers meet the same machine. A server that delivers less than 97 % of the tokens that
are due does not carry that load: it is measured with half as many streams, or a quarter, and
the product is measured there too, so that ratios compare equal loads.

The product's tokens come from an engine in another process, whose CPU is a column of its own; a
peer's tokens lie in its own memory and cost it next to nothing. "all" is every process but the
client.
"""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks.machine import machine
from benchmarks.measuring import Measurement, measure
from benchmarks.picture import Dot, dots
from benchmarks.plan import BenchmarkFailed, CannotRun, Plan
from benchmarks.result import Result
from benchmarks.servers import TOKEN, PacedLoad, Running, Server
from benchmarks.servers.envoy import in_front
from benchmarks.servers.peers import PEERS
from benchmarks.servers.product import Product
from benchmarks.spread import ratios, short, spread
from benchmarks.table import Column, Row

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
LEAST_STREAMS = 8

PRODUCT = "rrpa batched"
_ALL: tuple[Server, ...] = (Product("batched"), Product("grpcio"), *PEERS)
SERVERS = {each.name: each for each in _ALL}
QUICK = ("rrpa batched", "grpc.aio", "C++ gRPC")

COLUMNS = [
    Column("load", "load", number=False),
    Column("server", "server", number=False),
    Column("sidecar or server, µs/token", "server_us"),
    Column("product is", show=lambda row: _ratio(row, "ratio")),
    Column("engine", "engine_us"),
    Column("Envoy", "envoy_us"),
    Column("all", "all_us"),
    Column("product's all is", show=lambda row: _ratio(row, "all_ratio")),
    Column("share of a core", show=lambda row: f"{row['server_core_share']:.0%}"),
    Column("RSS, MiB", "server_rss_mib"),
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
        ["--server", "servers"],
        multiple=True,
        type=click.Choice(list(SERVERS)),
        help="Beside the product; may be repeated.  [default: all, with --quick grpc.aio and C++]",
    ),
]


@dataclass(slots=True)
class Entry:
    """One server at one load, measured once in each round.

    asked, load: what was to be carried, and what is.
    """

    server: Server
    asked: PacedLoad
    load: PacedLoad
    running: Running
    found: list[Measurement] = field(default_factory=list)

    def us(self, role: str) -> list[float]:
        values = (each.us_per_token(role) for each in self.found)
        return [value for value in values if value is not None]

    def all_us(self) -> list[float]:
        return [each.all_us_per_token() for each in self.found]


def run(plan: Plan) -> Result:
    """Measure."""
    names = list(plan.extra.get("loads") or ([*LOADS][:1] if plan.quick else LOADS))
    result = Result(
        "paced",
        machine(),
        {
            "streams × tokens/s": ", ".join(names),
            "token": f"{len(TOKEN)} bytes, ASCII",
            "window": f"{_seconds(plan)[1]:g} s",
            "rounds": plan.runs,
            "quick": plan.quick,
        },
    )
    result.load["shapes"] = {}
    for name in names:
        streams, rate = LOADS[name]
        with ExitStack() as stack:
            load = PacedLoad(streams, rate, seconds=sum(_seconds(plan)))
            entries = _one_load(plan, stack, load, result)
            _report(entries, result, headline=name == names[0])
    return result


def _seconds(plan: Plan) -> tuple[float, float]:
    """Return how long to settle, and how long to measure."""
    return (QUICK_WARM_S, QUICK_WINDOW_S) if plan.quick else (WARM_S, WINDOW_S)


def _chosen(plan: Plan) -> list[Server]:
    wanted = plan.extra.get("servers") or (QUICK if plan.quick else SERVERS)
    return [SERVERS[name] for name in dict.fromkeys([PRODUCT, *wanted])]


def _one_load(plan: Plan, stack: ExitStack, load: PacedLoad, result: Result) -> list[Entry]:
    """Start all servers, measure in rounds, and return what was found."""
    entries: list[Entry] = []
    for server in _chosen(plan):
        workdir = plan.workdir / f"{load.streams}-{len(entries)}"
        workdir.mkdir()
        plan.say(f"{load.name}: starting {server.name}")
        try:
            running = server.start(stack, load, workdir)
            if running.protocol == "grpc":
                running = in_front(stack, running, load, workdir)
        except CannotRun as exc:
            plan.say(f"{server.name} is left out: {exc}")
            result.notes.append(f"{server.name} was left out: {exc}")
            continue
        result.load["shapes"][server.name] = server.shape
        entries.append(Entry(server, load, load, running))
    for number in range(plan.runs):
        for entry in list(entries):
            plan.say(f"{load.name}: round {number + 1} of {plan.runs}, {entry.server.name}")
            if number == 0:
                _first(plan, entry)
                _beside(plan, entry, entries)
            else:
                entry.found.append(_measure(plan, entry))
    return entries


def _measure(plan: Plan, entry: Entry) -> Measurement:
    warm_s, seconds = _seconds(plan)
    try:
        return measure(
            entry.running, entry.load, warm_s=warm_s, seconds=seconds, workdir=plan.workdir
        )
    except BenchmarkFailed as exc:
        raise BenchmarkFailed(f"{entry.server.name} at {entry.load.name}: {exc}") from exc


def _first(plan: Plan, entry: Entry) -> None:
    """Measure at the load, or the largest half, quarter … of it that the server carries."""
    while True:
        found = _measure(plan, entry)
        if found.pace(entry.load) >= CARRIED:
            entry.found.append(found)
            return
        plan.say(
            f"{entry.server.name} does not carry {entry.load.name}: {found.pace(entry.load):.0%}"
        )
        streams = entry.load.streams // 2
        if streams < LEAST_STREAMS:
            raise BenchmarkFailed(
                f"{entry.server.name} does not carry even {entry.load.name};"
                f" {found.pace(entry.load):.0%} of the tokens arrived"
            )
        entry.load = dataclasses.replace(entry.load, streams=streams)


def _beside(plan: Plan, entry: Entry, entries: list[Entry]) -> None:
    """See that the product is measured at the load that `entry` carries."""
    product = entries[0]
    if any(each.server is product.server and each.load == entry.load for each in entries):
        return
    lower = Entry(product.server, entry.asked, entry.load, product.running)
    lower.found.append(_measure(plan, lower))
    entries.append(lower)


def _report(entries: list[Entry], result: Result, *, headline: bool) -> None:
    """Add a row for each entry, and the ratios if this load is the one that is quoted."""
    ours = {each.load: each for each in entries if each.server.name == PRODUCT}
    for entry in entries:
        row = _row(entry)
        if entry.server.name != PRODUCT:
            product = ours[entry.load]
            row["ratio"] = ratios(product.us("server"), entry.us("server"))
            row["all_ratio"] = ratios(product.all_us(), entry.all_us())
            if headline and entry.server in PEERS:
                result.ratios[entry.server.name] = row["ratio"]["median"]
        if entry.load != entry.asked and entry.server.name != PRODUCT:
            result.notes.append(
                f"{entry.server.name} did not carry {entry.asked.name}: {entry.load.name} is"
                " the most it did, and its ratio is to the product at the same load"
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
    }
    for role in sorted({*entry.running.parts, "client"}):
        row[f"{role}_us"] = spread(entry.us(role))
    row["all_us"] = spread(entry.all_us())
    row["pace"] = spread([each.pace(entry.load) for each in entry.found])
    row["server_core_share"] = row["server_us"]["median"] * entry.load.total_per_s / 1e6
    return row


def _ratio(row: Row, key: str) -> str:
    found = row.get(key)
    if found is None:
        return ""
    middle = found["median"]
    return f"1/{1 / middle:.1f}" if middle < 1 else f"{short(middle)}×"


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw the first load's servers, the cheapest at the top."""
    first = document["results"][0]["load_asked"]
    rows = [each for each in document["results"] if each["load_asked"] == first]
    seen: dict[str, Row] = {}
    for row in rows:
        seen.setdefault(row["server"], row)
    shown = sorted(seen.values(), key=lambda row: row["server_us"]["median"])
    dots(
        path,
        title=f"CPU per token of the server process, {first} tokens/s",
        unit="µs of CPU per token, logarithmic",
        shown=[Dot(_label(row), row["server_us"], ours=row["ours"]) for row in shown],
    )


def _label(row: Row) -> str:
    reduced = "" if row["load"] == row["load_asked"] else f" (at {row['load']})"
    return f"{row['server']}{reduced}"
