"""The sidecar's end of an attachment, in the test's own process: says what a test tells it to."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from rrpa_sidecar.engine.connection import ATTACH
from rrpa_sidecar.pb import engine_pb2, rrpa_pb2
from rrpa_sidecar.shm.directory import open_directory
from rrpa_sidecar.shm.doorbell import Bell
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.reader import LogReader
from rrpa_sidecar.shm.table import TableReader

STREAM_BYTES = 1 << 20
MESSAGE_LIMIT_BYTES = 64 * 1024
"""What the real sidecar takes."""
PATIENCE_S = 30.0
"""For what others do; on a busy machine that may take seconds."""


class Attachment:
    """One Attach call."""

    def __init__(self, hello: engine_pb2.Hello) -> None:
        self.hello = hello
        self.rejected: queue.Queue[engine_pb2.Rejected] = queue.Queue()
        self.announced: queue.Queue[engine_pb2.OpenStream] = queue.Queue()
        self.announced_ids: set[str] = set()
        self.commands: queue.Queue[engine_pb2.AttachResponse | None] = queue.Queue()
        self.ended = False
        self.hung_up = False
        """The engine said that it leaves, and did not just break off."""
        self.abort: tuple[grpc.StatusCode, str] | None = None

    def end(self, *status: Any) -> None:
        """End the call, with a status or well."""
        self.abort = status or None
        self.commands.put(None)

    def next_announced(self) -> engine_pb2.OpenStream:
        """Return the next stream of an earlier attachment."""
        return self.announced.get(timeout=PATIENCE_S)

    def hear(self, request: engine_pb2.AttachRequest) -> str:
        """Take a message; return what is wrong with it."""
        kind = request.WhichOneof("event")
        if kind == "rejected":
            self.rejected.put(request.rejected)
        elif kind == "announce" and request.announce.streams:
            for each in request.announce.streams:
                if each.stream_id in self.announced_ids:
                    return f"{each.stream_id} was announced twice"
                self.announced_ids.add(each.stream_id)
                self.announced.put(each)
        else:
            return f"a message with {kind}"
        return ""

    def say(self, **command: Any) -> None:
        self.say_all(command)

    def say_all(self, *commands: dict[str, Any]) -> None:
        """Say several commands in one message."""
        built = [engine_pb2.Command(**command) for command in commands]
        self.commands.put(engine_pb2.AttachResponse(commands=built))


class FakeSidecar:
    """Accepts engines on `socket`; `refuse` makes it abort instead of saying Welcome."""

    def __init__(self, folder: Path, *, refuse: tuple[grpc.StatusCode, str] | None = None) -> None:
        self.socket = str(folder / "rrpa.sock")
        self.shm_dir = folder / "shm"
        self.shm_dir.mkdir(exist_ok=True)
        self.directory = open_directory(str(self.shm_dir))
        self.bell = Bell(self.socket + ".bell")
        self.refuse = refuse
        self.refusals = 0
        self.stream_bytes = STREAM_BYTES
        self.attachments: queue.Queue[Attachment] = queue.Queue()
        self.faults: list[str] = []
        """What engines said that breaks engine.proto."""
        self._server: grpc.Server | None = None
        self._draining: list[grpc.Server] = []
        self._slots = iter(range(1 << 30))
        self.start()

    def start(self) -> None:
        handler = grpc.stream_stream_rpc_method_handler(
            self._attach,
            request_deserializer=engine_pb2.AttachRequest.FromString,
            response_serializer=engine_pb2.AttachResponse.SerializeToString,
        )
        service, method = ATTACH.strip("/").split("/")
        self._server = grpc.server(
            ThreadPoolExecutor(8),
            options=[("grpc.max_receive_message_length", MESSAGE_LIMIT_BYTES)],
        )
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """Go away without a word, as a sidecar that was killed."""
        assert self._server is not None
        self._server.stop(None).wait()

    def restart(self) -> Attachment:
        """Die and come back at once; return the engine's next attachment."""
        self.stop()
        self.come_back()
        return self.attached()

    def come_back(self) -> None:
        """Listen again after `stop` or `drain`, as another process would."""
        Path(self.socket).unlink(missing_ok=True)
        self.start()

    def drain(self, *attachments: Attachment) -> None:
        """Listen no more and say Draining; the attachments stay until their test ends them."""
        assert self._server is not None
        self._server.stop(grace=60)
        # gRPC removes the path a moment later, whoever listens there by then.
        eventually(lambda: not Path(self.socket).exists())
        self._draining.append(self._server)
        for each in attachments:
            each.say(draining=engine_pb2.Draining())

    def close(self) -> None:
        self.stop()
        for server in self._draining:
            server.stop(None).wait()
        self.bell.close()
        assert not self.faults

    def __enter__(self) -> FakeSidecar:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def attached(self) -> Attachment:
        """Return the next engine that attaches; it may not have read its Welcome yet."""
        return self.attachments.get(timeout=PATIENCE_S)

    def submit(
        self, to: Attachment, *, slot: int = 0, **request: Any
    ) -> tuple[str, rrpa_pb2.CreateStreamRequest]:
        """Submit a request; return (stream id, the request)."""
        built = rrpa_pb2.CreateStreamRequest(model=to.hello.models[0], **request)
        return self.submit_raw(to, built.SerializeToString(), slot=slot), built

    def submit_raw(self, to: Attachment, request: bytes, *, slot: int = 0, **labels: Any) -> str:
        stream_id = os.urandom(16).hex()
        to.say(submit=engine_pb2.Submit(stream_id=stream_id, slot=slot, request=request, **labels))
        return stream_id

    def cancel(self, to: Attachment, stream_id: str) -> None:
        to.say(cancel=engine_pb2.Cancel(stream_id=stream_id))

    def adopt(self, to: Attachment, stream_id: str, slot: int | None = None) -> None:
        to.say(adopt=engine_pb2.Adopt(stream_id=stream_id, slot=slot))

    def release(self, to: Attachment, stream_id: str) -> None:
        to.say(release=engine_pb2.Release(stream_id=stream_id))

    def table(self, of: Attachment) -> TableReader:
        hello = of.hello
        return TableReader.open(
            self.directory, hello.table_id, slots=hello.capacity, nonce=hello.table_nonce
        )

    def log(self, stream_id: str) -> LogReader:
        """Open a log as soon as it exists."""
        name = f"rrpa_{stream_id}"
        eventually(lambda: name in self.directory.names())
        return LogReader.open(self.directory, stream_id, stream_bytes=self.stream_bytes)

    def answer(self, stream_id: str) -> tuple[bytes, End]:
        """Wait for the end of a stream; return all its bytes and the end."""
        reader = self.log(stream_id)
        try:
            size, end = eventually(lambda: _ended(reader))
            return reader.read(0, size), end
        finally:
            reader.close()

    def _attach(
        self, requests: Iterator[engine_pb2.AttachRequest], context: grpc.ServicerContext
    ) -> Iterator[engine_pb2.AttachResponse]:
        attachment = Attachment(next(requests).hello)
        fault = self._hear_announced(requests, attachment)
        if fault:
            self.faults.append(fault)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, fault)
        if self.refuse is not None:
            self.refusals += 1
            context.abort(*self.refuse)
        welcome = engine_pb2.Welcome(
            doorbell_path=self.bell.path,
            stream_bytes=self.stream_bytes,
            sidecar_version="fake",
        )
        yield engine_pb2.AttachResponse(commands=[engine_pb2.Command(welcome=welcome)])
        self.attachments.put(attachment)
        ThreadPoolExecutor(1).submit(self._listen, requests, attachment)
        context.add_callback(lambda: attachment.commands.put(None))
        yield from iter(attachment.commands.get, None)
        if attachment.abort is not None:
            context.abort(*attachment.abort)

    def _hear_announced(
        self, requests: Iterator[engine_pb2.AttachRequest], attachment: Attachment
    ) -> str:
        """Take what Hello says will follow; return what is wrong with it."""
        announced, capacity = attachment.hello.announced, attachment.hello.capacity
        while attachment.announced.qsize() < announced:
            if fault := attachment.hear(next(requests)):
                return fault
        if attachment.announced.qsize() != announced or announced > capacity:
            found = attachment.announced.qsize()
            return f"{found} announced, Hello said {announced}, capacity {capacity}"
        return ""

    def _listen(self, requests: Iterator[engine_pb2.AttachRequest], attachment: Attachment) -> None:
        try:
            for request in requests:
                if fault := attachment.hear(request):
                    self.faults.append(fault)
            attachment.hung_up = True
        except grpc.RpcError:
            pass
        finally:
            attachment.ended = True
            attachment.commands.put(None)


def _ended(reader: LogReader) -> tuple[int, End] | None:
    size, end = reader.progress()
    return None if end is None else (size, end)


def eventually(condition: Callable[[], Any], timeout_s: float = PATIENCE_S) -> Any:
    """Return the first true value of `condition()`: for states of another thread or process."""
    import time

    until = time.monotonic() + timeout_s
    while True:
        if value := condition():
            return value
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.002)
