"""Launches an answer to 08.2, and explains the errors that this raises."""

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import run
from lessons_lib.checks.lesson_08.groups_cases import SCALE, Decodes
from lessons_lib.kernels.paged_flash import LOG2_E

NOWHERE = -(10**6)  # the block table's entries past the blocks in use


def run_case(attempt, made: Decodes):
    width = max(map(len, made.tables)) + 1
    tables = torch.tensor([table + [NOWHERE] * (width - len(table)) for table in made.tables], dtype=torch.int32)
    lens = torch.tensor(made.contexts, dtype=torch.int32)
    try:
        return run(
            attempt, (made.k_cache.shape[2], len(made.contexts)), made.q, made.k_cache, made.v_cache, tables, lens,
            made.out, SCALE * LOG2_E.value, *made.q.stride()[:2], *made.k_cache.stride()[:3], tables.stride(0),
            GROUP=made.group, BLOCK_M=16, HEAD_DIM=made.q.shape[2], BLOCK_SIZE=made.k_cache.shape[1], BLOCK_N=made.tile,
            case=made.text, explain=lambda error: _out_of_bounds(error, made),
        )  # fmt: skip
    except AssertionError as error:
        if idea := _why_dot(str(error)):
            what = f"Triton refuses your code: {type(error).__name__}: {str(error)[:160]}"
            raise Mistake(what, case=made.text, idea=idea) from None
        raise


def small_launch(dtype) -> tuple[tuple, dict]:
    q, cache = torch.zeros(2, 6, 16, dtype=dtype), torch.zeros(4, 8, 2, 16, dtype=dtype)
    tables, lens = torch.zeros(2, 2, dtype=torch.int32), torch.ones(2, dtype=torch.int32)
    arguments = (q, cache, cache, tables, lens, q, SCALE, *q.stride()[:2], *cache.stride()[:3], tables.stride(0))
    return arguments, dict(GROUP=3, BLOCK_M=16, HEAD_DIM=16, BLOCK_SIZE=8, BLOCK_N=16)


def _why_dot(message: str) -> str:
    if "same dtype" in message:
        return (
            "Both factors of `tl.dot` need the same dtype. Queries and keys have it as they are loaded: a 16-bit tile "
            "times a scalar argument such as `scale` is float32, so multiply the scores instead. The weights are "
            "float32; convert them to the dtype of the values: `weights.to(values.dtype)`."
        )
    if "shape" in message or "dimensions" in message:
        return (
            "`tl.dot` multiplies [rows, inner] by [inner, columns]. Scores: queries [BLOCK_M, HEAD_DIM] × keys "
            "[HEAD_DIM, BLOCK_N]; output: weights [BLOCK_M, BLOCK_N] × values [BLOCK_N, HEAD_DIM]. `tl.trans` swaps "
            "the axes of a tile. And are the four tiles of `online_softmax` taken in its order?"
        )
    return ""


def _out_of_bounds(error, made: Decodes) -> str:
    kv_head, seq = error.ids
    if error.tensor == "block_tables":
        return (
            "Row i of block_tables starts at i × stride_table. Position p is in its entry p // BLOCK_SIZE; a tile may "
            "reach past the last token, so this load needs a mask too."
        )
    if error.tensor == "context_lens":
        return "context_lens has one entry per sequence. Axis 0 of the grid counts KV heads, axis 1 sequences."
    if error.tensor in ("q", "out"):
        return (
            f"Axis 0 of the grid counts KV heads, axis 1 sequences. Program ({kv_head}, {seq}) has the query heads "
            f"KV head × GROUP + row. The tile has BLOCK_M rows, and only GROUP = {made.group} of them are "
            "heads: mask the rest."
        )
    if error.number < 0 or error.number > abs(NOWHERE) // 2:
        return (
            "That comes from an entry of the block table that is not in use. Look up blocks only for positions below "
            "the context length, with `other=0`; and each sequence has its own row and length."
        )
    return (
        "A key is at block × stride_block + slot × stride_slot + KV head × stride_head. Position p is in the block of "
        "table entry p // BLOCK_SIZE, in slot p % BLOCK_SIZE. Does every position of the tile look up its own block, "
        "and its own slot?"
    )
