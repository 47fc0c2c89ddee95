"""Requests to prompts in tokens, beside the decoding: a long prompt takes a second."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from rrpa_sidecar.engine.answer import Answer
from rrpa_sidecar.engine.job import Job
from rrpa_sidecar.engine.llamacpp.model import Model
from rrpa_sidecar.engine.llamacpp.prompts import prompt_of
from rrpa_sidecar.engine.llamacpp.sampling import Sampling, checked_sampling
from rrpa_sidecar.errors import InvalidRequest

SHORT_TOKEN_BYTES = 8
"""Prompts below this many bytes per token of context are tokenized without another thought."""


class Wakeable(Protocol):
    def wake(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A job that is ready to be decoded."""

    job: Job
    answer: Answer
    tokens: tuple[int, ...]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Refused:
    """A job that ends before it begins."""

    job: Job
    error: Exception


class Preparing:
    """One thread that checks and tokenizes, in the order of arrival."""

    def __init__(self, model: Model, default_max_tokens: int) -> None:
        self._model = model
        self._default_max_tokens = default_max_tokens
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rrpa-prompts")
        self._done: SimpleQueue[Prepared | Refused] = SimpleQueue()

    def begin(self, job: Job, waiting: Wakeable) -> None:
        """Prepare `job`; `waiting.wake()` is called when it is done."""
        self._thread.submit(self._work, job, waiting)

    def done(self) -> list[Prepared | Refused]:
        """Return what is prepared; never waits."""
        found: list[Prepared | Refused] = []
        while True:
            try:
                found.append(self._done.get_nowait())
            except Empty:
                return found

    def close(self) -> None:
        """End the thread; what was not yet begun is dropped."""
        self._thread.shutdown(cancel_futures=True)

    def _work(self, job: Job, waiting: Wakeable) -> None:
        try:
            self._done.put(self._prepare(job))
        except Exception as exc:  # noqa: BLE001 - whatever it is becomes the job's end
            self._done.put(Refused(job, exc))
        waiting.wake()

    def _prepare(self, job: Job) -> Prepared:
        sampling = checked_sampling(job.request)
        prompt = prompt_of(job.request, self._model.template)
        limit = self._model.context_tokens
        # Tokenizing takes 4 s per MB here, so what cannot fit whatever its tokens is not tried.
        size = len(prompt.encode())
        if size > limit * SHORT_TOKEN_BYTES and size > limit * self._model.longest_piece():
            raise InvalidRequest(
                f"the prompt has {size} bytes; this engine's context holds {limit} tokens of at"
                f" most {self._model.longest_piece()} bytes (--context)"
            )
        tokens = tuple(self._model.tokenize(prompt))
        if not tokens:
            raise InvalidRequest("the prompt has no tokens; say something to continue")
        if len(tokens) >= limit:
            raise InvalidRequest(
                f"the prompt has {len(tokens)} tokens; this engine's context holds {limit},"
                " one of them for the answer (--context)"
            )
        most = self._default_max_tokens
        answer = Answer(job, default_max_tokens=most, prompt_tokens=len(tokens))
        return Prepared(job, answer, tokens, sampling)
