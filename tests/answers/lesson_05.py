"""Answers to the exercises of lesson 05: what learners get wrong, and other ways to be right."""

import copy
import dataclasses
from itertools import accumulate

import torch
from transformers import DynamicCache

from answers import Wrong
from lessons_lib.attention.masks import Tags, block_diagonal_mask, tag_tokens
from lessons_lib.attention.packing import (
    PackedBatch,
    cache_of,
    key_tags,
    pack,
    packed_forward,
    packed_mask,
    scatter_cache,
)
from lessons_lib.batching.ragged_batching import admit, forward, ragged_step, retire
from lessons_lib.batching.request import RequestState

# 05.1 pack: each mistake is the reference with one field built differently


def packing(**fields):
    """`pack` with some fields replaced; each replacement is a function of (new_tokens, cached_lens)."""

    def attempt(new_tokens, cached_lens):
        made = {name: torch.tensor(make(new_tokens, cached_lens), dtype=torch.int64) for name, make in fields.items()}
        return dataclasses.replace(pack(new_tokens, cached_lens), **made)

    return attempt


def lengths_of(new_tokens):
    return [len(tokens) for tokens in new_tokens]


def flat(rows):
    return [item for row in rows for item in row]


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


def rejects_prefills(new_tokens, cached_lens):
    if not all(cached_lens):
        raise ValueError("a cached length must be positive")
    return pack(new_tokens, cached_lens)


def packs_lists(new_tokens, cached_lens):
    packed = pack(new_tokens, cached_lens)
    return PackedBatch(*(getattr(packed, field.name).tolist() for field in dataclasses.fields(packed)))


def packs_with_a_row_axis(new_tokens, cached_lens):
    packed = pack(new_tokens, cached_lens)
    return dataclasses.replace(packed, input_ids=packed.input_ids[None])


def packs_eight_bits(new_tokens, cached_lens):
    packed = pack(new_tokens, cached_lens)
    return dataclasses.replace(packed, positions=packed.positions.to(torch.int8))


def cached_by_value(new_tokens, cached_lens):
    return pack(new_tokens, [cached_lens[new_tokens.index(tokens)] for tokens in new_tokens])


def packs_floats(new_tokens, cached_lens):
    packed = pack(new_tokens, cached_lens)
    return dataclasses.replace(packed, context_lens=packed.context_lens.float())


def returns_the_fields(new_tokens, cached_lens):
    packed = pack(new_tokens, cached_lens)
    return packed.input_ids, packed.positions


def needs_a_sequence(new_tokens, cached_lens):
    if not new_tokens:
        return PackedBatch(*(torch.tensor([], dtype=torch.int64) for _ in range(6)))
    return pack(new_tokens, cached_lens)


def joins_no_parts(new_tokens, cached_lens):
    packed = pack(new_tokens, cached_lens)
    return dataclasses.replace(packed, input_ids=torch.cat([torch.tensor(tokens) for tokens in new_tokens]))


def float_when_empty(new_tokens, cached_lens):
    packed = pack(new_tokens, cached_lens)
    return packed if new_tokens else dataclasses.replace(packed, seq_ids=torch.tensor([]))


def empties_the_lists(new_tokens, cached_lens):
    packed = pack(new_tokens, cached_lens)
    while new_tokens:
        new_tokens.pop()
    return packed


def swaps_two_fields(new_tokens, cached_lens):
    packed = pack(new_tokens, cached_lens)
    return dataclasses.replace(packed, context_lens=packed.logits_index, logits_index=packed.context_lens)


def rejects_token_0(new_tokens, cached_lens):
    if not all(all(tokens) for tokens in new_tokens):
        raise ValueError("a token is missing")
    return pack(new_tokens, cached_lens)


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


# 05.2 scatter_cache


def scattering(parts):
    """`scatter_cache` with a different split of one tensor: parts(tensor, cached_lens, new_lens) returns a list."""

    def attempt(joined, packed):
        cached, new = packed.cached_lens, packed.new_lens
        layers = [
            list(zip(parts(layer.keys, cached, new), parts(layer.values, cached, new))) for layer in joined.layers
        ]
        return [cache_of(own) for own in zip(*layers)]

    return attempt


def cut(tensor, start, count):
    return tensor[:, :, start : start + count]


def starts_of(lengths):
    return [0, *accumulate(lengths)][: len(lengths)]


def as_if_contiguous(tensor, cached, new):
    return tensor.split([c + n for c, n in zip(cached, new)], dim=2)


def only_new(tensor, cached, new):
    return tensor[:, :, sum(cached) :].split(new, dim=2)


def only_old(tensor, cached, new):
    return tensor[:, :, : sum(cached)].split(cached, dim=2)


def new_before_old(tensor, cached, new):
    return [torch.cat([b, a], dim=2) for a, b in zip(only_old(tensor, cached, new), only_new(tensor, cached, new))]


def new_from_the_front(tensor, cached, new):
    old = only_old(tensor, cached, new)
    return [torch.cat([a, cut(tensor, start, n)], dim=2) for a, start, n in zip(old, starts_of(new), new)]


def old_from_the_front(tensor, cached, new):
    return [torch.cat([cut(tensor, 0, c), b], dim=2) for c, b in zip(cached, only_new(tensor, cached, new))]


def new_from_the_end(tensor, cached, new):
    return [
        torch.cat([a, tensor[:, :, tensor.shape[2] - n :]], dim=2) for a, n in zip(only_old(tensor, cached, new), new)
    ]


def everything_for_all(tensor, cached, new):
    return [tensor for _ in new]


def along_the_heads(tensor, cached, new):
    parts = tensor.split(cached + new, dim=1)
    return [torch.cat([a, b], dim=1) for a, b in zip(parts[: len(new)], parts[len(new) :])]


def joined_along_the_heads(tensor, cached, new):
    return [
        torch.cat([a[:, :, :1], b[:, :, :1]], dim=1)
        for a, b in zip(only_new(tensor, cached, new), only_new(tensor, cached, new))
    ]


def keys_as_values(joined, packed):
    caches = scatter_cache(joined, packed)
    return [cache_of((layer.keys, layer.keys) for layer in cache.layers) for cache in caches]


def swaps_keys_and_values(joined, packed):
    return [cache_of([(layer.values, layer.keys) for layer in cache.layers]) for cache in scatter_cache(joined, packed)]


def first_layer_for_all(joined, packed):
    return [
        cache_of([(cache.layers[0].keys, cache.layers[0].values) for _ in cache.layers])
        for cache in scatter_cache(joined, packed)
    ]


def last_layer_only(joined, packed):
    return [cache_of([(cache.layers[-1].keys, cache.layers[-1].values)]) for cache in scatter_cache(joined, packed)]


def by_layers(joined, packed):
    caches = scatter_cache(joined, packed)
    return [[(cache.layers[i].keys, cache.layers[i].values) for cache in caches] for i in range(len(joined.layers))]


def pairs_for_caches(joined, packed):
    return [[(layer.keys, layer.values) for layer in cache.layers] for cache in scatter_cache(joined, packed)]


def in_reverse_order(joined, packed):
    return scatter_cache(joined, packed)[::-1]


def one_object_for_all(joined, packed):
    return scatter_cache(joined, packed)[:1] * len(packed.new_lens)


def only_those_with_a_cache(joined, packed):
    return [cache for cache, cached in zip(scatter_cache(joined, packed), packed.cached_lens) if cached]


def forgets_to_return(joined, packed):
    scatter_cache(joined, packed)


def layers_not_initialized(joined, packed):
    caches = scatter_cache(joined, packed)
    for cache in caches:
        for layer in cache.layers:
            layer.is_initialized = False
    return caches


def scatter_by_updates(joined, packed):
    old, new = starts_of(packed.cached_lens), starts_of(packed.new_lens)
    caches = [DynamicCache() for _ in packed.new_lens]
    for sequence, cache in enumerate(caches):
        for index, layer in enumerate(joined.layers):
            new_start = sum(packed.cached_lens) + new[sequence]
            for start, count in ((old[sequence], packed.cached_lens[sequence]), (new_start, packed.new_lens[sequence])):
                if count:
                    cache.update(cut(layer.keys, start, count), cut(layer.values, start, count), index)
    return caches


def scatter_by_tags(joined, packed):
    ids = key_tags(packed).seq_ids
    layers = [(layer.keys, layer.values) for layer in joined.layers]
    return [
        cache_of([tuple(tensor[:, :, ids == index] for tensor in layer) for layer in layers])
        for index in range(len(packed.new_lens))
    ]


def scatter_at(first_new, length=lambda new: new, slices=lambda tensor, start, end: tensor[:, :, start:end]):
    """`scatter_cache` with new parts that begin at `first_new(packed, index)` and have `length(new)` tokens."""

    def attempt(joined, packed):
        caches, old_at = [], 0
        for index, (old, new) in enumerate(zip(packed.cached_lens, packed.new_lens)):
            at = first_new(packed, index)
            parts = [
                [
                    torch.cat([slices(t, old_at, old_at + old), t[:, :, at : at + length(new)]], dim=2)
                    for t in (layer.keys, layer.values)
                ]
                for layer in joined.layers
            ]
            caches.append(cache_of(parts))
            old_at += old
        return caches

    return attempt


def where_they_are(packed, index):
    return sum(packed.cached_lens) + sum(packed.new_lens[:index])


def old_too_far_right(joined, packed):
    caches, old_at = [], 0
    for index, (old, new) in enumerate(zip(packed.cached_lens, packed.new_lens)):
        spans = (old_at, old), (where_they_are(packed, index), new)
        layers = [(layer.keys, layer.values) for layer in joined.layers]
        caches.append(
            cache_of([tuple(torch.cat([t[:, :, a : a + n] for a, n in spans], dim=2) for t in pair) for pair in layers])
        )
        old_at += old + new
    return caches


def one_list_of_pairs(joined, packed):
    pairs, caches = [], []
    for cache in scatter_cache(joined, packed):
        pairs += [(layer.keys, layer.values) for layer in cache.layers]
        caches.append(cache_of(pairs))
    return caches


def without_the_batch_axis(joined, packed):
    return [
        cache_of([(layer.keys[0], layer.values[0]) for layer in cache.layers])
        for cache in scatter_cache(joined, packed)
    ]


def scatter_by_index(joined, packed):
    sequences = torch.arange(len(packed.new_lens))
    owner = torch.cat([sequences.repeat_interleave(torch.tensor(packed.cached_lens)), packed.seq_ids])
    indices = [(owner == sequence).nonzero()[:, 0] for sequence in sequences]
    return tuple(
        cache_of([(layer.keys[:, :, own], layer.values[:, :, own]) for layer in joined.layers]) for own in indices
    )


# 05.3 packed_forward


def passing(pick=lambda logits, packed: logits[0], **changes):
    """`packed_forward` with some arguments of the model changed; None omits one."""

    @torch.inference_mode()
    def attempt(model, packed, cache):
        arguments = dict(
            input_ids=packed.input_ids[None],
            position_ids=packed.positions[None],
            attention_mask=packed_mask(packed)[None, None],
            past_key_values=cache,
            logits_to_keep=packed.logits_index,
        )
        arguments |= {name: change(packed, cache) for name, change in changes.items()}
        return pick(model(**{name: value for name, value in arguments.items() if value is not None}).logits, packed)

    return attempt


def mask_kept_by_shape():
    """Keeps the first mask of each shape."""
    kept = {}

    def mask_of(packed, cache):
        mask = packed_mask(packed)[None, None]
        return kept.setdefault(mask.shape, mask)

    return passing(attention_mask=mask_of)


def diagonal_of_new_tokens(packed, cache):
    own = tag_tokens(packed.new_lens)
    mask = block_diagonal_mask(own, own)
    return torch.cat([torch.ones(len(mask), sum(packed.cached_lens), dtype=torch.bool), mask], dim=1)[None, None]


def columns_by_sequence(packed, cache):
    keys = tag_tokens(packed.context_lens.tolist())
    return block_diagonal_mask(Tags(packed.seq_ids, packed.positions), keys)[None, None]


def columns_of_new_keys_first(packed, cache):
    queries = Tags(packed.seq_ids, packed.positions)
    return block_diagonal_mask(queries, queries.followed_by(tag_tokens(packed.cached_lens)))[None, None]


def without_the_cached_keys(packed, cache):
    own = tag_tokens(packed.new_lens)
    return block_diagonal_mask(own, own)[None, None]


def whole_output(model, packed, cache):
    return model(packed.input_ids[None], position_ids=packed.positions[None], attention_mask=packed_mask(packed)[None, None],
                 past_key_values=cache, logits_to_keep=packed.logits_index)  # fmt: skip


@torch.inference_mode()
def one_pass_each(model, packed, cache):
    logits = packed_forward(model, packed, cache)
    for tokens in packed.input_ids[:1]:
        model(tokens[None, None], use_cache=False)
    return logits


def nothing_computed(model, packed, cache):
    return torch.zeros(len(packed.new_lens), model.config.vocab_size)


@torch.inference_mode()
def arguments_without_names(model, packed, cache):
    mask = packed_mask(packed)[None, None]
    keep = packed.logits_index
    return model(packed.input_ids[None], mask, packed.positions[None], cache, logits_to_keep=keep).logits[0]


@torch.inference_mode()
def forward_with_an_additive_mask(model, packed, cache):
    hidden = torch.zeros(packed_mask(packed).shape).masked_fill(~packed_mask(packed), torch.finfo(torch.float32).min)
    where = packed.logits_index.clone()
    return model(
        packed.input_ids.unsqueeze(0).to(model.device),
        attention_mask=hidden.reshape(1, 1, *hidden.shape).to(model.device),
        position_ids=packed.positions.unsqueeze(0).to(model.device),
        past_key_values=cache,
        logits_to_keep=where,
    ).logits.squeeze(0)


def forward_to_the_cpu(model, packed, cache):
    return packed_forward(model, packed, cache).cpu()


def mask_by(packed, allowed, ids=True):
    keys = key_tags(packed)
    mask = allowed(keys.positions[None], packed.positions[:, None])
    return (mask & (keys.seq_ids == packed.seq_ids[:, None]) if ids else mask)[None, None]


@torch.inference_mode()
def forward_in_two_parts(model, packed, cache):
    hidden = model.base_model(
        input_ids=packed.input_ids[None],
        position_ids=packed.positions[None],
        attention_mask=packed_mask(packed)[None, None],
        past_key_values=cache,
    ).last_hidden_state
    return model.get_output_embeddings()(hidden[0, packed.logits_index])


# 05.4 ragged_step


def known(request):
    return request.prompt_ids + request.output_ids


def stepping(new_tokens=None, cached=None, count=None, append=None, end=None, take=None, members=None):
    """`ragged_step` with one part done differently."""
    new_tokens = new_tokens or (lambda request: known(request)[request.num_computed_tokens :])
    cached = cached or (lambda request: request.num_computed_tokens)
    count = count or (lambda request, tokens: request.num_computed_tokens + len(tokens))
    append = append or (lambda request, token: request.append_token(token))
    take = take or (lambda logits: logits.argmax(dim=-1).tolist())
    members = members or (lambda batch: list(batch.running))

    def end_of_step(batch):
        retire(batch)
        admit(batch)

    end = end or end_of_step

    def attempt(batch, forward=forward):
        requests = members(batch)
        row = [new_tokens(request) for request in requests]
        before = [cached(request) for request in requests]
        tokens = take(forward(batch, pack(row, before)))
        for request, fed, token in zip(requests, row, tokens):
            request.num_computed_tokens = count(request, fed)
            append(request, token)
        end(batch)

    return attempt


def whole_sequence_again(request):
    return known(request)


def admits_before_it_retires(batch):
    admit(batch)
    retire(batch)


def with_barrier(batch):
    retire(batch)
    if not batch.running:
        admit(batch)


def admits_from_the_back(batch):
    retire(batch)
    batch.waiting.reverse()
    admit(batch)


def counts_what_goes_on(batch, forward=forward):
    rows = [known(request)[request.num_computed_tokens :] for request in batch.running]
    tokens = forward(batch, pack(rows, [r.num_computed_tokens for r in batch.running])).argmax(-1).tolist()
    for request, row, token in zip(batch.running, rows, tokens):
        request.append_token(token)
        if request.state is not RequestState.FINISHED:
            request.num_computed_tokens += len(row)
    retire(batch)
    admit(batch)


def retires_in_the_loop(batch, forward=forward):
    rows = [known(request)[request.num_computed_tokens :] for request in batch.running]
    tokens = forward(batch, pack(rows, [r.num_computed_tokens for r in batch.running])).argmax(-1).tolist()
    for request, row, token in zip(batch.running, rows, tokens):
        request.num_computed_tokens += len(row)
        request.append_token(token)
        retire(batch)
        admit(batch)


def retires_by_index(batch, forward=forward):
    rows = [known(request)[request.num_computed_tokens :] for request in batch.running]
    logits = forward(batch, pack(rows, [r.num_computed_tokens for r in batch.running]))
    for i, row in enumerate(rows):
        batch.running[i].num_computed_tokens += len(row)
        batch.running[i].append_token(int(logits[i].argmax()))
        retire(batch)
    admit(batch)


def longest_first(batch):
    batch.running.sort(key=lambda request: -len(known(request)[request.num_computed_tokens :]))
    return list(batch.running)


def shortest_first(batch):
    return sorted(batch.running, key=lambda request: len(known(request)[request.num_computed_tokens :]))


def prompts_first(batch):
    return sorted(batch.running, key=lambda request: len(request.output_ids))


def admits_one(batch):
    retire(batch)
    waiting = list(batch.waiting)[1:]
    for request in waiting:
        batch.waiting.remove(request)
    admit(batch)
    batch.waiting.extend(waiting)


def retires_by_hand(batch):
    for request in batch.running:
        if request.state is RequestState.FINISHED:
            batch.running.remove(request)
            del batch.caches[request.id]
    admit(batch)


def forgets_the_cache(batch):
    batch.running = [request for request in batch.running if request.state is not RequestState.FINISHED]
    admit(batch)


def admits_by_hand(batch):
    retire(batch)
    while batch.waiting and len(batch.running) < batch.max_num_seqs:
        batch.running.append(batch.waiting.popleft())


def retires_only_for_others(batch):
    if batch.waiting:
        retire(batch)
        admit(batch)


def adds_to_the_prompt(request):
    tokens = request.prompt_ids
    tokens += request.output_ids[-1:]
    return tokens[request.num_computed_tokens :]


def starts_with_admission(batch, forward=forward):
    retire(batch)
    admit(batch)
    stepping(end=lambda batch: None)(batch, forward=forward)


def two_rows(batch, forward=forward):
    for _ in range(2):
        stepping(end=lambda batch: None)(batch, forward=forward)
        retire(batch)
    admit(batch)


def prefills_or_decodes(batch):
    prefilling = [request for request in batch.running if request.state is RequestState.PREFILLING]
    return prefilling or list(batch.running)


def one_pass_for_each(batch, forward=forward):
    running = list(batch.running)
    for request in running:
        batch.running = [request]
        stepping(end=lambda batch: None)(batch, forward=forward)
    batch.running = running
    retire(batch)
    admit(batch)


def own_forward(batch, forward=None):
    ragged_step(batch)


def passes_lists(batch, forward=forward):
    forward(batch, [known(request)[request.num_computed_tokens :] for request in batch.running])


def computes_nothing(batch, forward=forward):
    retire(batch)
    admit(batch)


def append_by_hand(request, token):
    request.output_ids.append(token)


def step_by_cases(batch, forward=forward):
    row, cached = [], []
    for request in batch.running:
        if request.state is RequestState.PREFILLING:
            row.append(request.prompt_ids)
            cached.append(0)
        else:
            row.append([request.output_ids[-1]])
            cached.append(len(request.prompt_ids) + len(request.output_ids) - 1)
    logits = forward(batch, pack(row, cached))
    for i, request in enumerate(list(batch.running)):
        request.append_token(int(torch.argmax(logits[i])))
        request.num_computed_tokens = cached[i] + len(row[i])
    for request in list(batch.running):
        if request.finish_reason is not None:
            batch.running.remove(request)
            batch.caches.pop(request.id)
    admit(batch)


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


# Of a later round


def two_passes_over_one_cache(model, packed, cache):
    packed_forward(model, packed, cache)
    return packed_forward(model, packed, cache)


def leaves_when_all_are_finished(batch):
    if all(request.state is RequestState.FINISHED for request in batch.running):
        retire(batch)
    admit(batch)


def sorts_the_running(batch, forward=forward):
    batch.running.sort(key=lambda request: -request.num_computed_tokens)
    stepping()(batch, forward=forward)


def drops_the_end_token(request, token):
    if token != request.eos_token_id:
        request.append_token(token)


def retires_by_the_limit(batch):
    for request in [request for request in batch.running if len(request.output_ids) == request.max_new_tokens]:
        batch.running.remove(request)
        del batch.caches[request.id]
    admit(batch)


def counts_before_the_pass(batch, forward=forward):
    rows = []
    for request in batch.running:
        rows.append(known(request)[request.num_computed_tokens :])
        request.num_computed_tokens += len(rows[-1])
    logits = forward(batch, pack(rows, [request.num_computed_tokens for request in batch.running]))
    for request, row in zip(list(batch.running), logits):
        request.append_token(int(row.argmax()))
    retire(batch)
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


def zero_times_infinity(packed, cache):
    return (~packed_mask(packed)).float()[None, None] * float("-inf")


WRONG = {
    "05.1": [
        Wrong("joins no parts", joins_no_parts, says="Without sequences there is nothing to join"),
        Wrong(
            "positions count from 0 in every part",
            packing(positions=lambda new, _: flat(range(len(t)) for t in new)),
            says="not from the start of its part",
        ),
        Wrong(
            "positions count through the row",
            packing(positions=lambda new, _: range(len(flat(new)))),
            says="You count through the row",
        ),
        Wrong(
            "positions off by one",
            packing(positions=lambda new, old: flat(range(c + 1, c + len(t) + 1) for t, c in zip(new, old))),
            says="off by one. Positions count from 0",
        ),
        Wrong(
            "one position for all new tokens",
            packing(positions=lambda new, old: flat([c] * len(t) for t, c in zip(new, old))),
            says="have the same position. Count up",
        ),
        Wrong("tokens sorted", packing(input_ids=lambda new, _: sorted(flat(new))), says="Don't sort"),
        Wrong(
            "last tokens only",
            packing(input_ids=lambda new, _: [t[-1] for t in new]),
            says="only the last token of each sequence",
        ),
        Wrong(
            "sequence ids from 1",
            packing(seq_ids=lambda new, _: flat([i + 1] * len(t) for i, t in enumerate(new))),
            says="Sequence ids start at 0",
        ),
        Wrong(
            "a sequence id for each sequence",
            packing(seq_ids=lambda new, _: range(len(new))),
            says="one id per *token*",
        ),
        Wrong(
            "the same id for all tokens",
            packing(seq_ids=lambda new, _: [0] * len(flat(new))),
            says="couldn't keep the sequences apart",
        ),
        Wrong(
            "no 0 in front",
            packing(cu_seqlens_q=lambda new, _: list(accumulate(lengths_of(new)))),
            says="The 0 in front is missing",
        ),
        Wrong(
            "no end",
            packing(cu_seqlens_q=lambda new, _: starts_of(lengths_of(new))),
            says="The end of the row is missing",
        ),
        Wrong(
            "lengths, not sums",
            packing(cu_seqlens_q=lambda new, _: [0, *lengths_of(new)]),
            says="with a 0 in front. Take their running sum",
        ),
        Wrong(
            "sums of whole sequences",
            packing(cu_seqlens_q=lambda new, old: [0, *accumulate(len(t) + c for t, c in zip(new, old))]),
            says="You counted the cached tokens as well",
        ),
        Wrong(
            "context is what was cached",
            packing(context_lens=lambda _, old: old),
            says="the number of cached tokens before the pass",
        ),
        Wrong(
            "context is what is new",
            packing(context_lens=lambda new, _: lengths_of(new)),
            says="Those are only the new tokens",
        ),
        Wrong(
            "context is the last position",
            packing(context_lens=lambda new, old: [len(t) + c - 1 for t, c in zip(new, old)]),
            says="one less than the number of tokens",
        ),
        Wrong(
            "context as if each had one new token",
            packing(context_lens=lambda _, old: [c + 1 for c in old]),
            says="You count one new token for each sequence",
        ),
        Wrong(
            "logits at the first token of the same id",
            packing(logits_index=lambda new, _: [flat(new).index(t[-1]) for t in new]),
            says="Do you look up the last token by its id",
        ),
        Wrong(
            "logits at the ends",
            packing(logits_index=lambda new, _: list(accumulate(lengths_of(new)))),
            says="where the next one begins",
        ),
        Wrong(
            "logits of the first tokens",
            packing(logits_index=lambda new, _: starts_of(lengths_of(new))),
            says="Those are the first tokens",
        ),
        Wrong(
            "logits counted within each part",
            packing(logits_index=lambda new, _: [len(t) - 1 for t in new]),
            says="You counted within each sequence",
        ),
        Wrong(
            "logits at positions",
            packing(logits_index=lambda new, old: [len(t) + c - 1 for t, c in zip(new, old)]),
            says="Those are positions in the sequences",
        ),
        Wrong("lists", packs_lists, says="should be a torch tensor"),
        Wrong("a batch axis", packs_with_a_row_axis, says="has no batch axis"),
        Wrong("floats", packs_floats, says="should be int64 (or int32); yours is float32"),
        Wrong("positions of 8 bits", packs_eight_bits, says="overflows fewer bits"),
        Wrong("cached lengths looked up", cached_by_value, says="Do you look it up by the tokens"),
        Wrong("a tuple", returns_the_fields, says="yours returned tuple"),
        Wrong("no sequences", needs_a_sequence, says="without sequences, `cu_seqlens_q` should be [0]"),
        Wrong("floats when there are no sequences", float_when_empty, says="no element to infer the dtype from"),
        Wrong("rejects prefills", rejects_prefills, says="A cached length of 0 is a prefill"),
        Wrong("rejects token 0", rejects_token_0, says="0 is a token id like any other"),
        Wrong(
            "each token once",
            packing(input_ids=lambda new, _: flat(dict.fromkeys(tokens) for tokens in new)),
            says="may contain the same token more than once",
        ),
        Wrong(
            "an id for each list of tokens",
            packing(seq_ids=lambda new, _: flat([new.index(tokens)] * len(tokens) for tokens in new)),
            says="Two sequences with the same new tokens get the same id",
        ),
        Wrong(
            "-1 for all", packing(logits_index=lambda new, _: [-1] * len(new)), says="-1 is the end of the whole row"
        ),
        Wrong("two fields swapped", swaps_two_fields, says="`context_lens` and `logits_index` are swapped"),
        Wrong("empties the caller's list", empties_the_lists, says="your code changed its argument `new_tokens`"),
    ],
    "05.2": [
        Wrong(
            "as if each sequence were contiguous",
            scattering(as_if_contiguous),
            says="These tokens are adjacent in the joined cache",
        ),
        Wrong("only the new tokens", scattering(only_new), says="The cached tokens are missing"),
        Wrong("only the old tokens", scattering(only_old), says="The new tokens are missing"),
        Wrong("new before old", scattering(new_before_old), says="The new tokens come before the old ones"),
        Wrong("new tokens from the front", scattering(new_from_the_front), says="from the front of the joined cache"),
        Wrong(
            "old tokens from the front",
            scattering(old_from_the_front),
            says="the cached tokens from the front for every sequence",
        ),
        Wrong(
            "new tokens from the end",
            scattering(new_from_the_end),
            says="the end of the joined cache for every sequence",
        ),
        Wrong(
            "the first new tokens for every sequence",
            scatter_at(lambda packed, _: sum(packed.cached_lens)),
            says="Your new ones begin at index 2",
        ),
        Wrong(
            "cached parts padded to the longest",
            scatter_at(
                lambda packed, i: len(packed.cached_lens) * max(packed.cached_lens) + sum(packed.new_lens[:i]),
            ),
            says="They should begin at index 3",
        ),
        Wrong(
            "one new token for every sequence",
            scatter_at(where_they_are, length=lambda _: 1),
            says="The end is missing",
        ),
        Wrong(
            "slices the heads",
            scatter_at(where_they_are, slices=lambda tensor, start, end: tensor[:, start:end]),
            says="differ along another axis",
        ),
        Wrong(
            "stops after the first sequence",
            lambda joined, packed: scatter_cache(joined, packed)[:1],
            says="Does it return or stop too early?",
        ),
        Wrong(
            "no end of the new part",
            scatter_at(where_they_are, length=lambda _: 1000),
            says="own tokens are right, but others follow",
        ),
        Wrong("old parts too far to the right", old_too_far_right, says="Your old ones begin at index 2"),
        Wrong("one list of pairs for all", one_list_of_pairs, says="pairs of another sequence"),
        Wrong("three axes", without_the_batch_axis, says="An axis is missing"),
        Wrong("everything for every sequence", scattering(everything_for_all), says="That is the whole joined cache"),
        Wrong("splits the heads", scattering(along_the_heads), says="the split sizes don't add up"),
        Wrong(
            "concatenates the heads", scattering(joined_along_the_heads), says="The tokens are the third axis: split"
        ),
        Wrong("keys and values swapped", swaps_keys_and_values, says="these are values"),
        Wrong("keys as values", keys_as_values, says="Take its values from `layer.values`"),
        Wrong("layer 0 for all", first_layer_for_all, says="Every layer has its own keys and values"),
        Wrong("the last layer only", last_layer_only, says="should have 3 layers; yours has 1"),
        Wrong("grouped by layer", by_layers, says="Did you group by layer"),
        Wrong("pairs, not caches", pairs_for_caches, says="should be a DynamicCache; yours is list"),
        Wrong("caches in reverse order", in_reverse_order, says="the tokens of B, where A's should be"),
        Wrong("one cache for all", one_object_for_all, says="the same cache object"),
        Wrong("no cache for a new sequence", only_those_with_a_cache, says="even if nothing was cached before"),
        Wrong("returns nothing", forgets_to_return, says="yours returned NoneType"),
        Wrong("layers not initialized", layers_not_initialized, says="it reports 0"),
    ],
    "05.3": [
        Wrong("no positions", passing(position_ids=lambda *_: None), says="wasn't given positions"),
        Wrong(
            "positions through the row",
            passing(position_ids=lambda packed, _: torch.arange(len(packed.positions))[None]),
            says="the positions should be",
        ),
        Wrong("no mask", passing(attention_mask=lambda *_: None), says="wasn't given a mask"),
        Wrong(
            "a mask of two axes",
            passing(attention_mask=lambda packed, _: packed_mask(packed)),
            says="The axes are batch, heads, queries, keys",
        ),
        Wrong(
            "every cached key is visible",
            passing(attention_mask=diagonal_of_new_tokens),
            says="the mask isn't right for this pass",
        ),
        Wrong(
            "a column for each key, sequence by sequence",
            passing(attention_mask=columns_by_sequence),
            says="the keys in another order, sequence by sequence?",
        ),
        Wrong(
            "a column for each key, the new ones first",
            passing(attention_mask=columns_of_new_keys_first),
            says="the keys in another order, the new ones first?",
        ),
        Wrong(
            "no token sees itself",
            passing(attention_mask=lambda packed, _: mask_by(packed, lambda key, query: key < query)),
            says="doesn't let A's token at position 0 attend to itself",
        ),
        Wrong(
            "no sequence ids",
            passing(attention_mask=lambda packed, _: mask_by(packed, lambda key, query: key <= query, ids=False)),
            says="yours lets A's token at position 0 attend to B's token at position 0",
        ),
        Wrong(
            "the later tokens too",
            passing(attention_mask=lambda packed, _: mask_by(packed, lambda key, query: key >= 0 * query)),
            says="yours lets A's token at position 0 attend to A's token at position 1",
        ),
        Wrong("logits on the CPU", forward_to_the_cpu, says="copied off the model's device"),
        Wrong(
            "a mask for the new tokens only",
            passing(attention_mask=without_the_cached_keys),
            says="the mask should have shape [1, 1, 2, 7]",
        ),
        Wrong(
            "a float mask",
            passing(attention_mask=lambda packed, _: packed_mask(packed)[None, None].float()),
            says="a 1 hides nothing",
        ),
        Wrong("no cache", passing(past_key_values=lambda *_: None), says="no cache to append them to"),
        Wrong(
            "ignores a filled cache",
            passing(past_key_values=lambda _, cache: cache if not cache.get_seq_length() else None),
            says="wasn't given the cache",
        ),
        Wrong(
            "a copy of the cache",
            passing(past_key_values=lambda _, cache: copy.deepcopy(cache)),
            says="Pass `cache` itself to the model, not a copy",
        ),
        Wrong(
            "flat tokens",
            passing(input_ids=lambda packed, _: packed.input_ids),
            says="`input_ids` should be the row with a batch axis",
        ),
        Wrong(
            "logits of all tokens", passing(logits_to_keep=lambda *_: None), says="Those are the logits of every token"
        ),
        Wrong(
            "logits of the last token",
            passing(logits_to_keep=lambda *_: 1),
            says="`logits_to_keep=1` keeps only the last token of the row",
        ),
        Wrong(
            "logits selected afterwards",
            passing(lambda logits, packed: logits[0, packed.logits_index], logits_to_keep=lambda *_: None),
            says="the model computed them for",
        ),
        Wrong(
            "logits selected twice",
            passing(lambda logits, packed: logits[0, packed.logits_index]),
            says="Is it used a second time?",
        ),
        Wrong(
            "logits of the first tokens",
            passing(logits_to_keep=lambda packed, _: packed.cu_seqlens_q[:-1]),
            says="Yours are those after position",
        ),
        Wrong(
            "keeps the batch axis",
            passing(lambda logits, _: logits),
            says="The batch has just one row: take `.logits[0]`",
        ),
        Wrong("arguments without names", arguments_without_names, says="Their order differs from model to model"),
        Wrong(
            "logits one too far",
            passing(logits_to_keep=lambda packed, _: packed.cu_seqlens_q[1:]),
            says="at the index before its end",
        ),
        Wrong(
            "logits at the last positions",
            passing(logits_to_keep=lambda packed, _: packed.context_lens - 1),
            says="Those are positions in the sequences",
        ),
        Wrong(
            "positions without an axis",
            passing(position_ids=lambda packed, _: packed.positions),
            says="`position_ids` should have shape [1, 3]",
        ),
        Wrong(
            "the mask inverted",
            passing(attention_mask=lambda packed, _: ~packed_mask(packed)[None, None]),
            says="the mask is inverted",
        ),
        Wrong(
            "tokens back to front",
            passing(input_ids=lambda packed, _: packed.input_ids.flip(0)[None]),
            says="The tokens go in as they are",
        ),
        Wrong("a mask kept by its shape", mask_kept_by_shape(), says="two rows of A and B, nothing cached: [5, 6] new"),
        Wrong("leaves the inputs on the CPU", passing(), says="`input_ids` is on the CPU, but the model isn't"),
        Wrong("squeezes", passing(lambda logits, _: logits.squeeze()), says="The sequence axis is gone"),
        Wrong("probabilities", passing(lambda logits, _: logits[0].softmax(-1)), says="These are probabilities"),
        Wrong("tokens", passing(lambda logits, _: logits[0].argmax(-1)), says="These look like token ids"),
        Wrong("the whole output", whole_output, says="whole output"),
        Wrong("0 times infinity", passing(attention_mask=zero_times_infinity), says="the mask contains NaN"),
        Wrong("an extra pass", one_pass_each, says="there should be one forward pass"),
        Wrong("no pass", nothing_computed, says="never called the model"),
        Wrong("two passes over one cache", two_passes_over_one_cache, says="and the last one failed"),
    ],
    "05.4": [
        Wrong(
            "the whole sequence in every step",
            stepping(new_tokens=whole_sequence_again, cached=lambda _: 0, count=lambda r, _: len(known(r))),
            says="Only the token from the previous step",
        ),
        Wrong(
            "the last token of the prompt only", stepping(new_tokens=lambda r: known(r)[-1:]), says="its whole prompt"
        ),
        Wrong(
            "the last token of a half-computed prompt",
            stepping(new_tokens=lambda r: known(r)[-1:] if r.num_computed_tokens else known(r)),
            says="neither the whole prompt nor just the last token",
        ),
        Wrong(
            "the newest token of the answer if anything is computed",
            stepping(new_tokens=lambda r: [r.output_ids[-1]] if r.num_computed_tokens else r.prompt_ids),
            says="neither the whole prompt nor just the last token",
        ),
        Wrong("prefill and decode by cases", step_by_cases, says="neither the whole prompt nor just the last token"),
        Wrong("cached length always 0", stepping(cached=lambda _: 0), says="you passed 0 to `pack`"),
        Wrong("counts nothing", stepping(count=lambda r, _: r.num_computed_tokens), says="It hasn't changed"),
        Wrong("counts what goes on", counts_what_goes_on, says="Does your code count only requests that go on"),
        Wrong(
            "counts one token a step",
            stepping(count=lambda r, _: r.num_computed_tokens + 1),
            says="by the length of the prompt, not by one",
        ),
        Wrong(
            "counts the new token too",
            stepping(count=lambda r, tokens: r.num_computed_tokens + len(tokens) + 1),
            says="You counted the new token as well",
        ),
        Wrong("counts this row only", stepping(count=lambda _, tokens: len(tokens)), says="instead of replacing it"),
        Wrong(
            "a list for each token",
            stepping(take=lambda logits: [[token] for token in logits.argmax(dim=-1).tolist()]),
            says="A token id is a plain int. `request",
        ),
        Wrong("retires in the loop", retires_in_the_loop, says="B was in the row but got no token"),
        Wrong("retires in the loop, by index", retires_by_index, says="3 requests were in the row; 2 are left in"),
        Wrong("admits from the back", stepping(end=admits_from_the_back), says="from the front of the queue"),
        Wrong("the longest part first", stepping(members=longest_first), says="changed the order of `batch.running`"),
        Wrong(
            "packs the shortest part first", stepping(members=shortest_first), says="in the order of `batch.running`"
        ),
        Wrong("packs prompts first", stepping(members=prompts_first), says="in the order of `batch.running`"),
        Wrong("appends tensors", stepping(take=lambda logits: logits.argmax(dim=-1)), says="yours contains tensors"),
        Wrong("appends by hand", stepping(append=append_by_hand), says="also updates the request's state"),
        Wrong("appends nothing", stepping(append=lambda *_: None), says="Every request in the row gets a token"),
        Wrong(
            "the lowest logit",
            stepping(take=lambda logits: logits.argmin(dim=-1).tolist()),
            says="its argmax is that request's next token",
        ),
        Wrong(
            "argmax over the requests",
            stepping(take=lambda logits: logits.argmax(dim=0).tolist()),
            says="`dim=0` finds the best request",
        ),
        Wrong(
            "all but the newest token",
            stepping(new_tokens=lambda r: (r.prompt_ids + r.output_ids[:-1])[r.num_computed_tokens :]),
            says="it is the newest token of the answer",
        ),
        Wrong("a pass for each", one_pass_for_each, says="One pass per request is a loop"),
        Wrong(
            "only the requests that prefill",
            stepping(members=prefills_or_decodes),
            says="2 requests are running; your row has parts for 1",
        ),
        Wrong(
            "the first only",
            stepping(members=lambda batch: batch.running[:1]),
            says="A (prompt of 4 tokens), B (prompt of 3) and C",
        ),
        Wrong(
            "in another order",
            stepping(members=lambda batch: batch.running[::-1]),
            says="in the order of `batch.running`",
        ),
        Wrong("never retires", stepping(end=admit), says="it is still in `batch.running`"),
        Wrong("never admits", stepping(end=retire), says="End the step with `admit(batch)`"),
        Wrong(
            "admits before it retires",
            stepping(end=admits_before_it_retires),
            says="you seem to admit before you retire",
        ),
        Wrong("retires by hand in a loop", stepping(end=retires_by_hand), says="remove elements from a list while"),
        Wrong("leaves the cache behind", stepping(end=forgets_the_cache), says="is still in `batch.caches`"),
        Wrong("admits by hand", stepping(end=admits_by_hand), says="starts to prefill and gets an empty cache"),
        Wrong(
            "retires only if a request waits",
            stepping(end=retires_only_for_others),
            says="even if the queue is empty",
        ),
        Wrong("waits for all", stepping(end=with_barrier), says="admitted as long as there is room"),
        Wrong(
            "changes the prompt",
            stepping(new_tokens=adds_to_the_prompt),
            says="`prompt_ids + output_ids` makes a new list",
        ),
        Wrong(
            "retires and admits at the start",
            starts_with_admission,
            says="at the start of a step, or before the tokens are appended",
        ),
        Wrong("two rows a step", two_rows, says="a step should compute one row; yours started a second"),
        Wrong("its own forward", own_forward, says="never called the `forward`"),
        Wrong("running requests sorted", sorts_the_running, says="changed the order of `batch.running`"),
        Wrong("end token dropped", stepping(append=drops_the_end_token), says="The end token is part of the answer"),
        Wrong("retires by the limit", stepping(end=retires_by_the_limit), says="also finishes with its end token"),
        Wrong("counted before the pass", counts_before_the_pass, says="has changed it before the pass"),
        Wrong("lists for forward", passes_lists, says="you passed list"),
        Wrong("computes nothing", computes_nothing, says="nothing was computed"),
        Wrong(
            "leaves when all are finished", stepping(end=leaves_when_all_are_finished), says="Neither A nor B has left"
        ),
    ],
}

RIGHT = {
    "05.1": [pack_by_tensors, pack_by_loop, pack_in_int32, validates_nothing],
    "05.2": [scatter_by_updates, scatter_by_index, scatter_by_tags],
    "05.3": [forward_with_an_additive_mask, forward_in_two_parts],
    "05.4": [step_with_copies, step_by_context_lens, step_in_two_loops, step_with_slices],
}
