"""Right answers to the exercises of lesson 04, written differently from the reference."""

import math

import torch
import torch.nn.functional as F

from lessons_lib.attention.masks import PADDING, Tags, block_diagonal_mask, tag_tokens

# 04.1 block_diagonal_mask


def mask_by_loops(queries, keys):
    mask = torch.zeros(len(queries.seq_ids), len(keys.seq_ids), dtype=torch.bool)
    for q, (sequence, position) in enumerate(zip(queries.seq_ids.tolist(), queries.positions.tolist())):
        for k, (other, earlier) in enumerate(zip(keys.seq_ids.tolist(), keys.positions.tolist())):
            mask[q, k] = sequence == other != PADDING and earlier <= position
    return mask


def mask_that_checks_the_query(queries, keys):
    real = queries.seq_ids.unsqueeze(1) >= 0
    difference = queries.positions.unsqueeze(1) - keys.positions.unsqueeze(0)
    return real.logical_and(torch.eq(queries.seq_ids.unsqueeze(1), keys.seq_ids.unsqueeze(0))).logical_and(
        difference >= 0
    )


# 04.2 packed_logits


def packed_with_an_additive_mask(model, sequences, mask=block_diagonal_mask):
    lengths = [len(sequence) for sequence in sequences]
    tags = tag_tokens(lengths)
    added = torch.zeros(len(tags), len(tags)).masked_fill(~mask(tags, tags), torch.finfo(torch.float32).min)
    row = torch.tensor([[token for sequence in sequences for token in sequence]])
    with torch.inference_mode():
        logits = model(row, position_ids=tags.positions[None], attention_mask=added[None, None]).logits[0]
    bounds = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    return tuple(logits[start:end] for start, end in zip(bounds, bounds[1:]))


def packed_by_concatenation(model, sequences, mask=block_diagonal_mask):
    row = torch.cat([torch.tensor(sequence) for sequence in sequences]).unsqueeze(0)
    positions = torch.cat([torch.arange(len(sequence)) for sequence in sequences]).unsqueeze(0)
    seq_ids = torch.cat([torch.full((len(sequence),), i) for i, sequence in enumerate(sequences)])
    tags = Tags(seq_ids, positions[0])
    with torch.no_grad():
        output = model(
            row, attention_mask=mask(tags, tags).view(1, 1, row.shape[1], row.shape[1]), position_ids=positions
        )
    return [output.logits[0, seq_ids == i] for i in range(len(sequences))]


# 04.3 varlen_attention


def varlen_by_offsets(q, k, v, query_lens, seq_lens):
    out = torch.empty_like(q)
    for i, (n, s) in enumerate(zip(query_lens, seq_lens)):
        a, b = sum(query_lens[:i]), sum(seq_lens[:i])
        for head in range(len(q)):
            for j in range(n):
                seen = s - n + j + 1
                weights = (k[head, b : b + seen] @ q[head, a + j] / math.sqrt(q.shape[2])).softmax(0)
                out[head, a + j] = weights @ v[head, b : b + seen]
    return out


def varlen_by_sdpa(q, k, v, query_lens, seq_lens):
    out = torch.zeros_like(q)
    at = start = 0
    for n, s in zip(query_lens, seq_lens):
        if n:
            may = torch.ones(n, s, dtype=torch.bool).tril(s - n)
            own = (x[:, start : start + s] for x in (k, v))
            out[:, at : at + n] = F.scaled_dot_product_attention(q[:, at : at + n], *own, attn_mask=may)
        at, start = at + n, start + s
    return out


WRONG = {}
RIGHT = {
    "04.1": [mask_by_loops, mask_that_checks_the_query],
    "04.2": [packed_with_an_additive_mask, packed_by_concatenation],
    "04.3": [varlen_by_offsets, varlen_by_sdpa],
}
