"""What the daemon says when it is ready, and where it listens."""

from __future__ import annotations

import pathlib
import re
import socket
import stat
import time

import grpc
import psutil
import pytest

from tests.daemon.conftest import Hands, hands
from tests.harness.processes import Daemon, eventually


def test_the_ready_line_names_every_address_and_the_start_time(daemon: Daemon) -> None:
    assert re.fullmatch(
        r"rrpa ready grpc=127\.0\.0\.1:\d+(,\[::1\]:\d+)? engines=\S+ envoy=\S+"
        r" metrics=127\.0\.0\.1:\d+(,\[::1\]:\d+)? start_s=\d+\.\d{3}",
        daemon.ready_line,
    )


@pytest.mark.parametrize("kind", ["grpcio", "batched"])
def test_localhost_is_answered_on_each_of_its_addresses_with_one_port(kind: str) -> None:
    with Daemon(listen_frontend=kind) as daemon:
        answered_everywhere(daemon)


def answered_everywhere(daemon: Daemon) -> None:
    expected = ["127.0.0.1"]
    if pathlib.Path("/proc/net/if_inet6").exists() and has_ipv6():
        expected.append("[::1]")
    found = [address.rpartition(":") for address in daemon.grpc_addresses]
    assert [host for host, _, _ in found] == expected
    assert len({port for _, _, port in found}) == 1
    for address in daemon.grpc_addresses:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(timeout=5)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_nothing_listens_but_what_the_ready_line_says(daemon: Daemon) -> None:
    said = {
        int(address.rpartition(":")[2])
        for word in ("grpc", "metrics")
        for address in re.search(rf" {word}=(\S+)", daemon.ready_line)[1].split(",")  # type: ignore[index]
    }
    process = psutil.Process(daemon.pid)
    listening = {c.laddr for c in process.net_connections("tcp") if c.status == "LISTEN"}
    assert {address.port for address in listening} == said
    # gRPC listens on IPv4 addresses through IPv6 sockets.
    assert {address.ip.removeprefix("::ffff:") for address in listening} <= {"127.0.0.1", "::1"}
    paths = {c.laddr for c in process.net_connections("unix") if c.laddr}
    assert paths == {
        daemon.engine_socket,
        daemon.engine_socket + ".bell",
        daemon.envoy_socket,
    }


@pytest.mark.parametrize("umask", ["000", "077"])
def test_sockets_are_for_owner_and_group_whatever_the_umask(umask: str) -> None:
    daemon = Daemon()
    daemon.argv = ["/bin/sh", "-c", f'umask {umask}; exec "$@"', "sh", *daemon.argv]
    with daemon:
        for path in (daemon.engine_socket, daemon.engine_socket + ".bell", daemon.envoy_socket):
            mode = pathlib.Path(path).stat().st_mode
            assert stat.S_ISSOCK(mode)
            assert stat.S_IMODE(mode) == 0o660, path


def test_an_idle_daemon_uses_no_cpu(daemon: Daemon) -> None:
    before_s = daemon.cpu_s()
    time.sleep(2)
    assert daemon.cpu_s() - before_s <= 0.02


def test_stdout_has_one_line_and_stderr_none_with_log_level_none() -> None:
    daemon = Daemon(log_level="none")
    with daemon:
        with hands(daemon) as held:
            assert held.answer()
            bad_calls(held)
        assert daemon._child is not None
        assert daemon._child.stdout is not None
        assert daemon.ready_line.count("\n") == 0
    assert daemon.stderr == ""


def bad_calls(held: Hands) -> None:
    with pytest.raises(grpc.RpcError):
        list(held.call(b"\xff"))
    with socket.create_connection(held.daemon.grpc_address.rsplit(":", 1)) as peer:  # type: ignore[arg-type]
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        peer.recv(1000)


def test_every_log_line_is_one_event_and_holds_no_token(daemon: Daemon) -> None:
    with hands(daemon) as held:
        call = held.call(metadata=(("x-request-id", "logged-once"),))
        job = held.job()
        for _ in range(20):
            job.write(b"secret token ")
        job.finish("stop")
        assert list(call)
        eventually(lambda: "logged-once" in daemon.stderr)
    assert daemon.stderr.count("logged-once") == 1
    assert "secret" not in daemon.stderr
    for line in daemon.stderr.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z (info|warning) rrpa_sidecar\.", line), line


def test_a_fresh_daemon_exports_every_fixed_series_at_0(daemon: Daemon) -> None:
    with Daemon() as fresh:
        found = fresh.metrics()
    assert found['rrpa_streams_total{code="INTERNAL",model="other"}'] == 0
    for name in ("active_streams", "stream_queue_length", "grpc_error_rate", "engines_attached"):
        assert found[f"rrpa_{name}"] == 0
    assert found["rrpa_shm_utilization_percent"] == 0
    assert found["rrpa_shm_budget_bytes"] == 2 << 30
    assert found["rrpa_shm_free_bytes"] > 0
    assert found["process_start_time_seconds"] > 0
