"""Two streams never mix, whatever ids clients choose (M6)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tests.conformance.asking import replay
from tests.conformance.callers import Answer, Caller, Request
from tests.harness.processes import Stack

STREAMS = 200
SAME = [("x-request-id", "mine"), ("x-stream-id", "also-mine")]
DELAYS_S = (1.5, 6.0, 24.0)
"""Before the first token, all have begun; on a busy machine only with one of the longer ones."""


def asked_all(
    caller: Caller, requests: Sequence[Request], most: Callable[[], float]
) -> tuple[list[Answer], float]:
    """Ask all at once; return the answers, and the largest number that `most` gave meanwhile."""
    seen = [0.0]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            seen[0] = max(seen[0], most())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answers = caller.ask_all(requests, SAME, at_once=len(requests))
    finally:
        over.set()
        watcher.join()
    return answers, seen[0]


def test_200_streams_at_once_with_the_same_ids_get_only_their_own_bytes(
    stack: Stack, caller: Caller
) -> None:
    tokens = [[f"{stream:03d}.{n:02d} ".encode() for n in range(20)] for stream in range(STREAMS)]
    for delay_s in DELAYS_S:
        requests = [replay(each, delay_s=delay_s, between_s=0.01) for each in tokens]
        answers, most = asked_all(
            caller, requests, lambda: stack.daemon.metric("rrpa_active_streams")
        )
        for each, answer in zip(tokens, answers, strict=True):
            assert answer.complete, (answer.code, answer.text)
            assert answer.data == b"".join(each)
            assert answer.headers["x-request-id"] == ["mine"]
            assert answer.headers["x-stream-id"] == ["also-mine"]
        names = {answer.headers["rrpa-stream-id"][0] for answer in answers}
        assert len(names) == STREAMS
        if most == STREAMS:
            return
    raise AssertionError(f"{most:g} of {STREAMS} streams were open at once")
