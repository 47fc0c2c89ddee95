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

import math
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import options
from benchmarks.cpu import ELSEWHERE
from benchmarks.machine import machine
from benchmarks.measuring import CLIENT, CONNECTIONS, Measurement, measure, notes_of_other_work
from benchmarks.picture import Dot, dots
from benchmarks.plan import CannotRun, Plan
from benchmarks.result import Result
from benchmarks.rounds import Entry, Rounds
from benchmarks.servers import TOKEN, PacedLoad, Running, Server
from benchmarks.servers.peers import PEERS
from benchmarks.servers.product import Product
from benchmarks.servers.started import Started
from benchmarks.spread import ratios, spread, text
from benchmarks.table import Column, Row, ratio

RUNS, QUICK_RUNS = 5, 2
WINDOW_S, QUICK_WINDOW_S = 6.0, 3.0
WARM_S, QUICK_WARM_S = 2.0, 1.0

LOADS: dict[str, tuple[int, float]] = {
    "512x100": (512, 100.0),
    "64x50": (64, 50.0),
    "512x50": (512, 50.0),
    "2048x25": (2048, 25.0),
}
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
    options.several(
        "--load", "loads", LOADS, f"all, with --quick {next(iter(LOADS))}", about="STREAMSxTOKENS/S"
    ),
    options.window(f"{WINDOW_S:g}, with --quick {QUICK_WINDOW_S:g}"),
    options.several(
        "--server", "servers", SERVERS, "all, with --quick grpc.aio and C++",
        about="Beside the product",
    ),
]  # fmt: skip


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
            rounds = Rounds(
                _started(plan, stack, load, result), partial(_measure, plan), result.notes, plan.say
            )
            rounds.run(plan.runs)
        _report(rounds, result, headline=name == names[0])
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


def _measure(plan: Plan, running: Running, load: PacedLoad) -> Measurement:
    warm_s, seconds = _seconds(plan)
    return measure(running, load, warm_s=warm_s, seconds=seconds, workdir=plan.workdir)


def _report(rounds: Rounds, result: Result, *, headline: bool) -> None:
    """Add a row for each entry, and the ratios if this load is the one that is quoted."""
    product_at = {each.load: each for each in rounds.entries if rounds.is_product(each)}
    for entry in sorted(rounds.entries, key=lambda each: -each.load.streams):
        row = _row(entry)
        if not rounds.is_product(entry):
            product = product_at[entry.load]
            row["ratio"] = ratios(product.us("server"), entry.us("server"))
            row["all_ratio"] = ratios(product.all_us(), entry.all_us())
        # A product that is behind is cheaper than one that keeps up: no claim from that.
        if headline and entry.server in PEERS and product.carried:
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
