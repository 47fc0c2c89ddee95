"""One answer while it plays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import cycle
from typing import Protocol

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.engine.answer import Answer
from rrpa_sidecar.engine.job import Job
from rrpa_sidecar.engine.replay.script import Script
from rrpa_sidecar.engine.replay.source import cut, stamp
from rrpa_sidecar.status import Code

CRASH_EXIT_CODE = 70
NEVER_NS = 1 << 62


class Playback(Protocol):
    """What the scheduler plays.

    due_ns: when `advance` is to be called next; the scheduler with shared steps uses it for
    the first token alone.
    """

    job: Job
    due_ns: int

    def advance(self) -> bool:
        """Give the next token; return whether the answer is over. Moves `due_ns` on."""
        ...


class TextPlayback:
    """The engine's own text, or an echo, at the engine's pace."""

    def __init__(
        self,
        answer: Answer,
        tokens: list[bytes],
        *,
        once: bool,
        start_ns: int,
        period_ns: int,
        stamps: Clock | None,
    ) -> None:
        """once: the answer stops where the text ends; else the text begins again."""
        self.job = answer.job
        self.due_ns = start_ns
        self._answer = answer
        self._tokens: Iterator[bytes] = iter(tokens) if once or not tokens else cycle(tokens)
        self._period_ns = period_ns
        self._stamps = stamps
        # Looking one token ahead, so that the end comes with the last token and not after it.
        self._next = next(self._tokens, None)

    def advance(self) -> bool:
        token = self._next
        if token is None:
            self._answer.end("stop")
            return True
        if self._stamps is not None:
            token = stamp(self._stamps.now_ns()) + token
        if self._answer.add(token):
            return True
        self._next = next(self._tokens, None)
        if self._next is None:
            self._answer.end("stop")
            return True
        self.due_ns += self._period_ns
        return False


class ScriptPlayback:
    """What a script says, at the script's own pace."""

    def __init__(self, answer: Answer, script: Script, *, start_ns: int, piece: int) -> None:
        self.job = answer.job
        self._answer = answer
        self._script = script
        shown = cut(_shown(answer.job, script.show), piece) if script.show else None
        self._tokens = tuple(shown) if shown is not None else script.tokens
        self._total = len(self._tokens) * script.repeat
        self.due_ns = start_ns + _ns(script.prompt_delay_s) + self._extra_ns(0)

    def advance(self) -> bool:
        done = self._answer.count
        if self._script.crash_after is not None and done >= self._script.crash_after:
            os._exit(CRASH_EXIT_CODE)
        if self._script.hang_after is not None and done >= self._script.hang_after:
            self.due_ns = NEVER_NS
            return False
        if done < self._total:
            if self._answer.add(self._tokens[done % len(self._tokens)]):
                return True
            done += 1
            if done < self._total:
                self.due_ns += _ns(self._script.delay_s) + self._extra_ns(done)
                return False
            if self._script.crash_after == done or self._script.hang_after == done:
                return False
        self._end()
        return True

    def _extra_ns(self, index: int) -> int:
        delays = self._script.delays_s
        return _ns(delays[index]) if index < len(delays) else 0

    def _end(self) -> None:
        script, job = self._script, self._answer.job
        if script.error is not None:
            raise RuntimeError(script.error)
        if script.code is Code.OK:
            if script.stop_sequence is not None:
                job.finish(script.reason, stop_sequence=script.stop_sequence, usage=script.usage)
            else:
                self._answer.end(script.reason, script.usage)
        else:
            self._answer.flush()
            job.fail(script.code, script.text)


def _shown(job: Job, what: str) -> bytes:
    if what == "request":
        return job.request_bytes.hex().encode()
    labels = ("stream_id", "request_id", "traceparent", "priority", "timeout_s")
    return json.dumps({label: getattr(job, label) for label in labels}).encode()


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
