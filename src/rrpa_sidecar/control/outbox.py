"""What the sidecar still has to say to one engine, in order and bounded."""

from __future__ import annotations

import asyncio
from collections import deque

from rrpa_sidecar.control.engines import STREAMS_PER_SLOT
from rrpa_sidecar.control.live import LiveStream
from rrpa_sidecar.errors import CapacityExhausted
from rrpa_sidecar.pb.engine_pb2 import (
    Adopt,
    AttachResponse,
    Cancel,
    Command,
    Draining,
    Release,
    Submit,
    Welcome,
)

ROOM_PER_SLOT = 3 * STREAMS_PER_SLOT
"""A stream can owe a Submit or Adopt, a Cancel and a Release; more means that nobody reads."""
ROOM = 16

MESSAGE_BYTES = 64 * 1024
"""A message gets no more commands once it has so many: a request alone may have 8 MiB."""


class Outbox:
    """The `EngineLink` of an attached engine: filled by the broker, emptied by its call.

    An engine that does not read cannot make it grow for ever: when it is full, the call ends
    (`failure`), and with it the attachment.
    """

    def __init__(self, capacity: int) -> None:
        self._limit = ROOM + ROOM_PER_SLOT * capacity
        self._commands: deque[Command] = deque()
        self._changed = asyncio.Event()
        self.failure: Exception | None = None

    def welcome(self, welcome: Welcome) -> None:
        self._put(Command(welcome=welcome))

    def submit(self, stream: LiveStream, timeout_ms: int | None) -> None:
        submit = Submit(
            stream_id=stream.stream_id,
            slot=stream.slot,
            request=stream.request,
            request_id=stream.labels.request_id,
            traceparent=stream.labels.traceparent,
            priority=stream.labels.priority,
            resumable=stream.resumable,
        )
        if timeout_ms is not None:
            submit.timeout_ms = timeout_ms
        self._put(Command(submit=submit))

    def adopt(self, stream_id: str, slot: int | None) -> None:
        self._put(Command(adopt=Adopt(stream_id=stream_id, slot=slot)))

    def draining(self) -> None:
        self._put(Command(draining=Draining()))

    def cancel(self, stream_id: str) -> None:
        self._put(Command(cancel=Cancel(stream_id=stream_id)))

    def release(self, stream_id: str) -> None:
        self._put(Command(release=Release(stream_id=stream_id)))

    def close(self, why: Exception) -> None:
        """End the call with `why`; what is still in the box is dropped."""
        if self.failure is None:
            self.failure = why
            self._commands.clear()
            self._changed.set()

    async def take(self) -> AttachResponse:
        """Wait for the next message: all commands that are there, if they are not too long.

        A message costs the sidecar some 70 µs in gRPC, whatever is in it.

        Raises:
          the `failure`, once there is one.
        """
        while not self._commands:
            if self.failure is not None:
                raise self.failure
            self._changed.clear()
            await self._changed.wait()
        message, size = AttachResponse(), 0
        while self._commands and size < MESSAGE_BYTES:
            command = self._commands.popleft()
            message.commands.append(command)
            size += command.ByteSize()
        return message

    def _put(self, command: Command) -> None:
        if self.failure is not None:
            return
        if len(self._commands) >= self._limit:
            self.close(
                CapacityExhausted(f"the engine left {self._limit} commands unread and was detached")
            )
            return
        self._commands.append(command)
        self._changed.set()
