"""Decides whether a request may come in, and says which limit keeps it out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rrpa_sidecar.control.admission import Budget, Queue
from rrpa_sidecar.control.engines import Engines
from rrpa_sidecar.control.requests import shortened
from rrpa_sidecar.errors import CapacityExhausted, Draining, ModelNotFound, NoEngine, ShmFull
from rrpa_sidecar.shm.descriptors import check_room
from rrpa_sidecar.shm.directory import SegmentDirectory, Space
from rrpa_sidecar.shm.memory import Memory, own_memory

CALL_BYTES = 64 * 1024
"""Memory of a stream here, besides its request; its tokens are in the engine's."""


class Limits(Protocol):
    """The part of `Config` that limits what comes in."""

    @property
    def shm_bytes(self) -> int: ...
    @property
    def stream_bytes(self) -> int: ...
    @property
    def queue_limit(self) -> int: ...
    @property
    def queue_bytes(self) -> int: ...
    @property
    def max_engines(self) -> int: ...


class Gate:
    """Refuses, or lets pass. Every refusal names its limit."""

    def __init__(
        self,
        limits: Limits,
        directory: SegmentDirectory,
        engines: Engines,
        queue: Queue,
        memory: Memory | None = None,
    ) -> None:
        self._limits = limits
        self._directory = directory
        self._engines = engines
        self._queue = queue
        self._memory = memory or own_memory()
        self.draining = False
        self.budget = Budget(limits.shm_bytes, limits.stream_bytes)
        self.budget.measure(directory.space().total_bytes)
        self.evict: Callable[[int], bool] = lambda short_bytes: False
        """Removes one of the files that are kept for readers who may never come; False: all of them
        together do not have the bytes that are missing."""

    def check_request(self, model: str, size_bytes: int) -> None:
        """Raise Draining, NoEngine, ModelNotFound or CapacityExhausted unless it may come in."""
        if self.draining:
            raise Draining("the sidecar is draining; send the request to another one")
        if not self._engines.serving:
            raise NoEngine("no engine is attached yet; try again shortly")
        if not self._engines.serves(model):
            raise ModelNotFound(
                f"no engine serves model {shortened(model)}; ListModels says what can be asked for"
            )
        check_room()
        self.check_space()
        self.check_memory(size_bytes)
        self._check_queue(model, size_bytes)

    def check_engine(self) -> None:
        """Raise Draining or CapacityExhausted unless one more engine may attach."""
        if self.draining:
            raise Draining("the sidecar is draining and takes no engines; attach again later")
        if len(self._engines) >= self._limits.max_engines:
            raise CapacityExhausted(
                f"{len(self._engines)} engines are attached, the limit is"
                f" {self._limits.max_engines} (--max-engines)"
            )

    def check_space(self) -> None:
        """Raise CapacityExhausted while the file system has no room for one whole stream."""
        space = self.clear_space()
        self.budget.measure(space.total_bytes)
        need = self._limits.stream_bytes
        if space.free_bytes < need or not self.budget.limit:
            raise CapacityExhausted(
                f"shared memory {self._directory.path[:40]} has {space.free_bytes} of"
                f" {space.total_bytes} bytes free, a stream needs {need} (--stream-bytes);"
                " enlarge it or try later"
            )

    def clear_space(self) -> Space:
        """Have what is only kept give way until the file system has room for one whole stream."""
        space, need = self._directory.space(), self._limits.stream_bytes
        while space.free_bytes < need and self.evict(need - space.free_bytes):
            space = self._directory.space()
        return space

    def make_room(self) -> bool:
        """See that the budget has room for a new stream; what is only kept gives way."""
        while not self.budget.has_room:
            if not self.evict(self.budget.short_bytes):
                return False
        return True

    def check_memory(self, size_bytes: int) -> None:
        """Raise CapacityExhausted while this process is near its limit of memory.

        size_bytes: of the call's request, as far as it will be held.
        """
        # A request that waits costs about 1.5 times its size.
        try:
            self._memory.take(CALL_BYTES + 2 * size_bytes)
        except ShmFull as exc:
            raise CapacityExhausted(f"the sidecar is short of memory: {exc}") from exc

    def _check_queue(self, model: str, size_bytes: int) -> None:
        has_slot = self._engines.has_room(model)
        if has_slot and self.make_room():
            return
        held, room = self._queue.size_bytes, self._limits.queue_bytes
        if held + size_bytes > room:
            raise CapacityExhausted(
                f"the request would wait, and {len(self._queue)} that wait hold {held} of {room}"
                f" bytes (--queue-bytes), too many for its {size_bytes}; try later"
            )
        if len(self._queue) < self._limits.queue_limit:
            return
        full = (
            f"all {self.budget.limit} streams that fit into shared memory (--shm-bytes)"
            if has_slot
            else f"all {self._engines.capacity(model)} slots of the model's engines"
        )
        raise CapacityExhausted(
            f"{full} are taken and {len(self._queue)} of {self._limits.queue_limit} places in the"
            " queue (--queue-limit); try later"
        )
