"""What has arrived of requests that are not whole yet, over all connections. Pure."""

from __future__ import annotations

from rrpa_sidecar.errors import CapacityExhausted


class Held:
    """Bytes that are kept for requests to come."""

    __slots__ = ("bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0

    def change(self, more_bytes: int) -> None:
        """Take note that `more_bytes` more are kept; negative: that many fewer."""
        self.bytes += more_bytes

    def check(self) -> None:
        """Raise CapacityExhausted while more is kept than may be."""
        if self.bytes > self.limit_bytes:
            raise CapacityExhausted(
                f"requests that are still arriving have more than {self.limit_bytes} bytes"
                " (--queue-bytes and --max-request-bytes); try later"
            )
