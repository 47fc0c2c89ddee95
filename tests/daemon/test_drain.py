"""Going away: not ready, then doors closed, then streams ended; exit code 0 (R5, G45, G53)."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.daemon.conftest import REQUEST, STREAM, hands
from tests.harness import raw_h2
from tests.harness.processes import Daemon, eventually

READY = "rrpa.v1.RRPAService"
LIST_MODELS = f"/{READY}/ListModels"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def health(channel: grpc.Channel, name: str = READY) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5).status  # type: ignore[no-any-return]


def listens(address: str) -> bool:
    """Tell whether somebody takes connections at `host:port` or at a socket's path."""
    with contextlib.suppress(OSError), contextlib.closing(_dialled(address)):
        return True
    return False


def _dialled(address: str) -> socket.socket:
    if address.startswith("/"):
        dialled = socket.socket(socket.AF_UNIX)
        dialled.connect(address)
        return dialled
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)))


def doors(daemon: Daemon) -> list[str]:
    """Every address of a daemon that takes connections."""
    return [
        *daemon.grpc_addresses,
        daemon.metrics_address,
        daemon.engine_socket,
        daemon.envoy_socket,
    ]


def end_of(call: grpc.Call) -> tuple[grpc.StatusCode, str]:
    """Return the code and the text with which a call fails."""
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    return caught.value.code(), caught.value.details()


@pytest.mark.parametrize("kind", ["grpcio", "batched"])
def test_drain_finishes_open_streams_and_refuses_new_ones(kind: str) -> None:
    with Daemon(drain_timeout_s=20, listen_frontend=kind) as daemon, hands(daemon) as held:
        call = held.call()
        job = held.job()
        job.write(b"before ")
        assert next(call).data == b"before "
        daemon.signal(signal.SIGTERM)
        eventually(lambda: not any(map(listens, doors(daemon))), what="all doors are closed")
        # One that crosses the GOAWAY on its way is CANCELLED, by gRPC's core.
        eventually(lambda: end_of(held.call())[0] is grpc.StatusCode.UNAVAILABLE)
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
        offsets: list[str] = []
        for call in (streaming, waiting):
            code, text = end_of(call)
            offset = dict(call.trailing_metadata())["rrpa-offset"]
            assert code is grpc.StatusCode.UNAVAILABLE
            assert f"after {offset} bytes" in text
            assert "--drain-timeout 0.3 s; try again only if you had none" in text
            offsets.append(offset)
        assert sorted(offsets) == ["0", "7"]
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


def test_calls_that_came_in_before_the_sigterm_are_answered_and_not_dropped() -> None:
    """gRPC's core hands over one at a time and would end the others with CANCELLED."""
    with Daemon() as daemon, grpc.insecure_channel(daemon.grpc_address) as channel:
        ask = channel.unary_unary(LIST_MODELS)
        ask(b"", timeout=5)
        daemon.signal(signal.SIGSTOP)
        answers = [ask.future(b"", timeout=20) for _ in range(50)]
        time.sleep(0.1)  # they are on their way, and nobody reads them
        daemon.signal(signal.SIGTERM)
        daemon.signal(signal.SIGCONT)
        codes = {answer.code() for answer in answers}
        assert grpc.StatusCode.CANCELLED not in codes
        assert daemon.wait() == 0


def test_a_second_sigterm_changes_nothing_and_a_second_sigint_ends_the_wait() -> None:
    with Daemon(drain_timeout_s=60) as daemon, hands(daemon) as held:
        call = held.call()
        job = held.job()
        daemon.signal(signal.SIGTERM)
        eventually(lambda: not listens(daemon.grpc_address))
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


@pytest.mark.parametrize("where", ["grpc", "envoy"])
@pytest.mark.parametrize("kind", ["grpcio", "batched"])
def test_the_order_is_not_ready_then_the_delay_then_goaway_then_the_end(
    kind: str, where: str
) -> None:
    """What a caller with one connection and one stream sees, frame by frame (G53)."""
    chosen = {"listen_frontend": kind, "envoy_frontend": kind}
    with Daemon(drain_delay_s=0.4, drain_timeout_s=1.5, **chosen) as daemon, hands(daemon) as held:
        address = daemon.grpc_address if where == "grpc" else daemon.envoy_socket
        with raw_h2.Connection(address) as peer:
            stream = peer.call(STREAM, REQUEST)
            held.job().write(b"half")
            assert peer.until(raw_h2.DATA) is not None
            began_s = time.monotonic()
            daemon.signal(signal.SIGTERM)
            eventually(lambda: health(held.channel) == NOT_SERVING)
            assert health(held.channel, "") == SERVING
            assert all(map(listens, doors(daemon)))
            assert peer.until(raw_h2.GOAWAY, raw_h2.DATA, raw_h2.HEADERS).kind == raw_h2.GOAWAY  # type: ignore[union-attr]
            assert time.monotonic() - began_s >= 0.4, "after the delay"
            eventually(lambda: not any(map(listens, doors(daemon))), 1.4, "all doors are closed")
            frames = peer.answer(stream)
            assert time.monotonic() - began_s >= 1.9, "after the timeout"
            assert raw_h2.field(frames, b"grpc-status") == b"14"
            assert raw_h2.field(frames, b"rrpa-offset") == b"4"
        assert daemon.wait() == 0
        assert "Traceback" not in daemon.stderr


def test_files_of_sockets_are_gone_when_the_doors_are_closed_and_a_stream_is_still_open() -> None:
    """So that a successor can bind every one of them, the doorbell's too."""
    with Daemon(drain_timeout_s=20) as daemon, hands(daemon) as held:
        call = held.call()
        job = held.job()
        daemon.signal(signal.SIGTERM)
        eventually(lambda: list(daemon.folder.iterdir()) == [], what="no socket's file is left")
        ports = [address.rpartition(":")[2] for address in (daemon.grpc_address,)]
        with Daemon(listen=f"localhost:{ports[0]}", engine_socket=daemon.engine_socket) as second:
            assert second.metrics()
            job.write(b"still ")
            job.write(b"here")
            job.finish("stop")
            assert b"".join(frame.data for frame in call) == b"still here"
            assert daemon.wait() == 0
            assert pathlib.Path(second.engine_socket).is_socket(), "the successor's is left alone"


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
        eventually(lambda: not listens(daemon.grpc_address))
        job.finish("stop")
        assert list(first)
        later = held.job()
        later.write(b"second")
        later.finish("stop")
        assert b"".join(frame.data for frame in second) == b"second"
        assert daemon.wait() == 0


@pytest.mark.parametrize("after_s", [0, 0.05, 0.2])
def test_sigterm_soon_after_exec_ends_the_start_cleanly(after_s: float) -> None:
    daemon = Daemon()
    daemon.launch()
    time.sleep(after_s)
    daemon.signal(signal.SIGTERM)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait(5) in (0, -signal.SIGTERM), daemon.stderr
    assert "Traceback" not in daemon.stderr
    assert not list(daemon.folder.iterdir())
    daemon.stop()


UNSHARE = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]


@pytest.fixture
def pid_1() -> Iterator[Daemon]:
    """A daemon that is the first process of its namespace, as in a container."""
    if (
        shutil.which("unshare") is None
        or subprocess.run([*UNSHARE, "true"], check=False).returncode
    ):
        pytest.skip("this user may not make namespaces of processes here")
    daemon = Daemon(drain_timeout_s=1)
    daemon.argv = [*UNSHARE, *daemon.argv]
    yield daemon
    daemon.stop(signal.SIGKILL)


def inside(daemon: Daemon) -> int:
    """Return the pid, as we see it, of the daemon that has been executed inside."""

    def found() -> int:
        for child in psutil.Process(daemon.pid).children():
            with contextlib.suppress(psutil.Error):
                if "unshare" not in child.cmdline()[0]:
                    return child.pid
        return 0

    return int(eventually(found, what="it is executed"))


def hears_sigterm(pid: int) -> bool:
    """Whether a process has a handler for it."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught >> signal.SIGTERM - 1 & 1)


@pytest.mark.parametrize("after_s", [0, 0.02, 0.2])
def test_pid_1_ends_with_0_on_the_first_sigterm_that_it_can_hear(
    pid_1: Daemon, after_s: float
) -> None:
    """The kernel drops what comes before Python runs our first line, some 20 ms after exec."""
    pid_1.launch()
    pid = inside(pid_1)
    os.kill(pid, signal.SIGTERM)
    eventually(lambda: not pid_1.alive or hears_sigterm(pid), 15, "it has a handler")
    time.sleep(after_s)
    if pid_1.alive:
        os.kill(pid, signal.SIGTERM)
    assert pid_1.wait() == 0, pid_1.stderr
    assert "Traceback" not in pid_1.stderr
    assert not list(pid_1.folder.iterdir())


def test_pid_1_with_every_server_on_drains_and_ends_with_0_on_two_sigterms(pid_1: Daemon) -> None:
    pid_1.start()
    pid = inside(pid_1)
    with hands(pid_1) as held, grpc.insecure_channel(f"unix:{pid_1.envoy_socket}") as channel:
        calls = [held.call(), channel.unary_stream(STREAM)(REQUEST)]
        jobs = []
        eventually(lambda: jobs.extend(held.engine.poll()) or len(jobs) == 2)
        assert pid_1.metrics()
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: not any(map(listens, doors(pid_1))))
        os.kill(pid, signal.SIGTERM)
        jobs[0].write(b"one ends")
        jobs[0].finish("stop")
        outcomes = []
        for call in calls:
            with contextlib.suppress(grpc.RpcError):
                list(call)
            outcomes.append(call.code().name)
        assert sorted(outcomes) == ["OK", "UNAVAILABLE"]
        assert pid_1.wait(5) == 0
