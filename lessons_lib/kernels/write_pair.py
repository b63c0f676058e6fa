"""Lesson 13: one layer's cache write in one launch. In a small model, launching a kernel takes longer than running it.

Shapes: see simple_paged.py.
"""

import triton
import triton.language as tl

from lessons_lib.kernels.simple_paged import rows_to_write, write_kernel


@triton.jit
def write_pair_kernel(
    keys, values, k_cache, v_cache, slot_mapping, n_keys, n_values, stride_keys, stride_values, stride_k_slot,
    stride_v_slot, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lesson 07's `write_kernel` twice: program (i, 0) writes the keys of new token i, program (i, 1) its values.

    Args:
        BLOCK: a power of two, at least `n_keys` and `n_values`. The others: those of `write_kernel`, of keys and of
            values.
    """
    if tl.program_id(1) == 0:
        write_kernel(keys, k_cache, slot_mapping, n_keys, stride_keys, stride_k_slot, BLOCK)
    else:
        write_kernel(values, v_cache, slot_mapping, n_values, stride_values, stride_v_slot, BLOCK)


def write_pair(keys, values, k_cache, v_cache, slot_mapping) -> None:
    """Write a layer's new keys and values, [T, Hkv, D or V], into their cache slots, int64 [T].

    Raises:
        ValueError: see `rows_to_write`; nothing is written.
    """
    if not len(keys):
        return
    key_rows, value_rows = rows_to_write(keys, k_cache), rows_to_write(values, v_cache)
    n_keys, n_values = key_rows.shape[1], value_rows.shape[1]
    write_pair_kernel[(len(keys), 2)](
        key_rows, value_rows, k_cache, v_cache, slot_mapping, n_keys, n_values, key_rows.stride(0),
        value_rows.stride(0), k_cache.stride(1), v_cache.stride(1), BLOCK=triton.next_power_of_2(max(n_keys, n_values)),
    )  # fmt: skip
