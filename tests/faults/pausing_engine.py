"""An engine that pauses at random between the steps of its last token and of its end.

usage: python -m tests.faults.pausing_engine ENGINE_SOCKET SHM_DIR SEED

A request's prompt is a number; `tokens_of` says what it is answered with.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import Any

from rrpa_sidecar.engine import Engine, attach
from rrpa_sidecar.shm.writer import LogWriter

CAPACITY = 256
THREADS = 8
LONGEST_PAUSE_S = 0.0003


def tokens_of(prompt: str) -> list[bytes]:
    """Return the answer to `prompt`: no token, one, or a few, perhaps with halves of characters."""
    rng = random.Random(prompt)
    text = "ein Wort, 一個字 😀 ".encode() * 4
    cuts = sorted(rng.randrange(len(text)) for _ in range(rng.randrange(6)))
    return [text[start:end] for start, end in zip([0, *cuts], cuts, strict=False)]


class Pauses:
    """Words of a header; each store is followed by a pause, mostly none."""

    def __init__(self, words: Any, rng: random.Random) -> None:
        self._words, self._rng = words, rng

    def __setitem__(self, index: int, value: int) -> None:
        self._words[index] = value
        pause(self._rng)

    def release(self) -> None:
        self._words.release()


def pause(rng: random.Random) -> None:
    match rng.randrange(4):
        case 0:
            time.sleep(rng.random() * LONGEST_PAUSE_S)
        case 1:
            until_s = time.monotonic() + rng.random() * LONGEST_PAUSE_S / 10
            while time.monotonic() < until_s:
                pass


def serve(engine: Engine, rng: random.Random) -> None:
    for job in engine.jobs():
        with job:
            for token in tokens_of(job.request.prompt):
                job.write(token)
            pause(rng)
            job.finish("stop")


def main(socket: str, shm_dir: str, seed: str) -> None:
    rng = random.Random(seed)
    create = LogWriter.create

    def pausing(*args: Any, **more: Any) -> LogWriter:
        made = create(*args, **more)
        made._words = Pauses(made._words, rng)  # type: ignore[assignment]
        return made

    LogWriter.create = pausing  # type: ignore[method-assign]
    with attach(socket, models=["test"], capacity=CAPACITY, shm_dir=shm_dir) as engine:
        engine.wait_serving(20)
        print("pausing engine ready", flush=True)
        threads = [threading.Thread(target=serve, args=(engine, rng)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
