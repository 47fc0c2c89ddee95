"""A real model on llama.cpp, in this process, behind a fake sidecar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rrpa_sidecar.engine import Code, Engine
from rrpa_sidecar.engine.job import Job
from rrpa_sidecar.engine.llamacpp.batcher import Batcher
from rrpa_sidecar.engine.llamacpp.model import Model
from rrpa_sidecar.engine.llamacpp.model_file import default_model_path
from rrpa_sidecar.errors import EngineFailed
from rrpa_sidecar.pb import rrpa_pb2
from rrpa_sidecar.shm.end import End
from tests.engine.conftest import AttachTo
from tests.engine.fake_sidecar import Attachment, FakeSidecar, eventually

SEQUENCES = 4
CONTEXT = 256
PREFILL = 16
LENGTH = rrpa_pb2.FINISH_REASON_LENGTH
STOP_SEQUENCE = rrpa_pb2.FINISH_REASON_STOP_SEQUENCE
RARE = "Rare characters: 𓀀𓁐𓂀𓃰 𠜎𠜱𠝹 𓀀𓁐𓂀𓃰 𠜎𠜱𠝹 𓀀𓁐𓂀𓃰"


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    loaded = Model(
        default_model_path(), sequences=SEQUENCES, context=CONTEXT, threads=1, prefill=PREFILL
    )
    yield loaded
    loaded.close()


class Llama:
    """A batcher that runs in a thread, and the sidecar's end of its engine."""

    def __init__(self, sidecar: FakeSidecar, engine: Engine, batcher: Batcher) -> None:
        self.sidecar = sidecar
        self.batcher = batcher
        self.attachment: Attachment = sidecar.attached()
        self._slot = 0

    def submit(self, **request: Any) -> str:
        self._slot = (self._slot + 1) % SEQUENCES
        return self.sidecar.submit(self.attachment, slot=self._slot, **request)[0]

    def ask(self, **request: Any) -> tuple[bytes, End]:
        return self.sidecar.answer(self.submit(**request))

    def refusal(self, **request: Any) -> tuple[int, str]:
        self.submit(**request)
        rejected = self.attachment.rejected.get(timeout=20)
        return rejected.code, rejected.message


@pytest.fixture
def llama(model: Model, sidecar: FakeSidecar, attach_to: AttachTo) -> Iterator[Llama]:
    batcher = Batcher(model, sequences=SEQUENCES, prefill=PREFILL, max_tokens=24)
    engine = attach_to(sidecar, capacity=SEQUENCES)
    thread = threading.Thread(target=batcher.run, args=[engine])
    thread.start()
    yield Llama(sidecar, engine, batcher)
    engine.stop()
    thread.join(20)
    for number in range(SEQUENCES):
        model.forget(number)


@pytest.fixture
def decodes(model: Model, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is put into this list is called once, in the engine's thread, after a decode."""
    after: list[Callable[[], None]] = []
    original = model.decode

    def decode() -> None:
        original()
        due, after[:] = after[:], []
        for call in due:
            call()

    monkeypatch.setattr(model, "decode", decode)
    return after


def test_temperature_0_is_greedy_and_absent_is_not(llama: Llama) -> None:
    greedy = [llama.ask(prompt="Once upon a time", max_tokens=16, temperature=0) for _ in "12"]
    sampled = [llama.ask(prompt="Once upon a time", max_tokens=16) for _ in "12"]
    assert greedy[0] == greedy[1]
    assert greedy[0][0].decode().startswith(", there was a")
    assert sampled[0][0] != sampled[1][0]
    prompt_tokens = greedy[0][1].prompt_tokens
    assert greedy[0][1] == End(0, LENGTH, None, prompt_tokens, 16, 0)
    assert prompt_tokens == 5


def test_seed_makes_sampling_repeatable(llama: Llama) -> None:
    def ask(seed: int) -> bytes:
        return llama.ask(prompt="My favourite word is", max_tokens=16, seed=seed)[0]

    assert ask(7) == ask(7)
    assert ask(7) != ask(8)
    assert ask(2**32 - 1) == ask(2**32 - 1), "llama.cpp takes this one as random"
    assert ask(-1) == ask(-1)


def test_split_characters_are_written_raw(llama: Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[bytes] = []
    original = Job.write

    def write(job: Job, token: bytes) -> None:
        tokens.append(token)
        original(job, token)

    monkeypatch.setattr(Job, "write", write)
    data, _ = llama.ask(prompt=RARE, max_tokens=24, temperature=0)
    partial = [token for token in tokens if "\ufffd" in token.decode(errors="replace")]
    assert len(partial) >= 4, tokens
    assert b"".join(tokens) == data
    assert any(ord(char) > 0xFFFF for char in data.decode(errors="ignore"))


def test_prompt_longer_than_a_batch_is_read_whole(llama: Llama, model: Model) -> None:
    prompt = "The password is swordfish. " * 8 + "The password is"
    assert len(model.tokenize(prompt)) > 3 * PREFILL
    assert llama.ask(prompt=prompt, max_tokens=3, temperature=0)[0].decode().startswith(" sword")


def test_four_answers_share_one_decode_and_do_not_mix(
    llama: Llama, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch: set[int] = set()
    together: list[int] = []
    add, decode = model.add, model.decode

    def added(token: int, position: int, sequence: int, *, logits: bool) -> int:
        batch.add(sequence)
        return add(token, position, sequence, logits=logits)

    def decoded() -> None:
        together.append(len(batch))
        batch.clear()
        decode()

    prompts = ["One, two, three,", "Red, green,", "Monday, Tuesday,", "Once upon a time"]
    alone = [llama.ask(prompt=each, max_tokens=12, temperature=0)[0] for each in prompts]
    monkeypatch.setattr(model, "add", added)
    monkeypatch.setattr(model, "decode", decoded)
    ids = [llama.submit(prompt=each, max_tokens=12, temperature=0) for each in prompts]
    shared = [llama.sidecar.answer(stream_id)[0] for stream_id in ids]
    assert together.count(SEQUENCES) >= 5, together
    assert len(together) < 2 * 12, "most of the 48 tokens come four at a time"
    # The kernels for one row and for several round differently, so late words may differ.
    for one, other in zip(alone, shared, strict=True):
        assert one[:8] == other[:8]


def test_stop_sequence_over_tokens_ends_the_answer_before_it(llama: Llama) -> None:
    whole, _ = llama.ask(prompt="Once upon a time", max_tokens=16, temperature=0)
    stop = whole.decode()[10:26]
    data, end = llama.ask(
        prompt="Once upon a time", max_tokens=16, temperature=0, stop_sequences=["never", stop]
    )
    assert data == whole[:10]
    assert (end.reason, end.stop_sequence) == (STOP_SEQUENCE, stop.encode())


def test_cancel_stops_the_sequence_within_one_token(
    llama: Llama, model: Model, decodes: list[Callable[[], None]]
) -> None:
    stream_id = llama.submit(prompt="Once upon a time", max_tokens=200, ignore_eos=True)
    reader = llama.sidecar.log(stream_id)
    eventually(lambda: reader.progress()[0] > 8)
    ran = 0

    def count() -> None:
        nonlocal ran
        ran += 1
        decodes.append(count)

    def cancel() -> None:
        (job,) = [each.job for each in llama.batcher._live]
        llama.sidecar.cancel(llama.attachment, stream_id)
        eventually(lambda: job.cancelled)
        decodes.append(count)

    decodes.append(cancel)
    end = eventually(lambda: reader.progress()[1])
    assert end.reason == rrpa_pb2.FINISH_REASON_CANCELLED
    eventually(lambda: not llama.batcher._live)
    assert ran == 0, "it was decoded again after the cancel"
    reader.close()
    decodes.clear()
    assert llama.ask(prompt="Once upon a time", max_tokens=2)[1].completion_tokens == 2


def test_max_tokens_0_reads_the_prompt_and_gives_none(llama: Llama) -> None:
    data, end = llama.ask(prompt="Once upon a time", max_tokens=0)
    assert (data, end.reason, end.prompt_tokens, end.completion_tokens) == (b"", LENGTH, 5, 0)


def test_max_tokens_absent_is_the_engines_default(llama: Llama) -> None:
    end = llama.ask(prompt="Once upon a time", ignore_eos=True)[1]
    assert (end.reason, end.completion_tokens) == (LENGTH, 24)


def test_context_used_up_ends_with_length(llama: Llama, model: Model) -> None:
    prompt = "word " * (CONTEXT - 8)
    tokens = len(model.tokenize(prompt))
    assert CONTEXT - 12 < tokens < CONTEXT
    end = llama.ask(prompt=prompt, max_tokens=500, ignore_eos=True)[1]
    assert (end.reason, end.completion_tokens) == (LENGTH, CONTEXT - tokens + 1)


def test_prompt_beyond_the_context_is_refused_with_both_numbers(llama: Llama, model: Model) -> None:
    prompt = "word " * CONTEXT
    code, text = llama.refusal(prompt=prompt)
    assert code == Code.INVALID_ARGUMENT
    assert str(len(model.tokenize(prompt))) in text
    assert str(CONTEXT) in text


def test_prompt_that_cannot_fit_is_not_even_tokenized(
    llama: Llama, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "tokenize", None)
    code, text = llama.refusal(prompt="x" * 4_000_000)
    assert code == Code.INVALID_ARGUMENT
    assert "4000000 bytes" in text


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({}, "neither"),
        ({"prompt": ""}, "empty"),
        ({"prompt": "a", "messages": [rrpa_pb2.Message(content="b")]}, "both"),
        ({"prompt": "a", "temperature": -0.1}, "temperature"),
        ({"prompt": "a", "stop_sequences": [""]}, "empty"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
    ],
)
def test_wrong_request_is_refused(llama: Llama, request_: dict[str, Any], said: str) -> None:
    code, text = llama.refusal(**request_)
    assert code == Code.INVALID_ARGUMENT
    assert said in text


def test_messages_of_a_base_model_are_continued(llama: Llama) -> None:
    messages = [rrpa_pb2.Message(role="user", content="Once upon a time")]
    assert llama.ask(messages=messages, max_tokens=8, temperature=0) == llama.ask(
        prompt="Once upon a time", max_tokens=8, temperature=0
    )


@pytest.mark.parametrize(
    "penalty",
    [{"repetition_penalty": 1.8}, {"presence_penalty": 2.0}, {"frequency_penalty": 2.0}],
)
def test_penalties_change_what_is_chosen(llama: Llama, penalty: dict[str, float]) -> None:
    request = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
    assert llama.ask(**request)[0] != llama.ask(**request, **penalty)[0]


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}])
def test_sampling_from_one_token_is_greedy_however_hot(
    llama: Llama, narrow: dict[str, float]
) -> None:
    request = {"prompt": "Once upon a time", "max_tokens": 12}
    wide = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    greedy = llama.ask(**request, temperature=0)[0]
    hot = llama.ask(**request, temperature=3.0, **{**wide, **narrow})[0]
    assert hot == greedy
    assert llama.ask(**request, temperature=3.0, **wide)[0] != greedy


def test_failure_of_llama_cpp_is_internal_for_these_streams_and_the_engine_lives(
    llama: Llama, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise EngineFailed("llama.cpp failed to decode: rc -3")

    with monkeypatch.context() as patched:
        patched.setattr(model, "decode", broken)
        assert llama.refusal(prompt="a") == (Code.INTERNAL, "llama.cpp failed to decode: rc -3")
    assert llama.ask(prompt="Once upon a time", max_tokens=2)[1].code == 0


def test_nul_in_a_prompt_is_a_token_and_not_its_end(model: Model) -> None:
    tokens = model.tokenize("A\0B")
    assert b"".join(model.piece(token) for token in tokens) == b"A\0B"


def test_every_token_text_round_trips(model: Model) -> None:
    text = "Ünïcödé 日本語 한국어 🚂🛤️ 𓀀 \u2028\ufffd\r\n\t end"
    assert b"".join(map(model.piece, model.tokenize(text))) == text.encode()
