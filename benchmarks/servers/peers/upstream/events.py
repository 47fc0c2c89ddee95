"""What the upstream says: chat completions as server-sent events. Pure.

Shape and order are those of the OpenAI API and of vLLM's server: a chunk with the role, one
chunk per token, a chunk with the reason, on demand one with the usage, then `[DONE]`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

DONE = b"data: [DONE]\n\n"
PROMPT_TOKENS = 4
"""Reported as usage. Nothing here has a tokenizer; nobody measures it."""


class BadRequest(Exception):
    """The body is not a chat completion that the upstream can answer."""


@dataclass(frozen=True)
class ChatRequest:
    """One request. max_tokens: length of the answer."""

    model: str
    max_tokens: int
    stream: bool
    include_usage: bool


def parse(body: bytes) -> ChatRequest:
    """Return the request in `body`, a JSON object of POST /v1/chat/completions.

    Raises:
      BadRequest: it is no JSON object, or its length is missing or less than 1.
    """
    try:
        given = json.loads(body)
    except ValueError as exc:
        raise BadRequest(f"expected a JSON object, found {body[:80]!r}") from exc
    if not isinstance(given, dict):
        raise BadRequest(f"expected a JSON object, found {type(given).__name__}")
    # Gateways may rename it: the newer name is the OpenAI API's own.
    wanted = given.get("max_completion_tokens", given.get("max_tokens"))
    if not isinstance(wanted, int) or wanted < 1:
        raise BadRequest(f"max_tokens: expected an integer from 1, found {wanted!r}")
    return ChatRequest(
        model=str(given.get("model", "")),
        max_tokens=wanted,
        stream=bool(given.get("stream")),
        include_usage=bool((given.get("stream_options") or {}).get("include_usage")),
    )


@dataclass(frozen=True)
class Chunks:
    """The events of one answer. The token events repeat, so they are made once per stream."""

    id: str
    created_s: int
    model: str

    def role(self) -> bytes:
        return self._choice({"role": "assistant", "content": ""})

    def token(self, text: str) -> bytes:
        return self._choice({"content": text})

    def finish(self) -> bytes:
        return self._choice({}, finish_reason="length")

    def usage(self, tokens: int) -> bytes:
        return _event(self._chunk([], usage=usage(tokens)))

    def _choice(self, delta: dict[str, str], finish_reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _event(self._chunk([choice]))

    def _chunk(self, choices: list[Any], **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
            **more,
        }


def whole(chunks: Chunks, text: str, tokens: int) -> dict[str, Any]:
    """Return an answer that is not streamed: gateways may ask for one as a check of health."""
    message = {"role": "assistant", "content": text}
    return {
        "id": chunks.id,
        "object": "chat.completion",
        "created": chunks.created_s,
        "model": chunks.model,
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
        "usage": usage(tokens),
    }


def usage(tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": PROMPT_TOKENS + tokens,
    }


def _event(chunk: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"
