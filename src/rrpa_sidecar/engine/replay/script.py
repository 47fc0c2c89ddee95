"""What a request may ask of the replay engine, through its prompt. Pure.

    replay:{JSON}   exactly what the JSON says; its keys are the fields of `Script`
    echo:TEXT       TEXT, cut into tokens like the engine's own text
    anything else   the engine's own text

So a test chooses every byte boundary, delay and failure per request, through a real engine.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

from rrpa_sidecar.engine.reasons import REASONS, Usage
from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.status import Code

SCRIPT_PREFIX = "replay:"
ECHO_PREFIX = "echo:"


@dataclass(frozen=True, slots=True)
class Script:
    """One answer.

    tokens: hex digits of each token; "" is a token with no bytes. Any bytes are legal.
    repeat: the tokens are given so many times.
    prompt_delay_s: before the first token (or the end, when there is none).
    delay_s: between tokens.
    delays_s: before each token on top of that; the missing ones are 0.
    reason, stop_sequence, usage: how it finishes; usage is [prompt, completion, cached].
    code, text: the name or number of a status to fail with after the tokens, instead.
    reject: fail before the log begins, without any token.
    error: raise an exception with this text after the tokens.
    crash_after: end the process, with no clean-up, after so many tokens; 0 is before the first.
    hang_after: make no progress after so many tokens, until cancelled.
    show: answer with what the engine was given instead of `tokens`: "request" (its bytes in
      hex) or "labels" (JSON of stream_id, request_id, traceparent, priority, timeout_s).
    """

    tokens: tuple[bytes, ...] = ()
    repeat: int = 1
    prompt_delay_s: float = 0.0
    delay_s: float = 0.0
    delays_s: tuple[float, ...] = ()
    reason: str = "stop"
    stop_sequence: str | None = None
    usage: Usage | None = None
    code: Code = Code.OK
    text: str = ""
    reject: bool = False
    error: str | None = None
    crash_after: int | None = None
    hang_after: int | None = None
    show: str | None = None


def parse_script(text: str) -> Script:
    """Return the script in `text`, which is what follows `replay:`.

    Raises:
      InvalidRequest: it is not a JSON object of the fields above.
    """
    try:
        given = json.loads(text)
        if not isinstance(given, dict):
            raise ValueError("not an object")
        unknown = given.keys() - {field.name for field in fields(Script)}
        if unknown:
            raise ValueError(f"unknown key {min(unknown)!r}")
        return Script(**{key: _value(key, value) for key, value in given.items()})
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise InvalidRequest(f"replay script: {exc}") from exc


def _value(key: str, value: Any) -> Any:
    if key == "tokens":
        return tuple(bytes.fromhex(token) for token in value)
    if key == "delays_s":
        return tuple(_seconds(delay) for delay in value)
    if key in ("delay_s", "prompt_delay_s"):
        return _seconds(value)
    if key == "usage":
        return Usage(*(_whole(count) for count in value))
    if key == "code":
        return Code[value.upper()] if isinstance(value, str) else Code(value)
    if key == "repeat" or (key in ("crash_after", "hang_after") and value is not None):
        return _whole(value)
    if key in ("text", "stop_sequence", "error") and not isinstance(value, str | None):
        raise ValueError(f"{key} is not a string")
    if key == "reason" and value not in REASONS:
        raise ValueError(f"reason {value!r} is not one of {', '.join(REASONS)}")
    if key == "show" and value not in (None, "request", "labels"):
        raise ValueError(f"show {value!r} is not request or labels")
    return value


def _seconds(value: Any) -> float:
    seconds = float(value)
    if not 0 <= seconds <= 86_400:
        raise ValueError(f"a delay of {value} s is not from 0 to 86400")
    return seconds


def _whole(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number")
    return value
