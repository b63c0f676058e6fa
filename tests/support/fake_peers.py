"""The interface of vLLM, with the course's engine behind it: what its adapter calls."""

from types import SimpleNamespace

from lessons_lib.conformance.adapters.course import config_of
from lessons_lib.engine.llm_engine import LLMEngine


class FakeVllm:
    """vllm/v1/engine/llm_engine.py: RequestOutputs are cumulative."""

    def __init__(self, model, limits, tokenizer):
        self.engine = LLMEngine(model, tokenizer, config_of(limits))
        self.outputs = {}
        self.changed = {}

    def add_request(self, request_id, prompt, params):
        completion = SimpleNamespace(token_ids=[], text="", finish_reason=None)
        output = SimpleNamespace(request_id=request_id, outputs=[completion], finished=False)

        def keep(token):
            completion.token_ids.append(token.token)
            completion.text += token.text
            completion.finish_reason = token.finish_reason
            output.finished = token.finish_reason is not None
            self.changed[request_id] = output

        try:
            self.engine.add_request(prompt["prompt_token_ids"], params, request_id=request_id, on_token=keep)
        except RuntimeError as error:
            raise ValueError(str(error)) from error

    def step(self):
        self.engine.step()
        changed, self.changed = self.changed, {}
        return list(changed.values())

    def abort_request(self, request_ids):
        for name in request_ids:
            self.engine.abort(name)
            self.changed.pop(name, None)

    def has_unfinished_requests(self):
        return self.engine.has_unfinished()
