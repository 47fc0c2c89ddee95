"""A stopped engine is reported and robbed of nothing; a forked one is dead when it is dead."""

from __future__ import annotations

import os
import signal
import time

from tests.faults.stage import Puppet, caller_of
from tests.harness.processes import Daemon, eventually

TIMEOUT_S = 0.5


def test_stopped_engine_is_reported_within_its_timeout_and_goes_on_where_it_was() -> None:
    with (
        Daemon(stall_timeout_s=TIMEOUT_S) as daemon,
        caller_of(daemon) as caller,
        Puppet(daemon) as puppet,
    ):
        eventually(lambda: puppet.do("serving"), what="attached")
        begun, unborn = caller.call(), caller.call()
        jobs = dict.fromkeys(puppet.take(2))
        assert puppet.write(begun.stream_id, b"before, ") == 8
        assert begun.read(8) == b"before, "
        puppet.signal(signal.SIGSTOP)
        began_s = time.monotonic()
        eventually(lambda: daemon.metric("rrpa_streams_stalled") == 2, what="both are reported")
        took_s = time.monotonic() - began_s
        assert TIMEOUT_S * 0.5 < took_s < TIMEOUT_S + 3, took_s  # others may have the machine
        time.sleep(TIMEOUT_S)
        assert daemon.metric("rrpa_active_streams") == 2
        assert daemon.metric("rrpa_engines_attached") == 1
        for job in jobs:
            assert daemon.stderr.count(f"stream {job} is stalled") == 1
        puppet.signal(signal.SIGCONT)
        for call in (begun, unborn):
            puppet.write(call.stream_id, b"after")
        eventually(lambda: daemon.metric("rrpa_streams_stalled") == 0, what="they go on")
        for call in (begun, unborn):
            puppet.do("finish", job=call.stream_id)
            assert call.outcome()[:2] == (b"after", "OK")


def test_killed_engine_is_dead_though_a_child_of_its_lives_on() -> None:
    """The child has every descriptor of its parent's, the connection too (G28)."""
    with Daemon() as daemon, caller_of(daemon) as caller, Puppet(daemon) as puppet:
        eventually(lambda: puppet.do("serving"), what="attached")
        calls = [caller.call() for _ in range(3)]
        jobs = puppet.take(3)
        for job in jobs[:2]:
            puppet.write(job, b"committed")
        child = puppet.do("fork")
        try:
            for job in jobs[:2]:  # the child has closed its copies: nothing of ours is free
                assert puppet.write(job, b"committed") == 18
            time.sleep(0.3)
            assert daemon.metric("rrpa_active_streams") == 3
            puppet.kill()
            for call in calls:
                wanted = b"committed" * 2 if call.stream_id in jobs[:2] else b""
                assert call.outcome()[:2] == (wanted, "UNAVAILABLE")
            os.kill(child, 0)  # it lives, and keeps the connection open
            eventually(lambda: daemon.metric("rrpa_engines_attached") == 0)
            eventually(lambda: list(daemon.shm_dir.iterdir()) == [], what="no file stays")
        finally:
            os.kill(child, signal.SIGKILL)
