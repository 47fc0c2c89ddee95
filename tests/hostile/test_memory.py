"""What the daemon keeps of much traffic: later rounds are compared with the first one."""

from __future__ import annotations

import contextlib

import pytest

from tests.harness import raw_h2
from tests.harness.processes import Stack
from tests.hostile.attacks import BREACHES, FLOODS, PLAIN, Attack
from tests.hostile.frames import call, window
from tests.hostile.test_attacks import end_of, send

MIB = 2**20
GROWTH_BYTES = 3 * MIB
"""What rounds may add after the first. A leak of 100 bytes a call would be 10 MB in the first of
these tests, one of a kilobyte a connection 2 MB in the second."""

NAMES = {
    "rapid reset of bare headers",
    "resets provoked by window overflow",
    "CONTINUATION with bytes",
    "SETTINGS",
    "PING",
    "headers of half a megabyte",
    "a bomb of table references",
}
WORST = [each for each in FLOODS + BREACHES if each.name in NAMES]
assert len(WORST) == len(NAMES)


def short_calls(peer: raw_h2.Connection, first: int, count: int) -> int:
    """Make `count` calls, 100 at once; return the next stream's number."""
    for _ in range(count // 100):
        calls = (call(at, b"", PLAIN) for at in range(first, first + 200, 2))
        peer.socket.sendall(b"".join(calls) + window(100_000))
        first += 200
        frames = peer.answer(first - 2, 30)
        assert raw_h2.field(frames, b"grpc-status") == b"0"
    return first


def test_a_connection_keeps_nothing_of_30_000_calls(stack: Stack) -> None:
    daemon = stack.daemon
    with raw_h2.Connection(daemon.envoy_socket) as peer:
        following = short_calls(peer, 1, 5_000)
        rss_bytes = daemon.rss_bytes()
        short_calls(peer, following, 30_000)
        assert daemon.rss_bytes() - rss_bytes < GROWTH_BYTES


def test_2_000_connections_leave_nothing(stack: Stack) -> None:
    daemon = stack.daemon

    def connections(count: int) -> None:
        for _ in range(count):
            with raw_h2.Connection(daemon.envoy_socket) as peer:
                peer.socket.sendall(call(1, b"", PLAIN))
                assert peer.answer(1, 30)

    connections(500)
    rss_bytes = daemon.rss_bytes()
    connections(2_000)
    assert daemon.rss_bytes() - rss_bytes < GROWTH_BYTES


@pytest.mark.parametrize("attack", WORST, ids=lambda each: each.name)
def test_an_attack_again_and_again_adds_nothing(stack: Stack, attack: Attack) -> None:
    daemon = stack.daemon

    def rounds(count: int) -> None:
        for _ in range(count):
            with raw_h2.Connection(daemon.envoy_socket) as peer, contextlib.suppress(OSError):
                send(peer, attack)
                end_of(peer)

    rounds(1)
    rss_bytes = daemon.rss_bytes()
    rounds(3)
    assert daemon.rss_bytes() - rss_bytes < GROWTH_BYTES
