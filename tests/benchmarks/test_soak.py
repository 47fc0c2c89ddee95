"""The checker of a soak finds each kind of defect, and takes nothing that may be for one."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from benchmarks.soak import memory
from benchmarks.soak.check import faults_of
from benchmarks.soak.record import Fault, Read, Written, written

ID, OTHER = "a" * 32, "b" * 32
TOKENS = [b"one ", "zwö".encode()[:3], "zwö".encode()[3:] + b" ", b"three \xff", b"four"]
TEXT = "one zwö three \N{REPLACEMENT CHARACTER}four".encode()
WHOLE = Written(TOKENS, committed=5, reason="STOP", finished=True)
KILLED = Written(TOKENS, committed=4)
KILL = Fault("kill sidecar", 10.0, 11.0)


def read(*cuts: int, **more: object) -> Read:
    """Return what a reader got that has all of TEXT, in frames that are cut at `cuts`."""
    edges = [0, *cuts, len(TEXT)]
    pieces = [(a, TEXT[a:b]) for a, b in itertools.pairwise(edges)]
    made = Read("whole", True, ID, pieces, [(0, 0)], 5.0, 10.5, code="OK", reason="STOP", tokens=5)
    return dataclasses.replace(made, **more)


def failed(upto: int, code: str = "UNAVAILABLE", **more: object) -> Read:
    """Return a reader that has the first bytes of TEXT, and then a failure of the stream."""
    pieces = [(0, TEXT[:upto])] if upto else []
    ended = {"code": code, "reason": None, "tokens": 0, "offset": upto}
    return read(**{"pieces": pieces, **ended, **more})


def found(one: Read, wrote: Written | None = WHOLE, *faults: Fault) -> list[str]:
    return faults_of(one, {} if wrote is None else {ID: wrote}, faults)


def test_an_engines_record_ends_where_it_was_killed() -> None:
    lines = [f"{ID} t 6f6e65\n", f"{ID} c \n", f"{OTHER} t \n", f"{ID} t 7a\n", f"{OTHER} x full\n"]
    assert written([*lines, f"{ID} c"]) == {
        ID: Written([b"one", b"z"], committed=1),
        OTHER: Written([b""], gave_up="full"),
    }


def test_a_reader_comes_back_from_its_record_as_it_was() -> None:
    one = read(4, text="ü", offset=None)
    assert Read.of_line(one.line()) == one


@pytest.mark.parametrize(
    "one",
    [
        read(),
        read(4, 9),
        read(4, 9, starts=[(0, 0), (4, 1), (9, 2)]),
        read(4, starts=[(4, 0)], pieces=[(4, TEXT[4:])]),
        failed(9, left=True),
    ],
)
def test_what_is_whole_or_was_left_is_no_defect(one: Read) -> None:
    assert found(one) == []


@pytest.mark.parametrize(
    ("pieces", "word"),
    [
        ([(0, TEXT[:4]), (9, TEXT[9:])], "lost"),
        ([(0, TEXT[:9]), (4, TEXT[4:])], "doubled"),
        ([(0, TEXT[:4]), (4, b"of another" + TEXT[14:])], "mixed"),
        ([(0, TEXT[:-4])], "lost"),
        ([(0, TEXT + b"!")], "mixed"),
        ([(0, b"one zw\xc3"), (7, TEXT[7:])], "half"),
    ],
)
def test_bytes_that_are_lost_doubled_or_mixed_are_found(
    pieces: list[tuple[int, bytes]], word: str
) -> None:
    assert any(word in each for each in found(read(pieces=pieces)))


def test_a_call_that_goes_on_elsewhere_than_its_reader_was_is_found() -> None:
    pieces = [(0, TEXT[:4]), (3, TEXT[3:])]
    assert found(read(pieces=pieces, starts=[(0, 0), (3, 1)]))


@pytest.mark.parametrize(
    ("one", "wrote", "faults"),
    [
        (failed(len(TEXT) - 4), KILLED, ()),
        (failed(len(TEXT)), KILLED, ()),
        (failed(9, resumable=False, offset=None), WHOLE, (KILL,)),
        (failed(9, "INTERNAL", resumable=False, offset=None), WHOLE, (KILL,)),
        (failed(9, "CANCELLED", resumable=False, offset=None), WHOLE, (KILL,)),
        (read(code="UNAVAILABLE"), WHOLE, (KILL,)),  # the Finish came, its status did not
        (failed(0, "RESOURCE_EXHAUSTED"), None, ()),
        (failed(0, offset=None), None, ()),
        (Read("cancel", True, ID, code="OK", reason="CANCELLED"), None, ()),
        (failed(0, "CANCELLED", offset=None), None, (KILL,)),
        (failed(0, "NOT_FOUND"), Written([b"x"]), ()),
        (failed(4, "RESOURCE_EXHAUSTED"), Written(TOKENS[:2], 1, gave_up="full"), ()),
        (read(reason="CANCELLED"), dataclasses.replace(WHOLE, reason="CANCELLED"), ()),
    ],
)
def test_a_failure_that_a_fault_explains_is_no_defect(
    one: Read, wrote: Written | None, faults: tuple[Fault, ...]
) -> None:
    assert found(one, wrote, *faults) == []


@pytest.mark.parametrize(
    ("one", "wrote", "faults"),
    [
        (failed(4), KILLED, ()),  # less than was committed
        (failed(9), WHOLE, (KILL,)),  # its engine finished, and it could come back
        (failed(9, resumable=False), WHOLE, ()),  # nothing was done to it
        (failed(9, resumable=False, ended_s=9.0), WHOLE, (KILL,)),  # before the fault
        (failed(9, "INTERNAL"), WHOLE, (KILL,)),
        (failed(9, "CANCELLED"), WHOLE, (KILL,)),
        (read(code="UNAVAILABLE"), WHOLE, ()),
        (read(code="UNAVAILABLE"), KILLED, (KILL,)),
        (read(code="UNAVAILABLE", offset=len(TEXT)), KILLED, (KILL,)),
        (failed(0, "CANCELLED", offset=None), None, ()),
        (failed(0, "CANCELLED"), None, (KILL,)),
        (Read("whole", True, ID, code="OK", reason="CANCELLED"), None, ()),
        (failed(9, "DATA_LOSS"), KILLED, ()),
        (failed(9, "DEADLINE_EXCEEDED"), WHOLE, ()),
        (failed(9, "NOT_FOUND"), KILLED, ()),
        (read(reason="LENGTH"), WHOLE, ()),
        (read(tokens=4), WHOLE, ()),
        (read(), KILLED, ()),  # a cut answer that looks whole
        (read(), None, ()),
    ],
)
def test_a_failure_that_nothing_explains_is_found(
    one: Read, wrote: Written | None, faults: tuple[Fault, ...]
) -> None:
    assert found(one, wrote, *faults)


def life(pid: int, seconds: int, bytes_per_s: float, *, mood: int = 0) -> list[memory.Sample]:
    """Return samples of a sidecar: all that is loaded at first use, then a slope, and a mood."""
    return [
        (float(at), pid, int(50e6 + 4e5 * min(at, 9) + bytes_per_s * at + mood * (at % 7 > 3)))
        for at in range(seconds)
    ]


def test_memory_that_grows_in_a_long_life_is_found_and_a_beginning_is_not() -> None:
    grows, flat = life(7, 60, 300_000), life(8, 60, 0, mood=500_000)
    (told,) = memory.growth(grows + flat)
    assert "pid 7" in told
    assert memory.growth(grows[:30]) == []
    assert memory.growth(life(9, 150, 25 * 1024))  # 1 KiB of each of 25 streams a second


def test_a_run_says_which_life_it_judged_or_that_none_was_long_enough() -> None:
    short, long = life(7, 20, 1e6), life(8, 60, 0)
    assert memory.judged(short) == "memory is not judged: no sidecar lived for 40 s"
    assert "1 long lives, the longest" in memory.judged(short + long)
    assert "53.60 MB in the second quarter of 59 s, 53.60 MB in the last" in memory.judged(long)
