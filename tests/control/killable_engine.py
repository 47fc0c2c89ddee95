"""A separate process that attaches, writes one token for each submission, and waits to be killed.

Arguments: engine socket, shared-memory directory.
"""

from __future__ import annotations

import os
import queue
import sys

import grpc

from rrpa_sidecar.pb.engine_pb2 import AttachRequest, Hello
from rrpa_sidecar.pb.engine_pb2_grpc import EngineServiceStub
from rrpa_sidecar.shm import layout
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.doorbell import Ringer
from rrpa_sidecar.shm.table import TableWriter
from rrpa_sidecar.shm.writer import LogWriter


def main(socket: str, shm_dir: str) -> None:
    directory = PlainDirectory(shm_dir)
    table_id, nonce = os.urandom(16).hex(), os.urandom(16)
    table = TableWriter.create(directory, table_id, 4, nonce)
    identity = directory.identity()
    says: queue.Queue[AttachRequest] = queue.Queue()
    says.put(
        AttachRequest(
            hello=Hello(
                engine_name="killable",
                models=["test"],
                capacity=4,
                format_version=layout.VERSION,
                table_id=table_id,
                table_nonce=nonce,
                shm_dir=identity.path,
                shm_device=identity.st_dev,
                boot_id=identity.boot_id,
            )
        )
    )
    writers = []
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        answers = EngineServiceStub(channel).Attach(iter(says.get, None))
        for command in (each for answer in answers for each in answer.commands):
            if command.HasField("welcome"):
                stream_bytes = command.welcome.stream_bytes
                bell = Ringer(command.welcome.doorbell_path)
            elif command.HasField("submit"):
                submit = command.submit
                writer = LogWriter.create(
                    directory,
                    submit.stream_id,
                    stream_bytes=stream_bytes,
                    table=table,
                    slot=submit.slot,
                )
                writers.append(writer)
                if submit.request_id == "silent":
                    continue
                writer.write(b"committed before the kill")
                bell.ring()


if __name__ == "__main__":
    main(*sys.argv[1:])
