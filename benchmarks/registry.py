"""All benchmarks. A module is imported when it is run, so that the others' needs stay theirs.

A benchmark's module offers:

    RUNS, QUICK_RUNS: int           rounds without --runs
    COLUMNS: list[Column]           the table, see table.py
    OPTIONS: list[click.Option]     may be absent: options of its own, they arrive in plan.extra
    run(plan: Plan) -> Result       measures
    draw(result: dict, path: Path)  makes the picture of a result, given as its JSON

and its docstring is what `python -m benchmarks NAME --help` says.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True, slots=True)
class Benchmark:
    """summary: one line. lasts: how long a full and a quick run take on 2 cores.

    needs_client: it calls servers with the load client, which has to be compiled.
    measures: it is one of `all`.
    """

    name: str
    summary: str
    lasts: str
    module: str
    needs_client: bool = True
    measures: bool = True

    def load(self) -> ModuleType:
        return importlib.import_module(self.module)


BENCHMARKS: dict[str, Benchmark] = {
    each.name: each
    for each in (
        Benchmark(
            "paced",
            "CPU per token of engine, sidecar and Envoy at N streams × R tokens/s",
            "30 min, quick 40 s",
            "benchmarks.paced",
        ),
        Benchmark(
            "latency",
            "time from the engine's commit to the client's socket, p50 to p99.99",
            "15 min, quick 1 min",
            "benchmarks.latency",
        ),
        Benchmark(
            "first-token",
            "what is added to the engine's first token; calls that one core can open",
            "4 min, quick 40 s",
            "benchmarks.first_token",
        ),
        Benchmark(
            "burst",
            "engines as fast as they can, slow and silent clients: throughput, memory, resets",
            "15 min, quick 60 s",
            "benchmarks.burst",
        ),
        Benchmark(
            "scale",
            "CPU per token and memory from 1 to 8,192 streams, and from 1 to 4 workers",
            "12 min, quick 60 s",
            "benchmarks.scale",
        ),
        Benchmark(
            "start",
            "cold start and restart, beside importing what a gRPC server needs",
            "2 min, quick 20 s",
            "benchmarks.start",
            needs_client=False,
        ),
        Benchmark(
            "micro",
            "each stage of a token's way beside its floor: a copy, a pread, a bare write",
            "2 min, quick 15 s",
            "benchmarks.micro",
            needs_client=False,
        ),
        Benchmark(
            "soak",
            "no figure: mixed load, random faults, and a checker of every byte",
            "10 min or --minutes, quick 1 min",
            "benchmarks.soak.run",
            needs_client=False,
            measures=False,
        ),
    )
}
