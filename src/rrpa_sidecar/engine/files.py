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

    The sidecar removes a log when nobody reads it any more. The engine removes one only when
    the sidecar may not (Release), when the sidecar that knew it is gone, or when it stops.
    """

    def __init__(self, directory: SegmentDirectory) -> None:
        self._directory = directory
        self._lock = Lock()
        self._ended: set[str] = set()
        self._prune_at = PRUNE_AT

    def ended(self, stream_id: str) -> None:
        """Note that we write this log no more; its file may still be read."""
        with self._lock:
            self._ended.add(stream_id)
            if len(self._ended) >= self._prune_at:
                self._forget_gone()
                self._prune_at = max(PRUNE_AT, 2 * len(self._ended))

    def release(self, stream_id: str) -> None:
        """Unlink an ended log; anything that is not an ended log of ours stays."""
        with self._lock:
            if stream_id not in self._ended:
                log.warning("asked to remove %r, which is no ended log of ours", stream_id[:64])
                return
            self._ended.discard(stream_id)
        self._unlink(stream_id)

    def release_all(self) -> None:
        """Unlink every ended log."""
        with self._lock:
            ended, self._ended = self._ended, set()
        for stream_id in ended:
            self._unlink(stream_id)

    def all_gone(self) -> bool:
        """Whether the sidecar has removed every ended log."""
        with self._lock:
            self._forget_gone()
            return not self._ended

    def _forget_gone(self) -> None:
        present = set(self._directory.names())
        self._ended = {key for key in self._ended if layout.log_name(key) in present}

    def _unlink(self, stream_id: str) -> None:
        try:
            self._directory.unlink(layout.log_name(stream_id))
        except SegmentMissing:
            pass  # the sidecar was first
        except OSError as exc:
            log.warning("cannot remove the log of stream %s: %s", stream_id, exc)
