"""Limits of requests (G9) and of open files (G38): refused by name, the neighbours unharmed."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rrpa_sidecar.engine import Job
from rrpa_sidecar.pb import rrpa_pb2 as pb
from tests.daemon.conftest import Hands, hands
from tests.harness.processes import Daemon, eventually

MIB = 1024 * 1024
LIMIT = 8 * MIB


@pytest.fixture
def large(daemon: Daemon) -> Iterator[Hands]:
    with hands(daemon) as held:
        yield held


def request_of(size: int) -> bytes:
    """Return a request of exactly `size` bytes."""
    prompt = "x" * (size - 20)
    for _ in range(30):
        raw = pb.CreateStreamRequest(model="test", prompt=prompt).SerializeToString()
        if len(raw) == size:
            return raw
        prompt = prompt + "x" * (size - len(raw)) if len(raw) < size else prompt[: size - len(raw)]
    raise AssertionError(size)


@pytest.mark.parametrize("size", [4 * MIB - 1, 4 * MIB, 4 * MIB + 1, LIMIT - 1, LIMIT])
def test_requests_up_to_the_limit_reach_the_engine_whole(large: Hands, size: int) -> None:
    request = request_of(size)
    call = large.call(request)
    job = large.job()
    assert job.request_bytes == request
    job.write(b"ok")
    job.finish("stop")
    assert b"".join(frame.data for frame in call) == b"ok"


@pytest.mark.parametrize("size", [LIMIT + 1, 20 * MIB])
def test_above_it_resource_exhausted_names_the_limit_and_neighbours_go_on(
    large: Hands, size: int
) -> None:
    neighbour = large.call()
    job = large.job()
    job.write(b"one ")
    rss = large.daemon.rss_bytes()
    with pytest.raises(grpc.RpcError) as caught:
        list(large.call(request_of(size)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(LIMIT) in caught.value.details()
    job.write(b"two")
    job.finish("stop")
    assert b"".join(frame.data for frame in neighbour) == b"one two"
    eventually(lambda: large.daemon.rss_bytes() < rss + 40e6, what="memory came back")


def test_the_limit_is_a_setting() -> None:
    with Daemon(max_request_bytes="1KiB") as daemon, hands(daemon) as held:
        with pytest.raises(grpc.RpcError) as caught:
            list(held.call(request_of(1025)))
        assert "1024" in caught.value.details()
        call = held.call(request_of(1024))
        held.job().finish("stop")
        assert list(call)


def test_daemon_may_open_as_many_files_as_its_hard_limit_says() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    daemon = Daemon()
    # Not a limit of our own, for the daemon to inherit: this process may have more files open.
    daemon.argv = ["prlimit", f"--nofile={min(256, hard)}:{hard}", *daemon.argv]
    with daemon:
        assert resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE) == (hard, hard)


def test_calls_above_all_limits_are_refused_by_us_and_not_by_http2() -> None:
    small = {"shm_bytes": "256KiB", "stream_bytes": "128KiB", "queue_limit": 3}
    with Daemon(**small) as daemon, hands(daemon, capacity=1) as held:
        calls = [held.call() for _ in range(400)]
        refused = [call for call in calls if call_is_over(call)]
        while len(refused) < 400 - 4:
            refused = [call for call in calls if call_is_over(call)]
        assert len(refused) == 400 - 4
        assert {call.code() for call in refused} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert all("--queue-limit" in call.details() for call in refused)
        for call in calls:
            call.cancel()
        eventually(lambda: daemon.metric("rrpa_stream_queue_length") == 0)


def call_is_over(call: grpc.Call) -> bool:
    return not call.is_active()


def outcome_of(call: Any) -> str:
    """Return what the client got: the text, or the code and the limit that was named."""
    try:
        return b"".join(frame.data for frame in call).decode()
    except grpc.RpcError as error:
        return f"{error.code().name} {'ulimit -n' in error.details()}"


def test_streams_beyond_the_limit_of_open_files_wait_or_are_refused_and_no_file_stays() -> None:
    with Daemon(stream_bytes=128 * 1024) as daemon, hands(daemon, capacity=200) as held:
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (96, 96))
        calls = [held.call() for _ in range(200)]
        jobs: list[Job] = []
        eventually(lambda: jobs.extend(held.engine.poll()) or len(jobs) == 200, what="all began")
        for job in jobs:
            job.write(b"ans")
        assert outcome_of(held.call(timeout=5)) == "RESOURCE_EXHAUSTED True"
        for job in jobs:
            job.write(b"wer")
            job.finish("stop")
        assert {outcome_of(call) for call in calls} == {"answer"}
        eventually(lambda: daemon.segments() == [], what="no file stays")
        assert daemon.metric("rrpa_shm_utilization_percent") == 0
        assert "corrupt" not in daemon.stderr
