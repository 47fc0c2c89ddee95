"""What callers say beside the request, and what they are told beside the answer.

The rules are in proto/rrpa/v1/rrpa.proto, "Metadata". Ids are labels only: they are passed
through and logged, and name no file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rrpa_sidecar.control.broker import Labels
from rrpa_sidecar.errors import CapacityExhausted, InvalidRequest

REQUEST_ID = "x-request-id"
STREAM_ID = "x-stream-id"
PRIORITY = "x-priority"
TRACEPARENT = "traceparent"
RESUMABLE = "x-resumable"
PLAIN_HTTP = "rrpa-plain-http"
"""Set to 1 by Envoy, and by nobody else, on calls it makes for plain HTTP callers."""
SERVER_STREAM_ID = "rrpa-stream-id"
RESUME_WINDOW = "rrpa-resume-window"
OFFSET = "rrpa-offset"
SERVER_TIMING = "server-timing"

VALUE_LIMIT_BYTES = 256
TOTAL_LIMIT_BYTES = 16 * 1024
"""All metadata of a call together. gRPC announces such a limit but lets megabytes pass."""
PRIORITY_LIMIT = 100

Pairs = tuple[tuple[str, str], ...]


def read_labels(metadata: Iterable[tuple[str, str | bytes]]) -> Labels:
    """Return the labels of a call; ids that are absent or empty are made up.

    Raises:
      InvalidRequest: a key is present twice, or its value breaks the rules.
      CapacityExhausted: all of it together is too long.
    """
    found = dict.fromkeys((REQUEST_ID, STREAM_ID, PRIORITY, TRACEPARENT, RESUMABLE), "")
    seen: set[str] = set()
    total = 0
    for key, value in metadata:
        total += len(key) + len(value)
        if key not in found:
            continue
        if key in seen:
            raise InvalidRequest(f"{key} is given twice; give it once or not at all")
        seen.add(key)
        found[key] = _checked(key, value)
    if total > TOTAL_LIMIT_BYTES:
        raise CapacityExhausted(
            f"the metadata has {total} bytes, the limit is {TOTAL_LIMIT_BYTES}; send less"
        )
    return Labels(
        request_id=found[REQUEST_ID] or new_id(),
        stream_id=found[STREAM_ID] or new_id(),
        priority=_priority(found[PRIORITY]),
        traceparent=found[TRACEPARENT],
        resumable=_resumable(found[RESUMABLE]),
    )


def new_id() -> str:
    """Return 32 hex digits that nobody can guess."""
    return os.urandom(16).hex()


def id_pairs(labels: Labels) -> Pairs:
    """Return the metadata that names the call to its caller."""
    return ((REQUEST_ID, labels.request_id), (STREAM_ID, labels.stream_id))


def _checked(key: str, value: str | bytes) -> str:
    text = value if isinstance(value, str) else value.decode("latin-1")
    if len(text) > VALUE_LIMIT_BYTES:
        raise InvalidRequest(
            f"{key} has {len(text)} bytes; at most {VALUE_LIMIT_BYTES} are allowed"
        )
    if not (text.isascii() and text.isprintable()):
        raise InvalidRequest(f"{key} holds a character that is not printable ASCII; remove it")
    return text


def _resumable(text: str) -> bool:
    if text not in ("", "0", "1"):
        raise InvalidRequest(f"{RESUMABLE} is {text[:20]!r}; expected 1 or 0, or nothing for 0")
    return text == "1"


def _priority(text: str) -> int:
    if not text:
        return 0
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) <= 3 and int(digits) <= PRIORITY_LIMIT:
        return int(text)
    raise InvalidRequest(
        f"{PRIORITY} is {text[:20]!r}; expected an integer from -{PRIORITY_LIMIT} to"
        f" {PRIORITY_LIMIT}"
    )
