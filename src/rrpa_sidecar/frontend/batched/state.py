"""h2's state of one connection, as a server of many short-lived streams needs it."""

from __future__ import annotations

from collections.abc import Iterable

from h2.config import H2Configuration
from h2.connection import ConnectionInputs, H2Connection
from h2.errors import ErrorCodes
from h2.events import Event
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from h2.stream import StreamInputs
from hpack import Decoder, HeaderTuple, HPACKError, OversizedHeaderListError
from hyperframe.frame import Frame, GoAwayFrame

from rrpa_sidecar.frontend.batched.fields import NO_TABLE
from rrpa_sidecar.frontend.batched.wire import header_frames
from rrpa_sidecar.frontend.metadata import TOTAL_LIMIT_BYTES

FRAME_BYTES = 1 << 14
CONNECTION_WINDOW = 1 << 20
STREAM_WINDOW = 1 << 18
"""Requests of 8 MiB arrive in few round trips; more buys nothing on one machine."""

HEADERS_HARD_LIMIT_BYTES = 256 * 1024
"""Above it the connection ends, since we cannot answer a call whose headers we did not read.
Between this and the limit that is announced, the call alone is refused."""


class CompressionError(ProtocolError):
    """Header bytes that cannot be decoded: the tables of both sides differ from now on."""

    error_code = ErrorCodes.COMPRESSION_ERROR


class FieldsDecoder(Decoder):
    """hpack's decoder, with RFC 9113's code for its errors (4.3): h2 says PROTOCOL_ERROR."""

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        try:
            return super().decode(data, raw)
        except OversizedHeaderListError:
            raise
        except HPACKError as error:
            raise CompressionError(f"no HPACK: {error}") from error


class State(H2Connection):
    """H2Connection that announces all limits in its first SETTINGS, and forgets ended streams."""

    # An ended stream is kept to tell late frames from wrong ones; 64 KiB of them were 6 MB.
    MAX_CLOSED_STREAMS = 1024

    def __init__(self, streams_limit: int) -> None:
        super().__init__(
            H2Configuration(
                client_side=False,
                header_encoding=None,
                validate_outbound_headers=False,
                normalize_outbound_headers=False,
            )
        )
        # In the first frame: Envoy opens its streams at once.
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: streams_limit,
                SettingCodes.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                SettingCodes.MAX_FRAME_SIZE: FRAME_BYTES,
                SettingCodes.MAX_HEADER_LIST_SIZE: TOTAL_LIMIT_BYTES,
                SettingCodes.ENABLE_PUSH: 0,
            },
        )
        self.decoder = FieldsDecoder()
        self.decoder.max_header_list_size = HEADERS_HARD_LIMIT_BYTES
        self._before_first_block = NO_TABLE
        self.initiate_connection()
        self.increment_flow_control_window(CONNECTION_WINDOW)

    @property
    def open_inbound_streams(self) -> int:
        """Always 0: h2 would look at every stream for each new one, and end the connection of a
        peer that has not read the limit yet. Whoever holds the calls counts them."""
        return 0

    def say(self, stream_id: int, block: bytes, *, last: bool = False) -> None:
        """Send a block of `headers` on a stream. last: it ends our side of the stream.

        `send_headers` would look at every field anew and compress it (fields.py), and build frames
        of objects. What is left of it here is what the stream's state has to know.

        Raises:
          ProtocolError: the stream or the connection is over.
        """
        self.state_machine.process_input(ConnectionInputs.SEND_HEADERS)
        stream = self.streams[stream_id].state_machine
        stream.process_input(StreamInputs.SEND_HEADERS)
        if last:
            stream.process_input(StreamInputs.SEND_END_STREAM)
        block, self._before_first_block = self._before_first_block + block, b""
        self._data_to_send += header_frames(
            stream_id, block, self.max_outbound_frame_size, last=last
        )

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        """Go on after a GOAWAY without an error: h2 would send no more on streams that are open.

        Source: RFC 9113, 6.8: its sender will open no more, and still waits for those it has.
        """
        if frame.error_code:
            return super()._receive_goaway_frame(frame)
        return [], []

    def forget(self, stream_id: int) -> None:
        """Drop the state of a stream that has ended on both sides."""
        stream = self.streams.get(stream_id)
        if stream is not None and stream.closed:
            del self.streams[stream_id]
            self._closed_streams[stream_id] = stream.closed_by
