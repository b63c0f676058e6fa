"""Lesson 12: engine/rules_state.py's `apply_rules` in one kernel: each logit is read once, and every rule of its row is
applied to it on the way.

What a rule costs is therefore bytes: 4 for a token's count, 4 for its bias, and a bit of the mask, next to 2 of the
logit that is read and 4 of the result.
"""

import torch
import triton
import triton.language as tl

TILE, NUM_WARPS = 4096, 8
NUM_SETTINGS = tl.constexpr(6)
NEVER = tl.constexpr(float("-inf"))


@triton.jit
def rules_kernel(logits, table, numbers, counts, biases, masks, out, vocabulary, stride, words, TILE: tl.constexpr):
    """out[row] = the logits of that row after its rules. Program (i, j) computes tile j of row i.

    Args:
        logits: pointer to [N, vocabulary], any floating-point dtype.
        table: pointer to int64 [N, 6], see `rules_table` in engine/rules_state.py.
        numbers: pointer to the same memory, as float64.
        counts: pointer to int32 [slots, vocabulary]. biases: pointer to float32 [slots, vocabulary].
        masks: pointer to int32 [masks, words].
        out: pointer to float32 [N, vocabulary].
        stride: elements from the start of one row of logits to the start of the next.
        TILE: logits of a program, a power of two.
    """
    row = tl.program_id(0).to(tl.int64)
    ids = tl.program_id(1) * TILE + tl.arange(0, TILE)
    is_token = ids < vocabulary
    settings = table + row * NUM_SETTINGS
    count_slot, bias_slot, mask = tl.load(settings), tl.load(settings + 1), tl.load(settings + 2)
    own = tl.load(logits + row * stride + ids, mask=is_token, other=0.0).to(tl.float32)
    if bias_slot >= 0:
        own += tl.load(biases + bias_slot * vocabulary + ids, mask=is_token, other=0.0)
    if count_slot >= 0:
        penalties = numbers + row * NUM_SETTINGS + 3
        repetition = tl.load(penalties).to(tl.float32)
        presence, frequency = tl.load(penalties + 1).to(tl.float32), tl.load(penalties + 2).to(tl.float32)
        seen = tl.load(counts + count_slot * vocabulary + ids, mask=is_token, other=0)
        times = seen >> 1
        divided = tl.div_rn(own, tl.zeros_like(own) + repetition)  # `/` rounds differently on each device
        own = tl.where(seen > 0, tl.where(own > 0, divided, own * repetition), own)
        own = tl.where(times > 0, own - (presence + frequency * times.to(tl.float32)), own)
    if mask >= 0:
        bits = tl.load(masks + mask * words + ids // 32, mask=is_token, other=0)
        own = tl.where((bits >> (ids % 32)) & 1 == 1, own, NEVER)
    tl.store(out + row * vocabulary + ids, own, mask=is_token)


def apply_rules(
    logits: torch.Tensor, table: torch.Tensor, counts: torch.Tensor, biases: torch.Tensor, masks: torch.Tensor
) -> torch.Tensor:
    """Run `engine.rules_state.apply_rules` as a kernel, asynchronously."""
    if logits.stride(-1) != 1:
        logits = logits.contiguous()
    (num_seqs, vocabulary), words = logits.shape, masks.shape[1]
    out = logits.new_empty(num_seqs, vocabulary, dtype=torch.float32)
    # Without fused multiply-adds: results are those of a CPU, bit by bit.
    rules_kernel[(num_seqs, triton.cdiv(vocabulary, TILE))](
        logits, table, table.view(torch.float64), counts, biases, masks, out, vocabulary, logits.stride(0), words,
        TILE=TILE, num_warps=NUM_WARPS, enable_fp_fusion=False,
    )  # fmt: skip
    return out
