"""The methods that clients can call, whichever front end they reach."""

from __future__ import annotations

RRPA = "rrpa.v1.RRPAService"
HEALTH = "grpc.health.v1.Health"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"

# service → method → whether its answer is a stream. Requests are one message each; reflection,
# where they are a stream too, stands apart.
METHODS: dict[str, dict[str, bool]] = {
    RRPA: {
        "CreateStream": True,
        "CreateMessage": True,
        "ResumeStream": True,
        "ResumeMessage": True,
        "CancelStream": False,
        "ListModels": False,
    },
    HEALTH: {"Check": False, "Watch": True},
}

CREATE_STREAM = f"/{RRPA}/CreateStream"
CREATE_MESSAGE = f"/{RRPA}/CreateMessage"
RESUME_STREAM = f"/{RRPA}/ResumeStream"
RESUME_MESSAGE = f"/{RRPA}/ResumeMessage"
CANCEL_STREAM = f"/{RRPA}/CancelStream"
LIST_MODELS = f"/{RRPA}/ListModels"
CHECK = f"/{HEALTH}/Check"
WATCH = f"/{HEALTH}/Watch"

REFLECT = f"/{REFLECTION}/ServerReflectionInfo"
