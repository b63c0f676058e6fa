"""Right answers to the exercises of lesson 04, written differently from the reference, and wrong ones as changes of it."""

import math

import torch
import torch.nn.functional as F

from answers import Wrong
from lessons_lib.attention.masks import PADDING, Tags, block_diagonal_mask, tag_tokens
from lessons_lib.checks.diagnosis.mistakes import patched
from lessons_lib.checks.registry import get_exercise

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
    row = torch.cat([torch.tensor(sequence, dtype=torch.int32) for sequence in sequences]).unsqueeze(0)
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


CHANGED = {
    "04.1": {
        "= return is_own & is_past": "The padding rule forbids it",
        "= return is_token & is_own": "The causal rule forbids it",
        "= return is_token & is_past": "The sequence rule forbids it",
        "~ keys.positions <= queries => keys.positions < queries": "It's the query's own token",
        "= is_own = keys.seq_ids.byte() == queries.seq_ids.byte()[:, None]": "X and Y have the ids 256",
        "= is_own = keys.seq_ids + keys.positions // 1000 == (queries.seq_ids + queries.positions // 1000)[:, None]": (
            "can be large"
        ),
        "= return (is_token & is_own & is_past)[None, None]": "A row for each query",
        "~ queries.positions[:, None] => queries.positions": "all pairs",
        "= return (is_token & is_own & is_past).float()": "A mask is bool",
        "- return\n+ keys.positions.zero_()\n+ ...": "without writing to them",
    },
    "04.2": {
        "- position_ids=\n+ position_ids=None,": "Token 1 of the row is token 0 of its sequence",
        "- position_ids=\n+ position_ids=tags.positions[None] + 1,": "Token 0 of the row is token 0",
        "- attention_mask=\n+ attention_mask=None,": "Token 1 of the row must not attend to token 0",
        "~ mask(tags, tags)[None, None] => (mask(tags, tags) & block_diagonal_mask(tags, tags))[None, None]": "may attend to token 1",
        "~ mask(tags, tags)[None, None] => ~mask(tags, tags)[None, None]": "It is inverted",
        "~ mask(tags, tags)[None, None] => mask(tags, tags).T[None, None]": "last two axes are swapped",
        "~ mask(tags, tags)[None, None] => mask(tags, tags)[None, None].float()": "a float mask is added",
        "~ mask(tags, tags)[None, None] => block_diagonal_mask(tags, tags)[None, None]": "only its default",
        "- attention_mask=\n+ attention_mask=torch.ones(1, len(row)),": "The mask has four axes",
        "- return\n+ return list(torch.split(logits.softmax(-1), lengths))": "None stands for logits",
        "- return\n+ return [logits[: len(each)] for each in sequences]": "should be [[0], [1]]; yours is [[0], [0]]",
        "- logits:\n+ model.train()\n+ ...": "The caller goes on using the model",
        "- lengths = ... return\n+ return [model(torch.tensor([each])).logits[0] for each in sequences]": "passes should be 1",
        "- lengths =\n+ sequences = sorted(sequences, key=len)[::-1]\n+ ...": "in the order of the list",
    },
    "04.3": {
        "~ > position => > seq_len": "Yours sees keys 0 to 2. Hide later keys",
        '~ float("-inf") => -100.0': "Yours sees key 2. Hide later keys",
        "~ own_k.mT / q.shape[-1] ** 0.5 => own_k.mT": "a softmax of 1.000 · q · k",
        "~ / q.shape[-1] ** 0.5 => / 4.0": "It should be 0.354 · q · k",
        "~ .softmax(dim=-1) => .softmax(dim=-2)": "weights add up to",
        "~ .softmax(dim=-1) => .exp()": "weights add up to",
        "~ .softmax(dim=-1) => .softmax(dim=-1) * 0": "it sees no key",
        "~ @ own_v) => @ own_k)": "is no weighted sum",
        "~ (k, seq_lens), => (k, query_lens),": "n keys",
        "~ own_q @ own_k.mT => own_q @ own_k.mT * (own_k.mT.isfinite() / 0)[..., :1, :]": "NaN comes from",
        "~ (k, seq_lens), => (k.roll(1, 1), seq_lens),": "a softmax of",
        "- outputs.append\n+ own_v = v[:, :seq_len]\n+ ...": "keys begin where those of the previous one end",
        "- return\n+ return torch.cat(outputs, dim=1).transpose(0, 1)": "join the outputs",
        "- return\n+ return torch.cat(outputs, dim=1).float()": "has the dtype of q",
        '~ float("-inf") => -1e9': "The largest float16",
    },
}
WRONG = {
    id: [Wrong(patch, patched(get_exercise(id).load_reference(), patch, {}), says) for patch, says in changes.items()]
    for id, changes in CHANGED.items()
}
RIGHT = {
    "04.1": [mask_by_loops, mask_that_checks_the_query],
    "04.2": [packed_with_an_additive_mask, packed_by_concatenation],
    "04.3": [varlen_by_offsets, varlen_by_sdpa],
}
