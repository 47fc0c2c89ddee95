"""Answers that an engine writes as fast as it can, and clients that read fast, slowly, or not.

100 answers of 200 MB are asked for at once, through Envoy: by clients that read as fast as they
can, by clients that read 1 MB/s, and by clients that read nothing for a minute. A normal client,
8 streams of 100 tokens/s, is measured alone before, among them all while the answers are written,
and among those that are left when the fast ones have theirs. Every byte is compared; one wrong
byte, one reset or one connection ended is a failed run, not a figure.

The product's engine writes all 20 GB into its logs at once. Where /dev/shm cannot hold them beside
the rest of the machine, the logs lie in a directory on disk, and the result says so: the sidecar
reads them by the same pread, from the page cache, and the disk makes it slower if anything. The
peer's answers are made while they are sent: it holds back its generator, where the product never
holds back an engine, and so needs no room for them.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.cpu import CpuMeter, tree_memory_bytes
from benchmarks.load.client import Load, LoadClient, LoadError, require_clean
from benchmarks.machine import machine
from benchmarks.measuring import asked
from benchmarks.picture import Dot, dots
from benchmarks.plan import BenchmarkFailed, Plan
from benchmarks.processes import private_prefix, start
from benchmarks.result import Result
from benchmarks.servers import MODEL, PacedLoad, Running, grpc_message, grpc_running
from benchmarks.servers.envoy import in_front
from benchmarks.servers.product import Product
from benchmarks.spread import ratios, spread
from benchmarks.table import Column
from rrpa_sidecar.pb import rrpa_pb2

RUNS, QUICK_RUNS = 2, 1
MIB = 1024 * 1024
PRODUCT, PEER = "rrpa batched", "grpc.aio"
NORMAL = "normal"
NORMAL_STREAMS, NORMAL_RATE = 8, 100.0
SPARE = 1.3
"""So much more memory than the logs take must be free for them to lie in /dev/shm."""
LIMIT_S = 600.0
SAMPLE_S = 0.05
LARGE_WINDOW = 2**30
SEED = 1
SHARES = (80, 10, 9, 1)
"""Words of each script. One of all scripts, letter by letter, is what no decoder can foresee: it
costs the product 2.6 ns of CPU a byte instead of 0.6, and is like nothing that anyone writes."""


@dataclass(frozen=True, slots=True)
class Size:
    """fast, slow, silent: clients of each kind. bytes_per_s: pace of a slow one."""

    fast: int
    slow: int
    silent: int
    answer_bytes: int
    bytes_per_s: float
    silent_s: float
    normal_s: float

    @property
    def clients(self) -> int:
        return self.fast + self.slow + self.silent

    @property
    def total_bytes(self) -> int:
        return self.clients * self.answer_bytes


FULL = Size(8, 46, 46, 200_000_000, 1e6, 60.0, 30.0)
QUICK = Size(4, 8, 8, 16_000_000, 2e6, 4.0, 4.0)

COLUMNS = [
    Column("server", "server", number=False),
    Column("fast clients, MB/s", "fast_mb_per_s"),
    Column("CPU, s/GB", "cpu_s_per_gb"),
    Column("grew by, MiB", "grew_mib"),
    Column("Envoy by", "envoy_grew_mib"),
    Column("normal p99 alone, ms", "alone_p99_ms"),
    Column("among them", "among_p99_ms"),
    Column("times", "p99_times"),
    Column("among slow ones", "slow_p99_ms"),
    Column("times", "slow_p99_times"),
    Column("resets", "resets"),
]


@dataclass(slots=True)
class Entry:
    server: str
    running: Running
    normal: Running
    fast_mb_per_s: list[float] = field(default_factory=list)
    cpu_s_per_gb: list[float] = field(default_factory=list)
    grew_mib: list[float] = field(default_factory=list)
    envoy_grew_mib: list[float] = field(default_factory=list)
    alone_p99_ms: list[float] = field(default_factory=list)
    among_p99_ms: list[float] = field(default_factory=list)
    slow_p99_ms: list[float] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)


def run(plan: Plan) -> Result:
    """Measure product and peer in turns."""
    size = QUICK if plan.quick else FULL
    text = pattern()
    load = {**dataclasses.asdict(size), "rounds": plan.runs, "quick": plan.quick}
    result = Result("burst", machine(), load)
    entries: dict[str, Entry] = {}
    for number in range(1, plan.runs + 1):
        for name, make in ((PRODUCT, _product), (PEER, _peer)):
            plan.say(f"round {number} of {plan.runs}, {name}")
            workdir = plan.workdir / f"{number}-{name[0]}"
            workdir.mkdir()
            with ExitStack() as stack:
                running, normal = make(stack, size, text, workdir, result)
                entry = entries.setdefault(name, Entry(name, running, normal))
                entry.running, entry.normal = running, normal
                _measure(entry, size, text, workdir)
    for entry in entries.values():
        row: dict[str, Any] = {"server": entry.server, "ours": entry.server == PRODUCT}
        for each in dataclasses.fields(entry)[3:]:
            row[each.name] = spread(getattr(entry, each.name))
        row["p99_times"] = ratios(entry.among_p99_ms, entry.alone_p99_ms)
        row["slow_p99_times"] = ratios(entry.slow_p99_ms, entry.alone_p99_ms)
        result.results.append(row)
    ours, theirs = entries[PRODUCT].cpu_s_per_gb, entries[PEER].cpu_s_per_gb
    result.ratios[PEER] = ratios(ours, theirs)["median"]
    return result


def repeats(size: Size, text: bytes) -> int:
    """Return how often `text` makes an answer."""
    return -(-size.answer_bytes // len(text))


def whole_bytes(report: dict[str, Any], streams: int, answer_bytes: int) -> int:
    """Return the bytes that a client received. Raises BenchmarkFailed unless it has all answers."""
    total = report["total"]
    found = (total["ended"], total["bytes"])
    if found != (streams, streams * answer_bytes):
        raise BenchmarkFailed(
            f"expected {streams} whole answers of {answer_bytes} bytes, found {found[0]} ended"
            f" and {found[1]} bytes in {report['window_s']:.0f} s"
        )
    return streams * answer_bytes


def pattern() -> bytes:
    """Return about 60 KB of words with characters of 1 to 4 bytes that no part of it repeats."""
    rng = random.Random(SEED)
    scripts = ("etaoinshrdlu" * 4 + "äöüß", "оеаинтсрвл", "漢字文章言語書物世界", "🚂🌍")
    words = (rng.choices(scripts, SHARES)[0] for _ in range(6_500))
    return " ".join("".join(rng.choices(each, k=rng.randint(2, 10))) for each in words).encode()


# --- Servers ---------------------------------------------------------------------------------


def _product(
    stack: ExitStack, size: Size, text: bytes, workdir: Path, result: Result
) -> tuple[Running, Running]:
    repeat = repeats(size, text)
    stream_bytes = (repeat * len(text) // MIB + 2) * MIB
    streams = size.clients + 2 * NORMAL_STREAMS
    serve = {"stream_bytes": stream_bytes, "shm_bytes": streams * stream_bytes}
    shm = _directory_for_logs(stack, size, workdir, result)
    load = PacedLoad(streams, tokens_per_s=0, token=text)
    product = Product(serve=serve, engine={"capacity": streams})
    server = product.start_sidecar(stack, load, workdir, shm)
    engine = product.start_engine(stack, load, workdir, shm)
    paced = PacedLoad(NORMAL_STREAMS, NORMAL_RATE)
    stamped = Product(engine={"model": NORMAL, "stamp": True})
    second = stamped.start_engine(stack, paced, workdir, shm, name="normal")
    parts = {"server": server.pid, "engine": engine.pid, "engine, normal": second.pid}
    running = in_front(stack, product.running(load, workdir, parts), load, workdir)
    return _asked(running, MODEL, repeat), _asked(running, NORMAL, 10**6)


def _directory_for_logs(stack: ExitStack, size: Size, workdir: Path, result: Result) -> Path:
    """Return a directory in memory if it holds all the answers, else one on disk."""
    room = min(psutil.virtual_memory().available, shutil.disk_usage("/dev/shm").free)
    if size.total_bytes * SPARE < room:
        parent = "/dev/shm"
    else:
        parent = str(workdir)
        free = shutil.disk_usage(parent).free
        if free < size.total_bytes * SPARE:
            raise BenchmarkFailed(
                f"{size.total_bytes / 1e9:.1f} GB of answers fit neither into memory"
                f" ({room / 1e9:.1f} GB free) nor on disk at {parent} ({free / 1e9:.1f} GB)"
            )
        note = f"the logs lay on disk: {size.total_bytes / 1e9:.1f} GB did not fit into memory"
        if note not in result.notes:
            result.notes.append(note)
    made = tempfile.mkdtemp(prefix=private_prefix(), dir=parent)
    stack.callback(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _peer(
    stack: ExitStack, size: Size, text: bytes, workdir: Path, result: Result
) -> tuple[Running, Running]:
    file = workdir / "text"
    file.write_bytes(text)
    address = f"unix:{workdir}/grpcaio.sock"
    module = "benchmarks.servers.peers.grpcaio_burst_server"
    argv = [sys.executable, "-m", module, address, str(file)]
    child = start(stack, argv, name="grpcaio", workdir=workdir, ready="ready")
    load = PacedLoad(size.clients + 2 * NORMAL_STREAMS, tokens_per_s=0)
    made = in_front(stack, grpc_running(address, {"server": child.pid}, load), load, workdir)
    return _asked(made, MODEL, repeats(size, text)), _asked(made, NORMAL, 10**6)


def _asked(running: Running, model: str, tokens: int) -> Running:
    request = rrpa_pb2.CreateStreamRequest(model=model, prompt="go", max_tokens=tokens)
    return dataclasses.replace(running, body=grpc_message(request.SerializeToString()))


# --- Measuring -------------------------------------------------------------------------------


def _measure(entry: Entry, size: Size, text: bytes, workdir: Path) -> None:
    try:
        _burst(entry, size, text, workdir)
    except LoadError as exc:
        raise BenchmarkFailed(f"{entry.server}: {exc}") from exc


def _burst(entry: Entry, size: Size, text: bytes, workdir: Path) -> None:
    parts = entry.running.parts
    entry.alone_p99_ms.append(_normal_p99_ms(entry, size, workdir))
    before = {role: _rss(parts[role]) for role in ("server", "envoy")}
    meter = CpuMeter(parts)
    meter.start()
    with _peaks({role: parts[role] for role in before}) as peaks, ExitStack() as clients:
        kinds = {
            "silent": _load(entry, text, size.silent, pause_s=size.silent_s),
            "slow": _load(entry, text, size.slow, read_bytes_per_s=size.bytes_per_s),
            "fast": _load(entry, text, size.fast),
        }
        # Half of the silent ones have windows for minutes: with them only the socket fills.
        kinds["silent"] = dataclasses.replace(
            kinds["silent"], window_bytes=LARGE_WINDOW, connection_window_bytes=LARGE_WINDOW
        )
        running = {
            kind: clients.enter_context(LoadClient(load, workdir)) for kind, load in kinds.items()
        }
        for client in running.values():
            client.begin()
        entry.among_p99_ms.append(_normal_p99_ms(entry, size, workdir))
        reports = {"fast": _report(running.pop("fast"))}
        entry.slow_p99_ms.append(_normal_p99_ms(entry, size, workdir))
        for kind, client in running.items():
            reports[kind] = _report(client)
    cpu_s = meter.stop()["server"]
    answer_bytes = repeats(size, text) * len(text)
    received = sum(
        whole_bytes(reports[kind], load.streams, answer_bytes) for kind, load in kinds.items()
    )
    fast = reports["fast"]
    entry.fast_mb_per_s.append(fast["bytes"] / fast["window_s"] / 1e6)
    entry.cpu_s_per_gb.append(cpu_s / (received / 1e9))
    entry.resets.append(sum(each["resets"] + each["goaways"] for each in reports.values()))
    entry.grew_mib.append((peaks["server"] - before["server"]) / MIB)
    entry.envoy_grew_mib.append((peaks["envoy"] - before["envoy"]) / MIB)


def _report(client: LoadClient) -> dict[str, Any]:
    """Wait for the end of a client's answers, which must all have been right."""
    client.wait_end()
    report = client.report()
    require_clean(report)
    return report


def _load(entry: Entry, text: bytes, streams: int, **settings: Any) -> Load:
    load = asked(
        entry.running, streams, warm_s=0, seconds=LIMIT_S, until_ended=True, text=text, **settings
    )
    # One that does not read must not hold up the answers of others.
    return dataclasses.replace(load, connections=streams)


def _normal_p99_ms(entry: Entry, size: Size, workdir: Path) -> float:
    load = asked(entry.normal, NORMAL_STREAMS, warm_s=0.5, seconds=size.normal_s, stamps=True)
    with LoadClient(dataclasses.replace(load, connections=1), workdir) as client:
        client.begin()
        client.wait_end()
        report = client.report()
        require_clean(report)
    return float(report["latency_us"]["p99"]) / 1e3


def _rss(pid: int) -> int:
    return tree_memory_bytes(pid)["rss"]


@contextmanager
def _peaks(pids: dict[str, int]) -> Iterator[dict[str, int]]:
    """Yield role → the most resident memory that its process had meanwhile."""
    peaks, over = dict.fromkeys(pids, 0), threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLE_S):
            for role, pid in pids.items():
                peaks[role] = max(peaks[role], _rss(pid))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        over.set()
        thread.join()


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw how much the servers have grown."""
    dots(
        path,
        title="Memory that answers written at once cost the server",
        unit="MiB of growth",
        shown=[
            Dot(row["server"], row["grew_mib"], ours=row["ours"]) for row in document["results"]
        ],
        log=False,
    )
