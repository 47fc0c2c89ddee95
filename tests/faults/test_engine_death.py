"""Engines that die, stop, or leave while 50 streams are open (R4, field-bugs.md G17).

The clock starts when the kernel has let go of the writer's lease, which the test sees for itself:
until then a process that dies may still be writing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from tests.conformance.asking import replay
from tests.conformance.callers import Answer
from tests.faults.leases import Leases
from tests.faults.streams import Streams
from tests.harness.processes import ReplayEngine, Stack, eventually

STREAMS = 50
WITHIN_S = 1.0
LOST_AFTER_S = 10.0
"""How long the sidecar waits for a lost engine's lease: it does not make use of that."""
STOPPED_S = 1.0
STALL_S = 0.5
WORD = b"word "

SILENT = replay([WORD], delay_s=60)
SPEAKING = replay([WORD], repeat=100_000, between_s=0.02)
LONG = replay([WORD], repeat=60, between_s=0.04)
SHORT = replay([WORD], repeat=60)
LATE = replay([WORD], repeat=5, delay_s=1.0)


@pytest.fixture(scope="module", params=["grpcio", "batched"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A sidecar; each test brings the engine that it loses."""
    daemon = {
        "listen_frontend": request.param,
        "stream_bytes": "256KiB",
        "shm_bytes": 2 * STREAMS * 256 * 1024,
        "engine_lost_timeout_s": LOST_AFTER_S,
        "stall_timeout_s": STALL_S,
    }
    with Stack(daemon, engine=None) as running:
        yield running


def engine(stack: Stack) -> ReplayEngine:
    return ReplayEngine(stack.daemon, capacity=STREAMS, name="mortal")


@pytest.mark.parametrize("begun", [False, True], ids=["before-first-token", "mid-stream"])
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "ends"])
def test_streams_of_an_engine_that_is_gone_fail_within_a_second_of_its_lease_with_all_it_committed(
    stack: Stack, by: signal.Signals, begun: bool
) -> None:
    daemon = stack.daemon
    with engine(stack) as mortal:
        asked = [SPEAKING if begun else SILENT] * STREAMS
        with Streams(daemon.grpc_address, asked) as streams:
            ids = streams.wait_open()
            eventually(lambda: daemon.metric("rrpa_active_streams") == STREAMS, what="all work")
            if begun:
                streams.wait_frames(3)
            with Leases(daemon.shm_dir) as leases:
                mortal.signal(by)
                answers = streams.result()
                eventually(lambda: leases.all_released, what="the kernel let go of all leases")
                took_s = []
                for stream_id, answer, ended_s in zip(ids, answers, streams.ended_s, strict=True):
                    committed = leases.committed(stream_id) if begun else b""
                    assert_failed(answer, committed)
                    took_s.append(ended_s - leases.free_s(stream_id))
            print(f"seconds from the lease to the status: at most {max(took_s):.3f}")
            assert max(took_s) < WITHIN_S
        mortal.wait()
        eventually(lambda: daemon.metric("rrpa_engines_attached") == 0, what="it is detached")
        with Streams(daemon.grpc_address, [SHORT]) as refused:
            (answer,) = refused.result()
            assert answer.code == "UNAVAILABLE"
            assert "no engine" in answer.text
    with engine(stack), Streams(daemon.grpc_address, [SHORT]) as served:
        (answer,) = served.result()
        assert (answer.code, answer.data) == ("OK", WORD * 60)
    eventually(lambda: not list(daemon.shm_dir.glob("rrpa_*")), what="no file is left")


def assert_failed(answer: Answer, committed: bytes) -> None:
    """All that was committed, then UNAVAILABLE with the offset; nothing that looks whole."""
    assert answer.code == "UNAVAILABLE", answer.text
    assert not answer.complete
    assert answer.finish is None
    assert answer.data == committed
    assert answer.trailers["rrpa-offset"] == [str(len(committed))]
    assert len(answer.text) < 200


@pytest.mark.parametrize("begun", [False, True], ids=["before-first-token", "mid-stream"])
def test_a_stopped_engine_loses_nothing_and_goes_on_where_it_was(stack: Stack, begun: bool) -> None:
    daemon = stack.daemon
    with engine(stack) as stopped:
        request = LONG if begun else LATE
        with Streams(daemon.grpc_address, [request] * STREAMS) as streams:
            streams.wait_open()
            eventually(lambda: daemon.metric("rrpa_active_streams") == STREAMS, what="all work")
            if begun:
                streams.wait_frames(3)
            stopped.signal(signal.SIGSTOP)
            with Leases(daemon.shm_dir) as leases:
                time.sleep(STOPPED_S)  # a stopped process can only be stopped over real time
                assert daemon.metric("rrpa_streams_stalled") == STREAMS
                assert streams.open == STREAMS
                assert leases.all_held
                assert daemon.metric("rrpa_engines_attached") == 1
                assert daemon.metric("rrpa_active_streams") == STREAMS
            stopped.signal(signal.SIGCONT)
            answers = streams.result()
    assert {(answer.code, answer.complete) for answer in answers} == {("OK", True)}
    assert {answer.data for answer in answers} == {WORD * (60 if begun else 5)}
    eventually(lambda: daemon.metric("rrpa_streams_stalled") == 0, what="they went on")
