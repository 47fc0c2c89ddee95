"""Logs never take the last descriptors: connections and the removal of files need them."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from collections.abc import Iterator

import pytest

from rrpa_sidecar.errors import CapacityExhausted
from rrpa_sidecar.shm import descriptors, layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reclaim import Reclaim, reclaim
from tests.shm.support import Ids, reader, writer


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """Let this process open `count` files more."""
    gc.collect()  # what waits for it would close files, and so make room, at any moment
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = [os.open(os.devnull, os.O_RDONLY)]
    # No gaps below, none open above (by tests before this one), and a limit worth a reserve.
    highest = max(200, *map(int, os.listdir("/proc/self/fd")))
    while held[-1] < highest:
        held.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (held[-1] + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in held:
            os.close(fd)


def test_logs_leave_a_reserve_from_which_files_are_still_removed(
    directory: SegmentDirectory, ids: Ids
) -> None:
    made = writer(directory, ids.new())
    made.finish(End())
    with descriptors_left(descriptors.RESERVED):
        with pytest.raises(CapacityExhausted):
            reader(directory, made.stream_id)
        with pytest.raises(CapacityExhausted, match=r"ulimit -n"):
            descriptors.check_room()
        assert reclaim(directory, layout.log_name(made.stream_id)) is Reclaim.REMOVED
    with descriptors_left(descriptors.RESERVED + 1):
        descriptors.check_room()
