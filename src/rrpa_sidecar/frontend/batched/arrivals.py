"""What h2 makes of a peer's bytes, event by event: calls begin, requests grow, callers leave.

No I/O: what is to be sent waits in h2's state, and in the sender, for the connection's flush.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from h2 import events
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from rrpa_sidecar.errors import RRPAError
from rrpa_sidecar.frontend import methods
from rrpa_sidecar.frontend.answering import told
from rrpa_sidecar.frontend.batched import headers
from rrpa_sidecar.frontend.batched.answer import End
from rrpa_sidecar.frontend.batched.answers import ReflectionAnswer
from rrpa_sidecar.frontend.batched.budget import QUICK_S, Bucket, Budget
from rrpa_sidecar.frontend.batched.gate import too_much
from rrpa_sidecar.frontend.batched.held import Held
from rrpa_sidecar.frontend.batched.messages import RequestReader
from rrpa_sidecar.frontend.batched.open_calls import Call, OpenCalls
from rrpa_sidecar.frontend.batched.state import State
from rrpa_sidecar.status import Code


class Host(Protocol):
    """What the connection does about arrivals."""

    draining: bool
    request_limit: int
    """Bytes of one request."""
    streams_limit: int
    """Calls of one connection at once."""

    def serves(self, path: str) -> bool:
        """Whether `path` names a method that takes one request."""
        ...

    def begin(self, call: Call, request: bytes) -> None:
        """A call's request is whole."""
        ...

    def begin_reflection(self, call: Call) -> None:
        """A call has begun whose requests are answered as they come."""
        ...

    def greeted(self) -> None:
        """The peer's SETTINGS are there."""
        ...

    def is_gone(self) -> None:
        """The peer has ended the connection."""
        ...


class Arrivals:
    """The handlers of h2's events, for one connection."""

    def __init__(
        self,
        host: Host,
        h2: State,
        calls: OpenCalls,
        budget: Budget,
        held: Held,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._host = host
        self._h2 = h2
        self._calls = calls
        self._budget = budget
        self._held = held
        self._now_s = loop.time
        self._handlers: dict[type[events.Event], Callable[..., None]] = {
            events.RequestReceived: self._request,
            events.DataReceived: self._data,
            events.StreamEnded: self._request_end,
            events.StreamReset: self._reset,
            events.WindowUpdated: self._window,
            events.RemoteSettingsChanged: self._settings,
            events.ConnectionTerminated: self._goaway,
        }

    def take(self, event: events.Event) -> None:
        """Act on one event; those of no concern to a server are passed over.

        Raises:
          Breach: the peer has used up a budget.
        """
        handle = self._handlers.get(type(event))
        if handle is not None:
            handle(event)

    # --- Requests -------------------------------------------------------------------------

    def _request(self, event: events.RequestReceived) -> None:
        stream_id = event.stream_id
        if not self._calls.is_open(stream_id):
            return
        if self._host.draining or len(self._calls) >= self._host.streams_limit:
            self._h2.reset_stream(stream_id, ErrorCodes.REFUSED_STREAM)
            self._h2.forget(stream_id)
            return
        head = headers.read(event.headers)
        reflects = head.path == methods.REFLECT
        reader = RequestReader(self._host.request_limit, single=not reflects)
        call = Call(stream_id, head, reader, self._now_s())
        self._calls.add(call)
        self._budget.began()
        try:
            self._held.check()
            if head.http_status:
                self._calls.answer_http(call, head.http_status)
                return
            refusal = self._refusal(head)
            if refusal is not None:
                self._calls.finish(call, refusal)
                return
            timeout_s = head.timeout_s()
            if timeout_s is not None:
                self._calls.limit_time(call, timeout_s)
            if reflects:
                self._host.begin_reflection(call)
        except RRPAError as error:
            self._calls.finish(call, End(*told(error)))

    def _refusal(self, head: headers.Head) -> End | None:
        """Return why a call is not even read."""
        if head.path != methods.REFLECT and not self._host.serves(head.path):
            return End(Code.UNIMPLEMENTED, "this sidecar has no such method; check the path")
        if head.encoding != "identity":
            return End(
                Code.UNIMPLEMENTED,
                f"requests compressed with {head.encoding[:20]!a} are not taken; send identity",
            )
        head.check_size()
        return None

    def _data(self, event: events.DataReceived) -> None:
        if not event.data and event.flow_controlled_length:  # padding alone
            self._spend(self._budget.noise, "empty DATA frames")
        self._give_back(event)
        call = self._calls.get(event.stream_id)
        if call is None or call.reader is None:  # its stream is over here
            return
        try:
            self._grow(call.reader, event.data)
            if call.out is not None and isinstance(call.out.answer, ReflectionAnswer):
                self._ask(call.reader, call.out.answer)
                self._calls.sender.mark(call.out)
        except RRPAError as error:
            self._calls.finish(call, End(*told(error)))

    def _grow(self, reader: RequestReader, data: bytes) -> None:
        before = reader.held_bytes
        try:
            reader.feed(data)
        finally:
            self._held.change(reader.held_bytes - before)
        self._held.check()

    def _ask(self, reader: RequestReader, answer: ReflectionAnswer) -> None:
        before = reader.held_bytes
        try:
            while (request := reader.take()) is not None:
                answer.ask(request)
        finally:
            self._held.change(reader.held_bytes - before)

    def _give_back(self, event: events.DataReceived) -> None:
        """Return the window that the frame used up."""
        if event.flow_controlled_length:
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)

    def _request_end(self, event: events.StreamEnded) -> None:
        call = self._calls.get(event.stream_id)
        if call is None:
            self._h2.forget(event.stream_id)
            return
        call.request_ended = True
        if call.reader is None:
            return
        if call.out is not None and isinstance(call.out.answer, ReflectionAnswer):
            call.out.answer.close()
            self._calls.sender.mark(call.out)
            return
        try:
            request = call.reader.message()
        except RRPAError as error:
            self._calls.finish(call, End(*told(error)))
            return
        self._calls.let_go(call)
        self._host.begin(call, request)

    # --- Everything else ------------------------------------------------------------------

    def _reset(self, event: events.StreamReset) -> None:
        # h2 reports resets of its own as well; those are answers to a fault of the peer.
        call = self._calls.get(event.stream_id)
        if not event.remote_reset:
            self._spend(self._budget.faults, "faults")
        elif call is None or self._now_s() - call.begun_s < QUICK_S:
            self._spend(self._budget.resets, "resets")
        if call is not None:
            self._calls.was_reset(call)
        self._h2.forget(event.stream_id)

    def _window(self, event: events.WindowUpdated) -> None:
        call = self._calls.get(event.stream_id or 0)
        if call is not None or not event.stream_id:
            self._calls.window_came(call)
        if call is not None and call.out is not None:
            self._calls.sender.mark(call.out)

    def _settings(self, event: events.RemoteSettingsChanged) -> None:
        self._host.greeted()
        if SettingCodes.INITIAL_WINDOW_SIZE in event.changed_settings:
            for call in self._calls.all():
                self._calls.window_came(call)
                if call.out is not None:
                    self._calls.sender.mark(call.out)

    def _goaway(self, event: events.ConnectionTerminated) -> None:
        # With an error; `State` goes on after the others and reports none.
        self._host.is_gone()

    def _spend(self, bucket: Bucket, what: str) -> None:
        if not bucket.spend(self._now_s()):
            raise too_much(what)
