"""CPU time and memory of processes, from the kernel's own counters.

A process's CPU clock (clock_getcpuclockid(3)) counts nanoseconds of run time of all its threads,
those that have ended too. /proc/PID/stat counts the same in ticks of 10 ms, and
/proc/PID/task/*/schedstat forgets threads that have ended. tests/benchmarks compares the meter
with work of a known length. To compare it with another instrument while something runs:

    perf stat -e task-clock -p PID sleep 3 & python -m benchmarks.cpu PID 3

What the kernel does in interrupts is charged to whoever runs then: on loopback TCP that is
mostly the sender.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
ELSEWHERE = "elsewhere"
_REAPED_FIELDS = (13, 14)  # cutime and cstime, counted from the state, which is field 0


def process_cpu_s(pid: int) -> float:
    """Return the CPU seconds, user and system, of a process and of its children that ended.

    Raises ProcessLookupError when there is no such process.
    """
    return _clock_s(pid) + _reaped_s(pid)


def _clock_s(pid: int) -> float:
    # CPUCLOCK_SCHED of a whole process, as the kernel's posix-timers.h builds it.
    try:
        return time.clock_gettime_ns((~pid << 3) | 2) / 1e9
    except OSError as exc:
        raise ProcessLookupError(f"process {pid} has no CPU clock: it has ended") from exc


def _reaped_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError as exc:
        raise ProcessLookupError(f"process {pid} has ended") from exc
    return sum(int(fields[each]) for each in _REAPED_FIELDS) / TICKS_PER_S


def lives(pid: int) -> bool:
    """Return whether the process runs; one that waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def tree(pid: int) -> list[int]:
    """Return `pid` and all processes below it that are alive."""
    try:
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess as exc:
        raise ProcessLookupError(f"process {pid} has ended") from exc


def tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and everything below it.

    Raises ProcessLookupError when the process itself has ended; a descendant that ends
    meanwhile counts as reaped by its parent.
    """
    total = process_cpu_s(pid)
    for child in tree(pid)[1:]:
        try:
            total += process_cpu_s(child)
        except ProcessLookupError:
            continue
    return total


def tree_memory_bytes(pid: int) -> dict[str, int]:
    """Return {"rss", "pss"} of a process and everything below it.

    pss divides shared pages between those that share them; rss counts them in each.
    """
    found = {"rss": 0, "pss": 0}
    for each in tree(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for line in lines:
            key = line.partition(":")[0].lower()
            if key in found:
                found[key] += int(line.split()[1]) * 1024
    return found


def machine_cpu_s() -> float:
    """Return the CPU seconds that all cores together were not idle since boot.

    Time that the hypervisor gave to other guests counts: it was not ours either.
    """
    used = psutil.cpu_times()
    return float(sum(used) - used.idle - used.iowait - used.guest - used.guest_nice)


class CpuMeter:
    """CPU seconds that each part uses between `start` and `stop`.

    parts: role → pid of the top of its process tree. "elsewhere" is what the whole machine used
    beyond them: the harness itself, the kernel, and whatever else runs there, which makes
    figures worse.
    """

    def __init__(self, parts: dict[str, int]) -> None:
        self._parts = parts
        self._before: dict[str, float] = {}

    def start(self) -> None:
        self._before = self._now()

    def stop(self) -> dict[str, float]:
        """Return role → CPU seconds since `start`."""
        now = self._now()
        used = {role: now[role] - before for role, before in self._before.items()}
        machine = used.pop(ELSEWHERE)
        return {**used, ELSEWHERE: max(0.0, machine - sum(used.values()))}

    def _now(self) -> dict[str, float]:
        parts = {role: tree_cpu_s(pid) for role, pid in self._parts.items()}
        return {**parts, ELSEWHERE: machine_cpu_s()}


def main() -> None:
    """Print how many cores a process and all below it kept busy for some seconds."""
    try:
        pid, seconds = int(sys.argv[1]), float(sys.argv[2])
    except (IndexError, ValueError):
        sys.exit("expected: python -m benchmarks.cpu PID SECONDS")
    meter = CpuMeter({"process": pid})
    try:
        meter.start()
        time.sleep(seconds)
        used = meter.stop()
    except ProcessLookupError as exc:
        sys.exit(str(exc))
    print(", ".join(f"{role} {cpu / seconds:.4f}" for role, cpu in used.items()), "cores")


if __name__ == "__main__":
    main()
