"""The upstream of the gateways: its pace, its HTTP and its events; once as a real process."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import h11
import pytest

from benchmarks.load.client import Load, LoadClient, require_clean
from benchmarks.servers import PacedLoad
from benchmarks.servers.peers.chat import chat_running, warm
from benchmarks.servers.peers.gateway import start_upstream
from benchmarks.servers.peers.probe import Events
from benchmarks.servers.peers.upstream.events import BadRequest, parse
from benchmarks.servers.peers.upstream.http1 import PAGES, Connection
from benchmarks.servers.peers.upstream.pace import LATEST_S, Pace

PERIOD_S = 0.1


class Timer:
    """A loop's clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self._due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        self._due.append((when, callback))

    def advance(self, seconds: float) -> None:
        """Run what is due on the way, each at its own time."""
        end_s = self.now_s + seconds
        while self._due and self._due[0][0] <= end_s + 1e-9:
            when, callback = self._due.pop(0)
            self.now_s = max(self.now_s, when)
            callback()
        self.now_s = end_s

    def oversleep(self, seconds: float) -> None:
        """Let the time go by in one leap, then run what was due."""
        self.now_s += seconds
        self.advance(0)


class Transport:
    """Takes what a connection writes and gives it to a client's side of h11."""

    def __init__(self) -> None:
        self.client = h11.Connection(h11.CLIENT)
        self.closed = False

    def write(self, data: bytes) -> None:
        self.client.receive_data(data)

    def close(self) -> None:
        self.closed = True


class Peer:
    """One connection to an upstream whose time a test moves."""

    def __init__(self, tokens: tuple[str, ...] = ("one ", "two ")) -> None:
        self.timer = Timer()
        self.pace = Pace(self.timer, 1 / PERIOD_S)
        self.pace.start()
        self.transport = Transport()
        self.connection = Connection(self.pace, tokens)
        self.connection.connection_made(cast(asyncio.BaseTransport, self.transport))

    def send(self, method: str, path: str, body: bytes = b"") -> None:
        client = self.transport.client
        headers = [("host", "localhost"), ("content-length", str(len(body)))]
        parts = (
            h11.Request(method=method, target=path, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        self.connection.data_received(b"".join(client.send(each) or b"" for each in parts))

    def ask(self, **fields: Any) -> None:
        self.send("POST", "/v1/chat/completions", json.dumps({"stream": True, **fields}).encode())

    def read(self) -> tuple[h11.Response | None, bytes, bool]:
        """Return what came since the last call: head, body, and whether the answer is over."""
        head, body = None, b""
        while True:
            event = self.transport.client.next_event()
            if isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                if self.transport.client.our_state is h11.DONE:
                    self.transport.client.start_next_cycle()
                return head, body, True
            else:
                return head, body, False


def texts(body: bytes) -> list[str]:
    events = Events()
    events.feed(body, 0.0)
    return events.end().tokens


def test_each_step_gives_every_stream_one_token_and_the_last_one_ends_the_answer() -> None:
    peer = Peer()
    peer.ask(max_tokens=3, model="m")
    head, body, over = peer.read()
    assert head is not None
    assert head.status_code == 200
    assert dict(head.headers)[b"content-type"] == b"text/event-stream"
    assert b'"role":"assistant"' in body
    assert not over
    for token in ("one ", "two "):
        peer.timer.advance(PERIOD_S)
        _, body, over = peer.read()
        assert texts(body) == [token]
        assert not over
    peer.timer.advance(PERIOD_S)
    _, body, over = peer.read()
    assert texts(body) == ["one "]
    assert b'"finish_reason":"length"' in body
    assert body.endswith(b"data: [DONE]\n\n")
    assert over
    assert peer.pace.stats()["tokens_sent"] == 3
    assert peer.pace.stats()["streams"] == 0


def test_a_connection_takes_a_second_request_after_an_answer() -> None:
    peer = Peer()
    for _ in range(2):
        peer.ask(max_tokens=1)
        peer.timer.advance(PERIOD_S)
        _, body, over = peer.read()
        assert texts(body) == ["one "]
        assert over


def test_usage_comes_only_when_it_is_asked_for() -> None:
    peer = Peer()
    peer.ask(max_tokens=1, stream_options={"include_usage": True})
    peer.timer.advance(PERIOD_S)
    assert b'"completion_tokens":1' in peer.read()[1]
    peer.ask(max_tokens=1)
    peer.timer.advance(PERIOD_S)
    assert b"completion_tokens" not in peer.read()[1]


def test_a_peer_that_does_not_read_gets_nothing_and_loses_nothing() -> None:
    peer = Peer()
    peer.ask(max_tokens=2)
    peer.read()
    peer.connection.pause_writing()
    peer.timer.advance(3 * PERIOD_S)
    assert peer.read()[1] == b""
    assert peer.pace.stats()["held"] == 3
    peer.connection.resume_writing()
    peer.timer.advance(2 * PERIOD_S)
    _, body, over = peer.read()
    assert texts(body) == ["one ", "two "]
    assert over


def test_a_stream_whose_connection_is_lost_is_forgotten() -> None:
    peer = Peer()
    peer.ask(max_tokens=9)
    assert peer.pace.stats()["streams"] == 1
    peer.connection.connection_lost(None)
    assert peer.pace.stats()["streams"] == 0


def test_an_answer_without_stream_is_whole() -> None:
    peer = Peer()
    peer.ask(max_tokens=3, stream=False)
    _, body, over = peer.read()
    assert json.loads(body)["choices"][0]["message"]["content"] == "one two one "
    assert over


@pytest.mark.parametrize("path", [*PAGES, "/stats"])
def test_pages_that_gateways_ask_for_are_json(path: str) -> None:
    peer = Peer()
    peer.send("GET", path)
    head, body, _ = peer.read()
    assert head is not None
    assert head.status_code == 200
    json.loads(body)


def test_an_unknown_page_is_404_and_half_a_request_is_nothing() -> None:
    peer = Peer()
    peer.send("GET", "/absent")
    head, _, _ = peer.read()
    assert head is not None
    assert head.status_code == 404
    peer = Peer()
    peer.connection.data_received(b"POST /v1/chat/completions HT")
    assert peer.read() == (None, b"", False)


def test_what_is_not_http_is_answered_with_400_and_closed() -> None:
    peer = Peer()
    peer.transport.client.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    peer.connection.data_received(b"\x16\x03\x01 hello\r\n\r\n")
    head, _, _ = peer.read()
    assert head is not None
    assert head.status_code == 400
    assert peer.transport.closed


def test_a_length_of_1_is_the_least_and_the_newer_name_wins() -> None:
    assert parse(b'{"max_tokens": 1}').max_tokens == 1
    assert parse(b'{"max_tokens": 1, "max_completion_tokens": 2}').max_tokens == 2
    for body in (b'{"max_tokens": 0}', b"{}", b'{"max_tokens": "1"}', b"[]", b"{"):
        with pytest.raises(BadRequest, match="expected"):
            parse(body)


def test_steps_that_are_late_are_made_up_for_until_they_are_too_late() -> None:
    # The first step is due after one period; after it, the second is this late:
    edge_s = 2 * PERIOD_S + LATEST_S
    due = round(edge_s / PERIOD_S)
    for over_s, made in ((-0.01, due - 1), (0.01, 2)):
        peer = Peer()
        peer.timer.oversleep(edge_s + over_s)
        stats = peer.pace.stats()
        assert stats["steps"] == made
        assert stats["steps"] + stats["late_steps"] == (due - 1 if over_s < 0 else due)


@pytest.fixture
def upstream(short_dir: Path) -> Any:
    """A real upstream with 200 tokens per second: its address and load."""
    load = PacedLoad(streams=8, tokens_per_s=200.0, seconds=1.0)
    with ExitStack() as stack:
        child = start_upstream(stack, load, short_dir)
        yield chat_running(child.ready_line.split()[1], {"server": child.pid}, load), load


def test_a_real_upstream_streams_every_token_at_its_time(upstream: Any) -> None:
    running, load = upstream
    warm("upstream", running, load, timeout_s=20)  # others may have the machine for a while


def test_the_load_client_counts_the_tokens_that_the_upstream_says_it_sent(
    upstream: Any, short_dir: Path
) -> None:
    running, load = upstream
    each = 50
    asked = Load(
        connect=running.address,
        protocol="sse",
        path=running.path,
        body=json.dumps({"max_tokens": each, "stream": True}).encode(),
        headers=running.headers,
        connections=load.streams,
        streams=load.streams,
        warm_s=0,
        seconds=0.4,
        until_ended=True,
    )
    with LoadClient(asked, short_dir) as client:
        client.begin()
        client.wait_end()
        report = client.report()
    require_clean(report)
    with urllib.request.urlopen(f"http://{running.address}/stats", timeout=5) as page:
        stats = json.load(page)
    assert stats["tokens_sent"] == load.streams * each
    # Besides the tokens each answer has an event with the role and one with the reason.
    assert report["total"]["messages"] == load.streams * (each + 2)
