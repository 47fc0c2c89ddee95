"""The one message of a request, out of a body that comes in pieces of any size. Pure."""

from __future__ import annotations

from rrpa_sidecar.errors import CapacityExhausted, InvalidRequest
from rrpa_sidecar.frontend.batched.wire import PREFIX_BYTES


class RequestReader:
    """Collects the body of a call, uncompressed: exactly one message, or several for `take`."""

    __slots__ = ("_body", "_end", "_limit", "_single")

    def __init__(self, limit_bytes: int, *, single: bool = True) -> None:
        self._single = single
        self._limit = limit_bytes
        self._body = bytearray()
        self._end = 0

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept until the message is whole."""
        return len(self._body)

    def feed(self, data: bytes) -> None:
        """Take the next piece.

        Raises:
          InvalidRequest: it is compressed, or more than one message.
          CapacityExhausted: the message is longer than `limit_bytes`; known from its first bytes.
        """
        self._body += data
        self._look()
        if self._single and self._end and len(self._body) > self._end:
            raise InvalidRequest("the call has more than one request; this method takes one")

    def message(self) -> bytes:
        """Return the message, once the body has ended.

        Raises:
          InvalidRequest: the body ended too early.
        """
        if not self._end or len(self._body) < self._end:
            raise InvalidRequest(
                f"the call ended after {len(self._body)} bytes, before its request was whole"
            )
        return bytes(memoryview(self._body)[PREFIX_BYTES:])

    def take(self) -> bytes | None:
        """Return the next message of a body that has several, or None until it is whole."""
        if not self._end or len(self._body) < self._end:
            return None
        message = bytes(memoryview(self._body)[PREFIX_BYTES : self._end])
        del self._body[: self._end]
        self._end = 0
        self._look()
        return message

    def _look(self) -> None:
        if not self._end and len(self._body) >= PREFIX_BYTES:
            self._end = PREFIX_BYTES + self._checked_length()

    def _checked_length(self) -> int:
        if self._body[0]:
            raise InvalidRequest(
                "the request is marked as compressed, and no grpc-encoding was named"
                if self._body[0] == 1
                else f"the request begins with {self._body[0]}, which is no gRPC message"
            )
        length = int.from_bytes(self._body[1:PREFIX_BYTES], "big")
        if length > self._limit:
            # The words of gRPC's core, so that callers and their alerts need one pattern.
            raise CapacityExhausted(
                f"SERVER: Received message larger than max ({length} vs. {self._limit})"
            )
        return length
