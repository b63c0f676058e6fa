"""Lesson 13: compile and capture everything that a GPU runner will need, so that no request waits for it."""

from collections.abc import Callable, Iterable

from lessons_lib.engine.cuda_graphs import GraphSize
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.logits_processors import LogitsRules
from lessons_lib.engine.rules_state import RulesState
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

LARGE_STEP = 4096  # tokens; from here on, `hopper_pays` for heads of any size

Step = tuple[GraphSize | None, SchedulerOutput]  # (its graph, the tokens that it computes)


def warm_up(runner: GPUModelRunner, progress: Callable[[list[Step]], Iterable[Step]] = iter) -> None:
    """Run a step of each kind, on sequences without a request. The compiler's results are in its cache on disk
    afterwards, for the next process.

    Skipped: PyTorch's own kernels that only some requests need, such as those of log-probabilities. They aren't
    compiled, but a first use loads them, which takes milliseconds.

    Args:
        progress: function (list) -> its items, such as `tqdm`, which shows how far it is. The first item is compiled,
            which takes the longest by far.
    """
    for size, scheduler_output in progress(steps_to_warm_up(runner)):
        logits = runner.forward_with(size, scheduler_output)
    drawn = SamplingParams(temperature=1.0, repetition_penalty=2.0)
    rules = LogitsRules(drawn, RulesState()).processor(Sequence("warm-up", [0], 1))
    for processor in (None, rules):
        choose_tokens(logits[:1], [drawn], [0], [0], [processor])


def steps_to_warm_up(runner: GPUModelRunner) -> list[Step]:
    """Plan a step for everything that is compiled or captured separately: each graph; and without a graph, where other
    tensors are read, a small and a large step with prompts, for each kernel of `launch_prefill`."""
    block_size, max_num_seqs = runner.cache.block_size, runner.tables.max_num_seqs or 1
    room = runner.buffers.longest

    def sequence(context: int, computed: int) -> Sequence:
        blocks = [runner.null_block] * blocks_for(context, block_size)
        return Sequence("warm-up", [0] * context, 1, num_computed_tokens=computed, blocks=blocks)

    steps: list[Step] = [
        (GraphSize(runner.sizes[-1], num_tokens), SchedulerOutput({sequence(2, 0): 2}))
        for num_tokens in reversed(runner.token_counts)
    ]
    steps += [(size, SchedulerOutput({sequence(2, 0): 2})) for size in reversed(runner.verifying)]
    num_prompts = min(max_num_seqs, -(-LARGE_STEP // room))
    length = min(room, -(-LARGE_STEP // num_prompts))
    steps += [
        (None, SchedulerOutput({sequence(length, 0): length for _ in range(num_prompts)})),
        (None, SchedulerOutput({sequence(2, 0): 2})),
    ]
    for num_seqs in reversed(runner.sizes if runner.store else []):
        decodes = {sequence(1, 0): 1 for _ in range(min(num_seqs, max_num_seqs))}
        steps.append((GraphSize(num_seqs), SchedulerOutput(decodes)))
    return steps
