"""When the kernel let go of each segment's lease, and what the segment held then.

The only judge of "the writer is gone" that does not ask the product.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import pathlib
import struct
import threading
import time
from typing import Self

from rrpa_sidecar.shm import layout

LOOK_S = 0.001


class Leases:
    """Watches all segments that are in a directory now.

    released_s: name → monotonic moment at which its lease was first seen free. A look takes
    the lock shared for a microsecond, as the product's own do.
    """

    def __init__(self, shm_dir: pathlib.Path) -> None:
        self.released_s: dict[str, float] = {}
        self._files = {
            path.name: os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in shm_dir.glob("rrpa_*")
        }
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_S):
            for name, fd in self._files.items():
                if name not in self.released_s and _is_free(fd):
                    self.released_s[name] = time.monotonic()

    @property
    def all_held(self) -> bool:
        return not any(_is_free(fd) for fd in self._files.values())

    @property
    def all_released(self) -> bool:
        """Whether each was seen free."""
        return self.released_s.keys() == self._files.keys()

    def free_s(self, stream_id: str) -> float:
        """Return the moment for a log, or for the table where there is no log; inf: still held."""
        name = layout.log_name(stream_id)
        if name not in self._files:
            (name,) = (each for each in self._files if each.startswith("rrpa_table_"))
        return self.released_s.get(name, math.inf)

    def committed(self, stream_id: str) -> bytes:
        """Return what a log holds, by its cursor; also after it was unlinked."""
        fd = self._files[layout.log_name(stream_id)]
        (cursor,) = struct.unpack("<Q", os.pread(fd, 8, layout.CURSOR_OFFSET))
        return os.pread(fd, cursor, layout.HEADER_BYTES)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()
        for fd in self._files.values():
            os.close(fd)


def _is_free(fd: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(fd, fcntl.LOCK_UN)
        return True
    return False
