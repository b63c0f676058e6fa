"""03.5, `blocks_in_budget`: whole blocks, of all layers, in this dtype."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from lessons_lib.checks.diagnosis import Known, Task, Watch, mistakes
from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_03.books import is_tensor, is_whole
from lessons_lib.kv_cache.block_memory import block_bytes
from lessons_lib.models.configuration import cache_bytes_per_token, kv_head_size

Case = tuple[str, int, float, int]  # the model, block size, budget, bytes per element


@cache
def config_of(model: str) -> Any:
    # Here, because most exercises of the lesson need no torch.
    from transformers import LlamaConfig

    from lessons_lib.models.tiny_models import tiny_model

    if model == "the notebook's":
        return LlamaConfig(hidden_size=256, num_hidden_layers=8, num_attention_heads=4)
    if model != "wide":
        return tiny_model(model).config
    # Layers, query heads and KV heads all differ, so that each mistake gives its own result.
    return LlamaConfig(hidden_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=8)


def cases() -> Iterator[Case]:
    one = block_bytes(config_of("wide"), 16)
    yield from (("wide", 16, budget, 4) for budget in (1000 * one, 1000 * one + 1, 1000 * one - 1, one, one - 1, 0))
    yield from (("wide", size, 1000 * one, 4) for size in (1, 8, 32))
    yield from (("wide", 16, 1000 * one, bytes_per_element) for bytes_per_element in (2, 1))
    yield from ((family, 16, 100_000_000, 2) for family in ("gpt2", "llama"))
    yield "wide", 16, 0.9 * 100 * one, 4
    yield from (("wide", size, budget, 4) for size, budget in ((0, one), (-1, one), (16, -1)))


def run(attempt: Any, case: Case, watch: Watch) -> None:
    model, size, budget, bytes_per_element = case
    arguments = (config_of(model), size, budget) + (() if bytes_per_element == 4 else (bytes_per_element,))
    watch(f"a block size of {size} with a budget of {budget} bytes", attempt, *arguments, returns=counted)


def counted(got: Any) -> Any:
    return int(got) if is_whole(got) and not is_tensor(got) else got


def tell(case: Case) -> str:
    model, size, budget, bytes_per_element = case
    config = config_of(model)
    per_token, one = (of(config, *each) for of, each in (
        (cache_bytes_per_token, (bytes_per_element,)), (block_bytes, (size, bytes_per_element)),
    ))  # fmt: skip
    return (
        f"a model with {per_token} cache bytes per token at bytes_per_element {bytes_per_element}, block size {size}: "
        f"{one} bytes per block; a budget of {budget} bytes."
    )


def facts(case: Case) -> dict[str, Any]:
    model, size, budget, bytes_per_element = case
    return {"one": block_bytes(config_of(model), size, bytes_per_element), "budget": budget}


def reads_the_notebooks_model(config: Any, block_size: int, budget_bytes: float, bytes_per_element: int = 4) -> int:
    if block_size < 1 or budget_bytes < 0:
        raise ValueError
    return int(budget_bytes // block_bytes(config_of("the notebook's"), block_size, bytes_per_element))


MISTAKES = """
That is how many tokens fit. A block holds `block_size` tokens.
= return int(budget_bytes // block_bytes(config, 1, bytes_per_element))
The budget is in bytes already: don't convert it.
~ budget_bytes // => budget_bytes * 2**30 //
or
~ budget_bytes // => budget_bytes // 2**20 //
It is the other way around: divide the budget by the size of a block.
= return int(block_bytes(config, block_size, bytes_per_element) // max(1, budget_bytes))
That assumes 4 bytes per element. Pass `bytes_per_element` on to `block_bytes`.
= return int(budget_bytes // block_bytes(config, block_size))
A token has a key *and* a value, in every layer. `block_bytes` counts both.
= return int(budget_bytes // (block_bytes(config, block_size, bytes_per_element) // 2))
A block takes memory in every layer. `block_bytes` counts all of them.
= return int(budget_bytes // (block_bytes(config, block_size, bytes_per_element) // config.num_hidden_layers))
That counts the query heads. Only KV heads are cached, and this model has fewer of them.
- return
+ heads = kv_head_size(config)[0]
+ one = block_bytes(config, block_size, bytes_per_element) // heads * config.num_attention_heads
+ return int(budget_bytes // one)
`block_bytes` already counts keys and values, all layers, the tokens of the block, and the bytes per element: don't
multiply by any of them again.
= return int(budget_bytes // (2 * block_bytes(config, block_size, bytes_per_element)))
or
= return int(budget_bytes // (bytes_per_element * block_bytes(config, block_size, bytes_per_element)))
or
= return int(budget_bytes // (block_size * block_bytes(config, block_size, bytes_per_element)))
or
= return int(budget_bytes // (config.num_hidden_layers * block_bytes(config, block_size, bytes_per_element)))
That is right for blocks of 16. Use `block_size`.
= return int(budget_bytes // block_bytes(config, 16, bytes_per_element))
That is right for blocks of 8 times the size. Did you count bits? `bytes_per_element` is in bytes.
= return int(budget_bytes // block_bytes(config, block_size, 8 * bytes_per_element))
`round` can go up as well as down. The last block doesn't fit completely, however close it is: round down.
= return round(budget_bytes / block_bytes(config, block_size, bytes_per_element))
The last block doesn't fit completely, and a partial block doesn't count: round down.
= return -int(-budget_bytes // block_bytes(config, block_size, bytes_per_element))
Whole blocks only: `//` rounds down.
= return budget_bytes / block_bytes(config, block_size, bytes_per_element)
If the budget is a float, `//` gives a float, too: convert it to an int.
= return budget_bytes // block_bytes(config, block_size, bytes_per_element)
A block holds at least 1 token, and a budget is at least 0 bytes: refuse anything else with ValueError.
~ if block_size < 1 or budget_bytes < 0 => if False
A block size of 0 or less is refused, too: a block holds at least 1 token.
~ if block_size < 1 or budget_bytes < 0 => if budget_bytes < 0
or
~ if block_size < 1 or budget_bytes < 0 => if block_size < 0 or budget_bytes < 0
A negative budget is a mistake of the caller: raise ValueError.
- if block_size < 1
+ budget_bytes = max(0, budget_bytes)
+ ...
A budget may be 0: then 0 blocks fit.
~ budget_bytes < 0 => budget_bytes <= 0
A block may hold one token: refuse only a block size below 1.
~ block_size < 1 => block_size <= 1
One block takes {one} bytes, more than the budget of {budget}, so not even one fits.
= return max(1, int(budget_bytes // block_bytes(config, block_size, bytes_per_element)))
The last one fits, too: a block of {one} bytes fits as long as so many are left.
= return max(0, int(budget_bytes // block_bytes(config, block_size, bytes_per_element)) - 1)
Return the number of blocks: a `return` is missing.
- return
"""

TASK = Task(
    reference="lessons_lib.kv_cache.block_memory:blocks_in_budget",
    cases=cases,
    run=run,
    tell=tell,
    known=[
        *mistakes(MISTAKES, kv_head_size=kv_head_size),
        Known(
            "Does your code use the notebook's `model`? Use the argument `config`: it can be that of any model.",
            answer=reads_the_notebooks_model,
        ),
    ],
    facts=facts,
    refusals=("ValueError",),
    about={
        "raised ValueError": "Refuse a block size below 1 and a budget below 0, nothing else. A budget may be smaller "
        "than one block: then 0 blocks fit.",
        "returned": "Divide the budget by the size of one block, `block_bytes(config, block_size, bytes_per_element)`, "
        "and round down.",
    },
)

EXERCISE = Exercise(
    id="03.5",
    title="blocks in a budget (optional)",
    reference=TASK.reference,
    test=TASK,
    hints=(
        "How many times does one whole block fit in the budget?",
        "Refuse a block size below 1 and a budget below 0. `block_bytes` returns the size of one block; pass "
        "`bytes_per_element` on to it. Divide, and round down.",
        "`int(budget_bytes // block_bytes(config, block_size, bytes_per_element))`.",
    ),
    points=1,
)
