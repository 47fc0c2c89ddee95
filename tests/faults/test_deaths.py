"""Ways in which streams through /dev/shm die, put in on purpose (requirement O4).

The other five of the seven are in README.md, with the tests that have them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time

from rrpa_sidecar.pb import rrpa_pb2
from tests.conformance.asking import replay
from tests.conformance.callers import GrpcCaller, collect
from tests.faults.streams import Streams
from tests.harness.envoy import Envoy
from tests.harness.processes import Stack, eventually

IDLE_S = 1
SILENT_S = 2.5
SHM_TIMEOUT_S = 2.0

SECOND_WRITER = """
import sys
from rrpa_sidecar.errors import StreamMisuse
from rrpa_sidecar.shm.directory import PlainDirectory
from rrpa_sidecar.shm.writer import LogWriter
for _ in range(200):
    try:
        LogWriter.create(PlainDirectory(sys.argv[1]), sys.argv[2], stream_bytes=262144)
    except StreamMisuse as exc:
        print(exc)
    else:
        sys.exit("there are two writers")
"""


def impatient(envoy: Envoy) -> Envoy:
    """Let Envoy cut what is silent for IDLE_S, as somebody else's config may."""
    text = envoy.written.config.read_text()
    cut, count = re.subn(
        r'(?<!stream_)idle_timeout: ["\']?0s["\']?', f"idle_timeout: {IDLE_S}s", text
    )
    assert count, "the config has no idle_timeout any more"
    envoy.written.config.write_text(cut)
    return envoy


def test_a_stream_that_envoy_cuts_for_its_silence_is_read_to_its_end_within_the_shm_timeout() -> (
    None
):
    settings = {"resume_window_s": SHM_TIMEOUT_S, "shm_timeout_s": SHM_TIMEOUT_S}
    with Stack(settings) as stack, impatient(Envoy(stack.daemon)) as envoy:
        caller = GrpcCaller("Envoy", envoy.address, envoy.ca)
        request = replay([b"first ", "späte ".encode(), b"last"], delays_s=[0, SILENT_S, 0])
        call = caller.stub.CreateStream(request, timeout=30, metadata=[("x-resumable", "1")])
        stream_id = dict(call.initial_metadata())["rrpa-stream-id"]
        cut = collect(call)
        assert (cut.data, cut.complete) == (b"first ", False)
        assert "rrpa-offset" not in cut.trailers, "it is Envoy that ended the call"
        got = cut.data
        # Envoy cuts again and again; the stream does not mind.
        until_s = time.monotonic() + SILENT_S + 5
        while time.monotonic() < until_s:
            asked = rrpa_pb2.ResumeStreamRequest(stream_id=stream_id, offset=len(got))
            answer = collect(caller.stub.ResumeStream(asked, timeout=30))
            got += answer.data
            if answer.complete:
                break
        assert got.decode() == "first späte last"
        # It is there for the timeout, and not for longer.
        asked = rrpa_pb2.ResumeStreamRequest(stream_id=stream_id)
        assert collect(caller.stub.ResumeStream(asked, timeout=30)).data == got
        eventually(lambda: not stack.daemon.segments(), SHM_TIMEOUT_S + 3, "the file is gone")
        assert collect(caller.stub.ResumeStream(asked, timeout=30)).code == "NOT_FOUND"
        caller.close()


def test_a_second_writer_is_refused_and_the_first_ones_stream_is_whole() -> None:
    request = replay([b"mine "], repeat=100, between_s=0.02)
    with Stack({"stream_bytes": "256KiB"}) as stack:
        with Streams(stack.daemon.grpc_address, [request]) as streams:
            (stream_id,) = streams.wait_open()
            streams.wait_frames(3)
            argv = [sys.executable, "-c", SECOND_WRITER, str(stack.daemon.shm_dir), stream_id]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert set(done.stdout.splitlines()) == {
                f"rrpa_{stream_id} in {stack.daemon.shm_dir} exists already; ids are used once"
            }
            (answer,) = streams.result()
        assert (answer.code, answer.data) == ("OK", b"mine " * 100)
        eventually(lambda: not list(stack.daemon.shm_dir.glob("rrpa_tmp_*")), what="nothing stays")
