"""LiteLLM's proxy: the gateway in Python that most teams start with."""

from __future__ import annotations

import yaml

from benchmarks.servers.peers.environments import Made
from benchmarks.servers.peers.gateway import Gateway, Place, version
from benchmarks.servers.peers.upstream.http1 import MODEL

KEY = "sk-bench"
"""Its docs ask for a master key; it opens nothing but this process."""


def argv(made: Made, place: Place) -> list[str]:
    """The shape of its page "Best Practices for Production", with one worker.

    One uvicorn worker per process, as that page suggests; LITELLM_LOG=ERROR and
    LITELLM_MODE=PRODUCTION as it says; set_verbose off and request_timeout of 600 s from its
    config; a master key, so that the caller's key is checked. Without a database, Redis,
    callbacks or alerting, each of which could only add to its cost. Its price list is the one
    that its package carries, so that nothing is fetched at start.
    """
    config = {
        "model_list": [
            {
                "model_name": MODEL,
                "litellm_params": {
                    "model": f"openai/{MODEL}",
                    "api_base": f"{place.upstream}/v1",
                    "api_key": "none",
                },
            }
        ],
        "general_settings": {"master_key": KEY},
        "litellm_settings": {"request_timeout": 600, "set_verbose": False, "telemetry": False},
    }
    written = place.workdir / "litellm.yaml"
    written.write_text(yaml.safe_dump(config))
    return [
        made.program("litellm"),
        *("--config", str(written)),
        *("--host", "127.0.0.1"),
        *("--port", str(place.port)),
        *("--num_workers", "1"),
    ]


SERVER = Gateway(
    name="LiteLLM",
    shape=f"{version('litellm')} as its page for production says: one uvicorn worker, log at"
    " ERROR, no database",
    environment="litellm",
    argv=argv,
    ready_path="/health/readiness",
    env={
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    headers={"authorization": f"Bearer {KEY}"},
)
