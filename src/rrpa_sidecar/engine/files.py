"""The log files that this engine created and may have to remove itself."""

from __future__ import annotations

import logging
from threading import Lock

from rrpa_sidecar.errors import SegmentMissing
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory

PRUNE_AT = 1024
"""Ended files remembered before one listing of the directory forgets those that are gone."""

log = logging.getLogger(__name__)


class OwnFiles:
    """Remembers which logs exist because of us. Thread-safe.

    The sidecar removes a log when nobody reads it any more; one that died leaves that to the
    next. The engine removes a log only when the sidecar may not (Release), and those it leaves
    behind when it exits, which nobody is going to ask for; a resumable one still may be.
    """

    def __init__(self, directory: SegmentDirectory) -> None:
        self._directory = directory
        self._lock = Lock()
        self._ended: dict[str, bool] = {}
        """Stream id → whether the log is left for the sidecar when we exit."""
        self._sidecar_may_not = False
        self._prune_at = PRUNE_AT

    def ended(self, stream_id: str, *, resumable: bool) -> None:
        """Note that we write this log no more; its file may still be read."""
        with self._lock:
            self._ended[stream_id] = resumable
            if len(self._ended) >= self._prune_at:
                self._forget_gone()
                self._prune_at = max(PRUNE_AT, 2 * len(self._ended))

    def release(self, stream_id: str) -> None:
        """Unlink an ended log; anything that is not an ended log of ours stays."""
        with self._lock:
            if stream_id not in self._ended:
                log.warning("asked to remove %r, which is no ended log of ours", stream_id[:64])
                return
            del self._ended[stream_id]
            self._sidecar_may_not = True
        self._unlink(stream_id)

    def release_rest(self) -> None:
        """Unlink every ended log that nobody will remove or ask for once we are gone."""
        with self._lock:
            rest = self._rest()
            for stream_id in rest:
                del self._ended[stream_id]
        for stream_id in rest:
            self._unlink(stream_id)

    def rest_gone(self) -> bool:
        """Whether the sidecar has removed all that `release_rest` would."""
        with self._lock:
            self._forget_gone()
            return not self._rest()

    def _rest(self) -> list[str]:
        # Where the sidecar could not remove one of ours it can remove none, and a resumable log
        # that we leave would stay for ever.
        return [
            stream_id
            for stream_id, resumable in self._ended.items()
            if self._sidecar_may_not or not resumable
        ]

    def _forget_gone(self) -> None:
        try:
            present = set(self._directory.names())
        except OSError as exc:  # too many files are open; there will be another time
            log.warning("cannot look which logs are gone: %s", exc.strerror)
            return
        self._ended = {
            stream_id: resumable
            for stream_id, resumable in self._ended.items()
            if layout.log_name(stream_id) in present
        }

    def _unlink(self, stream_id: str) -> None:
        try:
            self._directory.unlink(layout.log_name(stream_id))
        except SegmentMissing:
            pass  # the sidecar was first
        except OSError as exc:
            log.warning("cannot remove the log of stream %s: %s", stream_id, exc)
