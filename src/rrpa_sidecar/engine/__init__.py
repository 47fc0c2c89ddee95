"""What an engine imports to put its tokens on the road to clients.

    from rrpa_sidecar.engine import attach

    with attach("/tmp/rrpa.sock", models=["echo"], capacity=8) as engine:
        for job in engine.jobs():
            with job:
                for token in generate(job.request):
                    job.write(token)
                job.finish("stop")

An engine that batches asks `engine.poll()` for new jobs between its steps, sleeps in
`engine.wait()` while it has none, and wraps each step in `with engine.step():` so that all its
tokens ring the sidecar's bell once.
"""

from rrpa_sidecar.engine.engine import Engine, attach
from rrpa_sidecar.engine.job import Job
from rrpa_sidecar.engine.over import JobCancelled, JobOver
from rrpa_sidecar.engine.reasons import Usage
from rrpa_sidecar.errors import AttachRefused, InvalidRequest
from rrpa_sidecar.status import Code

__all__ = [
    "AttachRefused",
    "Code",
    "Engine",
    "InvalidRequest",
    "Job",
    "JobCancelled",
    "JobOver",
    "Usage",
    "attach",
]
