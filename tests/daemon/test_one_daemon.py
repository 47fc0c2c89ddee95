"""Two daemons never share an address, and the one that may not start says who has it (G36)."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from tests.harness.processes import Daemon, ProcessFailed


def refused(daemon: Daemon) -> str:
    """Start `daemon`, which must exit with 1; return what it said."""
    with pytest.raises(ProcessFailed):
        daemon.start()
    assert daemon.returncode == 1
    assert "Traceback" not in daemon.stderr
    (line,) = [each for each in daemon.stderr.splitlines() if each.startswith("rrpa: ")]
    return line


@pytest.mark.parametrize("setting", ["listen", "metrics_listen"])
@pytest.mark.parametrize("held", ["grpc", "metrics"])
def test_a_second_daemon_on_a_port_names_address_pid_and_program(
    daemon: Daemon, setting: str, held: str
) -> None:
    taken = daemon.grpc_address if held == "grpc" else daemon.metrics_address
    port = taken.rpartition(":")[2]
    second = Daemon(**{setting: f"localhost:{port}"})
    line = refused(second)
    assert f"--{setting.replace('_', '-')}: 127.0.0.1:{port} is taken by pid {daemon.pid}" in line
    assert "rrpa_sidecar serve" in line
    assert "stop it or use another port" in line


@pytest.mark.parametrize("setting", ["engine_socket", "envoy_socket"])
@pytest.mark.parametrize("held", ["engine_socket", "envoy_socket"])
def test_a_second_daemon_on_a_socket_names_path_pid_and_program(
    daemon: Daemon, setting: str, held: str
) -> None:
    path = getattr(daemon, held)
    second = Daemon(**{setting: path})
    line = refused(second)
    assert f"--{setting.replace('_', '-')}: {path} is taken by pid {daemon.pid} (" in line
    assert line.rstrip().endswith("stop it or choose another path")
    assert os.path.exists(path), "the first one's socket is untouched"
    assert daemon.metrics()


def test_a_plain_listener_is_named_and_one_address_of_two_is_enough_to_refuse() -> None:
    with socket.socket(socket.AF_INET6) as other:
        try:
            other.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        other.listen()
        port = other.getsockname()[1]
        line = refused(Daemon(listen=f"localhost:{port}"))
    assert f"[::1]:{port} is taken by pid {os.getpid()} (" in line


def test_a_host_that_is_no_address_here_is_refused_by_name() -> None:
    assert "no.such.host.invalid" in refused(Daemon(listen="no.such.host.invalid:0"))
    assert "--listen" in refused(Daemon(listen="192.0.2.1:0"))


def test_of_two_that_start_at_once_one_is_ready_and_one_says_why() -> None:
    for _ in range(3):
        first = Daemon()
        second = Daemon(engine_socket=first.engine_socket, envoy_socket=first.envoy_socket)
        first.launch()
        second.launch()
        outcomes = []
        for each in (first, second):
            try:
                each.wait_ready()
                outcomes.append("ready")
            except ProcessFailed:
                assert each.returncode == 1
                assert "is taken by" in each.stderr
                outcomes.append("refused")
        second.stop()
        first.stop()
        assert sorted(outcomes) == ["ready", "refused"]


def test_after_sigkill_the_next_one_starts_on_the_same_paths() -> None:
    first = Daemon()
    first.start()
    first.kill()
    assert pathlib.Path(first.engine_socket).is_socket()
    second = Daemon(engine_socket=first.engine_socket, envoy_socket=first.envoy_socket)
    with second:
        assert second.metrics()
    assert not list(first.folder.iterdir())
    first.stop()


@pytest.mark.parametrize("kind", ["file", "directory", "dangling link", "link to a file"])
@pytest.mark.parametrize("setting", ["engine_socket", "envoy_socket"])
def test_what_is_no_socket_is_left_alone(kind: str, setting: str, short_dir: pathlib.Path) -> None:
    path = short_dir / "here"
    target = short_dir / "target"
    target.write_text("precious")
    if kind == "file":
        path.write_text("precious")
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(short_dir / "nowhere" if kind == "dangling link" else target)
    before = path.lstat()
    line = refused(Daemon(**{setting: path}))
    assert f"{path} exists and is not a socket" in line
    assert path.lstat().st_ino == before.st_ino
    assert target.read_text() == "precious"


def test_a_missing_directory_is_said(short_dir: pathlib.Path) -> None:
    line = refused(Daemon(engine_socket=short_dir / "no" / "e.sock"))
    assert "--engine-socket" in line
    assert "the directory must exist" in line
    assert "does not exist" in refused(Daemon(shm_dir=short_dir / "no"))


def test_a_budget_beyond_the_memory_file_system_is_warned_of() -> None:
    with Daemon(shm_bytes="1024TiB", stream_bytes="1TiB") as daemon:
        assert "not the 1024TiB of --shm-bytes: 0 streams of 1TiB at once" in daemon.stderr
    with Daemon() as daemon:
        assert "at once" not in daemon.stderr


def test_a_failed_start_leaves_no_socket_behind(daemon: Daemon) -> None:
    port = daemon.metrics_address.rpartition(":")[2]
    second = Daemon(envoy_socket=daemon.envoy_socket, metrics_listen=f"127.0.0.1:{port}")
    second.launch()
    assert second.wait() == 1
    assert not list(second.folder.iterdir())
    second.stop()


def test_a_clean_stop_removes_all_it_made_and_nothing_else() -> None:
    daemon = Daemon()
    daemon.start()
    (daemon.folder / "mine").touch()
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert [each.name for each in daemon.folder.iterdir()] == ["mine"]
    assert daemon.stop() == 0


def test_a_privileged_port_is_refused_with_a_remedy_for_other_users() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    limit = int(pathlib.Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    if limit <= 1:
        pytest.skip("this machine lets everybody listen on every port")
    code = (
        "import os\n"
        "from rrpa_sidecar.sidecar.addresses import bind\n"
        "from rrpa_sidecar.errors import StartupError\n"
        "bind('127.0.0.1:0', '--listen')  # loads what others may not read\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: bind('127.0.0.1:1', '--listen')\n"
        "except StartupError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "may not listen on 127.0.0.1:1; choose a port above 1023" in done.stdout
