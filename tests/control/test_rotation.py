"""Taking turns."""

from __future__ import annotations

from rrpa_sidecar.control.rotation import Rotation


def test_looks_without_news_are_bounded_and_everybody_gets_a_turn():
    rotation: Rotation[int] = Rotation()
    for number in range(10):
        rotation.add(number)
    seen: list[int] = []
    for _ in range(5):
        rotation.turn(lambda n: bool(seen.append(n)), misses=2)
    assert seen == list(range(10))


def test_news_costs_no_turn():
    rotation: Rotation[int] = Rotation()
    for number in range(10):
        rotation.add(number)
    seen: list[int] = []

    def look(number: int) -> bool:
        seen.append(number)
        rotation.discard(number)
        return number < 6

    rotation.turn(look, misses=1)
    assert seen == [0, 1, 2, 3, 4, 5, 6]


def test_members_may_leave_and_come_during_a_turn():
    rotation: Rotation[str] = Rotation()
    for name in "abc":
        rotation.add(name)
    seen: list[str] = []

    def look(name: str) -> bool:
        seen.append(name)
        rotation.discard("b")
        rotation.add("d")
        return False

    rotation.turn_all(look)
    assert seen == ["a", "c"]
    assert len(rotation) == 3
