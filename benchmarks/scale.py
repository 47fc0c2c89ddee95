"""CPU per token and memory from 1 to 8,192 streams, and from 1 to 4 workers.

Each stream has 10 tokens a second, all in one step, through Envoy, so that a step is one write
whatever the number. A worker is a whole sidecar with sockets and an engine of its own; Envoy
gives each its share of the calls. Servers are started afresh for each measurement, with room for
just these streams, and in each round every size is measured once. When the client has left, every
log has to be gone, or the run has failed.

Memory is the sidecar's resident memory with all streams open; per stream it is what it has grown
beyond that of a single stream.
"""

from __future__ import annotations

import dataclasses
import shutil
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from benchmarks.cpu import ELSEWHERE
from benchmarks.machine import machine
from benchmarks.measuring import CARRIED, Measurement, measure, notes_of_other_work
from benchmarks.picture import Line, lines
from benchmarks.plan import BenchmarkFailed, Plan
from benchmarks.processes import private_prefix
from benchmarks.result import Result
from benchmarks.servers import PacedLoad, Running
from benchmarks.servers.envoy import in_front
from benchmarks.servers.product import STREAM_BYTES, Product
from benchmarks.spread import ratios, spread
from benchmarks.table import Column

RUNS, QUICK_RUNS = 3, 1
WINDOW_S, QUICK_WINDOW_S, WARM_S = 5.0, 2.0, 1.0
TOKENS_PER_S = 10.0
SMALL, LARGE = 256, 2048
"""CPU per token at the second, divided by that at the first, is what `ratios` has."""
SIZES = (1, 8, 64, SMALL, 512, 1024, LARGE, 4096, 8192)
QUICK_SIZES = (1, SMALL, LARGE)
WORKERS = (2, 3, 4)
QUICK_WORKERS = (2,)
MIB = 1024 * 1024
ENGINE_STREAMS = 8192
"""Of one engine, which opens two files for each: more than that, and a second engine shares them,
so that a limit of 20,000 open files is enough for 10,000 streams."""

OPENING = 1024
"""A first token waits for the engine's next step, 0.1 s: the client's own 64 at a time would need
16 s for 10,000."""

LEAVING_S = 30.0
"""Time for the streams of a client that has left to be ended, by 8,192 cancellations or fewer."""

OPTIONS = [
    click.Option(
        ["--streams", "streams"],
        multiple=True,
        type=click.IntRange(min=1),
        help="Measure this number, on one worker, beside 1 stream; may be repeated."
        "  [default: 1 to 8192, and workers]",
    ),
]

COLUMNS = [
    Column("streams", "streams", names=True),
    Column("workers", "workers", names=True),
    Column("sidecars, µs/token", "server_us"),
    Column("engines", "engine_us"),
    Column("Envoy", "envoy_us"),
    Column("sidecars, of a core", show=lambda row: f"{row['server_cores']['median']:.1%}"),
    Column("RSS, MiB", "rss_mib"),
    Column("KB/stream", show=lambda row: _kb(row)),
    Column("pace", show=lambda row: f"{row['pace']['median']:.1%}"),
    Column("other work", show=lambda row: f"{row['elsewhere_cores']['median']:.0%}"),
]


@dataclass(slots=True)
class Size:
    streams: int
    workers: int = 1
    found: list[Measurement] = field(default_factory=list)

    @property
    def load(self) -> PacedLoad:
        return PacedLoad(self.streams, TOKENS_PER_S, seconds=WINDOW_S + WARM_S)

    def us(self, role: str) -> list[float]:
        """Return µs per token, of all workers together."""
        return [_sum(each.cpu_s, role) / each.messages * 1e6 for each in self.found]

    def cores(self, role: str) -> list[float]:
        return [_sum(each.cpu_s, role) / float(each.report["window_s"]) for each in self.found]

    @property
    def carried(self) -> bool:
        return statistics.median(each.pace(self.load) for each in self.found) >= CARRIED

    def rss_bytes(self) -> list[float]:
        return [_sum(each.rss_bytes, "server") for each in self.found]


def run(plan: Plan) -> Result:
    """Measure all sizes, round by round."""
    sizes = _sizes(plan)
    window_s = QUICK_WINDOW_S if plan.quick else WINDOW_S
    result = Result(
        "scale",
        machine(),
        {
            "tokens/s of each stream": TOKENS_PER_S,
            "window_s": window_s,
            "rounds": plan.runs,
            "through": "Envoy, one connection to each worker",
            "quick": plan.quick,
        },
    )
    for number in range(1, plan.runs + 1):
        for size in sizes:
            plan.say(
                f"round {number} of {plan.runs}: streams {size.streams}, workers {size.workers}"
            )
            workdir = plan.workdir / f"{number}-{size.streams}-{size.workers}"
            with ExitStack() as stack:
                running, logs = _started(stack, size, workdir)
                found = measure(
                    running,
                    size.load,
                    warm_s=WARM_S,
                    seconds=window_s,
                    workdir=workdir,
                    opening=OPENING,
                )
                size.found.append(found)
                _wait_gone(logs)
    _report(sizes, result)
    return result


def _report(sizes: list[Size], result: Result) -> None:
    """Add a row for each size, and the ratio of LARGE to SMALL if both keep up."""
    one = next(size for size in sizes if size.streams == 1)
    for size in sizes:
        result.results.append(_row(size, one))
        if not size.carried:
            pace = result.results[-1]["pace"]["median"]
            result.notes.append(
                f"{size.streams} streams on {size.workers} workers are behind: {pace:.0%} of the"
                " due messages came, and those that wait are cheaper"
            )
    alone = {size.streams: size for size in sizes if size.workers == 1 and size.carried}
    if SMALL in alone and LARGE in alone:
        compared = ratios(alone[LARGE].us("server"), alone[SMALL].us("server"))
        result.ratios[f"itself with {SMALL} streams, at {LARGE}"] = compared["median"]
        result.load[f"{LARGE} streams against {SMALL}"] = compared
    result.notes += notes_of_other_work(result.results)


def _sizes(plan: Plan) -> list[Size]:
    if chosen := plan.extra.get("streams"):
        return [Size(streams) for streams in sorted({1, *chosen})]
    sizes = [Size(streams) for streams in (QUICK_SIZES if plan.quick else SIZES)]
    return sizes + [Size(LARGE, workers) for workers in (QUICK_WORKERS if plan.quick else WORKERS)]


def _started(stack: ExitStack, size: Size, workdir: Path) -> tuple[Running, list[Path]]:
    """Start the workers, each with an engine, and Envoy before them; return also logs' places."""
    parts: dict[str, int] = {}
    addresses, logs = [], []
    share = -(-size.streams // size.workers)
    # Envoy deals calls out in turns, from a start of its choice: one more may come to a worker.
    load = dataclasses.replace(size.load, streams=share + (size.workers > 1))
    engines = -(-load.streams // ENGINE_STREAMS)
    product = Product(
        engine={"capacity": -(-load.streams // engines)},
        serve={"shm_bytes": load.streams * STREAM_BYTES},
    )
    for number in range(size.workers):
        folder = workdir / str(number)
        folder.mkdir(parents=True)
        shm = Path(tempfile.mkdtemp(prefix=private_prefix(), dir="/dev/shm"))
        stack.callback(shutil.rmtree, shm, ignore_errors=True)
        logs.append(shm)
        parts[f"server{number}"] = product.start_sidecar(stack, load, folder, shm).pid
        for engine in range(engines):
            name = f"engine{number}-{engine}"
            parts[name] = product.start_engine(stack, load, folder, shm, name=name).pid
        running = product.running(size.load, folder, parts)
        addresses.append(running.address)
    return in_front(stack, running, size.load, workdir, more=addresses[:-1]), logs


def _wait_gone(logs: list[Path]) -> None:
    """Return when no stream has a log any more; its client has left."""
    due_s = time.monotonic() + LEAVING_S
    while left := [
        log for place in logs for log in place.glob("rrpa_*") if "table" not in log.name
    ]:
        if time.monotonic() > due_s:
            raise BenchmarkFailed(
                f"expected no log {LEAVING_S:g} s after the client has left, found {len(left)},"
                f" {left[0].name} among them"
            )
        time.sleep(0.01)


def _sum(found: dict[str, Any], role: str) -> float:
    """Return the sum over all parts of a role, "server0" and "server1" of "server"."""
    parts = [value for name, value in found.items() if name.startswith(role)]
    if not parts:
        raise BenchmarkFailed(f"no part of {role} among {sorted(found)}")
    return float(sum(parts))


def _row(size: Size, one: Size) -> dict[str, Any]:
    row: dict[str, Any] = {
        "streams": size.streams,
        "workers": size.workers,
        "tokens_per_s": size.load.total_per_s,
        "carried": size.carried,
        "ours": size.streams in (SMALL, LARGE) and size.workers == 1,
        "server_cores": spread(size.cores("server")),
        "rss_mib": spread([rss / MIB for rss in size.rss_bytes()]),
        "pace": spread([each.pace(size.load) for each in size.found]),
        "elsewhere_cores": spread(size.cores(ELSEWHERE)),
    }
    for role in ("server", "engine", "envoy"):
        row[f"{role}_us"] = spread(size.us(role))
    if size.streams > one.streams:
        pairs = zip(size.rss_bytes(), one.rss_bytes(), strict=True)
        more = [(rss - size.workers * single) / size.streams / 1e3 for rss, single in pairs]
        row["kb_per_stream"] = spread(more)
    return row


def _kb(row: dict[str, Any]) -> str:
    return f"{row['kb_per_stream']['median']:.1f}" if "kb_per_stream" in row else "–"


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw CPU per token over the number of streams."""
    rows = [row for row in document["results"] if row["workers"] == 1]
    streams = [row["streams"] for row in rows]
    parts = (("sidecar", "server_us"), ("engine", "engine_us"), ("Envoy", "envoy_us"))
    lines(
        path,
        title=f"CPU per token, {TOKENS_PER_S:g} tokens/s in each stream",
        x_label="streams",
        y_label="µs of CPU per token",
        shown=[
            Line(name, streams, [row[key]["median"] for row in rows], ours=name == "sidecar")
            for name, key in parts
        ],
        log_x=True,
        log_y=True,
    )
