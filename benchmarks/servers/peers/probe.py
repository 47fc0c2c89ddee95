"""Reads one answer of server-sent events strictly, and notes when each token came.

For checks of single answers; load comes from the client in C.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass, field

import h11

from benchmarks.plan import BenchmarkFailed
from benchmarks.servers import Running

READ_BYTES = 64 * 1024
ABSENT = "localhost"


@dataclass
class Answer:
    """tokens: contents that were not empty. arrived_s: when each came, CLOCK_MONOTONIC."""

    tokens: list[str] = field(default_factory=list)
    arrived_s: list[float] = field(default_factory=list)
    done: bool = False


class Events:
    """The body of an answer, as it comes in, to an `Answer`. Pure."""

    def __init__(self) -> None:
        self.answer = Answer()
        self._rest = b""

    def feed(self, data: bytes, now_s: float) -> None:
        """Raises BenchmarkFailed at the first event that is not one chunk of a completion."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            self._event(event, now_s)

    def end(self) -> Answer:
        """Raises BenchmarkFailed if the body ended inside an event."""
        if self._rest.strip():
            raise BenchmarkFailed(f"the body ended inside an event: {self._rest[:80]!r}")
        return self.answer

    def _event(self, event: bytes, now_s: float) -> None:
        if event.startswith(b":"):
            return  # a comment keeps idle connections open
        if self.answer.done:
            raise BenchmarkFailed(f"expected nothing after [DONE], found {event[:80]!r}")
        if not event.startswith(b"data: ") or b"\n" in event:
            raise BenchmarkFailed(f"expected one line `data: …`, found {event[:80]!r}")
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            self.answer.done = True
            return
        try:
            choices = json.loads(data)["choices"]
            text = choices[0]["delta"].get("content") if choices else None
        except (ValueError, LookupError, TypeError, AttributeError) as exc:
            raise BenchmarkFailed(f"expected a chat.completion.chunk, found {data[:80]!r}") from exc
        if text:
            self.answer.tokens.append(text)
            self.answer.arrived_s.append(now_s)


def read_answer(running: Running, timeout_s: float) -> Answer:
    """Send the request of `running` and read its answer to the end.

    timeout_s: the longest silence.
    Raises BenchmarkFailed if it is not a right one, OSError if there is no connection.
    """
    http = h11.Connection(h11.CLIENT)
    headers = {"host": ABSENT, "content-length": str(len(running.body)), **running.headers}
    request = h11.Request(method="POST", target=running.path, headers=list(headers.items()))
    events = Events()
    with _connect(running.address, timeout_s) as sock:
        for part in (request, h11.Data(data=running.body), h11.EndOfMessage()):
            sock.sendall(http.send(part) or b"")
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(sock.recv(READ_BYTES))
            elif isinstance(event, h11.Response):
                _expect_events(event, http, sock)
            elif isinstance(event, h11.Data):
                events.feed(bytes(event.data), time.monotonic())
            else:
                return events.end()


def _connect(address: str, timeout_s: float) -> socket.socket:
    if address.startswith("unix:"):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout_s)
        sock.connect(address.removeprefix("unix:"))
        return sock
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout_s)


def _expect_events(response: h11.Response, http: h11.Connection, sock: socket.socket) -> None:
    kind = dict(response.headers).get(b"content-type", b"")
    if response.status_code == 200 and kind.startswith(b"text/event-stream"):
        return
    body = b""
    while isinstance(event := http.next_event(), h11.Data) or event is h11.NEED_DATA:
        if isinstance(event, h11.Data):
            body += event.data
        else:
            http.receive_data(sock.recv(READ_BYTES))
    raise BenchmarkFailed(
        f"expected 200 and text/event-stream, found {response.status_code} and"
        f" {kind.decode('latin-1')}: {body[:200].decode('utf-8', 'replace')}"
    )
