"""What Envoy says when it answers by itself: one sentence of plain text, never HTML or JSON."""

from __future__ import annotations

from rrpa_sidecar.config import Config
from rrpa_sidecar.edge.extensions import Tree
from rrpa_sidecar.edge.upstream import max_calls

TEXT = "text/plain; charset=utf-8"

GONE = "RRPA deprecated. Use /v2/messages with raw token streaming."
METHOD_NOT_ALLOWED = "use POST for /v2/messages, with a JSON body"
NO_QUERY = "/v2/messages takes no query; put every field into the JSON body"
GET_A_STREAM = "use GET for /v2/streams/{stream_id}?offset=N, with the id that rrpa-stream-id said"
NO_SUCH_PATH = (
    "no such path; use POST /v2/messages for plain HTTP, or call rrpa.v1.RRPAService with gRPC"
)
HTTP2_ONLY = "this port speaks HTTP/2 over TLS only; use a client that offers h2, as curl does"

REQUEST_HEADERS_KIB = 24
"""Room for a request's headers; a stream with more is reset.

Above the 16 KiB that the sidecar takes (rrpa.proto, "Metadata"), so that the caller is told in
words (RESOURCE_EXHAUSTED) before it is cut without.
"""


# gRPC's own mapping makes UNAVAILABLE of 429. Envoy 1.40 keeps a grpc-status that is set here.
RESOURCE_EXHAUSTED = {
    "header": {"key": "grpc-status", "value": "8"},
    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
}

JSON_PER_MESSAGE_BYTE = 2
"""How much larger than its message a request's JSON text may be: escapes need room."""


def max_json_bytes(config: Config) -> int:
    """Return the largest request body that Envoy reads as JSON."""
    return config.max_request_bytes * JSON_PER_MESSAGE_BYTE


def local_replies(config: Config) -> Tree:
    """Return Envoy's own error texts; the first mapper that fits is taken."""
    too_large = (
        f"the JSON body is larger than {max_json_bytes(config)} bytes, twice --max-request-bytes"
        f" {config.max_request_bytes}; shorten the prompt"
    )
    too_many = f"{max_calls(config)} calls are in flight at this edge, its limit; try again later"
    return {
        "mappers": [
            _mapper(_status(413), 413, too_large),
            _mapper(
                _flag("UF", "UH"),
                503,
                "the sidecar does not answer on its socket; try again in a few seconds",
            ),
            _mapper(
                _flag("UC", "UR", "LR", "UPE"),
                503,
                "the sidecar broke the call off before its answer began; see its log",
            ),
            # Last: Envoy sets UO too when a connection fails in a moment in which it has others.
            {**_mapper(_flag("UO"), 429, too_many), "headers_to_add": [RESOURCE_EXHAUSTED]},
        ],
        "body_format": {
            "text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"},
            "content_type": TEXT,
        },
    }


def _status(code: int) -> Tree:
    value = {"default_value": code, "runtime_key": "rrpa.unused"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": value}}}


def _flag(*flags: str) -> Tree:
    return {"response_flag_filter": {"flags": list(flags)}}


def _mapper(filter_: Tree, status: int, sentence: str) -> Tree:
    return {"filter": filter_, "status_code": status, "body": {"inline_string": sentence}}
