"""HTTP/1.1 for the upstream: h11 keeps the protocol's state, the token chunks are our own.

A token is written as ready-made bytes, chunk header included, so that a step costs one write
per stream and nothing is serialized.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any, cast

import h11

from benchmarks.servers.peers.upstream.events import (
    DONE,
    BadRequest,
    ChatRequest,
    Chunks,
    parse,
    whole,
)
from benchmarks.servers.peers.upstream.pace import Pace

MODEL = "replay"
CHAT_PATH = "/v1/chat/completions"
BODY_LIMIT_BYTES = 1 << 20

ABOUT = {
    "model_path": MODEL,
    "served_model_name": MODEL,
    "tokenizer_path": MODEL,
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "is_generation": True,
    "version": "0.32.0",
    "tp_size": 1,
    "dp_size": 1,
    "max_total_num_tokens": 1 << 20,
    "internal_states": [{}],
}
MODELS = {
    "object": "list",
    "data": [
        {"id": MODEL, "object": "model", "created": 0, "owned_by": "vllm", "max_model_len": 1 << 20}
    ],
}
# What vllm-router, SMG and LiteLLM ask of an engine before they send it anything, or meanwhile.
PAGES: dict[str, Any] = {
    "/health": {"status": "ok"},
    "/health_generate": {"status": "ok"},
    "/ping": {"status": "ok"},
    "/version": {"version": "0.32.0"},
    "/v1/models": MODELS,
    "/get_model_info": ABOUT,
    "/model_info": ABOUT,
    "/get_server_info": ABOUT,
    "/server_info": ABOUT,
}


def http_chunk(data: bytes) -> bytes:
    """Return `data` as one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


class Answer:
    """One streamed answer on one connection."""

    def __init__(self, peer: Connection, asked: ChatRequest, chunks: Chunks, tokens: Sequence[str]):
        self._peer = peer
        self._asked = asked
        self._chunks = chunks
        self._ready = [http_chunk(chunks.token(token)) for token in tokens]
        self._sent = 0

    @property
    def over(self) -> bool:
        return self._sent == self._asked.max_tokens

    def step(self) -> bool:
        if self._peer.behind:
            self._peer.pace.counts.held += 1
            return False
        self._peer.write(self._ready[self._sent % len(self._ready)])
        self._sent += 1
        if self.over:
            self._peer.end_answer(self._last())
        return True

    def _last(self) -> bytes:
        usage = [self._chunks.usage(self._sent)] if self._asked.include_usage else []
        return b"".join(map(http_chunk, [self._chunks.finish(), *usage, DONE]))


class Connection(asyncio.Protocol):
    """One connection: requests after one another, each answered before the next is read."""

    _ids = itertools.count(1)

    def __init__(self, pace: Pace, tokens: Sequence[str]) -> None:
        self.pace = pace
        self.behind = False
        self._tokens = tokens
        self._http = h11.Connection(h11.SERVER)
        self._path = ""
        self._body = bytearray()
        self._answer: Answer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, since uvloop's transports do not inherit asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer:
            self.pace.discard(self._answer)

    def pause_writing(self) -> None:
        self.behind = True

    def resume_writing(self) -> None:
        self.behind = False

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._read()

    def eof_received(self) -> None:
        self._transport.close()

    def end_answer(self, last: bytes) -> None:
        """Write `last` (whole chunks), end the body, and read the next request."""
        self.write(last)
        self._answer = None
        self._end()
        self._read()

    def _read(self) -> None:
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as exc:
                self._reply(exc.error_status_hint, {"error": {"message": str(exc)}})
                self._transport.close()
                return
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                self._path = event.target.decode("ascii", "replace").partition("?")[0]
                self._body.clear()
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > BODY_LIMIT_BYTES:
                    self._transport.close()
                    return
            elif isinstance(event, h11.EndOfMessage):
                self._handle()
            elif isinstance(event, h11.ConnectionClosed):
                self._transport.close()
                return

    def _handle(self) -> None:
        if self._path == CHAT_PATH:
            self._chat()
        elif self._path == "/stats":
            self._reply(200, self.pace.stats())
        elif self._path in PAGES:
            self._reply(200, PAGES[self._path])
        else:
            self._reply(404, {"error": {"message": f"no page {self._path}"}})

    def _chat(self) -> None:
        try:
            asked = parse(bytes(self._body))
        except BadRequest as exc:
            self._reply(400, {"error": {"message": str(exc)}})
            return
        chunks = Chunks(f"chatcmpl-{next(self._ids):032x}", int(time.time()), asked.model)
        if not asked.stream:
            text = "".join(itertools.islice(itertools.cycle(self._tokens), asked.max_tokens))
            self._reply(200, whole(chunks, text, asked.max_tokens))
            return
        self._begin(200, [("content-type", "text/event-stream"), ("cache-control", "no-cache")])
        self.write(http_chunk(chunks.role()))
        self._answer = Answer(self, asked, chunks, self._tokens)
        self.pace.add(self._answer)

    def _reply(self, status: int, page: Any) -> None:
        body = json.dumps(page).encode()
        self._begin(
            status, [("content-type", "application/json"), ("content-length", str(len(body)))]
        )
        self.write(self._http.send(h11.Data(data=body)) or b"")
        self._end()

    def _begin(self, status: int, headers: list[tuple[str, str]]) -> None:
        # Without a content-length h11 adds transfer-encoding: chunked.
        self.write(
            self._http.send(
                h11.Response(
                    status_code=status, reason=b"OK" if status == 200 else b"", headers=headers
                )
            )
            or b""
        )

    def _end(self) -> None:
        self.write(self._http.send(h11.EndOfMessage()) or b"")
        if self._http.our_state is h11.MUST_CLOSE:
            self._transport.close()
        else:
            self._http.start_next_cycle()
