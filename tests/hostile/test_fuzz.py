"""Random peers against one connection, in process: nothing escapes, and nothing is left."""

from __future__ import annotations

import random

import pytest

from tests.hostile.driver import CountingLoop, Driver, Faults, playground
from tests.hostile.grammar import actions

LIVES = 600


def test_random_lives_of_a_connection_end_without_a_fault_and_leave_nothing(
    seeded: random.Random,
) -> None:
    with playground() as (loop, faults):
        for life in range(LIVES):
            seed = seeded.getrandbits(32)
            try:
                one_life(loop, faults, seed)
            except BaseException as error:
                error.add_note(f"life {life}: repeat(seed={seed})")
                raise


def repeat(seed: int) -> None:
    """Live one life again: python -c 'from tests.hostile.test_fuzz import *; repeat(7)'."""
    with playground() as (loop, faults):
        one_life(loop, faults, seed)


def one_life(loop: CountingLoop, faults: Faults, seed: int) -> None:
    """Live one life; in every other the peer does only what it may."""
    chance = random.Random(seed)
    wild = chance.randrange(2) == 1
    Driver(loop, faults).live(actions(chance, 1 + chance.randrange(30), wild=wild), tame=not wild)


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 9, 100])
def test_a_life_is_the_same_wherever_reads_cut_its_bytes(cut: int, seeded: random.Random) -> None:
    """What was answered does not depend on how the kernel cuts what a peer has sent."""
    with playground() as (loop, faults):
        for _ in range(40):
            raw = b"".join(
                value for name, value in actions(seeded, 8, wild=True) if name == "bytes"  # type: ignore[misc]
            )  # fmt: skip
            whole, pieces = Driver(loop, faults), Driver(loop, faults)
            whole.live([("bytes", raw)])
            pieces.live([("bytes", raw[at : at + cut]) for at in range(0, len(raw), cut)])
