"""What stands between a request and its first token, besides the engine's own work.

together: 1 to 512 requests are sent in one moment, on 8 connections, and again when all are
answered. The engine does nothing for a token: its first is there as soon as it has the request,
so the time from sending to the first token's arrival is what the sidecar (and Envoy) adds, the
hand-over to the engine process and back included. The token's stamp divides it: "in" is from
sending to the commit, "out" from there to the client. grpc.aio needs no hand-over: its handler
gives the token at once.

requests: as many calls as the server can take, 64 at a time, each with one token. CPU seconds for
each call are read from the kernel; what one core opens in a second is their inverse.
"""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click

from benchmarks import options
from benchmarks.cpu import ELSEWHERE
from benchmarks.machine import machine
from benchmarks.measuring import CONNECTIONS, Measurement, asked, measure_asked, notes_of_other_work
from benchmarks.picture import Dot, dots
from benchmarks.pinning import pin, places
from benchmarks.plan import BenchmarkFailed, CannotRun, Plan
from benchmarks.result import Result
from benchmarks.servers import MODEL, TOKEN, PacedLoad, Running, Server, grpc_message
from benchmarks.servers.envoy import in_front
from benchmarks.servers.peers.grpcaio import GrpcAio
from benchmarks.servers.product import Product
from benchmarks.spread import ratios, short, spread, times
from benchmarks.table import Column, Row, median, ratio
from rrpa_sidecar.pb import rrpa_pb2

RUNS, QUICK_RUNS = 5, 2
WARM_S, WINDOW_S, QUICK_WINDOW_S = 0.5, 3.0, 1.5
GAP_S = 0.02
"""Between the rounds of one run: the server is idle when requests come together."""
TOGETHER = (1, 8, 64, 512)
AT_ONCE = 64
"""Requests that are open in `requests`."""
ROOM = PacedLoad(max(TOGETHER), 0)
WAYS = ("direct", "Envoy")
HEADLINE = 64

PRODUCT = "rrpa batched"
AS_FAST_AS_IT_CAN = {"tokens_per_second": 0, "stamp": True}
_ALL: tuple[Server, ...] = (
    Product("batched", engine=AS_FAST_AS_IT_CAN),
    Product("grpcio", engine=AS_FAST_AS_IT_CAN),
    GrpcAio(stamps="handed"),
)
SERVERS = {each.name: each for each in _ALL}


COLUMNS = [
    Column("what", "what", number=False),
    Column("way", "way", number=False),
    Column("server", "server", number=False),
    Column("p50, µs", "p50_us"),
    Column("product's is", show=partial(ratio, key="p50_ratio")),
    Column("p99", show=partial(median, key="p99_us")),
    Column("in, p50", show=partial(median, key="in_p50_us")),
    Column("out, p50", show=partial(median, key="out_p50_us")),
    Column("server, CPU µs/call", "server_us"),
    Column("product's is", show=partial(ratio, key="server_ratio")),
    Column("engine", show=partial(median, key="engine_us")),
    Column("Envoy", show=partial(median, key="envoy_us")),
    Column("other work", show=lambda row: f"{row['elsewhere_cores']['median']:.0%}"),
    Column("calls/s of a core", show=lambda row: short(1e6 / row["server_us"]["median"])),
]

OPTIONS = [
    options.window(f"{WINDOW_S:g}, with --quick {QUICK_WINDOW_S:g}"),
    options.several("--way", "ways", WAYS, "both, with --quick direct"),
    options.several("--server", "servers", SERVERS, "all", about="Beside the product"),
    click.Option(
        ["--together", "together"],
        multiple=True,
        type=click.IntRange(1, max(TOGETHER)),
        help="May be repeated.  [default: 1, 8, 64, 512; with --quick 1, 64]",
    ),
]


@dataclass(frozen=True, slots=True)
class Question:
    """How requests come: `together` of them in one moment; 0: always AT_ONCE of them open."""

    together: int

    @property
    def name(self) -> str:
        return f"{self.together} together" if self.together else f"requests, {AT_ONCE} at a time"


@dataclass(slots=True)
class Entry:
    server: Server
    running: Running
    found: dict[Question, list[Measurement]] = field(default_factory=dict)

    def values(self, question: Question, part: str, quantile: str) -> list[float]:
        return [each.report[part][quantile] for each in self.found[question]]

    def us_per_call(self, question: Question, role: str) -> list[float]:
        return [each.cpu_s[role] / each.report["ended"] * 1e6 for each in self.found[question]]


def run(plan: Plan) -> Result:
    """Measure."""
    servers, others = places()
    wanted = plan.extra.get("together") or ((1, HEADLINE) if plan.quick else TOGETHER)
    questions = [*(Question(each) for each in wanted), Question(0)]
    result = Result(
        "first-token",
        machine(),
        {
            "answer": f"one token of {len(TOKEN)} bytes after a stamp of 20",
            "connections": CONNECTIONS,
            "window": f"{_window_s(plan):g} s",
            "rounds": plan.runs,
            "processors": f"server {sorted(servers)}, engine, Envoy and client {sorted(others)}",
            "quick": plan.quick,
            "shapes": {each.name: each.shape for each in SERVERS.values()},
        },
    )
    for way in plan.extra.get("ways") or (WAYS[:1] if plan.quick else WAYS):
        with ExitStack() as stack:
            entries = _start(plan, stack, way, result)
            for number in range(plan.runs):
                for question in questions:
                    for entry in entries:
                        name = f"{question.name}, {way}"
                        plan.say(f"{name}: round {number + 1} of {plan.runs}, {entry.server.name}")
                        found = entry.found.setdefault(question, [])
                        found.append(_measure(plan, entry, question))
            for question in questions:
                _report(question, way, entries, result)
    result.notes += notes_of_other_work(result.results)
    return result


def _window_s(plan: Plan) -> float:
    return float(plan.extra.get("window_s") or (QUICK_WINDOW_S if plan.quick else WINDOW_S))


def _start(plan: Plan, stack: ExitStack, way: str, result: Result) -> list[Entry]:
    entries: list[Entry] = []
    request = rrpa_pb2.CreateStreamRequest(model=MODEL, prompt="go", max_tokens=1)
    body = grpc_message(request.SerializeToString())
    for name in dict.fromkeys([PRODUCT, *(plan.extra.get("servers") or SERVERS)]):
        server = SERVERS[name]
        workdir = plan.workdir / f"{way}-{len(entries)}"
        workdir.mkdir()
        try:
            running = server.start(stack, ROOM, workdir)
            if way == "Envoy":
                running = in_front(stack, running, ROOM, workdir)
        except CannotRun as exc:
            plan.say(f"{name} is left out: {exc}")
            result.notes.append(f"{name} was left out, {way}: {exc}")
            continue
        pin(running.parts)
        entries.append(Entry(server, dataclasses.replace(running, body=body)))
    return entries


def _measure(plan: Plan, entry: Entry, question: Question) -> Measurement:
    streams = question.together or AT_ONCE
    load = asked(
        entry.running,
        streams,
        together=question.together or None,
        gap_s=GAP_S if question.together else None,
        reopen=not question.together,
        warm_s=min(WARM_S, _window_s(plan)),
        seconds=_window_s(plan),
        stamps=True,
    )
    try:
        found = measure_asked(entry.running, load, plan.workdir, cpus=places()[1])
    except BenchmarkFailed as exc:
        raise BenchmarkFailed(f"{entry.server.name}, {question.name}: {exc}") from exc
    if not found.report["first_us"] or not found.report["ended"]:
        raise BenchmarkFailed(f"{entry.server.name}, {question.name}: no answer in the window")
    return found


def _report(question: Question, way: str, entries: list[Entry], result: Result) -> None:
    ours = next(each for each in entries if each.server.name == PRODUCT)
    for entry in entries:
        row: Row = {
            "what": question.name,
            "way": way,
            "server": entry.server.name,
            "ours": isinstance(entry.server, Product),
            "p50_us": spread(entry.values(question, "first_us", "p50")),
            "p99_us": spread(entry.values(question, "first_us", "p99")),
            "in_p50_us": spread(entry.values(question, "first_in_us", "p50")),
            "out_p50_us": spread(entry.values(question, "first_out_us", "p50")),
            "calls_per_s": spread(
                [each.report["ended"] / each.report["window_s"] for each in entry.found[question]]
            ),
        }
        row["elsewhere_cores"] = spread([each.cores(ELSEWHERE) for each in entry.found[question]])
        for role in entry.running.parts:
            row[f"{role}_us"] = spread(entry.us_per_call(question, role))
        if entry is not ours:
            row["p50_ratio"] = ratios(
                ours.values(question, "first_us", "p50"),
                entry.values(question, "first_us", "p50"),
            )
            row["server_ratio"] = ratios(
                ours.us_per_call(question, "server"), entry.us_per_call(question, "server")
            )
            if way == WAYS[0] and question.together in (0, HEADLINE):
                name, key = (
                    ("p50 of 64 together", "p50_ratio")
                    if question.together
                    else ("CPU of a call", "server_ratio")
                )
                result.ratios[f"{entry.server.name}, {name}"] = row[key]["median"]
        result.results.append(row)


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw the time to the first token for each number of requests, the first way alone."""
    way = document["results"][0]["way"]
    rows = [row for row in document["results"] if row["way"] == way and "together" in row["what"]]
    dots(
        path,
        title=f"From sending to the first token, {way}",
        unit="ms, p50, logarithmic",
        shown=[
            Dot(f"{row['what']}, {row['server']}", times(row["p50_us"], 1e-3), row["ours"])
            for row in rows
        ],
    )
