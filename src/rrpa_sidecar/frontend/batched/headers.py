"""Headers of calls, in and out. Pure.

Source: gRPC over HTTP2, "Requests" and "Responses".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import dataclass

from rrpa_sidecar.errors import CapacityExhausted, InvalidRequest
from rrpa_sidecar.frontend.batched.fields import STATUS_200, field, fields
from rrpa_sidecar.frontend.metadata import TOTAL_LIMIT_BYTES, Pairs
from rrpa_sidecar.status import Code

BEGIN = STATUS_200 + field(b"content-type", b"application/grpc")
ACCEPTED = field(b"grpc-accept-encoding", b"identity")

OURS = {
    ":method",
    ":scheme",
    ":authority",
    ":path",
    ":protocol",
    "te",
    "content-type",
    "grpc-timeout",
    "grpc-encoding",
    "grpc-accept-encoding",
    "grpc-message-type",
    "host",
    "content-length",
}
"""What gRPC's libraries do not show to handlers as metadata."""

_is_grpc = re.compile(r"application/grpc([+;].*)?").fullmatch

FIELD_BYTES = 160
"""Memory of a pair of texts besides their characters."""

UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


@dataclass(slots=True)
class Head:
    """What a call's headers say."""

    path: str
    metadata: list[tuple[str, str]]
    http_status: int = 0
    """Not 0: no gRPC call at all, to be answered with this alone."""
    encoding: str = "identity"
    timeout: str = ""
    size_bytes: int = 0
    """Memory of it all, about."""

    def timeout_s(self) -> float | None:
        """Return how long the caller waits, None: for ever.

        Raises:
          InvalidRequest: it breaks gRPC's rules.
        """
        if not self.timeout:
            return None
        if not re.fullmatch("[0-9]{1,8}[HMSmun]", self.timeout):
            raise InvalidRequest(
                f"grpc-timeout is {self.timeout[:20]!r}; expected 1 to 8 digits and H, M, S, m, u"
                " or n"
            )
        return int(self.timeout[:-1]) * UNIT_S[self.timeout[-1]]

    def check_size(self) -> None:
        """Raise CapacityExhausted if the metadata is too long, in the words of `read_labels`."""
        total = sum(len(key) + len(value) for key, value in self.metadata)
        if total > TOTAL_LIMIT_BYTES:
            raise CapacityExhausted(
                f"the metadata has {total} bytes, the limit is {TOTAL_LIMIT_BYTES}; send less"
            )


def read(headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """Return what `headers`, which h2 has checked, say."""
    head = Head("", [])
    known: dict[str, str] = {}
    size = 0
    for raw_key, raw_value in headers:
        key, value = raw_key.decode("latin-1"), raw_value.decode("latin-1")
        size += FIELD_BYTES + len(key) + len(value)
        if key in OURS:
            known[key] = value
        elif key.endswith("-bin"):
            head.metadata += [(key, each) for each in _decoded(value)]
        else:
            head.metadata.append((key, value))
    head.size_bytes = size
    head.path = known.get(":path", "")
    head.timeout = known.get("grpc-timeout", "")
    head.encoding = known.get("grpc-encoding", "identity")
    if known.get(":method") != "POST":
        head.http_status = 405
    elif not _is_grpc(known.get("content-type", "")):
        head.http_status = 415
    return head


def _decoded(value: str) -> list[str]:
    """Return binary values: base64, several in one by commas."""
    found = []
    for each in value.split(","):
        try:
            found.append(base64.b64decode(each + "=" * (-len(each) % 4)).decode("latin-1"))
        except ValueError:  # no base64: binascii.Error, or not even ASCII
            found.append(each)
    return found


def http(status: int) -> bytes:
    """Return the block of an answer that is no gRPC."""
    return field(b":status", b"%d" % status)


def response(metadata: Pairs) -> bytes:
    """Return the block that begins an answer."""
    return BEGIN + fields(metadata)


def trailers(code: Code, text: str, metadata: Pairs, *, alone: bool) -> bytes:
    """Return the block that ends an answer. alone: nothing came before ("Trailers-Only")."""
    block = BEGIN if alone else b""
    block += field(b"grpc-status", b"%d" % code)
    if text:
        block += field(b"grpc-message", percent_encoded(text))
    if code is Code.UNIMPLEMENTED:
        block += ACCEPTED
    return block + fields(metadata)


def percent_encoded(text: str) -> bytes:
    """Return `text` as grpc-message carries it: printable ASCII but for %, the rest as %XX."""
    raw = text.encode("utf-8", "replace")
    return b"".join(
        b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in raw
    )
