"""Who may run now and who waits: a shared-memory budget and an ordered, bounded queue. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rrpa_sidecar.errors import StreamMisuse


class Budget:
    """Counts the bytes of the logs that exist or will.

    A stream takes those of its whole file when it is submitted, and fewer once the file will not
    grow any more; they are given back when the file is gone.
    """

    def __init__(self, shm_bytes: int, stream_bytes: int) -> None:
        self._shm_bytes = shm_bytes
        self._stream_bytes = stream_bytes
        self.taken_bytes = 0
        self.limit = shm_bytes // stream_bytes

    def measure(self, total_bytes: int) -> None:
        """Take note of the size of the file system, which may be smaller than the setting."""
        self.limit = min(self._shm_bytes, total_bytes) // self._stream_bytes

    @property
    def has_room(self) -> bool:
        """Whether one more stream may begin."""
        return self.short_bytes <= 0

    @property
    def short_bytes(self) -> int:
        """How much has to be given back before one more stream may begin; 0 or less: nothing."""
        return self.taken_bytes + self._stream_bytes - self.limit_bytes

    @property
    def limit_bytes(self) -> int:
        return self.limit * self._stream_bytes

    def take(self) -> int:
        """Take the bytes of a new stream; return how many."""
        if not self.has_room:
            raise StreamMisuse(f"{self.taken_bytes} of {self.limit_bytes} bytes are taken")
        self.taken_bytes += self._stream_bytes
        return self._stream_bytes

    def charge(self, size_bytes: int) -> None:
        """Take what is there already, whether or not it fits."""
        self.taken_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        if size_bytes > self.taken_bytes:
            raise StreamMisuse(f"{size_bytes} bytes were given back twice")
        self.taken_bytes -= size_bytes


@dataclass(order=True, frozen=True, slots=True)
class Ticket:
    """A place in the queue: lower priority number first, then the older one."""

    priority: int
    number: int
    model: str = field(compare=False)
    deadline_ns: int | None = field(compare=False)
    stream_id: str = field(compare=False)
    size_bytes: int = field(compare=False, default=0)


class Queue:
    """Tickets in order. One list per model, so that a busy model does not hold up another."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Ticket]] = {}
        self._next = 0
        self.size_bytes = 0
        """Bytes of all waiting requests together."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Ticket]:
        for tickets in self._waiting.values():
            yield from tickets

    def add(
        self,
        stream_id: str,
        model: str,
        priority: int,
        deadline_ns: int | None,
        size_bytes: int = 0,
    ) -> Ticket:
        self._next += 1
        ticket = Ticket(priority, self._next, model, deadline_ns, stream_id, size_bytes)
        self.size_bytes += size_bytes
        insort(self._waiting.setdefault(model, []), ticket)
        return ticket

    def remove(self, ticket: Ticket) -> None:
        """Take `ticket` out, wherever it stands."""
        tickets = self._waiting.get(ticket.model, [])
        at = bisect_left(tickets, ticket)
        if at == len(tickets) or tickets[at] != ticket:
            raise StreamMisuse(f"stream {ticket.stream_id} is not in the queue")
        del tickets[at]
        self.size_bytes -= ticket.size_bytes
        if not tickets:
            del self._waiting[ticket.model]

    def first(self, can_run: Callable[[str], bool]) -> Ticket | None:
        """Return the first ticket whose model can run; it stays in the queue."""
        heads = (tickets[0] for model, tickets in self._waiting.items() if can_run(model))
        return min(heads, default=None)

    def late(self, now_ns: int) -> list[Ticket]:
        """Return the tickets whose deadline has come."""
        return [t for t in self if t.deadline_ns is not None and t.deadline_ns <= now_ns]

    def unserved(self, is_served: Callable[[str], bool]) -> list[Ticket]:
        """Return the tickets of models for which `is_served` is false."""
        return [t for model, ts in self._waiting.items() if not is_served(model) for t in ts]
