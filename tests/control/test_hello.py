"""What an engine says of itself: judged alike on both sides, refused in sentences that fit."""

from __future__ import annotations

import os

import pytest

from rrpa_sidecar.control import hello, requests
from rrpa_sidecar.control.hello import check_hello
from rrpa_sidecar.engine import identity
from rrpa_sidecar.errors import AttachRefused, RRPAError
from rrpa_sidecar.shm import layout
from rrpa_sidecar.status import MESSAGE_LIMIT_BYTES


def test_engines_and_sidecar_hold_hello_to_the_same_limits():
    assert hello.MODELS_LIMIT == identity.MAX_MODELS
    assert hello.BUILD_LIMIT_BYTES == identity.MAX_BUILD_BYTES
    assert requests.MODEL_LIMIT_BYTES == identity.MAX_MODEL_NAME
    assert hello._ENGINE_NAME.pattern == identity.NAME.pattern


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gemma", "'gemma'"),
        ("x" * 40, "'" + "x" * 40 + "'"),
        ("x" * 41, "'" + "x" * 37 + "...'"),
        ("it's", '"it\'s"'),
        ("a\nb", "'a\\nb'"),
    ],
)
def test_a_callers_text_is_quoted_and_shortened(text, shown):
    assert requests.shortened(text) == shown


@pytest.mark.parametrize("character", ["a", "'", '"', "\n", "\x7f", "\x9f", "é", "世", "🙂"])
@pytest.mark.parametrize("length", [0, 1, 4, 5, 10, 39, 40, 41, 10_000])
def test_shortened_text_is_one_short_line_whatever_it_holds(character, length):
    shown = requests.shortened(character * length)
    assert len(shown) <= 42
    assert shown.isascii()
    assert shown.isprintable()
    assert shown[0] == shown[-1]


@pytest.mark.parametrize("model", ["🙂" * 200, "世" * 30, "\n" * 128])
def test_refusal_of_a_strange_model_keeps_its_advice(model):
    request = requests.CreateStreamRequest(model=model).SerializeToString()
    with pytest.raises(RRPAError) as caught:
        requests.model_of(request)
    assert len(str(caught.value)) <= MESSAGE_LIMIT_BYTES
    assert str(caught.value).endswith("ListModels says what can be asked for")


@pytest.mark.parametrize(
    "change",
    [
        {"table_nonce": os.urandom(16)},
        {"capacity": 3},
        {"capacity": layout.MAX_SLOTS},
        {"table_id": "0" * 32},
        {"shm_dir": "/" + "d" * 4000, "table_id": "0" * 32},
        {"format_version": 2**32 - 1, "engine_name": "e" * 64},
        {"boot_id": "b" * 10_000},
    ],
    ids=lambda change: ",".join(change),
)
def test_refusal_of_an_engine_keeps_its_advice(cast, shm, change):
    engine = cast.engine()
    with pytest.raises(AttachRefused) as caught:
        check_hello(engine.hello(**change), shm)
    text = str(caught.value)
    assert len(text.encode()) <= MESSAGE_LIMIT_BYTES, text
    assert text.endswith(
        ("one group", "into both", "version on both sides", "reaches one machine only")
    )
