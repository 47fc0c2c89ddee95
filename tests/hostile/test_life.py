"""Peers that are slow, silent, deaf or many, against the real daemon."""

from __future__ import annotations

import contextlib
import socket
import struct
import time

import pytest

from tests.harness import raw_h2
from tests.harness.processes import Stack, eventually
from tests.harness.raw_h2 import (
    ACK,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
)
from tests.hostile.attacks import ENDLESS, PLAIN, SHORT
from tests.hostile.conftest import Neighbour, request
from tests.hostile.frames import (
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    block,
    call,
    frame,
    head,
    reset,
    settings,
)

TIMEOUT_S = 30.0

CALL = PREFACE + frame(SETTINGS) + call(1, SHORT)
SETTINGS_LIMIT = 2 * (2**26 // 2**18) + 4096
"""Calls of one connection: streams that fit into memory, none queued, as many that read resumed
ones, and room for refusals."""


@pytest.mark.parametrize("size", [1, 7, 24, 33])
def test_a_call_that_comes_byte_by_byte_is_a_call_like_any_other(
    stack: Stack, neighbour: Neighbour, door: str, size: int
) -> None:
    with raw_h2.Connection(door, greet=False) as peer:
        if peer.socket.family != socket.AF_UNIX:
            peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(CALL), size):
            peer.socket.sendall(CALL[at : at + size])
            time.sleep(0)  # so that the daemon reads it alone
        frames = peer.answer(1, TIMEOUT_S)
    assert b"hi" in b"".join(each.payload for each in frames)
    assert raw_h2.field(frames, b"grpc-status") == b"0"


@pytest.mark.parametrize(
    "raw",
    [b"", PREFACE[:10], PREFACE, PREFACE + frame(PING, b"pingpong"), PREFACE + frame(SETTINGS)[:5]],
    ids=["nothing", "half a preface", "a preface", "no SETTINGS", "half of SETTINGS"],
)
def test_a_peer_that_does_not_greet_is_closed_in_time(impatient: Stack, raw: bytes) -> None:
    began_s = time.monotonic()
    with raw_h2.Connection(impatient.daemon.envoy_socket, greet=False) as peer:
        peer.socket.sendall(raw)
        peer.socket.settimeout(TIMEOUT_S)
        told = b""
        while part := peer.socket.recv(65536):  # by hand: nothing of theirs is acknowledged
            told += part
    # libuv's clock has whole milliseconds, so a timer may be early by one.
    assert time.monotonic() - began_s >= 0.2 - 0.001
    assert told[-17:-8] == frame(GOAWAY, bytes(8))[:9]
    assert told[-1] == PROTOCOL_ERROR


def test_a_peer_that_stops_reading_is_not_read_any_more_and_then_gone(impatient: Stack) -> None:
    """It asks and asks, and takes no answer: memory stays, and the unanswered ping ends it."""
    daemon = impatient.daemon
    rss_bytes = daemon.rss_bytes()
    with raw_h2.Connection(daemon.envoy_socket) as peer:
        peer.socket.sendall(b"".join(call(at, ENDLESS) for at in range(1, 41, 2)))
        peer.socket.settimeout(TIMEOUT_S)
        sent = 0
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for at in range(41, 2_000_001, 2):
                sent += peer.socket.send(head(at, block(path="/no"), END_HEADERS | END_STREAM))
        assert sent < 10_000_000
        assert daemon.rss_bytes() - rss_bytes < 16 * 2**20
    eventually(lambda: daemon.metric("rrpa_active_streams") == 0, 10, "its streams are left")
    assert "too many" not in daemon.stderr, "it was closed for another reason"


def test_windows_of_0_hold_streams_and_nothing_else(stack: Stack, neighbour: Neighbour) -> None:
    """20 answers of 200 KB each that nobody takes: they lie in the log, not in the sidecar."""
    daemon = stack.daemon
    big = request(tokens=["61" * 1000], repeat=200)
    with raw_h2.Connection(daemon.envoy_socket) as peer:
        peer.socket.sendall(settings((4, 0)))
        peer.socket.sendall(b"".join(call(at, big) for at in range(1, 41, 2)))
        for _ in range(20):
            assert peer.until(HEADERS, timeout_s=TIMEOUT_S) is not None
        rss_bytes = daemon.rss_bytes()
        eventually(lambda: len(daemon.segments()) == 21, 10, "all streams are open")
        time.sleep(0.5)
        assert daemon.rss_bytes() - rss_bytes < 2 * 2**20
        peer.socket.sendall(b"".join(reset(at) for at in range(1, 41, 2)))
        eventually(lambda: len(daemon.segments()) == 1, 10, "its streams are left")


@pytest.mark.parametrize("cut", [1, 9, 20, 60])
def test_a_peer_that_leaves_in_the_middle_of_a_frame_leaves_nothing(
    stack: Stack, neighbour: Neighbour, door: str, cut: int
) -> None:
    for abort in (False, True):
        with raw_h2.Connection(door) as peer:
            peer.socket.sendall(call(1, ENDLESS) + call(3, ENDLESS)[:-cut])
            assert peer.until(HEADERS, timeout_s=TIMEOUT_S) is not None
            if abort:
                peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        eventually(lambda: len(stack.daemon.segments()) == 1, 10, "its stream is left")


def test_one_stream_more_than_allowed_is_refused_and_no_other(
    stack: Stack, neighbour: Neighbour
) -> None:
    with raw_h2.Connection(stack.daemon.envoy_socket) as peer:
        first = peer._take(9, TIMEOUT_S)
        assert first is not None
        assert first[3] == SETTINGS
        pairs = peer._take(int.from_bytes(first[:3], "big"), TIMEOUT_S) or b""
        announced = dict(struct.iter_unpack(">HI", pairs))[3]
        assert announced == SETTINGS_LIMIT
        peer.socket.sendall(b"".join(head(2 * at + 1) for at in range(announced + 1)))
        refused = peer.until(RST_STREAM, timeout_s=TIMEOUT_S)
        assert refused is not None
        assert (refused.stream, refused.payload[3]) == (2 * announced + 1, REFUSED_STREAM)
        peer.socket.sendall(reset(1) + call(2 * announced + 3, b"", PLAIN))
        frames = peer.answer(2 * announced + 3, TIMEOUT_S)
        assert raw_h2.field(frames, b"grpc-status") == b"0"


def test_a_peer_that_answers_pings_is_kept_however_silent(impatient: Stack) -> None:
    with raw_h2.Connection(impatient.daemon.envoy_socket) as peer:
        pings = 0
        while pings < 3:
            each = peer.until(PING, timeout_s=TIMEOUT_S)
            assert each is not None
            pings += not each.flags & ACK
        peer.socket.sendall(call(1, b"", PLAIN))
        assert raw_h2.field(peer.answer(1, TIMEOUT_S), b"grpc-status") == b"0"
