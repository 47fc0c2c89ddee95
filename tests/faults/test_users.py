"""Sidecar and engine as two users of one group, each in namespaces of its own, as containers are.

The directory belongs to the group: mode 2770, or 3770 where files can be removed by their owner
alone. Who is not in the group can neither read nor write a stream (G31).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.stage import Caller, Puppet, caller_of, needs_root, prefixed, small_tmpfs
from tests.harness.processes import Daemon, ProcessFailed, eventually

GROUP = 12000
SIDECAR, ENGINE, OUTSIDER = 12001, 12002, 12003


def as_user(uid: int, gid: int = GROUP) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]


def apart(shared: Path) -> list[str]:
    """Namespaces of a container whose /dev/shm is the shared volume."""
    namespaces = ["--mount", "--pid", "--ipc", "--fork", "--kill-child"]
    script = 'mount --bind "$0" /dev/shm && exec "$@"'
    return ["unshare", *namespaces, "--propagation", "private", "sh", "-c", script, str(shared)]


def can_run_python(uid: int) -> bool:
    argv = [*as_user(uid), sys.executable, "-c", "import rrpa_sidecar, grpc"]
    return shutil.which("setpriv") is not None and subprocess.run(argv, check=False).returncode == 0


@pytest.fixture(scope="module", autouse=True)
def other_users() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to become other users")
    if not can_run_python(SIDECAR):
        pytest.skip("other users cannot run this Python here")


@pytest.fixture
def shared() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="rrpa-test-"))
    os.chown(path, 0, GROUP)
    path.chmod(0o2770)
    yield path
    shutil.rmtree(path)


def stop_inside(daemon: Daemon) -> None:
    """Ask the daemon itself to stop: the first process of its namespace is its parent's child."""
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGTERM)
    daemon.wait()


@contextlib.contextmanager
def served(
    shared: Path, namespaces: bool, **settings: object
) -> Iterator[tuple[Daemon, Puppet, Caller]]:
    inside = apart(shared) if namespaces else []
    seen_as = Path("/dev/shm") if namespaces else shared
    daemon = Daemon(shm_dir=seen_as, **settings)
    os.chown(daemon.folder, SIDECAR, GROUP)
    daemon.folder.chmod(0o750)
    prefixed(daemon, [*inside, *as_user(SIDECAR)])
    with daemon, caller_of(daemon) as caller:
        try:
            with Puppet(daemon, prefix=[*inside, *as_user(ENGINE)]) as puppet:
                eventually(lambda: puppet.do("serving"), what="attached")
                yield daemon, puppet, caller
            assert puppet.returncode == 0, puppet.said()
        finally:
            if namespaces:
                stop_inside(daemon)
    assert daemon.returncode == 0, daemon.said()


READ, WRITE = 'exec cat "$0"', ': >> "$0"'


def refused_to(uid: int, gid: int, path: Path, how: str) -> bool:
    """Whether a user may not read or write `path`."""
    argv = [*as_user(uid, gid), "sh", "-c", how, str(path)]
    ran = subprocess.run(argv, capture_output=True, check=False)
    assert ran.returncode == 0 or b"Permission denied" in ran.stderr, ran.stderr
    return ran.returncode != 0


@pytest.mark.parametrize("namespaces", [False, True], ids=["one namespace", "apart"])
def test_two_users_of_one_group_stream_and_nobody_else_can_read_or_write(
    shared: Path, namespaces: bool
) -> None:
    with served(shared, namespaces) as (daemon, puppet, caller):
        call = caller.call()
        (job,) = puppet.take()
        assert puppet.write(job, b"between users") == 13
        assert call.read(13) == b"between users"
        files = sorted(shared.iterdir())
        assert len(files) == 2, "a log and a table"
        shared.chmod(0o2777)  # so that the files' own modes are what is tested
        for path in files:
            found = path.stat()
            assert (found.st_uid, found.st_gid) == (ENGINE, GROUP)
            assert stat.S_IMODE(found.st_mode) == 0o640
            for how in (READ, WRITE):
                assert refused_to(OUTSIDER, OUTSIDER, path, how)
            assert refused_to(SIDECAR, GROUP, path, WRITE)
            assert not refused_to(SIDECAR, GROUP, path, READ)
        shared.chmod(0o2770)
        assert refused_to(OUTSIDER, OUTSIDER, files[0], READ)
        puppet.do("finish", job=job)
        assert call.outcome()[:2] == (b"", "OK")
        eventually(lambda: len(list(shared.iterdir())) == 1, what="the sidecar removes the log")
        assert puppet.alive
        assert "not removed" not in daemon.stderr
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("namespaces", [False, True], ids=["one namespace", "apart"])
def test_in_a_sticky_directory_the_engine_removes_what_the_sidecar_may_not(
    shared: Path, namespaces: bool
) -> None:
    shared.chmod(0o3770)
    with served(shared, namespaces) as (daemon, puppet, caller):
        for _ in range(3):
            call = caller.call()
            (job,) = puppet.take()
            puppet.write(job, b"sticky")
            puppet.do("finish", job=job)
            assert call.outcome()[:2] == (b"sticky", "OK")
        eventually(lambda: len(list(shared.iterdir())) == 1, what="the engine removes its logs")
        assert daemon.metric("rrpa_shm_utilization_percent") == 0


def test_killed_engine_of_another_user_and_namespace_is_noticed_and_its_files_go(
    shared: Path,
) -> None:
    inside = apart(shared)
    daemon = Daemon(shm_dir=Path("/dev/shm"))
    os.chown(daemon.folder, SIDECAR, GROUP)
    daemon.folder.chmod(0o750)
    prefixed(daemon, [*inside, *as_user(SIDECAR)])
    with daemon, caller_of(daemon) as caller:
        with Puppet(daemon, prefix=[*inside, *as_user(ENGINE)]) as puppet:
            eventually(lambda: puppet.do("serving"), what="attached")
            call = caller.call()
            (job,) = puppet.take()
            puppet.write(job, b"committed")
            puppet.kill()  # --kill-child takes the engine with it
        try:
            assert call.outcome()[:2] == (b"committed", "UNAVAILABLE")
            eventually(lambda: list(shared.iterdir()) == [], what="nothing of it stays")
        finally:
            stop_inside(daemon)


@needs_root
@pytest.mark.parametrize(
    ("case", "says"),
    [("missing", "does not exist"), ("of root", "is not writable"), ("read-only", "not writable")],
)
def test_sidecar_says_at_its_start_what_is_wrong_with_its_directory(
    short_dir: Path, case: str, says: str
) -> None:
    where = short_dir / "shm"
    prefix: Sequence[str] = as_user(SIDECAR)
    if case != "missing":
        where.mkdir(mode=0o755)
    short_dir.chmod(0o755)
    if case == "read-only":
        where.chmod(0o2777)
        script = f'mount -t tmpfs -o ro tmpfs {where} && exec "$@"'
        prefix = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
            *prefix,
        ]
    daemon = Daemon(shm_dir=where)
    os.chown(daemon.folder, SIDECAR, GROUP)
    prefixed(daemon, prefix)
    try:
        with pytest.raises(ProcessFailed) as caught, daemon:
            pass
        assert "ended with 1" in str(caught.value)
        assert says in str(caught.value)
        assert str(where) in str(caught.value)
    finally:
        daemon.clean()


def test_engine_with_another_volume_than_the_sidecars_is_told_so() -> None:
    with small_tmpfs(2**20) as other, Daemon() as daemon:
        # The same path, and yet another volume: only a look into it can tell.
        daemon_shm, daemon.shm_dir = daemon.shm_dir, Path(other.path)
        puppet = Puppet(daemon, prefix=other.prefix)
        daemon.shm_dir = daemon_shm
        with puppet:
            assert "is not the sidecar's" in str(puppet.do("take", count=1))
            assert "mount the same volume into both" in str(puppet.do("take", count=1))
