"""vLLM's engine (`LLMEngine` of vLLM 0.10 to 0.26, V1) behind the contract. It needs a GPU or vLLM's CPU build."""

import tempfile
from typing import Any

from lessons_lib.conformance.contract import PREFIXES, SAMPLING, STEPS, TEXT, Limits, NewTokens, Params


class VllmEngine:
    """vLLM's LLMEngine behind the contract. What it offers beyond it, such as the number of free blocks, lives in
    another process, and isn't judged.

    Attributes:
        engine: has add_request(request_id, prompt, params), step() -> list of RequestOutput, abort_request(ids) and
            has_unfinished_requests().
        sampling_params: vLLM's SamplingParams.
        seen: request id -> (tokens, characters) that were returned.
    """

    features = frozenset({PREFIXES, SAMPLING, STEPS, TEXT})

    def __init__(self, engine: Any, sampling_params: Any):
        self.engine, self.sampling_params = engine, sampling_params
        self.seen: dict[str, tuple[int, int]] = {}

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        if request_id in self.seen:
            raise ValueError(f"request id {request_id!r} is in use.")
        asked = self.sampling_params(
            max_tokens=params.max_tokens, ignore_eos=params.ignore_eos, temperature=params.temperature,
            top_k=params.top_k, top_p=params.top_p, seed=params.seed, stop_token_ids=list(params.stop_token_ids),
        )  # fmt: skip
        self.engine.add_request(request_id, {"prompt_token_ids": list(prompt_ids)}, asked)
        self.seen[request_id] = 0, 0

    def step(self) -> list[NewTokens]:
        if not self.engine.has_unfinished_requests():
            return []
        new = []
        for output in self.engine.step():
            if output.request_id not in self.seen:
                continue  # it was aborted
            completion = output.outputs[0]  # cumulative: everything since the beginning
            num_tokens, num_characters = self.seen[output.request_id]
            tokens, text = list(completion.token_ids)[num_tokens:], completion.text[num_characters:]
            self.seen[output.request_id] = num_tokens + len(tokens), num_characters + len(text)
            if output.finished:
                del self.seen[output.request_id]
            if tokens or output.finished:
                new.append(NewTokens(output.request_id, tokens, completion.finish_reason, text))
        return new

    def abort(self, request_id: str) -> None:
        if self.seen.pop(request_id, None):
            self.engine.abort_request([request_id])

    def has_unfinished(self) -> bool:
        return bool(self.seen)

    def close(self) -> None:
        for name in list(self.seen):
            self.abort(name)


def make_engine(model: Any, limits: Limits, tokenizer: Any) -> VllmEngine:
    """vLLM loads models from folders."""
    from vllm import EngineArgs, LLMEngine, SamplingParams

    folder = tempfile.mkdtemp(prefix="conformance-")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    arguments = EngineArgs(
        model=folder, dtype="float32", enforce_eager=True, max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs, max_num_batched_tokens=limits.max_num_batched_tokens,
        block_size=limits.block_size, num_gpu_blocks_override=limits.num_blocks,
    )  # fmt: skip
    return VllmEngine(LLMEngine.from_engine_args(arguments), SamplingParams)
