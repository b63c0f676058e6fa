"""Judges 08.2, `decode_groups_kernel`: dense attention on ragged cases, and every key and value loaded once."""

import torch

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import (
    LIMIT_32,
    close,
    compiled_too,
    refuse_undecorated,
    refuse_wrong_tensors,
    values_text,
)
from lessons_lib.checks.lesson_08.groups_cases import (
    HEADS_FIRST,
    INTERLEAVED,
    Decodes,
    far_below_zero,
    high_maximum,
    make,
    small_parts,
)
from lessons_lib.checks.lesson_08.groups_launch import run_case, small_launch
from lessons_lib.checks.lesson_08.groups_loads import check_loads
from lessons_lib.checks.lesson_08.groups_results import check_result
from lessons_lib.checks.lesson_08.groups_stores import check_stores
from lessons_lib.kernels.paged_flash import online_softmax
from lessons_lib.measuring.ablations import with_functions
from lessons_lib.measuring.compile_check import rounded_products, tensor_core_products


def check_decode_groups_kernel(attempt) -> None:
    refuse_undecorated(attempt)
    if "online_softmax" in attempt.fn.__globals__:  # 08.1 is judged by itself
        attempt = with_functions(attempt, online_softmax=online_softmax)
    compiled_too(lambda: _check_results(attempt), attempt, small_launch(torch.float32), small_launch(torch.float16))
    _check_precision(attempt)
    _check_tensor_cores(attempt)


def _check_precision(attempt) -> None:
    """The interpreter multiplies float32 exactly; a GPU rounds the factors, unless told not to."""
    arguments, constants = small_launch(torch.float32)
    if rounded := rounded_products(attempt, *arguments, **constants):
        what = (
            f"right in the interpreter, but on a GPU {rounded} of your `tl.dot` calls would round "
            f"{'its' if rounded == 1 else 'their'} float32 factors to 10 bits after the leading one."
        )
        idea = 'Give every `tl.dot` `input_precision="ieee"`, that of the scores and that of the output.'
        raise Mistake(what, case="compiled for an NVIDIA GPU, which need not be there; float32.", idea=idea)


def _check_tensor_cores(attempt) -> None:
    """In 16 bits, the scores and the output are products on tensor cores."""
    arguments, constants = small_launch(torch.float16)
    counted = tensor_core_products(attempt, *arguments, **constants)
    if counted is None:
        return
    fast, slow = counted
    case = "compiled for an NVIDIA GPU, which need not be there; float16."
    if slow:
        what = f"right, but no tensor core computes {slow} of your `tl.dot` calls: their tiles are float32."
        idea = (
            "In 16 bits, leave queries, keys and values in the dtype in which they're loaded, and convert the weights "
            "to that of the values. The result of a `tl.dot` is float32 anyway."
        )
        raise Mistake(what, case=case, idea=idea)
    if fast < 2:
        found = "there is no `tl.dot`" if not fast else "there is only one `tl.dot`"
        what = f"right, but {found} in your kernel."
        idea = (
            "Idea 3: two products on tensor cores, one for the scores and one for the output. Products element by "
            "element, and then a sum, run on the other arithmetic units."
        )
        raise Mistake(what, case=case, idea=idea)


def _check_results(attempt) -> None:
    half = torch.float16
    for made in (
        make([1], 1, 1),
        make([1], 2, 1),
        make([1], 4, 2),
        make([15], 2, 1),
        make([16], 2, 1, block_size=8),
        make([17], 2, 1, block_size=8, seed=3),
        make([40], 1, 1, block_size=32),
        make([4, 3], 2, 1, block_size=8),
        make([3, 18], 2, 1, block_size=8),
        make([18, 3], 2, 2, block_size=4, layout=INTERLEAVED),
        make([5, 1], 6, 2, block_size=4, layout=HEADS_FIRST),
        make([2, 3], 3, 1, q_gap=2),
        make([33, 31, 32], 4, 1, block_size=16, tile=32, head_dim=64, dtype=half),
        make([50], 2, 2, block_size=12, head_dim=32, dtype=half),
        make([20], 7, 1, block_size=4, tile=64, head_dim=16),
    ):
        _check_case(attempt, made)
    for made in (far_below_zero(), high_maximum(), small_parts()):
        _check_case(attempt, made)
    _check_large_pool(attempt)


def _check_case(attempt, made: Decodes) -> None:
    recording = run_case(attempt, made)
    refuse_wrong_tensors(recording, "out", made.text)
    for program in recording.programs:
        check_stores(recording, program, made)
    for program in recording.programs:
        check_result(attempt, recording, program, made)
    for program in recording.programs:
        check_loads(recording, program, made)


def _check_large_pool(attempt) -> None:
    """A block so far back in the cache that its offset doesn't fit into 32 bits; only this block is touched."""
    size, head_dim = 16, 16
    num_blocks = LIMIT_32 // (size * head_dim) + 3
    try:
        cache = torch.empty(num_blocks, size, 1, head_dim, dtype=torch.float16)
    except RuntimeError:
        return  # not enough address space on this machine
    generator = torch.Generator().manual_seed(0)
    block = num_blocks - 1
    cache[block] = torch.randn(size, 1, head_dim, generator=generator)
    q = torch.randn(1, 2, head_dim, generator=generator).half()
    case = (
        f"a cache with {cache.numel():,} elements; the sequence is in block {block:,}, stride_block = "
        f"{cache.stride(0)}, float16."
    )
    made = Decodes(q, torch.zeros_like(q), cache, cache, [size], [[block]], 16, case, 5e-3)
    idea = (
        f"Block × stride_block is {block * cache.stride(0):,} here, and a 32-bit integer goes up to {LIMIT_32 - 1:,}. "
        "Convert the block indices to 64 bits before you multiply: `.to(tl.int64)`."
    )
    try:
        run_case(attempt, made)
    except Mistake as mistake:
        raise Mistake(mistake.what, case=case, idea=idea) from None
    got, want = made.out[0], made.want(0, 0)
    if not close(got, want, 5e-3):
        what = f"the attention should be {values_text(want)}; yours is {values_text(got)}."
        raise Mistake(what, case=case, idea=idea)
