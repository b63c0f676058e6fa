"""Judges 03.5, `blocks_in_budget`: whole blocks, of all layers, in this dtype."""

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_03.books import counted, is_tensor, is_whole, refused
from lessons_lib.kv_cache.block_memory import block_bytes, blocks_in_budget
from lessons_lib.models.configuration import cache_bytes_per_token, kv_head_size


def check_blocks_in_budget(attempt) -> None:
    # Here, because most exercises of the lesson need no torch.
    from transformers import LlamaConfig

    from lessons_lib.models.tiny_models import tiny_model

    # Layers, query heads and KV heads all differ, so that each mistake gives its own result.
    config = LlamaConfig(hidden_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, head_dim=8)
    one = block_bytes(config, 16)
    for budget in (10 * one, 10 * one + 1, 10 * one - 1, one, one - 1, 0):
        _check_one(attempt, config, 16, budget, 4)
    for size in (1, 8, 32):
        _check_one(attempt, config, size, 10 * one, 4)
    for bytes_per_element in (2, 4):
        _check_one(attempt, config, 16, 10 * one, bytes_per_element)
    for family in ("gpt2", "llama"):
        _check_one(attempt, tiny_model(family).config, 16, 1_000_000, 2)
    _check_one(attempt, config, 16, 0.9 * 100 * one, 4)
    for size, budget in ((0, one), (-1, one), (16, -1)):
        refused(
            ValueError, attempt, config, size, budget,
            doing=f"block size {size} with a budget of {counted(budget, 'byte')}",
            case=f"`blocks_in_budget(config, {size}, {budget})`.",
            idea="A block holds at least 1 token, and a budget is at least 0 bytes.",
            unchanged=lambda: None,
        )  # fmt: skip


def _check_one(attempt, config, size: int, budget, bytes_per_element: int) -> None:
    one = block_bytes(config, size, bytes_per_element)
    case = (
        f"a model with {cache_bytes_per_token(config, bytes_per_element)} cache bytes per token at bytes_per_element "
        f"{bytes_per_element}, block size {size}: {one} bytes per block; a budget of {budget} bytes."
    )
    arguments = (config, size, budget) if bytes_per_element == 4 else (config, size, budget, bytes_per_element)
    want = blocks_in_budget(config, size, budget, bytes_per_element)
    try:
        got = call(attempt, *arguments, case=case)
    except ValueError as error:
        raise Mistake(
            f"the answer should be {want}; yours raised ValueError: {str(error)[:120]}",
            case=case,
            idea="Refuse a block size below 1 and a budget below 0, nothing else. A budget may be 0, or smaller than "
            "one block: then 0 blocks fit.",
        ) from None
    if got is None:
        raise Mistake(f"the answer should be {want}; yours is None.", case=case, idea="Return the number of blocks.")
    if not is_whole(got) or is_tensor(got):
        idea = (
            "Whole blocks only: `//` rounds down. If the budget is a float, `//` gives a float too: convert it to an "
            "int."
        )
        if is_tensor(got):
            idea = "A count is a plain int: convert the result with `int(...)`."
        raise Mistake(
            f"the answer should be the int {want}; yours is {type(got).__name__} {short(got)}.", case=case, idea=idea
        )
    if int(got) != want:
        what = f"{counted(want, 'block')} fit{'s' if want == 1 else ''}; yours says {int(got)}."
        raise Mistake(what, case=case, idea=_why(attempt, int(got), want, config, size, budget, bytes_per_element))


def _why(attempt, got: int, want: int, config, size: int, budget, bytes_per_element: int) -> str:
    one = block_bytes(config, size, bytes_per_element)
    query_heads = one // kv_head_size(config)[0] * config.num_attention_heads
    recognised = (
        (block_bytes(config, 16, bytes_per_element), "That is right for blocks of 16. Use `block_size`."),
        (8 * one, "That is right for blocks of 8 times the size. Did you count bits? `bytes_per_element` is in bytes."),
        (one // size, "That is how many tokens fit. A block holds `block_size` tokens."),
        (block_bytes(config, size), "That assumes 4 bytes per element. Pass `bytes_per_element` on to `block_bytes`."),
        (one // 2, "A token has a key *and* a value, in every layer. `block_bytes` counts both."),
        (one // config.num_hidden_layers, "A block takes memory in every layer. `block_bytes` counts all of them."),
        (
            query_heads,
            "That counts the query heads. Only KV heads are cached, and this model has fewer of them.",
        ),
        *(
            (
                factor * one,
                f"That is right for blocks of {factor} times the size. `block_bytes` already counts keys and values, "
                "all layers, the tokens of the block, and the bytes per element: don't multiply by any of them again.",
            )
            for factor in (2, 4)
        ),
    )
    if 0 < budget < one:
        return f"One block takes {one} bytes, more than the budget, so not even one fits."
    if "model" in getattr(getattr(attempt, "__code__", None), "co_names", ()):
        return "Your code uses the notebook's `model`. Use the argument `config`: it can be that of any model."
    for wrong, why in recognised:
        if got == int(budget // wrong) != want:
            return why
    if got == want + 1 and 2 * (budget % one) > one:
        return (
            "`round` can go up as well as down. The last block doesn't fit completely, however close it is: round down."
        )
    if got == want + 1:
        return "The last block doesn't fit completely, and a partial block doesn't count: round down."
    if got == want - 1 and budget % one == 0:
        return f"{counted(want, 'block')} of {one} bytes take exactly {budget} bytes. The last one fits too."
    return (
        "Divide the budget by the size of one block, `block_bytes(config, block_size, bytes_per_element)`, and round "
        "down."
    )
