"""Callers that read at a pace of their own and check every byte. One thread, raw HTTP/2.

gRPC's own clients read the socket all the time and only stop giving windows back. These can also
stop reading for real, as a process does that is stopped, swapped out or behind a dead link.

They run in a process of their own (`Readers`), so that a test's own work delays nobody.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
import random
import select
import shutil
import signal
import socket
import ssl
import struct
import sys
import tempfile
import time

from rrpa_sidecar.pb import rrpa_pb2 as pb
from tests.harness.processes import STOP_TIMEOUT_S, Process, ProcessFailed
from tests.harness.raw_h2 import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
)

WINDOW_UPDATE = 8
INITIAL_WINDOW_SIZE = 4
DEFAULT_WINDOW = 65_535
READ_BYTES = 65_536
TICK_S = 0.01
STAMP_DIGITS = 19
STAMPED_TEXT = b"word"
"""What an engine with `--stamp` has to say, ASCII and one token long."""
STAMPED_BYTES = STAMP_DIGITS + 1 + len(STAMPED_TEXT)
PATH = b"/rrpa.v1.RRPAService/CreateStream"
ALPHABET = "abcdefghij klmnop éüß ЖИ 漢字 🚂"


def pattern(seed: int) -> bytes:
    """Return some 40 KB of text that no other seed gives: characters of 1 to 4 bytes."""
    return "".join(random.Random(seed).choices(ALPHABET, k=20_000)).encode()


def burst_request(model: str, seed: int, total_bytes: int) -> tuple[bytes, int]:
    """Return a request for `pattern(seed)` again and again, as fast as the engine can write.

    Also how many bytes that is: the least number of whole patterns with `total_bytes`.
    """
    text = pattern(seed)
    repeat = -(-total_bytes // len(text))
    prompt = "replay:" + json.dumps({"tokens": [text.hex()], "repeat": repeat})
    request = pb.CreateStreamRequest(model=model, prompt=prompt)
    return request.SerializeToString(), repeat * len(text)


@dataclasses.dataclass
class Plan:
    """What one connection does. All times are seconds since all calls were answered.

    address: host:port, or the path of a Unix socket.
    ca: certificate to trust; "" speaks plain HTTP/2.
    seeds: one call for each, see `burst_request`; its bytes are checked.
    total_bytes: of each of those answers.
    stamped_calls: calls for an engine with `--stamp`; their delays are measured.
    stamped_tokens: of each.
    window: of each stream; the connection has as much for all of them together.
    bytes_per_s: reading pace; 0 is as fast as possible.
    pause: from when to when nothing at all is read.
    receive_buffer: SO_RCVBUF; 0 leaves the kernel's.
    """

    address: str
    ca: str = ""
    model: str = "burst"
    seeds: tuple[int, ...] = ()
    total_bytes: int = 0
    stamped_model: str = "stamped"
    stamped_calls: int = 0
    stamped_tokens: int = 0
    window: int = DEFAULT_WINDOW
    bytes_per_s: float = 0.0
    pause_s: tuple[float, float] = (0.0, 0.0)
    receive_buffer: int = 0


class Answer:
    """One call's answer, as far as it came."""

    def __init__(self, text: bytes, total_bytes: int) -> None:
        self.text = text * 2
        self.period = len(text)
        self.total_bytes = total_bytes
        self.offset = 0
        self.frames = 0
        self.messages = 0
        self.fault = ""
        self.finished = False
        self.over = False
        self.opened = False
        self.unreturned = 0
        self._raw = bytearray()

    def take(self, piece: bytes) -> list[pb.CreateStreamResponse]:
        """Take a DATA frame's bytes; return the messages that are whole now."""
        self.frames += 1
        raw = self._raw
        raw += piece
        found = []
        at = 0
        while len(raw) - at >= 5:
            size = int.from_bytes(raw[at + 1 : at + 5], "big")
            if len(raw) - at - 5 < size:
                break
            found.append(pb.CreateStreamResponse.FromString(bytes(raw[at + 5 : at + 5 + size])))
            at += 5 + size
        del raw[:at]
        for message in found:
            self._check(message)
        self.messages += len(found)
        return found

    def _check(self, message: pb.CreateStreamResponse) -> None:
        data = message.data
        if message.offset != self.offset:
            self.fault = self.fault or f"offset {message.offset}, expected {self.offset}"
        if self.period:
            # A frame may be longer than two patterns.
            start = self.offset % self.period
            text = self.text * (1 + len(data) // self.period)
            if data != text[start : start + len(data)]:
                self.fault = self.fault or f"other bytes at {self.offset}"
        self.offset += len(data)
        if message.HasField("finish"):
            self.finished = True
            if self.total_bytes and self.offset != self.total_bytes:
                self.fault = self.fault or f"{self.offset} bytes, expected {self.total_bytes}"

    def end(self) -> None:
        self.over = True
        if not self.finished:
            self.fault = self.fault or f"ended after {self.offset} bytes without a finish"


class Caller:
    """One connection with its calls."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.resets: list[int] = []
        self.goaway = ""
        self.bytes = 0
        self.stamps: list[tuple[int, int]] = []
        """(when it was received, how long it took), in ns, for each stamped message."""
        self._received = bytearray()
        self._unreturned = 0
        self._allowance = 0.0
        self._held = b""
        self.answers: dict[int, Answer] = {}
        self.socket = self._connect()
        self._greet()

    @property
    def over(self) -> bool:
        return all(answer.over for answer in self.answers.values())

    @property
    def opened(self) -> bool:
        return all(answer.opened or answer.over for answer in self.answers.values())

    def fileno(self) -> int:
        return self.socket.fileno()

    def is_reading(self, now_s: float) -> bool:
        """now_s: since all calls were answered; negative before."""
        start, end = self.plan.pause_s
        return not start <= now_s < end

    def earn(self, seconds: float) -> None:
        """Let time pass for a caller with a pace."""
        most = self.plan.bytes_per_s * 10 * TICK_S
        self._allowance = min(self._allowance + seconds * self.plan.bytes_per_s, most)

    def read(self) -> None:
        """Read what there is, as far as the pace allows."""
        limit = READ_BYTES
        if self.plan.bytes_per_s:
            limit = min(limit, int(self._allowance))
        if limit <= 0:
            return
        try:
            data = self.socket.recv(limit)
        except (ssl.SSLWantReadError, BlockingIOError):
            return
        except (ConnectionError, ssl.SSLError) as error:
            self._lost(str(error))
            return
        if not data:
            self._lost("the connection ended")
            return
        self._allowance -= len(data)
        self.bytes += len(data)
        self._take(data)

    @property
    def is_pending(self) -> bool:
        """Whether TLS holds bytes that the kernel has given away already."""
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    # ----------------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        plan = self.plan
        unix = plan.address.startswith("/")
        made = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        if plan.receive_buffer:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, plan.receive_buffer)
        host, _, port = plan.address.rpartition(":")
        made.connect(plan.address if unix else ("127.0.0.1", int(port)))
        if plan.ca:
            context = ssl.create_default_context(cafile=plan.ca)
            context.set_alpn_protocols(["h2"])
            made = context.wrap_socket(made, server_hostname=host)
        return made

    def _greet(self) -> None:
        plan = self.plan
        out = PREFACE + frame(SETTINGS, struct.pack(">HI", INITIAL_WINDOW_SIZE, plan.window))
        calls = len(plan.seeds) + plan.stamped_calls
        more = min(max(calls * plan.window, DEFAULT_WINDOW), 2**31 - 1) - DEFAULT_WINDOW
        if more:
            out += frame(WINDOW_UPDATE, struct.pack(">I", more))
        ids = itertools.count(1, 2)
        for seed in plan.seeds:
            request, total = burst_request(plan.model, seed, plan.total_bytes)
            stream = next(ids)
            self.answers[stream] = Answer(pattern(seed), total)
            out += call(stream, request, plan.address)
        for _ in range(plan.stamped_calls):
            stream = next(ids)
            self.answers[stream] = Answer(b"", 0)
            message = pb.CreateStreamRequest(
                model=plan.stamped_model, prompt="x", max_tokens=plan.stamped_tokens
            )
            out += call(stream, message.SerializeToString(), plan.address)
        self._send(out)
        self.socket.setblocking(False)

    def _send(self, raw: bytes) -> None:
        """Send, now or with the next; what we send after the calls is small."""
        self._held += raw
        try:
            sent = self.socket.send(self._held)
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError, BlockingIOError):
            return
        except (ConnectionError, ssl.SSLError) as error:
            self._lost(str(error))
            return
        self._held = self._held[sent:]
        if self.socket.gettimeout() is None and self._held:
            self.socket.sendall(self._held)
            self._held = b""

    def _lost(self, why: str) -> None:
        self.goaway = self.goaway or why
        for answer in self.answers.values():
            if not answer.over:
                answer.end()

    def _take(self, data: bytes) -> None:
        raw = self._received
        raw += data
        at, out = 0, b""
        while len(raw) - at >= 9:
            size = int.from_bytes(raw[at : at + 3], "big")
            if len(raw) - at - 9 < size:
                break
            kind, flags, stream = struct.unpack_from(">BBI", raw, at + 3)
            out += self._frame(kind, flags, stream, bytes(raw[at + 9 : at + 9 + size]))
            at += 9 + size
        del raw[:at]
        if out:
            self._send(out)

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        """Take one frame; return what it asks to be sent."""
        if kind == SETTINGS and not flags & ACK:
            return frame(SETTINGS, flags=ACK)
        if kind == PING and not flags & ACK:
            return frame(PING, payload, ACK)
        if kind == GOAWAY:
            self.goaway = self.goaway or f"GOAWAY {payload[4:].hex()}"
        answer = self.answers.get(stream)
        if answer is None:
            return b""
        answer.opened = True
        out = b""
        if kind == DATA:
            out = self._data(stream, answer, payload)
        if kind == RST_STREAM:
            self.resets.append(stream)
            answer.end()
        elif kind in (DATA, HEADERS) and flags & END_STREAM:
            answer.end()
        return out

    def _data(self, stream: int, answer: Answer, payload: bytes) -> bytes:
        now_ns = time.monotonic_ns()
        for message in answer.take(payload):
            if not answer.period and message.data:
                for at in range(-message.offset % STAMPED_BYTES, len(message.data), STAMPED_BYTES):
                    stamp = message.data[at : at + STAMP_DIGITS]
                    if len(stamp) == STAMP_DIGITS:
                        self.stamps.append((now_ns, now_ns - int(stamp)))
        out = b""
        answer.unreturned += len(payload)
        self._unreturned += len(payload)
        if answer.unreturned > self.plan.window // 2:
            out += frame(WINDOW_UPDATE, struct.pack(">I", answer.unreturned), stream=stream)
            answer.unreturned = 0
        if self._unreturned > DEFAULT_WINDOW // 2:
            out += frame(WINDOW_UPDATE, struct.pack(">I", self._unreturned))
            self._unreturned = 0
        return out


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call(stream: int, message: bytes, authority: str) -> bytes:
    """Return the frames of one call; headers as plain literals (RFC 7541, 6.2.2)."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"https"),
        (b":path", PATH),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    )
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)
    body = b"\0" + struct.pack(">I", len(message)) + message
    pieces = [body[at : at + 16_384] for at in range(0, len(body), 16_384)]
    out = frame(HEADERS, block, END_HEADERS, stream)
    for at, piece in enumerate(pieces):
        out += frame(DATA, piece, END_STREAM if at == len(pieces) - 1 else 0, stream)
    return out


def _text(raw: bytes) -> bytes:
    assert len(raw) < 127
    return bytes((len(raw),)) + raw


def read_all(callers: list[Caller], limit_s: float) -> float:
    """Read everything; return how long it took after all calls were answered.

    limit_s: for the whole of it.
    """
    poll = select.epoll()
    for caller in callers:
        poll.register(caller.fileno(), select.EPOLLIN)
    by_fd = {caller.fileno(): caller for caller in callers}
    listening = set(by_fd)
    begun_s = last_s = time.monotonic()
    opened_s = 0.0
    while True:
        now_s = time.monotonic()
        if not opened_s and all(caller.opened for caller in callers):
            opened_s = now_s
            print("open", flush=True)
        if all(caller.over for caller in callers):
            return now_s - opened_s
        if now_s - begun_s > limit_s:
            for caller in callers:
                caller._lost(f"not read within {limit_s} s")
            return now_s - opened_s
        since_s = now_s - opened_s if opened_s else -1.0
        step_s, last_s = now_s - last_s, now_s
        for fd, caller in by_fd.items():
            if caller.plan.bytes_per_s:
                caller.earn(step_s)
            wanted = not caller.over and caller.is_reading(since_s)
            wanted = wanted and not (caller.plan.bytes_per_s and caller._allowance < 1)
            if wanted != (fd in listening):
                poll.modify(fd, select.EPOLLIN if wanted else 0)
                (listening.add if wanted else listening.discard)(fd)
        ready = {fd for fd, _ in poll.poll(TICK_S)}
        # The kernel says nothing of bytes that TLS has taken from it already.
        ready.update(fd for fd in listening if by_fd[fd].is_pending)
        for fd in ready & listening:
            by_fd[fd].read()
        for fd in [fd for fd in by_fd if by_fd[fd].over]:
            poll.unregister(fd)
            by_fd.pop(fd)
            listening.discard(fd)


@dataclasses.dataclass
class Report:
    """What came of all calls of a process."""

    seconds: float
    """From the moment that all were answered to the end of the last."""
    calls: int
    finished: int
    """Calls that ended with a Finish after the right number of bytes, OK or not."""
    faults: list[str]
    """Wrong bytes, wrong offsets, ends without a Finish; one sentence for each kind."""
    resets: int
    goaways: list[str]
    """GOAWAYs, and connections that were lost."""
    answer_bytes: int
    frames: int
    """DATA frames."""
    messages: int
    delays_ns: list[tuple[int, int]]
    """(CLOCK_MONOTONIC at arrival, time since its commit) of each stamped token."""

    def delays_between(self, start_ns: int, end_ns: int) -> list[float]:
        """Return the delays, in seconds, sorted, of tokens that arrived in a span of time."""
        return sorted(d / 1e9 for at, d in self.delays_ns if start_ns <= at < end_ns)


def report(callers: list[Caller], seconds: float) -> Report:
    answers = [answer for caller in callers for answer in caller.answers.values()]
    return Report(
        seconds=seconds,
        calls=len(answers),
        finished=sum(answer.finished for answer in answers),
        faults=sorted({answer.fault for answer in answers if answer.fault}),
        resets=sum(len(caller.resets) for caller in callers),
        goaways=[caller.goaway for caller in callers if caller.goaway],
        answer_bytes=sum(answer.offset for answer in answers),
        frames=sum(answer.frames for answer in answers),
        messages=sum(answer.messages for answer in answers),
        delays_ns=[stamp for caller in callers for stamp in caller.stamps],
    )


class Readers(Process):
    """Some callers in one process. It is ready when all calls are answered."""

    def __init__(self, plans: list[Plan], limit_s: float) -> None:
        """limit_s: what is not read by then counts as lost."""
        self._folder = pathlib.Path(tempfile.mkdtemp(dir="/tmp", prefix="rrpa-"))
        self._report = self._folder / "report"
        given = {"plans": [dataclasses.asdict(plan) for plan in plans], "limit_s": limit_s}
        (self._folder / "plan").write_text(json.dumps(given))
        super().__init__(
            [sys.executable, "-m", "tests.harness.paced_reader", str(self._folder)], ready="open"
        )

    def result(self, timeout_s: float) -> Report:
        """Wait for the end of all calls, and return what came of them."""
        code = self.wait(timeout_s)
        if code:
            raise ProcessFailed(f"ended with {code}; {self.said()}")
        return Report(**json.loads(self._report.read_text()))

    def stop(self, sig: int = signal.SIGTERM, timeout_s: float = STOP_TIMEOUT_S) -> int:
        try:
            return super().stop(sig, timeout_s)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


def main(folder: pathlib.Path) -> None:
    given = json.loads((folder / "plan").read_text())
    callers = [Caller(Plan(**plan)) for plan in given["plans"]]
    seconds = read_all(callers, given["limit_s"])
    (folder / "report").write_text(json.dumps(dataclasses.asdict(report(callers, seconds))))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
