"""Many calls that are open at once, and what each of them got, when."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Self

import grpc

from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.callers import Answer, Request, collect
from tests.harness.processes import eventually

TIMEOUT_S = 60.0


def channel(target: str, **options: int) -> grpc.Channel:
    """Return a channel with a connection of its own."""
    own = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    return grpc.insecure_channel(target, [*own, *options.items()])


class Streams:
    """One call for each request, all on one connection, read to their ends by threads.

    answers: in the order of the requests; None while a call is open.
    ended_s: monotonic moments.
    """

    def __init__(
        self,
        target: str,
        requests: Sequence[Request],
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.answers: list[Answer | None] = [None] * len(requests)
        self.ended_s = [0.0] * len(requests)
        self._channel = channel(target)
        stub = rrpa_pb2_grpc.RRPAServiceStub(self._channel)
        self.calls = [stub.CreateStream(each, TIMEOUT_S, metadata=metadata) for each in requests]
        self._seen = [0] * len(requests)
        self._threads = [
            threading.Thread(target=self._read, args=(number, call))
            for number, call in enumerate(self.calls)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, number: int, call: Any) -> None:
        self.answers[number] = collect(self._counted(number, call))
        self.ended_s[number] = time.monotonic()

    def _counted(self, number: int, call: Any) -> Any:
        return _Counted(call, self._seen, number)

    def wait_open(self) -> list[str]:
        """Wait until all are accepted; return the server's names of them."""
        return [dict(call.initial_metadata())["rrpa-stream-id"] for call in self.calls]

    def wait_frames(self, count: int = 1) -> None:
        """Wait until each has had so many frames."""
        eventually(lambda: min(self._seen) >= count, 10, f"each call has {count} frames")

    @property
    def open(self) -> int:
        return sum(answer is None for answer in self.answers)

    def result(self, timeout_s: float = 10.0) -> list[Answer]:
        """Wait for all ends."""
        until_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))
        assert not self.open, f"{self.open} calls hang"
        return [answer for answer in self.answers if answer is not None]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for call in self.calls:
            call.cancel()
        for thread in self._threads:
            thread.join()
        self._channel.close()


class _Counted:
    """A call whose frames are counted as they come."""

    def __init__(self, call: Any, seen: list[int], number: int) -> None:
        self._call = call
        self._seen = seen
        self._number = number

    def __iter__(self) -> Any:
        for frame in self._call:
            self._seen[self._number] += 1
            yield frame

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)
