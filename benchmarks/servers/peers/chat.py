"""How every peer that speaks server-sent events is asked, and whether it really streams.

The tokens are those that the other servers send; around each of them this protocol puts about
200 bytes of JSON and gRPC about 15, so bytes on the wire differ, as they do in real life.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import cycle, islice, pairwise

from benchmarks.plan import BenchmarkFailed
from benchmarks.servers import PacedLoad, Running
from benchmarks.servers.peers.probe import Answer, read_answer
from benchmarks.servers.peers.upstream.http1 import CHAT_PATH, MODEL

PROBE_TOKENS = 40
APART = 0.25
"""Share of the pace below which two tokens arrived as one: they were held back together."""
STREAMED = 0.8
"""Least share of tokens that arrive on their own. A busy machine bunches some; a server that
buffers bunches all."""


def chat_running(
    address: str, parts: dict[str, int], load: PacedLoad, headers: dict[str, str] | None = None
) -> Running:
    """Return how a chat completion of `load.tokens` tokens is asked for."""
    body = chat_body(load.tokens)
    sent = {"content-type": "application/json", "accept": "text/event-stream", **(headers or {})}
    return Running(address, "sse", parts, CHAT_PATH, body, sent)


def tokens(load: PacedLoad) -> list[str]:
    """Return the texts that these servers send in turn: the load's token, rotated.

    They are as long as the others' tokens. They differ, because LiteLLM ends an answer that
    repeats one chunk 100 times, and because equal ones would not show that one was lost.
    """
    text = load.token.decode()
    return [text[at:] + text[:at] for at in range(len(text))]


def chat_body(tokens: int) -> bytes:
    asked = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "go"}],
        "max_tokens": tokens,
        "stream": True,
    }
    return json.dumps(asked).encode()


def expect_streaming(name: str, running: Running, load: PacedLoad) -> None:
    """Ask for one short answer and check it token by token.

    Raises BenchmarkFailed if one is lost, repeated, changed or held back: figures of a server
    that does not deliver are worth nothing.
    """
    asked = replace(running, body=chat_body(PROBE_TOKENS))
    answer = read_answer(asked, timeout_s=10 + PROBE_TOKENS / load.tokens_per_s)
    expect_answer(name, answer, tokens(load), 1 / load.tokens_per_s)


def expect_answer(name: str, answer: Answer, texts: list[str], period_s: float) -> None:
    """Check that `answer` is PROBE_TOKENS of `texts`, which go round from any of them on.

    Each has to come in an event of its own and at its own time, `period_s` apart.
    """
    start = texts.index(answer.tokens[0]) if answer.tokens and answer.tokens[0] in texts else 0
    due = list(islice(cycle(texts), start, start + PROBE_TOKENS))
    if answer.tokens != due:
        raise BenchmarkFailed(
            f"{name}: expected {PROBE_TOKENS} tokens {_shown(due)}, found"
            f" {len(answer.tokens)}: {_shown(answer.tokens)}"
        )
    if not answer.done:
        raise BenchmarkFailed(f"{name}: the answer of {PROBE_TOKENS} tokens has no [DONE]")
    gaps_s = [later - earlier for earlier, later in pairwise(answer.arrived_s)]
    apart = sum(gap_s > period_s * APART for gap_s in gaps_s)
    if apart < len(gaps_s) * STREAMED:
        raise BenchmarkFailed(
            f"{name}: expected a token each {period_s * 1e3:g} ms, found {apart} of"
            f" {len(gaps_s)} gaps longer than {period_s * APART * 1e3:g} ms: it buffers, or the"
            " machine is too busy to tell"
        )


def warm(name: str, running: Running, load: PacedLoad, timeout_s: float) -> None:
    """Ask until the first answer is right: gateways look for their engines after they listen."""
    until_s = time.monotonic() + timeout_s
    while True:
        try:
            expect_streaming(name, running, load)
            return
        except (BenchmarkFailed, OSError) as exc:
            if time.monotonic() > until_s:
                raise BenchmarkFailed(
                    f"{name} gives no right answer in {timeout_s} s: {exc}"
                ) from exc
            time.sleep(0.2)


def _shown(texts: list[str]) -> str:
    return repr("|".join(texts)[:60])
