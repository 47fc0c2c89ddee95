"""Going away: not ready first, then refusing, then ending, always with exit code 0 (R5, G45)."""

from __future__ import annotations

import random
import signal
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.daemon.conftest import REQUEST, hands
from tests.harness.processes import Daemon, eventually

READY = "rrpa.v1.RRPAService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health(channel: grpc.Channel, name: str = READY) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5).status  # type: ignore[no-any-return]


def test_drain_finishes_open_streams_and_refuses_new_ones() -> None:
    with Daemon(drain_timeout_s=20) as daemon, hands(daemon) as held:
        call = held.call()
        job = held.job()
        job.write(b"before ")
        assert next(call).data == b"before "
        daemon.signal(signal.SIGTERM)
        eventually(lambda: health(held.channel) == NOT_SERVING)
        assert health(held.channel, "") == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            list(held.call())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "draining" in caught.value.details()
        assert daemon.alive
        job.write(b"after")
        job.finish("stop")
        assert b"".join(frame.data for frame in call) == b"after"
        assert call.code() is grpc.StatusCode.OK
        assert daemon.wait() == 0
        assert not daemon.segments()


def test_streams_open_after_the_drain_timeout_end_with_unavailable_and_their_offset() -> None:
    with Daemon(drain_timeout_s=0.3) as daemon, hands(daemon) as held:
        streaming, waiting = held.call(), held.call()
        jobs = []
        eventually(lambda: jobs.extend(held.engine.poll()) or len(jobs) == 2)
        jobs[0].write("halb é".encode())
        daemon.signal(signal.SIGTERM)
        for call in (streaming, waiting):
            with pytest.raises(grpc.RpcError):
                list(call)
            assert call.code() is grpc.StatusCode.UNAVAILABLE
            assert "--drain-timeout 0.3 s" in call.details()
        offsets = sorted(dict(c.trailing_metadata())["rrpa-offset"] for c in (streaming, waiting))
        assert offsets == ["0", "7"]
        assert daemon.wait() == 0
        assert all(job.cancelled for job in jobs)
        held.engine.close()
        assert not daemon.segments()


def test_new_streams_are_taken_during_the_drain_delay_while_health_says_not_serving() -> None:
    with Daemon(drain_delay_s=30, drain_timeout_s=1) as daemon:
        with hands(daemon) as held:
            assert health(held.channel) == SERVING
            daemon.signal(signal.SIGTERM)
            eventually(lambda: health(held.channel) == NOT_SERVING)
            assert held.answer(b"still here") == b"still here"
        with hands(daemon) as held:
            assert health(held.channel) == NOT_SERVING, "a new engine does not make it ready"
            assert held.answer(b"and here") == b"and here"
        daemon.signal(signal.SIGINT)  # do not wait for the delay
        assert daemon.wait() == 0


def test_a_second_sigterm_changes_nothing_and_a_second_sigint_ends_the_wait() -> None:
    with Daemon(drain_timeout_s=60) as daemon, hands(daemon) as held:
        call = held.call()
        job = held.job()
        daemon.signal(signal.SIGTERM)
        eventually(lambda: health(held.channel) == NOT_SERVING)
        daemon.signal(signal.SIGTERM)
        job.write(b"x")
        assert next(call).data == b"x"
        daemon.signal(signal.SIGINT)
        assert daemon.wait(5) == 0
        with pytest.raises(grpc.RpcError):
            list(call)
        assert call.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_daemon_stops_at_once(sig: int) -> None:
    with Daemon() as daemon:
        begin_s = time.monotonic()
        daemon.signal(sig)
        assert daemon.wait() == 0
        assert time.monotonic() - begin_s < 1
        assert "Traceback" not in daemon.stderr


def test_a_client_that_does_not_read_cannot_hold_up_the_end() -> None:
    with Daemon(drain_timeout_s=0.2) as daemon, hands(daemon) as held:
        call = held.call()
        job = held.job()
        for _ in range(100):
            job.write(b"x" * 65536)
        assert next(call)
        begin_s = time.monotonic()
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
        assert time.monotonic() - begin_s < 3
        call.cancel()


def test_a_health_watcher_hears_of_the_drain_and_does_not_hold_it_up() -> None:
    with Daemon() as daemon, hands(daemon) as held:
        stub = health_pb2_grpc.HealthStub(held.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=READY))
        assert next(watch).status == SERVING
        begin_s = time.monotonic()
        daemon.signal(signal.SIGTERM)
        assert next(watch).status == NOT_SERVING
        assert daemon.wait() == 0
        assert time.monotonic() - begin_s < 1.5


def test_sigterm_at_any_moment_of_the_start_ends_it_cleanly(seeded: random.Random) -> None:
    for _ in range(8):
        daemon = Daemon()
        daemon.launch()
        time.sleep(seeded.uniform(0.02, 0.5))
        daemon.signal(signal.SIGTERM)
        code = daemon.wait(5)
        # Before Python runs our first line the signal's own default ends the process.
        assert code in (0, -signal.SIGTERM), daemon.stderr
        assert "Traceback" not in daemon.stderr
        assert code or not list(daemon.folder.iterdir())
        daemon.stop()


def test_requests_that_wait_in_the_queue_are_served_in_the_drain_or_told() -> None:
    with Daemon(drain_timeout_s=20) as daemon, hands(daemon, capacity=1) as held:
        first = held.call()
        job = held.job()
        second = held.call(REQUEST)
        eventually(lambda: daemon.metric("rrpa_stream_queue_length") == 1)
        daemon.signal(signal.SIGTERM)
        eventually(lambda: health(held.channel) == NOT_SERVING)
        job.finish("stop")
        assert list(first)
        later = held.job()
        later.write(b"second")
        later.finish("stop")
        assert b"".join(frame.data for frame in second) == b"second"
        assert daemon.wait() == 0
