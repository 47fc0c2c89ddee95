"""Hostile HTTP/2 against the real daemon: the offender ends as it should, and nobody else notices.

Each attack runs beside a neighbour on another connection, whose stream must arrive whole, right
and without a stall (conftest.py), and must leave nothing: no stream, no file, no memory.
"""

from __future__ import annotations

import contextlib

import pytest

from tests.harness import raw_h2
from tests.harness.processes import Stack, eventually
from tests.harness.raw_h2 import GOAWAY, HEADERS, RST_STREAM
from tests.hostile.attacks import BREACHES, FLOODS, ON_A_STREAM, PLAIN, Attack
from tests.hostile.conftest import Neighbour
from tests.hostile.frames import call, settings

TIMEOUT_S = 30.0
MEMORY_BYTES = 24 * 2**20
"""What an attack may leave in the allocator's hands; see test_memory.py for what may grow."""


def send(peer: raw_h2.Connection, attack: Attack) -> None:
    """Send all of an attack, or as much as the daemon lets."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for raw in attack.raw():
            peer.socket.sendall(raw)
            peer.gather()


def end_of(peer: raw_h2.Connection) -> list[raw_h2.Frame]:
    """Return all frames up to the connection's end."""
    frames = []
    while (frame := peer.frame(TIMEOUT_S)) is not None:
        frames.append(frame)
    return frames


def goes_on(peer: raw_h2.Connection) -> bool:
    """Tell whether the connection still serves calls."""
    peer.socket.sendall(settings((4, 65_535)) + call(101, b"", PLAIN))
    frames = peer.answer(101, TIMEOUT_S)
    return raw_h2.field(frames, b"grpc-status") == b"0"


def at_rest(stack: Stack, rss_bytes: int) -> None:
    """Nothing is left but the neighbour's stream."""
    daemon = stack.daemon
    eventually(lambda: daemon.metric("rrpa_active_streams") <= 1, 10, "no stream is left")
    eventually(lambda: len(daemon.segments()) <= 1, 10, "no file is left")
    assert daemon.rss_bytes() - rss_bytes < MEMORY_BYTES


@pytest.mark.parametrize("attack", FLOODS, ids=lambda each: each.name)
def test_a_peer_that_floods_is_told_why_and_closed(
    stack: Stack, neighbour: Neighbour, door: str, attack: Attack
) -> None:
    assert goaway_after(stack, door, attack) == attack.goaway


@pytest.mark.parametrize("attack", BREACHES, ids=lambda each: each.name)
def test_a_peer_that_breaks_the_protocol_is_told_why_and_closed(
    stack: Stack, neighbour: Neighbour, attack: Attack
) -> None:
    assert goaway_after(stack, stack.daemon.envoy_socket, attack) == attack.goaway


def goaway_after(stack: Stack, door: str, attack: Attack) -> int:
    """Attack; return the code of the GOAWAY that ends the connection."""
    rss_bytes = stack.daemon.rss_bytes()
    with raw_h2.Connection(door, greet=attack.greet) as peer:
        send(peer, attack)
        last = end_of(peer)[-1]
    assert last.kind == GOAWAY
    at_rest(stack, rss_bytes)
    return int.from_bytes(last.payload[4:8], "big")


@pytest.mark.parametrize("attack", ON_A_STREAM, ids=lambda each: each.name)
def test_what_is_wrong_with_one_call_ends_that_call_alone(
    stack: Stack, neighbour: Neighbour, attack: Attack
) -> None:
    rss_bytes = stack.daemon.rss_bytes()
    with raw_h2.Connection(stack.daemon.envoy_socket) as peer:
        send(peer, attack)
        if attack.reset is not None:
            stream, code = attack.reset
            frame = peer.until(RST_STREAM, GOAWAY, timeout_s=TIMEOUT_S)
            assert frame is not None
            assert (frame.kind, frame.stream) == (RST_STREAM, stream), frame
            assert int.from_bytes(frame.payload, "big") == code
        else:
            assert attack.status is not None
            stream, status = attack.status
            frames = peer.answer(stream, TIMEOUT_S)
            told = [dict(each.headers) for each in frames if each.kind == HEADERS]
            found = told[-1].get(b"grpc-status") or told[-1].get(b":status")
            assert found == status.encode(), told
        assert goes_on(peer)
    at_rest(stack, rss_bytes)
