"""The engine of lessons 12 and 13, behind the contract."""

from collections.abc import Iterator
from typing import Any

from lessons_lib.conformance.contract import PREFIXES, SAMPLING, TEXT, Limits, NewTokens, Params
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kv_cache.block_pool import OutOfBlocks, blocks_for


class CourseEngine:
    """An LLMEngine behind the contract. `new`: what the requests have got since the last `step` returned."""

    also = (PREFIXES, SAMPLING, TEXT)

    def __init__(self, engine: LLMEngine):
        self.engine = engine
        self.new: list[NewTokens] = []

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params | SamplingParams) -> None:
        try:
            self.engine.add_request(
                prompt_ids, sampling_params(params), request_id=request_id, on_token=self._keep,
            )  # fmt: skip
        except OutOfBlocks as error:
            raise ValueError(str(error)) from error

    def _keep(self, token: Any) -> None:
        # Of a request that fails with a step in flight, the last token says "error", and `step` says it, too.
        reason = None if token.finish_reason == "error" else token.finish_reason
        self.new.append(NewTokens(token.request_id, [token.token], reason, token.text))

    def step(self) -> list[NewTokens]:
        for output in self.engine.step():
            if output.finish_reason in ("abort", "error") or output.error:
                self.new.append(NewTokens(output.request_id, [], "error" if output.error else "abort"))
        new, self.new = self.new, []
        return new

    def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)
        self.new = [event for event in self.new if event.request_id != request_id]

    def has_unfinished(self) -> bool:
        return self.engine.has_unfinished() or bool(self.new)

    def stream(self, request_id: str, prompt_ids: list[int], params: Params | SamplingParams) -> Iterator[int]:
        """Tokens of other requests stay in `new` for the next `step`."""
        tokens = self.engine.stream(prompt_ids, sampling_params(params), request_id=request_id)
        return (token.token for token in tokens)

    def num_free_blocks(self) -> int:
        return len(self.engine.scheduler.pool.free_queue)

    def block_tables(self) -> dict[str, list[int]]:
        return {
            group.id: list(each.blocks)
            for group in self.engine.requests.values()
            for each in group.completions
            if each.blocks
        }

    def close(self) -> None:
        self.engine.close()


def sampling_params(params: Params | SamplingParams) -> SamplingParams:
    if isinstance(params, SamplingParams):
        return params
    return SamplingParams(
        max_tokens=params.max_tokens, ignore_eos=params.ignore_eos, temperature=params.temperature, top_k=params.top_k,
        top_p=params.top_p, seed=params.seed, stop_token_ids=params.stop_token_ids,
    )  # fmt: skip


def config_of(limits: Limits, **more: Any) -> EngineConfig:
    # A step must have room for a token of each sequence.
    slots = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    # An EngineConfig refuses a pool that can't hold one sequence of max_model_len; without it, requests are refused.
    fits = blocks_for(limits.max_model_len - 1, limits.block_size) <= limits.num_blocks
    return EngineConfig(
        max_num_seqs=slots, max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len if fits else None,
        block_size=limits.block_size, num_blocks=limits.num_blocks, probe=False, **more,
    )  # fmt: skip


def make_engine(model: Any, limits: Limits, tokenizer: Any) -> CourseEngine:
    """Each step waits for its tokens."""
    return CourseEngine(LLMEngine(model, tokenizer, config_of(limits)))


def make_overlapped_engine(model: Any, limits: Limits, tokenizer: Any) -> CourseEngine:
    """Each step is launched before the tokens of the last one are there."""
    make_runner = gpu_model_runner(compiled=False, capture=rerun)
    return CourseEngine(LLMEngine(model, tokenizer, config_of(limits, overlap=True, make_runner=make_runner)))
