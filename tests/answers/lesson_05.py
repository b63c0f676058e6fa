"""Right answers to the exercises of lesson 05, written differently from the reference."""

import copy
import dataclasses

import torch
from answers import Wrong

from lessons_lib.attention.packing import PackedBatch, pack
from lessons_lib.batching.ragged_batching import admit, chunked_step, forward, ragged_step, retire
from lessons_lib.checks.diagnosis.mistakes import patched

# 05.1 pack


def lengths_of(new_tokens):
    return [len(tokens) for tokens in new_tokens]


def validates_nothing(new_tokens, cached_lens):
    input_ids = [token for tokens, _ in zip(new_tokens, cached_lens) for token in tokens]
    positions = [cached + i for tokens, cached in zip(new_tokens, cached_lens) for i in range(len(tokens))]
    seq_ids = [index for index, (tokens, _) in enumerate(zip(new_tokens, cached_lens)) for _ in tokens]
    cumulative = [0]
    for tokens, _ in zip(new_tokens, cached_lens):
        cumulative.append(cumulative[-1] + len(tokens))
    context = [cached + len(tokens) for tokens, cached in zip(new_tokens, cached_lens)]
    fields = (input_ids, positions, seq_ids, cumulative, context, [end - 1 for end in cumulative[1:]])
    return PackedBatch(*(torch.tensor(values, dtype=torch.int64) for values in fields))


def pack_by_tensors(new_tokens, cached_lens):
    cached = list(cached_lens)
    if len(new_tokens) != len(cached) or any(not tokens for tokens in new_tokens) or (cached and min(cached) < 0):
        raise ValueError(f"{new_tokens}, {cached_lens}")
    new = torch.tensor(lengths_of(new_tokens), dtype=torch.int64)
    cu_seqlens_q = torch.nn.functional.pad(new.cumsum(0), (1, 0))
    seq_ids = torch.arange(len(new)).repeat_interleave(new)
    old = torch.tensor(cached, dtype=torch.int64)
    offset = torch.arange(int(new.sum())) - cu_seqlens_q[:-1][seq_ids]
    input_ids = torch.tensor(sum(new_tokens, []), dtype=torch.int64)
    return PackedBatch(input_ids, old[seq_ids] + offset, seq_ids, cu_seqlens_q, old + new, cu_seqlens_q[1:] - 1)


def pack_in_int32(new_tokens, cached_lens):
    packed = pack(new_tokens, cached_lens)
    return PackedBatch(*(getattr(packed, field.name).int() for field in dataclasses.fields(packed)))


def pack_by_loop(new_tokens, cached_lens):
    if len(new_tokens) != len(cached_lens):
        raise ValueError("lists of unequal length")
    ids, positions, seq_ids, ends, context = [], [], [], [0], []
    for seq_id in range(len(new_tokens)):
        if len(new_tokens[seq_id]) < 1 or cached_lens[seq_id] < 0:
            raise ValueError(f"sequence {seq_id}")
        for offset, token in enumerate(new_tokens[seq_id]):
            ids.append(token)
            positions.append(cached_lens[seq_id] + offset)
            seq_ids.append(seq_id)
        ends.append(len(ids))
        context.append(cached_lens[seq_id] + len(new_tokens[seq_id]))
    fields = dict(
        input_ids=ids,
        positions=positions,
        seq_ids=seq_ids,
        cu_seqlens_q=ends,
        context_lens=context,
        logits_index=[e - 1 for e in ends[1:]],
    )
    return PackedBatch(**{name: torch.tensor(values).long() for name, values in fields.items()})


# 05.2 ragged_step


def known(request):
    return request.prompt_ids + request.output_ids


def step_by_context_lens(batch, forward=forward):
    rest = [[*r.prompt_ids, *r.output_ids][r.num_computed_tokens :] for r in batch.running]
    packed = pack(rest, [r.num_computed_tokens for r in batch.running])
    best = forward(batch, packed).argmax(dim=-1).tolist()
    for i, request in enumerate(batch.running):
        request.num_computed_tokens = int(packed.context_lens[i])
        request.append_token(best[i])
    retire(batch)
    admit(batch)


def step_in_two_loops(batch, forward=forward):
    rows = [known(request)[request.num_computed_tokens :] for request in batch.running]
    scores = forward(batch, pack(rows, [request.num_computed_tokens for request in batch.running]))
    for request, row in zip(batch.running, rows):
        request.num_computed_tokens += len(row)
    for request, token in zip(batch.running, scores.argmax(-1)):
        request.append_token(token.item())
    retire(batch)
    admit(batch)


def step_with_copies(batch, forward=forward):
    requests = copy.copy(batch.running)
    packed = pack(
        [(r.prompt_ids + r.output_ids)[r.num_computed_tokens :] for r in requests],
        [r.num_computed_tokens for r in requests],
    )
    best = forward(batch, packed).max(dim=1).indices
    for request, new, token in zip(requests, packed.new_lens, best):
        request.num_computed_tokens += new
        request.append_token(token.item())
    retire(batch)
    while batch.waiting and len(batch.running) < batch.max_num_seqs:
        admit(batch)


def step_with_slices(batch, forward=forward):
    new, before = [], []
    for request in batch.running:
        start = request.num_computed_tokens
        new.append(request.prompt_ids[start:] + request.output_ids[max(0, start - len(request.prompt_ids)) :])
        before.append(start)
    logits = forward(batch, pack(new, before))
    for index in range(len(new)):
        request = batch.running[index]
        request.append_token(logits[index].topk(1).indices.item())
        request.num_computed_tokens = len(request.prompt_ids) + len(request.output_ids) - 1
    retire(batch)
    admit(batch)


# 05.3 chunked_step: who gets how much is up to the answer


def chunks_by(order):
    """Every request gets one token; what is left goes to the requests in the order of what they have left."""

    def step(batch, max_num_batched_tokens, forward=forward):
        rests = [known(request)[request.num_computed_tokens :] for request in batch.running]
        sizes, left = [1] * len(rests), max_num_batched_tokens - len(rests)
        for index in sorted(range(len(rests)), key=lambda index: order(len(rests[index]))):
            more = min(left, len(rests[index]) - 1)
            sizes[index] += more
            left -= more
        packed = pack(
            [rest[:size] for rest, size in zip(rests, sizes)],
            [request.num_computed_tokens for request in batch.running],
        )
        for request, size, rest, logits in zip(list(batch.running), sizes, rests, forward(batch, packed)):
            request.num_computed_tokens += size
            if size == len(rest):
                request.append_token(int(logits.argmax()))
        retire(batch)
        admit(batch)

    return step


def chunks_by_turns(batch, max_num_batched_tokens, forward=forward):
    requests = batch.running[:]
    start = [request.num_computed_tokens for request in requests]
    lengths = [len(known(request)) - first for request, first in zip(requests, start)]
    given = [1 for _ in requests]
    while sum(given) < min(max_num_batched_tokens, sum(lengths)):
        for i, length in enumerate(lengths):
            given[i] += given[i] < length and sum(given) < max_num_batched_tokens
    new = [known(request)[first : first + count] for request, first, count in zip(requests, start, given)]
    best = forward(batch, pack(new, start)).max(dim=-1).indices.tolist()
    for i, request in enumerate(requests):
        request.num_computed_tokens = start[i] + given[i]
        if request.num_computed_tokens >= len(request.prompt_ids):
            request.append_token(best[i])
    retire(batch)
    admit(batch)


RIGHT = {
    "05.1": [pack_by_tensors, pack_by_loop, pack_in_int32, validates_nothing],
    "05.2": [step_with_copies, step_by_context_lens, step_in_two_loops, step_with_slices],
    "05.3": [chunks_by(lambda rest: rest), chunks_by(lambda rest: -rest), chunks_by_turns],
}


def wrong(reference, *answers):
    """(what changes in the reference, what the check says): families that no known mistake names."""
    return [Wrong(says, patched(reference, patch, {"pack": validates_nothing}), says) for patch, says in answers]


GREEDY = """~ max_num_batched_tokens - len(known) => max_num_batched_tokens
~ computed + 1 + spare => computed + spare
~ len(parts[-1]) - 1 => len(parts[-1])"""
KEEPS_CACHE = """- retire(batch)
+ batch.running = [each for each in batch.running if each.state is not RequestState.FINISHED]"""
WRONG = {
    "05.1": wrong(
        pack,
        ("~ torch.cat([torch.zeros(1, dtype=torch.int64), ends]) => ends", "a 0 in front"),
        ("~ seq_ids=tags.seq_ids => seq_ids=torch.arange(len(lengths))", "not just one for a sequence"),
        (
            "~ for token in tokens], dtype=torch.int64) => for token in tokens], dtype=torch.int64)[None]",
            "no batch axis",
        ),
    ),
    "05.2": wrong(
        ragged_step,
        ("~ [request.num_computed_tokens :] => [:]", "You compute cached tokens again"),
        ("~ for request in batch.running] => for request in batch.running[::-1]]", "That is another request's part"),
        ("~ += len(tokens) => += 1", "this row adds 3"),
        ("- request.append_token(next_token)", "so it gets a token"),
        ("~ request.append_token(next_token) => request.append_token(next_tokens[0])", "Row i of the logits"),
        ("~ request.append_token(next_token) => request.output_ids.append(next_token)", "also updates the state"),
        ("- retire(batch)", "A finished"),
        ("- admit(batch)", "Yours admits too early"),
        (KEEPS_CACHE, "caches should exist for none"),
    ),
    "05.3": wrong(
        chunked_step,
        (GREEDY, "at least one token in the row"),
        ("~ - len(known) => - len(known) + 1", "one token each, and 1 more to share"),
        ("~ request.num_computed_tokens == len(tokens) => True", "a token that you know already"),
    ),
}
