"""Answers that nobody reads, on a clock that jumps."""

from __future__ import annotations

import pytest

from rrpa_sidecar.frontend.batched.open_calls import UNREAD_S
from tests.harness.raw_h2 import HEADERS, PREFACE, RST_STREAM
from tests.hostile.driver import CountingLoop, Driver, playground
from tests.hostile.frames import call, settings, window


class Unread:
    """A stream with 20,000 bytes to send and a window of `window_bytes`."""

    def __init__(self, loop: CountingLoop, driver: Driver, window_bytes: int) -> None:
        self._loop = loop
        self.connection, self.transport = driver.begin()
        self.connection.data_received(PREFACE + settings((4, window_bytes)) + call(1))
        (self.stream,) = driver.broker.streams
        self.stream.data(b"x" * 20_000)
        self._loop.turns()

    def after(self, seconds: float) -> int:
        """Let time pass; tell how often the stream was left by then."""
        self._loop.jump(seconds)
        self.connection.look()
        self._loop.turns(1)
        return self.stream.left

    def last_kind(self) -> int:
        """Return the kind of the last frame that was sent."""
        raw, kind = bytes(self.transport.out), -1
        while raw:
            kind, raw = raw[3], raw[9 + int.from_bytes(raw[:3], "big") :]
        return kind


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keepalive comes between; it has its own tests."""
    monkeypatch.setattr("rrpa_sidecar.frontend.batched.liveness.GREETING_S", 1e9)


@pytest.mark.parametrize(
    ("window_bytes", "kind"),
    [(0, HEADERS), (100, RST_STREAM)],
    ids=["nothing was sent: a status", "half a message was sent: a reset"],
)
def test_an_unread_answer_ends_after_its_time_and_not_a_second_before(
    window_bytes: int, kind: int
) -> None:
    with playground() as (loop, faults):
        unread = Unread(loop, Driver(loop, faults), window_bytes)
        assert unread.after(0) == 0
        assert unread.after(UNREAD_S - 1) == 0
        assert unread.after(1.1) == 1
        assert unread.last_kind() == kind
        assert not faults.found


@pytest.mark.parametrize(
    ("window_bytes", "more"),
    [(2**20, window(10)), (0, window(10, 1)), (0, settings((4, 10)))],
    ids=["of the connection", "of its stream", "of every stream"],
)
def test_window_begins_the_time_anew(window_bytes: int, more: bytes) -> None:
    with playground() as (loop, faults):
        unread = Unread(loop, Driver(loop, faults), window_bytes)
        if window_bytes:  # use up the connection's window
            for _ in range(5):
                unread.stream.data(b"x" * 20_000)
                loop.turns()
        assert unread.after(0) == 0
        assert unread.after(UNREAD_S - 1) == 0
        unread.connection.data_received(more)
        loop.turns()
        assert unread.after(0.5) == 0
        assert unread.after(UNREAD_S - 1) == 0
        assert unread.after(2) == 1


def test_a_stream_that_has_nothing_to_say_is_never_ended_for_it() -> None:
    with playground() as (loop, faults):
        driver = Driver(loop, faults)
        connection, _ = driver.begin()
        connection.data_received(PREFACE + settings((4, 0)) + call(1))
        for _ in range(5):
            loop.jump(UNREAD_S)
            connection.look()
        assert driver.broker.streams[0].left == 0
