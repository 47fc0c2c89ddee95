"""What the sidecar counts, and how Prometheus reads it.

The loop thread adds to plain integers; a scrape, in its own thread, only reads them. Nothing here
uses prometheus_client's own counters, so its multi-process mode (`PROMETHEUS_MULTIPROC_DIR`) has
nothing to act on.

Labels never hold what a client sends: `model` is a name that an attached engine serves, at most
`MODEL_LIMIT` of them, and `other` for every other name; `code` is one of gRPC's 17.
Every label set of a model exists at 0 from the moment the model is known.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from rrpa_sidecar.clock import Clock, SystemClock
from rrpa_sidecar.status import Code

if TYPE_CHECKING:
    from prometheus_client import Metric

MODEL_LIMIT = 32
"""Models with series of their own. About 110 series each: a page of 32 models with names of the
longest kind stays under 1 MB and takes a scrape under 200 ms."""

OTHER = "other"

BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip

ERROR_WINDOW_S = 60

SEGMENT_KINDS = ("log", "table", "temporary")
"""Kinds of files in shared memory: shm/FORMAT.md, "Names"."""

SERVER_SIDE = frozenset(
    {
        Code.UNKNOWN,
        Code.DEADLINE_EXCEEDED,
        Code.UNIMPLEMENTED,
        Code.INTERNAL,
        Code.UNAVAILABLE,
        Code.DATA_LOSS,
    }
)
"""Codes that count as errors of this side, as OpenTelemetry's gRPC conventions do. A caller's
mistake is none, nor is a refusal by a limit: that one shows in the queue and the utilization."""


class Gauges(Protocol):
    """What is true right now. Read by the scrape's thread, so each must be a plain read."""

    def active_streams(self) -> int:
        """Streams that an engine works on."""
        ...

    def queue_length(self) -> int:
        """Requests that wait for an engine."""
        ...

    def engines(self) -> int:
        """Attached engines."""
        ...

    def stalled_streams(self) -> int:
        """Streams without progress whose engine lives."""
        ...

    def shm_used_bytes(self) -> int:
        """Budget taken by streams whose file exists or will."""
        ...

    def shm_budget_bytes(self) -> int:
        """Budget of all streams together."""
        ...

    def shm_free_bytes(self) -> int:
        """Free bytes of the directory's file system."""
        ...


class Histogram:
    """Counts of durations by bucket; the last one is for all above the highest bound."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.total_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration. A negative one, which only a stamp from outside can give, is 0."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s += seconds

    def observe_alike(self, seconds: float, times: int) -> None:
        """Count `times` durations of the same length."""
        seconds = max(seconds, 0.0)
        self.counts[bisect_left(BUCKETS_S, seconds)] += times
        self.total_s += seconds * times

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        """Return prometheus' (upper bound, count so far) pairs and the sum of all durations."""
        counts, total_s = list(self.counts), self.total_s
        so_far, pairs = 0, []
        for bound, count in zip([*map(str, BUCKETS_S), "+Inf"], counts, strict=True):
            so_far += count
            pairs.append((bound, float(so_far)))
        return pairs, total_s


class ErrorWindow:
    """Streams that ended in the last `ERROR_WINDOW_S` seconds, and how many of them failed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._slots = [(0, 0, 0)] * ERROR_WINDOW_S  # (second, ended, failed)

    def add(self, failed: bool) -> None:
        """Count one stream that ended now."""
        second = self._clock.now_ns() // 1_000_000_000
        at = second % ERROR_WINDOW_S
        stamp, ended, failures = self._slots[at]
        if stamp != second:
            ended = failures = 0
        self._slots[at] = (second, ended + 1, failures + failed)

    def share(self) -> float:
        """Return failed ÷ ended, 0 when none ended."""
        oldest = self._clock.now_ns() // 1_000_000_000 - ERROR_WINDOW_S
        recent = [slot for slot in list(self._slots) if slot[0] > oldest]
        ended = sum(slot[1] for slot in recent)
        return sum(slot[2] for slot in recent) / ended if ended else 0.0


class ModelMetrics:
    """Everything that is counted for one value of the `model` label."""

    __slots__ = (
        "_window",
        "codes",
        "delivered_bytes",
        "engine_first_token_s",
        "first_token_s",
        "frames",
        "inter_token_s",
        "queue_wait_s",
        "replaced_characters",
    )

    def __init__(self, window: ErrorWindow) -> None:
        self._window = window
        self.codes = [0] * len(Code)
        self.delivered_bytes = 0
        self.frames = 0
        self.replaced_characters = 0
        self.queue_wait_s = Histogram()
        self.engine_first_token_s = Histogram()
        self.first_token_s = Histogram()
        self.inter_token_s = Histogram()

    def stream_ended(self, code: Code) -> None:
        """Count one call that ended with `code`, refusals included. Once for each call."""
        self.codes[code] += 1
        self._window.add(code in SERVER_SIDE)

    def frame(self, n_bytes: int) -> None:
        """Count one frame of `n_bytes` of the answer."""
        self.frames += 1
        self.delivered_bytes += n_bytes

    def frames_alike(self, frames: int, n_bytes: int, since_s: float) -> None:
        """Count `frames` that leave together, `n_bytes` in all, each the next of a stream whose
        last one left `since_s` ago."""
        self.frames += frames
        self.delivered_bytes += n_bytes
        self.inter_token_s.observe_alike(since_s, frames)

    def replaced(self, n: int) -> None:
        """Count `n` characters U+FFFD put in place of invalid bytes."""
        self.replaced_characters += n

    def queue_wait(self, seconds: float) -> None:
        """From acceptance to submission to an engine."""
        self.queue_wait_s.observe(seconds)

    def engine_first_token(self, seconds: float) -> None:
        """From submission to the engine's first committed byte."""
        self.engine_first_token_s.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """From acceptance to the first frame handed to the client's connection."""
        self.first_token_s.observe(seconds)

    def inter_token(self, seconds: float) -> None:
        """Between two frames of one stream."""
        self.inter_token_s.observe(seconds)


class Totals:
    """What is counted for the whole sidecar: a stream found again may have no model yet.

    reclaimed: files removed that nobody owned any more, by kind.
    """

    __slots__ = ("engines_quarantined", "reclaimed", "streams_adopted", "streams_resumed")

    def __init__(self) -> None:
        self.engines_quarantined = 0
        self.streams_resumed = 0
        self.streams_adopted = 0
        self.reclaimed = dict.fromkeys(SEGMENT_KINDS, 0)


class Metrics:
    """All counters of one sidecar. Written by the loop thread only."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._window = ErrorWindow(clock or SystemClock())
        self._models: dict[str, ModelMetrics] = {OTHER: ModelMetrics(self._window)}
        self._serving: dict[str, int] = {}  # model → attached engines
        self.totals = Totals()
        self.gauges: Gauges | None = None

    def add_model(self, name: str) -> None:
        """Say that one more engine serves `name`; its series appear at 0.

        A place is taken from a model that nobody serves any more; if there is none, the new
        model is counted under `other`.
        """
        self._serving[name] = self._serving.get(name, 0) + 1
        if name in self._models:
            return
        if len(self._models) > MODEL_LIMIT:
            gone = next((m for m in self._models if m != OTHER and m not in self._serving), None)
            if gone is None:
                return
            self._models.pop(gone)
        self._models[name] = ModelMetrics(self._window)

    def remove_model(self, name: str) -> None:
        """Say that one engine fewer serves `name`. Its counts stay until the place is needed."""
        left = self._serving.get(name, 0) - 1
        if left > 0:
            self._serving[name] = left
        else:
            self._serving.pop(name, None)

    def model(self, name: str) -> ModelMetrics:
        """Return the counters for `name`: its own where an engine serves it, else `other`'s."""
        return self._models.get(name) or self._models[OTHER]

    def error_rate(self) -> float:
        """Return the share, 0 to 1, of the last minute's streams that failed on this side."""
        return self._window.share()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric in prometheus_client's form (a registry's collector)."""
        from rrpa_sidecar import metrics_families  # prometheus_client, where one scrapes only

        models = sorted(self._models.copy().items())
        return metrics_families.families(models, self.totals, self.error_rate(), self.gauges)
