"""One measurement: a load on a running server, and the CPU of every process meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu import ELSEWHERE, CpuMeter, lives, tree_memory_bytes
from benchmarks.load.client import Load, LoadClient, LoadError, require_clean
from benchmarks.plan import BenchmarkFailed
from benchmarks.servers import PacedLoad, Running

CONNECTIONS = 8
CLIENT = "client"
CARRIED = 0.97
"""Share of the due tokens that must arrive for a load to count as carried: one that is behind has
no latency, only a queue that grows, and sends more at once, which is cheaper per token."""
QUIET_CORES = 0.15
"""What a quiet machine uses beside the parts that are measured."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What happened in a steady window.

    report: the client's, see LoadClient.report.
    cpu_s: role → CPU seconds in the window; "client" is the load client, "elsewhere" is what
      the machine did besides.
    rss_bytes: role → resident memory at its end, with all streams open.
    protocol: see Running. An event of "sse" holds one token, which the servers are asked for
      before (peers/chat.py), and the bytes that are counted there are its JSON.
    """

    report: dict[str, Any]
    cpu_s: dict[str, float]
    rss_bytes: dict[str, int]
    protocol: str = "grpc"

    @property
    def messages(self) -> int:
        return int(self.report["messages"])

    def us_per_token(self, role: str) -> float | None:
        """Return the CPU of a part in µs for each message received; None without that part."""
        return self.cpu_s[role] / self.messages * 1e6 if role in self.cpu_s else None

    def all_us_per_token(self) -> float:
        """Return the same for all parts of the server together."""
        used = sum(cpu for role, cpu in self.cpu_s.items() if role not in (CLIENT, ELSEWHERE))
        return used / self.messages * 1e6

    def cores(self, role: str) -> float:
        """Return how many cores a part kept busy."""
        return self.cpu_s[role] / float(self.report["window_s"])

    def pace(self, load: PacedLoad) -> float:
        """Return the messages received as a share of the tokens that were due."""
        return self.messages / self._due(load)

    def delivered(self, load: PacedLoad) -> float:
        """Return the tokens received as a share of those due; a message may carry several."""
        if self.protocol == "sse":
            return self.pace(load)
        return int(self.report["bytes"]) / len(load.token) / self._due(load)

    def _due(self, load: PacedLoad) -> float:
        return load.total_per_s * float(self.report["window_s"])


def measure(
    running: Running,
    load: PacedLoad,
    *,
    warm_s: float,
    seconds: float,
    workdir: Path,
    opening: int | None = None,
) -> Measurement:
    """Open `load.streams` streams, let them settle for `warm_s`, and measure for `seconds`.

    opening: requests that may wait for their first token at once; None leaves it to the client.

    Every message is compared with what it must be: the token, at the offset that follows.
    Raises BenchmarkFailed when the load cannot be run, or one answer was wrong or reset.
    """
    options = {"warm_s": warm_s, "seconds": seconds, "opening": opening}
    load_of_client = asked(running, load.streams, text=load.token, **options)
    measured = measure_asked(running, load_of_client, workdir)
    if (open_at_end := measured.report["streams_open"]) != load.streams:
        raise BenchmarkFailed(
            f"expected {load.streams} answers under way when the window ended, found"
            f" {open_at_end}: {running.address} ended the others early"
        )
    return measured


def asked(running: Running, streams: int, **options: Any) -> Load:
    """Return the client's load of `streams` requests to a server; `options` are fields of Load."""
    return Load(
        connect=running.address,
        protocol=running.protocol,
        path=running.path,
        body=running.body,
        headers=running.headers,
        # HTTP/1.1 has one answer on a connection at a time.
        connections=streams if running.protocol == "sse" else min(CONNECTIONS, streams),
        streams=streams,
        offsets=running.protocol == "grpc",
        **options,
    )


def measure_asked(
    running: Running, load: Load, workdir: Path, *, cpus: set[int] | None = None
) -> Measurement:
    """Run `load` on a server; the client may use `cpus`, None means all.

    Raises BenchmarkFailed when the load cannot be run, or one answer was wrong or reset.
    """
    try:
        with LoadClient(load, workdir, cpus=cpus) as client:
            client.wait_ready()
            meter = CpuMeter({**running.parts, CLIENT: client.pid})
            client.begin()
            meter.start()
            client.wait_end()
            cpu_s = meter.stop()
            rss = {role: tree_memory_bytes(pid)["rss"] for role, pid in running.parts.items()}
            report = client.report()
            require_clean(report)
    except LoadError as exc:
        ended = [f"{role} has ended" for role, pid in running.parts.items() if not lives(pid)]
        raise BenchmarkFailed("; ".join([str(exc), *ended])) from exc
    if not report["messages"]:
        raise BenchmarkFailed(
            f"no message arrived in {report['window_s']} s from {running.address}"
        )
    return Measurement(report, cpu_s, rss, running.protocol)


def notes_of_other_work(rows: list[dict[str, Any]]) -> list[str]:
    """Return a note when the machine was busy with something else.

    rows: each with the spread `elsewhere_cores`.
    """
    busiest = max(row["elsewhere_cores"]["median"] for row in rows)
    if busiest <= QUIET_CORES:
        return []
    return [
        f"the machine was not quiet: up to {busiest:.1f} cores were busy with something else,"
        " so these figures are worth little"
    ]
