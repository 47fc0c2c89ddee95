"""Continuous batching: every step decodes one token of each answer and a piece of new prompts."""

from __future__ import annotations

import logging
from collections import deque

from rrpa_sidecar.engine.engine import Engine
from rrpa_sidecar.engine.llamacpp.model import Model, Sampler
from rrpa_sidecar.engine.llamacpp.preparing import Prepared, Preparing, Refused
from rrpa_sidecar.engine.over import JobOver
from rrpa_sidecar.errors import EngineFailed

log = logging.getLogger(__name__)


class Sequence:
    """One answer in the context.

    position: tokens decoded so far, prompt first. token: the next to decode once the prompt is.
    index: where its logits are in the current batch; None: it has none there.
    """

    def __init__(self, number: int, prepared: Prepared, sampler: Sampler) -> None:
        self.number = number
        self.job = prepared.job
        self.prompt = prepared.tokens
        self.answer = prepared.answer
        self.sampler = sampler
        self.ignore_end = prepared.job.request.ignore_eos
        self.position = 0
        self.token = -1
        self.index: int | None = None


class Batcher:
    """Decodes all answers in one thread."""

    def __init__(self, model: Model, *, sequences: int, prefill: int, max_tokens: int) -> None:
        """prefill: prompt tokens per step, over all answers. A step takes as long as its
        tokens do, and every other answer and every cancel waits for it.

        max_tokens: for requests that give none.
        """
        self._model = model
        self._prefill = prefill
        self._preparing = Preparing(model, max_tokens)
        self._ready: deque[Prepared | Refused] = deque()
        self._free = list(range(sequences))
        self._live: list[Sequence] = []

    def run(self, engine: Engine) -> None:
        """Serve until `engine.stopping`."""
        try:
            while not engine.stopping:
                for job in engine.poll():
                    self._preparing.begin(job, engine)
                self._ready.extend(self._preparing.done())
                self._admit()
                self._drop([each for each in self._live if each.job.cancelled])
                if self._live:
                    self._step(engine)
                else:
                    engine.wait()
        finally:
            self._preparing.close()

    def _admit(self) -> None:
        while self._ready and self._free:
            prepared = self._ready.popleft()
            try:
                if prepared.job.cancelled:
                    prepared.job.abandon()
                elif isinstance(prepared, Refused):
                    prepared.job.fail_with(prepared.error)
                else:
                    sampler = self._model.sampler(prepared.sampling)
                    self._live.append(Sequence(self._free.pop(), prepared, sampler))
            except Exception as exc:  # noqa: BLE001 - an error is the job's own end
                prepared.job.fail_with(exc)

    def _step(self, engine: Engine) -> None:
        batch = self._fill_batch()
        try:
            self._model.decode()
        except EngineFailed as exc:
            log.error("%s", exc)
            for each in batch:
                each.job.fail_with(exc)
            self._drop(batch)
            return
        with engine.step():
            self._drop([each for each in batch if self._advance(each)])

    def _fill_batch(self) -> list[Sequence]:
        """Add what to decode; return the answers it belongs to."""
        model, room = self._model, self._prefill
        model.clear_batch()
        batch: list[Sequence] = []
        for each in self._live:
            each.index = None
            left = len(each.prompt) - each.position
            if left <= 0:
                each.index = model.add(each.token, each.position, each.number, logits=True)
                each.position += 1
            elif room:
                take = min(left, room)
                room -= take
                for token in each.prompt[each.position : each.position + take]:
                    each.position += 1
                    last = each.position == len(each.prompt)
                    index = model.add(token, each.position - 1, each.number, logits=last)
                each.index = index if last else None
            else:
                continue
            batch.append(each)
        return batch

    def _advance(self, each: Sequence) -> bool:
        """Take the next token from the logits, if there are some; return whether it is over."""
        try:
            if each.job.cancelled:
                each.job.abandon()
                return True
            if each.index is None:
                return False
            if each.answer.end_if_no_token_wanted():
                return True
            each.token = each.sampler.sample(each.index)
            if self._model.ends(each.token) and not each.ignore_end:
                each.answer.count += 1
                each.answer.end("stop")
                return True
            if each.answer.add(self._model.piece(each.token)):
                return True
            if each.position >= self._model.context_tokens:
                each.answer.end("length")
            return each.answer.over
        except JobOver:
            return True
        except Exception as exc:  # noqa: BLE001 - an error is the job's own end
            each.job.fail_with(exc)
            return True

    def _drop(self, over: list[Sequence]) -> None:
        for each in over:
            each.job.abandon()
            each.sampler.close()
            self._model.forget(each.number)
            self._free.append(each.number)
            self._live.remove(each)
