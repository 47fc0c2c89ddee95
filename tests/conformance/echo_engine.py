"""An engine as a user would write one, for the tests: it answers with the request itself.

usage: python -m tests.conformance.echo_engine ENGINE_SOCKET SHM_DIR

Model `echo` answers with the request's bytes in hexadecimal, `length` with the number of bytes
of its prompt, and `fail` fails with its prompt as the text.
"""

from __future__ import annotations

import sys

from rrpa_sidecar.engine import attach


def main(socket: str, shm_dir: str) -> None:
    models = ["echo", "length", "fail"]
    with attach(socket, models=models, capacity=16, shm_dir=shm_dir) as engine:
        engine.wait_serving(20)
        print("echo engine ready", flush=True)
        for job in engine.jobs():
            with job:
                match job.request.model:
                    case "echo":
                        job.write(job.request_bytes.hex().encode())
                        job.finish("stop")
                    case "length":
                        job.write(str(len(job.request.prompt.encode())).encode())
                        job.finish("stop")
                    case _:
                        job.fail(13, job.request.prompt)


if __name__ == "__main__":
    main(*sys.argv[1:])
