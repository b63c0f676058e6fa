"""Right answers to the exercises of lesson 19, written in other ways than the reference. The wrong ones are the checks'
lists."""

import torch
from lessons_lib.kv_cache.block_pool import blocks_for

# 19.1 gated_delta


def in_place(queries, keys, values, decays, betas, states, segments):
    outputs, rows = [], iter(zip(queries, keys, values, decays, betas))
    for length, slot, is_fresh in segments:
        state = states[slot]
        if is_fresh:
            state.zero_()
        for _ in range(length):
            query, key, value, decay, beta = next(rows)
            state *= decay
            state += torch.einsum("k,v->kv", key, beta * (value - torch.einsum("k,kv->v", key, state)))
            outputs.append(torch.einsum("k,kv->v", query, state))
    return torch.stack(outputs)


def as_matrices(queries, keys, values, decays, betas, states, segments):
    """The same step as one matrix product: (I - beta k kT) decay S + beta k vT."""
    outputs, end = torch.zeros(len(values), values.shape[1]), 0
    for length, slot, is_fresh in segments:
        start, end = end, end + length
        state = states[slot].masked_fill(torch.tensor(is_fresh), 0)
        for t in range(start, end):
            column = keys[t][:, None]
            keep = torch.eye(len(column)) - betas[t] * column * keys[t]
            state = decays[t] * (keep @ state) + betas[t] * column * values[t]
            outputs[t] = (queries[t][:, None] * state).sum(dim=0)
        states[slot] = state
    return outputs


# 19.2 slide


def token_by_token(held, num_computed_tokens, count, window, block_size):
    seen = range(max(0, num_computed_tokens - (window - 1)), num_computed_tokens + count)
    needed = sorted({token // block_size for token in seen})
    return (
        range(needed[0], needed[-1] + 1),
        [block for block in held if block < needed[0]],
        [block for block in needed if block not in held],
    )


def by_ends(held, num_computed_tokens, count, window, block_size):
    end = -(-(num_computed_tokens + count) // block_size)
    start = 0 if num_computed_tokens < window else (num_computed_tokens + 1 - window) // block_size
    keep = max(start, held.stop)
    return range(start, end), held[: max(0, start - held.start)], range(keep, max(keep, end))


# 19.3 longest_usable


def from_the_longest(groups):
    for count in range(len(groups[0].is_kept), 0, -1):
        if all(all(kept[max(0, count - needed) : count]) for kept, needed in groups):
            return count
    return 0


def with_sets(groups):
    common = set(range(len(groups[0].is_kept) + 1))
    for group in groups:
        lost = {block for block, is_here in enumerate(group.is_kept) if not is_here}
        common &= {n for n in common if not lost & {*range(max(0, n - group.num_needed), n)}}
    return max(common)


WRONG: dict[str, list] = {}
RIGHT = {
    "19.1": [in_place, as_matrices],
    "19.2": [token_by_token, by_ends],
    "19.3": [from_the_longest, with_sets],
}
