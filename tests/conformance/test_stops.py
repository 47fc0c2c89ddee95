"""Stop sequences are the engine's work, over token boundaries (field-bugs.md G7)."""

from __future__ import annotations

import pytest

from tests.conformance.asking import replay
from tests.conformance.callers import Caller, GrpcCaller

STOP = "DEFGHIJ"
STOPPED, ENDED = 3, 1


def tokens(text: str) -> list[bytes]:
    return [part.encode() for part in text.split("|")]


@pytest.mark.parametrize(
    ("parts", "stops", "expected"),
    [
        ("DEF|G|HI|J", [STOP], ""),
        ("abc |DEF|G|HI|J|never", [STOP], "abc "),
        ("DEF|G|HI|K", [STOP], "DEFGHIK"),
        ("the end is |DE", [STOP], "the end is DE"),
        ("DEFDEF|GHIJ", [STOP], "DEF"),
        ("a|b|c|d", ["c", "b"], "a"),
        ("Käse| mit| Brot", ["ä"], "K"),
        ("one\0two", ["\0"], "one"),
    ],
)
def test_no_byte_of_a_stop_is_sent_and_no_other_byte_is_lost(
    caller: Caller, parts: str, stops: list[str], expected: str
) -> None:
    request = replay(tokens(parts))
    request.stop_sequences.extend(stops)
    answer = caller.ask(request)
    assert (answer.complete, answer.data.decode()) == (True, expected)


def test_stop_that_is_cut_inside_a_character_is_found(caller: Caller) -> None:
    raw = "halt 😀 never".encode()
    request = replay([raw[:6], raw[6:7], raw[7:]])
    request.stop_sequences.append("😀")
    assert caller.ask(request).data == b"halt "


def test_finish_names_the_stop_that_matched(grpc_caller: GrpcCaller) -> None:
    request = replay(tokens("a|b|c"))
    request.stop_sequences.extend(["x", "b"])
    finish = grpc_caller.ask(request).finish
    assert finish is not None
    assert (finish.reason, finish.stop_sequence) == (STOPPED, "b")
    request = replay(tokens("a|c"))
    request.stop_sequences.append("b")
    finish = grpc_caller.ask(request).finish
    assert finish is not None
    assert (finish.reason, finish.HasField("stop_sequence")) == (ENDED, False)


def test_empty_stop_sequence_is_invalid(caller: Caller) -> None:
    request = replay(tokens("a"))
    request.stop_sequences.append("")
    assert caller.ask(request).code in ("INVALID_ARGUMENT", "400")
