"""The first level of the capstone and no more: one request at a time, whose tokens are all computed in each step."""

from collections import deque
from typing import Any

import torch

from lessons_lib.conformance.contract import Limits, NewTokens, Params


class SlowEngine:
    """No batch, no cache. An answer that doesn't fit ends where the context ends."""

    def __init__(self, model: Any, limits: Limits):
        self.model, self.limits = model, limits
        self.requests: deque[tuple[str, list[int], list[int], Params]] = deque()  # id, prompt, answer, parameters

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        if len(prompt_ids) >= self.limits.max_model_len:
            raise ValueError(f"the prompt has {len(prompt_ids)} tokens, which leaves no room for an answer.")
        self.requests.append((request_id, list(prompt_ids), [], params))

    @torch.inference_mode()
    def step(self) -> list[NewTokens]:
        if not self.requests:
            return []
        request_id, prompt, answer, params = self.requests[0]
        token = self.next_token(prompt, answer)
        answer.append(token)
        is_end = token in params.stop_token_ids or (token == self.limits.eos_token_id and not params.ignore_eos)
        is_full = len(answer) == params.max_tokens or len(prompt) + len(answer) == self.limits.max_model_len
        reason = "stop" if is_end else "length" if is_full else None
        if reason:
            self.requests.popleft()
        return [NewTokens(request_id, [token], reason)]

    def next_token(self, prompt: list[int], answer: list[int]) -> int:
        return int(self.model(input_ids=torch.tensor([prompt + answer])).logits[0, -1].argmax())

    def abort(self, request_id: str) -> None:
        self.requests = deque(each for each in self.requests if each[0] != request_id)

    def has_unfinished(self) -> bool:
        return bool(self.requests)


def make_engine(model: Any, limits: Limits, tokenizer: Any) -> Any:
    """A new engine that serves one request at a time. It has the model to itself."""
    return SlowEngine(model, limits)
