"""One stream of tokens that the engine was asked for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from threading import Lock
from types import TracebackType
from typing import Self

from google.protobuf.message import DecodeError

from rrpa_sidecar.engine.bell import StepBell
from rrpa_sidecar.engine.connection import Connection
from rrpa_sidecar.engine.files import OwnFiles
from rrpa_sidecar.engine.over import Cause, JobCancelled, JobOver
from rrpa_sidecar.engine.reasons import (
    FAILED,
    Usage,
    failure_code,
    reason_number,
    why_no_log,
)
from rrpa_sidecar.errors import InvalidRequest, LogFull, RRPAError, ShmFull, StreamMisuse
from rrpa_sidecar.pb import engine_pb2, rrpa_pb2
from rrpa_sidecar.shm.end import End
from rrpa_sidecar.shm.table import TableWriter
from rrpa_sidecar.shm.writer import LogWriter
from rrpa_sidecar.status import Code, one_line, status_of

log = logging.getLogger(__name__)


class Job:
    """A submission: read `request`, `write` each token, then `finish` or `fail`, once.

    A job belongs to one thread at a time. The sidecar sets `cancelled` from another thread, at
    once; the next `write` then raises JobCancelled, and nothing else needs to be done.

    When the sidecar dies or is replaced, nothing needs to be done at all: go on. What is written
    meanwhile waits in shared memory, the next sidecar is told of the job, and its client reads
    on where it was.

    As a context manager a job never outlives its block: an exception fails this stream alone
    (InvalidRequest with INVALID_ARGUMENT, any other with INTERNAL), JobOver passes silently,
    and a block that ends without `finish` gives the reason UNSPECIFIED.

    Attributes:
      stream_id: the sidecar's name of the stream; unguessable, unique.
      request_bytes: the client's serialized CreateStreamRequest, byte for byte.
      request_id, traceparent: the client's labels, for logs and traces; maybe empty.
      priority: lower is earlier.
      timeout_s: seconds the client will still wait, counted from the submission; None: for ever.
      resumable: the client may come back for the rest after it left.
      cancelled: nobody wants this stream any more, or the engine is stopping.
      over: the end is recorded; nothing more can be written.
    """

    def __init__(
        self,
        submit: engine_pb2.Submit,
        connection: Connection,
        bell: StepBell,
        files: OwnFiles,
        on_over: Callable[[Job], None],
    ) -> None:
        """on_over: called once when the job is over, by whichever thread ended it."""
        self.stream_id = submit.stream_id
        self.request_bytes = submit.request
        self.request_id = submit.request_id
        self.traceparent = submit.traceparent
        self.priority = submit.priority
        self.timeout_s = submit.timeout_ms / 1000 if submit.HasField("timeout_ms") else None
        self.resumable = submit.resumable
        self.cancelled = False
        self.over = False
        self.connection = connection
        self._cause = Cause.CLIENT_LEFT
        self._late_s = None if self.timeout_s is None else time.monotonic() + self.timeout_s
        self._bell = bell
        self._files = files
        self._on_over = on_over
        self._log: LogWriter | None = None
        self._unheard: engine_pb2.Rejected | None = None
        # Where the log is to be created; the writer has it from then on.
        self._place: tuple[TableWriter, int] | None = connection.place(submit.slot)
        self._stream_bytes = connection.stream_bytes
        # Held where the job begins, ends, or gets another sidecar; not by `write`.
        self._lock = Lock()

    @cached_property
    def request(self) -> rrpa_pb2.CreateStreamRequest:
        """The client's request, parsed when first asked for.

        Raises:
          InvalidRequest: the bytes are no CreateStreamRequest.
        """
        try:
            return rrpa_pb2.CreateStreamRequest.FromString(self.request_bytes)
        except DecodeError as exc:
            raise InvalidRequest("the request is not a CreateStreamRequest") from exc

    @property
    def tokens(self) -> int:
        """Tokens written, empty ones included."""
        return 0 if self._log is None else self._log.tokens

    @property
    def begun(self) -> bool:
        """Whether the log exists: from the first `write`, `begin` or `finish`."""
        return self._log is not None

    def begin(self) -> None:
        """Create the log now instead of at the first `write`. A second call does nothing.

        Raises:
          JobOver: it cannot be created; the client has been told why (no room, say).
        """
        self._open_log()

    def write(self, token: bytes) -> None:
        """Commit one token's raw bytes and ring the sidecar. Never waits for a client.

        token: any bytes. A character may be split over tokens; an empty token counts as one.

        Raises:
          JobCancelled: the client left; drop the job.
          JobOver: the log or the shared memory is full; the client gets RESOURCE_EXHAUSTED.
          StreamMisuse: the job has ended already.
        """
        if self.cancelled:
            self._end_cancelled()
            raise JobCancelled(self._cause.value)
        if self.over:
            raise self._ended_already()
        writer = self._log or self._open_log()
        try:
            writer.write(token)
        except (LogFull, ShmFull) as exc:
            self._end(End(Code.RESOURCE_EXHAUSTED, FAILED, text=one_line(str(exc))))
            raise JobOver(str(exc)) from exc
        self._bell.ring()

    def finish(
        self,
        reason: str = "stop",
        *,
        stop_sequence: str | None = None,
        usage: Usage | None = None,
    ) -> None:
        """Say that the answer is complete.

        reason: "stop", "length", "stop_sequence", "cancelled" or "unspecified".
        stop_sequence: the one that matched.
        usage: what it cost; absent: the tokens written, and no prompt tokens.

        Raises:
          ValueError: no such reason; the job is still open.
          StreamMisuse: the job has ended already.
          JobOver: as `begin`.
        """
        number = reason_number(reason)
        if reason == "cancelled" and self.cancelled:
            self._end_cancelled()
            return
        self._open_log()
        prompt, completion, cached = usage or Usage(0, self.tokens, 0)
        stop = None if stop_sequence is None else stop_sequence.encode()
        self._end(End(Code.OK, number, stop, prompt, completion, cached))

    def fail(self, code: Code | int, text: str) -> None:
        """End the stream with a gRPC status. Bytes already written are delivered first.

        code: a gRPC status code but OK.
        text: one line for the client, saying what is wrong and what to do; cut to 199 bytes.

        Raises:
          StreamMisuse: the job has ended already.
        """
        if not self.begun:
            self.reject(code, text)
            return
        self._end(End(failure_code(code), FAILED, text=one_line(text)))

    def reject(self, code: Code | int, text: str) -> None:
        """Refuse the job before it begins; no log is created. As `fail` otherwise."""
        number = failure_code(code)
        rejected = engine_pb2.Rejected(
            stream_id=self.stream_id, code=number, message=one_line(text)
        )
        with self._lock:
            if self.over:
                raise self._ended_already()
            if self.begun:
                raise StreamMisuse(f"stream {self.stream_id} has begun and cannot be rejected")
            self.over = True
            self._place = None
            self._unheard = rejected
            self._say_unheard()
        self._on_over(self)

    def fail_with(self, error: Exception) -> None:
        """End the stream because of an exception, as leaving the `with` block by it would.

        For engines that batch. Does nothing when the job is over already.
        """
        if self.over:
            return
        if isinstance(error, RRPAError):
            self.fail(*status_of(error))
        else:
            # Its text may hold what a client must not see: the log has it.
            log.error("job %s failed", self.stream_id, exc_info=error)
            self.fail(Code.INTERNAL, f"the engine failed with {type(error).__name__}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if self.over:
            if isinstance(error, Exception) and not isinstance(error, JobOver):
                # Its client has the answer, and other streams of this process go on.
                log.error("job %s had ended already", self.stream_id, exc_info=error)
        elif error is None:
            # A log that cannot be created has ended the job and told the client.
            with suppress(JobOver):
                self.finish("unspecified")
        elif isinstance(error, Exception):
            self.fail_with(error)
        else:
            self.cancel(Cause.STOPPING)
            self._end_cancelled()
        return isinstance(error, Exception)

    def cancel(self, cause: Cause) -> None:
        """Mark the job: its work is no longer wanted. The library calls this; thread-safe."""
        if not self.cancelled:
            self._cause = cause
            self.cancelled = True

    def abandon(self) -> None:
        """End a cancelled job on behalf of an engine that will not touch it again; thread-safe."""
        try:
            self._end_cancelled()
        except StreamMisuse:
            if not self.over:  # else another thread was faster, and the job has its end
                raise

    # What follows is for the library's own thread.

    @property
    def late(self) -> bool:
        """Whether the client's deadline has passed and nobody can come back for the rest."""
        late_s = self._late_s
        return late_s is not None and not self.resumable and time.monotonic() >= late_s

    @property
    def unheard(self) -> bool:
        """Whether the job was rejected and no sidecar has been there to hear it: one may wait."""
        return self._unheard is not None

    def announcement(self) -> engine_pb2.OpenStream:
        """Return what the next sidecar is told of this job."""
        return engine_pb2.OpenStream(
            stream_id=self.stream_id,
            model=self._model(),
            resumable=self.resumable,
            begun=self.begun,
            request_id=self.request_id,
        )

    def _model(self) -> str:
        try:
            return self.request.model
        except InvalidRequest:  # no sidecar of ours submits that, and the stream ends with it
            return "unknown"

    def belong_to(self, connection: Connection) -> None:
        """Answer on `connection`, which has announced this job, from its Welcome on.

        To be called again when that comes.
        """
        with self._lock:
            self.connection = connection
            self._say_unheard()

    def _say_unheard(self) -> None:
        if self._unheard is not None and self.connection.listens:
            self.connection.reject(self._unheard)
            self._unheard = None

    def adopt(self, slot: int | None) -> None:
        """Say in `slot` of the connection's table how the log grows; None: nowhere.

        Raises:
          StreamMisuse: there is no such slot.
        """
        with self._lock:
            if self.over:
                return
            self._stream_bytes = self.connection.stream_bytes
            place = None if slot is None else self.connection.place(slot)
            if self._log is None:
                self._place = place
            elif place is None:
                self._log.move_to(None)
            else:
                self._log.move_to(*place)
        self._bell.ring()

    def _open_log(self) -> LogWriter:
        if self._log is not None:
            return self._log
        if self.over:
            raise self._ended_already()
        try:
            with self._lock:
                self._log = self._created()
        except (RRPAError, OSError) as exc:
            log.error("cannot create the log of stream %s: %s", self.stream_id, exc)
            self.reject(*why_no_log(exc))
            raise JobOver(str(exc)) from exc
        return self._log

    def _created(self) -> LogWriter:
        table, slot = self._place or (None, 0)
        made = LogWriter.create(
            self.connection.directory,
            self.stream_id,
            stream_bytes=self._stream_bytes,
            table=table,
            slot=slot,
        )
        self._place = None
        return made

    def _end_cancelled(self) -> None:
        if self.over:
            return
        if self._cause.fails:
            self.fail(Code.UNAVAILABLE, f"{self._cause.value}; try again")
        elif not self.begun:
            self.reject(Code.CANCELLED, self._cause.value)
        else:
            tokens = self.tokens
            self._end(End(reason=reason_number("cancelled"), completion_tokens=tokens))

    def _end(self, end: End) -> None:
        with self._lock:
            if self.over:
                raise self._ended_already()
            assert self._log is not None
            # First: a sidecar that may not remove the file says so as soon as it has read the end.
            self._files.ended(self.stream_id, resumable=self.resumable)
            self._log.finish(end)
            self.over = True
        self._on_over(self)
        self._bell.ring()

    def _ended_already(self) -> StreamMisuse:
        return StreamMisuse(
            f"stream {self.stream_id} has ended already; nothing may follow its end"
        )
