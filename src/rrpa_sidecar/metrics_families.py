"""The sidecar's metrics by name, unit and help, in prometheus_client's form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from rrpa_sidecar.metrics import SERVER_SIDE, Gauges, Histogram, ModelMetrics, Totals
from rrpa_sidecar.status import Code

Models = Sequence[tuple[str, ModelMetrics]]

COUNTERS: dict[str, tuple[str, Callable[[ModelMetrics], int]]] = {
    "rrpa_stream_bytes_total": (
        "Bytes of answers handed to clients.",
        lambda m: m.delivered_bytes,
    ),
    "rrpa_frames_total": ("Frames handed to clients.", lambda m: m.frames),
    "rrpa_replaced_characters_total": (
        "U+FFFD put in place of bytes that are no UTF-8.",
        lambda m: m.replaced_characters,
    ),
}

TOTALS: dict[str, tuple[str, Callable[[Totals], int]]] = {
    "rrpa_streams_resumed_total": (
        "Calls of ResumeStream that found their stream.",
        lambda t: t.streams_resumed,
    ),
    "rrpa_streams_adopted_total": (
        "Streams of an engine's earlier attachment, to this sidecar or another, that go on here.",
        lambda t: t.streams_adopted,
    ),
    "rrpa_engines_quarantined_total": (
        "Engines that got no new streams since a file of theirs broke a rule of shm/FORMAT.md.",
        lambda t: t.engines_quarantined,
    ),
}

HISTOGRAMS: dict[str, tuple[str, Callable[[ModelMetrics], Histogram]]] = {
    "rrpa_first_token_latency_seconds": (
        "Time from a request's acceptance to its first frame, of each stream with a token.",
        lambda m: m.first_token_s,
    ),
    "rrpa_engine_first_token_seconds": (
        "Time from submission to the engine's first committed byte.",
        lambda m: m.engine_first_token_s,
    ),
    "rrpa_inter_token_seconds": (
        "Time between two frames of one stream.",
        lambda m: m.inter_token_s,
    ),
    "rrpa_queue_wait_seconds": (
        "Time from a request's acceptance to its submission to an engine.",
        lambda m: m.queue_wait_s,
    ),
}

GAUGES: dict[str, tuple[str, Callable[[Gauges], float]]] = {
    "rrpa_shm_utilization_percent": (
        "Share of the shared-memory budget (--shm-bytes) that streams hold, 0 to 100. From 85 on"
        " raise the budget, from 90 on add a node.",
        lambda g: 100.0 * g.shm_used_bytes() / g.shm_budget_bytes(),
    ),
    "rrpa_stream_queue_length": ("Requests that wait for an engine.", lambda g: g.queue_length()),
    "rrpa_active_streams": ("Streams that an engine works on.", lambda g: g.active_streams()),
    "rrpa_streams_stalled": (
        "Streams without progress for --stall-timeout whose engine lives: stopped, hung, or busy.",
        lambda g: g.stalled_streams(),
    ),
    "rrpa_engines_attached": ("Engines that are attached.", lambda g: g.engines()),
    "rrpa_shm_budget_bytes": (
        "Shared memory that all streams together may use (--shm-bytes).",
        lambda g: g.shm_budget_bytes(),
    ),
    "rrpa_shm_free_bytes": (
        "Free bytes of the shared-memory file system.",
        lambda g: g.shm_free_bytes(),
    ),
}


def families(
    models: Models, totals: Totals, error_rate: float, gauges: Gauges | None
) -> Iterator[Metric]:
    """Yield all families; a gauge that cannot be read is left out, never made up."""
    yield _by_code(models)
    for name, (text, count) in COUNTERS.items():
        counter = CounterMetricFamily(name, text, labels=["model"])
        for model, each in models:
            counter.add_metric([model], count(each))
        yield counter
    for name, (text, total) in TOTALS.items():
        yield CounterMetricFamily(name, text, value=total(totals))
    yield _reclaimed(totals)
    for name, (text, histogram) in HISTOGRAMS.items():
        yield _histogram(name, text, histogram, models)
    yield GaugeMetricFamily(
        "rrpa_grpc_error_rate",
        "Share, 0 to 1, of the streams of the last 60 s that ended with one of "
        f"{', '.join(code.name for code in sorted(SERVER_SIDE))}.",
        value=error_rate,
    )
    if gauges is not None:
        yield from _gauges(gauges)


def _by_code(models: Models) -> Metric:
    family = CounterMetricFamily(
        "rrpa_streams_total",
        'Calls that ended, by model and gRPC code, refusals included. Model "other" is every name'
        " without a series of its own.",
        labels=["model", "code"],
    )
    for model, each in models:
        for code in Code:
            family.add_metric([model, code.name], each.codes[code])
    return family


def _reclaimed(totals: Totals) -> Metric:
    family = CounterMetricFamily(
        "rrpa_shm_reclaimed_total",
        "Files in shared memory that no process owned any more and that were removed, by kind.",
        labels=["kind"],
    )
    for kind, count in totals.reclaimed.items():
        family.add_metric([kind], count)
    return family


def _histogram(
    name: str, text: str, histogram: Callable[[ModelMetrics], Histogram], models: Models
) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["model"])
    for model, each in models:
        pairs, total_s = histogram(each).cumulative()
        family.add_metric([model], pairs, total_s)
    return family


def _gauges(gauges: Gauges) -> Iterator[Metric]:
    for name, (text, read) in GAUGES.items():
        try:
            value = float(read(gauges))
        except (OSError, ZeroDivisionError):
            continue
        yield GaugeMetricFamily(name, text, value=max(value, 0.0))
