"""How late a token is: from its commit by the engine to the client's socket.

Each token begins with the CLOCK_MONOTONIC time at which it came into being; the client subtracts
it from the time of the read(2) that brought the token. The product's engine takes the time right
before it commits the token to shared memory. grpc.aio's tokens come into being inside the server,
when the step begins that makes them ("grpc.aio"); "grpc.aio, handed" takes the time only when the
server gets round to giving that token to the library, and so leaves out the wait for it: it is
less than its callers wait, and is shown as the least that could be claimed.

A step makes a token for every stream at once, so most of a token's time is its wait for the
others: for the engine to commit them (the product's bell rings at the end of the step), for the
server to send them. With --steps own each stream has a beat of its own.

Loads: 512x100, and 10, 50 and 80 % of what one core carries, reckoned for each server from its
own CPU per token. The server has one core to itself, engine, Envoy and client share the others:
where these cannot carry a load, the row is that of the largest they can, and the share of the
core that it shows is measured. A load whose tokens do not all arrive (pace below 97 %), or of
which half are more than ten steps late, has no latency, only a queue: at 512x100 such a server is
measured with half as many streams, or a quarter, and the product beside it with the same;
elsewhere its row says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import options
from benchmarks.cpu import ELSEWHERE
from benchmarks.machine import machine
from benchmarks.measuring import (
    CARRIED,
    CONNECTIONS,
    Measurement,
    asked,
    measure_asked,
    notes_of_other_work,
)
from benchmarks.picture import Dot, dots
from benchmarks.pinning import pin, places
from benchmarks.plan import BenchmarkFailed, CannotRun, Plan
from benchmarks.result import Result
from benchmarks.servers import TOKEN, PacedLoad, Running, Server
from benchmarks.servers.envoy import in_front
from benchmarks.servers.peers.grpcaio import GrpcAio
from benchmarks.servers.product import Product
from benchmarks.spread import ratios, short, spread, times
from benchmarks.table import Column, Row, median, ratio

RUNS, QUICK_RUNS = 5, 2
WARM_S, WINDOW_S = 1.0, 4.0

QUEUE_STEPS = 10
"""A server whose median token is late by more steps than these has a queue."""

TOKENS_PER_S = 100.0
HEADLINE, HEADLINE_STREAMS = "512x100", 512
CALIBRATION = PacedLoad(256, TOKENS_PER_S)
SHARES = {"10 %": 0.1, "50 %": 0.5, "80 %": 0.8}
OTHERS_SHARE = 0.8
"""Share of the other cores that engine and client may need for a load to be tried."""
LOADS = (HEADLINE, *SHARES)
WAYS = ("direct", "Envoy")
STEPS = ("shared", "own")
QUANTILES = ("p50", "p90", "p99", "p99.9", "p99.99")

PRODUCT, PEER = "rrpa batched", "grpc.aio"


def _servers(steps: str) -> dict[str, Server]:
    engine = {"stamp": True} | ({"own_steps": True} if steps == "own" else {})
    own = steps == "own"
    all_: tuple[Server, ...] = (
        Product("batched", engine=engine),
        Product("batched", engine=engine, tcp=True),
        Product("grpcio", engine=engine),
        GrpcAio(PEER, "made", own),
        GrpcAio(f"{PEER}, handed", "handed", own),
    )
    return {each.name: each for each in all_}


SERVERS = tuple(_servers("shared"))
BEHIND_ENVOY = (PRODUCT, "rrpa grpcio", PEER)


def _range(row: Row, key: str) -> str:
    return f"{short(row[key]['min'])}–{short(row[key]['max'])}"


COLUMNS = [
    Column("load", "load", number=False),
    Column("steps", "steps", number=False),
    Column("way", "way", number=False),
    Column("server", "server", number=False),
    Column("streams", "streams"),
    Column("core", show=lambda row: f"{row['server_core_share']['median']:.0%}"),
    *(Column(f"{name}, µs", show=partial(median, key=f"{name}_us")) for name in QUANTILES),
    Column("p50 of runs", show=lambda row: _range(row, "p50_us")),
    Column("product's p50 is", show=partial(ratio, key="p50_ratio")),
    Column("p99", show=partial(ratio, key="p99_ratio")),
    Column("other work", show=lambda row: f"{row['elsewhere_cores']['median']:.0%}"),
    Column("pace", show=lambda row: f"{row['pace']['median']:.1%}"),
]

OPTIONS = [
    options.window(f"{WINDOW_S:g}"),
    options.several("--load", "loads", LOADS, f"all, with --quick {HEADLINE}"),
    options.several("--way", "ways", WAYS, "both, with --quick direct"),
    options.several("--steps", "steps", STEPS, f"shared, and own at {HEADLINE} direct"),
    options.several("--server", "servers", SERVERS, "all", about="Beside the product"),
]


@dataclass(frozen=True, slots=True)
class Case:
    """What is compared in one go: all servers under one load, on one way."""

    load: str
    way: str
    steps: str


@dataclass(slots=True)
class Entry:
    server: Server
    load: PacedLoad
    running: Running
    found: list[Measurement] = field(default_factory=list)

    def values(self, quantile: str) -> list[float]:
        return [each.report["latency_us"][quantile] for each in self.found]

    def pace(self) -> list[float]:
        """Tokens received as a share of those that were due, for each run."""
        due = self.load.total_per_s
        return [
            each.report["latency_us"]["count"] / (due * each.report["window_s"])
            for each in self.found
        ]

    def core_share(self) -> list[float]:
        return [each.cores("server") for each in self.found]

    @property
    def carried(self) -> bool:
        """Whether the tokens came, and not from a queue: one that was filled while the streams
        opened can be drained all through the window, at more than the load's pace."""
        queue_us = QUEUE_STEPS * 1e6 / self.load.tokens_per_s
        kept_up = statistics.median(self.pace()) >= CARRIED
        return kept_up and statistics.median(self.values("p50")) <= queue_us

    def p50_from_step(self) -> list[float]:
        """Return p50 from the moment when the step began, as grpc.aio's is.

        The product's stamp is each token's own commit; before it, a token has waited for half of
        the engine's step on average. Where steps are shared, a step lasts as long as the engine
        needs for a token of each stream.
        """
        return [
            p50 + _us_per_token(each, "engine") * self.load.streams / 2
            for p50, each in zip(self.values("p50"), self.found, strict=True)
        ]


def run(plan: Plan) -> Result:
    """Measure."""
    names = _chosen(plan)
    servers, others = places()
    result = Result(
        "latency",
        machine(),
        {
            "token": f"{len(TOKEN)} bytes after a stamp of 20, ASCII",
            "tokens/s": TOKENS_PER_S,
            "connections": CONNECTIONS,
            "window": f"{_window_s(plan):g} s",
            "rounds": plan.runs,
            "processors": f"server {sorted(servers)}, engine, Envoy and client {sorted(others)}",
            "quick": plan.quick,
            "shapes": {name: _servers("shared")[name].shape for name in names},
        },
    )
    capacities: dict[str, dict[str, float]] = {}
    for number, case in enumerate(_cases(plan)):
        if case.load in SHARES and not capacities:
            capacities = _capacities(plan, names)
        with ExitStack() as stack:
            workdir = plan.workdir / f"case-{number}"
            workdir.mkdir()
            chosen = [name for name in names if case.way == "direct" or name in BEHIND_ENVOY]
            entries = _measure_case(plan, stack, workdir, case, chosen, capacities, result)
            _report(case, entries, result)
    result.notes += notes_of_other_work(result.results)
    return result


def _window_s(plan: Plan) -> float:
    return float(plan.extra.get("window_s") or WINDOW_S)


def _chosen(plan: Plan) -> list[str]:
    return list(dict.fromkeys([PRODUCT, *(plan.extra.get("servers") or SERVERS)]))


def _cases(plan: Plan) -> list[Case]:
    extra = plan.extra
    loads = extra.get("loads") or ((HEADLINE,) if plan.quick else LOADS)
    ways = extra.get("ways") or (WAYS[:1] if plan.quick else WAYS)
    steps = extra.get("steps") or STEPS[:1]
    cases = [Case(load, way, each) for each in steps for load in loads for way in ways]
    if not extra.get("steps") and not plan.quick and HEADLINE in loads and "direct" in ways:
        cases.append(Case(HEADLINE, "direct", "own"))
    return cases


def _start(
    stack: ExitStack, server: Server, load: PacedLoad, workdir: Path, way: str = "direct"
) -> Running:
    workdir.mkdir()
    running = server.start(stack, load, workdir)
    if way == "Envoy":
        running = in_front(stack, running, load, workdir)
    pin(running.parts)
    return running


def _capacities(plan: Plan, names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return, for each server, the tokens/s that one core carries, and those of the others."""
    found = {}
    _, others = places()
    for number, name in enumerate(names):
        plan.say(f"what one core carries: {name}")
        with ExitStack() as stack:
            workdir = plan.workdir / f"capacity-{number}"
            running = _start(stack, _servers("shared")[name], CALIBRATION, workdir)
            measured = _measure(plan, Entry(_servers("shared")[name], CALIBRATION, running))
        tokens = measured.report["latency_us"]["count"]
        not_others = ("server", ELSEWHERE)
        others_s = sum(cpu for role, cpu in measured.cpu_s.items() if role not in not_others)
        found[name] = {
            "server": tokens / measured.cpu_s["server"],
            "others": tokens / others_s * len(others) * OTHERS_SHARE,
        }
    return found


def _load(case: Case, capacity: dict[str, float] | None, seconds: float = WINDOW_S) -> PacedLoad:
    if case.load == HEADLINE or capacity is None:
        streams = HEADLINE_STREAMS
    else:
        # Envoy costs the other cores about as much again as engine and client together.
        others = capacity["others"] / (2 if case.way == "Envoy" else 1)
        streams = round(min(SHARES[case.load] * capacity["server"], others) / TOKENS_PER_S)
    return PacedLoad(max(1, streams), TOKENS_PER_S, seconds=WARM_S + seconds)


def _measure_case(
    plan: Plan,
    stack: ExitStack,
    workdir: Path,
    case: Case,
    names: Sequence[str],
    capacities: dict[str, dict[str, float]],
    result: Result,
) -> list[Entry]:
    """Start all servers and measure each once in every round."""
    entries: list[Entry] = []
    for number, name in enumerate(names):
        server = _servers(case.steps)[name]
        load = _load(case, capacities.get(name), _window_s(plan))
        try:
            running = _start(stack, server, load, workdir / str(number), case.way)
        except CannotRun as exc:
            plan.say(f"{name} is left out: {exc}")
            result.notes.append(f"{name} was left out at {case.load}, {case.way}: {exc}")
            continue
        entries.append(Entry(server, load, running))
    for number in range(plan.runs):
        for entry in list(entries):
            plan.say(
                f"{case.load} {case.way}, {case.steps} steps: round {number + 1} of {plan.runs},"
                f" {entry.server.name}"
            )
            if number == 0 and case.load == HEADLINE:
                _first(plan, entry, entries)
            else:
                entry.found.append(_measure(plan, entry))
    return entries


def _first(plan: Plan, entry: Entry, entries: list[Entry]) -> None:
    """Measure at the load, or at the largest half, quarter … of it that the server carries."""
    while True:
        entry.found = [_measure(plan, entry)]
        if entry.carried or entry.load.streams == 1:
            break
        plan.say(f"{entry.server.name} does not carry {entry.load.name}, it is tried with half")
        entry.load = replace(entry.load, streams=entry.load.streams // 2)
    product = entries[0]
    if not any(each.server is product.server and each.load == entry.load for each in entries):
        beside = Entry(product.server, entry.load, product.running)
        beside.found.append(_measure(plan, beside))
        entries.append(beside)


def _measure(plan: Plan, entry: Entry) -> Measurement:
    seconds = _window_s(plan)
    load = asked(
        entry.running,
        entry.load.streams,
        warm_s=min(WARM_S, seconds),
        seconds=seconds,
        stamps=True,
    )
    try:
        found = measure_asked(entry.running, load, plan.workdir, cpus=places()[1])
    except BenchmarkFailed as exc:
        raise BenchmarkFailed(f"{entry.server.name} at {entry.load.name}: {exc}") from exc
    if found.report["latency_us"] is None:
        raise BenchmarkFailed(f"{entry.server.name} at {entry.load.name}: no token had a stamp")
    return found


def _report(case: Case, entries: list[Entry], result: Result) -> None:
    ours_at = {each.load: each for each in entries if each.server.name == PRODUCT}
    for entry in entries:
        ours = ours_at.get(entry.load)
        row: Row = {
            "load": case.load,
            "steps": case.steps,
            "way": case.way,
            "server": entry.server.name,
            "ours": isinstance(entry.server, Product),
            "streams": entry.load.streams,
            "server_core_share": spread(entry.core_share()),
            "pace": spread(entry.pace()),
            "carried": entry.carried,
            "elsewhere_cores": spread([each.cores(ELSEWHERE) for each in entry.found]),
        }
        row |= {f"{name}_us": spread(entry.values(name)) for name in QUANTILES}
        row["max_us"] = spread(entry.values("max"))
        for role in entry.running.parts:
            row[f"{role}_us"] = spread([_us_per_token(each, role) for each in entry.found])
        if ours and entry.server is not ours.server and entry.carried and ours.carried:
            for name in ("p50", "p99"):
                mine = ours.values(name)
                if name == "p50" and case.steps == "shared" and entry.server.name == PEER:
                    mine = ours.p50_from_step()
                row[f"{name}_ratio"] = ratios(mine, entry.values(name))
                if case == Case(HEADLINE, "direct", "shared"):
                    result.ratios[f"{entry.server.name}, {name}"] = row[f"{name}_ratio"]["median"]
        if (
            case.load == HEADLINE
            and entry.load.streams < HEADLINE_STREAMS
            and entry.server.name != PRODUCT
        ):
            result.notes.append(
                f"{entry.server.name} did not carry 512x100 ({case.way}, {case.steps} steps):"
                f" {entry.load.name} is the most it did, and its ratio is to the product at that"
            )
        if not entry.carried:
            result.notes.append(
                f"{entry.server.name} did not carry {case.load} ({case.way}, {case.steps} steps):"
                f" {statistics.median(entry.pace()):.0%} of the tokens arrived, half of them later"
                f" than {statistics.median(entry.values('p50')) / 1e3:.0f} ms: these are the times"
                " of a queue"
            )
        result.results.append(row)


def _us_per_token(found: Measurement, role: str) -> float:
    tokens: int = found.report["latency_us"]["count"]
    return found.cpu_s[role] / tokens * 1e6


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw p50 and p99 of the first case's servers."""
    first = document["results"][0]
    keys = ("load", "way", "steps")
    rows = [row for row in document["results"] if all(row[key] == first[key] for key in keys)]
    rows.sort(key=lambda row: float(row["p50_us"]["median"]))
    dots(
        path,
        title=f"From commit to the client's socket, {first['load']} tokens/s, {first['way']}",
        unit="ms, logarithmic",
        shown=[
            Dot(_label(row, name), times(row[f"{name}_us"], 1e-3), ours=row["ours"])
            for name in ("p50", "p99")
            for row in rows
        ],
    )


def _label(row: Row, quantile: str) -> str:
    whole = row["load"] == HEADLINE and row["streams"] == HEADLINE_STREAMS
    fewer = "" if whole else f" (at {row['streams']} streams)"
    return f"{row['server']}{fewer}, {quantile}"
