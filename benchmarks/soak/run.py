"""Mixed load and random faults for as long as you like; every byte is checked.

A real sidecar, three engines in processes of their own, and clients in as many processes as there
are doors: the port (grpcio), the socket (batched) and, if it is installed, Envoy. Answers are short
and long, empty, with characters cut anywhere and with bytes that are no text. Some clients read
slowly, leave, cancel, break their calls and come back, read a stream together or once more.

Meanwhile faults are put in, one at a time, in an order that --seed gives again: the sidecar is
killed and started, or hands over to a new one; engines are killed, ended, or stopped for a while;
bells are lost; the directory is full (only root can mount a file system for that).

Engines write down each token before they commit it, clients each frame that they get. At the end
a checker that shares no code with the product compares the two: no byte lost, doubled or of
another stream, and no end that may not be. Then nothing may be left: gauges at 0, no file. In the
second half the sidecar stays, unless --fault says what is done, and its memory may not grow.

Exit code 1 says that there is a defect; each is printed, and the records are kept.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.building import BUILD
from benchmarks.machine import ROOT, machine
from benchmarks.picture import Line, lines
from benchmarks.plan import BenchmarkFailed, Plan
from benchmarks.result import Result
from benchmarks.soak.check import faults_of
from benchmarks.soak.client import GIVE_UP_S, KINDS
from benchmarks.soak.faults import FAULTS, Faults
from benchmarks.soak.memory import growth, judged
from benchmarks.soak.node import Node, wait_ended
from benchmarks.soak.record import Read, Written, written
from benchmarks.table import Column, Row

RUNS, QUICK_RUNS = 1, 1
MINUTES, QUICK_MINUTES = 10.0, 1.0
ENGINES, READERS = 3, 12
SAY_S = 5.0
SAMPLE_S = 0.5
REST_S = 20.0
KEEP_S = 12.0
"""Longer than a slow reader is behind; in a run of seconds, seconds."""
GAUGES = ("rrpa_active_streams", "rrpa_stream_queue_length", "rrpa_shm_utilization_percent")
SHOWN_DEFECTS = 20

OPTIONS = [
    click.Option(
        ["--minutes"],
        type=click.FloatRange(min=0.05),
        help=f"How long.  [default: {MINUTES:g}, with --quick {QUICK_MINUTES:g}]",
    ),
    click.Option(["--seed"], type=int, help="Of all that is random.  [default: another each time]"),
    click.Option(
        ["--fault", "faults"],
        multiple=True,
        type=click.Choice([*FAULTS, "none"]),
        help="Put in these alone; may be repeated.  [default: all]",
    ),
]


def _number(row: Row, key: str) -> str:
    return f"{row[key]:,}"


COLUMNS = [
    Column("readers", "kind", number=False),
    Column("streams", show=lambda row: _number(row, "streams")),
    Column("bytes", show=lambda row: _number(row, "bytes")),
    Column("calls", show=lambda row: _number(row, "calls")),
    Column("whole", show=lambda row: _number(row, "whole")),
    Column("failed", show=lambda row: _number(row, "failed")),
    Column("left", show=lambda row: _number(row, "left")),
    Column("defects", show=lambda row: _number(row, "defects")),
]


@dataclass
class Found:
    """What one run has found out."""

    reads: list[Read]
    engines: dict[str, Written]
    wrong: dict[str, list[str]]
    """Kind of reader → its defects."""
    others: list[str]
    """What is wrong beside what readers got."""


def run(plan: Plan) -> Result:
    """Run the soak; what is wrong is in the result's defects."""
    given = plan.extra.get("seed")
    seed = random.SystemRandom().getrandbits(32) if given is None else int(given)
    minutes = plan.extra.get("minutes") or (QUICK_MINUTES if plan.quick else MINUTES)
    names = tuple(plan.extra.get("faults") or FAULTS)
    plan.say(f"seed {seed}: {minutes:g} minutes")
    node = Node(plan.stack, plan.workdir, seed, min(KEEP_S, max(2.0, 15 * minutes)))
    for number in range(ENGINES):
        node.start_engine(number)
    node.start_clients(node.doors(), READERS)
    faults = Faults(node, random.Random(seed), tuple(each for each in names if each != "none"))
    result = Result("soak", machine(), {"minutes": minutes, "seed": seed, "faults": len(names)})
    broken = ""
    try:
        chosen = bool(plan.extra.get("faults"))
        _drive(plan, node, faults, 60 * minutes, 60 * minutes / (1 if chosen else 2))
        _end_clients(node)
    except BenchmarkFailed as exc:
        broken = str(exc)
    node.record("faults").write_text("".join(f"{fault}\n" for fault in faults.done))
    found = _compare(node, faults)
    if broken:
        found.others.append(broken)
    else:
        found.others += _rest(node)
    found.others += _tracebacks(node)
    _report(result, node, faults, found)
    if result.defects:
        result.notes.append(f"records are in {_keep(plan.workdir)}")
    return result


def _drive(plan: Plan, node: Node, faults: Faults, seconds: float, stays_s: float) -> None:
    """Put in faults, look at memory and say how it goes, until the time is over.

    stays_s: from then on the sidecar is the same, so that it lives long enough to show a leak.
    """
    begun_s = now_s = time.monotonic()
    fault_s, said_s, name = now_s + faults.next_in_s(), now_s, "nothing yet"
    while now_s - begun_s < seconds:
        node.expect_alive()
        node.sample_memory()
        if faults.names and now_s >= fault_s:
            name = faults.put_in(sidecar_stays=now_s - begun_s >= stays_s) or name
            fault_s = time.monotonic() + faults.next_in_s()
        if now_s >= said_s + SAY_S:
            said_s = now_s
            plan.say(_line(node, faults, now_s - begun_s, name))
        time.sleep(SAMPLE_S)
        now_s = time.monotonic()


def _line(node: Node, faults: Faults, passed_s: float, name: str) -> str:
    streams = sum(_lines_in(path) for path in node.workdir.glob("clients-*.record"))
    resident = node.memory[-1][2] / 1e6 if node.memory else 0.0
    return (
        f"{passed_s:4.0f} s: {streams} readers done, {len(faults.done)} faults, the last: {name};"
        f" sidecar {node.sidecars} with {resident:.0f} MB"
    )


def _lines_in(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _end_clients(node: Node) -> None:
    """Let all readers end: the last of them is some seconds from its end, or stuck."""
    for client in node.clients:
        os.kill(client.pid, signal.SIGTERM)
    for client in node.clients:
        wait_ended(client, GIVE_UP_S + 30)


def _compare(node: Node, faults: Faults) -> Found:
    engines: dict[str, Written] = {}
    for path in node.workdir.glob("engine-*.record"):
        with path.open(encoding="ascii") as file:
            engines.update(written(file))
    reads: list[Read] = []
    for path in node.workdir.glob("clients-*.record"):
        with path.open(encoding="utf-8") as file:
            reads += [Read.of_line(line) for line in file if line.endswith("\n")]
    wrong: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for read in reads:
        wrong[read.kind] += faults_of(read, engines, faults.done)
    return Found(reads, engines, wrong, [])


def _rest(node: Node) -> list[str]:
    """Wait until nothing of any stream is left; return what still is."""
    until_s = time.monotonic() + node.keep_s + REST_S
    while left := _left(node):
        if time.monotonic() > until_s:
            return left
        time.sleep(0.2)
    found = []
    for several in (node.engines, [node.sidecar]):
        for child in several:
            os.kill(child.pid, signal.SIGTERM)
        for child in several:
            try:
                wait_ended(child, 20)
            except BenchmarkFailed as exc:
                found.append(str(exc))
    found += [f"left after the end: {path.name}" for path in node.shm.glob("rrpa_*")]
    return found


def _tracebacks(node: Node) -> list[str]:
    logs = sorted(node.workdir.glob("*.log"))
    return [
        f"a traceback in {log.name}"
        for log in logs
        if log.name != "envoy.log" and "Traceback" in log.read_text("utf-8", "replace")
    ]


def _left(node: Node) -> list[str]:
    metrics = node.metrics()
    found = [f"{name} is {metrics[name]:g} at rest" for name in GAUGES if metrics[name]]
    return found + [f"left at rest: {name}" for name in node.files()]


def _report(result: Result, node: Node, faults: Faults, found: Found) -> None:
    for kind in KINDS:
        reads = [read for read in found.reads if read.kind == kind]
        result.results.append(_row(kind, reads, len(found.wrong[kind])))
    grown = growth(node.memory)
    others = found.others + grown
    result.results.append(_row("all", found.reads, sum(map(len, found.wrong.values()))))
    counts = Counter(fault.name for fault in faults.done)
    result.load |= {"faults": sum(counts.values()), "each fault": dict(counts)}
    result.load["memory"] = {"samples": _thinned(node.memory)}
    told = ", ".join(f"{name} {count}×" for name, count in counts.items())
    result.notes.append(f"faults put in: {told or 'none'}")
    if not node.own_file_system and "full directory" in FAULTS:
        result.notes.append("no full directory: only root can mount a file system of its own")
    resident = [each[2] for each in node.memory]
    result.notes.append(
        f"memory of {node.sidecars} sidecars: {min(resident) / 1e6:.0f} to"
        f" {max(resident) / 1e6:.0f} MB"
    )
    result.notes.append(judged(node.memory))
    tokens = sum(len(each.tokens) for each in found.engines.values())
    result.notes.append(f"engines wrote {tokens:,} tokens of {len(found.engines):,} streams")
    result.defects = others + [each for several in found.wrong.values() for each in several]
    result.notes += [f"DEFECT: {each}" for each in result.defects[:SHOWN_DEFECTS]]


def _row(kind: str, reads: list[Read], defects: int) -> dict[str, Any]:
    return {
        "kind": kind,
        "streams": len(reads),
        "bytes": sum(len(data) for read in reads for _, data in read.pieces),
        "calls": sum(len(read.starts) for read in reads),
        "whole": sum(read.code == "OK" and not read.left for read in reads),
        "failed": sum(read.code != "OK" and not read.left for read in reads),
        "left": sum(read.left for read in reads),
        "defects": defects,
        "ours": kind == "all",
    }


def _thinned(samples: list[tuple[float, int, int]]) -> list[list[float]]:
    """Return (seconds, life, MB) of a few hundred samples."""
    lives = {pid: number for number, pid in enumerate(dict.fromkeys(pid for _, pid, _ in samples))}
    step = max(1, len(samples) // 300)
    begun_s = samples[0][0] if samples else 0.0
    return [[round(at - begun_s, 1), lives[pid], size / 1e6] for at, pid, size in samples[::step]]


def _keep(workdir: Path) -> Path:
    """Copy the records to where a later run does not reach them."""
    kept = BUILD / f"soak-{os.getpid()}"
    kept.mkdir(parents=True)
    for pattern in ("*.record", "*.log", "*.out"):
        for path in workdir.glob(pattern):
            shutil.copy(path, kept)
    return kept.relative_to(ROOT)


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw the sidecars' memory over time."""
    samples = document["load"]["memory"]["samples"]
    lives = sorted({life for _, life, _ in samples})
    shown = [
        Line(
            f"sidecar {life + 1:.0f}" if life == lives[-1] else "",
            [at for at, each, _ in samples if each == life],
            [size for _, each, size in samples if each == life],
            ours=True,
        )
        for life in lives
    ]
    lines(
        path,
        title="Memory of the sidecar, a line for each that was started",
        x_label="seconds",
        y_label="MB",
        shown=shown,
    )
