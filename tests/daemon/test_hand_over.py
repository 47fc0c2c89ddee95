"""A successor takes over while its predecessor drains: real sidecars, engine and live streams."""

from __future__ import annotations

import contextlib
import pathlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from rrpa_sidecar.pb import rrpa_pb2 as pb
from rrpa_sidecar.pb import rrpa_pb2_grpc
from tests.conformance.asking import replay
from tests.conformance.callers import Answer, Request, collect
from tests.daemon.conftest import hands
from tests.harness.envoy import Envoy
from tests.harness.processes import Daemon, ProcessFailed, ReplayEngine, eventually

GAP_LIMIT_S = 2.0
"""Nobody takes new calls from the moment at which the old one refuses them until an engine is
attached to the new one; 0.18 s with a load of 8 on 2 cores. The test prints what it was."""

RESUMABLE = [("x-resumable", "1")]
LONG = [f"{n}€ ".encode() for n in range(300)]
TEXT = b"".join(LONG)


def successor(daemon: Daemon, **settings: Any) -> Daemon:
    """A sidecar with every address and the directory of `daemon`, which waits for them."""
    same = {name: daemon.settings[name] for name in ("engine_socket", "envoy_socket", "shm_dir")}
    ports = {
        "listen": daemon.grpc_address.replace("127.0.0.1", "localhost"),
        "metrics_listen": daemon.metrics_address.replace("127.0.0.1", "localhost"),
    }
    return Daemon(**{**same, **ports, "take_over_timeout_s": 30, **settings})


@dataclass
class Caller:
    """Streams of one way in, kept open through the hand-over."""

    target: str
    ca: str = ""
    answers: list[Answer] = field(default_factory=list)
    begun: list[Any] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    @contextlib.contextmanager
    def connected(self) -> Iterator[rrpa_pb2_grpc.RRPAServiceStub]:
        """A connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        if self.ca:
            roots = grpc.ssl_channel_credentials(pathlib.Path(self.ca).read_bytes())
            channel = grpc.secure_channel(self.target, roots, options)
        else:
            channel = grpc.insecure_channel(self.target, options)
        with channel:
            yield rrpa_pb2_grpc.RRPAServiceStub(channel)

    def begin(self, stub: rrpa_pb2_grpc.RRPAServiceStub, request: Request, resumable: bool) -> None:
        """Open a stream; a thread collects it."""
        call = stub.CreateStream(request, timeout=60, metadata=RESUMABLE if resumable else ())
        call.initial_metadata()
        self.begun.append(call)
        reading = threading.Thread(target=lambda: self.answers.append(collect(call)))
        reading.start()
        self.threads.append(reading)

    def ask(self, request: Request) -> Answer:
        """Make one call on a new connection."""
        with self.connected() as stub:
            return collect(stub.CreateStream(request, timeout=20))


class Load(threading.Thread):
    """New calls, one after the other, each on a new connection, until `stop`."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.caller = caller
        self.outcomes: list[tuple[float, Answer]] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set():
            began_s = time.monotonic()
            self.outcomes.append((began_s, self.caller.ask(replay([b"new ", b"call"]))))

    def stop(self) -> float:
        """End; return how long nobody took new calls, at most."""
        self.over.set()
        self.join()
        refused = [at for at, answer in self.outcomes if answer.code != "OK"]
        if not refused:
            return 0.0
        after = min(at for at, answer in self.outcomes if answer.code == "OK" and at > refused[0])
        assert all(at < after for at in refused), "once taken, never refused again"
        return after - refused[0]


def test_a_planned_hand_over_under_load_loses_no_stream_and_no_byte() -> None:
    """Half the streams through Envoy, half resumable; new calls go on through it all."""
    with contextlib.ExitStack() as undo:
        first = undo.enter_context(Daemon(drain_timeout_s=30, stream_bytes="1MiB"))
        engine = undo.enter_context(ReplayEngine(first, capacity=64))
        envoy = undo.enter_context(Envoy(first))
        direct, edge = Caller(first.grpc_address), Caller(envoy.address, envoy.ca)
        second = undo.enter_context(contextlib.closing(_Stopped(successor(first))))
        stubs = [(each, undo.enter_context(each.connected())) for each in (direct, edge)]
        for caller, stub in stubs:
            for at in range(6):
                caller.begin(stub, replay(LONG, between_s=0.01), resumable=bool(at % 2))
        loads = [Load(direct), Load(edge)]
        for load in loads:
            load.start()
        second.daemon.launch()
        time.sleep(0.5)
        assert second.daemon.alive, "it waits"
        first.signal(signal.SIGTERM)
        second.daemon.wait_ready()
        for caller in (direct, edge):
            answer = eventually(lambda caller=caller: _good(caller.ask(replay([b"hello"]))), 30)
            assert answer.data == b"hello"
        gaps = [load.stop() for load in loads]
        print("nobody took new calls for", [round(gap, 3) for gap in gaps], "s")
        assert all(load.outcomes[-1][1].code == "OK" for load in loads)
        assert first.alive, "its streams go on"
        for caller in (direct, edge):
            for thread in caller.threads:
                thread.join()
            assert [answer.code for answer in caller.answers] == ["OK"] * 6
            assert {answer.data for answer in caller.answers} == {TEXT}
        assert first.wait() == 0
        for each in (first, second.daemon, engine):
            assert "Traceback" not in each.stderr, each.stderr
        assert max(gaps) < GAP_LIMIT_S
        assert direct.ask(replay([b"after"])).data == b"after", "the old one took nothing with it"
        assert edge.ask(replay([b"after"])).data == b"after"


def _good(answer: Answer) -> Answer | None:
    return answer if answer.code == "OK" else None


class _Stopped:
    """A daemon that is launched later, and stopped in any case."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    def close(self) -> None:
        self.daemon.stop()


def test_streams_that_outlast_the_drain_are_resumed_at_the_successor_with_exact_bytes() -> None:
    """The engine never stops; those that nobody can resume are ended there."""
    with contextlib.ExitStack() as undo:
        first = undo.enter_context(Daemon(drain_timeout_s=0.5, stream_bytes="1MiB"))
        undo.enter_context(ReplayEngine(first, capacity=16))
        caller = Caller(first.grpc_address)
        waiting = _Stopped(successor(first, resume_window_s=3))
        second = undo.enter_context(contextlib.closing(waiting)).daemon
        with caller.connected() as stub:
            for at in range(8):
                caller.begin(stub, replay(LONG, between_s=0.01), resumable=bool(at % 2))
            second.launch()
            first.signal(signal.SIGTERM)
            second.wait_ready()
            assert first.wait() == 0
            for thread in caller.threads:
                thread.join()
        names = {_id(call): _is_resumable(call) for call in caller.begun}
        with caller.connected() as stub:
            for answer in caller.answers:
                assert answer.code == "UNAVAILABLE"
                assert f"after {len(answer.data)} bytes" in answer.text
                assert answer.trailers["rrpa-offset"] == [str(len(answer.data))]
                (name,) = answer.headers["rrpa-stream-id"]
                asked = pb.ResumeStreamRequest(stream_id=name, offset=len(answer.data))
                rest = collect(stub.ResumeStream(asked, timeout=20))
                if names[name]:
                    assert "resume it from there" in answer.text
                    assert (rest.code, answer.data + rest.data) == ("OK", TEXT)
                else:
                    assert rest.code != "OK" or rest.finish.reason == pb.FINISH_REASON_CANCELLED  # type: ignore[union-attr]


def _id(call: Any) -> str:
    return str(dict(call.initial_metadata())["rrpa-stream-id"])


def _is_resumable(call: Any) -> bool:
    return "rrpa-resume-window" in dict(call.initial_metadata())


# --- Waiting for addresses ----------------------------------------------------------------


def test_it_waits_for_each_address_says_so_after_a_second_and_takes_nothing_before() -> None:
    with Daemon() as first, contextlib.closing(_Stopped(successor(first))) as held:
        second = held.daemon
        second.launch()
        eventually(lambda: "waiting" in second.stderr, 30, "it says what it waits for")
        line = next(line for line in second.stderr.splitlines() if "waiting" in line)
        assert f"is taken by pid {first.pid} (" in line
        assert second.stderr.count("waiting") == 1
        with hands(first) as attached:
            assert attached.answer(b"undisturbed") == b"undisturbed"
        first.signal(signal.SIGTERM)
        second.wait_ready()
        assert first.wait() == 0
        assert second.metrics()
        with hands(second) as attached:
            assert attached.answer(b"taken over") == b"taken over"


@pytest.mark.parametrize("what", ["listen", "metrics_listen", "engine_socket", "envoy_socket"])
def test_an_address_that_is_not_given_up_in_time_is_refused_as_ever(what: str) -> None:
    with Daemon() as first:
        taken = {
            "listen": first.grpc_address,
            "metrics_listen": first.metrics_address,
            "engine_socket": first.engine_socket,
            "envoy_socket": first.envoy_socket,
        }[what]
        second = Daemon(**{what: taken}, take_over_timeout_s=0.3)
        began_s = time.monotonic()
        with pytest.raises(ProcessFailed, match="is taken by pid"):
            second.start()
        assert second.returncode == 1
        assert time.monotonic() - began_s >= 0.3
        assert not list(second.folder.parent.glob(second.folder.name + "/*")), "nothing is left"
        assert first.metrics()
        with hands(first) as attached:
            assert attached.answer()


def test_sigterm_while_it_waits_ends_it_with_0_and_leaves_nothing() -> None:
    with Daemon() as first, contextlib.closing(_Stopped(successor(first))) as held:
        second = held.daemon
        second.settings["log_level"] = "info"
        second.launch()
        eventually(lambda: "waiting" in second.stderr, 30)
        second.signal(signal.SIGTERM)
        assert second.wait() == 0
        assert not list(second.folder.iterdir())
        assert first.metrics()


def test_a_live_socket_is_never_taken_only_because_it_is_slow_to_answer(
    short_dir: pathlib.Path,
) -> None:
    """A program that is no sidecar and lets a dial wait: it keeps its path to the end."""
    path = short_dir / "x.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen(0)
        second = Daemon(envoy_socket=path, take_over_timeout_s=0.3)
        with pytest.raises(ProcessFailed, match="is taken by"):
            second.start()
        assert path.is_socket()
        inode = path.stat().st_ino
    assert path.stat().st_ino == inode


def test_a_predecessor_that_is_killed_makes_way_at_once() -> None:
    with contextlib.closing(_Stopped(Daemon().start())) as held:
        first = held.daemon
        with contextlib.closing(_Stopped(successor(first))) as waiting:
            waiting.daemon.launch()
            time.sleep(0.3)
            first.kill()
            waiting.daemon.wait_ready()
            assert waiting.daemon.metrics()
