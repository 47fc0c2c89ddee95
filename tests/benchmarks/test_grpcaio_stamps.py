"""What a stamp of grpc.aio's peer means: the moment its token exists, also for one that is late."""

from __future__ import annotations

import time

import pytest

from benchmarks.servers.peers.grpcaio_server import stamped


@pytest.mark.parametrize("stamps", ["", "made", "handed"])
def test_a_stamp_is_the_moment_that_was_asked_for(stamps: str) -> None:
    before_ns = time.monotonic_ns()
    found = stamped(b"word ", stamps, made_ns=before_ns - 10**9)
    after_ns = time.monotonic_ns()
    least_ns, most_ns = {
        "": (None, None),
        "made": (before_ns - 10**9, before_ns - 10**9),
        "handed": (before_ns, after_ns),
    }[stamps]
    assert found.endswith(b"word ")
    if least_ns is None:
        assert found == b"word "
    else:
        assert least_ns <= int(found[:19]) <= most_ns
