"""Reads from a client's request what routing needs, and refuses what no engine may see."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.pb.rrpa_pb2 import CreateStreamRequest

MODEL_LIMIT_BYTES = 128
"""Longest name of a model that an engine may announce: engine.proto, Hello.models."""


def model_of(request: bytes) -> str:
    """Return the model that a serialized `CreateStreamRequest` asks for.

    Only `model`, `max_tokens` and `stop_sequences` are judged; the engine owns the meaning of
    the rest, and gets the same bytes.

    Raises:
      InvalidRequest: not a CreateStreamRequest, or one of these fields is wrong.
    """
    try:
        parsed = CreateStreamRequest.FromString(request)
    except DecodeError as exc:
        # Strings that are not UTF-8 are found here too. The decoder's own words vary by version.
        raise InvalidRequest(
            f"the request's {len(request)} bytes are not a rrpa.v1.CreateStreamRequest"
        ) from exc
    if not parsed.model:
        raise InvalidRequest("model is empty; ListModels says what can be asked for")
    if not is_model_name(parsed.model):
        raise InvalidRequest(
            f"model {shortened(parsed.model)} is not a name of 1 to {MODEL_LIMIT_BYTES} printable"
            " ASCII characters; ListModels says what can be asked for"
        )
    if parsed.max_tokens < 0:
        raise InvalidRequest(f"max_tokens is {parsed.max_tokens}; it must be 0 or more")
    if not all(parsed.stop_sequences):
        raise InvalidRequest("stop_sequences holds an empty text; it would end every answer")
    return parsed.model


def is_model_name(name: str) -> bool:
    """Tell whether an engine may announce `name`."""
    return 0 < len(name) <= MODEL_LIMIT_BYTES and name.isascii() and name.isprintable()


def shortened(name: str, limit: int = 40) -> str:
    """Return a caller's text for use in a sentence: quoted, printable ASCII, one line.

    limit: most characters between the quotes; each escape of a non-ASCII one counts in full.
    """
    shown = ascii(name[:limit])
    if len(name) <= limit and len(shown) <= limit + 2:
        return shown
    return f"{shown[: limit - 2]}...{shown[0]}"
