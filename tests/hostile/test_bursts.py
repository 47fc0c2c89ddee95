"""Many calls at once: engines and first tokens have their turn between those who open them."""

from __future__ import annotations

from rrpa_sidecar.frontend.batched.gate import COST, TURN_COST
from rrpa_sidecar.frontend.batched.wire import DATA, HEADERS
from tests.harness.raw_h2 import PREFACE
from tests.hostile.driver import Driver, playground
from tests.hostile.frames import call, frame, settings

CONNECTIONS, CALLS = 4, 50
MOST = TURN_COST // (COST[HEADERS] + COST[DATA]) + 1
"""Calls that one turn opens at most."""


def test_calls_of_several_connections_are_opened_a_turn_at_a_time_and_in_turn() -> None:
    burst = PREFACE + settings() + b"".join(call(1 + 2 * number) for number in range(CALLS))
    with playground() as (loop, faults):
        driver = Driver(loop, faults)
        driver._server.streams_limit = CALLS
        peers = [driver.begin() for _ in range(CONNECTIONS)]
        for connection, transport in peers:
            connection.data_received(burst)
            assert not transport.reading, "what is not acted on yet is not added to"
        opened = [[len(connection._calls) for connection, _ in peers]]
        assert 0 < opened[0][0] <= MOST
        assert sum(opened[0]) == opened[0][0], "the first has a turn at once, the others wait"
        while sum(opened[-1]) < CONNECTIONS * CALLS:
            loop.turns(1)
            opened.append([len(connection._calls) for connection, _ in peers])
            assert 0 < sum(opened[-1]) - sum(opened[-2]) <= MOST
            assert max(opened[-1]) - min(opened[-1]) <= 2 * MOST  # the first asked again first
        loop.turns()
        assert all(transport.reading for _, transport in peers)
        assert not loop.faults
        assert not faults.found
        for connection, _ in peers:
            connection.connection_lost(None)


def test_connection_that_ends_while_it_waits_for_its_turn_is_left_alone() -> None:
    raw = PREFACE + settings() + frame(HEADERS) * 3
    with playground() as (loop, faults):
        driver = Driver(loop, faults)
        (one, _), (other, _) = driver.begin(), driver.begin()
        one.data_received(PREFACE + settings())
        other.data_received(raw)
        other.connection_lost(None)
        loop.turns()
        assert not loop.faults
        assert not faults.found
        one.connection_lost(None)
        assert not driver._server.connections
