"""The sidecar dies and another one starts: no client loses, doubles or mixes a byte."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from rrpa_sidecar.pb import rrpa_pb2 as pb
from rrpa_sidecar.pb.rrpa_pb2_grpc import RRPAServiceStub
from rrpa_sidecar.shm import layout
from tests.faults.recording_engine import ENOUGH
from tests.harness.processes import Daemon, Process, eventually, lasting_address

KILLS = int(os.environ.get("RRPA_KILLS", "2"))
CLIENTS = int(os.environ.get("RRPA_CLIENTS", "16"))
PERIOD_MS = max(10, CLIENTS // 2)
LONG_S = 30.0
"""For what comes soon, on a busy machine too."""
RESUMABLE = (("x-resumable", "1"),)
CHANNEL = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
]


class Recorder(Process):
    """An engine that writes down what it says, in files of its own."""

    def __init__(self, daemon: Daemon, records: pathlib.Path, capacity: int = 256):
        self.records = records
        module = "tests.faults.recording_engine"
        paths = [daemon.engine_socket, str(daemon.shm_dir), str(records), str(capacity)]
        super().__init__([sys.executable, "-m", module, *paths], ready="recording engine ready")

    def record(self, stream_id: str) -> tuple[bytes, str]:
        """Return what the engine said and how it ended, "" while it still speaks."""
        for path in self.records.glob(f"{stream_id}*"):
            with contextlib.suppress(FileNotFoundError):  # renamed between the two calls
                return path.read_bytes(), path.suffix[1:]
        return b"", ""

    def ends(self) -> list[str]:
        found = (path for path in self.records.iterdir() if path.name != ENOUGH)
        return sorted(path.suffix[1:] for path in found)

    def finish_all(self) -> None:
        """Have it bring every answer to its end now."""
        (self.records / ENOUGH).touch()


class Client(threading.Thread):
    """One client that comes back for its answer until it has all of it."""

    def __init__(self, address: str, prompt: str, metadata: Any = RESUMABLE):
        super().__init__(daemon=True)
        self.got = b""
        self.stream_id = ""
        self.finish: pb.Finish | None = None
        self.failed: BaseException | None = None
        self.breaks = 0
        self._gone = False
        self._metadata = metadata
        self._prompt = prompt
        self._channel = grpc.insecure_channel(address, options=CHANNEL)
        self.start()

    def leave(self) -> None:
        """Go, and do not come back."""
        self._gone = True
        self._channel.close()
        self.join(10)

    def run(self) -> None:
        stub = RRPAServiceStub(self._channel)
        try:
            while self.finish is None and not self._gone:
                try:
                    self._read(stub)
                except grpc.RpcError as error:
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    self.breaks += 1
                    time.sleep(0.02)
        except BaseException as error:  # noqa: BLE001 - for the test to see
            self.failed = error
        finally:
            self._channel.close()

    def _read(self, stub: RRPAServiceStub) -> None:
        if self.stream_id:
            at = pb.ResumeStreamRequest(stream_id=self.stream_id, offset=len(self.got))
            call = stub.ResumeStream(at)
        else:
            request = pb.CreateStreamRequest(model="test", prompt=self._prompt)
            call = stub.CreateStream(request, metadata=self._metadata)
            self.stream_id = dict(call.initial_metadata()).get("rrpa-stream-id", "")
        for frame in call:
            if frame.HasField("finish"):
                self.finish = frame.finish
                assert frame.offset == len(self.got)
                return
            assert frame.offset == len(self.got), (frame.offset, len(self.got))
            self.got += frame.data


@pytest.fixture
def stage(tmp_path: pathlib.Path) -> Iterator[Any]:
    """A daemon that can be killed and started again in the same place, and a recorder."""
    with contextlib.ExitStack() as opened:

        def made(**settings: Any) -> tuple[Daemon, Recorder]:
            chosen = {
                "listen": lasting_address(),
                "metrics_listen": lasting_address(),
                "resume_window_s": 3,
                "shm_timeout_s": 3,
            }
            daemon = Daemon(**{**chosen, **settings})
            opened.callback(daemon.clean)
            opened.enter_context(daemon)
            recorder = opened.enter_context(Recorder(daemon, tmp_path))
            return daemon, recorder

        yield made


def start_again(daemon: Daemon) -> None:
    daemon.launch()
    daemon.wait_ready()


def address_of(daemon: Daemon, way: str) -> str:
    return daemon.grpc_address if way == "grpcio" else f"unix:{daemon.envoy_socket}"


def replaced(raw: bytes) -> bytes:
    """Return the answer that clients get for the engine's raw bytes."""
    return raw.decode("utf-8", "replace").encode()


def check(clients: list[Client], recorder: Recorder) -> None:
    """Hold what each client got against the engine's own record."""
    for client in clients:
        client.join(30)
        assert client.failed is None, client.failed
        assert client.finish is not None, f"{len(client.got)} bytes after 30 s"
        assert client.finish.reason == pb.FINISH_REASON_STOP
        # The client may have the end before the engine has closed its record.
        eventually(lambda name=client.stream_id: recorder.record(name)[1])
        raw, end = recorder.record(client.stream_id)
        assert end == "STOP"
        assert client.got == replaced(raw)
    assert len({client.stream_id for client in clients}) == len(clients)


def all_at_rest(daemon: Daemon) -> bool:
    names = ("rrpa_active_streams", "rrpa_stream_queue_length", "rrpa_shm_utilization_percent")
    found = daemon.metrics()
    return not daemon.segments() and all(found[name] == 0 for name in names)


@pytest.mark.parametrize("way", ["batched", "grpcio"])
def test_killed_sidecar_costs_no_client_that_comes_back_a_byte(stage, seeded, way):
    daemon, recorder = stage()
    clients = [
        Client(address_of(daemon, way), f"{seeded.random()} {PERIOD_MS}") for _ in range(CLIENTS)
    ]
    eventually(lambda: all(client.got for client in clients), LONG_S)
    for _ in range(KILLS):
        time.sleep(seeded.uniform(0.1, 0.5))
        daemon.kill()
        start_again(daemon)
        eventually(lambda: daemon.metric("rrpa_streams_adopted_total") == CLIENTS, LONG_S)
        seen = [len(client.got) for client in clients]
        eventually(
            lambda seen=seen: all(len(c.got) > n for c, n in zip(clients, seen, strict=True)),
            LONG_S,
        )
    recorder.finish_all()
    check(clients, recorder)
    assert all(client.breaks >= KILLS for client in clients)
    eventually(lambda: all_at_rest(daemon), LONG_S)


def test_answer_that_ended_while_no_sidecar_was_there_is_read_by_the_next_one(stage, seeded):
    daemon, recorder = stage()
    client = Client(daemon.grpc_address, f"{seeded.random()} {PERIOD_MS}")
    eventually(lambda: client.got, LONG_S)
    daemon.kill()
    recorder.finish_all()
    eventually(lambda: recorder.ends() == ["STOP"], LONG_S)
    assert client.finish is None
    start_again(daemon)
    check([client], recorder)
    eventually(lambda: all_at_rest(daemon), LONG_S)


def test_streams_whose_clients_do_not_come_back_are_stopped_after_the_window(stage, seeded):
    daemon, recorder = stage(resume_window_s=1)
    clients = [
        Client(daemon.grpc_address, f"{seeded.random()} {PERIOD_MS}", metadata)
        for metadata in (RESUMABLE, ())
    ]
    eventually(lambda: all(client.got for client in clients), LONG_S)
    for client in clients:
        client.leave()
    daemon.kill()
    # The first is resumable and its window had begun; the other's client left: whoever comes
    # first, the engine stops both in the end.
    start_again(daemon)
    eventually(lambda: recorder.ends() == ["CANCELLED", "CANCELLED"], LONG_S)
    eventually(lambda: all_at_rest(daemon), LONG_S)


def test_files_of_processes_that_were_all_killed_are_removed_and_foreign_ones_are_not(
    stage, seeded
):
    daemon, recorder = stage()
    client = Client(daemon.grpc_address, f"{seeded.random()} {PERIOD_MS}")
    eventually(lambda: client.got, LONG_S)
    client.leave()
    daemon.signal(signal.SIGSTOP)  # so that neither can clean up after the other
    recorder.kill()
    daemon.kill()
    left = sorted(path.name for path in daemon.shm_dir.iterdir())
    assert [layout.kind_of(name) for name in left] == ["log", "table"]
    foreign = {"rrpa_" + "0" * 32, "rrpa_table_" + "1" * 32, "rrpa_mine", "other"}
    for name in foreign:
        (daemon.shm_dir / name).write_bytes(b"not yours")
    start_again(daemon)
    eventually(lambda: {p.name for p in daemon.shm_dir.iterdir()} == foreign, LONG_S)
    for kind in ("log", "table"):
        assert daemon.metric("rrpa_shm_reclaimed_total", kind=kind) == 1


def test_sidecar_killed_again_and_again_at_any_moment_of_its_start_still_serves(stage, seeded):
    daemon, recorder = stage()
    clients = [Client(daemon.grpc_address, f"{seeded.random()} {PERIOD_MS}") for _ in range(4)]
    eventually(lambda: all(client.got for client in clients), LONG_S)
    for _ in range(3):
        daemon.kill()
        daemon.launch()
        time.sleep(seeded.uniform(0, 0.8))
    daemon.kill()
    start_again(daemon)
    recorder.finish_all()
    check(clients, recorder)
    eventually(lambda: all_at_rest(daemon), LONG_S)


def test_sidecar_that_is_told_to_go_hands_its_streams_to_the_next_one(stage, seeded):
    """SIGTERM with streams that outlast the drain: the successor has them, and no log a trace."""
    daemon, recorder = stage(drain_timeout_s=0.5, take_over_timeout_s=20)
    clients = [Client(daemon.grpc_address, f"{seeded.random()} {PERIOD_MS}") for _ in range(8)]
    eventually(lambda: all(client.got for client in clients), LONG_S)
    successor = Process(daemon.argv, ready="rrpa ready ")
    successor.launch()
    try:
        time.sleep(seeded.uniform(0, 0.3))
        daemon.signal(signal.SIGTERM)
        successor.wait_ready()
        assert daemon.wait() == 0
        assert "Traceback" not in daemon.stderr, daemon.stderr
        eventually(lambda: daemon.metric("rrpa_streams_adopted_total") == len(clients), LONG_S)
        recorder.finish_all()
        check(clients, recorder)
        eventually(lambda: all_at_rest(daemon), LONG_S)
        assert "Traceback" not in successor.stderr, successor.stderr
    finally:
        successor.stop()
