"""The interfaces of nano-vllm and vLLM, with the course's engine behind them: what their adapters call."""

from collections import deque
from types import SimpleNamespace

from lessons_lib.conformance.adapters.course import config_of
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams


class NanoSamplingParams:
    """nanovllm/sampling_params.py: greedy sampling is not permitted."""

    def __init__(self, temperature=1.0, max_tokens=64, ignore_eos=False):
        assert temperature > 1e-10, "greedy sampling is not permitted"
        self.temperature, self.max_tokens, self.ignore_eos = temperature, max_tokens, ignore_eos


class FakeNanoVllm:
    """nanovllm/engine/llm_engine.py: add_request(prompt, sampling_params), step(), is_finished(), exit()."""

    def __init__(self, model, limits, tokenizer):
        self.engine = LLMEngine(model, tokenizer, config_of(limits))
        pool = self.engine.scheduler.pool
        self.scheduler = SimpleNamespace(waiting=deque(), block_manager=SimpleNamespace(free_block_ids=pool.free_queue))

    def add_request(self, prompt, sampling_params):
        params = SamplingParams(max_tokens=sampling_params.max_tokens, ignore_eos=sampling_params.ignore_eos)
        sequence = SimpleNamespace(completion_token_ids=[], is_finished=False, ignore_eos=sampling_params.ignore_eos)

        def keep(token):
            sequence.completion_token_ids.append(token.token)
            sequence.is_finished = token.finish_reason is not None

        self.engine.add_request(prompt, params, on_token=keep)
        self.scheduler.waiting.append(sequence)

    def step(self):
        self.engine.step()
        return [], 0

    def is_finished(self):
        return not self.engine.has_unfinished()

    def exit(self):
        self.engine.close()


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
