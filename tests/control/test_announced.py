"""What an engine may announce, and in which order."""

from __future__ import annotations

import pytest

from rrpa_sidecar.control.announced import Roll, check
from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.pb.engine_pb2 import Announce, AttachRequest, Hello, OpenStream, Rejected
from rrpa_sidecar.shm import layout


def stream(number: int = 0, **changes: object) -> OpenStream:
    fields = {"stream_id": f"{number:032x}", "model": "test", "request_id": "mine"}
    return OpenStream(**{**fields, **changes})


def announce(*streams: OpenStream) -> AttachRequest:
    return AttachRequest(announce=Announce(streams=streams))


def test_roll_is_complete_when_as_many_came_as_hello_said_in_any_number_of_messages():
    roll = Roll(Hello(capacity=4, announced=3))
    assert roll.missing == 3
    roll.add(announce(stream(1), stream(2)))
    assert roll.missing == 1
    roll.add(announce(stream(3)))
    assert roll.missing == 0
    assert roll.streams == [stream(1), stream(2), stream(3)]


def test_engine_without_streams_has_nothing_to_add():
    roll = Roll(Hello(capacity=1))
    assert (roll.missing, roll.streams) == (0, [])


@pytest.mark.parametrize("capacity", [0, 1, 8])
def test_engine_may_announce_as_many_as_it_can_run_and_not_one_more(capacity):
    Roll(Hello(capacity=capacity, announced=capacity))
    with pytest.raises(InvalidRequest, match=f"at most its capacity, {capacity}, not"):
        Roll(Hello(capacity=capacity, announced=capacity + 1))


def test_capacity_that_no_engine_can_have_makes_no_room_for_announcements():
    """Hello's other fields are judged when all has come."""
    most = layout.MAX_SLOTS
    assert Roll(Hello(capacity=2**32 - 1, announced=most)).missing == most
    with pytest.raises(InvalidRequest, match="announced must be"):
        Roll(Hello(capacity=2**32 - 1, announced=most + 1))


def test_more_streams_than_announced_are_refused_with_both_numbers():
    roll = Roll(Hello(capacity=4, announced=2))
    roll.add(announce(stream(1)))
    with pytest.raises(InvalidRequest, match="announced 2 streams, but 3 came"):
        roll.add(announce(stream(2), stream(3)))


@pytest.mark.parametrize(
    "event", [{"rejected": Rejected(stream_id="0" * 32, code=3)}, {"hello": Hello()}, {}]
)
def test_nothing_may_come_before_the_last_announced_stream(event):
    roll = Roll(Hello(capacity=4, announced=2))
    roll.add(announce(stream(1)))
    with pytest.raises(InvalidRequest, match="1 of 2 announced streams are missing"):
        roll.add(AttachRequest(**event))


def test_id_that_comes_twice_is_refused_in_one_message_in_two_and_on_one_attachment():
    with pytest.raises(InvalidRequest, match=f"{1:032x} came twice"):
        Roll(Hello(capacity=4, announced=4)).add(announce(stream(1), stream(1)))
    roll = Roll(Hello(capacity=4, announced=4))
    roll.add(announce(stream(1)))
    with pytest.raises(InvalidRequest, match="came twice"):
        roll.add(announce(stream(2), stream(1)))
    assert roll.missing == 3
    with pytest.raises(InvalidRequest, match="came twice"):
        check([stream(1)], {f"{1:032x}"}.__contains__)
    check([stream(1)], set[str]().__contains__)


def test_announce_of_nothing_is_refused():
    with pytest.raises(InvalidRequest, match="no streams"):
        Roll(Hello(capacity=4, announced=1)).add(announce())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stream_id": ""}, "stream_id must be 32 lower-case hex digits, not ''"),
        ({"stream_id": "A" * 32}, "stream_id"),
        ({"stream_id": "0" * 31}, "stream_id"),
        ({"stream_id": "../" * 11}, "stream_id"),
        ({"stream_id": "0" * 33}, "stream_id"),
        ({"stream_id": "x" * 60_000}, "stream_id"),
        ({"model": ""}, "model"),
        ({"model": "m" * 129}, "model"),
        ({"model": "a\nb"}, "model"),
        ({"request_id": "r" * 257}, "request_id must be at most 256 printable"),
        ({"request_id": "a\nb"}, "request_id"),
        ({"request_id": "é"}, "request_id"),
    ],
)
def test_wrong_field_is_refused_in_a_short_sentence(changes, says):
    with pytest.raises(InvalidRequest, match=says) as caught:
        check([stream(1), stream(2, **changes)], lambda _: False)
    assert len(str(caught.value)) < 199


def test_longest_allowed_fields_pass():
    check(
        [stream(model="m" * 128, request_id="r" * 256), stream(1, request_id="")], lambda _: False
    )
