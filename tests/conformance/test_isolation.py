"""Two streams never mix, whatever ids clients choose (M6)."""

from __future__ import annotations

import threading

from tests.conformance.asking import replay
from tests.conformance.callers import Caller
from tests.harness.processes import Stack, eventually

STREAMS = 200
SAME = [("x-request-id", "mine"), ("x-stream-id", "also-mine")]


def test_200_streams_at_once_with_the_same_ids_get_only_their_own_bytes(
    stack: Stack, caller: Caller
) -> None:
    tokens = [[f"{stream:03d}.{n:02d} ".encode() for n in range(20)] for stream in range(STREAMS)]
    requests = [replay(each, delay_s=1.5, between_s=0.01) for each in tokens]
    most = [0.0]

    def watch() -> None:
        def all_at_once() -> bool:
            most[0] = max(most[0], stack.daemon.metric("rrpa_active_streams"))
            return most[0] >= STREAMS

        eventually(all_at_once, timeout_s=30, what=f"{STREAMS} streams at once, not {most}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    answers = caller.ask_all(requests, SAME, at_once=STREAMS)
    watcher.join()
    assert most[0] == STREAMS
    for each, answer in zip(tokens, answers, strict=True):
        assert answer.complete, (answer.code, answer.text)
        assert answer.data == b"".join(each)
        assert answer.headers["x-request-id"] == ["mine"]
        assert answer.headers["x-stream-id"] == ["also-mine"]
    names = {answer.headers["rrpa-stream-id"][0] for answer in answers}
    assert len(names) == STREAMS
