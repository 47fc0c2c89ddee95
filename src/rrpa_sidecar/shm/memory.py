"""How much more memory this process may use before the kernel kills for it.

A page of a file in memory is charged to the control group (cgroup) of whoever writes it first: of
a stream's, to the engine's. At a group's limit no call fails; the kernel kills a process of the
group. So a writer asks here before it touches new pages, and refuses while there still is room.
What the groups do not say, no file or no limit, limits nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rrpa_sidecar.clock import Clock, SystemClock
from rrpa_sidecar.errors import ShmFull

FRESH_NS = 10_000_000
"""How long a measurement is believed, less what was taken since."""
FRESH_WITHOUT_LIMIT_NS = 1_000_000_000
"""The same where no group has a limit: limits can be set while we run. A measurement of three
groups takes 45 µs (a container sees one), a `take` between two 0.2; a log asks once in 64 KiB."""
NEAR_BYTES = 64 * 1024 * 1024
"""With less room than this, the pages that the kernel could drop are counted too."""
LEAST_RESERVE_BYTES = 8 * 1024 * 1024
MOST_RESERVE_BYTES = 128 * 1024 * 1024
_RESERVE_SHARE = 16
_NO_LIMIT = 1 << 60
"""Version 1 says 2^63 less a page for "none"."""
# Caches of files on disk. Pages of tmpfs are not among them: without swap they cannot be dropped.
_DROPPABLE = (b"inactive_file", b"active_file", b"slab_reclaimable")
_READ_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Room:
    """What one group has left. `used_bytes`: what the kernel cannot take back by itself."""

    limit_bytes: int
    used_bytes: int

    @property
    def reserve_bytes(self) -> int:
        """Kept free for the process itself and for pages that were granted, not written yet."""
        share = self.limit_bytes // _RESERVE_SHARE
        return min(max(share, LEAST_RESERVE_BYTES), MOST_RESERVE_BYTES)

    @property
    def left_bytes(self) -> int:
        """What may still be taken; negative inside the reserve."""
        return self.limit_bytes - self.used_bytes - self.reserve_bytes


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A folder of the kernel's with a limit and a use."""

    folder: str
    limit_file: str
    usage_file: str

    def room(self) -> Room | None:
        """Return what is left; None: there is no limit, or nothing that says so."""
        try:
            limit, used = int(self._read(self.limit_file)), int(self._read(self.usage_file))
        except (OSError, ValueError):  # gone, not for us to read, "max"
            return None
        if limit >= _NO_LIMIT:
            return None
        room = Room(limit, used)
        if room.left_bytes >= NEAR_BYTES:
            return room
        return Room(limit, max(used - self._droppable_bytes(), 0))

    def _droppable_bytes(self) -> int:
        try:
            lines = self._read("memory.stat").splitlines()
        except OSError:
            return 0
        found = dict(line.split(b" ", 1) for line in lines if b" " in line)
        # In version 1 the plain names are of this group alone, and those of all below it longer.
        counts = (found.get(b"total_" + each, found.get(each, b"0")) for each in _DROPPABLE)
        return sum(map(int, counts))

    def _read(self, name: str) -> bytes:
        fd = os.open(f"{self.folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _READ_BYTES)
        finally:
            os.close(fd)


class Memory:
    """The tightest of some groups. Any thread: a race grants a page too much, of the reserve."""

    def __init__(self, groups: Sequence[ControlGroup], clock: Clock | None = None) -> None:
        self._groups = tuple(groups)
        self._clock = clock or SystemClock()
        self._stale_ns = 0
        self._left_bytes = 0

    def take(self, size: int) -> None:
        """Count on `size` bytes more.

        Raises:
          ShmFull: they would go into the reserve below a limit; the numbers are in the text.
        """
        if not self._groups:
            return
        if size > self._left_bytes or self._clock.now_ns() >= self._stale_ns:
            self._measure(size)
        self._left_bytes -= size

    def _measure(self, size: int) -> None:
        now_ns = self._clock.now_ns()
        rooms = [room for group in self._groups if (room := group.room()) is not None]
        if not rooms:
            self._stale_ns, self._left_bytes = now_ns + FRESH_WITHOUT_LIMIT_NS, _NO_LIMIT
            return
        tightest = min(rooms, key=lambda room: room.left_bytes)
        self._stale_ns, self._left_bytes = now_ns + FRESH_NS, tightest.left_bytes
        if size > tightest.left_bytes:
            raise ShmFull(
                f"{tightest.used_bytes} of {tightest.limit_bytes} bytes below the memory limit"
                f" (cgroup) are used, {tightest.reserve_bytes} kept free, {size} wanted; raise the"
                " limit, or let fewer streams run"
            )


@cache
def own_memory() -> Memory:
    """Return the memory of this process, by the groups that it is in when first asked."""
    with contextlib.suppress(OSError):
        return Memory(list(groups_of(_lines("/proc/self/cgroup"), _lines("/proc/self/mountinfo"))))
    return Memory([])


def groups_of(memberships: Sequence[str], mounts: Sequence[str]) -> Iterator[ControlGroup]:
    """Yield the memory groups of a process, its own first, then those around it, of both versions.

    memberships, mounts: lines of /proc/PID/cgroup and of /proc/PID/mountinfo.
    """
    paths: dict[str, str] = {}
    for line in memberships:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            paths["cgroup2"] = path
        elif "memory" in controllers.split(","):
            paths["cgroup"] = path
    for line in mounts:
        fields, _, super_fields = line.partition(" - ")
        kind, _, options = super_fields.split(" ", 2)
        if kind not in paths or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        root, point = fields.split(" ")[3:5]
        yield from _upwards(kind, point, _below(paths[kind], root))


def _below(path: str, root: str) -> str:
    """Return `path` as seen from `root`; a container's mount shows its own group as the root."""
    if root == "/":
        return path.rstrip("/")
    inside = path == root or path.startswith(root + "/")
    return path[len(root) :] if inside else ""


def _upwards(kind: str, point: str, path: str) -> Iterator[ControlGroup]:
    limit_file, usage_file = (
        ("memory.max", "memory.current")
        if kind == "cgroup2"
        else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    while True:
        if os.path.exists(f"{point}{path}/{limit_file}"):
            yield ControlGroup(f"{point}{path}", limit_file, usage_file)
        if not path:
            return
        path = path.rpartition("/")[0]


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
