"""An engine that writes down every token before it commits it.

usage: python -m benchmarks.soak.engine ENGINE_SOCKET SHM_DIR RECORD SEED CAPACITY

A request's prompt is JSON: how many tokens, how many seconds between them, and what kind of text:
"words", "split" (characters of several bytes, cut anywhere), "invalid" (bytes that are no UTF-8),
or "empty" (tokens without a byte among others). What they say is this process's alone.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.soak.record import EngineRecord
from rrpa_sidecar.engine import Engine, Job, JobCancelled, JobOver, attach

MODEL = "soak"
READY = "soak engine ready"
STEP_S = 0.2
"""Longest a job sleeps without looking whether it is still wanted."""


def tokens_of(kind: str, count: int, rng: random.Random) -> Iterator[bytes]:
    """Yield tokens that no other stream has."""
    name = f"{rng.getrandbits(32):08x}"
    for number in range(count):
        text = f"{name}.{number} "
        match kind:
            case "words":
                yield text.encode()
            case "invalid":
                yield text.encode() + rng.randbytes(rng.randrange(6))
            case "empty":
                yield text.encode() if rng.randrange(2) else b""
            case _:
                # The rest of the character before, and a part of one of its own.
                whole = f"é{text}桥😀".encode()
                cut = rng.randrange(1, 4)
                yield (whole[-cut:] if number else b"") + whole[:-cut]


def serve(job: Job, record: EngineRecord, rng: random.Random) -> None:
    """Answer one job."""
    stream_id = job.stream_id
    with job:
        try:
            wanted = json.loads(job.request.prompt or "{}")
            for token in tokens_of(wanted["text"], wanted["tokens"], rng):
                record.note(stream_id, "t", token.hex())
                job.write(token)
                record.note(stream_id, "c")
                _rest(job, wanted["pace_s"])
            record.note(stream_id, "e", "STOP")
            job.finish("stop")
            record.note(stream_id, "f")
        except JobCancelled:
            record.note(stream_id, "e", "CANCELLED")
        except JobOver as exc:
            record.note(stream_id, "x", str(exc))


def _rest(job: Job, seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0 and not job.cancelled:
        time.sleep(min(left_s, STEP_S))


def main(socket: str, shm_dir: str, path: str, seed: str, capacity: str) -> None:
    record = EngineRecord(Path(path))
    rng = random.Random(seed)
    with attach(socket, models=[MODEL], capacity=int(capacity), shm_dir=shm_dir) as engine:
        _stop_on_sigterm(engine)
        engine.wait_serving(20)
        print(READY, flush=True)
        threads = []
        for job in engine.jobs():
            own = random.Random(rng.getrandbits(64))
            threads.append(threading.Thread(target=serve, args=(job, record, own)))
            threads[-1].start()
            threads = [each for each in threads if each.is_alive()]
        for each in threads:
            each.join()


def _stop_on_sigterm(engine: Engine) -> None:
    signal.signal(signal.SIGTERM, lambda *_: engine.stop())


if __name__ == "__main__":
    main(*sys.argv[1:])
