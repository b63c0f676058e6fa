"""Hugging Face's continuous batching (`ContinuousBatchingManager`, transformers 5.17 to 5.23), behind the contract."""

import threading
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig

from lessons_lib.conformance.adapters.threaded import ThreadedEngine
from lessons_lib.conformance.contract import MODEL, STREAM, Limits, NewTokens, Params, Refused


class HuggingFaceEngine(ThreadedEngine):
    """The manager's own thread serves; another one passes its results on.

    The manager checks nothing of a request, and neither does this adapter, except that it has an id of its own.
    """

    features = frozenset({MODEL, STREAM})

    def __init__(self, model: Any, limits: Limits):
        super().__init__()
        generation = GenerationConfig(
            do_sample=False, eos_token_id=limits.eos_token_id, pad_token_id=0, max_new_tokens=64
        )
        batching = ContinuousBatchingConfig(
            page_size=32, num_blocks=max(8, -(-limits.num_blocks * limits.block_size // 32)),
            max_batch_tokens=limits.max_num_batched_tokens, max_requests_per_batch=limits.max_num_seqs,
            use_cuda_graph=False, use_async_batching=False,
        )  # fmt: skip
        model.set_attn_implementation("paged|eager")
        self.manager = model.init_continuous_batching(generation_config=generation, continuous_batching_config=batching)
        self.manager.start()
        self.num_passed_on: dict[str, int] = {}
        self.params: dict[str, Params] = {}
        self.is_closed = False
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        if params.stop_token_ids:
            raise NotImplementedError("the manager has one end token for a request")
        self.take(request_id)
        self.num_passed_on[request_id], self.params[request_id] = 0, params
        name = self.manager.add_request(
            prompt_ids, request_id=request_id, max_new_tokens=params.max_tokens, streaming=True,
            eos_token_id=-1 if params.ignore_eos else None,
        )  # fmt: skip
        if name is None:
            self.open.discard(request_id)
            raise Refused("the manager takes no requests any more.")

    def _read(self) -> None:
        while not self.is_closed:
            result = self.manager.get_result(timeout=0.05)
            if result is None:
                if not self.manager.is_running() and self.open:
                    for name in self.open & set(self.num_passed_on):
                        self.num_passed_on.pop(name)
                        self.arrived.put(NewTokens(name, [], "error"))
                continue
            name = result.request_id
            if name not in self.num_passed_on:
                continue
            new = result.generated_tokens[self.num_passed_on[name] :]
            self.num_passed_on[name] += len(new)
            reason = self._reason(result) if result.is_finished() else None
            if reason:
                self.num_passed_on.pop(name)
            self.arrived.put(NewTokens(name, list(new), reason))

    def _reason(self, result: Any) -> str:
        if result.error:
            return "error"
        params = self.params[result.request_id]
        return "length" if params.ignore_eos or result.generated_tokens[-1] != 12 else "stop"

    def stop(self, request_id: str) -> None:
        self.num_passed_on.pop(request_id, None)
        self.manager.cancel_request(request_id)

    def close(self) -> None:
        self.is_closed = True
        self.reader.join()
        self.manager.stop(block=True, timeout=5)


def make_engine(model: Any, limits: Limits, tokenizer: Any) -> HuggingFaceEngine:
    """ContinuousBatchingManager with the attention that needs no GPU."""
    return HuggingFaceEngine(model, limits)
