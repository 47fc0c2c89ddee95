"""The one module that knows cyllama: a loaded model and its context, in our words.

Facts about cyllama 0.2.18 that this module rests on: `decode` and `tokenize` release the GIL,
so the control thread stays awake (9 ms at most in a decode of 1.4 s); a batch beyond `n_batch`
aborts the process, so the batch is sized once and its own IndexError comes first; a template's
strings end at a NUL; contexts without `kv_unified` give each sequence its own share, so that no
answer can take another's room, and cost the same (38.7 against 37.5 ms for 4 sequences).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rrpa_sidecar.engine.llamacpp.pieces import raw_piece
from rrpa_sidecar.engine.llamacpp.prompts import Turn
from rrpa_sidecar.engine.llamacpp.sampling import Sampling
from rrpa_sidecar.errors import EngineFailed, InvalidRequest, StartupError


class Sampler:
    """Chooses the tokens of one answer."""

    def __init__(self, chain: Any, context: Any) -> None:
        self._chain = chain
        self._context = context

    def sample(self, index: int) -> int:
        """Return the next token from the logits at `index` of the last batch.

        Raises:
          EngineFailed: llama.cpp could not.
        """
        try:
            token: int = self._chain.sample(self._context, index)
        except Exception as exc:
            raise EngineFailed(f"llama.cpp failed to sample: {exc}") from exc
        return token

    def close(self) -> None:
        self._chain.close()


class Model:
    """A model, a context for `sequences` answers, and one batch. One thread, but `tokenize`."""

    def __init__(
        self, path: str, *, sequences: int, context: int, threads: int, prefill: int
    ) -> None:
        """Load the GGUF file at `path`.

        sequences: answers at once. context: tokens of each, prompt included; the model's own
        limit caps it. prefill: prompt tokens of one batch, over all answers.

        Raises:
          StartupError: no such file, or llama.cpp cannot load it.
        """
        try:
            from cyllama.llama import llama_cpp
        except ImportError as exc:
            raise StartupError(
                "cyllama is not installed; run: pip install 'rrpa-sidecar[llamacpp]'"
            ) from exc
        self._cpp: Any = llama_cpp
        llama_cpp.disable_logging()
        llama_cpp.llama_backend_init()
        llama_cpp.ggml_backend_load_all()
        try:
            params = llama_cpp.LlamaModelParams()
            params.n_gpu_layers = 0
            self._model = llama_cpp.LlamaModel(path, params)
            trained = int(self._model.n_ctx_train)
            self.context_tokens = min(context, trained) if trained > 0 else context
            self._context = self._new_context(sequences, threads, sequences + prefill)
        except Exception as exc:
            raise StartupError(f"cannot load the model {path}: {exc}") from exc
        self._vocab: Any = self._model.get_vocab()
        self._batch = llama_cpp.LlamaBatch(n_tokens=sequences + prefill, embd=0, n_seq_max=1)
        self._pieces: dict[int, bytes] = {}
        self._longest_piece = 0
        self.template = self._chat_template()

    def _new_context(self, sequences: int, threads: int, batch: int) -> Any:
        params = self._cpp.LlamaContextParams()
        params.n_ctx = self.context_tokens * sequences
        params.n_batch = params.n_ubatch = batch
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        return self._cpp.LlamaContext(self._model, params)

    # Text.

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a prompt, with the model's own first token. Thread-safe.

        The names of special tokens in `text` become these tokens, as templates need.

        Raises:
          EngineFailed: llama.cpp could not.
        """
        try:
            tokens: list[int] = self._vocab.tokenize(text, True, True)
        except Exception as exc:
            raise EngineFailed(f"llama.cpp failed to tokenize: {exc}") from exc
        first = self._vocab.token_bos()
        # Some templates write the first token themselves.
        return tokens[1:] if tokens[:2] == [first, first] else tokens

    def piece(self, token: int) -> bytes:
        """Return a token's raw bytes; none for a control token."""
        piece = self._pieces.get(token)
        if piece is None:
            rendered = self._vocab.token_to_piece(token, 0, False)
            piece = self._pieces[token] = raw_piece(rendered, self._vocab.get_text(token))
        return piece

    def longest_piece(self) -> int:
        """Return the bytes of the vocabulary's longest token. The first call takes 0.1 s."""
        if not self._longest_piece:
            rendered = self._vocab.token_to_piece
            tokens = range(self._vocab.n_vocab)
            self._longest_piece = max(len(rendered(token, 0, True).encode()) for token in tokens)
        return self._longest_piece

    def ends(self, token: int) -> bool:
        """Whether the model says with `token` that its answer ends."""
        return bool(self._vocab.is_eog(token))

    def _chat_template(self) -> Callable[[Sequence[Turn]], str] | None:
        template = self._model.get_default_chat_template()
        if not template:
            return None

        def apply(turns: Sequence[Turn]) -> str:
            messages = [self._cpp.LlamaChatMessage(role, content) for role, content in turns]
            try:
                return str(self._model.chat_apply_template(template, messages, True))
            except Exception as exc:
                raise InvalidRequest(
                    "llama.cpp cannot apply this model's chat template to these messages;"
                    " send a prompt that is rendered already"
                ) from exc

        return apply

    # Numbers.

    def sampler(self, wanted: Sampling) -> Sampler:
        """Return a sampler for one answer; close it."""
        chain = self._cpp.LlamaSampler(self._cpp.LlamaSamplerChainParams())
        if wanted.penalized:
            chain.add_penalties(
                self.context_tokens,
                wanted.repetition_penalty,
                wanted.frequency_penalty,
                wanted.presence_penalty,
            )
        if wanted.temperature == 0:
            chain.add_greedy()
            return Sampler(chain, self._context)
        if wanted.top_k:
            chain.add_top_k(wanted.top_k)
        if wanted.top_p < 1:
            chain.add_top_p(wanted.top_p, 1)
        if wanted.min_p:
            chain.add_min_p(wanted.min_p, 1)
        chain.add_temp(wanted.temperature)
        chain.add_dist(wanted.seed)
        return Sampler(chain, self._context)

    def clear_batch(self) -> None:
        self._batch.clear()

    def add(self, token: int, position: int, sequence: int, *, logits: bool) -> int:
        """Add a token to the batch; return its index there, for `Sampler.sample`."""
        index: int = self._batch.n_tokens
        self._batch.add(token, position, [sequence], logits)
        return index

    def decode(self) -> None:
        """Compute the batch. Releases the GIL.

        Raises:
          EngineFailed: llama.cpp could not; the batch's sequences are in an unknown state.
        """
        try:
            self._context.decode(self._batch)
        except Exception as exc:
            raise EngineFailed(f"llama.cpp failed to decode: {exc}") from exc

    def forget(self, sequence: int) -> None:
        """Free what the context holds of a sequence."""
        self._context.memory_seq_rm(sequence, -1, -1)

    def close(self) -> None:
        """Free the memory. Idempotent."""
        self._batch.close()
        self._context.close()
        self._model.close()
