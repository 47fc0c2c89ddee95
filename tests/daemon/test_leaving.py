"""A client that goes, however and whenever: the engine is told at once, all is given back (G14)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable

import grpc
import pytest

from rrpa_sidecar.config import Config
from rrpa_sidecar.engine import Job, JobCancelled
from rrpa_sidecar.frontend.grpcio.server import server_options
from tests.daemon.conftest import REQUEST, STREAM, Hands, hands, impatient
from tests.harness import raw_h2
from tests.harness.processes import eventually

KILLED = (
    "import sys, grpc\n"
    "channel = grpc.insecure_channel(sys.argv[1])\n"
    f"call = channel.unary_stream({STREAM!r})({REQUEST!r})\n"
    "call.initial_metadata(); print('open', flush=True)\n"
    "for frame in call: print('frame', flush=True)\n"
)


class Leaver:
    """One way to be a client and to leave."""

    def __init__(self, address: str):
        self.address = address

    def open(self) -> None: ...

    def leave(self) -> None: ...

    def close(self) -> None:
        """Give back what `leave` did not."""


class Cancels(Leaver):
    def open(self) -> None:
        self.channel = grpc.insecure_channel(self.address)
        self.call = self.channel.unary_stream(STREAM)(REQUEST)

    def leave(self) -> None:
        self.call.cancel()
        self.channel.close()


class ClosesItsChannel(Cancels):
    def leave(self) -> None:
        self.channel.close()


class IsKilled(Leaver):
    def open(self) -> None:
        argv = [sys.executable, "-c", KILLED, self.address]
        self.child = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == b"open\n"

    def leave(self) -> None:
        self.child.kill()
        self.child.wait()
        assert self.child.stdout is not None
        self.child.stdout.close()


class DropsItsConnection(Leaver):
    def open(self) -> None:
        self.peer = raw_h2.Connection(self.address.removeprefix("unix:"))
        self.peer.call(STREAM, REQUEST)

    def leave(self) -> None:
        self.peer.socket.close()


class ResetsItsStream(DropsItsConnection):
    def leave(self) -> None:
        self.peer.send(raw_h2.RST_STREAM, b"\0\0\0\x08", stream=1)

    def close(self) -> None:
        self.peer.socket.close()


WAYS = [Cancels, ClosesItsChannel, IsKilled, DropsItsConnection, ResetsItsStream]


def told_within_s(job: Job, leave: Callable[[], None]) -> float:
    """Call `leave`; return how long after it the engine's job was cancelled."""
    leave()
    begin_s = time.monotonic()
    eventually(lambda: job.cancelled, 2, what="the engine is told")
    return time.monotonic() - begin_s


@pytest.mark.parametrize("door", ["grpc", "envoy"])
@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_engine_is_told_within_100_ms_and_all_is_given_back(
    served: Hands, way: type[Leaver], tokens: int, door: str
) -> None:
    daemon = served.daemon
    ended = daemon.metric("rrpa_streams_total", code="CANCELLED")
    leaver = way(daemon.grpc_address if door == "grpc" else f"unix:{daemon.envoy_socket}")
    leaver.open()
    job = served.job()
    for _ in range(tokens):
        job.write(b"token ")
    if tokens:
        eventually(lambda: daemon.segments())
    took_s = told_within_s(job, leaver.leave)
    print(f"{took_s * 1000:.1f} ms")
    leaver.close()
    assert took_s < 0.1
    with pytest.raises(JobCancelled):
        job.write(b"nobody reads this")
    eventually(lambda: not daemon.segments(), what="its file is gone")
    eventually(lambda: daemon.metric("rrpa_active_streams") == 0, what="its slot is free")
    assert daemon.metric("rrpa_shm_utilization_percent") == 0
    assert daemon.metric("rrpa_streams_total", code="CANCELLED") == ended + 1
    assert served.answer(b"the next one is clean") == b"the next one is clean"


SHORTER = {
    "grpc.keepalive_time_ms": 1000,
    "grpc.keepalive_timeout_ms": 500,
    "grpc.http2.ping_timeout_ms": 500,
}


def test_client_that_vanishes_without_a_word_is_noticed_by_pings() -> None:
    """Its machine lost power: no FIN, no answer to a ping. With shorter times than shipped."""
    shipped = dict(server_options(Config()))
    assert [shipped[each] for each in SHORTER] == [20_000, 10_000, 10_000], "30 s, as documented"
    with (
        impatient(SHORTER) as daemon,
        hands(daemon) as held,
        raw_h2.Connection(daemon.grpc_address) as peer,
    ):
        peer.call(STREAM, REQUEST)
        job = held.job()
        job.write(b"token ")
        with contextlib.suppress(TimeoutError):
            while peer.frame(0.3):  # alive until all is quiet: pings are answered
                pass
        began_s = time.monotonic()  # and from here on deaf
        eventually(lambda: job.cancelled, 10, what="the engine is told")
        assert time.monotonic() - began_s > 0.5, "it was cut for another reason"
        with pytest.raises(JobCancelled):
            job.write(b"nobody reads this")
        eventually(lambda: not daemon.segments(), what="its file is gone")
        assert daemon.metric("rrpa_active_streams") == 0
        assert held.answer(b"others are served") == b"others are served"


def test_leaving_after_the_end_cancels_nothing(served: Hands) -> None:
    call = served.call()
    job = served.job()
    job.write(b"all")
    job.finish("stop")
    assert list(call)
    call.cancel()
    eventually(lambda: not served.daemon.segments())
    assert not job.cancelled
    assert served.answer() == b"answer"


def test_a_client_that_leaves_the_queue_never_reaches_the_engine(served: Hands) -> None:
    calls = [served.call() for _ in range(5)]
    jobs: list[Job] = []
    eventually(lambda: jobs.extend(served.engine.poll()) or len(jobs) == 4)
    eventually(lambda: served.daemon.metric("rrpa_stream_queue_length") == 1)
    waiting = next(call for call in calls if not any_job_of(call, jobs))
    waiting.cancel()
    eventually(lambda: served.daemon.metric("rrpa_stream_queue_length") == 0)
    for job in jobs:
        job.finish("stop")
    for call in calls:
        if call is not waiting:
            assert list(call)
    assert served.engine.poll() == []


def any_job_of(call: grpc.Call, jobs: list[Job]) -> bool:
    """Tell whether one of `jobs` is this call's."""
    stream_id = dict(call.initial_metadata())["rrpa-stream-id"]
    return any(job.stream_id == stream_id for job in jobs)
