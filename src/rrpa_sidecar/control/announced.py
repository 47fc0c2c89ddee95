"""The streams that an engine still has from earlier attachments, as it announces them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rrpa_sidecar.control.requests import is_model_name, shortened
from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.pb.engine_pb2 import AttachRequest, Hello, OpenStream
from rrpa_sidecar.shm import layout

REQUEST_ID_LIMIT_BYTES = 256
"""Longest `x-request-id` that a caller may give: rrpa.proto, "Metadata"."""


class Roll:
    """What an engine brings along: complete once as many streams came as its Hello said.

    Raises:
      InvalidRequest: it says more than it can run at once.
    """

    def __init__(self, hello: Hello) -> None:
        if hello.announced > min(hello.capacity, layout.MAX_SLOTS):
            raise InvalidRequest(
                f"Hello: announced must be at most its capacity, {hello.capacity}, not"
                f" {hello.announced}; announce the others later"
            )
        self._expected = hello.announced
        self._streams: dict[str, OpenStream] = {}

    @property
    def missing(self) -> int:
        """How many streams are still to come."""
        return self._expected - len(self._streams)

    @property
    def streams(self) -> list[OpenStream]:
        """What came so far, in its order."""
        return list(self._streams.values())

    def add(self, message: AttachRequest) -> None:
        """Take the next message of an engine whose roll is not complete.

        Raises:
          InvalidRequest: it is no Announce, or breaks a rule of engine.proto.
        """
        if message.WhichOneof("event") != "announce":
            raise InvalidRequest(
                f"{self.missing} of {self._expected} announced streams are missing; Announce must"
                " come before any other message"
            )
        streams = message.announce.streams
        if len(streams) > self.missing:
            raise InvalidRequest(
                f"Hello announced {self._expected} streams, but"
                f" {len(self._streams) + len(streams)} came"
            )
        check(streams, self._streams.__contains__)
        self._streams.update((each.stream_id, each) for each in streams)


def check(streams: Iterable[OpenStream], has: Callable[[str], bool]) -> None:
    """Check the streams of one Announce.

    has: whether a stream of this id belongs to the attachment already.

    Raises:
      InvalidRequest: none at all, a field is not what engine.proto asks for, or an id comes twice.
    """
    seen: set[str] = set()
    for each in streams:
        _check_fields(each)
        if each.stream_id in seen or has(each.stream_id):
            raise InvalidRequest(f"Announce: stream {each.stream_id} came twice")
        seen.add(each.stream_id)
    if not seen:
        raise InvalidRequest("Announce: no streams; send it only when there are some")


def _check_fields(stream: OpenStream) -> None:
    label = stream.request_id
    if not layout.is_id(stream.stream_id):
        fault = f"stream_id must be 32 lower-case hex digits, not {shortened(stream.stream_id)}"
    elif not is_model_name(stream.model):
        fault = "model must be a name of 1 to 128 printable ASCII characters"
    elif not (len(label) <= REQUEST_ID_LIMIT_BYTES and label.isascii() and label.isprintable()):
        fault = f"request_id must be at most {REQUEST_ID_LIMIT_BYTES} printable ASCII characters"
    else:
        return
    raise InvalidRequest(f"Announce: {fault}")
