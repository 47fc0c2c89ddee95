"""What callers say beside the request, as the rules of rrpa.proto have it."""

from __future__ import annotations

import pathlib

import pytest

from rrpa_sidecar.errors import CapacityExhausted, InvalidRequest
from rrpa_sidecar.frontend import metadata
from rrpa_sidecar.frontend.metadata import TOTAL_LIMIT_BYTES, read_labels
from rrpa_sidecar.status import MESSAGE_LIMIT_BYTES

PROTO = pathlib.Path(__file__).parents[2] / "proto/rrpa/v1/rrpa.proto"


@pytest.mark.parametrize(
    "value",
    ["../x", "/etc/x", "a/b", ".", "%REQ(x-request-id)%", "-", "a,b", "~!@#$%^&*()", "x" * 256],
)
def test_a_printable_id_is_passed_through_unchanged(value: str) -> None:
    labels = read_labels([("x-request-id", value), ("x-stream-id", value)])
    assert (labels.request_id, labels.stream_id) == (value, value)


@pytest.mark.parametrize(
    "value", ["a\0b", "a\nb", "a\tb", "\x7f", "é", "🙂", "x" * 257, b"\xff\xfe", b"\x80", "\udc80"]
)
@pytest.mark.parametrize("key", ["x-request-id", "x-stream-id", "x-priority", "traceparent"])
def test_any_other_value_is_refused_with_a_short_sentence(key: str, value: str | bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_labels([(key, value)])
    assert str(caught.value).startswith(key)
    assert len(str(caught.value)) < 200


def test_all_metadata_together_has_a_limit_at_its_edge() -> None:
    key = "x-other"
    assert read_labels([(key, "x" * (TOTAL_LIMIT_BYTES - len(key)))])
    with pytest.raises(CapacityExhausted, match=f"limit is {TOTAL_LIMIT_BYTES}"):
        read_labels([(key, "x" * (TOTAL_LIMIT_BYTES - len(key) + 1))])


def test_other_keys_are_ignored_whatever_they_hold() -> None:
    labels = read_labels([("user-agent", "é\n"), ("x-bin", b"\xff"), ("x-bin", b"\xff")])
    assert (labels.priority, labels.traceparent) == (0, "")


def test_the_proto_names_every_key_and_limit() -> None:
    text = PROTO.read_text()
    sent = (metadata.REQUEST_ID, metadata.STREAM_ID, metadata.PRIORITY, metadata.TRACEPARENT)
    for key in (*sent, metadata.SERVER_STREAM_ID, metadata.OFFSET, metadata.SERVER_TIMING):
        assert f"//   {key} " in text
    limit = metadata.PRIORITY_LIMIT
    assert f"at most {metadata.VALUE_LIMIT_BYTES} bytes" in text
    assert f"at most {TOTAL_LIMIT_BYTES // 1024} KiB" in text
    assert f"-{limit} to {limit}" in text
    assert f"less than {MESSAGE_LIMIT_BYTES + 1} bytes" in text
