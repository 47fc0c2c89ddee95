"""What the replay engine answers, behind a fake sidecar."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from rrpa_sidecar.clock import SystemClock
from rrpa_sidecar.engine import Code
from rrpa_sidecar.engine.replay.engine import Replay, Settings
from rrpa_sidecar.engine.replay.scheduler import Scheduler
from rrpa_sidecar.engine.replay.script import parse_script
from rrpa_sidecar.engine.replay.source import DEFAULT_TEXT, STAMP_BYTES, cut
from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.pb import rrpa_pb2
from rrpa_sidecar.shm.end import End
from tests.engine.conftest import AttachTo
from tests.engine.fake_sidecar import Attachment, FakeSidecar, eventually

STOP, LENGTH = rrpa_pb2.FINISH_REASON_STOP, rrpa_pb2.FINISH_REASON_LENGTH
SETTINGS = Settings(
    text="aé🚂b".encode(),
    bytes_per_token=3,
    period_ns=0,
    prompt_delay_ns=0,
    max_tokens=None,
    stamps=False,
)


class Player:
    """A replay engine that runs in a thread, and the sidecar's end of it."""

    def __init__(self, sidecar: FakeSidecar, attachment: Attachment) -> None:
        self.sidecar, self.attachment = sidecar, attachment
        self._slot = 0

    def submit(self, **request: Any) -> str:
        self._slot += 1
        return self.sidecar.submit(self.attachment, slot=self._slot - 1, **request)[0]

    def ask(self, **request: Any) -> tuple[bytes, End]:
        return self.sidecar.answer(self.submit(**request))

    def script(self, more: dict[str, Any] | None = None, /, **script: Any) -> tuple[bytes, End]:
        return self.ask(prompt="replay:" + json.dumps(script), **(more or {}))

    def refusal(self, **request: Any) -> tuple[int, str]:
        self.submit(**request)
        rejected = self.attachment.rejected.get(timeout=10)
        return rejected.code, rejected.message


Play = Callable[..., Player]


@pytest.fixture
def play(sidecar: FakeSidecar, attach_to: AttachTo) -> Iterator[Play]:
    stops: list[Callable[[], None]] = []

    def begin(*, shared: bool = True, **changed: Any) -> Player:
        settings, clock = replace(SETTINGS, **changed), SystemClock()
        scheduler = Scheduler(
            Replay(settings, clock).begin,
            period_ns=settings.period_ns,
            shared_steps=shared,
            clock=clock,
        )
        engine = attach_to(sidecar, capacity=64)
        thread = threading.Thread(target=scheduler.run, args=[engine])
        thread.start()

        def stop() -> None:
            engine.stop()
            thread.join(10)

        stops.append(stop)
        return Player(sidecar, sidecar.attached())

    yield begin
    for stop in stops:
        stop()


def hexes(*tokens: bytes) -> list[str]:
    return [token.hex() for token in tokens]


@pytest.mark.parametrize("shared", [True, False])
def test_text_is_given_once_and_stops(play: Play, shared: bool) -> None:
    data, end = play(shared=shared).ask()
    assert data == SETTINGS.text
    assert end == End(reason=STOP, completion_tokens=3)


def test_text_goes_round_when_max_tokens_wants_more(play: Play) -> None:
    data, end = play().ask(max_tokens=7)
    assert data == SETTINGS.text * 2 + SETTINGS.text[:3]
    assert end == End(reason=LENGTH, completion_tokens=7)


def test_engines_max_tokens_is_for_requests_without(play: Play) -> None:
    player = play(max_tokens=4)
    assert player.ask()[1].completion_tokens == 4
    assert player.ask(max_tokens=2)[1].completion_tokens == 2


@pytest.mark.parametrize(("wanted", "tokens", "data"), [(0, 0, b""), (1, 1, b"a\xc3\xa9")])
def test_few_max_tokens_are_taken_as_said(
    play: Play, wanted: int, tokens: int, data: bytes
) -> None:
    assert play().ask(max_tokens=wanted) == (data, End(reason=LENGTH, completion_tokens=tokens))


def test_negative_max_tokens_are_invalid(play: Play) -> None:
    assert play().refusal(max_tokens=-1)[0] == Code.INVALID_ARGUMENT


def test_empty_text_is_an_answer_without_a_token(play: Play) -> None:
    player = play(text=b"")
    assert player.ask() == (b"", End(reason=STOP))
    assert player.ask(max_tokens=5) == (b"", End(reason=STOP))


def test_cut_splits_characters_and_loses_nothing() -> None:
    text = DEFAULT_TEXT.encode()
    for size in (1, 2, 3, 4, 5, 1000):
        tokens = cut(text, size)
        assert b"".join(tokens) == text
        assert all(0 < len(token) <= size for token in tokens)
    assert any("\ufffd" in token.decode(errors="replace") for token in cut(text, 4))


def test_stamp_is_the_commit_time_at_the_head_of_each_token(play: Play) -> None:
    before = SystemClock().now_ns()
    data, _ = play(stamps=True, text=b"abc").ask(max_tokens=4)
    after = SystemClock().now_ns()
    size = STAMP_BYTES + 3
    tokens = [data[at : at + size] for at in range(0, len(data), size)]
    assert [token[STAMP_BYTES:] for token in tokens] == [b"abc"] * 4
    stamps = [int(token[: STAMP_BYTES - 1]) for token in tokens]
    assert before <= stamps[0] <= stamps[1] <= stamps[-1] <= after


def test_echo_answers_with_the_prompt_unchanged(play: Play) -> None:
    text = "A\0B \u2028\x85\ufeff🚂"
    assert play().ask(prompt="echo:" + text)[0] == text.encode()


def test_script_decides_every_byte_and_the_end(play: Play) -> None:
    player = play()
    tokens = hexes(b"\xf0\x9f", b"", b"\x98\x80", b"\xff", b"\0")
    data, end = player.script(tokens=tokens, reason="length", usage=[5, 6, 7])
    assert data == b"\xf0\x9f\x98\x80\xff\0"
    assert end == End(0, LENGTH, None, 5, 6, 7)
    assert player.script()[1].completion_tokens == 0
    assert player.script(tokens=hexes(b"ab"), repeat=3)[0] == b"ababab"
    data, end = player.script(tokens=tokens[:1], reason="stop_sequence", stop_sequence="é")
    assert end.stop_sequence == "é".encode()


def test_script_may_fail_before_and_after_tokens(play: Play) -> None:
    player = play()
    data, end = player.script(tokens=hexes(b"half"), code="DATA_LOSS", text="gone\nbad")
    assert (data, end.code, end.text) == (b"half", Code.DATA_LOSS, "gone bad")
    prompt = "replay:" + json.dumps({"reject": True, "code": 8, "text": "no"})
    assert player.refusal(prompt=prompt) == (Code.RESOURCE_EXHAUSTED, "no")
    data, end = player.script(tokens=hexes(b"half"), error="secret")
    assert (data, end.code) == (b"half", Code.INTERNAL)
    assert "secret" not in end.text


@pytest.mark.parametrize(
    ("tokens", "data", "reason"),
    [
        ([b"DEF", b"G", b"HI", b"J", b"more"], b"", rrpa_pb2.FINISH_REASON_STOP_SEQUENCE),
        ([b"DEF", b"G", b"HI", b"K"], b"DEFGHIK", STOP),
        ([b"and DE"], b"and DE", STOP),
    ],
)
def test_stops_of_the_request_apply_to_scripts(
    play: Play, tokens: list[bytes], data: bytes, reason: int
) -> None:
    stops = {"stop_sequences": ["DEFGHIJ"]}
    answer, end = play().script(stops, tokens=hexes(*tokens))
    assert (answer, end.reason) == (data, reason)
    assert end.completion_tokens == min(len(tokens), 4)


def test_held_tail_is_sent_when_max_tokens_end_the_answer(play: Play) -> None:
    data, end = play().script(
        {"stop_sequences": ["DEFGHIJ"], "max_tokens": 2}, tokens=hexes(b"DEF", b"G", b"HIJ")
    )
    assert (data, end.reason) == (b"DEFG", LENGTH)


def test_hang_keeps_the_log_open_until_cancelled(play: Play) -> None:
    player = play()
    prompt = "replay:" + json.dumps({"tokens": hexes(b"a", b"b"), "hang_after": 1})
    stream_id = player.submit(prompt=prompt)
    reader = player.sidecar.log(stream_id)
    eventually(lambda: reader.progress()[0] == 1)
    assert player.ask()[0] == SETTINGS.text, "others go on"
    assert reader.progress() == (1, None)
    assert not reader.writer_gone()
    player.sidecar.cancel(player.attachment, stream_id)
    end = eventually(lambda: reader.progress()[1])
    assert end.reason == rrpa_pb2.FINISH_REASON_CANCELLED
    reader.close()


def test_show_tells_what_the_engine_was_given(play: Play) -> None:
    player = play()
    request = rrpa_pb2.CreateStreamRequest(prompt='replay:{"show": "request"}')
    raw = request.SerializeToString() + bytes.fromhex("fa3f03616263")
    stream_id = player.sidecar.submit_raw(player.attachment, raw)
    assert bytes.fromhex(player.sidecar.answer(stream_id)[0].decode()) == raw
    request.prompt = 'replay:{"show": "labels"}'
    stream_id = player.sidecar.submit_raw(
        player.attachment, request.SerializeToString(), request_id="é", priority=-4
    )
    labels = json.loads(player.sidecar.answer(stream_id)[0])
    assert labels["stream_id"] == stream_id
    assert (labels["request_id"], labels["priority"], labels["timeout_s"]) == ("é", -4, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"token": []}',
        '{"tokens": ["0"]}',
        '{"tokens": [1]}',
        '{"tokens": 1}',
        '{"delay_s": -1}',
        '{"delay_s": "x"}',
        '{"delays_s": [1e9]}',
        '{"usage": [1, 2, 3, 4]}',
        '{"usage": [-1]}',
        '{"code": "NOPE"}',
        '{"code": 99}',
        '{"repeat": null}',
        '{"repeat": 1.5}',
        '{"crash_after": -1}',
        '{"reason": "eos"}',
        '{"show": "all"}',
        '{"text": 5}',
    ],
)
def test_script_that_is_wrong_is_invalid(text: str) -> None:
    with pytest.raises(InvalidRequest, match="replay script"):
        parse_script(text)
