"""Engines that each die at one step of writing their only answer.

usage: python -m tests.faults.dying_engine ENGINE_SOCKET SHM_DIR STEP:TIMES:HALF:SIGNAL…

Each is a process of its own, with a model that is named after its death; a request's prompt says
how many seconds pass between its two tokens. All are forked from this one, which has the imports
done, and are up when this process says so.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

from rrpa_sidecar.engine import attach
from rrpa_sidecar.shm import writer as writer_module
from rrpa_sidecar.shm.doorbell import Ringer
from rrpa_sidecar.shm.writer import LogWriter
from tests.harness.dying import Death, Directory, Steps

PR_SET_PDEATHSIG = 1
FIRST, SECOND = "Bär".encode(), "€ and more".encode()


def arm(death: Death) -> None:
    """Have the next log of this process be its last."""
    steps = Steps(death)
    create, ring, finish = LogWriter.create, Ringer.ring, LogWriter.finish
    ended = False

    def dying_create(directory, stream_id, *, table, **more):
        steps.watch_calls()
        made = create(Directory(directory.path, steps), stream_id, table=table, **more)
        steps.watch_stores(made, table)
        return made

    def dying_finish(self, end):
        nonlocal ended
        finish(self, end)
        ended = True

    def dying_ring(self):
        rang = ring(self)
        steps.done(15 if ended else 11)
        return rang

    writer_module.LogWriter.create = dying_create
    LogWriter.finish = dying_finish
    Ringer.ring = dying_ring


def serve(socket: str, shm_dir: str, death: Death, ready: int) -> None:
    with attach(socket, models=[str(death)], shm_dir=shm_dir, name=str(death)) as engine:
        engine.wait_serving(20)
        os.write(ready, b"!")
        for job in engine.jobs():
            arm(death)
            job.write(FIRST)
            time.sleep(float(job.request.prompt))
            job.write(SECOND)
            job.finish("stop")


def main(socket: str, shm_dir: str, *deaths: str) -> None:
    ready, ready_in = os.pipe()
    for each in deaths:
        step, times, half, by = map(int, each.split(":"))
        if os.fork() == 0:
            os.close(ready)
            # One that is stopped cannot be told to end.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            serve(socket, shm_dir, Death(step, times, bool(half), by), ready_in)
            os._exit(0)
    os.close(ready_in)
    up = 0
    while up < len(deaths):
        up += len(os.read(ready, 100))
    print("dying engines ready", flush=True)
    for _ in deaths:
        os.wait()


def argument(death: Death) -> str:
    return f"{death.step}:{death.times}:{int(death.half)}:{int(death.by)}"


if __name__ == "__main__":
    main(*sys.argv[1:])
