"""The short way of a token: from the scan right into the frames of its connection. No I/O.

512 streams move in one step, and a processor that has just been woken has none of them in its
caches; the first version, which found the movers in one pass and sent in another, with its
events, messages and calls, cost 12.7 µs a token; this one pass costs about 2, half of them for
memory that is cold. So: one loop, nothing kept per token, as few objects per stream as possible.
`python -m benchmarks micro` measures its parts.

Where the time goes (py-spy --nonblocking, 990 samples of 9 s, 512 streams × 100 tokens/s through
Envoy, CPython 3.11, 2 busy cores): 41 % of all are the loop's own, uvloop and the kernel, to wake,
wait and return. Of the rest, the scan, 65 % are `take` (its own lines 37, `heads.stream_head` 14,
`StreamReader.promised` 13), 30 % the join and the write at the step's end, 3 % finding who moved.
No line stands out any more: a token is a slice, a checksum, one `struct` call and a dozen
attributes. pread, protobuf, the collector and the metrics, which led the first profile, are gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.short_way import TAIL_RECORD_BYTES, Moves
from rrpa_sidecar.frontend.batched import wire
from rrpa_sidecar.frontend.batched.outgoing import Outgoing

SHORT_BYTES = 4096
"""Most raw bytes that go the short way. Three times as many, and their head, fit into the smallest
frame that HTTP/2 lets a peer ask for, 16,384 bytes, and so into a window of that size."""

SHORT_WINDOW_BYTES = 16384
"""Window of its stream without which an answer goes the long way, where frames are cut to fit."""


class Stepper(Protocol):
    """What a step asks of a connection."""

    def begin_step(self) -> None:
        """Give its sender credit, if frames can leave now."""
        ...

    def end_step(self) -> None:
        """Send what the step has appended, if it did."""
        ...


class Step:
    """Implements `control.short_way.ShortWay` for all connections of a front end.

    connections: a live collection; they come and go between steps.
    """

    def __init__(self, connections: Iterable[Stepper], clock: Clock) -> None:
        self._connections = connections
        self._clock = clock

    def begin_step(self) -> None:
        for each in self._connections:
            each.begin_step()

    def take(self, places: list[Outgoing | None], moves: Moves) -> list[tuple[int, int]]:
        """See `ShortWay.take`.

        Where the short way is shut (no window, no credit, a word that promises nothing, a log
        that moved too far), the answer is marked for its sender's turn, which knows every case.
        """
        others = []
        first, pairs, tails = moves
        now_ns = self._clock.now_ns()
        counters, since_ns, frames, n_bytes = None, 0, 0, 0
        frame_head, record = wire.HEAD_BYTES, TAIL_RECORD_BYTES
        for slot, word in pairs:
            out = places[slot]
            if out is None or word & 1:
                others.append((slot, word))
                continue
            reader, sender, stream = out.reader, out.sender, out.stream
            credit = sender.credit
            left = stream.outbound_flow_control_window
            at = (slot - first) * record
            if (
                credit > 0
                and left >= SHORT_WINDOW_BYTES
                and reader is not None
                and (data := reader.promised(word, SHORT_BYTES, tails[at : at + record]))
            ):
                size = len(data)
                head = out.head(out.stream_id, reader.offset - size, size)
                append = sender.append
                append(head)
                append(data)
                taken = len(head) - frame_head + size
                stream.outbound_flow_control_window = left - taken
                sender.credit = credit - taken
                # Streams of one step are alike, so that counting is mostly these comparisons.
                if out.last_frame_ns != since_ns or out.counters is not counters:
                    if counters is not None:
                        counters.frames_alike(frames, n_bytes, (now_ns - since_ns) / 1e9)
                    counters, since_ns, frames, n_bytes = out.counters, out.last_frame_ns, 0, 0
                out.last_frame_ns = now_ns
                frames += 1
                n_bytes += size
            else:
                out.word = word
                if reader is not None and credit <= 0:
                    sender.mark_urgent(out)
                else:
                    sender.mark(out)
        if counters is not None:
            counters.frames_alike(frames, n_bytes, (now_ns - since_ns) / 1e9)
        return others

    def end_step(self) -> None:
        for each in tuple(self._connections):
            each.end_step()
