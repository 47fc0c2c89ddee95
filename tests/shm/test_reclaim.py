"""What a cleaner removes, and what it leaves alone."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable

import pytest

from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory, SegmentDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reclaim import Reclaim, reclaim
from rrpa_sidecar.shm.table import TableWriter
from tests.harness.limits import too_many_open_files
from tests.shm.support import Ids, exit_of, fork, path_of, poke, reader, writer


def test_a_live_log_is_held_and_a_lost_one_removed(directory: SegmentDirectory, ids: Ids) -> None:
    made = writer(directory, ids.new())
    name = layout.log_name(made.stream_id)
    assert reclaim(directory, name) is Reclaim.HELD
    made.write(b"x")
    made.close()
    assert reclaim(directory, name) is Reclaim.REMOVED
    assert reclaim(directory, name) is Reclaim.MISSING
    assert name not in directory.names()


def test_a_finished_log_is_removed_and_its_reader_reads_on(
    directory: SegmentDirectory, ids: Ids
) -> None:
    made = writer(directory, ids.new())
    read = reader(directory, made.stream_id)
    made.write(b"all of it")
    made.finish(End())
    assert reclaim(directory, layout.log_name(made.stream_id)) is Reclaim.REMOVED
    assert read.progress() == (9, End())
    assert read.read(0, 99) == b"all of it"
    read.close()


def test_with_too_many_open_files_nothing_is_said_about_a_file(
    directory: SegmentDirectory, ids: Ids
) -> None:
    made = writer(directory, ids.new())
    made.finish(End())
    name = layout.log_name(made.stream_id)
    with too_many_open_files(), pytest.raises(OSError, match="Too many open files") as caught:
        reclaim(directory, name)
    assert caught.value.errno == errno.EMFILE
    assert reclaim(directory, name) is Reclaim.REMOVED


def test_a_table_is_reclaimed_like_a_log(directory: SegmentDirectory, ids: Ids) -> None:
    table = TableWriter.create(directory, ids.new(), 3, bytes(16))
    name = layout.table_name(table.table_id)
    assert reclaim(directory, name) is Reclaim.HELD
    table.close()
    assert reclaim(directory, name) is Reclaim.REMOVED


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../rrpa", "rrpa_x", "rrpa_" + "0" * 31, "rrpa_" + "A" * 32, "other"]
)
def test_other_names_are_foreign(plain: PlainDirectory, name: str) -> None:
    assert reclaim(plain, name) is Reclaim.FOREIGN


@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory", "other", "empty", "wrong kind"])
def test_what_only_has_our_name_is_foreign_and_stays(
    directory: SegmentDirectory, ids: Ids, kind: str
) -> None:
    stream_id = ids.new()
    path = path_of(directory, stream_id)
    makers: dict[str, Callable[[], object]] = {
        "symlink": lambda: path.symlink_to("/etc/hostname"),
        "fifo": lambda: os.mkfifo(path),
        "directory": path.mkdir,
        "other": lambda: path.write_bytes(b"another product's file"),
        "empty": path.touch,
        "wrong kind": lambda: path.write_bytes(layout.TABLE_MAGIC.ljust(131072, b"\0")),
    }
    makers[kind]()
    assert reclaim(directory, path.name) is Reclaim.FOREIGN
    assert os.path.lexists(path)
    path.rmdir() if kind == "directory" else path.unlink()


def test_a_log_whose_id_is_not_its_name_is_foreign(plain: PlainDirectory) -> None:
    writer(plain, "0" * 32).close()
    os.rename(path_of(plain, "0" * 32), path_of(plain, "1" * 32))
    assert reclaim(plain, "rrpa_" + "1" * 32) is Reclaim.FOREIGN


def test_a_second_link_makes_a_log_foreign(plain: PlainDirectory) -> None:
    writer(plain, "0" * 32).close()
    os.link(path_of(plain, "0" * 32), f"{plain.path}/kept")
    assert reclaim(plain, "rrpa_" + "0" * 32) is Reclaim.FOREIGN
    os.unlink(f"{plain.path}/kept")
    assert reclaim(plain, "rrpa_" + "0" * 32) is Reclaim.REMOVED


def test_a_newer_versions_log_is_removed_too(plain: PlainDirectory) -> None:
    writer(plain, "0" * 32).close()
    poke(plain, "0" * 32, 8, b"\x09")
    assert reclaim(plain, "rrpa_" + "0" * 32) is Reclaim.REMOVED


def test_a_name_that_became_another_file_is_foreign(
    plain: PlainDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the cleaner's open and its unlink a live log takes the name."""
    writer(plain, "0" * 32).close()
    real, live = plain.open, []

    def opened(name: str, *, write: bool = False) -> int:
        fd = real(name, write=write)
        # The old file keeps one link, so only the comparison of inodes can tell.
        os.rename(path_of(plain, "0" * 32), f"{plain.path}/moved")
        live.append(writer(plain, "0" * 32))
        return fd

    monkeypatch.setattr(plain, "open", opened)
    assert reclaim(plain, "rrpa_" + "0" * 32) is Reclaim.FOREIGN
    monkeypatch.undo()
    assert reclaim(plain, "rrpa_" + "0" * 32) is Reclaim.HELD
    live[0].close()


@pytest.mark.parametrize("when", ["before open", "after open"])
def test_a_file_that_another_cleaner_removed_is_missing(
    plain: PlainDirectory, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    writer(plain, "0" * 32).close()
    real = plain.open

    def opened(name: str, *, write: bool = False) -> int:
        if when == "before open":
            os.unlink(path_of(plain, "0" * 32))
            return real(name)
        fd = real(name)
        os.unlink(path_of(plain, "0" * 32))
        return fd

    monkeypatch.setattr(plain, "open", opened)
    assert reclaim(plain, "rrpa_" + "0" * 32) is Reclaim.MISSING


def test_two_cleaners_do_not_get_the_same_file(plain: PlainDirectory) -> None:
    writer(plain, "0" * 32).close()
    with path_of(plain, "0" * 32).open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert reclaim(plain, "rrpa_" + "0" * 32) is Reclaim.HELD
    assert reclaim(plain, "rrpa_" + "0" * 32) is Reclaim.REMOVED


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
@pytest.mark.parametrize(
    ("dir_mode", "file_mode", "expected"),
    [
        (0o1777, 0o644, Reclaim.DENIED),  # sticky: EPERM at the unlink
        (0o755, 0o644, Reclaim.DENIED),  # EACCES at the unlink
        (0o777, 0o640, Reclaim.DENIED),  # EACCES at the open
        (0o777, 0o644, Reclaim.REMOVED),
    ],
)
def test_another_users_file_is_removed_only_where_the_directory_allows_it(
    plain: PlainDirectory, dir_mode: int, file_mode: int, expected: Reclaim
) -> None:
    writer(plain, "0" * 32).close()
    os.chmod(path_of(plain, "0" * 32), file_mode)
    os.chmod(plain.path, dir_mode)

    def as_nobody() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        assert reclaim(plain, "rrpa_" + "0" * 32) is expected

    assert exit_of(fork(as_nobody)) == 0
    assert path_of(plain, "0" * 32).exists() is (expected is Reclaim.DENIED)


@pytest.mark.parametrize("content", [b"", bytes(131072), layout.LOG_MAGIC + b"x" * 100])
def test_a_temporary_file_is_ours_if_it_is_empty_or_says_so(
    plain: PlainDirectory, content: bytes
) -> None:
    name = layout.temporary_name("0" * 32, 7)
    with open(f"{plain.path}/{name}", "wb") as file:
        file.write(content)
    ours = content.strip(b"\0") == b""
    assert reclaim(plain, name) is (Reclaim.REMOVED if ours else Reclaim.FOREIGN)
