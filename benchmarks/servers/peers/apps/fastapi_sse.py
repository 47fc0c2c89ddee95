"""The server that a team writes by hand: FastAPI, a StreamingResponse, json.dumps per token.

Run in the peer's own environment, by path, so it imports nothing of this repository. The
engine hands out one token per step and stream through a queue of each request, as vLLM's
front end and most hand-written ones have it.

Settings come from the environment, as is usual under uvicorn: TOKENS_PER_S, and TOKENS, a JSON
list of texts that are given in turn.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from uuid import uuid4

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

PERIOD_S = 1 / float(os.environ["TOKENS_PER_S"])
TOKENS: list[str] = json.loads(os.environ["TOKENS"])

queues: set[asyncio.Queue[str]] = set()


class Message(BaseModel):
    role: str
    content: str


class ChatRequest(BaseModel):
    model: str
    messages: list[Message]
    max_tokens: int = 16
    stream: bool = True


async def engine() -> None:
    """Give every request its next token, on absolute deadlines."""
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    for token in itertools.cycle(TOKENS):
        due_s += PERIOD_S
        await asyncio.sleep(due_s - loop.time())
        for queue in queues:
            queue.put_nowait(token)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    task = asyncio.create_task(engine())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


app = FastAPI(lifespan=lifespan)


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.post("/v1/chat/completions")
async def chat(request: ChatRequest) -> StreamingResponse:
    return StreamingResponse(events(request), media_type="text/event-stream")


async def events(request: ChatRequest) -> AsyncIterator[str]:
    answer_id, created_s = f"chatcmpl-{uuid4().hex}", int(time.time())

    def event(delta: dict[str, str], finish_reason: str | None = None) -> str:
        chunk = {
            "id": answer_id,
            "object": "chat.completion.chunk",
            "created": created_s,
            "model": request.model,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        }
        return f"data: {json.dumps(chunk)}\n\n"

    queue: asyncio.Queue[str] = asyncio.Queue()
    queues.add(queue)
    try:
        yield event({"role": "assistant", "content": ""})
        for _ in range(request.max_tokens):
            yield event({"content": await queue.get()})
        yield event({}, "length")
        yield "data: [DONE]\n\n"
    finally:
        queues.discard(queue)
