"""Holds what clients got against what engines wrote. Pure; knows nothing of the product's code.

Every byte once: none lost, none doubled, none of another stream's. Every end is one that may be.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.soak.record import Fault, Read, Written

BREAKS_CALLS = ("kill sidecar", "hand over", "kill engine", "end engine")
"""Faults that may end a call which nobody resumes."""
REFUSALS = ("RESOURCE_EXHAUSTED", "UNAVAILABLE")
BROKEN = ("INTERNAL", "UNKNOWN", "CANCELLED")
"""Without rrpa-offset these are words of a connection that broke: Envoy's for a sidecar that is
gone, and those of gRPC's core for a call that meets a server which begins to stop."""
SLACK_S = 3.0
"""A call may hear of a fault so much later: a sidecar that is gone is noticed by its connection."""


def faults_of(read: Read, engines: dict[str, Written], faults: Sequence[Fault]) -> list[str]:
    """Return a sentence for each thing that is wrong with what one reader got."""
    wrote = engines.get(read.stream_id)
    found = [*_order(read)]
    if not found:
        found += _content(read, wrote or Written())
    found += _end(read, wrote, faults)
    return [f"{read.kind} reader of {read.stream_id or 'no stream'}: {each}" for each in found]


def _order(read: Read) -> list[str]:
    """Each frame begins where the one before it ended, each call where it was asked to."""
    starts = {pieces: offset for offset, pieces in read.starts}
    at = None
    for number, (offset, data) in enumerate(read.pieces):
        wanted = starts.get(number, at)
        if at is not None and wanted != at:
            return [f"asked for {wanted} while it had {at}"]
        if offset != wanted:
            kind = "lost" if wanted is not None and offset > wanted else "doubled"
            return [f"{kind}: a frame at {offset}, expected {wanted}"]
        if not _is_text(data):
            return [f"half a character in the frame at {offset}: {data[-8:]!r}"]
        at = offset + len(data)
    return []


def _content(read: Read, wrote: Written) -> list[str]:
    """The bytes are the engine's, as a client should see them: whole characters."""
    if not read.pieces:
        return []
    start = read.pieces[0][0]
    got = b"".join(data for _, data in read.pieces)
    texts = [
        as_text(wrote.tokens[:count]) for count in range(wrote.committed, len(wrote.tokens) + 1)
    ]
    if any(text[start : start + len(got)] == got for text in texts):
        return []
    text = texts[-1]
    wrong = next(
        (at for at, (a, b) in enumerate(zip(got, text[start:], strict=False)) if a != b),
        min(len(got), len(text[start:])),
    )
    return [
        f"mixed: byte {start + wrong} is {got[wrong : wrong + 8]!r},"
        f" the engine wrote {text[start + wrong :][:8]!r}"
    ]


def _end(read: Read, wrote: Written | None, faults: Sequence[Fault]) -> list[str]:
    if read.left:
        return []
    if read.code == "OK":
        return _whole(read, wrote)
    if read.reason is not None:  # only the status behind its Finish may have been lost
        if read.offset is not None:
            return [f"{read.code} ({read.text}) after its Finish"]
        return _whole(read, wrote) + _explained(read, faults)
    if read.code == "NOT_FOUND":
        return _not_found(read, wrote)
    code = "UNAVAILABLE" if read.code in BROKEN and read.offset is None else read.code
    if code not in REFUSALS:
        return [f"ended with {read.code} ({read.text})"]
    if wrote is None:  # it never reached an engine
        if read.pieces:
            return [f"{read.code}, and no engine knows of its bytes"]
        return _explained(read, faults) if read.code in BROKEN else []
    if wrote.gave_up is not None:
        return _has_all_that_is_committed(read, wrote)
    if wrote.finished and read.resumable:
        return [f"lost the end: {read.code} ({read.text}), but its engine finished"]
    if code != "UNAVAILABLE":
        return [f"ended with {read.code} ({read.text})"]
    if read.resumable:
        return _has_all_that_is_committed(read, wrote)
    return _explained(read, faults)


def _explained(read: Read, faults: Sequence[Fault]) -> list[str]:
    """A call may break while a fault is in that breaks calls."""
    if any(
        fault.name in BREAKS_CALLS
        and fault.begun_s <= read.ended_s
        and fault.ended_s + SLACK_S >= read.begun_s
        for fault in faults
    ):
        return []
    return [f"{read.code} ({read.text}), and no fault was put in that could do it"]


def _whole(read: Read, wrote: Written | None) -> list[str]:
    if wrote is None and read.kind == "cancel" and read.reason == "CANCELLED":
        return []  # in the queue: it never reached an engine
    if wrote is None or wrote.reason is None:
        return [f"OK with {read.reason}, but its engine never finished"]
    start, size = _extent(read)
    # Until a cancelled engine hears of it, a token more or less may have been committed.
    counts = range(wrote.committed, len(wrote.tokens) + 1)
    wanted = [len(as_text(wrote.tokens[:count])) for count in counts]
    if start + size not in wanted:
        return [f"lost: {start + size} bytes and OK, of {wanted[-1]}"]
    if read.reason != wrote.reason:
        return [f"finished with {read.reason}, its engine with {wrote.reason}"]
    if read.tokens not in counts:
        return [f"finished with {read.tokens} tokens of {len(wrote.tokens)}"]
    return []


def _not_found(read: Read, wrote: Written | None) -> list[str]:
    """A stream whose engine was killed before its first token leaves no trace."""
    if read.kind == "again":  # the end was read already, and files do not stay for ever
        return []
    if wrote is None or (not wrote.committed and not wrote.finished):
        return []
    return [f"NOT_FOUND after {wrote.committed} tokens ({read.text})"]


def _has_all_that_is_committed(read: Read, wrote: Written) -> list[str]:
    start, size = _extent(read)
    least = len(as_text(wrote.tokens[: wrote.committed]))
    if start + size >= least:
        return []
    return [f"lost: {start + size} of {least} committed bytes, then {read.code} ({read.text})"]


def _extent(read: Read) -> tuple[int, int]:
    """Return where the reader began, and how many bytes it has."""
    start = read.starts[0][0] if read.starts else 0
    return start, sum(len(data) for _, data in read.pieces)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def as_text(tokens: Sequence[bytes]) -> bytes:
    """Return what a client sees of these tokens at a stream's end."""
    return b"".join(tokens).decode("utf-8", "replace").encode()
