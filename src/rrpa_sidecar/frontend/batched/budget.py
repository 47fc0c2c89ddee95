"""What a peer may cost us without asking for an answer. Pure.

Each of these frames is cheap to send and makes us work or answer: SETTINGS, PING, PRIORITY, empty
DATA, resets right after requests, window updates of a byte. Honest peers send few. A peer starts
with a sum, regains it with time and with what we send to it, and is cut when it is used up.
"""

from __future__ import annotations

NOISE_BURST, NOISE_PER_S = 1000.0, 50.0
"""SETTINGS, PING, PRIORITY, empty DATA, unknown frames. gRPC's clients ping at each measurement
of their bandwidth, some ten times a second at most."""

UPDATES_BURST, UPDATES_PER_FRAME, UPDATES_PER_CALL = 10_000.0, 10.0, 2.0
"""WINDOW_UPDATE: ten for each DATA frame that we send, as Envoy allows."""

QUICK_S = 1.0
"""A call that its caller has kept for so long costs nothing when it is reset."""

RESETS_PER_S, RESETS_PER_FRAME = 100.0, 0.1
"""Calls that are reset sooner. Ten DATA frames buy another: who reads its answers may leave some.
Never so many a second as a core can open: on a slow machine a flood would never be found."""

FAULTS_BURST, FAULTS_PER_S = 100.0, 1.0
"""Streams that we have to reset because the peer broke HTTP/2's rules on them (CVE-2025-8671)."""

FRAMES_BURST, FRAMES_PER_S, FRAMES_PER_CALL = 50_000.0, 2_000.0, 10.0
"""Frames of any kind, for those that cost little else: late ones for streams that have ended, a
request byte by byte. Each call brings what it needs, so that a proxy's storm of short calls is no
flood; the rate is one that a core with other work still exceeds (a frame takes 13 µs)."""

FULL_BYTES = 1024
"""A DATA frame with so much of a request costs no budget: requests are long."""


class Bucket:
    """A sum that is spent and refills."""

    __slots__ = ("_burst", "_left", "_per_s", "_seen_s")

    def __init__(self, burst: float, per_s: float, now_s: float) -> None:
        self._burst = self._left = burst
        self._per_s = per_s
        self._seen_s = now_s

    def spend(self, now_s: float, amount: int = 1) -> bool:
        """Take `amount`; False: there is none left."""
        self.refill((now_s - self._seen_s) * self._per_s)
        self._seen_s = now_s
        self._left -= amount
        return self._left >= 0

    def refill(self, amount: float) -> None:
        """Give back, up to the burst."""
        self._left = min(self._burst, self._left + amount)


class Budget:
    """All that one connection may waste."""

    __slots__ = ("faults", "frames", "noise", "resets", "updates")

    def __init__(self, calls_limit: int, now_s: float) -> None:
        """calls_limit: calls that one peer can have open; all of them may be cancelled at once."""
        self.noise = Bucket(NOISE_BURST, NOISE_PER_S, now_s)
        self.resets = Bucket(2.0 * calls_limit + 100, RESETS_PER_S, now_s)
        self.faults = Bucket(FAULTS_BURST, FAULTS_PER_S, now_s)
        self.updates = Bucket(UPDATES_BURST, 0.0, now_s)
        self.frames = Bucket(FRAMES_BURST, FRAMES_PER_S, now_s)

    def began(self) -> None:
        """Take note of a call."""
        self.updates.refill(UPDATES_PER_CALL)
        self.frames.refill(FRAMES_PER_CALL)

    def sent(self, frames: int) -> None:
        """Take note that we sent DATA frames, which are answered with window updates."""
        self.updates.refill(frames * UPDATES_PER_FRAME)
        self.frames.refill(frames * UPDATES_PER_FRAME)
        self.resets.refill(frames * RESETS_PER_FRAME)
