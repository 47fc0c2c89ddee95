"""A claim on a path: one holder from before the bind to after the close (G32, G36)."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rrpa_sidecar.errors import StartupError
from rrpa_sidecar.sidecar.unix_sockets import Claim


@pytest.fixture
def path(short_dir: Path) -> Iterator[str]:
    before = os.umask(0)
    yield str(short_dir / "x.sock")
    os.umask(before)


def test_a_claim_keeps_others_away_before_anything_is_bound(path: str) -> None:
    claim = Claim(path, "--x")
    with pytest.raises(StartupError, match=r"--x: .* is taken by another sidecar that is"):
        Claim(path, "--x")
    claim.release()
    Claim(path, "--x").release()


def test_a_listener_of_another_program_is_named_and_left_alone(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen()
        with pytest.raises(StartupError, match=f"taken by pid {os.getpid()} "):
            Claim(path, "--x")
    assert os.path.exists(path)
    assert not os.path.exists(path + ".lock")


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_SEQPACKET])
def test_a_socket_of_another_kind_that_is_alive_is_left_alone(path: str, kind: int) -> None:
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(path)
        with pytest.raises(StartupError, match="is taken by"):
            Claim(path, "--x")
        assert os.path.exists(path)


def test_a_listener_with_a_full_backlog_is_alive(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
        other.listen(0)
        dials = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)]
        dials[0].connect(path)
        with pytest.raises(StartupError, match="is taken by"):
            Claim(path, "--x")
        dials[0].close()


def test_a_socket_that_nobody_answers_on_is_replaced(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)
    Claim(path, "--x").release()
    assert not os.path.exists(path)


def test_the_socket_is_0660_from_its_first_moment_and_the_umask_comes_back(path: str) -> None:
    os.umask(0o077)
    claim = Claim(path, "--x")
    with socket.socket(socket.AF_UNIX) as bound:
        with claim.binding():
            bound.bind(path)
            assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
        assert os.umask(0o022) == 0o077
        claim.release()
    assert not os.path.exists(path)


def test_release_leaves_a_path_that_somebody_else_has_taken_since(path: str) -> None:
    claim = Claim(path, "--x")
    with socket.socket(socket.AF_UNIX) as ours, socket.socket(socket.AF_UNIX) as theirs:
        with claim.binding():
            ours.bind(path)
        os.rename(path, path + ".moved")
        theirs.bind(path)
        claim.release()
        claim.release()
    assert os.path.exists(path)
    assert not os.path.exists(path + ".lock")


def test_no_descriptor_leaks_through_refusals(path: str) -> None:
    Path(path).write_text("no socket")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(StartupError, match="is not a socket"):
            Claim(path, "--x")
    assert len(os.listdir("/proc/self/fd")) == before
