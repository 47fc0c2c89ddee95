"""Events of a stream as the messages of the streaming methods, serialized."""

from __future__ import annotations

from typing import Protocol

from google.api.httpbody_pb2 import HttpBody  # type: ignore[import-untyped]

from rrpa_sidecar.errors import RRPAError, StreamCancelled
from rrpa_sidecar.pb import rrpa_pb2 as pb
from rrpa_sidecar.stream.events import Data, Finished

CONTENT_TYPE = "text/plain; charset=utf-8"

REASON_MAX = 2**31 - 1

NOT_A_BODY = b"\xff"
"""No google.api.HttpBody, nor any other message: a field's tag that does not end."""


class Frames(Protocol):
    """How one method puts events on the wire. An object belongs to one call."""

    def data(self, event: Data) -> bytes:
        """Return the message that carries `event.data`."""
        ...

    def finish(self, event: Finished) -> bytes | None:
        """Return the last message, or None where the method has none."""
        ...

    def cut(self, event: Finished) -> RRPAError | None:
        """Return what the call ends with where a stopped answer would look like a whole one."""
        ...

    def broken(self) -> bytes | None:
        """Return what tells a caller without trailers that the stream failed, if that is needed."""
        ...


class StreamFrames:
    """CreateStream and ResumeStream: offsets, data, one Finish."""

    def data(self, event: Data) -> bytes:
        return pb.CreateStreamResponse(offset=event.offset, data=event.data).SerializeToString()

    def finish(self, event: Finished) -> bytes:
        # Enums are open, but have 31 bits; a log's field has 32, and an engine may fill them all.
        reason = event.reason if event.reason <= REASON_MAX else pb.FINISH_REASON_UNSPECIFIED
        finish = pb.Finish(
            reason=reason,  # type: ignore[arg-type]
            stop_sequence=event.stop_sequence,
            usage=pb.Usage(
                prompt_tokens=event.prompt_tokens,
                completion_tokens=event.completion_tokens,
                cached_tokens=event.cached_tokens,
            ),
        )
        return pb.CreateStreamResponse(offset=event.offset, finish=finish).SerializeToString()

    def cut(self, event: Finished) -> None:
        return None  # its Finish says so

    def broken(self) -> None:
        return None


class BodyFrames:
    """CreateMessage and ResumeMessage: the answer's bytes and nothing else.

    The first body names their type.

    plain_http: the caller is behind Envoy's transcoder and cannot see a status that comes after
      the first byte; Envoy resets its stream when a frame is no HttpBody.
    """

    def __init__(self, *, plain_http: bool = False) -> None:
        self._typed = False
        self._plain_http = plain_http

    def data(self, event: Data) -> bytes:
        return self._body(event.data)

    def finish(self, event: Finished) -> bytes | None:
        # An answer with no token is still a text: without this body Envoy names no type.
        return None if self._typed else self._body(b"")

    def cut(self, event: Finished) -> RRPAError | None:
        if event.reason != pb.FINISH_REASON_CANCELLED:
            return None
        return StreamCancelled(
            f"the stream was stopped after {event.offset} bytes: somebody cancelled it, or nobody"
            " came back for it within --resume-window"
        )

    def _body(self, data: bytes) -> bytes:
        content_type = "" if self._typed else CONTENT_TYPE
        self._typed = True
        raw: bytes = HttpBody(content_type=content_type, data=data).SerializeToString()
        return raw

    def broken(self) -> bytes | None:
        return NOT_A_BODY if self._typed and self._plain_http else None
