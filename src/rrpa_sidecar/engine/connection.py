"""One attachment: from Hello to the end of the call, with the table that belongs to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING

import grpc

from rrpa_sidecar.engine.identity import Identity
from rrpa_sidecar.pb import engine_pb2
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import SegmentDirectory
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


class Connection:
    """Where the jobs of one attachment create their logs and answer.

    welcomed: the sidecar took this engine.
    lost: the call is over; what its jobs still write reaches nobody.
    """

    def __init__(self, identity: Identity, directory: SegmentDirectory, socket_path: str) -> None:
        """Create the table and dial.

        Raises:
          ShmFull: no room for the table.
          StreamMisuse: a cleaner removed it at birth, again and again.
        """
        self.directory = directory
        self.stream_bytes = layout.DEFAULT_STREAM_BYTES
        self.jobs: dict[str, Job] = {}
        self.welcomed = False
        self.lost = False
        table_id, nonce = os.urandom(16).hex(), os.urandom(layout.NONCE_BYTES)
        self.table = TableWriter.create(directory, table_id, identity.capacity, nonce)
        self._outbox: SimpleQueue[engine_pb2.AttachRequest | None] = SimpleQueue()
        self._outbox.put(identity.hello(directory, table_id, nonce))
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", options=CHANNEL_OPTIONS)
        attach = self._channel.stream_stream(
            ATTACH,
            request_serializer=engine_pb2.AttachRequest.SerializeToString,
            response_deserializer=engine_pb2.AttachResponse.FromString,
        )
        self._call = attach(iter(self._outbox.get, None))

    def commands(self) -> Iterator[engine_pb2.Command]:
        """Yield what the sidecar says; ends when it ends the call.

        Raises:
          grpc.RpcError: the call failed or was aborted.
        """
        for message in self._call:
            yield from message.commands

    def reject(self, stream_id: str, code: int, text: str) -> None:
        """Say that a submission will not begin. Thread-safe."""
        rejected = engine_pb2.Rejected(stream_id=stream_id, code=code, message=text)
        self._outbox.put(engine_pb2.AttachRequest(rejected=rejected))

    def hang_up(self) -> None:
        """Say that nothing more comes; the sidecar then ends the call. Thread-safe."""
        self._outbox.put(None)

    def abort(self) -> None:
        """End the call at once. Thread-safe."""
        self._call.cancel()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Mark as lost, end the call and remove the table's name. Idempotent."""
        self.lost = True
        self.hang_up()
        self._call.cancel()  # type: ignore[no-untyped-call]
        self._channel.close()
        # Jobs that still run may set their words until the last of them is over.
        self.table.unlink()
        self.close_table()

    def close_table(self) -> None:
        """Drop the table once the connection is lost and its last job is over."""
        if self.lost and not self.jobs:
            self.table.close()
