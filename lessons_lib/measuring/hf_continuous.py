"""Hugging Face's continuous batching, for `make bench`: the same requests through `ContinuousBatchingManager`."""

import time

from transformers import ContinuousBatchingConfig, GenerationConfig

from lessons_lib.measuring.workloads import Workload


def hugging_face_continuous(
    model, tokenizer, load: Workload, size: int, attention: str = "sdpa"
) -> tuple[float, list[list[int]]]:
    """Serve a workload greedily, after a warm-up.

    Args:
        size: maximum batch size.
        attention: "sdpa" or "paged|eager", which need no GPU.

    Returns:
        (seconds from the first request to the last answer, answers), without the start of the thread and a warm-up.
    """
    prompts = [tokenizer(prompt).input_ids for prompt in load.prompts]
    tokens = sum(len(prompt) + max_tokens for prompt, max_tokens in zip(prompts, load.max_new_tokens))
    generation = GenerationConfig(
        do_sample=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_new_tokens=max(load.max_new_tokens),
    )
    page = 32
    batching = ContinuousBatchingConfig(
        page_size=page,
        num_blocks=tokens // page + 2 * len(prompts),
        max_batch_tokens=max(256, size),
        max_requests_per_batch=size,
        use_cuda_graph=False,
        use_async_batching=False,
    )
    before = model.config._attn_implementation
    model.set_attn_implementation(attention)
    try:
        with model.continuous_batching_context_manager(
            generation_config=generation, continuous_batching_config=batching
        ) as manager:
            _answers(manager, prompts[:1], [2])
            started = time.perf_counter()
            answers = _answers(manager, prompts, load.max_new_tokens)
            return time.perf_counter() - started, answers
    finally:
        model.set_attn_implementation(before)


def _answers(manager, prompts, max_tokens_each) -> list[list[int]]:
    names = [manager.add_request(prompt, max_new_tokens=most) for prompt, most in zip(prompts, max_tokens_each)]
    done: dict[str, list[int]] = {}
    while len(done) < len(names):
        result = manager.get_result(timeout=1)
        if result and result.is_finished():
            if result.error:
                raise RuntimeError(f"request {result.request_id} failed: {result.error}")
            done[result.request_id] = result.generated_tokens
        elif not manager.is_running():
            raise RuntimeError("the continuous batching thread ended before all requests had finished.")
    return [done[name] for name in names]
