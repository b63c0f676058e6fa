"""nano-vllm's engine (`LLMEngine(model_folder, **sizes)`, as of version 0.2) behind the contract. It needs a GPU.

Its interface has no ids, no abort and no stream: the adapter reads tokens off the sequences in its scheduler.
"""

import tempfile
from typing import Any

from lessons_lib.conformance.contract import BLOCKS, STEPS, Limits, NewTokens, Params


class NanoVllmEngine:
    """nano-vllm's LLMEngine behind the contract.

    Attributes:
        engine: has add_request(prompt, sampling_params), step(), is_finished(), and a scheduler with `waiting`,
            `running` and a `block_manager`.
        sampling_params: its SamplingParams(temperature, max_tokens, ignore_eos).
        sequences: request id -> (its sequence, how many of its tokens were returned).
    """

    features = frozenset({BLOCKS, STEPS})

    def __init__(self, engine: Any, sampling_params: Any, end_token: int):
        self.engine, self.sampling_params, self.end_token = engine, sampling_params, end_token
        self.sequences: dict[str, tuple[Any, int]] = {}

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        if params.stop_token_ids:
            raise NotImplementedError("nano-vllm has no stop tokens but the end token")
        # Its sampler divides by the temperature and refuses 0.
        temperature = params.temperature or 1e-5
        asked = self.sampling_params(
            temperature=temperature, max_tokens=params.max_tokens, ignore_eos=params.ignore_eos
        )
        self.engine.add_request(list(prompt_ids), asked)
        self.sequences[request_id] = self.engine.scheduler.waiting[-1], 0

    def step(self) -> list[NewTokens]:
        if self.engine.is_finished():
            return []
        self.engine.step()
        new = []
        for name, (sequence, seen) in list(self.sequences.items()):
            tokens = list(sequence.completion_token_ids[seen:])
            self.sequences[name] = sequence, seen + len(tokens)
            reason = self._reason(sequence) if sequence.is_finished else None
            if reason:
                del self.sequences[name]
            if tokens or reason:
                new.append(NewTokens(name, tokens, reason))
        return new

    def _reason(self, sequence: Any) -> str:
        is_end = sequence.completion_token_ids[-1] == self.end_token and not sequence.ignore_eos
        return "stop" if is_end else "length"

    def abort(self, request_id: str) -> None:
        """Its engine has none."""
        if request_id in self.sequences:
            raise NotImplementedError("nano-vllm can't abort a request")

    def has_unfinished(self) -> bool:
        return bool(self.sequences)

    def num_free_blocks(self) -> int:
        return len(self.engine.scheduler.block_manager.free_block_ids)

    def close(self) -> None:
        self.engine.exit()


def make_engine(model: Any, limits: Limits, tokenizer: Any) -> NanoVllmEngine:
    """nano-vllm loads models from folders. It knows Qwen3 only, so give it such a model."""
    from nanovllm import LLM, SamplingParams

    folder = tempfile.mkdtemp(prefix="conformance-")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    engine = LLM(
        folder, enforce_eager=True, max_num_seqs=limits.max_num_seqs, max_model_len=limits.max_model_len,
        max_num_batched_tokens=limits.max_num_batched_tokens, kvcache_block_size=limits.block_size,
        num_kvcache_blocks=limits.num_blocks,
    )  # fmt: skip
    return NanoVllmEngine(engine, SamplingParams, limits.eos_token_id)
