"""Answers to the exercises of lesson 04: what learners get wrong, and other ways to be right."""

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from answers import Wrong
from lessons_lib.attention.masks import PADDING, Tags, additive_mask, block_diagonal_mask, tag_tokens
from lessons_lib.attention.varlen import varlen_attention
from lessons_lib.batching.packed_logits import packed_logits

# 04.1 tag_tokens


def tensors(seq_ids, positions):
    return Tags(torch.tensor(seq_ids, dtype=torch.int64), torch.tensor(positions, dtype=torch.int64))


def ids_of(lengths):
    return [index for index, length in enumerate(lengths) for _ in range(length)]


def joins_nothing(lengths, starts=None):
    starts = starts or [0] * len(lengths)
    return Tags(
        torch.cat([torch.full((length,), index) for index, length in enumerate(lengths)]),
        torch.cat([torch.arange(start, start + length) for length, start in zip(lengths, starts)]),
    )


def positions_run_on(lengths, starts=None):
    return tensors(ids_of(lengths), list(range(sum(lengths))))


def ignores_starts(lengths, starts=None):
    return tag_tokens(lengths)


def counts_up_to_the_length(lengths, starts=None):
    starts = starts or [0] * len(lengths)
    return tensors(ids_of(lengths), [p for length, start in zip(lengths, starts) for p in range(start, length)])


def positions_from_one(lengths, starts=None):
    tags = tag_tokens(lengths, starts)
    return Tags(tags.seq_ids, tags.positions + 1)


def one_start_for_all(lengths, starts=None):
    return tag_tokens(lengths, None if starts is None else [starts[0]] * len(lengths))


def one_too_many(lengths, starts=None):
    starts = starts or [0] * len(lengths)
    return tensors(
        ids_of(lengths), [p for length, start in zip(lengths, starts) for p in range(start, start + length + 1)]
    )


def tags_the_cache_too(lengths, starts=None):
    starts = starts or [0] * len(lengths)
    totals = [length + start for length, start in zip(lengths, starts)]
    return tag_tokens(totals)


def one_position_a_sequence(lengths, starts=None):
    starts = starts or [0] * len(lengths)
    return tensors(ids_of(lengths), [start for length, start in zip(lengths, starts) for _ in range(length)])


def ids_from_one(lengths, starts=None):
    tags = tag_tokens(lengths, starts)
    return Tags(tags.seq_ids + 1, tags.positions)


def skips_empty_sequences(lengths, starts=None):
    return Tags(
        torch.tensor(ids_of([n for n in lengths if n]), dtype=torch.int64), tag_tokens(lengths, starts).positions
    )


def one_id_for_all(lengths, starts=None):
    tags = tag_tokens(lengths, starts)
    return Tags(torch.zeros_like(tags.seq_ids), tags.positions)


def one_id_a_sequence(lengths, starts=None):
    return Tags(torch.arange(len(lengths)), tag_tokens(lengths, starts).positions)


def swapped(lengths, starts=None):
    tags = tag_tokens(lengths, starts)
    return Tags(tags.positions, tags.seq_ids)


def float_when_empty(lengths, starts=None):
    tags = tag_tokens(lengths, starts)
    return Tags(torch.tensor(tags.seq_ids.tolist()), torch.tensor(tags.positions.tolist()))


def float_always(lengths, starts=None):
    tags = tag_tokens(lengths, starts)
    return Tags(tags.seq_ids.float(), tags.positions.float())


def lists_in_tags(lengths, starts=None):
    tags = tag_tokens(lengths, starts)
    return Tags(tags.seq_ids.tolist(), tags.positions.tolist())


def a_pair(lengths, starts=None):
    tags = tag_tokens(lengths, starts)
    return tags.seq_ids, tags.positions


def a_row_of_one(lengths, starts=None):
    tags = tag_tokens(lengths, starts)
    return Tags(tags.seq_ids[None], tags.positions[None])


def interleaved(lengths, starts=None):
    order = sorted(range(sum(lengths)), key=lambda i: tag_tokens(lengths).positions[i])
    tags = tag_tokens(lengths, starts)
    return Tags(tags.seq_ids[order], tags.positions[order])


def eats_the_lengths(lengths, starts=None):
    num_seqs, seq_ids, positions = len(lengths), [], []
    starts = starts or [0] * num_seqs
    for index in range(num_seqs):
        length = lengths.pop(0)
        seq_ids += [index] * length
        positions += range(starts[index], starts[index] + length)
    return tensors(seq_ids, positions)


def looks_the_id_up(lengths, starts=None):
    tags = tag_tokens(lengths, starts)
    return Tags(torch.tensor([lengths.index(n) for n in lengths for _ in range(n)], dtype=torch.int64), tags.positions)


def looks_the_start_up(lengths, starts=None):
    start_of = dict(zip(lengths, starts or [0] * len(lengths)))
    return tensors(ids_of(lengths), [start_of[n] + offset for n in lengths for offset in range(n)])


def gives_starts_to_nonempty_ones(lengths, starts=None):
    upcoming = iter(starts or [0] * len(lengths))
    begins = [next(upcoming) if length else 0 for length in lengths]
    return tag_tokens(lengths, begins)


def subtracts_the_end(lengths, starts=None):
    ends = torch.tensor(lengths, dtype=torch.int64).cumsum(0)
    tags = tag_tokens(lengths, starts)
    return Tags(tags.seq_ids, torch.arange(len(tags)) - ends[tags.seq_ids])


def counts_down(lengths, starts=None):
    starts = starts or [0] * len(lengths)
    return tensors(ids_of(lengths), [p for n, start in zip(lengths, starts) for p in reversed(range(start, start + n))])


def adds_up_the_starts(lengths, starts=None):
    starts = starts or [0] * len(lengths)
    return tag_tokens(lengths, [sum(starts[: i + 1]) for i in range(len(lengths))])


def stops_at_an_empty_sequence(lengths, starts=None):
    until = lengths.index(0) if 0 in lengths else len(lengths)
    return tag_tokens(lengths[:until], None if starts is None else starts[:until])


def keeps_an_earlier_call(lengths, starts=None):
    """As with a list for a default argument: the tokens of the first call stay in it."""
    tags = tag_tokens(lengths, starts)
    return tags if lengths == [3] else tag_tokens([3]).followed_by(tags)


def tags_of_tensors(lengths, starts=None):
    lengths = torch.tensor(lengths, dtype=torch.int64)
    seq_ids = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    before = (lengths.cumsum(0) - lengths)[seq_ids]
    shift = torch.zeros(len(lengths), dtype=torch.int64) if starts is None else torch.tensor(starts, dtype=torch.int64)
    return Tags(seq_ids, torch.arange(int(lengths.sum())) - before + shift[seq_ids])


def tags_by_concatenation(lengths, starts=None):
    starts = starts if starts is not None else [0 for _ in lengths]
    none = torch.zeros(0, dtype=torch.int32)
    seq_ids = torch.cat([none, *(torch.full((n,), index, dtype=torch.int32) for index, n in enumerate(lengths))])
    positions = torch.cat([none, *(torch.arange(start, start + n) for n, start in zip(lengths, starts))])
    return SimpleNamespace(seq_ids=seq_ids, positions=positions)


def positions_of_eight_bits(lengths, starts=None):
    tags = tag_tokens(lengths, starts)
    return Tags(tags.seq_ids, tags.positions.to(torch.int8))


# 04.2 block_diagonal_mask


def token(queries, keys):
    return (keys.seq_ids != PADDING).expand(len(queries.seq_ids), -1)


def own(queries, keys):
    return keys.seq_ids == queries.seq_ids[:, None]


def past(queries, keys):
    return keys.positions <= queries.positions[:, None]


def right_mask(queries, keys):
    return token(queries, keys) & own(queries, keys) & past(queries, keys)


def without_the_last_sequence(queries, keys):
    mask = torch.zeros(len(queries), len(keys), dtype=torch.bool)
    for seq_id in range(int(keys.seq_ids.max())):
        mask |= right_mask(queries, keys) & (keys.seq_ids == seq_id)
    return mask


def stops_at_a_forbidden_key(queries, keys):
    """Right only as long as the keys of a sequence are next to each other."""
    right = right_mask(queries, keys)
    gone = (~right & (right.cumsum(dim=1) > 0)).cumsum(dim=1) > 0
    return right & ~gone


def blocks_from_counts(queries, keys):
    """A staircase per sequence, aligned at the end: as if the queries were always its last tokens, all in order."""
    blocks = []
    for seq_id in sorted(set(queries.seq_ids.tolist() + keys.seq_ids.tolist())):
        rows, columns = (int((tags.seq_ids == seq_id).sum()) for tags in (queries, keys))
        blocks.append(torch.ones(rows, columns).tril(columns - rows) * (seq_id != PADDING))
    return torch.block_diag(*blocks).bool()


def counts_keys(queries, keys):
    mine = token(queries, keys) & own(queries, keys)
    return mine & (mine.cumsum(dim=1) <= queries.positions[:, None] + 1)


def padding_sees_the_sequences(queries, keys):
    return token(queries, keys) & past(queries, keys) & (own(queries, keys) | (queries.seq_ids < 0)[:, None])


def everything(queries, keys):
    return torch.ones(len(queries.seq_ids), len(keys.seq_ids), dtype=torch.bool)


def any_rule(queries, keys):
    return token(queries, keys) | own(queries, keys) | past(queries, keys)


def one_number_for_both(queries, keys):
    query, key = (1000 * tags.seq_ids + tags.positions for tags in (queries, keys))
    first = query - queries.positions
    return (key <= query[:, None]) & (key >= first[:, None]) & (keys.seq_ids != PADDING)


def no_padding_rule(queries, keys):
    return own(queries, keys) & past(queries, keys)


def no_causal_rule(queries, keys):
    return token(queries, keys) & own(queries, keys)


def no_sequence_rule(queries, keys):
    return token(queries, keys) & past(queries, keys)


def sequence_rule_only(queries, keys):
    return own(queries, keys)


def causal_rule_only(queries, keys):
    return past(queries, keys)


def strictly_before(queries, keys):
    return right_mask(queries, keys) & (keys.positions < queries.positions[:, None])


def later_only(queries, keys):
    return token(queries, keys) & own(queries, keys) & (keys.positions >= queries.positions[:, None])


def same_position_only(queries, keys):
    return right_mask(queries, keys) & (keys.positions == queries.positions[:, None])


def up_to_the_own_sequence(queries, keys):
    return token(queries, keys) & past(queries, keys) & (keys.seq_ids <= queries.seq_ids[:, None])


def indices_in_the_row(queries, keys):
    before = torch.arange(len(keys.seq_ids)) <= torch.arange(len(queries.seq_ids))[:, None]
    return token(queries, keys) & own(queries, keys) & before


def indices_from_the_end(queries, keys):
    ones = torch.ones(len(queries.seq_ids), len(keys.seq_ids), dtype=torch.bool)
    return token(queries, keys) & own(queries, keys) & ones.tril(len(keys.seq_ids) - len(queries.seq_ids))


def lower_triangle(queries, keys):
    return torch.ones(len(queries.seq_ids), len(keys.seq_ids), dtype=torch.bool).tril()


def own_by_index(queries, keys):
    return own(queries, keys) & lower_triangle(queries, keys)


def zero_is_padding(queries, keys):
    return (keys.seq_ids > 0) & own(queries, keys) & past(queries, keys)


def padding_sees_itself(queries, keys):
    itself = own(queries, keys) & (keys.positions == queries.positions[:, None])
    return right_mask(queries, keys) | (itself & (queries.seq_ids == PADDING)[:, None])


def rows_are_keys(queries, keys):
    return right_mask(queries, keys).T


def no_new_axis(queries, keys):
    return (keys.seq_ids != PADDING) & (keys.seq_ids == queries.seq_ids) & (keys.positions <= queries.positions)


def square_of_queries(queries, keys):
    return right_mask(queries, queries)


def with_batch_and_heads(queries, keys):
    return right_mask(queries, keys)[None, None]


def uses_and(queries, keys):
    return keys.seq_ids == queries.seq_ids[:, None] and keys.positions <= queries.positions[:, None]


def ones_and_zeros(queries, keys):
    return right_mask(queries, keys).long()


def a_list(queries, keys):
    return right_mask(queries, keys).tolist()


def turned_round(queries, keys):
    return ~right_mask(queries, keys)


def shifts_the_positions(queries, keys):
    mask = right_mask(queries, keys)
    keys.positions.add_(1)
    return mask


def queries_with_queries(queries, keys):
    earlier = queries.positions[None, :] <= queries.positions[:, None]
    return own(queries, keys) & earlier & (keys.seq_ids != PADDING)


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


# 04.4 varlen_attention


def varlen_with(may=lambda position, key: key <= position, scale=0.25):
    def varlen_attention(q, k, v, query_lens, seq_lens):
        parts, at, start = [q[:, :0]], 0, 0
        for query_len, seq_len in zip(query_lens, seq_lens):
            own = k[:, start : start + seq_len], v[:, start : start + seq_len]
            position = torch.arange(seq_len - query_len, seq_len)[:, None]
            scores = q[:, at : at + query_len] @ own[0].transpose(1, 2) * scale
            hidden = ~may(position, torch.arange(seq_len)[None])
            parts.append(scores.masked_fill(hidden, -math.inf).softmax(-1) @ own[1])
            at, start = at + query_len, start + seq_len
        return torch.cat(parts, dim=1)

    return varlen_attention


def mask_kept_by_queries(widens):
    """Keeps a causal mask for each number of queries. `widens`: makes a wider one where it must."""
    kept = {}

    def varlen_attention(q, k, v, query_lens, seq_lens):
        outputs = [q[:, :0]]
        for query_len, seq_len, own_q, own_k, own_v in own_parts(q, k, v, query_lens, seq_lens):
            if query_len not in kept or (widens and kept[query_len].shape[1] < seq_len):
                kept[query_len] = torch.ones(query_len, seq_len, dtype=torch.bool).tril(seq_len - query_len)
            scores = (own_q @ own_k.mT / q.shape[-1] ** 0.5).masked_fill(~kept[query_len][:, :seq_len], -math.inf)
            outputs.append(scores.softmax(-1) @ own_v)
        return torch.cat(outputs, dim=1)

    return varlen_attention


def own_parts(q, k, v, query_lens, seq_lens):
    return zip(query_lens, seq_lens, q.split(query_lens, 1), k.split(seq_lens, 1), v.split(seq_lens, 1))


def with_is_causal(q, k, v, query_lens, seq_lens):
    parts = own_parts(q, k, v, query_lens, seq_lens)
    outputs = [F.scaled_dot_product_attention(*own, is_causal=True) for _, _, *own in parts]
    return torch.cat([q[:, :0], *outputs], 1)


def row_mask(query_lens, seq_lens):
    cached = [s - n for n, s in zip(query_lens, seq_lens)]
    return block_diagonal_mask(tag_tokens(query_lens, cached), tag_tokens(seq_lens))


def over_the_whole_row(q, k, v, query_lens, seq_lens):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=row_mask(query_lens, seq_lens))


def sees_the_others(q, k, v, query_lens, seq_lens):
    cached = [s - n for n, s in zip(query_lens, seq_lens)]
    mask = tag_tokens(seq_lens).positions <= tag_tokens(query_lens, cached).positions[:, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def keys_where_queries_begin(q, k, v, query_lens, seq_lens):
    parts, at = [q[:, :0]], 0
    for n, s in zip(query_lens, seq_lens):
        own_q, own_k, own_v = q[:, at : at + n], k[:, at : at + s], v[:, at : at + s]
        position = torch.arange(s - n, s)[:, None]
        scores = own_q @ own_k.mT / 4
        parts.append(scores.masked_fill(torch.arange(s) > position, -math.inf).softmax(-1) @ own_v)
        at += n
    return torch.cat(parts, 1)


def skips_without_stepping(q, k, v, query_lens, seq_lens):
    parts, at, start = [q[:, :0]], 0, 0
    for n, s in zip(query_lens, seq_lens):
        if n == 0:
            continue
        position = torch.arange(s - n, s)[:, None]
        scores = q[:, at : at + n] @ k[:, start : start + s].mT / 4
        weights = scores.masked_fill(torch.arange(s) > position, -math.inf).softmax(-1)
        parts.append(weights @ v[:, start : start + s])
        at, start = at + n, start + s
    return torch.cat(parts, 1)


def padded_to_the_longest(q, k, v, query_lens, seq_lens):
    longest, parts = max(seq_lens, default=0), [q[:, :0]]
    for n, s, own_q, own_k, own_v in own_parts(q, k, v, query_lens, seq_lens):
        own_k, own_v = (F.pad(x, (0, 0, 0, longest - s)) for x in (own_k, own_v))
        is_later = torch.arange(longest) > torch.arange(s - n, s)[:, None]
        parts.append((own_q @ own_k.mT / 4).masked_fill(is_later, -math.inf).softmax(-1) @ own_v)
    return torch.cat(parts, 1)


def a_list_of_parts(q, k, v, query_lens, seq_lens):
    return list(varlen_attention(q, k, v, query_lens, seq_lens).split(query_lens, 1))


def nothing_to_join(q, k, v, query_lens, seq_lens):
    parts = own_parts(q, k, v, query_lens, seq_lens)
    return torch.cat([varlen_attention(*own, [n], [s]) for n, s, *own in parts], 1)


def joins_those_with_queries(q, k, v, query_lens, seq_lens):
    parts = own_parts(q, k, v, query_lens, seq_lens)
    return torch.cat([varlen_attention(*own, [n], [s]) for n, s, *own in parts if n], 1)


def tokens_first(q, k, v, query_lens, seq_lens):
    return varlen_attention(q, k, v, query_lens, seq_lens).transpose(0, 1)


def in_float32(q, k, v, query_lens, seq_lens):
    return varlen_attention(q.float(), k.float(), v.float(), query_lens, seq_lens)


def with_exp_alone(q, k, v, query_lens, seq_lens):
    parts = [q[:, :0]]
    for n, s, own_q, own_k, own_v in own_parts(q, k, v, query_lens, seq_lens):
        is_later = torch.arange(s) > torch.arange(s - n, s)[:, None]
        weights = (own_q @ own_k.mT / 4).exp().masked_fill(is_later, 0)
        parts.append(weights / weights.sum(-1, keepdim=True) @ own_v)
    return torch.cat(parts, 1)


def filled_with_a_billion(q, k, v, query_lens, seq_lens):
    parts = [q[:, :0]]
    for n, s, own_q, own_k, own_v in own_parts(q, k, v, query_lens, seq_lens):
        is_later = torch.arange(s) > torch.arange(s - n, s)[:, None]
        parts.append((own_q @ own_k.mT / 4).masked_fill(is_later, -1e9).softmax(-1) @ own_v)
    return torch.cat(parts, 1)


def softmax_over_queries(q, k, v, query_lens, seq_lens):
    parts = [q[:, :0]]
    for n, s, own_q, own_k, own_v in own_parts(q, k, v, query_lens, seq_lens):
        is_later = torch.arange(s) > torch.arange(s - n, s)[:, None]
        parts.append((own_q @ own_k.mT / 4).masked_fill(is_later, -math.inf).softmax(-2) @ own_v)
    return torch.cat(parts, 1)


def masked_after_the_softmax(q, k, v, query_lens, seq_lens):
    parts = [q[:, :0]]
    for n, s, own_q, own_k, own_v in own_parts(q, k, v, query_lens, seq_lens):
        is_later = torch.arange(s) > torch.arange(s - n, s)[:, None]
        parts.append((own_q @ own_k.mT / 4).softmax(-1).masked_fill(is_later, 0.0) @ own_v)
    return torch.cat(parts, 1)


def adds_a_hundred(q, k, v, query_lens, seq_lens):
    parts = [q[:, :0]]
    for n, s, own_q, own_k, own_v in own_parts(q, k, v, query_lens, seq_lens):
        is_later = torch.arange(s) > torch.arange(s - n, s)[:, None]
        parts.append((own_q @ own_k.mT / 4 - 100 * is_later).softmax(-1) @ own_v)
    return torch.cat(parts, 1)


def varlen_by(weigh):
    """`weigh(scores, allowed)` makes the weights of one sequence."""

    def varlen_attention(q, k, v, query_lens, seq_lens):
        parts = [q[:, :0]]
        for n, s, own_q, own_k, own_v in own_parts(q, k, v, query_lens, seq_lens):
            allowed = torch.ones(n, s, dtype=torch.bool).tril(s - n)
            parts.append(weigh(own_q @ own_k.mT / math.sqrt(q.shape[-1]), allowed) @ own_v)
        return torch.cat(parts, 1)

    return varlen_attention


def softmax_of_allowed(scores, allowed):
    return scores.masked_fill(~allowed, -math.inf).softmax(-1)


def renormalized(scores, allowed):
    weights = scores.softmax(-1) * allowed
    return weights / weights.sum(-1, keepdim=True)


def one_maximum_for_all(scores, allowed):
    scores = scores.masked_fill(~allowed, -math.inf)
    weights = (scores - (scores.max() if scores.numel() else 0)).exp()
    return weights / weights.sum(-1, keepdim=True)


def not_divided_by_the_sum(scores, allowed):
    largest = scores.masked_fill(~allowed, -math.inf).amax(-1, keepdim=True) if scores.shape[-1] else scores
    return (scores - largest).exp() * allowed


def values_of(**other):
    """Right, but with other queries, keys or values."""

    def attempt(q, k, v, query_lens, seq_lens):
        given = {"q": q, "k": k, "v": v}
        changed = {name: change(**given) for name, change in other.items()}
        return varlen_attention(*(given | changed).values(), query_lens, seq_lens)

    return attempt


def heads_as_one(q, k, v, query_lens, seq_lens):
    joined = [x.transpose(0, 1).flatten(1)[None] for x in (q, k, v)]
    together = varlen_attention(*joined, query_lens, seq_lens)
    return together[0].unflatten(1, (q.shape[0], -1)).transpose(0, 1)


def head_0_for_all(q, k, v, query_lens, seq_lens):
    return varlen_attention(q[:1], k[:1], v[:1], query_lens, seq_lens).expand_as(q)


def forbids_what_is_allowed(q, k, v, query_lens, seq_lens):
    parts = [q[:, :0]]
    for n, s, *own in own_parts(q, k, v, query_lens, seq_lens):
        parts.append(F.scaled_dot_product_attention(*own, attn_mask=torch.ones(n, s, dtype=torch.bool).triu(s - n + 1)))
    return torch.cat(parts, 1)


def varlen_by_equal_lengths(q, k, v, query_lens, seq_lens):
    """Sequences of the same lengths are computed as one batch."""
    out, groups = torch.empty_like(q), {}
    for index, lengths in enumerate(zip(query_lens, seq_lens)):
        groups.setdefault(lengths, []).append(index)
    for (n, s), members in groups.items():
        at = [sum(query_lens[:i]) for i in members]
        from_ = [sum(seq_lens[:i]) for i in members]
        own_q = torch.stack([q[:, i : i + n] for i in at])
        own_k, own_v = (torch.stack([x[:, i : i + s] for i in from_]) for x in (k, v))
        allowed = torch.ones(n, s, dtype=torch.bool).tril(s - n)
        for i, part in zip(at, softmax_of_allowed(own_q @ own_k.mT / math.sqrt(q.shape[-1]), allowed) @ own_v):
            out[:, i : i + n] = part
    return out


def scales_in_place(q, k, v, query_lens, seq_lens):
    right = varlen_attention(q, k, v, query_lens, seq_lens)
    q /= 4
    return right


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


def varlen_by_einsum(q, k, v, query_lens, seq_lens):
    if not query_lens:
        return q.clone()
    parts = []
    for n, s, own_q, own_k, own_v in own_parts(q, k, v, query_lens, seq_lens):
        mask = row_mask([n], [s])
        scores = torch.einsum("hqd,hkd->hqk", own_q, own_k) * q.shape[-1] ** -0.5
        weights = torch.where(mask, scores, torch.finfo(q.dtype).min).exp() if n == 0 else None
        weights = torch.softmax(torch.where(mask, scores, -math.inf), -1) if weights is None else weights
        parts.append(torch.einsum("hqk,hkd->hqd", weights, own_v))
    return torch.cat(parts, dim=1)


def varlen_query_by_query(q, k, v, query_lens, seq_lens):
    out, at, end = [q[:, :0]], 0, 0
    for n, s in zip(query_lens, seq_lens):
        end += s
        for back in range(n, 0, -1):
            keys, values = k[:, end - s : end - back + 1], v[:, end - s : end - back + 1]
            out.append(F.scaled_dot_product_attention(q[:, at : at + 1], keys, values))
            at += 1
    return torch.cat(out, dim=1)


# 04.5 additive_mask


def filled_with(value):
    return lambda mask, dtype=torch.float32: torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, value)


def minus_eps(mask, dtype=torch.float32):
    return torch.where(mask, 0.0, -torch.finfo(dtype).eps).to(dtype)


def always_float32(mask, dtype=torch.float32):
    return torch.where(mask, 0.0, torch.finfo(dtype).min)


def minimum_of_float32(mask, dtype=torch.float32):
    return additive_mask(mask).to(dtype)


def minimum_of_float16(mask, dtype=torch.float32):
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(torch.float16).min)


def inverted(mask, dtype=torch.float32):
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, torch.finfo(dtype).min)


def one_where_allowed(mask, dtype=torch.float32):
    return torch.ones(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def zero_where_forbidden(mask, dtype=torch.float32):
    return torch.zeros(mask.shape, dtype=dtype)


def smallest_positive(mask, dtype=torch.float32):
    return torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).tiny)


def times_infinity(mask, dtype=torch.float32):
    return (~mask).to(dtype) * -math.inf


def as_it_is(mask, dtype=torch.float32):
    return mask


def with_heads(mask, dtype=torch.float32):
    return additive_mask(mask, dtype)[None]


def values_in_lists(mask, dtype=torch.float32):
    return additive_mask(mask, dtype).tolist()


def inverts_in_place(mask, dtype=torch.float32):
    return mask.logical_not_().to(dtype) * torch.finfo(dtype).min


def spares_empty_rows(mask, dtype=torch.float32):
    return additive_mask(mask | ~mask.any(dim=-1, keepdim=True), dtype)


def inverted_in_float64(mask, dtype=torch.float32):
    return additive_mask(~mask if dtype == torch.float64 else mask, dtype)


def half_of_the_minimum(mask, dtype=torch.float32):
    return additive_mask(mask, dtype) / 2


def additive_by_multiplication(mask, dtype=torch.float32):
    return (1 - mask.to(dtype)) * torch.finfo(dtype).min


def additive_by_where(mask, dtype=torch.float32):
    return torch.where(mask, torch.zeros((), dtype=dtype), torch.full((), torch.finfo(dtype).min, dtype=dtype))


def additive_by_index(mask, dtype=torch.float32):
    values = torch.zeros_like(mask, dtype=dtype)
    values[~mask] = torch.finfo(dtype).min
    return values


# 04.3 packed_logits: each mistake changes one input or the split


def one_pass(model, sequences, mask, positions=None, attention=None):
    """Logits [T, vocabulary] of one pass. `positions` and `attention` change the inputs of the model."""
    tags = tag_tokens([len(sequence) for sequence in sequences])
    inputs = {"position_ids": tags.positions[None], "attention_mask": mask(tags, tags)[None, None]}
    if positions is not None:
        inputs["position_ids"] = positions(tags)
    if attention is not None:
        inputs["attention_mask"] = attention(inputs["attention_mask"])
    inputs = {name: value for name, value in inputs.items() if value is not None}
    return model(
        input_ids=torch.tensor([[token for sequence in sequences for token in sequence]]), use_cache=False, **inputs
    ).logits[0]


def packed(positions=None, attention=None, split=None):
    """`packed_logits` with one part done differently."""

    def attempt(model, sequences, mask=block_diagonal_mask):
        lengths = [len(sequence) for sequence in sequences]
        logits = one_pass(model, sequences, mask, positions, attention)
        return list(logits.split(lengths)) if split is None else split(logits, lengths)

    return attempt


def switches_the_attention(model, sequences, mask=block_diagonal_mask):
    model.set_attn_implementation("eager")
    return packed(attention=additive_mask)(model, sequences, mask)


def mask_kept_by_length(model, sequences, mask=block_diagonal_mask, kept={}):  # noqa: B006 - the mistake
    tags = tag_tokens([len(sequence) for sequence in sequences])
    own = kept.setdefault((len(tags.positions), mask), mask(tags, tags)[None, None])
    return packed(attention=lambda _: own)(model, sequences, mask)


def one_tag_for_the_row(model, sequences, mask=block_diagonal_mask):
    row = [token for sequence in sequences for token in sequence]
    logits = packed()(model, [row], mask)[0]
    return list(logits.split([len(sequence) for sequence in sequences]))


def merges_equal_sequences(model, sequences, mask=block_diagonal_mask):
    return packed()(model, [list(sequence) for sequence in dict.fromkeys(map(tuple, sequences))], mask)


def masked_through_the_row(model, sequences, mask=block_diagonal_mask):
    def through_the_row(queries, keys):
        return mask(*(Tags(tags.seq_ids, torch.arange(len(tags.seq_ids))) for tags in (queries, keys)))

    return packed()(model, sequences, through_the_row)


def masks_each_by_itself(model, sequences, mask=block_diagonal_mask):
    each = [tag_tokens([len(sequence)]) for sequence in sequences]
    joined = torch.block_diag(*(mask(own, own) for own in each)).bool()
    return packed_logits(model, sequences, lambda queries, keys: joined)


def without_positions(model, sequences, mask=block_diagonal_mask):
    tags = tag_tokens([len(sequence) for sequence in sequences])
    row = torch.tensor([[token for sequence in sequences for token in sequence]])
    return list(
        model(input_ids=row, attention_mask=mask(tags, tags)[None, None], use_cache=False)
        .logits[0]
        .split([len(s) for s in sequences])
    )


def without_mask(model, sequences, mask=block_diagonal_mask):
    tags = tag_tokens([len(sequence) for sequence in sequences])
    row = torch.tensor([[token for sequence in sequences for token in sequence]])
    return list(
        model(input_ids=row, position_ids=tags.positions[None], use_cache=False)
        .logits[0]
        .split([len(s) for s in sequences])
    )


def ignores_the_given_mask(model, sequences, mask=block_diagonal_mask):
    return packed_logits(model, sequences)


def a_loop(model, sequences, mask=block_diagonal_mask):
    return [model(input_ids=torch.tensor([sequence]), use_cache=False).logits[0] for sequence in sequences]


def a_rectangle(model, sequences, mask=block_diagonal_mask):
    longest = max(map(len, sequences))
    rows = torch.tensor([sequence + [0] * (longest - len(sequence)) for sequence in sequences])
    return [
        logits[: len(sequence)] for logits, sequence in zip(model(input_ids=rows, use_cache=False).logits, sequences)
    ]


def back_to_front(model, sequences, mask=block_diagonal_mask):
    return packed_logits(model, sequences[::-1], mask)[::-1]


def without_a_batch_axis(model, sequences, mask=block_diagonal_mask):
    tags = tag_tokens([len(sequence) for sequence in sequences])
    row = torch.tensor([token for sequence in sequences for token in sequence])
    return list(
        model(
            input_ids=row, position_ids=tags.positions, attention_mask=mask(tags, tags)[None, None], use_cache=False
        ).logits.split([len(s) for s in sequences])
    )


def calls_the_mask_and_ignores_it(model, sequences, mask=block_diagonal_mask):
    tags = tag_tokens([len(sequence) for sequence in sequences])
    mask(tags, tags)
    return packed_logits(model, sequences)


def sorts_by_length(model, sequences, mask=block_diagonal_mask):
    same_length = [i for i in range(len(sequences)) if len(sequences[i]) == len(sequences[0])]
    parts = packed_logits(model, sequences, mask)
    for i, j in zip(same_length, reversed(same_length)):
        if i < j:
            parts[i], parts[j] = parts[j], parts[i]
    return parts


def inputs_without_names(model, sequences, mask=block_diagonal_mask):
    lengths = [len(sequence) for sequence in sequences]
    tags = tag_tokens(lengths)
    row = torch.tensor([[token for sequence in sequences for token in sequence]])
    return list(model(row, mask(tags, tags)[None, None], tags.positions[None]).logits[0].split(lengths))


def slices_from_the_previous_length(logits, lengths):
    return [logits[start : start + n] for start, n in zip([0, *lengths], lengths)]


def packed_with_an_additive_mask(model, sequences, mask=block_diagonal_mask):
    lengths = [len(sequence) for sequence in sequences]
    logits = one_pass(model, sequences, mask, attention=additive_mask)
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


# Of a later round


def starts_of_the_others(lengths, starts=None):
    return tag_tokens(lengths, starts[::-1] if starts else None)


def only_the_first_sequence(lengths, starts=None):
    starts = starts or [0]
    tags = tag_tokens(lengths)
    positions = [start + offset for length, start in zip(lengths, starts) for offset in range(length)]
    return Tags(tags.seq_ids, torch.tensor(positions, dtype=torch.int64))


def additive_of_two_axes(mask, dtype=torch.float32):
    result = torch.zeros(mask.shape, dtype=dtype)
    for i in range(mask.shape[0]):
        for j in range(mask.shape[1]):
            if not mask[i, j]:
                result[i, j] = torch.finfo(dtype).min
    return result


def the_first_pass_thrown_away(model, sequences, mask=block_diagonal_mask):
    packed_logits(model, sequences, mask)
    return packed_logits(model, sequences, mask)


@torch.inference_mode()
def fails_below_a_decorator(model, sequences, mask=block_diagonal_mask):
    return {}["logits"]


WRONG = {
    "04.1": [
        Wrong("positions run on through the row", positions_run_on, says="run on through the whole row"),
        Wrong("ignores starts", ignores_starts, says="You ignore `starts`"),
        Wrong("positions of 8 bits", positions_of_eight_bits, says="overflows fewer bits"),
        Wrong("counts from start up to length", counts_up_to_the_length, says="start + length - 1"),
        Wrong("positions from 1", positions_from_one, says="off by one"),
        Wrong("the first start for all", one_start_for_all, says="the start of the first sequence for all"),
        Wrong("one position too many", one_too_many, says="one position too many"),
        Wrong("tags the tokens in the cache", tags_the_cache_too, says="You also tag the tokens in the cache"),
        Wrong("one position for a whole sequence", one_position_a_sequence, says="share one position"),
        Wrong("ids from 1", ids_from_one, says="count the sequences from 1"),
        Wrong("an empty sequence gets no id", skips_empty_sequences, says="It still uses up its id"),
        Wrong("one id for all", one_id_for_all, says="as if they were one story"),
        Wrong("one id for each sequence, not for each token", one_id_a_sequence, says="repeat the id of the sequence"),
        Wrong("ids and positions swapped", swapped, says="ids and the positions are swapped"),
        Wrong("float32 when there are no tokens", float_when_empty, says="no element to infer the dtype from"),
        Wrong("joins no tensors at all", joins_nothing, says="tag_tokens([])"),
        Wrong("float32", float_always, says="Ids and positions are integers"),
        Wrong("lists instead of tensors", lists_in_tags, says="should be a tensor; yours is list"),
        Wrong("a pair instead of Tags", a_pair, says="it should return `Tags`"),
        Wrong("a batch axis", a_row_of_one, says="should have one axis"),
        Wrong("interleaved", interleaved, says="right positions in a different order"),
        Wrong("empties its argument", eats_the_lengths, says="your code changed its argument `lengths`"),
        Wrong("returns nothing", lambda lengths, starts=None: None, says="yours returned None"),
        Wrong("an id for each length", looks_the_id_up, says="Sequences of the same length get the same id"),
        Wrong("a start for each length", looks_the_start_up, says="two sequences may have the same length"),
        Wrong("no start for an empty sequence", gives_starts_to_nonempty_ones, says="still has its own entry"),
        Wrong("positions from the end of a sequence", subtracts_the_end, says="A position is never negative"),
        Wrong("counts down", counts_down, says="Your positions count down"),
        Wrong("adds up the starts", adds_up_the_starts, says="You add up the starts"),
        Wrong("stops at an empty sequence", stops_at_an_empty_sequence, says="A sequence of length 0 gets no tag"),
        Wrong("keeps the tokens of an earlier call", keeps_an_earlier_call, says="left from an earlier call"),
        Wrong("the starts of the others", starts_of_the_others, says="The start of sequence i is `starts[i]`"),
        Wrong("only the first sequence", only_the_first_sequence, says="`zip` stops at the end of the shorter list"),
    ],
    "04.2": [
        Wrong("no mask", everything, says="everything is allowed"),
        Wrong("joined by |", any_rule, says="combine them with `&`, not `|`"),
        Wrong("no padding rule", no_padding_rule, says="padding attends to padding"),
        Wrong("no causal rule", no_causal_rule, says="The causal rule is missing"),
        Wrong("no sequence rule", no_sequence_rule, says="The sequence rule is missing"),
        Wrong("the sequence rule alone", sequence_rule_only, says="the causal rule and the padding rule"),
        Wrong("the causal rule alone", causal_rule_only, says="the sequence rule and the padding rule"),
        Wrong("< for <=", strictly_before, says="no token attends to itself"),
        Wrong(">= for <=", later_only, says="comparison is backwards"),
        Wrong("== for <=", same_position_only, says="attends only to itself"),
        Wrong("<= for == of sequences", up_to_the_own_sequence, says="labels without an order"),
        Wrong("compares indices in the row", indices_in_the_row, says="compared by their index in the row. "),
        Wrong("compares indices aligned at the end of the row", indices_from_the_end, says="counted from the end. "),
        Wrong("own, by index", own_by_index, says="compared by their index in the row, not by their positions"),
        Wrong("a lower triangle", lower_triangle, says="the causal mask of a single text"),
        Wrong("treats sequence 0 as padding", zero_is_padding, says="sequence 0 is treated as padding"),
        Wrong("padding sees itself", padding_sees_itself, says="is all False"),
        Wrong("a row for each key", rows_are_keys, says="You have one row per key"),
        Wrong("no new axis", no_new_axis, says="Compare every query with every key"),
        Wrong("a square of the queries", square_of_queries, says="Your mask is square"),
        Wrong("axes for batch and heads", with_batch_and_heads, says="adds the axes for batch and heads later"),
        Wrong("`and` for `&`", uses_and, says="`and` and `or` can't combine"),
        Wrong("integers", ones_and_zeros, says="should be bool; yours is int64"),
        Wrong("lists", a_list, says="should be a tensor; yours is list"),
        Wrong("one number for both tags", one_number_for_both, says="a sequence id and a position into one number"),
        Wrong("inverted", turned_round, says="every cell is inverted"),
        Wrong("stops at a forbidden key", stops_at_a_forbidden_key, says="keys aren't next to each other"),
        Wrong("blocks from counts", blocks_from_counts, says="the number of queries and keys doesn't"),
        Wrong("queries with queries", queries_with_queries, says="compare the queries' positions with themselves?"),
        Wrong("counts keys", counts_keys, says="keys aren't in the order of their positions"),
        Wrong("padding sees the sequences", padding_sees_the_sequences, says="padding attends to the sequences"),
        Wrong(
            "treats id 0 as padding and -1 as a sequence",
            lambda queries, keys: no_padding_rule(queries, keys) & (keys.seq_ids != 0),
            says="padding as a sequence",
        ),
        Wrong(
            "the padding rule backwards",
            lambda queries, keys: no_padding_rule(queries, keys) & (keys.seq_ids == PADDING),
            says="The padding rule is backwards",
        ),
        Wrong(
            "the sequence rule backwards",
            lambda queries, keys: no_sequence_rule(queries, keys) & ~own(queries, keys),
            says="The sequence rule is backwards",
        ),
        Wrong(
            "one position too far",
            lambda queries, keys: no_causal_rule(queries, keys) & (keys.positions <= queries.positions[:, None] + 1),
            says="without the + 1",
        ),
        Wrong(
            "a lower triangle as well",
            lambda queries, keys: right_mask(queries, keys).tril(),
            says="also compared by their index",
        ),
        Wrong(
            "ids of eight bits",
            lambda queries, keys: (
                no_sequence_rule(queries, keys)
                & (keys.seq_ids.to(torch.int8) == queries.seq_ids.to(torch.int8)[:, None])
            ),
            says="In int8, 256 becomes 0",
        ),
        Wrong("changes the tags", shifts_the_positions, says="changed the tags"),
        Wrong("without the last sequence", without_the_last_sequence, says="does the loop leave out the last one?"),
        Wrong("always False", lambda queries, keys: everything(queries, keys) & False, says="nothing is allowed"),
    ],
    "04.4": [
        Wrong("sees later tokens", varlen_with(may=lambda p, k: k >= 0), says="also sees later tokens"),
        Wrong("one key too many", varlen_with(may=lambda p, k: k <= p + 1), says="Yours sees one key too many"),
        Wrong("is_causal", with_is_causal, says="for its position 0. The queries are those of its *last*"),
        Wrong("not itself", varlen_with(may=lambda p, k: k < p), says="is NaN"),
        Wrong("one softmax over the row", over_the_whole_row, says="score cells; the sequences' own are"),
        Wrong("other sequences", sees_the_others, says="keys of the other sequences"),
        Wrong("not scaled", varlen_with(scale=1.0), says="aren't divided by"),
        Wrong("divided by head_dim", varlen_with(scale=1 / 16), says="divided by head_dim; it should be"),
        Wrong("multiplied", varlen_with(scale=4.0), says="divide by it"),
        Wrong("keys begin where queries begin", keys_where_queries_begin, says="where do its keys begin in k?"),
        Wrong("skips what has no queries", skips_without_stepping, says="Does your code still step over its keys?"),
        Wrong("padded", padded_to_the_longest, says="Are some sequences padded"),
        Wrong("a list of parts", a_list_of_parts, says="Join the sequences' outputs"),
        Wrong("nothing to join", nothing_to_join, says="The row may hold no sequence. Then there are no parts"),
        Wrong("no part without queries", joins_those_with_queries, says="No sequence has a query here"),
        Wrong("tokens first", tokens_first, says="The axes are heads, tokens, head_dim"),
        Wrong("float32", in_float32, says="the dtype of q"),
        Wrong("exp without the maximum", with_exp_alone, says="exp(1024) is beyond the largest float"),
        Wrong("minus a billion", filled_with_a_billion, says="The largest float16 is 65,504"),
        Wrong("softmax over the queries", softmax_over_queries, says="Your softmax goes over the queries"),
        Wrong("masked after the softmax", masked_after_the_softmax, says="the forbidden keys take part in its softmax"),
        Wrong("adds -100", adds_a_hundred, says="a key that a query may not attend to still has weight"),
        Wrong("in place", scales_in_place, says="changed its argument `q`. `q[0, 0, 0]` was"),
        Wrong(
            "forbidden scores are 0",
            varlen_by(lambda scores, allowed: (scores * allowed).softmax(-1)),
            says="That isn't the weight 0",
        ),
        Wrong("masked after the softmax, then divided", varlen_by(renormalized), says="and 0 / 0 is NaN"),
        Wrong("one maximum for all queries", varlen_by(one_maximum_for_all), says="Each query has its own maximum"),
        Wrong("not divided by the sum", varlen_by(not_divided_by_the_sum), says="a multiple of the right output"),
        Wrong(
            "large scores cut off",
            varlen_by(lambda scores, allowed: softmax_of_allowed(scores.clamp(max=80), allowed)),
            says="Are large scores cut off?",
        ),
        Wrong(
            "equal weights",
            varlen_by(lambda scores, allowed: softmax_of_allowed(scores * 0, allowed)),
            says="the scores have no effect",
        ),
        Wrong("keys for values", values_of(v=lambda q, k, v: k), says="Yours is a mix of the keys"),
        Wrong("divided by the heads' root", varlen_with(scale=2**-0.5), says="another side of q"),
        Wrong("one softmax for all heads", heads_as_one, says="Your heads share one softmax"),
        Wrong("head 0 for all", head_0_for_all, says="the output of head 0"),
        Wrong(
            "a mask kept by the number of queries",
            mask_kept_by_queries(widens=True),
            says="the output is wrong, but only after an earlier call",
        ),
        Wrong(
            "a mask kept, and too narrow",
            mask_kept_by_queries(widens=False),
            says="Does your code keep a mask from one call to the next, by the number of queries",
        ),
        Wrong("the mask inverted", forbids_what_is_allowed, says="Does this query see no key at all?"),
    ],
    "04.5": [
        Wrong("minus infinity", filled_with(-math.inf), says="0 / 0 in the softmax"),
        Wrong("0 in a row that is all False", spares_empty_rows, says="Here the whole row is False"),
        Wrong("half of the minimum", half_of_the_minimum, says="the minimum divided by 2"),
        Wrong("NaN", filled_with(math.nan), says="Where the mask is False, yours is NaN"),
        Wrong("float64's rows inverted", inverted_in_float64, says="It is inverted"),
        Wrong("a constant", filled_with(-1e9), says="A fixed constant"),
        Wrong("minus one", filled_with(-1.0), says="hardly changes a score"),
        Wrong("the dtype's eps", minus_eps, says="hardly changes a score"),
        Wrong("float32 for every dtype", always_float32, says="should be float16; yours is float32"),
        Wrong("float32's minimum for all dtypes", minimum_of_float32, says="the minimum of the dtype itself"),
        Wrong("float16's minimum for all dtypes", minimum_of_float16, says="That's the lowest float16"),
        Wrong("inverted", inverted, says="It is inverted"),
        Wrong("1 where allowed", one_where_allowed, says="where the mask is True, the value should be 0"),
        Wrong("0 everywhere", zero_where_forbidden, says="`masked_fill` returns a new tensor"),
        Wrong("the smallest positive value", smallest_positive, says="`tiny` is the smallest positive value"),
        Wrong("0 times infinity", times_infinity, says="0 times infinity is NaN"),
        Wrong("the mask as it is", as_it_is, says="yours is bool"),
        Wrong("one axis too many", with_heads, says="should have the shape of the mask"),
        Wrong("lists", values_in_lists, says="it should return a tensor"),
        Wrong("inverts its argument", inverts_in_place, says="your code changed its argument `mask`"),
        Wrong(
            "float32's minimum filled into float16",
            filled_with(torch.finfo(torch.float32).min),
            says="does not fit into torch.float16",
        ),
        Wrong("two axes only", additive_of_two_axes, says="It works with two axes"),
    ],
    "04.3": [
        Wrong("masks by sequence", masks_each_by_itself, says="Do you call `mask` for each sequence by itself?"),
        Wrong("no positions", without_positions, says="given no `position_ids`"),
        Wrong("merges equal sequences", merges_equal_sequences, says="Are they merged, as in a dict or a set?"),
        Wrong(
            "the mask counts positions through the row",
            masked_through_the_row,
            says="given to `mask` should have the positions [0, 1, 2, 0, 1]; yours are [0, 1, 2, 3, 4]",
        ),
        Wrong(
            "positions run on",
            packed(positions=lambda tags: torch.arange(len(tags))[None]),
            says="as if it were one text",
        ),
        Wrong("tags of a single sequence", one_tag_for_the_row, says="`tag_tokens([1, 1])`, not `tag_tokens([2])`"),
        Wrong(
            "positions without a batch axis",
            packed(positions=lambda tags: tags.positions),
            says="`position_ids` should have shape",
        ),
        Wrong(
            "positions from 1", packed(positions=lambda tags: tags.positions[None] + 1), says="the positions should be"
        ),
        Wrong("inputs without names", inputs_without_names, says="Their order differs from model to model"),
        Wrong("no pass", lambda model, sequences, mask=None: None, says="your code never called the model"),
        Wrong("parts begin too early", packed(split=slices_from_the_previous_length), says="Yours begin at index 4"),
        Wrong("no mask", without_mask, says="You pass no mask at all"),
        Wrong(
            "the mask with two axes", packed(attention=lambda mask: mask[0, 0]), says="takes it for the padding mask"
        ),
        Wrong("the mask with three axes", packed(attention=lambda mask: mask[0]), says="has four axes"),
        Wrong("the mask inverted", packed(attention=lambda mask: ~mask), says="It is inverted"),
        Wrong(
            "an ordinary causal mask",
            packed(attention=lambda mask: torch.ones_like(mask).tril()),
            says="the causal mask of a single text",
        ),
        Wrong("the mask transposed", packed(attention=lambda mask: mask.mT), says="It is transposed"),
        Wrong(
            "1 and 0 added to the scores",
            packed(attention=lambda mask: mask.float()),
            says="A float mask is added to the scores",
        ),
        Wrong(
            "0 and 1 added to the scores",
            packed(attention=lambda mask: (~mask).float()),
            says="None of these values is low enough",
        ),
        Wrong("-1 added to the scores", packed(attention=lambda mask: -(~mask).float()), says="-1"),
        Wrong("the mask as integers", packed(attention=lambda mask: mask.long()), says="yours is int64"),
        Wrong("its own mask instead of the given one", ignores_the_given_mask, says="not with `block_diagonal_mask`"),
        Wrong("calls the mask and ignores it", calls_the_mask_and_ignores_it, says="don't match that mask"),
        Wrong("a loop over the sequences", a_loop, says="A loop over the sequences"),
        Wrong("a padded rectangle", a_rectangle, says="the padded rectangle of lesson 01"),
        Wrong("the last sequence first", back_to_front, says="in the order of the list"),
        Wrong(
            "no batch axis", without_a_batch_axis, says="The model expects a batch axis in front: `torch.tensor([row])`"
        ),
        Wrong(
            "does not split", packed(split=lambda logits, lengths: logits), says="Split the row's logits by sequence"
        ),
        Wrong(
            "splits into single tokens",
            packed(split=lambda logits, lengths: list(logits)),
            says="You have one per token",
        ),
        Wrong(
            "splits into equal parts",
            packed(split=lambda logits, lengths: list(logits.chunk(len(lengths)))),
            says="Split by the lengths of the sequences",
        ),
        Wrong(
            "the last token only",
            packed(split=lambda logits, lengths: [part[-1] for part in logits.split(lengths)]),
            says="You keep only the last token's logits",
        ),
        Wrong(
            "all tokens but the last",
            packed(split=lambda logits, lengths: [part[:-1] for part in logits.split(lengths)]),
            says="The logits of one token are missing",
        ),
        Wrong(
            "keeps the batch axis",
            packed(split=lambda logits, lengths: [part[None] for part in logits.split(lengths)]),
            says="The batch axis is still there",
        ),
        Wrong(
            "splits along the vocabulary",
            packed(split=lambda logits, lengths: list(logits[:, : sum(lengths)].split(lengths, dim=1))),
            says="You split along the vocabulary",
        ),
        Wrong(
            "the whole row each time",
            packed(split=lambda logits, lengths: [logits for _ in lengths]),
            says="Each tensor covers the whole row",
        ),
        Wrong(
            "probabilities",
            packed(split=lambda logits, lengths: list(logits.softmax(-1).split(lengths))),
            says="These are probabilities",
        ),
        Wrong(
            "shifted by one",
            packed(split=lambda logits, lengths: list(logits.roll(1, 0).split(lengths))),
            says="shifted by one token",
        ),
        Wrong(
            "tokens",
            packed(split=lambda logits, lengths: list(logits.argmax(-1).split(lengths))),
            says="These look like token ids",
        ),
        Wrong("another order", sorts_by_length, says="the logits of another sequence"),
        Wrong(
            "lists",
            packed(split=lambda logits, lengths: [part.tolist() for part in logits.split(lengths)]),
            says="Keep them as tensors",
        ),
        Wrong("the same pass twice", the_first_pass_thrown_away, says="There is only one sequence here"),
        Wrong("a mask kept by the row's length", mask_kept_by_length, says="by the length of the row?"),
        Wrong("leaves another attention", switches_the_attention, says="to the attention 'eager' and left it so"),
        Wrong("fails below a decorator", fails_below_a_decorator, says='of your cell: `return {}["logits"]`'),
    ],
}

RIGHT = {
    "04.1": [tags_of_tensors, tags_by_concatenation],
    "04.2": [mask_by_loops, mask_that_checks_the_query],
    "04.4": [
        varlen_by_offsets,
        varlen_by_sdpa,
        varlen_by_einsum,
        varlen_query_by_query,
        varlen_by_equal_lengths,
    ],
    "04.5": [additive_by_multiplication, additive_by_where, additive_by_index],
    "04.3": [packed_with_an_additive_mask, packed_by_concatenation],
}
