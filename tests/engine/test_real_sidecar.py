"""An engine whose real sidecar is killed and started again."""

from __future__ import annotations

import signal
from random import Random

import grpc

from rrpa_sidecar.engine import Code, Job
from rrpa_sidecar.pb import rrpa_pb2 as pb
from rrpa_sidecar.shm.directory import open_directory
from rrpa_sidecar.shm.reader import LogReader
from tests.daemon.conftest import REQUEST, STREAM, hands
from tests.harness.processes import Daemon, eventually

STREAM_BYTES = 1 << 20
KILLS = 4
OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]


def test_jobs_of_every_kind_outlive_a_sidecar_that_is_killed_again_and_again(
    seeded: Random,
) -> None:
    """Running, half written, not begun, not taken, and ended without anybody having read it."""
    said: dict[Job, bytes] = {}
    logs: dict[Job, LogReader] = {}

    def say(job: Job) -> None:
        token = seeded.randbytes(seeded.randrange(1, 50))
        job.write(token)
        said[job] = said.get(job, b"") + token
        if job not in logs:
            directory = open_directory(str(daemon.shm_dir))
            logs[job] = LogReader.open(directory, job.stream_id, stream_bytes=STREAM_BYTES)

    with Daemon(stream_bytes=STREAM_BYTES) as daemon, hands(daemon, capacity=8) as held:
        calls = [held.call() for _ in range(5)]
        eventually(lambda: len(held.engine._attacher.open_jobs()) == len(calls))
        running, half, quiet, ended = (next(held.engine.jobs()) for _ in range(4))
        for job in (running, half, ended):
            say(job)
        for kill in range(KILLS):
            daemon.kill()
            eventually(lambda: not held.engine.serving)
            say(running)
            if kill == 0:
                ended.finish()
            if kill == 1:
                say(half)
                half.finish()
            daemon.launch()
            daemon.wait_ready()
            left = 4 if kill == 0 else 3
            eventually(lambda left=left: daemon.metric("rrpa_streams_adopted_total") == left)
            say(running)
        (untaken,) = held.engine.poll()
        for job in (quiet, untaken, running):
            say(job)
            say(job)
            job.finish()
        for job, log in logs.items():
            size, end = log.progress()
            assert end is not None
            assert (end.code, log.read(0, size)) == (Code.OK, said[job])
            log.close()
        assert len(logs) == len(calls)
        eventually(lambda: daemon.metric("rrpa_active_streams") == 0)


def test_engine_serves_two_sidecars_while_one_hands_over_to_the_other() -> None:
    with Daemon(drain_timeout_s=10) as old, hands(old, capacity=2) as held:
        call = held.call()
        job = held.job()
        job.write(b"before ")
        places = {name: old.settings[name] for name in ("shm_dir", "engine_socket", "envoy_socket")}
        old.signal(signal.SIGTERM)
        with (
            Daemon(take_over_timeout_s=20, **places) as new,
            grpc.insecure_channel(new.grpc_address, OPTIONS) as channel,
        ):
            eventually(lambda: held.engine.serving)
            answers = channel.unary_stream(STREAM, None, pb.CreateStreamResponse.FromString)
            other = answers(REQUEST)
            beside = held.job()
            beside.write(b"beside")
            job.write(b"and after")
            for each in (beside, job):
                each.finish()
            assert b"".join(frame.data for frame in other) == b"beside"
            assert b"".join(frame.data for frame in call) == b"before and after"
            assert old.wait() == 0
            assert held.engine.serving
