"""The load client counts right answers exactly, and takes no wrong one for a right one."""

from __future__ import annotations

import asyncio
import json
import random
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from benchmarks.load import client
from benchmarks.load.client import Load, LoadClient, LoadError, require_clean, run
from rrpa_sidecar.pb import rrpa_pb2, rrpa_pb2_grpc
from tests.benchmarks.load.conftest import QUICK
from tests.benchmarks.load.scripted import Answer, Close, GoAway, Head, Raw, Reset, Tail

pytestmark = pytest.mark.usefixtures("program")

Ask = Callable[..., dict[str, Any]]
TEXT = "All 2 of them, çok güzel 🚂.".encode()


def frame(payload: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BI", flags, len(payload)) + payload


def response(offset: int, data: bytes) -> bytes:
    message = rrpa_pb2.CreateStreamResponse(offset=offset, data=data)
    return frame(message.SerializeToString())


def finish(offset: int) -> bytes:
    ended = rrpa_pb2.Finish(reason=rrpa_pb2.FINISH_REASON_STOP)
    message = rrpa_pb2.CreateStreamResponse(offset=offset, finish=ended)
    return frame(message.SerializeToString())


def whole(*pieces: bytes) -> bytes:
    """Return the body that a right server makes of `pieces`, finish included."""
    offset, body = 0, b""
    for piece in pieces:
        body += response(offset, piece)
        offset += len(piece)
    return body + finish(offset)


PIECES = [TEXT[:5], TEXT[5:17], TEXT[17:]]
BODY = whole(*PIECES)


class Library(rrpa_pb2_grpc.RRPAServiceServicer):
    """Gives `prompt` so often as `max_tokens` says, a message for each."""

    async def CreateStream(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        data = request.prompt.encode()
        for count in range(request.max_tokens):
            yield rrpa_pb2.CreateStreamResponse(offset=count * len(data), data=data)
        ended = rrpa_pb2.Finish(reason=rrpa_pb2.FINISH_REASON_LENGTH)
        yield rrpa_pb2.CreateStreamResponse(offset=request.max_tokens * len(data), finish=ended)


@pytest_asyncio.fixture
async def library(short_dir: Path) -> Any:
    """The address of a grpc.aio server."""
    server = grpc.aio.server()
    rrpa_pb2_grpc.add_RRPAServiceServicer_to_server(Library(), server)
    address = f"unix:{short_dir / 'library'}"
    server.add_insecure_port(address)
    await server.start()
    yield address
    await server.stop(None)


async def test_a_librarys_answers_are_counted_exactly(library: str, short_dir: Path) -> None:
    request = rrpa_pb2.CreateStreamRequest(prompt=TEXT.decode(), max_tokens=50)
    load = Load(
        connect=library,
        body=frame(request.SerializeToString()),
        streams=40,
        connections=3,
        text=TEXT,
        **QUICK,
    )
    report = await asyncio.to_thread(run, load, short_dir)
    require_clean(report)
    assert report["total"] == {
        "messages": 2000,
        "bytes": 2000 * len(TEXT),
        "asked": 40,
        "ended": 40,
    }
    assert report["streams_open"] == 0
    assert report["first_us"]["count"] == 40


def test_messages_are_counted_however_they_are_cut_into_frames(ask: Ask) -> None:
    one_byte = [BODY[at : at + 1] for at in range(len(BODY))]
    report = ask([Head(), *one_byte, Tail()], text=TEXT, streams=2)
    require_clean(report)
    assert report["total"]["messages"] == 2 * len(PIECES)
    assert report["total"]["bytes"] == 2 * len(TEXT)


def test_a_window_counts_what_came_in_it_alone(ask: Ask) -> None:
    # Everything comes before "ready" here, so nothing is left for the window.
    report = ask([Head(), BODY, Tail()], warm_s=0.1)
    assert report["messages"] == 0
    assert report["total"]["messages"] == len(PIECES)
    assert report["latency_us"] is None


LATE = response(0, b"lost") + response(8, b"more") + finish(12)
TWICE = response(0, b"once") + response(2, b"more") + finish(6)
DATA_ON_STREAM_0 = b"\0\0\1\0\0\0\0\0\0x"
FAULTS: dict[str, tuple[Answer, dict[str, int]]] = {
    "lost bytes": ([Head(), LATE, Tail()], {"offset": 1}),
    "bytes that come twice": ([Head(), TWICE, Tail()], {"offset": 1}),
    "a lost byte at the end": ([Head(), response(0, b"ab") + finish(3), Tail()], {"offset": 1}),
    "a byte that changed": ([Head(), whole(TEXT[:4] + b"?"), Tail()], {"text": 1}),
    "a character cut at its end": ([Head(), whole("ç".encode()[:1]), Tail()], {"character": 1}),
    "a character cut at its start": (
        [Head(), whole("🚂".encode()[1:]), Tail()],
        {"character": 1},
    ),
    "a message with nothing in it": ([Head(), frame(b"") + finish(0), Tail()], {"empty": 1}),
    "a message that is no protobuf": (
        [Head(), frame(b"\x12\xff") + finish(0), Tail()],
        {"protobuf": 1},
    ),
    "a compressed message": ([Head(), frame(b"", flags=1), Tail()], {"compressed": 1}),
    "a length that cannot be": ([Head(), b"\0\xff\xff\xff\xff", Tail()], {"framing": 1}),
    "a message after the finish": (
        [Head(), finish(0) + finish(0), Tail()],
        {"after_finish": 1},
    ),
    "OK without a finish": ([Head(), response(0, b"a"), Tail()], {"no_finish": 1}),
    "an end without a status": ([Head(), BODY, Tail(None)], {"no_status": 1}),
    "an end inside a message": (
        [Head(), BODY + b"\0\0", Tail()],
        {"truncated": 1},
    ),
    "a status that is not OK": (
        [Head(), response(0, b"a"), Tail("14", "engine lost")],
        {"grpc_status": 1},
    ),
    "a status of HTTP": ([Head(status="503"), Tail(None)], {"http_status": 1, "no_status": 1}),
    "another content type": ([Head(content_type="text/html"), BODY, Tail()], {"content_type": 1}),
    "a frame that cannot be": (
        [Head(), response(0, b"a"), Raw(DATA_ON_STREAM_0)],
        {"protocol": 1, "disconnected": 1, "truncated": 1},
    ),
    "bytes of another protocol": (
        [Raw(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 2)],
        {"protocol": 1, "disconnected": 1, "truncated": 1},
    ),
    "a connection that ends": (
        [Head(), response(0, b"a"), Close()],
        {"disconnected": 1, "truncated": 1},
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_it_notices(ask: Ask, name: str) -> None:
    answer, expected = FAULTS[name]
    text = TEXT if "text" in expected else None
    report = ask(answer, text=text)
    assert report["errors"] == expected
    assert report["first_error"]
    with pytest.raises(LoadError, match="expected right answers, found 1 "):
        require_clean(report)


def test_resets_are_counted_and_the_neighbours_go_on(ask: Ask) -> None:
    report = ask([Head(), response(0, b"a"), Reset(8)], streams=3)
    assert report["resets"] == 3
    assert report["errors"] == {"truncated": 3}
    assert report["total"]["ended"] == 3


def test_reset_without_an_error_after_a_whole_answer_is_none(ask: Ask) -> None:
    no_error = b"\0\0\4\3\0\0\0\0\1\0\0\0\0"
    report = ask([Head(), BODY, Tail(), Raw(no_error)])
    assert report["resets"] == 0
    require_clean(report)


def test_goaway_is_counted_and_open_answers_end_well(ask: Ask) -> None:
    report = ask([Head(), response(0, b"a"), GoAway(), finish(1), Tail()])
    assert report["goaways"] == 1
    assert report["errors"] == {}
    with pytest.raises(LoadError, match="1 goaways"):
        require_clean(report)


EVENTS = b'data: {"a": 1}\n\ndata: {"a": 2}\r\n\r\n: a comment\n\ndata:{"a": 3}\n\ndata: [DONE]\n\n'
SSE = Head(content_type="text/event-stream")


@pytest.mark.parametrize("protocol", ["sse", "sse-h2"])
@pytest.mark.parametrize("size", [1, 7, len(EVENTS)])
def test_events_are_counted_however_they_are_cut(ask: Ask, protocol: str, size: int) -> None:
    chunks = [EVENTS[at : at + size] for at in range(0, len(EVENTS), size)]
    report = ask([SSE, *chunks, Tail()], protocol=protocol, streams=3)
    require_clean(report)
    assert report["total"] == {"messages": 9, "bytes": 3 * 24, "asked": 3, "ended": 3}


SSE_FAULTS: dict[str, tuple[Answer, dict[str, int]]] = {
    "an event cut by the end": ([SSE, b"data: a\n\ndata: b", Tail()], {"truncated": 1}),
    "an event after [DONE]": (
        [SSE, b"data: [DONE]\n\ndata: b\n\n", Tail()],
        {"after_finish": 1},
    ),
    "a line that is none": ([SSE, b"data: a\n\nhello\n\n", Tail()], {"framing": 1}),
    "a connection that ends": (
        [SSE, b"data: a\n\n", Close()],
        {"truncated": 1},
    ),
    "a chunk without a size": (
        [SSE, b"data: a\n\n", Raw(b"xyz\r\n")],
        {"protocol": 1, "disconnected": 1, "truncated": 1},
    ),
    "a chunk longer than it says": (
        [SSE, Raw(b"3\r\n: a\n\r\n")],
        {"protocol": 1, "disconnected": 1, "truncated": 1},
    ),
    "a status of HTTP": ([Head("500", "text/event-stream"), b"no", Tail()], {"http_status": 1}),
    "another content type": ([Head(), b"data: a\n\n", Tail()], {"content_type": 1}),
}


@pytest.mark.parametrize("name", SSE_FAULTS)
def test_it_notices_in_events(ask: Ask, name: str) -> None:
    answer, expected = SSE_FAULTS[name]
    assert ask(answer, protocol="sse")["errors"] == expected


def stamped(ns: int) -> bytes:
    return b"%019d word" % ns


def test_each_stamp_of_a_message_counts_also_one_that_two_messages_share(ask: Ask) -> None:
    ago_ns = 3_000_000_000
    tokens = stamped(time.monotonic_ns() - ago_ns) * 5
    body = whole(tokens[:30], tokens[30:100], tokens[100:])
    # --reopen: the window, and not what came before it, holds the answers.
    report = ask([Head(), body, Tail()], stamps=True, until_ended=False, seconds=0.2, reopen=True)
    require_clean(report)
    latency, answers = report["latency_us"], report["first_us"]["count"]
    assert answers > 5
    assert abs(latency["count"] - 5 * answers) <= 5
    assert 3e6 <= latency["p50"] <= 5e6


def test_a_stamp_from_the_future_is_an_error_and_not_a_fast_token(ask: Ask) -> None:
    body = whole(stamped(time.monotonic_ns() + 10**12))
    assert ask([Head(), body, Tail()], stamps=True)["errors"] == {"stamp": 1}


def test_a_slow_reader_takes_what_it_was_told(ask: Ask) -> None:
    piece = b"x" * 10_000
    report = ask(
        [Head(), *(response(at * len(piece), piece) for at in range(200))],
        read_bytes_per_s=200_000,
        until_ended=False,
        seconds=1.0,
    )
    require_clean(report)
    assert report["wire_bytes"] == pytest.approx(200_000, rel=0.15)


def test_a_paused_reader_takes_nothing_and_then_all(ask: Ask) -> None:
    piece = b"x" * 10_000
    begun_s = time.monotonic()
    report = ask(
        [
            Head(),
            *(response(at * len(piece), piece) for at in range(200)),
            finish(2_000_000),
            Tail(),
        ],
        pause_s=0.5,
    )
    require_clean(report)
    assert report["total"]["bytes"] == 2_000_000
    assert time.monotonic() - begun_s >= 0.5


def test_requests_that_come_together_come_again_when_all_have_ended(ask: Ask) -> None:
    report = ask(
        [Head(), BODY, Tail()],
        together=4,
        connections=2,
        gap_s=0.01,
        seconds=0.3,
        until_ended=False,
    )
    require_clean(report)
    assert report["asked"] >= 8
    assert report["total"]["asked"] % 4 == 0
    assert report["first_us"]["count"] == pytest.approx(report["ended"], abs=4)


def test_requests_come_at_the_given_rate(ask: Ask) -> None:
    report = ask(
        [Head(), BODY, Tail()], requests_per_s=200, streams=8, seconds=0.5, until_ended=False
    )
    require_clean(report)
    assert report["asked"] == pytest.approx(100, abs=3)


def test_answers_without_a_message_are_an_error_in_one_line(ask: Ask) -> None:
    with pytest.raises(LoadError) as caught:
        ask([Head(), Tail("8", "no room")], until_ended=False)
    assert str(caught.value) == (
        "client: expected a first message on 1 answers, 1 ended without one;"
        " first fault: stream 0: grpc-status 8: no room"
    )


def test_nobody_there_is_an_error_in_one_line(short_dir: Path) -> None:
    load = Load(connect=f"unix:{short_dir}/nobody", body=b"")
    with pytest.raises(LoadError, match=r"^client: unix:.*nobody: No such file or directory$"):
        run(load, short_dir)


def test_a_missing_compiler_and_a_wrong_source_are_errors_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(client, "BUILD", tmp_path / "build")
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(LoadError, match=r"^load client: no C compiler .*libnghttp2-dev[^\n]*$"):
        client.build()
    monkeypatch.delenv("CC")
    (tmp_path / "bad.c").write_text("#include <no/such.h>\n")
    monkeypatch.setattr(client, "SOURCES", tmp_path)
    with pytest.raises(LoadError, match=r"^load client: cc: .*no/such.h[^\n]*$"):
        client.build()


def test_leaving_early_ends_the_client(ask: Ask, library: str, short_dir: Path) -> None:
    load = Load(connect=library, body=frame(b""), seconds=60)
    with LoadClient(load, short_dir) as running:
        pid = running.pid
    assert not Path(f"/proc/{pid}").exists()


@pytest.fixture
def quantiles(program: Path) -> Iterator[Callable[[list[int]], dict[str, float]]]:
    def of(values_ns: list[int]) -> dict[str, float]:
        text = "\n".join(map(str, values_ns))
        done = subprocess.run(
            [program, "--quantiles"], input=text, capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    return of


SHOWN = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}


@pytest.mark.parametrize("shape", ["uniform", "lognormal", "two lumps"])
def test_quantiles_are_those_of_the_sorted_values_within_1_percent(
    quantiles: Callable[[list[int]], dict[str, float]], seeded: random.Random, shape: str
) -> None:
    draw = {
        "uniform": lambda: seeded.randrange(1, 10**9),
        "lognormal": lambda: round(seeded.lognormvariate(12, 2)),
        "two lumps": lambda: seeded.choice((7_000, 7_001, 55_000_000)),
    }[shape]
    values = [draw() for _ in range(50_000)]
    found, ordered = quantiles(values), sorted(values)
    for name, quantile in SHOWN.items():
        exact_us = ordered[-(-round(quantile * 10_000) * len(values) // 10_000) - 1] / 1e3
        assert found[name] == pytest.approx(exact_us, rel=0.01, abs=0.001), name
    assert found["max"] == pytest.approx(ordered[-1] / 1e3, abs=0.001)
    assert found["mean"] == pytest.approx(sum(values) / len(values) / 1e3, abs=0.001)
    assert found["count"] == len(values)


def test_quantiles_of_one_value_are_it_and_of_none_are_none(
    quantiles: Callable[[list[int]], dict[str, float]],
) -> None:
    assert set(SHOWN) <= quantiles([123_456_789]).keys()
    assert quantiles([123_456_789])["p50"] == pytest.approx(123_456.789, rel=0.01)
    assert quantiles([0])["p99.99"] == 0
    assert quantiles([]) is None
