"""How the next token is chosen: a request's fields, checked, with their defaults. Pure."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.pb import rrpa_pb2

# llama.cpp's own defaults for its command line and server.
TEMPERATURE = 0.8
TOP_K = 40
TOP_P = 0.95
MIN_P = 0.05

# 2^32 - 1 is LLAMA_DEFAULT_SEED, which means "random"; a chosen seed must never become it.
SEEDS = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """Checked sampling fields; see rrpa.v1.CreateStreamRequest for their meaning.

    The penalties count the tokens of the answer, not those of the prompt.
    """

    temperature: float = TEMPERATURE
    top_k: int = TOP_K
    top_p: float = TOP_P
    min_p: float = MIN_P
    seed: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def penalized(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


def checked_sampling(request: rrpa_pb2.CreateStreamRequest) -> Sampling:
    """Return the sampling that a request asks for; a field that is absent has its default.

    Raises:
      InvalidRequest: a field is out of its range; the text names it.
    """

    def given(field: str, default: float) -> float:
        return getattr(request, field) if request.HasField(field) else default

    sampling = Sampling(
        temperature=given("temperature", TEMPERATURE),
        top_k=int(given("top_k", TOP_K)),
        top_p=given("top_p", TOP_P),
        min_p=given("min_p", MIN_P),
        seed=request.seed % SEEDS
        if request.HasField("seed")
        else int.from_bytes(os.urandom(8)) % SEEDS,
        presence_penalty=given("presence_penalty", 0.0),
        frequency_penalty=given("frequency_penalty", 0.0),
        repetition_penalty=given("repetition_penalty", 1.0),
    )
    rules = {
        "temperature": (0 <= sampling.temperature < math.inf, "0 or more"),
        "top_k": (sampling.top_k >= 0, "0 or more"),
        "top_p": (0 < sampling.top_p <= 1, "above 0, at most 1"),
        "min_p": (0 <= sampling.min_p <= 1, "from 0 to 1"),
        "presence_penalty": (-2 <= sampling.presence_penalty <= 2, "from -2 to 2"),
        "frequency_penalty": (-2 <= sampling.frequency_penalty <= 2, "from -2 to 2"),
        "repetition_penalty": (0 < sampling.repetition_penalty < math.inf, "above 0"),
    }
    for field, (kept, rule) in rules.items():
        if not kept:
            raise InvalidRequest(f"{field} is {getattr(sampling, field)}; it must be {rule}")
    return sampling
