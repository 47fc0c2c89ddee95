"""An engine that keeps its own record of what it has said, beside what it commits.

usage: python -m tests.faults.recording_engine ENGINE_SOCKET SHM_DIR RECORDS CAPACITY

A request's prompt is "SEED PERIOD_MS": random tokens, cut anywhere in a character and some of
them no UTF-8 at all, one every PERIOD_MS, until there is a file RECORDS/enough. RECORDS/<stream id>
gets the bytes of each token after it was committed, and is renamed to <stream id>.STOP (or what
the end was) at the end.
"""

from __future__ import annotations

import os
import pathlib
import random
import sys
import threading
import time
from collections.abc import Iterator

from rrpa_sidecar.engine import Job, JobCancelled, attach

ENOUGH = "enough"
PIECES = ["a", "Wort ", "é", "字", "😀", "\n"]
BAD = [b"\xff", b"\xe5\xad", b"\x80\x80", b"\xf0\x9f\x98"]


def tokens_of(seed: str) -> Iterator[bytes]:
    """Yield tokens for ever, none of them empty."""
    rng = random.Random(seed)
    raw = b""
    while True:
        while len(raw) < 16:
            raw += rng.choice(BAD) if rng.random() < 0.05 else rng.choice(PIECES).encode()
        size = rng.randrange(1, 16)
        yield raw[:size]
        raw = raw[size:]


def answer(job: Job, records: pathlib.Path) -> None:
    """Answer one job at its pace and record it."""
    seed, period_ms = job.request.prompt.split()
    record, enough = records / job.stream_id, records / ENOUGH
    end = "STOP"
    with record.open("ab", buffering=0) as file, job:
        try:
            for token in tokens_of(seed):
                if enough.exists():
                    break
                job.write(token)
                file.write(token)
                time.sleep(int(period_ms) / 1000)
            job.finish("stop")
        except JobCancelled:
            end = "CANCELLED"
    record.rename(f"{record}.{end}")


def main(socket: str, shm_dir: str, records: str, capacity: str) -> None:
    with attach(
        socket, models=["test"], capacity=int(capacity), shm_dir=shm_dir, name="recorder"
    ) as engine:
        engine.wait_serving(30)
        print(f"recording engine ready {os.getpid()}", flush=True)
        for job in engine.jobs():
            # Plain threads: this engine is to be simple, not fast.
            threading.Thread(target=answer, args=(job, pathlib.Path(records)), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
