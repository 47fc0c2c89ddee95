"""An engine in a process of its own that does what the test says, one line of JSON at a time.

Arguments: engine socket, shared-memory directory, capacity. Answers are lines of JSON too: what
the call returned, or {"error": its class and text}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from rrpa_sidecar.engine import Engine, Job, attach


class Puppet:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.jobs: dict[str, Job] = {}

    def take(self, count: int) -> list[str]:
        """Wait until so many new jobs came; return their ids."""
        found: list[Job] = []
        until = time.monotonic() + 10
        while len(found) < count and time.monotonic() < until:
            self.engine.wait(0.01)
            found += self.engine.poll()
        self.jobs.update({job.stream_id: job for job in found})
        return [job.stream_id for job in found]

    def begin(self, job: str) -> None:
        self.jobs[job].begin()

    def write(self, job: str, hexed: str, repeat: int = 1) -> int:
        """Write tokens until one is refused; return how many bytes there are."""
        token = bytes.fromhex(hexed)
        for _ in range(repeat):
            self.jobs[job].write(token)
        return self.jobs[job].tokens * len(token)

    def tokens(self, job: str) -> int:
        return self.jobs[job].tokens

    def finish(self, job: str) -> None:
        self.jobs[job].finish("stop")

    def serving(self) -> bool:
        return self.engine.serving

    def fork(self) -> int:
        """Fork a child that lives until it is killed; return its pid."""
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        return pid


def main(socket: str, shm_dir: str, capacity: str) -> None:
    with attach(socket, models=["test"], capacity=int(capacity), shm_dir=shm_dir) as engine:
        puppet = Puppet(engine)
        print("puppet ready", flush=True)
        for line in sys.stdin:
            call: dict[str, Any] = json.loads(line)
            name = call.pop("call")
            try:
                answer = getattr(puppet, name)(**call)
            except Exception as error:  # noqa: BLE001 - the test judges it
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
