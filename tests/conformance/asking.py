"""Requests that make the replay engine do exactly what a test needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.conformance.callers import Request

MODEL = "test"


def replay(
    tokens: Sequence[bytes], *, delay_s: float = 0.0, between_s: float = 0.0, **more: Any
) -> Request:
    """Return a request that is answered with exactly `tokens`.

    delay_s: before the first token. between_s: between tokens.
    """
    script = {"tokens": [token.hex() for token in tokens], **more}
    if delay_s:
        script["prompt_delay_s"] = delay_s
    if between_s:
        script["delay_s"] = between_s
    return Request(model=MODEL, prompt="replay:" + json.dumps(script))
