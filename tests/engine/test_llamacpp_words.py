"""The pure parts of the llama.cpp engine."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rrpa_sidecar.engine.llamacpp.pieces import STAND_INS, raw_piece
from rrpa_sidecar.engine.llamacpp.prompts import Turn, prompt_of
from rrpa_sidecar.engine.llamacpp.sampling import SEEDS, Sampling, checked_sampling
from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.pb import rrpa_pb2

Request = rrpa_pb2.CreateStreamRequest


@pytest.mark.parametrize(
    ("piece", "text", "raw"),
    [
        (" the", "▁the", b" the"),
        ("\ufffd", "<0xF0>", b"\xf0"),
        ("a", "<0x61>", b"a"),
        ("<0xF0>", "<0xF0>", b"<0xF0>"),  # a vocabulary that spells these characters
        ("\ufffd", "\ufffd", "\ufffd".encode()),
        ("\ufffd\ufffd", "ðŁ", b"\xf0\x9f"),
        (" \ufffd", "Ġâ", b" \xe2"),
        ("", "<eos>", b""),
        ("\0", "<0x00>", b"\0"),
    ],
)
def test_piece_is_the_tokens_raw_bytes(piece: str, text: str, raw: bytes) -> None:
    assert raw_piece(piece, text) == raw


def test_stand_ins_cover_every_byte_once() -> None:
    assert sorted(STAND_INS.values()) == list(range(256))
    assert STAND_INS["Ġ"] == 0x20
    assert STAND_INS["Ċ"] == 0x0A


def test_absent_fields_have_their_defaults_and_a_fresh_seed() -> None:
    first, second = checked_sampling(Request()), checked_sampling(Request())
    default = Sampling()
    assert first.temperature == default.temperature
    assert (first.top_k, first.top_p, first.min_p) == (default.top_k, default.top_p, default.min_p)
    assert first.seed != second.seed
    assert not first.penalized


def test_chosen_zeros_stay_zeros() -> None:
    sampling = checked_sampling(Request(temperature=0, top_k=0, min_p=0, seed=0))
    assert (sampling.temperature, sampling.top_k, sampling.min_p, sampling.seed) == (0, 0, 0, 0)


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**32 - 1, 2**32, 2**63 - 1])
def test_every_seed_is_one_that_llama_cpp_takes_as_chosen(seed: int) -> None:
    assert 0 <= checked_sampling(Request(seed=seed)).seed < SEEDS


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        ("temperature", -0.001, 0.0),
        ("temperature", math.inf, 100.0),
        ("temperature", math.nan, 1.0),
        ("top_k", -1, 0),
        ("top_p", 0.0, 0.001),
        ("top_p", 1.001, 1.0),
        ("min_p", -0.001, 0.0),
        ("min_p", 1.001, 1.0),
        ("presence_penalty", 2.001, 2.0),
        ("frequency_penalty", -2.001, -2.0),
        ("repetition_penalty", 0.0, 0.001),
        ("repetition_penalty", math.nan, 1.0),
    ],
)
def test_range_of_a_field_has_two_sides(field: str, wrong: float, right: float) -> None:
    with pytest.raises(InvalidRequest, match=field):
        checked_sampling(Request(**{field: wrong}))  # type: ignore[arg-type]
    assert getattr(checked_sampling(Request(**{field: right})), field) == right  # type: ignore[arg-type]


def messages(*turns: Turn) -> Any:
    return [rrpa_pb2.Message(role=role, content=content) for role, content in turns]


def tagged(turns: Any) -> str:
    """A chat template that, like llama.cpp's, ends each string at its first NUL."""
    return "".join(f"<{role.split(chr(0))[0]}>{text.split(chr(0))[0]}" for role, text in turns)


def test_template_of_the_model_is_applied_to_messages_and_not_to_a_prompt() -> None:
    assert prompt_of(Request(messages=messages(("user", "hi"))), tagged) == "<user>hi"
    assert prompt_of(Request(prompt="hi"), tagged) == "hi"


def test_model_without_a_template_goes_on_after_the_contents() -> None:
    turns = messages(("system", "A"), ("user", ""), ("user", "B"))
    assert prompt_of(Request(messages=turns), None) == "A\n\nB"


def test_nul_survives_the_template() -> None:
    turns = messages(("user", "A\0B\ufdd0"), ("user", "C"))
    assert prompt_of(Request(messages=turns), tagged) == "<user>A\0B\ufdd0<user>C"


def test_messages_without_text_are_an_empty_prompt() -> None:
    with pytest.raises(InvalidRequest, match="empty"):
        prompt_of(Request(messages=messages(("user", ""))), None)
