"""What a sidecar finds in the directory that nobody here knows: the lease decides, nothing else."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rrpa_sidecar.control.orphans import LOOKS_PER_TURN, NAMES_PER_TURN, Orphans
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reclaim import Reclaim, reclaim
from rrpa_sidecar.shm.table import TableWriter
from rrpa_sidecar.shm.writer import LogWriter, log_header
from tests.control.engine import STREAM_BYTES
from tests.harness.limits import too_many_open_files
from tests.shm.support import exit_of, fork

INTERVAL_S = 30
INTERVAL_NS = INTERVAL_S * 10**9


@dataclass
class Here:
    """What a sidecar knows, and what it was told."""

    known: set[str] = field(default_factory=set)
    kept: dict[str, int] = field(default_factory=dict)
    reclaimed: Counter[str] = field(default_factory=Counter)

    def keep(self, name: str, size: int) -> None:
        assert name not in self.kept
        self.kept[name] = size

    def is_known(self, name: str) -> bool:
        return name in self.known or name in self.kept


def looker(shm: PlainDirectory, here: Here, now_ns: int = 0) -> Orphans:
    return Orphans(
        shm,
        INTERVAL_NS,
        now_ns,
        here.is_known,
        here.keep,
        lambda kind: here.reclaimed.update([kind]),
    )


def look(shm: PlainDirectory, here: Here | None = None) -> Here:
    """Look through the whole directory once, as a sidecar that starts does."""
    here = here or Here()
    orphans = looker(shm, here)
    while orphans.due_ns == 0:
        orphans.turn(0)
    return here


@pytest.fixture
def new_id(seeded) -> Any:
    return lambda: f"{seeded.getrandbits(128):032x}"


def log_of(shm: PlainDirectory, stream_id: str, data: bytes = b"abc") -> LogWriter:
    made = LogWriter.create(shm, stream_id, stream_bytes=STREAM_BYTES)
    if data:
        made.write(data)
    return made


HOLDER = """
import sys
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.table import TableWriter
from rrpa_sidecar.shm.writer import LogWriter
d = PlainDirectory(sys.argv[1])
held = [LogWriter.create(d, sys.argv[2], stream_bytes=131072),
        TableWriter.create(d, sys.argv[2], 2, bytes(16))]
held[0].write(b"abc")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(shm, new_id) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Another process with a log and a table of this id."""
    stream_id = new_id()
    command = [sys.executable, "-c", HOLDER, shm.path, stream_id]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield stream_id, process
        process.kill()


def test_what_another_process_holds_is_left_alone_until_the_kernel_lets_go(shm, holder):
    stream_id, process = holder
    names = shm.names()
    assert look(shm) == Here()
    assert shm.names() == names
    process.kill()
    process.wait()
    here = look(shm)
    assert shm.names() == [layout.log_name(stream_id)] == list(here.kept)
    assert here.reclaimed == {"table": 1}


def test_log_that_is_over_or_lost_is_kept_with_the_bytes_it_holds_and_found_once(shm, new_id):
    over, lost, empty = new_id(), new_id(), new_id()
    log_of(shm, over, b"x" * 5000).finish(End(reason=1))
    log_of(shm, lost).close()
    log_of(shm, empty, b"").close()
    here = look(shm)
    assert here.kept == {
        layout.log_name(over): 4096 + 8192,
        layout.log_name(lost): 4096 + 4096,
        layout.log_name(empty): 4096,
    }
    assert look(shm, here) is here  # `keep` fails for one that it has
    assert len(shm.names()) == 3


def test_log_that_somebody_here_will_remove_is_not_an_orphan(shm, new_id):
    mine = new_id()
    log_of(shm, mine).finish(End())
    assert look(shm, Here(known={layout.log_name(mine)})).kept == {}


def test_tables_and_unborn_files_without_an_owner_go_at_once(shm, new_id):
    TableWriter.create(shm, new_id(), 4, bytes(16)).close()
    empty, begun, alive = (layout.temporary_name(new_id(), 1) for _ in range(3))
    os.close(shm.create(empty, STREAM_BYTES))
    fd = shm.create(begun, STREAM_BYTES)
    os.pwrite(fd, log_header(layout.id_of(begun), STREAM_BYTES, 1), 0)
    os.close(fd)
    living = shm.create(alive, STREAM_BYTES)
    fcntl.flock(living, fcntl.LOCK_EX)
    here = look(shm)
    assert shm.names() == [alive]
    assert (here.kept, here.reclaimed) == ({}, {"table": 1, "temporary": 2})
    os.close(living)


def foreign(shm: PlainDirectory, other: str, kind: str, path: Path) -> None:
    """Make something at `path` that is no segment of this name."""
    if kind == "directory":
        path.mkdir()
    elif kind == "full directory":
        path.mkdir()
        (path / "file").write_bytes(b"x")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link to a segment":
        log_of(shm, other).close()
        os.rename(f"{shm.path}/{layout.log_name(other)}", f"{shm.path}/elsewhere")
        path.symlink_to(f"{shm.path}/elsewhere")
    elif kind == "dangling link":
        path.symlink_to(f"{shm.path}/nowhere")
    elif kind == "hard link":
        log_of(shm, layout.id_of(path.name)).close()
        os.rename(f"{shm.path}/{layout.log_name(layout.id_of(path.name))}", path)
        os.link(path, f"{shm.path}/second")
    elif kind == "other content":
        path.write_bytes(b"another product's file")
    elif kind == "empty":
        path.touch()
    elif kind == "unreadable head":
        path.write_bytes(b"RRPA")
    elif kind == "another id":
        log_of(shm, other).close()
        os.rename(f"{shm.path}/{layout.log_name(other)}", path)
    else:
        assert kind == "magic of another kind"
        magic = layout.TABLE_MAGIC if layout.kind_of(path.name) == "log" else b"RRPAXXX\0"
        head = magic + bytes(16) + bytes.fromhex(layout.id_of(path.name))
        path.write_bytes(head.ljust(STREAM_BYTES, b"\0"))


KINDS = [
    "directory", "full directory", "fifo", "link to a segment", "dangling link", "hard link",
    "other content", "empty", "unreadable head", "another id", "magic of another kind",
]  # fmt: skip


@pytest.mark.parametrize("what", ["log", "table", "temporary"])
@pytest.mark.parametrize("kind", KINDS)
def test_foreign_files_under_our_names_are_never_touched(shm, new_id, kind, what):
    if (kind, what) == ("empty", "temporary"):
        pytest.skip("a writer killed at once leaves just this")
    own = new_id()
    names = {
        "log": layout.log_name(own),
        "table": layout.table_name(own),
        "temporary": layout.temporary_name(own, 7),
    }
    path = Path(shm.path, names[what])
    foreign(shm, new_id(), kind, path)
    before = {name: os.lstat(f"{shm.path}/{name}") for name in os.listdir(shm.path)}
    for _ in range(2):
        assert look(shm) == Here()
    found = {name: os.lstat(f"{shm.path}/{name}") for name in os.listdir(shm.path)}
    assert {n: (s.st_ino, s.st_size, s.st_nlink, s.st_mtime_ns) for n, s in found.items()} == {
        n: (s.st_ino, s.st_size, s.st_nlink, s.st_mtime_ns) for n, s in before.items()
    }


@pytest.mark.parametrize(
    "name",
    [
        "rrpa_", "rrpa_x", "rrpa_tmp_mine", "rrpa_" + "A" * 32, "rrpa_" + "0" * 33,
        "rrpa_table_" + "0" * 31, "rrpa_" + "0" * 32 + "\n", "rrpa_" + "0" * 32 + ".bak",
        "sem.rrpa_" + "0" * 32, "psm_0123", os.fsdecode(b"rrpa_\xff"),
    ],
)  # fmt: skip
def test_files_under_other_names_are_never_touched_whatever_they_hold(shm, name):
    log_of(shm, "0" * 32).close()
    os.rename(f"{shm.path}/{layout.log_name('0' * 32)}", f"{shm.path}/{name}")
    assert look(shm) == Here()
    assert os.listdir(shm.path) == [name]


def fill(shm: PlainDirectory, new_id: Any, count: int) -> None:
    """Leave behind what `count` engines do that die with a log and a birth each."""
    for _ in range(count):
        log_of(shm, new_id(), b"").close()
        TableWriter.create(shm, new_id(), 1, bytes(16)).close()
        os.close(shm.create(layout.temporary_name(new_id(), 1), STREAM_BYTES))


def test_a_directory_full_of_leftovers_is_looked_through_in_short_turns(shm, new_id):
    fill(shm, new_id, LOOKS_PER_TURN)
    here, turns = Here(), 0
    orphans = looker(shm, here)
    while orphans.due_ns == 0:
        seen = len(here.kept) + here.reclaimed.total()
        orphans.turn(0)
        assert len(here.kept) + here.reclaimed.total() <= seen + LOOKS_PER_TURN
        turns += 1
    assert turns == 3
    assert here.reclaimed == {"table": LOOKS_PER_TURN, "temporary": LOOKS_PER_TURN}
    assert shm.names() == sorted(here.kept)


def test_names_that_are_known_are_gone_through_in_long_turns(shm, new_id, monkeypatch):
    known = [layout.log_name(new_id()) for _ in range(2 * NAMES_PER_TURN)]
    monkeypatch.setattr(shm, "names", lambda: ["rrpa_strange", *known])
    orphans = looker(shm, Here(known=set(known)))
    turns = 0
    while orphans.due_ns == 0:
        orphans.turn(0)
        turns += 1
    assert turns == 3


def test_the_next_look_comes_after_the_interval_and_not_before(shm, new_id):
    here = Here()
    orphans = looker(shm, here, now_ns=5)
    orphans.turn(4)
    assert orphans.due_ns == 5
    orphans.turn(7)
    assert orphans.due_ns == 7 + INTERVAL_NS
    log_of(shm, new_id()).close()
    orphans.turn(7 + INTERVAL_NS - 1)
    assert here.kept == {}
    orphans.turn(7 + INTERVAL_NS)
    assert len(here.kept) == 1


@pytest.mark.parametrize("when", ["listing", "looking"])
def test_too_many_open_files_end_a_look_and_not_the_sidecar(shm, new_id, monkeypatch, when):
    fill(shm, new_id, 1)
    here, names = Here(), shm.names()
    orphans = looker(shm, here)
    if when == "looking":
        monkeypatch.setattr(shm, "names", lambda: list(names))
    with too_many_open_files():
        orphans.turn(0)
    monkeypatch.undo()
    assert (here, shm.names()) == (Here(), names)
    orphans.turn(INTERVAL_NS)
    assert (len(here.kept), here.reclaimed.total()) == (1, 2)


# --- Others who do the same at the same time ----------------------------------------------


def test_two_cleaners_at_once_remove_each_file_once_and_none_that_is_held(shm, new_id, holder):
    fill(shm, new_id, 150)
    held = {layout.log_name(holder[0]), layout.table_name(holder[0])}
    read, write = os.pipe()

    def clean() -> None:
        os.read(read, 1)  # both begin together
        here = look(shm)
        removed = [name for name in here.kept if reclaim(shm, name) is Reclaim.REMOVED]
        os.write(write_counts, f"{here.reclaimed.total()} {len(removed)}\n".encode())

    counts, write_counts = os.pipe()
    cleaners = [fork(clean) for _ in range(2)]
    os.write(write, b"go")
    assert [exit_of(pid) for pid in cleaners] == [0, 0]
    told = [list(map(int, line.split())) for line in os.read(counts, 100).decode().splitlines()]
    for fd in (read, write, counts, write_counts):
        os.close(fd)
    look(shm, rest := Here())  # whom the other's lock sent away has come back by now
    removed = [name for name in rest.kept if reclaim(shm, name) is Reclaim.REMOVED]
    assert set(shm.names()) == held
    assert sum(each[0] for each in told) + rest.reclaimed.total() == 300
    assert sum(each[1] for each in told) + len(removed) == 150


def test_a_cleaner_killed_between_lock_and_unlink_leaves_the_file_to_the_next(
    shm, new_id, monkeypatch
):
    TableWriter.create(shm, new_id(), 1, bytes(16)).close()
    names = shm.names()

    def clean() -> None:
        monkeypatch.setattr(shm, "unlink", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        look(shm)

    assert exit_of(fork(clean)) == -signal.SIGKILL
    assert shm.names() == names
    assert look(shm).reclaimed == {"table": 1}
    assert shm.names() == []


def test_a_cleaner_that_stands_between_lock_and_unlink_is_waited_for(shm, new_id):
    table_id = new_id()
    TableWriter.create(shm, table_id, 1, bytes(16)).close()
    with open(f"{shm.path}/{layout.table_name(table_id)}", "rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert look(shm) == Here()
    assert look(shm).reclaimed == {"table": 1}


def test_a_file_whose_name_got_a_new_owner_meanwhile_is_left_to_it(shm, new_id, monkeypatch):
    """Between the cleaner's open and its unlink, the name leads to a live file."""
    table_id = new_id()
    TableWriter.create(shm, table_id, 1, bytes(16)).close()
    real, born = shm.open, []

    def opened(name: str, *, write: bool = False) -> int:
        fd = real(name, write=write)
        if not born:
            os.rename(f"{shm.path}/{name}", f"{shm.path}/old")
            born.append(TableWriter.create(shm, table_id, 1, bytes(16)))
        return fd

    monkeypatch.setattr(shm, "open", opened)
    for _ in range(2):
        assert look(shm) == Here()
    assert shm.names() == [layout.table_name(table_id)]
    born[0].close()
    assert look(shm).reclaimed == {"table": 1}


def test_a_writer_at_birth_and_a_cleaner_that_never_rests_both_get_through(shm, new_id):
    """A file that is created and not locked yet looks abandoned: its writer begins again."""
    read, write = os.pipe()

    def clean() -> None:
        os.close(write)
        os.set_blocking(read, False)
        while True:
            look(shm)
            try:
                os.read(read, 1)
            except BlockingIOError:
                continue
            return

    cleaner = fork(clean)
    os.close(read)
    born = [log_of(shm, new_id()) for _ in range(300)]
    os.close(write)
    assert exit_of(cleaner) == 0
    assert shm.names() == sorted(layout.log_name(each.stream_id) for each in born)
    for each in born:
        each.close()
