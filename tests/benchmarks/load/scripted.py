"""Servers that answer every request with the same steps, right or wrong.

An answer is a list of steps:

    Head(...)        the response's headers
    bytes            body, as one DATA frame or one chunk
    Tail(status)     trailers and the end (HTTP/2), or the last chunk (HTTP/1.1)
    Reset(code)      RST_STREAM
    GoAway()         GOAWAY for no reason, all streams allowed to end
    Raw(bytes)       bytes on the wire, past the protocol's state
    Close()          the connection ends
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import h2.config
import h2.connection
import h2.events
import h2.exceptions


@dataclass(frozen=True)
class Head:
    status: str = "200"
    content_type: str = "application/grpc"


@dataclass(frozen=True)
class Tail:
    status: str | None = "0"
    message: str = ""


@dataclass(frozen=True)
class Reset:
    code: int


@dataclass(frozen=True)
class GoAway:
    pass


@dataclass(frozen=True)
class Raw:
    payload: bytes


@dataclass(frozen=True)
class Close:
    pass


Answer = Sequence[Head | bytes | Tail | Reset | GoAway | Raw | Close]
Serve = Callable[[socket.socket, Answer], None]
CHUNK_BYTES = 4096


def serve_http2(client: socket.socket, answer: Answer) -> None:
    """Answer each request of one connection as soon as it is whole, as its windows allow."""
    state = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
    state.initiate_connection()
    client.sendall(state.data_to_send())
    left: dict[int, list[Head | bytes | Tail | Reset | GoAway | Raw | Close]] = {}
    while received := client.recv(65536):
        for event in state.receive_data(received):
            if isinstance(event, h2.events.StreamEnded):
                left[event.stream_id] = list(answer)
        for stream, steps in left.items():
            while steps and _step(state, client, stream, steps):
                client.sendall(state.data_to_send())
        client.sendall(state.data_to_send())


def _step(
    state: h2.connection.H2Connection,
    client: socket.socket,
    stream: int,
    steps: list[Head | bytes | Tail | Reset | GoAway | Raw | Close],
) -> bool:
    """Do the first of `steps` and remove it; return False when its window is too small."""
    match steps[0]:
        case Head(status, content_type):
            state.send_headers(stream, [(":status", status), ("content-type", content_type)])
        case bytes(data):
            room = min(state.local_flow_control_window(stream), state.max_outbound_frame_size)
            if room < len(data):
                return False
            state.send_data(stream, data)
        case Tail(None):
            state.end_stream(stream)
        case Tail(status, message):
            trailers = [("grpc-status", status), ("grpc-message", message)]
            state.send_headers(stream, trailers, end_stream=True)
        case Reset(code):
            state.reset_stream(stream, code)
        case GoAway():
            # h2 would refuse to go on afterwards; a server that drains does go on.
            client.sendall(state.data_to_send() + b"\0\0\x08\7\0\0\0\0\0" + b"\x7f\xff\xff\xff" * 2)
        case Raw(payload):
            client.sendall(state.data_to_send() + payload)
        case Close():
            client.sendall(state.data_to_send())
            client.shutdown(socket.SHUT_RDWR)
    del steps[0]
    return True


def serve_http1(client: socket.socket, answer: Answer) -> None:
    """Answer each request of one connection; a body is sent in chunks."""
    received = b""
    while got := client.recv(65536):
        received += got
        while b"\r\n\r\n" in received:
            head, _, body = received.partition(b"\r\n\r\n")
            (length,) = (
                int(line.partition(b":")[2])
                for line in head.split(b"\r\n")
                if line.startswith(b"content-length:")
            )
            if len(body) < length:
                break
            received = body[length:]
            for step in answer:
                client.sendall(_http1(step))
                if isinstance(step, Close):
                    client.shutdown(socket.SHUT_RDWR)


def _http1(step: Head | bytes | Tail | Reset | GoAway | Raw | Close) -> bytes:
    match step:
        case Head(status, content_type):
            lines = f"HTTP/1.1 {status} it\r\nContent-Type: {content_type}\r\n"
            return f"{lines}Transfer-Encoding: chunked\r\n\r\n".encode()
        case bytes(data):
            return b"%x\r\n%b\r\n" % (len(data), data)
        case Tail():
            return b"0\r\n\r\n"
        case Raw(payload):
            return payload
        case _:
            return b""


class ScriptedServer:
    """A Unix socket, each connection with a thread of its own."""

    def __init__(self, path: Path, serve: Serve, answer: Answer) -> None:
        self.address = f"unix:{path}"
        self._serve = serve
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._listener, *self._clients):
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._clients.append(client)
            thread = threading.Thread(target=self._talk, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _talk(self, client: socket.socket) -> None:
        # The client may go at any time, and a test may have it say what h2 refuses.
        with contextlib.suppress(OSError, h2.exceptions.ProtocolError):
            self._serve(client, self._answer)
