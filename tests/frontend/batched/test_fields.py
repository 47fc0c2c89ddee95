"""Our header blocks as an independent decoder reads them: hpack's."""

from __future__ import annotations

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived, StreamEnded, TrailersReceived
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from rrpa_sidecar.frontend.batched import headers, wire
from rrpa_sidecar.frontend.batched.fields import NO_TABLE, STATUS_200, field, fields
from rrpa_sidecar.frontend.batched.state import State
from rrpa_sidecar.status import Code

names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.", min_size=1, max_size=300)
values = st.one_of(st.binary(max_size=600), st.integers(125, 129).map(bytes))
REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/p"), (":authority", "x")]


def decoded(block: bytes, decoder: Decoder | None = None) -> list[tuple[bytes, bytes]]:
    return [tuple(each) for each in (decoder or Decoder()).decode(block, raw=True)]


@given(st.lists(st.tuples(names.map(str.encode), values)))
def test_fields_are_what_hpack_reads(pairs: list[tuple[bytes, bytes]]) -> None:
    block = NO_TABLE + STATUS_200 + b"".join(field(name, value) for name, value in pairs)
    assert decoded(block) == [(b":status", b"200"), *pairs]


@given(st.lists(st.tuples(names, st.text(max_size=200))))
def test_metadata_is_latin_1_and_leaves_the_table_of_its_reader_empty(
    pairs: list[tuple[str, str]],
) -> None:
    decoder = Decoder()
    found = decoded(fields(tuple(pairs)), decoder)
    assert found == [(key.encode(), text.encode("latin-1", "replace")) for key, text in pairs]
    assert not decoder.header_table.dynamic_entries


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 16510, 16511, 60_000])
def test_lengths_on_both_sides_of_every_edge_are_read(size: int) -> None:
    assert decoded(field(b"a", b"x" * size)) == [(b"a", b"x" * size)]


def test_trailers_alone_are_headers_too() -> None:
    found = dict(decoded(headers.trailers(Code.UNIMPLEMENTED, "no", (("a", "b"),), alone=True)))
    assert found == {
        b":status": b"200",
        b"content-type": b"application/grpc",
        b"grpc-status": b"12",
        b"grpc-message": b"no",
        b"grpc-accept-encoding": b"identity",
        b"a": b"b",
    }
    assert decoded(headers.trailers(Code.OK, "", (), alone=False)) == [(b"grpc-status", b"0")]


def called(client: H2Connection, server: State, stream_id: int = 1) -> None:
    client.send_headers(stream_id, REQUEST, end_stream=True)
    server.receive_data(client.data_to_send())
    client.receive_data(server.data_to_send())


def both() -> tuple[H2Connection, State]:
    client = H2Connection(H2Configuration(header_encoding=None))
    client.initiate_connection()
    return client, State(100)


@given(st.integers(0, 60_000))
def test_a_call_is_answered_by_blocks_of_any_length(size: int) -> None:
    client, server = both()
    called(client, server)
    server.say(1, headers.response((("a", "b"),)))
    server.say(1, headers.trailers(Code.OK, "", (("long", "x" * size),), alone=False), last=True)
    events = client.receive_data(server.data_to_send())
    assert [type(each) for each in events] == [ResponseReceived, TrailersReceived, StreamEnded]
    begin, end = events[:2]
    assert (b"a", b"b") in begin.headers  # type: ignore[attr-defined]
    assert (b"long", b"x" * size) in end.headers  # type: ignore[attr-defined]
    assert server.streams[1].closed


@pytest.mark.parametrize("size", [1, 0x3FFF, 0x4000, 0x4001, 0x8000, 0x8001])
def test_no_frame_of_a_block_is_longer_than_the_peer_allows(size: int) -> None:
    raw = wire.header_frames(1, b"x" * size, 0x4000, last=True)
    sizes, flags, kinds = [], [], []
    while raw:
        sizes.append(int.from_bytes(raw[:3], "big"))
        kinds.append(raw[3])
        flags.append(raw[4])
        raw = raw[wire.HEAD_BYTES + sizes[-1] :]
    assert sum(sizes) == size
    assert max(sizes) <= 0x4000
    assert kinds == [wire.HEADERS] + [wire.CONTINUATION] * (len(kinds) - 1)
    assert [flag & wire.END_HEADERS for flag in flags] == [0] * (len(flags) - 1) + [4]
    assert [flag & wire.END_STREAM for flag in flags] == [1] + [0] * (len(flags) - 1)


@pytest.mark.parametrize("sizes", [(0,), (4096,), (100, 65536), (65536, 0)])
def test_a_peer_may_change_the_size_of_its_table_at_any_time(sizes: tuple[int, ...]) -> None:
    client, server = both()
    for number, size in enumerate(sizes):
        client.update_settings({SettingCodes.HEADER_TABLE_SIZE: size})
        called(client, server, 2 * number + 1)
        client.receive_data(server.data_to_send())
        server.say(2 * number + 1, headers.trailers(Code.OK, "", (), alone=True), last=True)
        first = client.receive_data(server.data_to_send())[0]
        assert isinstance(first, ResponseReceived)


def test_nothing_is_said_after_the_end() -> None:
    client, server = both()
    called(client, server)
    server.say(1, headers.trailers(Code.OK, "", (), alone=True), last=True)
    with pytest.raises(ProtocolError):
        server.say(1, headers.response(()))
