"""A coverage-guided search for faults, as long as you like: not a part of the suite.

    pip install atheris
    python -m tests.hostile.campaign -max_total_time=600 [CORPUS_FOLDER]

Last run: 7 minutes, 16,755 lives, 1,454 branches of the front end, h2, hpack and hyperframe; no
fault.

atheris (libFuzzer) draws the bytes that tests/hostile/grammar.py makes its choices with, and keeps
those that reach new branches of the front end, h2, hpack or hyperframe. What it finds becomes a
row of tests/hostile/attacks.py, or a seed here.
"""

from __future__ import annotations

import logging
import sys

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["rrpa_sidecar.frontend", "h2", "hpack", "hyperframe"]):
    from tests.hostile.driver import CountingLoop, Driver, Faults
    from tests.hostile.grammar import actions


class Bytes:
    """Chance out of a fuzzer's bytes; after their end, always 0."""

    def __init__(self, raw: bytes) -> None:
        self._provider = atheris.FuzzedDataProvider(raw)

    def randrange(self, stop: int, /) -> int:
        return int(self._provider.ConsumeIntInRange(0, stop - 1))

    @property
    def left(self) -> int:
        return int(self._provider.remaining_bytes())


LOOP, FAULTS = CountingLoop(), Faults()
logging.getLogger("rrpa_sidecar").addHandler(FAULTS)
logging.getLogger("rrpa_sidecar").propagate = False


def one(raw: bytes) -> None:
    """Live one life."""
    chance = Bytes(raw)
    wild = chance.randrange(4) > 0
    script = actions(chance, min(40, 1 + chance.left // 8), wild=wild)
    Driver(LOOP, FAULTS).live(script, tame=not wild)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
