"""Budget and queue."""

from __future__ import annotations

import pytest

from rrpa_sidecar.control.admission import Budget, Queue
from rrpa_sidecar.errors import StreamMisuse


def anything(_: str) -> bool:
    return True


def test_budget_holds_as_many_streams_as_fit_and_not_one_more():
    budget = Budget(shm_bytes=2047, stream_bytes=1024)
    assert budget.limit == 1
    assert budget.take() == 1024
    assert not budget.has_room
    with pytest.raises(StreamMisuse):
        budget.take()
    budget.give_back(1024)
    assert budget.has_room
    with pytest.raises(StreamMisuse):
        budget.give_back(1)


def test_what_is_there_already_is_charged_whether_or_not_it_fits():
    budget = Budget(shm_bytes=2049, stream_bytes=1024)
    budget.charge(1)
    assert budget.has_room
    budget.take()
    assert not budget.has_room, "1025 of 2048 are taken, and a stream needs 1024"
    budget.charge(5000)
    assert budget.taken_bytes == 6025
    budget.give_back(5001)
    assert budget.has_room


@pytest.mark.parametrize(("total", "limit"), [(1023, 0), (1024, 1), (4095, 3), (9999, 4)])
def test_budget_is_no_larger_than_the_file_system(total, limit):
    budget = Budget(shm_bytes=4096, stream_bytes=1024)
    budget.measure(total)
    assert budget.limit == limit
    assert budget.limit_bytes == limit * 1024


def test_file_system_that_shrinks_leaves_no_room_until_streams_end():
    budget = Budget(shm_bytes=4096, stream_bytes=1024)
    budget.take()
    budget.take()
    budget.measure(2048)
    assert not budget.has_room
    budget.give_back(1024)
    assert budget.has_room


def test_lower_priority_number_goes_first_and_then_the_older():
    queue = Queue()
    for name, priority in [("a", 0), ("b", 5), ("c", 0), ("d", -1)]:
        queue.add(name, "m", priority, None)
    order = []
    while (ticket := queue.first(anything)) is not None:
        queue.remove(ticket)
        order.append(ticket.stream_id)
    assert order == ["d", "a", "c", "b"]
    assert len(queue) == 0


def test_model_that_cannot_run_does_not_hold_up_another():
    queue = Queue()
    queue.add("first", "busy", -10, None)
    queue.add("second", "idle", 10, None)
    assert queue.first(lambda model: model == "idle").stream_id == "second"
    assert queue.first(lambda model: False) is None


def test_removal_takes_out_exactly_one_wherever_it_stands():
    queue = Queue()
    tickets = [queue.add(str(n), "m", 0, None) for n in range(5)]
    queue.remove(tickets[2])
    assert [t.stream_id for t in queue] == ["0", "1", "3", "4"]
    with pytest.raises(StreamMisuse):
        queue.remove(tickets[2])


def test_queue_knows_the_bytes_of_what_waits():
    queue = Queue()
    small, large = queue.add("a", "m", 0, None, 5), queue.add("b", "n", 0, None, 1000)
    assert queue.size_bytes == 1005
    queue.remove(large)
    assert queue.size_bytes == 5
    queue.remove(small)
    assert queue.size_bytes == 0


def test_deadline_is_late_at_its_moment_and_not_before():
    queue = Queue()
    queue.add("a", "m", 0, 100)
    queue.add("b", "m", 0, None)
    assert queue.late(99) == []
    assert [t.stream_id for t in queue.late(100)] == ["a"]


def test_tickets_of_unserved_models_are_found():
    queue = Queue()
    queue.add("a", "m", 0, None)
    queue.add("b", "n", 0, None)
    assert [t.stream_id for t in queue.unserved(lambda model: model == "m")] == ["b"]
