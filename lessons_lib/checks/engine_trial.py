"""A short run of an engine of linked parts: short of blocks, with sharing, swapping, sampling and an interrupt.

Every feature that a part is for is used, so that an answer which doesn't fit the engine is found before it serves.
"""

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from lessons_lib.checks.linking import Linked
from lessons_lib.compat.fit import fit
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import LLMEngine, Parts
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.scheduling.policies import PriorityWithAging
from lessons_lib.scheduling.scheduler import conservative
from lessons_lib.scheduling.shared_blocks import CopyOnWriteScheduler

MOST_STEPS = 1000


class Letters:
    """A tokenizer with a character for each token of the tiny models."""

    eos_token_id = 12

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(ord("!") + token) for token in token_ids)


def engine_of(
    linked: Linked, model: Any, tokenizer: Any, config: EngineConfig, clock: Callable[[], float]
) -> LLMEngine:
    """Build an engine of linked parts, with the scheduler that calls all exercises of lessons 09 to 11.

    Policy and admission rule of the config are linked, too. Without a GPU, a runner for steps that overlap compiles
    nothing, and computes again where a graph would be replayed.
    """
    policy, make_runner = config.policy, config.make_runner
    if policy and (own_policy := linked.get(type(policy))) is not type(policy):
        settings = inspect.signature(type(policy)).parameters
        policy = own_policy(**{name: getattr(policy, name) for name in settings})
    if config.overlap and not make_runner:
        options = {} if model.device.type == "cuda" else dict(compiled=False, capture=rerun)
        make_runner = linked.get(gpu_model_runner)(**options)
    config = replace(config, policy=policy, admission=linked.get(config.admission), make_runner=make_runner)
    parts = linked.get(Parts)(scheduler=linked.get(CopyOnWriteScheduler), fit=linked.get(fit))
    return linked.get(LLMEngine)(model, tokenizer, config, clock, parts)


def serve_trial(linked: Linked) -> list[Any]:
    """Serve the same requests with three configurations, and once with overlapping steps.

    Returns:
        for each configuration and request: tokens, text and finish reason of its completions.

    Raises:
        Exception: whatever goes wrong; LostBlocks if the pool and the sequences don't agree after a step.
    """
    sizes = dict(block_size=4, num_blocks=16, max_num_seqs=4, max_num_batched_tokens=10, max_model_len=45, probe=False)
    configs = (
        EngineConfig(**sizes, num_swap_blocks=8, policy=PriorityWithAging(2.0, 1.0)),
        EngineConfig(**sizes, admission=conservative),
        EngineConfig(**(sizes | {"block_size": 3}), share_prefixes=False),
    )
    return [_serve(linked, config) for config in (*configs, replace(configs[0], overlap=True))]


def _serve(linked: Linked, config: EngineConfig) -> list[Any]:
    outputs: dict[str, Any] = {}
    # An attempt may do anything to its model.
    with engine_of(linked, copy.deepcopy(_model()), Letters(), config, _ticking_clock()) as engine:
        for index, (prompt, params) in enumerate(_requests()):
            engine.add_request(prompt, params, request_id=str(index), tier=index % 3, is_interactive=index % 2 == 0)
            if index % 2:
                _step(engine, outputs)
        engine.core.is_whole = False  # as after Ctrl-C: the next call begins again from the tokens
        for _ in range(MOST_STEPS):
            if not engine.has_unfinished():
                break
            _step(engine, outputs)
        engine.reset_prefix_cache()
    return [
        [(completion.token_ids, completion.text, completion.finish_reason) for completion in outputs[name].completions]
        for name in sorted(outputs, key=int)
    ]


def _step(engine: LLMEngine, outputs: dict[str, Any]) -> None:
    for output in engine.step():
        if output.error:
            raise output.error
        outputs[output.request_id] = output
    audit(engine.scheduler)


def _ticking_clock() -> Callable[[], float]:
    """A clock that is 4 seconds later at each look."""
    ticks = iter(range(0, 10**9, 4))
    return lambda: float(next(ticks))


@cache
def _model() -> Any:
    return tiny_model("qwen2", seed=3)


def _requests() -> list[tuple[list[int], SamplingParams]]:
    words = torch.randint(0, VOCAB_SIZE, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    drawn = dict(temperature=0.9, seed=5)
    return [
        (words[:17], SamplingParams(max_tokens=12, ignore_eos=True)),
        (words[:9], SamplingParams(max_tokens=14, n=2, **drawn)),
        (words[20:21], SamplingParams(max_tokens=20, ignore_eos=True)),
        (words[:16], SamplingParams(max_tokens=10, top_k=5, **drawn)),
        (words[:8] + words[30:35], SamplingParams(max_tokens=12, top_p=0.8, **drawn)),
        (words[:16], SamplingParams(max_tokens=12, ignore_eos=True, stop=("abc", "e", "zz"))),
        (words[25:36], SamplingParams(max_tokens=16, min_p=0.05, **drawn)),
        (words[:12], SamplingParams(max_tokens=12, logit_bias={3: 2.0}, presence_penalty=0.5)),
    ]
