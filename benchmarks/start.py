"""From starting the process to the line that says ready, and to the first token.

`rrpa serve` starts, an engine attaches, one request gets its first token, over Envoy's socket;
then the sidecar alone is killed and started again, while the engine stays and dials until it is
back. Beside it: how long Python takes to import what any such server in Python imports, which is
what an import can be made lazy against but not what a process can avoid.

"ready" is the wall time from the exec to the line on stdout. "cold" is the same with an empty
cache of bytecode; the kernel's page cache is warm in all of them, since only root may empty it
and the machine has other users.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc

from benchmarks.cpu import process_cpu_s
from benchmarks.machine import machine
from benchmarks.picture import Dot, dots
from benchmarks.plan import BenchmarkFailed, Plan
from benchmarks.processes import Child
from benchmarks.result import Result
from benchmarks.servers import PacedLoad, Running
from benchmarks.servers.product import Product
from benchmarks.spread import ratios, spread
from benchmarks.table import Column

RUNS, QUICK_RUNS = 10, 2
GRPC_PREFIX_BYTES = 5
RETRY_S = 0.002
IMPORTS = "import grpc.aio, uvloop, prometheus_client"
LOAD = PacedLoad(streams=1, tokens_per_s=1000.0, seconds=5.0)
COLD, WARM, ATTACHED, AGAIN, AGAIN_TOKEN = (
    "cold start to ready",
    "start to ready",
    "start of engine to first token",
    "restart to ready",
    "restart to first token, engine attaches again",
)
EMPTY = "python -c pass"

COLUMNS = [
    Column("what", "what", number=False),
    Column("wall, s", "wall_s"),
    Column("CPU, s", "cpu_s"),
    Column("times the imports", "times"),
]


def run(plan: Plan) -> Result:
    """Measure everything once in each round."""
    wall: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    for number in range(1, plan.runs + 1):
        plan.say(f"round {number} of {plan.runs}")
        for name, code in ((EMPTY, "pass"), (IMPORTS, IMPORTS)):
            _note(wall, cpu, name, _python(code))
        workdir = plan.workdir / str(number)
        workdir.mkdir()
        with ExitStack() as stack:
            for name, took in _lives(stack, workdir).items():
                _note(wall, cpu, name, took)
    result = Result(
        "start", machine(), {"rounds": plan.runs, "imports": IMPORTS, "quick": plan.quick}
    )
    for name, values in wall.items():
        row: dict[str, Any] = {"what": name, "wall_s": spread(values)}
        row["ours"] = name not in (EMPTY, IMPORTS)
        if name in cpu:
            row["cpu_s"] = spread(cpu[name])
        row["times"] = ratios(values, wall[IMPORTS])
        result.results.append(row)
    result.ratios[f"python -c '{IMPORTS}'"] = ratios(wall[WARM], wall[IMPORTS])["median"]
    return result


@dataclasses.dataclass(frozen=True, slots=True)
class Took:
    wall_s: float
    cpu_s: float | None = None


def _note(wall: dict[str, list[float]], cpu: dict[str, list[float]], name: str, took: Took) -> None:
    wall.setdefault(name, []).append(took.wall_s)
    if took.cpu_s is not None:
        cpu.setdefault(name, []).append(took.cpu_s)


def _python(code: str) -> Took:
    begun_s = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", code])
    # Not os.times(), which counts in hundredths of a second.
    _, status, used = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - begun_s
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise BenchmarkFailed(f"python -c '{code}' ended with {child.returncode}")
    return Took(wall_s, used.ru_utime + used.ru_stime)


def _lives(stack: ExitStack, workdir: Path) -> dict[str, Took]:
    """Start a sidecar thrice: with no bytecode, with, and again under an engine that stays."""
    found: dict[str, Took] = {}
    with tempfile.TemporaryDirectory(dir=workdir) as empty, ExitStack() as cold:
        found[COLD] = _start(cold, _folder(workdir, "cold"), env={"PYTHONPYCACHEPREFIX": empty})[1]
    with ExitStack() as warm:
        found[WARM] = _start(warm, _folder(workdir, "warm"))[1]

    served = _folder(workdir, "served")
    with ExitStack() as first:
        child, _ = _start(first, served)
        begun_s = time.perf_counter()
        running = _engine(stack, served)
        _first_token(running)
        found[ATTACHED] = Took(time.perf_counter() - begun_s)
        os.kill(child.pid, signal.SIGKILL)
    begun_s = time.perf_counter()
    _, found[AGAIN] = _start(stack, served, name="again")
    _first_token(running)
    found[AGAIN_TOKEN] = Took(time.perf_counter() - begun_s)
    return found


def _folder(workdir: Path, name: str) -> Path:
    made = workdir / name
    made.mkdir()
    return made


def _start(
    stack: ExitStack, folder: Path, *, name: str = "serve", env: dict[str, str] | None = None
) -> tuple[Child, Took]:
    begun_s = time.perf_counter()
    child = Product().start_sidecar(stack, LOAD, folder, folder, name=name, env=env)
    return child, Took(time.perf_counter() - begun_s, process_cpu_s(child.pid))


def _engine(stack: ExitStack, folder: Path) -> Running:
    child = Product().start_engine(stack, LOAD, folder, folder)
    return Product().running(LOAD, folder, {"engine": child.pid})


def _first_token(running: Running, limit_s: float = 20.0) -> None:
    """Ask until there is a first token: before the engine is attached, a call is refused."""
    until_s = time.monotonic() + limit_s
    request = running.body[GRPC_PREFIX_BYTES:]
    with grpc.insecure_channel(running.address) as channel:
        ask = channel.unary_stream(
            running.path, request_serializer=bytes, response_deserializer=bytes
        )
        while True:
            try:
                next(iter(ask(request, timeout=limit_s)))
                return
            except grpc.RpcError as exc:
                if time.monotonic() > until_s:
                    raise BenchmarkFailed(f"no first token within {limit_s} s: {exc}") from exc
                time.sleep(RETRY_S)


def draw(document: dict[str, Any], path: Path) -> None:
    """Draw wall times."""
    rows = document["results"]
    dots(
        path,
        title="From starting the process",
        unit="seconds",
        shown=[Dot(row["what"], row["wall_s"], ours=row["ours"]) for row in rows],
        log=False,
    )
