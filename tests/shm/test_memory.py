"""Memory limits of control groups, as the kernel's files tell them (G51)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rrpa_sidecar.errors import ShmFull
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.memory import (
    FRESH_NS,
    FRESH_WITHOUT_LIMIT_NS,
    ControlGroup,
    Memory,
    groups_of,
)
from rrpa_sidecar.shm.writer import LogWriter
from tests.shm.support import path_of, reader

MIB = 1024 * 1024
LIMIT = 256 * MIB
RESERVE = 16 * MIB
ID = "0" * 32

V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")
V2 = ("memory.max", "memory.current")


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class FakeGroup:
    """A folder with the kernel's files; of version 2 unless said otherwise."""

    def __init__(self, folder: Path, files: tuple[str, str] = V2) -> None:
        self.folder = folder
        self.limit_file, self.usage_file = files
        folder.mkdir(parents=True, exist_ok=True)
        self.set(LIMIT, 0)

    def set(self, limit: object, used: object, stat: str = "anon 5\nshmem 7\n") -> None:
        (self.folder / self.limit_file).write_text(f"{limit}\n")
        (self.folder / self.usage_file).write_text(f"{used}\n")
        (self.folder / "memory.stat").write_text(stat)

    @property
    def group(self) -> ControlGroup:
        return ControlGroup(str(self.folder), self.limit_file, self.usage_file)


@pytest.fixture
def fake(tmp_path: Path) -> FakeGroup:
    return FakeGroup(tmp_path / "group")


def test_what_is_left_below_the_reserve_may_be_taken_and_one_byte_more_not(
    fake: FakeGroup, clock: Clock
) -> None:
    fake.set(LIMIT, 200 * MIB)
    Memory([fake.group], clock).take(LIMIT - RESERVE - 200 * MIB)
    with pytest.raises(ShmFull) as caught:
        Memory([fake.group], clock).take(LIMIT - RESERVE - 200 * MIB + 1)
    for number in (200 * MIB, LIMIT, RESERVE, LIMIT - RESERVE - 200 * MIB + 1):
        assert str(number) in str(caught.value)
    assert len(str(caught.value)) < 170, "with what others put before it, it fits 199 bytes"


def test_what_was_taken_counts_until_the_kernel_is_asked_again(
    fake: FakeGroup, clock: Clock
) -> None:
    memory = Memory([fake.group], clock)
    fake.set(LIMIT, LIMIT - RESERVE - 10)
    memory.take(6)
    fake.set(LIMIT, LIMIT - RESERVE - 4)
    memory.take(4)  # measured once, and not again for this
    clock.now += FRESH_NS
    memory.take(4)  # what was granted shows in the group's use now
    with pytest.raises(ShmFull):
        memory.take(5)


def test_room_that_came_back_is_seen_at_once(fake: FakeGroup, clock: Clock) -> None:
    memory = Memory([fake.group], clock)
    fake.set(LIMIT, LIMIT)
    with pytest.raises(ShmFull):
        memory.take(1)
    fake.set(LIMIT, 0)
    memory.take(1)


@pytest.mark.parametrize(
    ("files", "unlimited"), [(V1, (1 << 63) - 4096), (V2, "max"), (V2, ""), (V2, "?")]
)
def test_group_that_says_no_limit_limits_nothing(
    tmp_path: Path, clock: Clock, files: tuple[str, str], unlimited: object
) -> None:
    fake = FakeGroup(tmp_path / "group", files)
    fake.set(unlimited, 1 << 50)
    memory = Memory([fake.group], clock)
    memory.take(1 << 50)
    fake.set(LIMIT, LIMIT)  # somebody sets one while we run
    clock.now += FRESH_WITHOUT_LIMIT_NS
    with pytest.raises(ShmFull):
        memory.take(1)


def test_group_without_files_limits_nothing(tmp_path: Path) -> None:
    Memory([ControlGroup(str(tmp_path), *V2)]).take(1 << 50)
    Memory([]).take(1 << 50)


@pytest.mark.parametrize(
    ("files", "stat"),
    [
        (V1, "inactive_file 1\nactive_file 1\ntotal_inactive_file {}\ntotal_active_file {}\n"),
        (V2, "anon 1\ninactive_file {}\nactive_file {}\nslab_reclaimable 0\n"),
    ],
)
def test_caches_of_files_on_disk_are_room(
    tmp_path: Path, clock: Clock, files: tuple[str, str], stat: str
) -> None:
    """A group whose model was read from disk is always full of it, and harmed by nothing."""
    fake = FakeGroup(tmp_path / "group", files)
    fake.set(LIMIT, LIMIT, stat.format(60 * MIB, 40 * MIB))
    Memory([fake.group], clock).take(100 * MIB - RESERVE)
    with pytest.raises(ShmFull):
        Memory([fake.group], clock).take(100 * MIB - RESERVE + 1)


def test_the_tightest_group_decides(tmp_path: Path, clock: Clock) -> None:
    own, pod = FakeGroup(tmp_path / "pod" / "own"), FakeGroup(tmp_path / "pod")
    pod.set(LIMIT, LIMIT - RESERVE - 5)
    with pytest.raises(ShmFull):
        Memory([own.group, pod.group], clock).take(6)
    Memory([own.group, pod.group], clock).take(5)


MOUNTS_V1 = "35 31 0:32 {root} {point} rw,relatime shared:9 - cgroup cgroup rw,memory"
MOUNTS_V2 = "36 31 0:33 {root} {point} rw,relatime - cgroup2 cgroup2 rw"


@pytest.mark.parametrize(
    ("membership", "mount", "root", "below"),
    [
        ("4:memory:/pod/own", MOUNTS_V1, "/", ["pod/own", "pod"]),  # of the machine
        ("4:memory:/pod/own", MOUNTS_V1, "/pod/own", ["."]),  # a container's view, version 1
        ("4:cpu,memory:/else", MOUNTS_V1, "/pod/own", ["."]),
        ("0::/pod/own", MOUNTS_V2, "/", ["pod/own", "pod"]),
        ("0::/", MOUNTS_V2, "/", ["."]),  # a container's view, version 2
    ],
)
def test_groups_are_found_where_they_are_mounted(
    tmp_path: Path, membership: str, mount: str, root: str, below: list[str]
) -> None:
    files = V2 if mount is MOUNTS_V2 else V1
    for each in below:
        FakeGroup(tmp_path / each, files)
    mounts = ["31 23 0:28 / /sys rw - tmpfs tmpfs rw", mount.format(root=root, point=tmp_path)]
    other = "5:devices:/pod" if membership.startswith("0") else "0::/"
    found = list(groups_of([other, membership], mounts))
    assert [Path(group.folder) for group in found] == [tmp_path / each for each in below]
    assert {group.limit_file for group in found} == {files[0]}


def test_own_groups_of_this_machine_can_be_read() -> None:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    Memory(list(groups_of(Path("/proc/self/cgroup").read_text().splitlines(), lines))).take(1)


# --- The writer --------------------------------------------------------------------------


def test_log_is_not_born_without_memory_for_its_first_page(
    plain: PlainDirectory, fake: FakeGroup, clock: Clock
) -> None:
    fake.set(LIMIT, LIMIT - RESERVE - layout.PAGE_BYTES)
    with pytest.raises(ShmFull, match="memory limit"):
        LogWriter.create(plain, ID, memory=Memory([fake.group], clock))
    assert os.listdir(plain.path) == []


def test_writer_asks_when_it_enters_a_page_and_a_refused_token_leaves_the_log_whole(
    plain: PlainDirectory, fake: FakeGroup, clock: Clock
) -> None:
    page = layout.PAGE_BYTES
    writer = LogWriter.create(plain, ID, stream_bytes=8 * page, memory=Memory([fake.group], clock))
    fake.set(LIMIT, LIMIT)
    clock.now += FRESH_NS
    writer.write(b"a" * page)  # granted at birth
    with pytest.raises(ShmFull, match="memory limit"):
        writer.write(b"b")
    blocks = path_of(plain, ID).stat().st_blocks
    fake.set(LIMIT, LIMIT - RESERVE - 2 * page)
    writer.write(b"c" * (page + 1))  # two pages at once
    assert path_of(plain, ID).stat().st_blocks > blocks
    fake.set(LIMIT, LIMIT)
    clock.now += FRESH_NS
    writer.write(b"d" * (page - 1))  # to the end of what was granted
    with pytest.raises(ShmFull):
        writer.write(b"e")
    writer.finish(End())  # the end's page is there since birth
    read = reader(plain, ID, 8 * page)
    committed, end = read.progress()
    assert end == End()
    assert read.read(0, committed) == b"a" * page + b"c" * (page + 1) + b"d" * (page - 1)
    read.close()
