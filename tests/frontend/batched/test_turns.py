"""Turns of connections, on a loop that is stepped by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rrpa_sidecar.frontend.batched.turns import Turns


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def look(loop: asyncio.AbstractEventLoop) -> None:
    """Let the loop look at its sockets once, and call what was ready."""
    loop.call_soon(loop.stop)
    loop.run_forever()


def test_first_has_its_turn_at_once_and_the_next_after_the_loop_has_looked(
    loop: asyncio.AbstractEventLoop,
) -> None:
    turns = Turns()
    assert turns.free(loop)
    assert not turns.free(loop)
    look(loop)
    assert turns.free(loop)


def test_others_have_one_turn_between_two_looks_in_the_order_they_asked(
    loop: asyncio.AbstractEventLoop,
) -> None:
    turns, had = Turns(), []

    def turn_of(name: str, again: int = 0) -> None:
        had.append(name)
        if again:
            turns.ask(loop, lambda: turn_of(name, again - 1))

    turns.ask(loop, lambda: turn_of("a", again=1))
    for name in "bc":
        turns.ask(loop, lambda name=name: turn_of(name))  # type: ignore[misc]
    assert had == []
    for number in range(1, 5):
        look(loop)
        assert len(had) == number
    assert had == ["a", "b", "c", "a"]
    assert not turns.free(loop)  # a turn was had since the last look
    look(loop)
    assert turns.free(loop)
