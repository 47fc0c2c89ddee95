"""One call from acceptance to status, without any I/O: what is counted, timed and told.

Every front end drives a `Call` the same way: `accepted`, then for each event `wrote` or
`finished`, and `ended` exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.control.broker import Labels, Reading
from rrpa_sidecar.errors import RRPAError
from rrpa_sidecar.frontend import metadata
from rrpa_sidecar.metrics import Metrics
from rrpa_sidecar.pb.rrpa_pb2 import FinishReason
from rrpa_sidecar.status import Code, one_line
from rrpa_sidecar.stream.events import Finished

log = logging.getLogger(__name__)

Ending = Callable[[int, bool], RRPAError]
"""(bytes that the caller holds, whether its stream is resumable) → why the call ends now."""


class Call:
    """What one call that streams an answer, new or resumed, has done so far."""

    __slots__ = (
        "_clock",
        "_ended",
        "_finish",
        "_metrics",
        "_resume_window_s",
        "counters",
        "delivered_bytes",
        "labels",
        "last_frame_ns",
        "stream",
    )

    def __init__(self, metrics: Metrics, clock: Clock, resume_window_s: float) -> None:
        self._metrics = metrics
        self.counters = metrics.model("")
        self._clock = clock
        self._resume_window_s = resume_window_s
        self.last_frame_ns = 0
        """When the last frame was handed to the connection; 0: none was."""
        self._ended = False
        self._finish: Finished | None = None
        self.labels: Labels | None = None
        self.stream: Reading | None = None
        self.delivered_bytes = 0

    @property
    def offset(self) -> int:
        """Bytes of the answer that the caller holds: those before a resumed call, and ours."""
        return (self.stream.start_offset if self.stream else 0) + self.delivered_bytes

    def accepted(self, stream: Reading) -> metadata.Pairs:
        """Take note that the broker accepted; return the initial metadata."""
        self.stream = stream
        self.counters = self._metrics.model(stream.model)
        assert self.labels is not None
        pairs = metadata.id_pairs(self.labels)
        pairs += ((metadata.SERVER_STREAM_ID, stream.stream_id),)
        if stream.resumable:
            pairs += ((metadata.RESUME_WINDOW, f"{self._resume_window_s:g}"),)
        return pairs

    def wrote(self, n_bytes: int) -> None:
        """Take note that a frame with `n_bytes` of the answer was handed to the connection."""
        assert self.stream is not None
        now_ns = self._clock.now_ns()
        if self.last_frame_ns:
            self.counters.inter_token((now_ns - self.last_frame_ns) / 1e9)
        elif not self.stream.resumed:  # its first token was another call's
            timing = self.stream.timing
            timing.first_frame_ns = now_ns
            self.counters.first_token((now_ns - timing.accepted_ns) / 1e9)
        self.last_frame_ns = now_ns
        self.delivered_bytes += n_bytes
        self.counters.frame(n_bytes)

    def finished(self, event: Finished) -> None:
        """Take note of how the stream ended, for the log."""
        self._finish = event

    def trailers(self) -> metadata.Pairs:
        """Return the trailing metadata as of now."""
        pairs = metadata.id_pairs(self.labels) if self.labels else ()
        if self.stream is None:
            return pairs
        pairs += ((metadata.OFFSET, str(self.offset)),)
        timing = self._server_timing()
        return (*pairs, (metadata.SERVER_TIMING, timing)) if timing else pairs

    def ended(self, code: Code, text: str = "") -> None:
        """Count and log the call's end; the first time counts."""
        if self._ended:
            return
        self._ended = True
        self.counters.stream_ended(code)
        if log.isEnabledFor(logging.INFO):
            log.info("%s", self._line(code, text))

    def _server_timing(self) -> str:
        """Return where the time to the first frame went, "" when this call had none."""
        assert self.stream is not None
        if self.stream.resumed:
            return ""
        timing = self.stream.timing
        stamps = (
            timing.accepted_ns,
            timing.submitted_ns,
            timing.first_commit_ns,
            timing.first_frame_ns,
        )
        if not all(stamps):
            return ""
        parts = []
        for name, start_ns, end_ns in zip(
            ("queue", "engine", "sidecar"), stamps, stamps[1:], strict=False
        ):
            parts.append(f"{name};dur={max((end_ns or 0) - (start_ns or 0), 0) / 1e6:.1f}")
        return ", ".join(parts)

    def _line(self, code: Code, text: str) -> str:
        words = [f"call ended code={code.name}"]
        if self.labels:
            words.append(f"request_id={self.labels.request_id} stream_id={self.labels.stream_id}")
        if self.stream:
            words.append(f"stream={self.stream.stream_id} model={self.stream.model}")
            words.append(f"bytes={self.delivered_bytes}")
            if self._finish is not None and code is Code.OK:
                words.append(f"finish={_reason(self._finish)}")
            if self.stream.resumed:
                words.append(f"resumed_at={self.stream.start_offset}")
        return one_line(" ".join(words + ([text] if text else [])), 2048)


def _reason(finish: Finished) -> str:
    """Return the name of a finish reason, or the number of one that this version does not know."""
    if finish.reason not in FinishReason.values():
        return str(finish.reason)
    return FinishReason.Name(finish.reason).removeprefix("FINISH_REASON_")
