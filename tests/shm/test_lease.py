"""The lease through fork, exec, mmap and a full file system."""

from __future__ import annotations

import errno
import fcntl
import gc
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rrpa_sidecar.errors import ShmFull, StreamMisuse
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory, SegmentDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reclaim import Reclaim, reclaim
from rrpa_sidecar.shm.table import TableReader, TableWriter
from tests.shm.support import Ids, exit_of, fork, path_of, reader, writer


def test_a_forked_child_that_exits_does_not_free_the_lease(
    directory: SegmentDirectory, ids: Ids
) -> None:
    made = writer(directory, ids.new())
    read = reader(directory, made.stream_id)
    assert exit_of(fork(lambda: None)) == 0
    assert not read.writer_gone()
    made.write(b"still mine")
    assert read.progress() == (10, None)
    made.close()
    assert read.writer_gone()
    read.close()


def test_a_forked_child_that_closes_does_not_free_the_lease(plain: PlainDirectory) -> None:
    made = writer(plain, "0" * 32)
    read = reader(plain, made.stream_id)
    assert exit_of(fork(made.close)) == 0
    assert not read.writer_gone()
    made.finish(End())
    assert read.progress() == (0, End())
    read.close()


def test_a_forked_child_cannot_write(plain: PlainDirectory) -> None:
    made = writer(plain, "0" * 32)
    table = TableWriter.create(plain, "1" * 32, 1, bytes(16))

    def misuse() -> None:
        with pytest.raises(StreamMisuse):
            made.write(b"x")
        with pytest.raises(StreamMisuse):
            made.finish(End())
        table.set(0, 5, False)

    assert exit_of(fork(misuse)) == 0
    read = reader(plain, made.stream_id)
    assert read.progress() == (0, None)
    seen = TableReader.open(plain, "1" * 32, slots=1, nonce=bytes(16))
    assert seen.poll() == []
    seen.close()
    read.close()
    made.close()
    table.close()


def test_an_orphan_of_a_killed_writer_does_not_keep_the_lease(plain: PlainDirectory) -> None:
    orphan_waits, orphan_end = os.pipe()
    ready, ready_in = os.pipe()

    def engine() -> None:
        os.close(orphan_end)
        made = writer(plain, "0" * 32)
        made.write(b"abc")
        if os.fork() == 0:  # a worker of the engine, alive until the test lets go
            os.write(ready_in, b"!")
            os.read(orphan_waits, 1)
            os._exit(0)
        signal.pause()

    pid = fork(engine)
    assert os.read(ready, 1) == b"!"
    read = reader(plain, "0" * 32)
    assert not read.writer_gone()
    os.kill(pid, signal.SIGKILL)
    exit_of(pid)
    assert read.writer_gone()
    assert read.progress() == (3, None)
    read.close()
    for fd in (orphan_waits, orphan_end, ready, ready_in):
        os.close(fd)


def test_a_forgotten_writer_is_a_lost_one(plain: PlainDirectory) -> None:
    made = writer(plain, "0" * 32)
    read = reader(plain, made.stream_id)
    assert not read.writer_gone()
    del made
    gc.collect()
    assert read.writer_gone()
    read.close()


def test_a_program_started_by_the_engine_does_not_keep_the_lease(plain: PlainDirectory) -> None:
    made = writer(plain, "0" * 32)
    read = reader(plain, made.stream_id)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        made.close()
        assert read.writer_gone()
        assert child.stdin is not None
        child.stdin.close()
    read.close()


def test_the_mappings_duplicate_of_the_descriptor_does_not_keep_the_lease(
    plain: PlainDirectory,
) -> None:
    made = writer(plain, "0" * 32)
    read = reader(plain, made.stream_id)
    other = mmap.mmap(made._lease.fd, 4096)  # somebody's mapping that outlives the writer
    made.close()
    assert read.writer_gone()
    other.close()
    read.close()


def test_a_failed_mapping_leaves_nothing(
    plain: PlainDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(mmap, "mmap", fails)
    with pytest.raises(OSError, match="no memory"):
        writer(plain, "0" * 32)
    assert plain.names() == []
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.parametrize("thefts", [1, 2, 3])
def test_a_cleaner_between_creation_and_lock_makes_the_writer_begin_again(
    plain: PlainDirectory, monkeypatch: pytest.MonkeyPatch, thefts: int
) -> None:
    real, left = fcntl.flock, [thefts]

    def flock(fd: int, operation: int) -> None:
        if left[0] and operation == fcntl.LOCK_EX | fcntl.LOCK_NB:
            left[0] -= 1
            (name,) = plain.names()
            monkeypatch.setattr(fcntl, "flock", real)
            assert reclaim(plain, name) is Reclaim.REMOVED
            monkeypatch.setattr(fcntl, "flock", flock)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    if thefts == 3:
        with pytest.raises(StreamMisuse, match="removed 3 times"):
            writer(plain, "0" * 32)
        assert plain.names() == []
    else:
        writer(plain, "0" * 32).close()
        assert plain.names() == ["rrpa_" + "0" * 32]


def test_a_cleaner_that_holds_the_lock_makes_the_writer_begin_again(
    plain: PlainDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, cleaners = plain.create, []

    def create(name: str, size: int, mode: int = layout.FILE_MODE) -> int:
        fd = real(name, size, mode)
        if not cleaners:
            cleaners.append(plain.open(name))
            fcntl.flock(cleaners[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd

    monkeypatch.setattr(plain, "create", create)
    made = writer(plain, "0" * 32)
    assert plain.names() == ["rrpa_" + "0" * 32]
    read = reader(plain, made.stream_id)
    assert not read.writer_gone()
    made.close()
    read.close()
    os.close(cleaners[0])


def test_short_writes_are_continued(plain: PlainDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:3], at))
    made = writer(plain, "0" * 32)
    made.write(b"0123456789")
    made.finish(End(13, text="short"))
    monkeypatch.undo()
    read = reader(plain, made.stream_id)
    assert read.progress() == (10, End(13, text="short"))
    assert read.read(0, 100) == b"0123456789"
    read.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_in_the_middle_of_a_token_commits_nothing_of_it(
    plain: PlainDirectory, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    made = writer(plain, "0" * 32)
    made.write(b"abc")
    real, calls = os.pwrite, []

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        calls.append(offset)
        if len(calls) == 2:
            raise OSError(code, "full")
        return real(fd, data[:2], offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(ShmFull, match=r"\d+ of \d+ bytes free, 6 wanted") as caught:
        made.write(b"defghi")
    monkeypatch.undo()
    assert len(str(caught.value)) < 200
    assert (made.committed_bytes, made.tokens) == (3, 1)
    made.write(b"D")
    made.finish(End())
    read = reader(plain, made.stream_id)
    assert read.progress() == (4, End())
    assert read.read(0, 9) == b"abcD"
    read.close()


FULL = """
import json, os, sys
from rrpa_sidecar.errors import ShmFull
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reader import LogReader
from rrpa_sidecar.shm.writer import LogWriter
d = PlainDirectory(sys.argv[1])
a = LogWriter.create(d, "a" * 32)
b = LogWriter.create(d, "b" * 32)
b.write(b"b")
said = []
token = 0
try:
    while True:
        a.write(bytes([token]) * 1000)
        token += 1
except ShmFull as exc:
    said.append(str(exc))
try:
    LogWriter.create(d, "c" * 32)
except ShmFull as exc:
    said.append(str(exc))
r = LogReader.open(d, "a" * 32, stream_bytes=16 << 20)
before = r.progress()[0]
names = d.names()
b.finish(End(8, text="full"))
b.unlink()
a.write(b"again")
a.finish(End(reason=1))
committed, end = r.progress()
data = b"".join(r.read(at, 700) for at in range(0, committed, 700))
right = data == b"".join(bytes([t]) * 1000 for t in range(token)) + b"again"
print(json.dumps([said, token, before, names, end.reason, right]))
"""


def test_a_full_tmpfs_is_an_error_with_numbers_and_no_signal(tmp_path: Path) -> None:
    """A real 256 KiB tmpfs, in a mount namespace of its own."""
    mount = 'mount -t tmpfs -o size=256k none "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh"]
    if (
        not shutil.which("unshare")
        or subprocess.run([*command[:4], "true"], check=False).returncode
    ):
        pytest.skip("this user may not make a mount namespace (unshare --mount)")
    run = subprocess.run(
        [*command, str(tmp_path), sys.executable, textwrap.dedent(FULL)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    said, tokens, before, names, reason, right = json.loads(run.stdout)
    assert len(said) == 2
    assert all("0 of 262144 bytes free" in line for line in said)
    assert (before, reason, right) == (tokens * 1000, 1, True)
    assert names == ["rrpa_" + "a" * 32, "rrpa_" + "b" * 32]


def test_unlink_leaves_a_file_that_has_taken_the_name(plain: PlainDirectory) -> None:
    made = writer(plain, "0" * 32)
    os.unlink(path_of(plain, made.stream_id))
    path_of(plain, made.stream_id).write_bytes(b"another")
    made.unlink()
    assert path_of(plain, made.stream_id).read_bytes() == b"another"
    made.close()
