"""What every token-by-token engine does alike: count, apply stops and the limit, write, finish."""

from __future__ import annotations

from rrpa_sidecar.engine.job import Job
from rrpa_sidecar.engine.reasons import Usage
from rrpa_sidecar.engine.stops import StopFilter, checked_stops
from rrpa_sidecar.errors import InvalidRequest
from rrpa_sidecar.pb import rrpa_pb2


def checked_max_tokens(request: rrpa_pb2.CreateStreamRequest, default: int | None) -> int | None:
    """Return the most tokens to generate; None: no limit.

    Raises:
      InvalidRequest: it is negative.
    """
    if not request.HasField("max_tokens"):
        return default
    if request.max_tokens < 0:
        raise InvalidRequest(f"max_tokens is {request.max_tokens}; it cannot be negative")
    return request.max_tokens


class Answer:
    """The tokens of one job.

    over: `add` or `end` has finished the job; add nothing more.
    count: tokens generated so far.
    """

    def __init__(self, job: Job, *, default_max_tokens: int | None, prompt_tokens: int) -> None:
        """Read limit and stops from the job's request.

        default_max_tokens: where the request says nothing; None: no limit.

        Raises:
          InvalidRequest: the request's limit or stops are wrong.
        """
        request = job.request
        limit = checked_max_tokens(request, default_max_tokens)
        stops = checked_stops(request.stop_sequences)
        self.job = job
        self.count = 0
        self.over = False
        self._limit = -1 if limit is None else limit
        self._filter = StopFilter(stops) if stops else None
        self._prompt_tokens = prompt_tokens

    @property
    def limited(self) -> bool:
        """Whether there is a most number of tokens."""
        return self._limit >= 0

    def end_if_no_token_wanted(self) -> bool:
        """Finish with LENGTH when the limit is 0; return whether the job is over."""
        if self._limit == 0:
            self.end("length")
        return self.over

    def add(self, token: bytes) -> bool:
        """Take the next token; return whether the answer is over.

        Raises:
          JobOver: see Job.write.
        """
        self.count += 1
        if self._filter is None:
            self.job.write(token)
        else:
            data, stop = self._filter.feed(token)
            self.job.write(data)
            if stop is not None:
                self._finish("stop_sequence", stop)
        if self.count == self._limit and not self.over:
            self.end("length")
        return self.over

    def end(self, reason: str, usage: Usage | None = None) -> None:
        """Finish for a reason of `Job.finish`; what was held back for a stop is sent first.

        Raises:
          JobOver: see Job.write.
        """
        self.flush()
        self._finish(reason, None, usage)

    def flush(self) -> None:
        """Send what is held back: it became no stop."""
        if self._filter is not None and self._filter.held:
            self.job.write(self._filter.flush())

    def _finish(self, reason: str, stop: str | None, usage: Usage | None = None) -> None:
        counted = Usage(self._prompt_tokens, self.count, 0)
        self.job.finish(reason, stop_sequence=stop, usage=usage or counted)
        self.over = True
