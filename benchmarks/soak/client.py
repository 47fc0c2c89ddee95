"""Clients of a soak: many readers of every kind at one door, until SIGTERM.

usage: python -m benchmarks.soak.client TARGET RECORD READERS SEED LONG LASTS_S PACE_S KINDS

LONG is the share of answers that last up to LASTS_S with up to PACE_S between two tokens; others
come at once. KINDS are those below, joined by commas.

Kinds of readers, and how each of them is over:

    plain    reads to the end; asks for no resuming
    whole    reads to the end; comes back whenever its call breaks
    slow     the same, with pauses between frames
    hopping  the same, and breaks its own calls
    several  the same, with two more readers of the stream, from its beginning
    again    reads the stream once more after its end, from somewhere
    leaving  cancels its call somewhere
    cancel   tells the engine to stop, and reads what there is

Resuming is a small loop here, on the stub alone. A status without the trailer rrpa-offset is not
the sidecar's: the connection broke, or Envoy's did (whose word for that is INTERNAL). A status with
it is the stream's own if it comes again at the same offset after a while. All else is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from benchmarks.soak.engine import MODEL
from benchmarks.soak.record import Read
from rrpa_sidecar.pb import rrpa_pb2

SERVICE = "/rrpa.v1.RRPAService"
KINDS = ("plain", "whole", "slow", "hopping", "several", "again", "leaving", "cancel")
TEXTS = ("words", "words", "split", "invalid", "empty")
CALL_TIMEOUT_S = 60.0
GIVE_UP_S = 45.0
"""A reader that gets nowhere for so long says so; nothing here is away for a third of that."""
PAUSE_S = 0.1
SURE_S = 0.6
SLOW_S = 0.025
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    # How long a connect may take, whatever its name says: a server that is busy needs a moment.
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.max_reconnect_backoff_ms", 300),
)


@dataclass(frozen=True, slots=True)
class Answers:
    """What is asked for. long: the share of those that last."""

    long: float
    lasts_s: float
    pace_s: float

    def one_of(self, rng: random.Random) -> tuple[int, float]:
        """Return how many tokens, and how many seconds between them."""
        if rng.random() >= self.long:
            return rng.randrange(12), 0.0
        pace_s = rng.uniform(0.2, 1) * self.pace_s
        return int(rng.uniform(0.2, 1) * self.lasts_s / pace_s), pace_s


class Clients:
    """All readers of one process."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        record: Path,
        rng: random.Random,
        answers: Answers,
        kinds: Sequence[str],
    ) -> None:
        create, resume = (
            channel.unary_stream(
                f"{SERVICE}/{name}",
                lambda each: each.SerializeToString(),
                rrpa_pb2.CreateStreamResponse.FromString,
            )
            for name in ("CreateStream", "ResumeStream")
        )
        self.create: Any = create
        self.resume: Any = resume
        self.cancel: Any = channel.unary_unary(
            f"{SERVICE}/CancelStream",
            rrpa_pb2.CancelStreamRequest.SerializeToString,
            rrpa_pb2.CancelStreamResponse.FromString,
        )
        self.rng = rng
        self.answers = answers
        self._kinds = kinds
        self.over = asyncio.Event()
        self._record = record.open("w", encoding="utf-8")

    async def run(self, readers: int) -> None:
        """Keep `readers` streams going until `over`, then let them end."""
        await asyncio.gather(*(self._one_after_the_other() for _ in range(readers)))
        self._record.close()

    async def _one_after_the_other(self) -> None:
        while not self.over.is_set():
            reader = Reader(self, self.rng.choice(self._kinds))
            await reader.ask()
            if not reader.read.stream_id:
                # Refused: nobody is there, or all is full.
                await asyncio.sleep(PAUSE_S)

    def note(self, read: Read) -> None:
        read.ended_s = time.monotonic()
        self._record.write(read.line())
        self._record.flush()


class Reader:
    """One stream as one client reads it, over as many calls as that takes."""

    def __init__(self, clients: Clients, kind: str, stream_id: str = "", at: int = 0) -> None:
        self._clients = clients
        self._rng = clients.rng
        resumable = kind not in ("plain", "leaving")
        self.read = Read(kind, resumable, stream_id, begun_s=time.monotonic())
        self._held = at
        self._call: Any = None

    async def ask(self) -> None:
        """Ask for an answer and read it, as the kind of this reader does."""
        rng, kind = self._rng, self.read.kind
        tokens, pace_s = self._clients.answers.one_of(rng)
        prompt = json.dumps({"text": rng.choice(TEXTS), "tokens": tokens, "pace_s": pace_s})
        request = rrpa_pb2.CreateStreamRequest(model=MODEL, prompt=prompt)
        metadata = [("x-resumable", "1")] if self.read.resumable else []
        leave_at = rng.randrange(200) if kind == "leaving" else None
        beside = asyncio.create_task(self._beside(tokens * pace_s))
        call = self._clients.create(request, timeout=CALL_TIMEOUT_S, metadata=metadata)
        await self._read_to_the_end(lambda: call, leave_at)
        await beside
        self._clients.note(self.read)
        if kind == "again" and self.read.code == "OK":
            at = rng.choice((0, rng.randrange(self._held + 1), self._held))
            # Frames hold whole characters, so only their edges are offsets that a client has.
            edges = [0, *(offset + len(data) for offset, data in self.read.pieces)]
            await self._other("again", min(edges, key=lambda edge: abs(edge - at)))

    async def _other(self, kind: str, at: int) -> None:
        """Read the same stream with another reader."""
        other = Reader(self._clients, kind, self.read.stream_id, at)
        await other._read_to_the_end(other._resume, None)
        self._clients.note(other.read)

    async def _beside(self, lasts_s: float) -> None:
        """Do what this kind does while it reads."""
        kind = self.read.kind
        if kind not in ("several", "cancel", "hopping"):
            return
        await asyncio.sleep(self._rng.random() * lasts_s)
        if not self.read.stream_id:
            return
        if kind == "several":
            await asyncio.gather(self._other("several", 0), self._other("several", 0))
        elif kind == "cancel":
            request = rrpa_pb2.CancelStreamRequest(stream_id=self.read.stream_id)
            # While the sidecar is away, nobody is told, and the stream goes on.
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._clients.cancel(request, timeout=CALL_TIMEOUT_S)
        else:
            for _ in range(self._rng.randrange(1, 6)):
                self._call.cancel()
                await asyncio.sleep(self._rng.random() * lasts_s / 4)

    def _resume(self) -> Any:
        request = rrpa_pb2.ResumeStreamRequest(stream_id=self.read.stream_id, offset=self._held)
        return self._clients.resume(request, timeout=CALL_TIMEOUT_S)

    async def _read_to_the_end(self, call: Callable[[], Any], leave_at: int | None) -> None:
        read = self.read
        last: tuple[str, str, int] | None = None
        last_s = moved_s = time.monotonic()
        while True:
            before = self._held
            read.starts.append((self._held, len(read.pieces)))
            await self._read_call(call(), leave_at)
            if read.reason is not None or read.left or not read.stream_id or not read.resumable:
                return
            if read.code == "NOT_FOUND" and last is not None and last[2] == self._held:
                # All of a stream that failed was in its buffers; while it read them, it went.
                read.code, text, read.offset = last
                read.text = f"{text}; then NOT_FOUND: {read.text}"
                return
            ours = read.offset is not None or read.code not in ("INTERNAL", "UNKNOWN")
            if ours and read.code not in ("UNAVAILABLE", "CANCELLED"):
                return
            now_s = time.monotonic()
            if self._held > before:
                moved_s = now_s
            if now_s - moved_s > GIVE_UP_S:
                read.text = f"got nowhere for {GIVE_UP_S:g} s: {read.code} {read.text}"
                read.code = "DEADLINE_EXCEEDED"
                return
            same = None if read.offset is None else (read.code, read.text, read.offset)
            if same is None or last is None or same[::2] != last[::2]:
                last, last_s = same or last, now_s
            elif now_s - last_s > SURE_S:
                return
            await asyncio.sleep(self._rng.random() * 2 * PAUSE_S)
            call = self._resume

    async def _read_call(self, call: Any, leave_at: int | None) -> None:
        """Read one call to its end."""
        read, rng = self.read, self._rng
        self._call = call
        try:
            if not read.stream_id:
                metadata = dict(await call.initial_metadata())
                read.stream_id = metadata.get("rrpa-stream-id", "")
            async for frame in call:
                if frame.HasField("finish"):
                    read.reason = rrpa_pb2.FinishReason.Name(frame.finish.reason)[14:]
                    read.tokens = frame.finish.usage.completion_tokens
                else:
                    read.pieces.append((frame.offset, frame.data))
                    self._held = frame.offset + len(frame.data)
                if leave_at is not None and len(read.pieces) >= leave_at:
                    read.left = True
                    call.cancel()
                    break
                if read.kind == "slow":
                    await asyncio.sleep(rng.random() * SLOW_S)
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass  # its code is asked for below; a call that is cancelled here raises the latter
        read.code = (await call.code()).name
        read.text = await call.details() or ""
        trailers = dict(await call.trailing_metadata() or ())
        read.offset = int(trailers["rrpa-offset"]) if "rrpa-offset" in trailers else None


async def main(target: str, record: str, readers: str, seed: str, *more: str) -> None:
    *numbers, kinds = more
    loop = asyncio.get_running_loop()
    async with grpc.aio.insecure_channel(target, OPTIONS) as channel:
        answers = Answers(*map(float, numbers))
        rng = random.Random(seed)
        clients = Clients(channel, Path(record), rng, answers, kinds.split(","))
        loop.add_signal_handler(signal.SIGTERM, clients.over.set)
        print("soak client ready", flush=True)
        await clients.run(int(readers))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
