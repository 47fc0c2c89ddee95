"""An engine that is killed after each numbered step of FORMAT.md, as its client sees it.

What a reader of the log sees is in tests/shm/test_death.py.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rrpa_sidecar.pb.rrpa_pb2 import ResumeStreamRequest
from rrpa_sidecar.pb.rrpa_pb2_grpc import RRPAServiceStub
from rrpa_sidecar.shm import layout
from tests.conformance.asking import replay
from tests.conformance.callers import Answer, Request, collect
from tests.faults.dying_engine import FIRST, SECOND, argument
from tests.faults.streams import Streams, channel
from tests.harness.dying import Death
from tests.harness.processes import Daemon, Process, ReplayEngine, Stack, eventually

WHOLE = FIRST + SECOND
DEATHS = {
    Death(1): b"",
    Death(2): b"",
    Death(3): b"",
    Death(4): b"",
    Death(5): b"",
    Death(6): b"",
    Death(7): b"",
    Death(8): FIRST,
    Death(9): FIRST,
    Death(10): FIRST,
    Death(11): FIRST,
    Death(6, 2, half=True): FIRST,
    Death(6, 2): FIRST,
    Death(7, 2): FIRST,
    Death(8, 2): WHOLE,
    Death(9, 2): WHOLE,
    Death(10, 2): WHOLE,
    Death(11, 2): WHOLE,
    Death(12): WHOLE,
    Death(13): WHOLE,
    Death(14): WHOLE,
    Death(15): WHOLE,
    Death(16): WHOLE,
}
"""What is committed at each death. From step 13 on the stream has ended, whatever follows."""
CALL_S = 60.0
TIMEOUT_S = 1.5
LATE_S = 1.5
"""A sweep, and a machine that other tests use too."""


@pytest.fixture(scope="module", params=["grpcio", "batched"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    daemon = {
        "listen_frontend": request.param,
        "stream_bytes": "128KiB",
        "shm_bytes": 4 * len(DEATHS) * 128 * 1024,
        "resume_window_s": TIMEOUT_S,
        "shm_timeout_s": TIMEOUT_S,
    }
    with Stack(daemon, engine=None) as running:
        yield running


def dying_engines(daemon: Daemon, *deaths: Death) -> Process:
    argv = [sys.executable, "-m", "tests.faults.dying_engine", daemon.engine_socket]
    argv += [str(daemon.shm_dir), *map(argument, deaths)]
    return Process(argv, ready="dying engines ready")


def test_a_client_gets_the_committed_prefix_and_the_code_of_every_step_at_which_an_engine_dies(
    stack: Stack,
) -> None:
    daemon = stack.daemon
    requests = [Request(model=str(death), prompt="0") for death in DEATHS]
    with (
        dying_engines(daemon, *DEATHS) as engines,
        Streams(daemon.grpc_address, requests) as streams,
    ):
        for death, answer in zip(DEATHS, streams.result(), strict=True):
            assert_as_it_died(death, answer)
        assert engines.wait() == 0
    # Logs, tables, and what was just being born.
    eventually(lambda: not list(daemon.shm_dir.glob("*")), what="no file is left")
    assert daemon.metric("rrpa_active_streams") == 0
    assert daemon.metric("rrpa_engines_attached") == 0


def test_pages_of_an_engine_that_died_at_any_step_are_reclaimed_after_the_timeout_and_never_before(
    stack: Stack,
) -> None:
    """And who comes back until then gets the same prefix, code and offset again."""
    daemon = stack.daemon
    seen: set[str] = set()
    gone_s: dict[str, float] = {}
    with (
        dying_engines(daemon, *DEATHS) as engines,
        channel(daemon.grpc_address) as opened,
        ThreadPoolExecutor(len(DEATHS)) as readers,
    ):
        stub = RRPAServiceStub(opened)
        reads = {death: readers.submit(read_twice, stub, death) for death in DEATHS}

        def all_over() -> bool:
            there = {each for each in os.listdir(daemon.shm_dir) if layout.is_name(each)}
            gone_s.update(dict.fromkeys(seen - there - gone_s.keys(), time.monotonic()))
            seen.update(there)
            return not there and all(each.done() for each in reads.values())

        eventually(all_over, 40, what="no file is left")
        assert engines.wait() == 0
    for death, read in reads.items():
        name, began_s, left_s, *answers = read.result()
        for answer in answers:
            assert_as_it_died(death, answer)
        assert name in seen or death.step < 6, death
        if name in seen:
            # The timeout begins again as each reader leaves.
            assert began_s + TIMEOUT_S <= gone_s[name] < left_s + TIMEOUT_S + LATE_S, death


def read_twice(stub: RRPAServiceStub, death: Death) -> tuple[str, float, float, Answer, Answer]:
    """Return a log's name, when its second reader came and left, and what each reader got."""
    request = Request(model=str(death), prompt="0")
    first = collect(stub.CreateStream(request, CALL_S, metadata=[("x-resumable", "1")]))
    (stream_id,) = first.headers["rrpa-stream-id"]
    began_s = time.monotonic()
    again = collect(stub.ResumeStream(ResumeStreamRequest(stream_id=stream_id), CALL_S))
    return layout.log_name(stream_id), began_s, time.monotonic(), first, again


def assert_as_it_died(death: Death, answer: Answer) -> None:
    committed = DEATHS[death]
    assert answer.data == committed, death
    assert answer.trailers["rrpa-offset"] == [str(len(committed))], death
    if death.step >= 13:
        assert (answer.code, answer.complete) == ("OK", True), death
    else:
        assert (answer.code, answer.finish) == ("UNAVAILABLE", None), (death, answer.text)


def test_a_writer_that_is_frozen_between_its_two_stores_delays_its_own_stream_alone(
    stack: Stack,
) -> None:
    """field-bugs.md G29."""
    daemon = stack.daemon
    frozen = Death(7, 2, by=signal.SIGSTOP)
    beside = replay([b"word "], repeat=50, between_s=0.01)
    with (
        ReplayEngine(daemon, capacity=20),
        dying_engines(daemon, frozen) as engines,
        Streams(daemon.grpc_address, [Request(model=str(frozen), prompt="0.5")]) as stopped,
    ):
        stopped.wait_frames(1)
        (pid,) = children_of(engines)
        eventually(lambda: state_of(pid) == "T", what="it stands between 7 and 8")
        with Streams(daemon.grpc_address, [beside] * 20) as neighbours:
            answers = neighbours.result()
        assert {answer.data for answer in answers} == {b"word " * 50}
        assert stopped.open == 1
        assert state_of(pid) == "T", "they ended while it stood"
        os.kill(pid, signal.SIGCONT)
        (answer,) = stopped.result()
    assert (answer.code, answer.data) == ("OK", WHOLE)


def children_of(process: Process) -> list[int]:
    text = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [int(word) for word in text.split()]


def state_of(pid: int) -> str:
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
