"""One attachment: from Hello to the end of the call, with the table that belongs to it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING

import grpc

from rrpa_sidecar.engine.identity import Identity
from rrpa_sidecar.pb import engine_pb2
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
from rrpa_sidecar.shm.doorbell import Ringer
from rrpa_sidecar.shm.table import TableWriter

if TYPE_CHECKING:
    from rrpa_sidecar.engine.job import Job

ATTACH = "/rrpa.v1.EngineService/Attach"
CHANNEL_OPTIONS = (
    # A proxy in the environment is never meant for a Unix socket of this node.
    ("grpc.enable_http_proxy", 0),
    # A submission holds a client's whole request; the sidecar has checked its size.
    ("grpc.max_receive_message_length", -1),
    # Each try dials afresh: a shared subchannel would wait out gRPC's own, longer back-off.
    ("grpc.use_local_subchannel_pool", 1),
)


ANNOUNCE_BYTES = 32 * 1024
"""A message gets no more streams once it has so many: the sidecar takes up to 64 KiB."""


class Connection:
    """Where the jobs of one attachment answer.

    welcomed: the sidecar took this engine.
    draining: it takes no new streams; those it has go on here.
    lost: the call is over. Its jobs go on, and belong to the next attachment.
    ringer: the sidecar's bell, once it said where that is.
    """

    def __init__(
        self,
        identity: Identity,
        directory: SegmentDirectory,
        socket_path: str,
        announced: Sequence[Job] = (),
    ) -> None:
        """Create the table, dial, and announce the jobs that the engine still has.

        Raises:
          ShmFull: no room for the table.
          StreamMisuse: a cleaner removed it at birth, again and again.
        """
        self.directory = directory
        self.stream_bytes = layout.DEFAULT_STREAM_BYTES
        self.welcomed = False
        self.draining = False
        self.lost = False
        self.ringer: Ringer | None = None
        table_id, nonce = os.urandom(16).hex(), os.urandom(layout.NONCE_BYTES)
        self._table: TableWriter | None = TableWriter.create(
            directory, table_id, identity.capacity, nonce
        )
        self._table.unlink_when_unused()
        # After a hand-over there may be more than a sidecar takes with Hello.
        first, others = announced[: identity.capacity], announced[identity.capacity :]
        self._outbox: SimpleQueue[engine_pb2.AttachRequest | None] = SimpleQueue()
        self._outbox.put(identity.hello(directory, table_id, nonce, len(first)))
        self.announce(first)
        self.announce(others)
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", options=CHANNEL_OPTIONS)
        attach = self._channel.stream_stream(
            ATTACH,
            request_serializer=engine_pb2.AttachRequest.SerializeToString,
            response_deserializer=engine_pb2.AttachResponse.FromString,
        )
        self._call = attach(iter(self._outbox.get, None))

    @property
    def listens(self) -> bool:
        """Whether the sidecar took this engine and is still there."""
        return self.welcomed and not self.lost

    def commands(self) -> Iterator[engine_pb2.Command]:
        """Yield what the sidecar says; ends when it ends the call.

        Raises:
          grpc.RpcError: the call failed or was aborted.
        """
        for message in self._call:
            yield from message.commands

    def place(self, slot: int) -> tuple[TableWriter, int]:
        """Return where a log in `slot` says how it grows. Not after `close`."""
        assert self._table is not None
        return self._table, slot

    def announce(self, jobs: Sequence[Job]) -> None:
        """Say that these jobs of an earlier attachment are not over. Thread-safe."""
        announce, size = engine_pb2.Announce(), 0
        for job in jobs:
            stream = job.announcement()
            announce.streams.append(stream)
            size += stream.ByteSize()
            if size >= ANNOUNCE_BYTES:
                self._outbox.put(engine_pb2.AttachRequest(announce=announce))
                announce, size = engine_pb2.Announce(), 0
        if size:
            self._outbox.put(engine_pb2.AttachRequest(announce=announce))

    def reject(self, rejected: engine_pb2.Rejected) -> None:
        """Say that a submission will not begin. Thread-safe."""
        self._outbox.put(engine_pb2.AttachRequest(rejected=rejected))

    def hang_up(self) -> None:
        """Say that nothing more comes; the sidecar then ends the call. Thread-safe."""
        self._outbox.put(None)

    def abort(self) -> None:
        """End the call at once. Thread-safe."""
        self._call.cancel()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """End the call. The table goes with the last of its jobs: when that has moved or ended."""
        self.hang_up()
        self._call.cancel()  # type: ignore[no-untyped-call]
        self._channel.close()
        self._table = None
