"""Log lines: one event is one line on stderr, whatever its text holds.

Modules log through `logging.getLogger(__name__)`; nothing is logged per token.
"""

from __future__ import annotations

import logging
import sys
import time

LINE_LIMIT_CHARS = 8192

_NOISE = ("Invalid encoding", "ExecuteBatchError raised in core")
"""In gRPC's messages: a header that is not UTF-8; a caller that left while its status was sent."""

_LEVELS = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}


class LineFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info rrpa_sidecar.sidecar.daemon: text`, escaped and cut."""

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text += " | " + self.formatException(record.exc_info)
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        head = f"{moment}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name}: "
        return head + escape(text)


def _is_ours_to_log(record: logging.LogRecord) -> bool:
    """Drop gRPC's tracebacks that any caller could fill the log with."""
    of_grpc = record.name.startswith("grpc")
    return not (of_grpc and any(map(record.getMessage().__contains__, _NOISE)))


def escape(text: str) -> str:
    """Return `text` with all that is not printable as a backslash escape, at most one line."""
    cut = text if len(text) <= LINE_LIMIT_CHARS else text[:LINE_LIMIT_CHARS] + "…"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def configure(level: str) -> None:
    """Send this process's log lines of `level` and above to stderr; `none` sends nothing.

    With `none`, logging is off at its root, so a disabled line costs one comparison.
    """
    logging.raiseExceptions = False  # a log nobody reads any more must not end a stream
    root = logging.getLogger()
    if level == "none":
        logging.disable(logging.CRITICAL)
        root.handlers = [logging.NullHandler()]
        return
    logging.disable(logging.NOTSET)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    handler.addFilter(_is_ours_to_log)
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])
    for library in ("asyncio", "grpc"):
        # At debug these speak about every poll and every call.
        logging.getLogger(library).setLevel(max(_LEVELS[level], logging.WARNING))
