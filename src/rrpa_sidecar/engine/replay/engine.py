"""The replay engine: requests to playbacks."""

from __future__ import annotations

from dataclasses import dataclass

from rrpa_sidecar.clock import Clock
from rrpa_sidecar.engine.answer import Answer
from rrpa_sidecar.engine.job import Job
from rrpa_sidecar.engine.replay.playback import Playback, ScriptPlayback, TextPlayback
from rrpa_sidecar.engine.replay.script import ECHO_PREFIX, SCRIPT_PREFIX, parse_script
from rrpa_sidecar.engine.replay.source import cut


@dataclass(frozen=True, slots=True)
class Settings:
    """How the engine answers.

    text: what it says.
    bytes_per_token: where the text is cut, in the middle of characters too.
    period_ns: time between an answer's tokens; 0 is as fast as possible.
    prompt_delay_ns: before the first token.
    max_tokens: where a request gives none; None is the text once.
    stamps: each token begins with its commit time, see `source.stamp`.
    """

    text: bytes
    bytes_per_token: int
    period_ns: int
    prompt_delay_ns: int
    max_tokens: int | None
    stamps: bool


class Replay:
    """Begins the playback of each job."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._tokens = cut(settings.text, settings.bytes_per_token)

    def begin(self, job: Job) -> Playback | None:
        """Return the playback of `job`, or None when it is over already.

        The text goes round as long as max_tokens (the request's or the engine's) wants more;
        with neither, it is given once and finishes with STOP.

        Raises:
          InvalidRequest: the request or its script is wrong.
        """
        now_ns, size = self._clock.now_ns(), self._settings.bytes_per_token
        prompt = job.request.prompt or "\n".join(each.content for each in job.request.messages)
        prompt_tokens = -(-len(prompt.encode()) // size)
        if prompt.startswith(SCRIPT_PREFIX):
            script = parse_script(prompt.removeprefix(SCRIPT_PREFIX))
            if script.reject:
                job.reject(script.code, script.text)
                return None
            answer = Answer(job, default_max_tokens=None, prompt_tokens=prompt_tokens)
            if answer.end_if_no_token_wanted():
                return None
            return ScriptPlayback(answer, script, start_ns=now_ns, piece=size)
        echo = prompt.startswith(ECHO_PREFIX)
        default = None if echo else self._settings.max_tokens
        answer = Answer(job, default_max_tokens=default, prompt_tokens=prompt_tokens)
        if answer.end_if_no_token_wanted():
            return None
        return TextPlayback(
            answer,
            cut(prompt.removeprefix(ECHO_PREFIX).encode(), size) if echo else self._tokens,
            once=echo or not answer.limited,
            start_ns=now_ns + self._settings.prompt_delay_ns,
            period_ns=self._settings.period_ns,
            stamps=self._clock if self._settings.stamps else None,
        )
