"""The two kinds of directory behave alike."""

from __future__ import annotations

import gc
import os
import re
import stat
from pathlib import Path

import pytest

from rrpa_sidecar.errors import CorruptLog, SegmentMissing, StartupError, StreamMisuse
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import (
    PlainDirectory,
    PosixDirectory,
    SegmentDirectory,
    open_directory,
)
from tests.shm.support import Ids, exit_of, fork


def test_dev_shm_goes_through_posix_ipc_and_others_do_not(short_dir: Path) -> None:
    (short_dir / "link").symlink_to("/dev/shm")
    assert type(open_directory("/dev/shm")) is PosixDirectory
    assert type(open_directory("/dev/shm/")) is PosixDirectory
    assert type(open_directory(str(short_dir / "link"))) is PosixDirectory
    assert type(open_directory(str(short_dir))) is PlainDirectory


def test_a_segment_is_never_for_others_not_even_before_it_has_its_mode(
    directory: SegmentDirectory, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the umask: who opens a file in a moment of a wider mode has it open for ever."""
    real, modes = os.fchmod, []

    def fchmod(fd: int, mode: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))
        real(fd, mode)
        modes.append(stat.S_IMODE(os.fstat(fd).st_mode))

    monkeypatch.setattr(os, "fchmod", fchmod)
    for umask in (0o000, 0o077):
        before = os.umask(umask)
        try:
            name = layout.temporary_name(ids.new(), 1)
            os.close(directory.create(name, 131072))
        finally:
            os.umask(before)
        directory.unlink(name)
    assert modes == [0o640, 0o640, 0o600, 0o640]


def test_a_segment_is_created_opened_renamed_and_unlinked(
    directory: SegmentDirectory, ids: Ids
) -> None:
    old, new = layout.temporary_name(ids.new(), 1), layout.log_name(ids.new())
    fd = directory.create(old, 131072)
    found = os.fstat(fd)
    assert (found.st_size, found.st_blocks, stat.S_IMODE(found.st_mode)) == (131072, 0, 0o640)
    assert not os.get_inheritable(fd)
    with pytest.raises(FileExistsError):
        directory.create(old, 131072)
    directory.rename(old, new)
    with pytest.raises(SegmentMissing):
        directory.open(old)
    assert new in directory.names()
    assert old not in directory.names()
    os.pwrite(fd, b"hello", 0)
    read = directory.open(new)
    assert os.pread(read, 5, 0) == b"hello"
    assert not os.get_inheritable(read)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(read, b"x", 0)
    write = directory.open(new, write=True)
    os.pwrite(write, b"j", 0)
    directory.unlink(new)
    with pytest.raises(SegmentMissing):
        directory.unlink(new)
    for each in (fd, read, write):
        os.close(each)


def test_a_descriptor_outlives_the_object_that_opened_it(
    directory: SegmentDirectory, ids: Ids
) -> None:
    fd = directory.create(layout.log_name(ids.new()), 65536)
    other = directory.create(layout.log_name(ids.new()), 131072)
    gc.collect()
    assert (os.fstat(fd).st_size, os.fstat(other).st_size) == (65536, 131072)
    os.close(fd)
    os.close(other)


def test_a_rename_never_replaces(directory: SegmentDirectory, ids: Ids) -> None:
    old, new = layout.temporary_name(ids.new(), 1), layout.log_name(ids.new())
    first, second = directory.create(old, 65536), directory.create(new, 131072)
    with pytest.raises(FileExistsError):
        directory.rename(old, new)
    assert os.fstat(second).st_nlink == 1
    with pytest.raises(SegmentMissing):
        directory.rename(layout.log_name(ids.new()), layout.log_name(ids.new()))
    os.close(first)
    os.close(second)


@pytest.mark.parametrize("name", ["", "x", "/etc/passwd", "../rrpa_" + "0" * 32, "rrpa_x", "a\0b"])
def test_only_names_of_segments_are_taken(directory: SegmentDirectory, name: str) -> None:
    for call in (
        lambda: directory.create(name, 65536),
        lambda: directory.open(name),
        lambda: directory.unlink(name),
        lambda: directory.rename(name, layout.log_name("0" * 32)),
    ):
        with pytest.raises(StreamMisuse):
            call()


def test_a_planted_link_is_not_followed_at_creation(
    directory: SegmentDirectory, ids: Ids, short_dir: Path
) -> None:
    name = layout.temporary_name(ids.new(), 1)
    (short_dir / "victim").write_text("precious")
    os.symlink(short_dir / "victim", f"{directory.path}/{name}")
    with pytest.raises(FileExistsError):
        directory.create(name, 65536)
    with pytest.raises(CorruptLog):
        directory.open(name)
    assert (short_dir / "victim").read_text() == "precious"
    directory.unlink(name)
    assert (short_dir / "victim").exists()


def test_names_are_ours_only(plain: PlainDirectory) -> None:
    for name in ("rrpa_b", "rrpa_a", "other", "envoy_shared_memory_0"):
        Path(plain.path, name).touch()
    assert plain.names() == ["rrpa_a", "rrpa_b"]


def test_identity_and_space_are_those_of_the_file_system(directory: SegmentDirectory) -> None:
    identity = directory.identity()
    assert identity.path == directory.path
    assert identity.st_dev == os.stat(directory.path).st_dev
    assert re.fullmatch(r"[0-9a-f-]{36}", identity.boot_id)
    space = directory.space()
    assert 0 < space.free_bytes <= space.total_bytes
    found = os.statvfs(directory.path)
    assert space.total_bytes == found.f_blocks * found.f_frsize


def test_a_missing_directory_and_a_file_are_refused_with_a_remedy(short_dir: Path) -> None:
    (short_dir / "file").touch()
    with pytest.raises(StartupError, match="does not exist; mount"):
        open_directory(str(short_dir / "missing"))
    with pytest.raises(StartupError, match="is not a directory; mount"):
        open_directory(str(short_dir / "file"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_directory_that_is_not_writable_is_refused_with_owner_and_mode(short_dir: Path) -> None:
    os.chmod(short_dir, 0o755)

    def as_nobody() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with pytest.raises(StartupError, match=r"owner 0:0, mode 0755\) is not writable for 65534"):
            open_directory(str(short_dir))

    assert exit_of(fork(as_nobody)) == 0


def test_the_names_of_segments_are_exact() -> None:
    good = "0123456789abcdef" * 2
    for name in (good, f"table_{good}", f"tmp_{good}_1"):
        assert layout.is_name(f"rrpa_{name}")
        assert layout.id_of(f"rrpa_{name}") == good
    bad = (f"{good}\n", good[1:], f"{good}0", good.upper(), f"tmp_{good}", f"table_{good}_1", "")
    assert not any(layout.is_name(f"rrpa_{name}") for name in bad)
    assert len(layout.temporary_name(good, 4194304)) < 255
