"""The doorbell, with and without somebody at home."""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
from pathlib import Path

import pytest

from rrpa_sidecar.config_kinds import UNIX_PATH_LIMIT_BYTES
from rrpa_sidecar.errors import StartupError, StreamMisuse
from rrpa_sidecar.shm.doorbell import Bell, Ringer, path_fault
from tests.shm.support import exit_of, fork


@pytest.fixture
def path(short_dir: Path) -> str:
    return str(short_dir / "rrpa.sock.bell")


def test_a_ring_wakes_and_a_drain_takes_all_rings(path: str) -> None:
    bell, ringer = Bell(path), Ringer(path)
    assert not bell.drain()
    assert select.select([bell], [], [], 0)[0] == []
    assert ringer.ring()
    assert ringer.ring()
    assert select.select([bell], [], [], 5)[0] == [bell]
    assert bell.drain()
    assert not bell.drain()
    ringer.close()
    assert not ringer.ring()
    bell.close()


def test_a_full_queue_is_a_pending_ring_and_nobody_waits(path: str) -> None:
    bell, ringer = Bell(path), Ringer(path)
    assert all(ringer.ring() for _ in range(5000))
    assert bell.drain()
    assert ringer.ring()
    assert bell.drain()
    ringer.close()
    bell.close()


def test_an_absent_sidecar_is_no_error_and_a_new_one_is_found(path: str) -> None:
    ringer = Ringer(path)
    assert not ringer.ring()
    first = Bell(path)
    assert ringer.ring()
    first.close()
    assert not ringer.ring()
    second = Bell(path)
    assert ringer.ring()
    assert second.drain()
    second.close()
    ringer.close()


def test_a_ringer_at_something_else_than_a_bell_returns_false(short_dir: Path) -> None:
    for name in ("file", "missing/bell", "stream"):
        if name == "file":
            (short_dir / name).write_text("")
        if name == "stream":
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            stream.bind(str(short_dir / name))
            stream.listen()
        ringer = Ringer(str(short_dir / name))
        assert not ringer.ring()
        ringer.close()
    stream.close()


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_the_socket_is_0660_whatever_the_umask_and_never_for_others(
    path: str, umask: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, before = os.chmod, []

    def chmod(where: str, mode: int) -> None:
        before.append(stat.S_IMODE(os.stat(where).st_mode))
        real(where, mode)

    monkeypatch.setattr(os, "chmod", chmod)
    old = os.umask(umask)
    try:
        bell = Bell(path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    assert before == [0o660 & ~umask]
    assert not os.get_inheritable(bell.fileno())
    bell.close()


def test_a_stale_socket_is_replaced(path: str) -> None:
    def killed() -> None:
        Bell(path)
        os.kill(os.getpid(), signal.SIGKILL)

    assert exit_of(fork(killed)) == -signal.SIGKILL
    assert stat.S_ISSOCK(os.stat(path).st_mode)
    bell, ringer = Bell(path), Ringer(path)
    assert ringer.ring()
    assert bell.drain()
    ringer.close()
    bell.close()
    assert not os.path.lexists(path)


def test_a_bell_in_use_is_not_taken_away(path: str) -> None:
    bell = Bell(path)
    with pytest.raises(StartupError, match="another process listens"):
        Bell(path)
    ringer = Ringer(path)
    assert ringer.ring()
    assert bell.drain()
    ringer.close()
    bell.close()


@pytest.mark.parametrize("kind", ["file", "directory", "dangling link", "link to a stale socket"])
def test_what_is_no_socket_is_left_alone(path: str, short_dir: Path, kind: str) -> None:
    there = Path(path)
    target = short_dir / "other"
    if kind == "file":
        there.write_text("precious")
    elif kind == "directory":
        there.mkdir()
    else:
        there.symlink_to(target)
    if kind == "link to a stale socket":
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stale:
            stale.bind(str(target))
    before = os.lstat(path).st_ino
    with pytest.raises(StartupError, match="not a socket; it was left alone"):
        Bell(path)
    assert os.lstat(path).st_ino == before
    assert target.exists() is (kind == "link to a stale socket")


def test_somebody_elses_listening_stream_socket_is_not_taken(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(StartupError, match="is taken"):
            Bell(path)
        assert os.path.lexists(path)


def test_a_missing_parent_is_named(short_dir: Path) -> None:
    with pytest.raises(StartupError, match="cannot be bound: No such file"):
        Bell(str(short_dir / "no" / "bell"))


def test_closing_leaves_a_socket_that_has_taken_the_path(path: str) -> None:
    first = Bell(path)
    os.unlink(path)
    second = Bell(path)
    first.close()
    first.close()
    ringer = Ringer(path)
    assert ringer.ring()
    ringer.close()
    second.close()
    assert not os.path.lexists(path)


def test_closing_after_the_file_is_gone_is_fine(path: str) -> None:
    bell = Bell(path)
    os.unlink(path)
    bell.close()


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_path_of_107_bytes_works_and_one_of_108_is_refused(short_dir: Path, letter: str) -> None:
    room = UNIX_PATH_LIMIT_BYTES - len(str(short_dir)) - 1
    wide = len(letter.encode())
    fits = str(short_dir / (letter * (room // wide) + "y" * (room % wide)))
    assert len(os.fsencode(fits)) == 107
    bell, ringer = Bell(fits), Ringer(fits)
    assert ringer.ring()
    assert bell.drain()
    ringer.close()
    bell.close()
    assert path_fault(fits) is None
    for error, end in ((StartupError, Bell), (StreamMisuse, Ringer)):
        with pytest.raises(error, match="108 bytes, the limit is 107"):
            end(fits + "z")
    assert os.listdir(short_dir) == []


@pytest.mark.parametrize("bad", ["", "\0abstract", "/tmp/a\0b"])
def test_an_empty_path_or_one_with_nul_is_refused(bad: str) -> None:
    with pytest.raises(StartupError, match="empty or holds a NUL"):
        Bell(bad)
