"""What is measured: servers that give paced answers, all behind one interface."""

from __future__ import annotations

import struct
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rrpa_sidecar.pb import rrpa_pb2

TOKEN = b"word "
"""ASCII of 5 bytes, about what an English token has."""

MODEL = "test"
CREATE_STREAM = "/rrpa.v1.RRPAService/CreateStream"
GRPC_HEADERS = {"content-type": "application/grpc", "te": "trailers"}

SPARE_S = 30.0
"""How much longer than its load an answer lasts, so that opening and settling fit in."""


@dataclass(frozen=True, slots=True)
class PacedLoad:
    """Answers of one token each 1/tokens_per_s, to `streams` callers at once.

    token: the bytes of every token.
    seconds: how long the answers are needed.
    """

    streams: int
    tokens_per_s: float
    token: bytes = TOKEN
    seconds: float = 10.0

    @property
    def name(self) -> str:
        return f"{self.streams}×{self.tokens_per_s:g}"

    @property
    def tokens(self) -> int:
        """Tokens of one answer."""
        return round((self.seconds + SPARE_S) * self.tokens_per_s)

    @property
    def total_per_s(self) -> float:
        """Tokens per second of all streams together."""
        return self.streams * self.tokens_per_s


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs, and how to ask it for one paced answer of `load.tokens` tokens.

    address: "unix:/path" or "127.0.0.1:port".
    protocol: "grpc" or "sse".
    parts: role → pid; CPU is reported for each, with everything below it.
    body: what follows the request's headers, with "grpc" gRPC's five bytes included.
    """

    address: str
    protocol: str
    parts: dict[str, int]
    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


class Server(Protocol):
    """name: as tables show it. shape: one sentence: how it is set up, and why that is normal."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> str: ...

    def start(self, stack: ExitStack, load: PacedLoad, workdir: Path) -> Running:
        """Start it; it ends with `stack`.

        workdir: private to this server, short enough for sockets.
        Raises CannotRun when something is not installed, BenchmarkFailed when it does not start.
        """
        ...


def grpc_message(payload: bytes) -> bytes:
    """Return `payload` as gRPC puts it into a body: not compressed, and its length."""
    return struct.pack(">BI", 0, len(payload)) + payload


def grpc_running(address: str, parts: dict[str, int], load: PacedLoad) -> Running:
    """Return how every server of RRPAService is asked: with the same bytes."""
    request = rrpa_pb2.CreateStreamRequest(model=MODEL, prompt="go", max_tokens=load.tokens)
    body = grpc_message(request.SerializeToString())
    return Running(address, "grpc", parts, CREATE_STREAM, body, dict(GRPC_HEADERS))
