"""The CPU meter against work whose length is known from inside the process that does it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from benchmarks.cpu import ELSEWHERE, CpuMeter, lives, tree, tree_memory_bytes

WORK_S = 0.2
# What the interpreter does around the work that it times, and the kernel's granularity for a
# thread that runs at the moment of reading.
SLACK_S = 0.02

BURN = """
import subprocess, sys, threading, time
clock = {clock}
def burn():
    until = clock() + {work}
    while clock() < until: pass
print("ready", flush=True)
for line in sys.stdin:
    {how}
    print("done", flush=True)
"""
DIRECTLY = "burn()"
IN_A_THREAD_THAT_ENDS = "each = threading.Thread(target=burn); each.start(); each.join()"
IN_A_CHILD_THAT_ENDS = (
    "subprocess.run([sys.executable, '-c', "
    "'import time\\nwhile time.process_time() < {work}: pass'])"
)

IN_A_CHILD_THAT_STAYS = (
    "each = subprocess.Popen([sys.executable, '-c', "
    "'import time\\nwhile time.process_time() < {work}: pass\\nprint()"
    "\\ntime.sleep(60)'], stdout=subprocess.PIPE); each.stdout.readline()"
)


@contextmanager
def burner(how: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that burns WORK_S of CPU for each line that it is given."""
    code = BURN.format(clock="time.thread_time", work=WORK_S, how=how.format(work=WORK_S))
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def burn_once(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    assert child.stdout.readline() == b"done\n"


@pytest.mark.parametrize("how", [DIRECTLY, IN_A_THREAD_THAT_ENDS])
def test_meter_finds_the_cpu_that_a_process_says_it_burned(how: str) -> None:
    with burner(how) as child:
        meter = CpuMeter({"burner": child.pid})
        meter.start()
        burn_once(child)
        burn_once(child)
        used = meter.stop()
    assert used["burner"] == pytest.approx(2 * WORK_S, abs=SLACK_S)


def test_children_that_ended_count_for_their_parent() -> None:
    with burner(IN_A_CHILD_THAT_ENDS) as child:
        meter = CpuMeter({"burner": child.pid})
        meter.start()
        burn_once(child)
        used = meter.stop()
    # Reaped children are counted in ticks of 10 ms; starting an interpreter counts too.
    assert WORK_S - 0.01 <= used["burner"] < WORK_S + 0.2


def test_children_that_live_count_for_their_parent_with_time_and_memory() -> None:
    with burner(IN_A_CHILD_THAT_STAYS) as child, ExitStack() as stack:
        alone_bytes = tree_memory_bytes(child.pid)["rss"]
        meter = CpuMeter({"burner": child.pid})
        meter.start()
        burn_once(child)
        used = meter.stop()
        for pid in tree(child.pid)[1:]:
            stack.callback(os.kill, pid, signal.SIGKILL)
        assert tree_memory_bytes(child.pid)["rss"] > 1.5 * alone_bytes
    assert WORK_S - 0.01 <= used["burner"] < WORK_S + 0.2


def test_a_process_that_waits_uses_nothing_and_the_machine_no_less_than_nothing() -> None:
    with burner(DIRECTLY) as idle, burner(DIRECTLY) as busy:
        meter = CpuMeter({"idle": idle.pid, "busy": busy.pid})
        meter.start()
        burn_once(busy)
        used = meter.stop()
    assert used["idle"] < 0.001
    assert used["busy"] == pytest.approx(WORK_S, abs=SLACK_S)
    assert used[ELSEWHERE] >= 0


def test_work_of_others_is_elsewhere() -> None:
    with burner(DIRECTLY) as idle, burner(DIRECTLY) as stranger:
        meter = CpuMeter({"idle": idle.pid})
        meter.start()
        burn_once(stranger)
        used = meter.stop()
    # The machine's own counters have ticks of 10 ms.
    assert used[ELSEWHERE] > WORK_S - 0.03


def test_memory_of_a_process_tree_is_counted_and_an_ended_process_is_named() -> None:
    with burner(DIRECTLY) as child:
        found = tree_memory_bytes(child.pid)
        assert 1_000_000 < found["pss"] <= found["rss"]
        assert lives(child.pid)
        child.kill()
        # Not reaped yet: it waits for that as a zombie.
        child.wait()
    assert not lives(child.pid)
    with pytest.raises(ProcessLookupError, match=str(child.pid)):
        CpuMeter({"gone": child.pid}).start()
