"""Answers to the exercises of lesson 06: wrong answers that learners give, and other right ones."""

import dataclasses

import torch
import torch.nn.functional as F

from answers import Wrong
from lessons_lib.attention.online_softmax import Partial, add_block, add_block_naive, attention_of, merge, nothing_seen
from lessons_lib.attention.plain_attention import attention_in_place
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

NONE = float("-inf")

# 06.1 PagedKVCache


def caching(write=PagedKVCache.write, read=PagedKVCache.read):
    """The reference with one method replaced."""
    return type("PagedKVCache", (PagedKVCache,), {"write": write, "read": read})


def writes_values_as_keys(self, layer, keys, values, slot_mapping):
    PagedKVCache.write(self, layer, values, keys, slot_mapping)


def writes_keys_only(self, layer, keys, values, slot_mapping):
    self.keys[layer].flatten(0, 1)[slot_mapping] = keys


def writes_keys_twice(self, layer, keys, values, slot_mapping):
    PagedKVCache.write(self, layer, keys, keys, slot_mapping)


def writes_into_a_copy(self, layer, keys, values, slot_mapping):
    self.keys[layer].flatten(0, 1)[slot_mapping].copy_(keys)
    self.values[layer].flatten(0, 1)[slot_mapping].copy_(values)


def writes_to_consecutive_slots(self, layer, keys, values, slot_mapping):
    first = int(slot_mapping[0])
    PagedKVCache.write(
        self, layer, keys, values, torch.arange(first, first + len(keys)) % (self.num_blocks * self.block_size)
    )


def writes_in_sorted_order(self, layer, keys, values, slot_mapping):
    PagedKVCache.write(self, layer, keys, values, slot_mapping.sort().values)


def swaps_block_and_offset(self, layer, keys, values, slot_mapping):
    slots = slot_mapping % self.num_blocks * self.block_size + slot_mapping // self.num_blocks
    PagedKVCache.write(self, layer, keys, values, slots)


def writes_every_layer(self, layer, keys, values, slot_mapping):
    for number in range(len(self.keys)):
        PagedKVCache.write(self, number, keys, values, slot_mapping)


def writes_the_first_layer(self, layer, keys, values, slot_mapping):
    PagedKVCache.write(self, 0, keys, values, slot_mapping)


def makes_a_new_tensor(self, layer, keys, values, slot_mapping):
    self.keys[layer], self.values[layer] = self.keys[layer].clone(), self.values[layer].clone()
    PagedKVCache.write(self, layer, keys, values, slot_mapping)


def takes_the_slot_for_a_block(self, layer, keys, values, slot_mapping):
    self.keys[layer][slot_mapping // self.block_size] = keys[:, None]
    self.values[layer][slot_mapping // self.block_size] = values[:, None]


def indexes_twice(self, layer, keys, values, slot_mapping):
    self.keys[layer][slot_mapping // self.block_size][slot_mapping % self.block_size] = keys
    self.values[layer][slot_mapping // self.block_size][slot_mapping % self.block_size] = values


def writes_token_by_token(self, layer, keys, values, slot_mapping):
    for key, value, slot in zip(keys, values, slot_mapping.tolist()):
        block, offset = divmod(slot, self.block_size)
        self.keys[layer][block, offset] = key
        self.values[layer][block, offset] = value


def empties_the_rest(self, layer, keys, values, slot_mapping):
    self.keys[layer].zero_()
    self.values[layer].zero_()
    PagedKVCache.write(self, layer, keys, values, slot_mapping)


def keeps_the_first_index(self, layer, keys, values, slot_mapping):
    if not hasattr(self, "index"):
        self.index = slot_mapping
    PagedKVCache.write(self, layer, keys, values, self.index)


def keeps_an_index_per_layer_and_length(self, layer, keys, values, slot_mapping):
    known = self.__dict__.setdefault("known", {})
    PagedKVCache.write(self, layer, keys, values, known.setdefault((layer, len(keys)), slot_mapping))


def works_out_the_index_in_layer_0(self, layer, keys, values, slot_mapping):
    if layer == 0 or not hasattr(self, "index"):
        self.index = slot_mapping
    PagedKVCache.write(self, layer, keys, values, self.index)


def views_the_new_rows(self, layer, keys, values, slot_mapping):
    for cache, new in ((self.keys[layer], keys), (self.values[layer], values)):
        cache.view(self.num_blocks * self.block_size, -1)[slot_mapping] = new.view(len(new), -1)


def squeezes_the_new_rows(self, layer, keys, values, slot_mapping):
    self.keys[layer].flatten(0, 1)[slot_mapping] = keys.squeeze()
    self.values[layer].flatten(0, 1)[slot_mapping] = values.squeeze()


def writes_float32(self, layer, keys, values, slot_mapping):
    self.keys[layer].flatten(0, 1)[slot_mapping] = keys.float()
    self.values[layer].flatten(0, 1)[slot_mapping] = values.float()


def views_like_layer_0(self, layer, keys, values, slot_mapping):
    for caches, new in ((self.keys, keys), (self.values, values)):
        caches[layer].view(-1, *caches[0].shape[2:])[slot_mapping] = new


def fills_a_block_at_once(self, layer, keys, values, slot_mapping):
    block, offset = divmod(int(slot_mapping[0]), self.block_size)
    if len(keys) == self.block_size and offset == 0:
        self.keys[layer][block], self.values[layer][block] = keys, values
    else:
        PagedKVCache.write(self, layer, keys, values, slot_mapping)


def writes_through_numpy(self, layer, keys, values, slot_mapping):
    for cache, new in ((self.keys[layer], keys), (self.values[layer], values)):
        rows = cache.numpy()
        rows.reshape(-1, *rows.shape[2:])[slot_mapping.numpy()] = new.numpy()


def reads_whole_blocks(self, layer, blocks, num_tokens):
    return tuple(cache[layer][blocks].flatten(0, 1) for cache in (self.keys, self.values))


def reads_full_blocks_only(self, layer, blocks, num_tokens):
    return tuple(
        part[: num_tokens // self.block_size * self.block_size]
        for part in PagedKVCache.read(self, layer, blocks, num_tokens)
    )


def reads_one_too_few(self, layer, blocks, num_tokens):
    return PagedKVCache.read(self, layer, blocks, num_tokens - 1)


def reads_sorted_blocks(self, layer, blocks, num_tokens):
    return PagedKVCache.read(self, layer, sorted(blocks), num_tokens)


def reads_reversed_blocks(self, layer, blocks, num_tokens):
    return PagedKVCache.read(self, layer, blocks[::-1], num_tokens)


def reads_the_last_tokens(self, layer, blocks, num_tokens):
    return tuple(cache[layer][blocks].flatten(0, 1)[-num_tokens:] for cache in (self.keys, self.values))


def reads_blocks_apart(self, layer, blocks, num_tokens):
    return self.keys[layer][blocks], self.values[layer][blocks]


def reads_keys_only(self, layer, blocks, num_tokens):
    return PagedKVCache.read(self, layer, blocks, num_tokens)[0]


def reads_values_first(self, layer, blocks, num_tokens):
    return tuple(reversed(PagedKVCache.read(self, layer, blocks, num_tokens)))


def reads_the_first_layer(self, layer, blocks, num_tokens):
    return PagedKVCache.read(self, 0, blocks, num_tokens)


def takes_blocks_for_slots(self, layer, blocks, num_tokens):
    slots = [(blocks[0] + position) % (self.num_blocks * self.block_size) for position in range(num_tokens)]
    return tuple(cache[layer].flatten(0, 1)[slots] for cache in (self.keys, self.values))


def mixes_heads_and_offsets(self, layer, blocks, num_tokens):
    pages = [cache[layer][blocks] for cache in (self.keys, self.values)]
    return tuple(own.transpose(1, 2).reshape(-1, *own.shape[2:])[:num_tokens] for own in pages)


def reads_one_head(self, layer, blocks, num_tokens):
    return tuple(part[:, 0] for part in PagedKVCache.read(self, layer, blocks, num_tokens))


def reads_keys_twice(self, layer, blocks, num_tokens):
    return (PagedKVCache.read(self, layer, blocks, num_tokens)[0],) * 2


def reads_on_from_the_first_block(self, layer, blocks, num_tokens):
    start = blocks[0] * self.block_size
    return tuple(cache[layer].flatten(0, 1)[start : start + num_tokens] for cache in (self.keys, self.values))


def reads_block_ids_as_slots(self, layer, blocks, num_tokens):
    return tuple(cache[layer].flatten(0, 1)[blocks][:num_tokens] for cache in (self.keys, self.values))


def counts_blocks_instead_of_tokens(self, layer, blocks, num_tokens):
    filled = (num_tokens - 1) % self.block_size + 1
    last = (len(blocks) - 1) * self.block_size + filled
    return tuple(cache[layer][blocks].flatten(0, 1)[:last] for cache in (self.keys, self.values))


def sorts_the_blocks_in_place(self, layer, blocks, num_tokens):
    blocks.sort()
    return PagedKVCache.read(self, layer, blocks, num_tokens)


def reads_lists(self, layer, blocks, num_tokens):
    return tuple(part.tolist() for part in PagedKVCache.read(self, layer, blocks, num_tokens))


def writes_by_block_and_offset(self, layer, keys, values, slot_mapping):
    block, offset = slot_mapping // self.block_size, slot_mapping % self.block_size
    self.keys[layer][block, offset] = keys
    self.values[layer][block, offset] = values


def reads_by_concatenation(self, layer, blocks, num_tokens):
    keys = torch.cat([self.keys[layer][block] for block in blocks])
    values = torch.cat([self.values[layer][block] for block in blocks])
    return [keys[:num_tokens], values[:num_tokens]]


def writes_with_index_copy(self, layer, keys, values, slot_mapping):
    shape = (-1, *self.keys[layer].shape[2:])
    self.keys[layer].view(shape).index_copy_(0, slot_mapping, keys)
    self.values[layer].view(shape).index_copy_(0, slot_mapping, values)


def reads_by_slots(self, layer, blocks, num_tokens):
    position = torch.arange(num_tokens)
    slots = torch.tensor(blocks)[position // self.block_size] * self.block_size + position % self.block_size
    return self.keys[layer].flatten(0, 1)[slots], self.values[layer].flatten(0, 1)[slots]


# 06.2 add_block


def adding(maximum=None, weights=None, rescale=None, output_rescale=None):
    """`add_block` with one of its parts replaced."""

    def attempt(seen, scores, values):
        new = (maximum or (lambda seen, scores: torch.maximum(seen.maximum, scores.max(dim=1).values)))(seen, scores)
        reference = new.masked_fill(new == NONE, 0.0)
        w = weights(seen, scores, reference) if weights else (scores - reference[:, None]).exp()
        factor = rescale(seen, reference) if rescale else (seen.maximum - reference).exp()
        of_output = output_rescale(seen, reference) if output_rescale else factor
        return Partial(new, seen.total * factor + w.sum(dim=1), seen.output * of_output[:, None] + w @ values)

    return attempt


def forgets_the_trap(seen, scores, values):
    maximum = torch.maximum(seen.maximum, scores.max(dim=1).values)
    weights, rescale = (scores - maximum[:, None]).exp(), (seen.maximum - maximum).exp()
    return Partial(
        maximum, seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
    )


def of_the_block(seen, scores, reference):
    own = scores.max(dim=1).values
    return (scores - own.masked_fill(own == NONE, 0.0)[:, None]).exp()


def replaces_the_old_maximum(seen, scores, values):
    done = add_block(seen, scores, values)
    old, new = (maximum.masked_fill(maximum == NONE, 0.0) for maximum in (seen.maximum, done.maximum))
    factor, weights = (old - new).exp(), (scores - new[:, None]).exp()
    return Partial(
        done.maximum, seen.total * factor + weights.sum(dim=1), seen.output * factor[:, None] + weights @ values
    )


def returns_the_zero_filled_in(seen, scores, values):
    done = add_block(seen, scores, values)
    return dataclasses.replace(done, maximum=done.maximum.masked_fill(done.maximum == NONE, 0.0))


def divides_already(seen, scores, values):
    done = add_block(seen, scores, values)
    return dataclasses.replace(done, output=done.output / done.total[:, None])


def keeps_the_attention(seen, scores, values):
    done = add_block(seen, scores, values)
    weights = (scores - done.maximum.masked_fill(done.maximum == NONE, 0.0)[:, None]).exp()
    output = (done.total - weights.sum(dim=1))[:, None] * seen.output + weights @ values
    return dataclasses.replace(done, output=output / done.total.masked_fill(done.total == 0, 1.0)[:, None])


def returns_the_attention(seen, scores, values):
    done = add_block(seen, scores, values)
    return done.output / done.total[:, None]


def forgets_the_past(seen, scores, values):
    done = add_block(seen, scores, values)
    weights = (scores - done.maximum.masked_fill(done.maximum == NONE, 0.0)[:, None]).exp()
    return Partial(done.maximum, weights.sum(dim=1), weights @ values)


def rescales_everything(seen, scores, values):
    maximum = torch.maximum(seen.maximum, scores.max(dim=1).values)
    weights, rescale = (scores - maximum[:, None]).exp(), (seen.maximum - maximum).exp()
    return Partial(
        maximum, (seen.total + weights.sum(dim=1)) * rescale, (seen.output + weights @ values) * rescale[:, None]
    )


def changes_its_input(seen, scores, values):
    done = add_block(seen, scores, values)
    seen.total.copy_(done.total)
    return done


def decides_by_query_0(seen, scores, values):
    done = add_block(seen, scores, values)
    if scores[0].max() > seen.maximum[0]:
        return done
    weights = (scores - done.maximum.masked_fill(done.maximum == NONE, 0.0)[:, None]).exp()
    return Partial(done.maximum, seen.total + weights.sum(dim=1), seen.output + weights @ values)


def keeps_everything_if_query_0_sees_nothing(seen, scores, values):
    return seen if scores[0].max() == NONE else add_block(seen, scores, values)


def adds_powers_of_2(seen, scores, values):
    maximum = torch.maximum(seen.maximum, scores.max(dim=1).values)
    weights, rescale = 2 ** (scores - maximum[:, None]), 2 ** (seen.maximum - maximum)
    return Partial(
        maximum, seen.total * rescale + weights.sum(dim=1), seen.output * rescale[:, None] + weights @ values
    )


def clamps_the_maximum(seen, scores, values):
    done = add_block(seen, scores, values)
    return dataclasses.replace(done, maximum=done.maximum.clamp(min=-1e9))


def bounded_below(least):
    """`add_block` that subtracts at least this much."""

    def attempt(seen, scores, values):
        new = torch.maximum(seen.maximum, scores.max(dim=1).values)
        weights, factor = (scores - new.clamp(min=least)[:, None]).exp(), (seen.maximum - new.clamp(min=least)).exp()
        return Partial(new, seen.total * factor + weights.sum(dim=1), seen.output * factor[:, None] + weights @ values)

    return attempt


def of_the_old_maximum(seen, scores, reference):
    return (scores - torch.where(seen.maximum == NONE, reference, seen.maximum)[:, None]).exp()


def turns_nan_into_1(seen, scores, reference):
    new = torch.maximum(seen.maximum, scores.max(dim=1).values)
    return (scores - new[:, None]).exp().nan_to_num(nan=1.0)


def adds_1_to_the_total(seen, scores, values):
    done, own = add_block(seen, scores, values), forgets_the_past(seen, scores, values)
    return dataclasses.replace(done, total=done.total - own.total + 1)


def rescales_the_new_sums(seen, scores, values):
    done, own = add_block(seen, scores, values), forgets_the_past(seen, scores, values)
    factor = (seen.maximum - done.maximum.masked_fill(done.maximum == NONE, 0.0)).exp()
    return Partial(done.maximum, seen.total + own.total * factor, seen.output + own.output * factor[:, None])


def keeps_an_axis(seen, scores, values):
    done = add_block(seen, scores, values)
    return dataclasses.replace(done, maximum=done.maximum[:, None])


def takes_values_and_indices(seen, scores, values):
    done = add_block(seen, scores, values)
    return dataclasses.replace(done, maximum=scores.max(dim=1))


def refuses_rescaling_of_the_output(seen, scores, values):
    done = add_block(seen, scores, values)
    weights = (scores - done.maximum.masked_fill(done.maximum == NONE, 0.0)[:, None]).exp()
    return dataclasses.replace(done, output=seen.output + weights @ values)


def bare_with_a_maximum(seen, scores, values):
    done = add_block_naive(seen, scores, values)
    return dataclasses.replace(done, maximum=torch.maximum(seen.maximum, scores.max(dim=1).values))


def adds_a_small_number(seen, scores, values):
    done = add_block(seen, scores, values)
    return dataclasses.replace(done, total=done.total + 1e-6)


def keeps_the_largest_score(seen, scores, values):
    largest = keeps_the_largest_score.__dict__.setdefault("largest", {})
    maximum = torch.maximum(seen.maximum, scores.amax(dim=1))
    maximum = largest[len(maximum)] = torch.maximum(maximum, largest.get(len(maximum), maximum))
    reference = maximum.masked_fill(maximum == NONE, 0.0)
    factor, weights = (seen.maximum - reference).exp(), (scores - reference[:, None]).exp()
    return Partial(maximum, seen.total * factor + weights.sum(dim=1), seen.output * factor[:, None] + weights @ values)


def add_as_a_merge(seen, scores, values):
    own = scores.amax(1)
    weights = torch.nan_to_num(torch.exp(scores - own.unsqueeze(1)), nan=0.0)
    return merge(seen, Partial(own, weights.sum(1), weights @ values))


def add_with_where(seen, scores, values):
    maximum = torch.cat([seen.maximum[:, None], scores], dim=1).max(dim=1)[0]
    nothing = torch.isinf(maximum)
    factor = torch.where(nothing, torch.ones_like(maximum), torch.exp(seen.maximum - maximum))
    weights = torch.where(nothing[:, None], torch.zeros_like(scores), torch.exp(scores - maximum[:, None]))
    output = factor[:, None] * seen.output + torch.einsum("qk,kd->qd", weights, values)
    return Partial(maximum=maximum, total=factor * seen.total + weights.sum(-1), output=output)


def add_query_by_query(seen, scores, values):
    rows = []
    for q in range(len(scores)):
        new = max(seen.maximum[q].item(), scores[q].max().item())
        if new == NONE:
            rows.append((seen.maximum[q], seen.total[q], seen.output[q]))
            continue
        factor, weights = torch.exp(seen.maximum[q] - new), torch.exp(scores[q] - new)
        maximum = torch.tensor(new, dtype=scores.dtype)
        rows.append((maximum, seen.total[q] * factor + weights.sum(), seen.output[q] * factor + weights @ values))
    return Partial(*(torch.stack(column) for column in zip(*rows)))


# 06.3 attention_in_place


def in_place(
    kv_head=lambda head, q_heads, kv_heads: head * kv_heads // q_heads,
    is_hidden=lambda key, query, num_new: key > query,
    slots_filled=lambda block_size, left: min(block_size, left),
    starts=lambda num_tokens, block_size: range(0, num_tokens, block_size),
    blocks_of=lambda blocks: blocks,
    of_scale=lambda scale, head_dim: scale,
    anew=False,
    once=False,
    finish=attention_of,
    caches=lambda keys, values: (keys, values),
    add=add_block,
):
    """`attention_in_place` with one mistake."""

    def attempt(query, keys, values, blocks, num_tokens, scale):
        num_new, q_heads, head_dim = query.shape
        block_size, kv_heads = keys.shape[1:3]
        keys, values = caches(keys, values)
        position = torch.arange(num_tokens - num_new, num_tokens)[:, None]
        out = torch.empty_like(query)
        seen = nothing_seen(num_new, head_dim, query.dtype)
        for head in range(q_heads):
            own = kv_head(head, q_heads, kv_heads)
            if not once:
                seen = nothing_seen(num_new, head_dim, query.dtype)
            for start, block in zip(starts(num_tokens, block_size), blocks_of(blocks)):
                if anew:
                    seen = nothing_seen(num_new, head_dim, query.dtype)
                filled = slots_filled(block_size, num_tokens - start)
                scores = query[:, head] @ keys[block, :filled, own].T * of_scale(scale, head_dim)
                hidden = is_hidden(torch.arange(start, start + filled), position, num_new)
                seen = add(seen, scores.masked_fill(hidden, NONE), values[block, :filled, own])
            out[:, head] = finish(seen)
        return out

    return attempt


def takes_every_block(query, keys, values, blocks, num_tokens, scale):
    num_new, q_heads, head_dim = query.shape
    size, kv_heads = keys.shape[1:3]
    position, out = torch.arange(num_tokens - num_new, num_tokens)[:, None], torch.empty_like(query)
    for head in range(q_heads):
        kv_head, seen = head * kv_heads // q_heads, nothing_seen(num_new, head_dim, query.dtype)
        for index, block in enumerate(blocks):
            filled = max(1, min(size, num_tokens - index * size))
            scores = query[:, head] @ keys[block, :filled, kv_head].T * scale
            key = torch.arange(index * size, index * size + filled)
            seen = add_block(seen, scores.masked_fill(key > position, NONE), values[block, :filled, kv_head])
        out[:, head] = attention_of(seen)
    return out


def walks_on_from_the_first_block(query, keys, values, blocks, num_tokens, scale):
    count = -(-num_tokens // keys.shape[1])
    following = [(blocks[0] + index) % len(keys) for index in range(count)]
    return attention_in_place(query, keys, values, following, num_tokens, scale)


def leaves_out_the_first_block(query, keys, values, blocks, num_tokens, scale):
    size = keys.shape[1]
    if num_tokens <= size:
        return attention_in_place(query, keys, values, blocks, num_tokens, scale)
    return attention_in_place(query, keys, values, blocks[1:], num_tokens - size, scale)


def reads_from_last_to_first(query, keys, values, blocks, num_tokens, scale):
    return attention_in_place(query, keys, values, blocks[::-1], num_tokens, scale)


def hides_with_a_finite_score(query, keys, values, blocks, num_tokens, scale):
    def add(seen, scores, block_values):
        return add_block(seen, scores.masked_fill(scores == NONE, -1e4), block_values)

    return in_place(add=add)(query, keys, values, blocks, num_tokens, scale)


def cuts_every_block(query, keys, values, blocks, num_tokens, scale):
    filled = num_tokens % keys.shape[1] or keys.shape[1]
    return in_place(slots_filled=lambda size, left: filled)(query, keys, values, blocks, num_tokens, scale)


def gathers_first(query, keys, values, blocks, num_tokens, scale):
    in_use = blocks[: -(-num_tokens // keys.shape[1])]
    own_keys, own_values = (cache[in_use].flatten(0, 1)[:num_tokens].transpose(0, 1) for cache in (keys, values))
    position = torch.arange(num_tokens)
    mask = position <= position[-len(query) :, None]
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None], own_keys[None], own_values[None], attn_mask=mask, scale=scale, enable_gqa=True
    )
    return attended[0].transpose(0, 1)


def keeps_all_scores(query, keys, values, blocks, num_tokens, scale):
    size, group = keys.shape[1], query.shape[1] // keys.shape[2]
    position = torch.arange(num_tokens)
    hidden = position > position[-len(query) :, None]
    out = torch.empty_like(query)
    for head in range(query.shape[1]):
        starts = range(0, num_tokens, size)
        scores = torch.cat(
            [
                query[:, head] @ keys[block, : min(size, num_tokens - start), head // group].T * scale
                for start, block in zip(starts, blocks)
            ],
            dim=1,
        )
        weights = scores.masked_fill(hidden, NONE).softmax(dim=1)
        out[:, head] = sum(
            weights[:, start : start + size] @ values[block, : min(size, num_tokens - start), head // group]
            for start, block in zip(starts, blocks)
        )
    return out


def averages_the_blocks(query, keys, values, blocks, num_tokens, scale):
    size, parts = keys.shape[1], []
    for start, block in zip(range(0, num_tokens, size), blocks):
        filled = min(size, num_tokens - start)
        parts.append(attention_in_place(query, keys, values, [block], filled, scale))
    return torch.stack(parts).mean(dim=0)


def adds_up_attentions(query, keys, values, blocks, num_tokens, scale):
    count = -(-num_tokens // keys.shape[1])
    return averages_the_blocks(query, keys, values, blocks, num_tokens, scale) * count


def mixes_heads_and_tokens(*arguments):
    out = attention_in_place(*arguments)
    return out.reshape(out.shape[1], out.shape[0], -1).transpose(0, 1)


def returns_heads_first(*arguments):
    return attention_in_place(*arguments).transpose(0, 1)


def returns_one_head(*arguments):
    return attention_in_place(*arguments)[:, 0]


def returns_the_state(query, keys, values, blocks, num_tokens, scale):
    return nothing_seen(len(query), query.shape[2])


def hides_with_0(query, keys, values, blocks, num_tokens, scale):
    def add(seen, scores, values):
        return add_block(seen, scores.masked_fill(scores == NONE, 0.0), values)

    return in_place(add=add)(query, keys, values, blocks, num_tokens, scale)


def hides_in_the_last_block(query, keys, values, blocks, num_tokens, scale):
    last = (num_tokens - 1) // keys.shape[1] * keys.shape[1]

    def is_hidden(key, query, num_new):
        return (key > query) & (key >= last)

    return in_place(is_hidden=is_hidden)(query, keys, values, blocks, num_tokens, scale)


def assumes_blocks_of_4(query, keys, values, blocks, num_tokens, scale):
    position = torch.arange(num_tokens - len(query), num_tokens)[:, None]
    heads = []
    for head in range(query.shape[1]):
        own = head * keys.shape[2] // query.shape[1]
        seen = nothing_seen(len(query), query.shape[2], query.dtype)
        for start in range(0, num_tokens, 4):
            filled = slice(0, min(4, num_tokens - start))
            scores = query[:, head] @ keys[blocks[start // 4], filled, own].T * scale
            hidden = torch.arange(start, start + scores.shape[1]) > position
            seen = add_block(seen, scores.masked_fill(hidden, NONE), values[blocks[start // 4], filled, own])
        heads.append(attention_of(seen))
    return torch.stack(heads, dim=1)


def computes_in_float32(query, keys, values, *rest):
    return attention_in_place(query.float(), keys.float(), values.float(), *rest)


def cleans_the_cache(query, keys, values, *rest):
    keys.nan_to_num_(0.0)
    return attention_in_place(query, keys, values, *rest)


def cuts_the_callers_list(query, keys, values, blocks, num_tokens, scale):
    in_order = []
    while len(in_order) * keys.shape[1] < num_tokens:
        in_order.append(blocks.pop(0))
    return attention_in_place(query, keys, values, in_order, num_tokens, scale)


def in_place_by_kv_head(query, keys, values, blocks, num_tokens, scale):
    (num_new, q_heads, head_dim), (size, kv_heads) = query.shape, keys.shape[1:3]
    group = q_heads // kv_heads
    position = torch.arange(num_tokens - num_new, num_tokens).repeat_interleave(group).unsqueeze(1)
    heads = []
    for head in range(kv_heads):
        rows = query[:, head * group : (head + 1) * group].reshape(-1, head_dim)
        seen = nothing_seen(len(rows), head_dim, query.dtype)
        for index in range(-(-num_tokens // size)):
            first = index * size
            last = min(first + size, num_tokens)
            block_keys, block_values = (cache[blocks[index], : last - first, head] for cache in (keys, values))
            scores = torch.where(torch.arange(first, last) > position, NONE, rows @ block_keys.T * scale)
            seen = add_block(seen, scores.to(query.dtype), block_values)
        heads.append(attention_of(seen).view(num_new, group, head_dim))
    return torch.cat(heads, dim=1)


def in_place_with_merge(query, keys, values, blocks, num_tokens, scale):
    """The blocks from last to first, each a part of its own."""
    size, kv_heads = keys.shape[1:3]
    num_new, q_heads, _ = query.shape
    out = []
    for head in range(q_heads):
        whole = None
        for start in reversed(range(0, num_tokens, size)):
            block, kv_head = blocks[start // size], head // (q_heads // kv_heads)
            own = slice(0, num_tokens - start)
            scores = query[:, head] @ (keys[block, own, kv_head].T * scale)
            key = start + torch.arange(scores.shape[1])
            query_position = num_tokens - num_new + torch.arange(num_new)
            scores[key[None] > query_position[:, None]] = NONE
            part = add_block(nothing_seen(num_new, query.shape[2], query.dtype), scores, values[block, own, kv_head])
            whole = part if whole is None else merge(whole, part)
        out.append(attention_of(whole))
    return torch.stack(out, dim=1)


def in_place_without_add_block(query, keys, values, blocks, num_tokens, scale):
    """All heads at once, with the running softmax written out."""
    size, kv_heads = keys.shape[1:3]
    num_new, q_heads, _ = query.shape
    positions = torch.arange(num_tokens - num_new, num_tokens)
    largest = torch.full((q_heads, num_new, 1), NONE, dtype=query.dtype)
    total, out = torch.zeros_like(largest), torch.zeros_like(query.transpose(0, 1))
    for i in range((num_tokens + size - 1) // size):
        filled = min(size, num_tokens - i * size)
        k, v = (
            c[blocks[i], :filled].repeat_interleave(q_heads // kv_heads, dim=1).transpose(0, 1) for c in (keys, values)
        )
        scores = query.transpose(0, 1) @ k.transpose(1, 2) * scale
        scores = scores.masked_fill(i * size + torch.arange(filled) > positions[:, None], NONE)
        new = torch.maximum(largest, scores.amax(dim=-1, keepdim=True))  # block 0 has a key for every query
        weights, factor = torch.exp(scores - new), torch.exp(largest - new)
        total, out, largest = total * factor + weights.sum(-1, keepdim=True), out * factor + weights @ v, new
    return (out / total).transpose(0, 1)


def in_place_token_by_token(query, keys, values, blocks, num_tokens, scale):
    size, group = keys.shape[1], query.shape[1] // keys.shape[2]
    out = torch.zeros_like(query)
    for new in range(query.shape[0]):
        visible = num_tokens - query.shape[0] + new + 1
        for head in range(query.shape[1]):
            seen, done = nothing_seen(1, query.shape[2], query.dtype), 0
            while done < visible:
                block = blocks[done // size]
                count = min(size, visible - done)
                k, v = keys[block][:count, head // group], values[block][:count, head // group]
                seen, done = add_block(seen, (query[new, head] * k).sum(-1)[None] * scale, v), done + count
            out[new, head] = attention_of(seen)[0]
    return out


# 06.4 paged_attention_forward


def forwarding(write=None, attend=None, result=None, scale=None, layer=None):
    """`paged_attention_forward` with one of its parts replaced."""

    def attempt(module, query, key, value, attention_mask, scaling=None, *, paged, **kwargs):
        number = layer if layer is not None else module.layer_idx
        if write:
            write(paged, number, key, value)
        else:
            paged.cache.write(number, key[0].transpose(0, 1), value[0].transpose(0, 1), paged.slot_mapping)
        factor = scale(query, scaling) if scale else (query.shape[-1] ** -0.5 if scaling is None else scaling)
        if attend:
            attended = attend(paged, number, query, key, value, factor)
        else:
            attended = paged.attend(
                query[0].transpose(0, 1), paged.cache.keys[number], paged.cache.values[number], factor
            )
        return result(attended) if result else (attended[None], None)

    return attempt


def attends_first(module, query, key, value, attention_mask, scaling=None, *, paged, **kwargs):
    layer, scale = module.layer_idx, query.shape[-1] ** -0.5 if scaling is None else scaling
    attended = paged.attend(query[0].transpose(0, 1), paged.cache.keys[layer], paged.cache.values[layer], scale)
    paged.cache.write(layer, key[0].transpose(0, 1), value[0].transpose(0, 1), paged.slot_mapping)
    return attended[None], None


def forwards_by_squeezing(module, query, key, value, attention_mask=None, scaling=None, paged=None, **kwargs):
    new_keys, new_values = (part.squeeze(0).permute(1, 0, 2) for part in (key, value))
    paged.cache.write(layer=module.layer_idx, keys=new_keys, values=new_values, slot_mapping=paged.slot_mapping)
    scale = scaling or 1 / query.size(-1) ** 0.5
    keys, values = paged.cache.keys[module.layer_idx], paged.cache.values[module.layer_idx]
    return paged.attend(query=query.squeeze(0).permute(1, 0, 2), keys=keys, values=values, scale=scale).unsqueeze(
        0
    ), None


def forwards_contiguous(module, query, key, value, *args, paged, scaling=None, **kwargs):
    rows = [part[0].transpose(0, 1).contiguous() for part in (query, key, value)]
    paged.cache.write(module.layer_idx, *rows[1:], paged.slot_mapping)
    if scaling is None:
        scaling = rows[0].shape[-1] ** -0.5
    return [
        paged.attend(rows[0], paged.cache.keys[module.layer_idx], paged.cache.values[module.layer_idx], scaling)[None],
        None,
    ]


def forwards_with_keywords(module, query, key, value, attention_mask, **kwargs):
    paged, scaling = kwargs["paged"], kwargs.get("scaling")
    tokens_first = [part[0].swapaxes(0, 1) for part in (query, key, value)]
    paged.cache.write(module.layer_idx, tokens_first[1], tokens_first[2], paged.slot_mapping)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return paged.attend(
        tokens_first[0], paged.cache.keys[module.layer_idx], paged.cache.values[module.layer_idx], scale
    )[None], None


# 06.5 merge


def merging(maximum=None, factors=None, join=None):
    """`merge` with one of its parts replaced."""

    def attempt(one, other):
        new = maximum(one, other) if maximum else torch.maximum(one.maximum, other.maximum)
        reference = new.masked_fill(new == NONE, 0.0)
        a, b = (
            factors(one, other, reference) if factors else [(part.maximum - reference).exp() for part in (one, other)]
        )
        total, output = one.total * a + other.total * b, one.output * a[:, None] + other.output * b[:, None]
        return Partial(new, *(join(total, output) if join else (total, output)))

    return attempt


def both(one, other, reference):
    return [(part.maximum - reference).exp() for part in (one, other)]


def merges_without_the_trap(one, other):
    maximum = torch.maximum(one.maximum, other.maximum)
    a, b = (one.maximum - maximum).exp(), (other.maximum - maximum).exp()
    return Partial(maximum, one.total * a + other.total * b, one.output * a[:, None] + other.output * b[:, None])


def merges_with_a_zero_filled_in(one, other):
    done = merge(one, other)
    return dataclasses.replace(done, maximum=done.maximum.masked_fill(done.maximum == NONE, 0.0))


def adds_attentions(one, other):
    done = merge(one, other)
    return dataclasses.replace(done, output=one.output / one.total[:, None] + other.output / other.total[:, None])


def keeps_the_larger(one, other):
    larger = one.maximum >= other.maximum
    total = torch.where(larger, one.total, other.total)
    return Partial(
        torch.maximum(one.maximum, other.maximum), total, torch.where(larger[:, None], one.output, other.output)
    )


def divides_the_merged(one, other):
    done = merge(one, other)
    return dataclasses.replace(done, output=done.output / done.total[:, None])


def merges_in_place(one, other):
    done = merge(one, other)
    one.output.copy_(done.output)
    return done


def forgets_the_factor_of_the_output(one, other):
    return dataclasses.replace(merge(one, other), output=one.output + other.output)


def returns_three_tensors(one, other):
    done = merge(one, other)
    return done.maximum, done.total, done.output


def merges_with_bare_exponentials(one, other):
    maximum = torch.maximum(one.maximum, other.maximum)
    a, b = one.maximum.exp() / maximum.exp(), other.maximum.exp() / maximum.exp()
    return Partial(
        maximum,
        torch.nan_to_num(one.total * a + other.total * b),
        torch.nan_to_num(one.output * a[:, None] + other.output * b[:, None]),
    )


def merges_and_adds_a_small_number(one, other):
    done = merge(one, other)
    return dataclasses.replace(done, total=done.total + 1e-6)


def merge_by_log_sum_exp(one, other):
    maximum = torch.maximum(one.maximum, other.maximum)
    weights = torch.stack([one.maximum, other.maximum]) - torch.where(maximum == NONE, 0.0, maximum)
    weights = weights.exp()
    total = (weights * torch.stack([one.total, other.total])).sum(dim=0)
    output = (weights[:, :, None] * torch.stack([one.output, other.output])).sum(dim=0)
    return Partial(maximum, total, output)


def merge_with_where(one, other):
    larger = one.maximum >= other.maximum
    difference = torch.where(
        one.maximum == other.maximum, torch.zeros_like(one.maximum), -(one.maximum - other.maximum).abs()
    )
    factor = difference.exp()
    a, b = torch.where(larger, 1.0, factor), torch.where(larger, factor, 1.0)
    maximum = torch.where(larger, one.maximum, other.maximum)
    return Partial(
        maximum, a * one.total + b * other.total, a.unsqueeze(-1) * one.output + b.unsqueeze(-1) * other.output
    )


def puts_the_offset_first(self, layer, keys, values, slot_mapping):
    where = slot_mapping % self.block_size, slot_mapping // self.block_size
    self.keys[layer][where], self.values[layer][where] = keys, values


def indexes_blocks_by_slot(self, layer, keys, values, slot_mapping):
    self.keys[layer][slot_mapping, 0], self.values[layer][slot_mapping, 0] = keys, values


def divides_by_num_blocks(self, layer, keys, values, slot_mapping):
    where = slot_mapping // self.num_blocks % self.num_blocks, slot_mapping % self.block_size
    self.keys[layer][where], self.values[layer][where] = keys, values


def reads_the_remainder(self, layer, blocks, num_tokens):
    rest = num_tokens % self.block_size
    *full, last = blocks[: -(-num_tokens // self.block_size)]
    return tuple(torch.cat([*cache[full], cache[last, :rest]]) for cache in (self.keys[layer], self.values[layer]))


def reads_the_first_slots(self, layer, blocks, num_tokens):
    return tuple(cache[layer].flatten(0, 1)[:num_tokens] for cache in (self.keys, self.values))


def counts_the_keys(seen, scores, values):
    right = add_block(seen, scores, values)
    rescale = (seen.maximum - right.maximum).exp()
    return dataclasses.replace(right, total=rescale * seen.total + scores.isfinite().sum(dim=1))


def adds_bare_values(seen, scores, values):
    right = add_block(seen, scores, values)
    rescale = (seen.maximum - right.maximum).exp()
    return dataclasses.replace(right, output=rescale[:, None] * seen.output + values.sum(dim=0))


def begins_again_after_a_hidden_block(seen, scores, values):
    if (scores == NONE).all():
        return nothing_seen(*seen.output.shape)
    return add_block(seen, scores, values)


def takes_a_maximum_per_key(seen, scores, values):
    right = add_block(seen, scores, values)
    return dataclasses.replace(right, maximum=torch.maximum(seen.maximum, scores.max(dim=0).values))


def reshapes_heads_into_tokens(query, keys, values, blocks, num_tokens, scale):
    right = attention_in_place(query, keys, values, blocks, num_tokens, scale)
    return right.transpose(0, 1).reshape(right.shape)


def scales_the_result(query, keys, values, blocks, num_tokens, scale):
    return scale * attention_in_place(query, keys, values, blocks, num_tokens, 1.0)


def reads_full_blocks_in_place(query, keys, values, blocks, num_tokens, scale):
    num_new, heads, head_dim = query.shape
    size, group = keys.shape[1], heads // keys.shape[2]
    out, position = torch.empty_like(query), torch.arange(num_tokens - num_new, num_tokens)[:, None]
    for head in range(heads):
        seen = nothing_seen(num_new, head_dim, query.dtype)
        for index in range(num_tokens // size):
            scores = query[:, head] @ keys[blocks[index], :, head // group].T * scale
            later = torch.arange(index * size, (index + 1) * size) > position
            seen = add_block(seen, scores.masked_fill(later, NONE), values[blocks[index], :, head // group])
        out[:, head] = attention_of(seen)
    return out


def cuts_the_last_entry(query, keys, values, blocks, num_tokens, scale):
    filled = num_tokens - (len(blocks) - 1) * keys.shape[1]
    torch.arange(filled)  # of the last entry, which may be unused
    return attention_in_place(query, keys, values, blocks, num_tokens, scale)


def stores_in_the_cache(paged, layer, key, value):
    for cache, new in ((paged.cache.keys, key), (paged.cache.values, value)):
        cache[layer].flatten(0, 1)[paged.slot_mapping] = new[0].transpose(0, 1)


def stores_keys_only(paged, layer, key, value):
    paged.cache.keys[layer].flatten(0, 1)[paged.slot_mapping] = key[0].transpose(0, 1)


def stores_in_the_first_slots(paged, layer, key, value):
    for cache, new in ((paged.cache.keys, key), (paged.cache.values, value)):
        cache[layer].flatten(0, 1)[: new.shape[2]] = new[0].transpose(0, 1)


def merges_with_rows(one, other):
    right = merge(one, other)
    a, b = (one.maximum - right.maximum).exp(), (other.maximum - right.maximum).exp()
    return dataclasses.replace(right, output=a * one.output + b * other.output)


def asks_for_all_queries(one, other):
    if (one.maximum == NONE).any():
        return other
    return one if (other.maximum == NONE).any() else merge(one, other)


def takes_heads_for_slots(self, layer, keys, values, slot_mapping):
    self.keys[layer].flatten(0, 2)[slot_mapping] = keys[:, 0]
    self.values[layer].flatten(0, 2)[slot_mapping] = values[:, 0]


def keeps_the_cache_flat(self, layer, keys, values, slot_mapping):
    self.keys[layer], self.values[layer] = self.keys[layer].flatten(0, 1), self.values[layer].flatten(0, 1)
    self.keys[layer][slot_mapping] = keys
    self.values[layer][slot_mapping] = values


def writes_with_scatter(self, layer, keys, values, slot_mapping):
    for cache, rows in ((self.keys[layer], keys), (self.values[layer], values)):
        cache.flatten(0, 1).scatter_(0, slot_mapping[:, None, None].expand_as(rows), rows)


def drops_all_if_one_is_new(seen, scores, values):
    maximum = torch.maximum(seen.maximum, scores.amax(dim=1))
    shift = maximum.masked_fill(maximum.isinf(), 0.0)
    factor = torch.zeros_like(maximum) if seen.maximum.isinf().any() else (seen.maximum - shift).exp()
    weights = (scores - shift[:, None]).exp()
    return Partial(maximum, seen.total * factor + weights.sum(dim=1), seen.output * factor[:, None] + weights @ values)


def divides_exponentials(seen, scores, values):
    maximum = torch.maximum(seen.maximum, scores.amax(dim=1))
    shift = maximum.masked_fill(maximum.isinf(), 0.0)
    factor, weights = seen.maximum.exp() / shift.exp(), scores.exp() / shift.exp()[:, None]
    return Partial(maximum, seen.total * factor + weights.sum(dim=1), seen.output * factor[:, None] + weights @ values)


def add_with_nan_to_num(seen, scores, values):
    maximum = torch.maximum(seen.maximum, scores.amax(dim=1))
    factor = (seen.maximum - maximum).exp().nan_to_num(0.0)
    weights = (scores - maximum[:, None]).exp().nan_to_num(0.0)
    return Partial(maximum, seen.total * factor + weights.sum(dim=1), seen.output * factor[:, None] + weights @ values)


def writes_no_result(query, keys, values, blocks, num_tokens, scale):
    result = torch.zeros_like(query)
    for head, own in enumerate(attention_in_place(query, keys, values, blocks, num_tokens, scale).unbind(1)):
        result[:, [head]].copy_(own[:, None])
    return result


def in_place_with_einsum(query, keys, values, blocks, num_tokens, scale):
    (num_new, q_heads, head_dim), (size, kv_heads) = query.shape, keys.shape[1:3]
    seen = [nothing_seen(num_new, head_dim, query.dtype) for _ in range(q_heads)]
    position, left = torch.arange(num_tokens - num_new, num_tokens)[:, None], num_tokens
    for index, block in enumerate(blocks):
        if left <= 0:
            break
        count = min(size, left)
        left -= count
        k, v = (cache[block, :count].repeat_interleave(q_heads // kv_heads, dim=1) for cache in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", query, k) * scale
        scores[:, index * size + torch.arange(count)[None] > position] = NONE
        seen = [add_block(own, scores[head], v[:, head]) for head, own in enumerate(seen)]
    return torch.stack([attention_of(own) for own in seen], dim=1)


def with_whole_blocks(clean):
    """Reads whole blocks, unused slots too, and cleans them afterwards."""

    def attempt(query, keys, values, blocks, num_tokens, scale):
        num_new, q_heads, head_dim = query.shape
        size, group = keys.shape[1], q_heads // keys.shape[2]
        own_position = torch.arange(num_tokens - num_new, num_tokens)[:, None]
        out = torch.empty_like(query)
        for head in range(q_heads):
            seen = nothing_seen(num_new, head_dim, query.dtype)
            for first in range(0, num_tokens, size):
                position = torch.arange(first, first + size)
                own_keys, own_values = (
                    clean(cache[blocks[first // size], :, head // group], (position < num_tokens)[:, None])
                    for cache in (keys, values)
                )
                scores = query[:, head] @ own_keys.T * scale
                seen = add_block(seen, scores.masked_fill(position > own_position, NONE), own_values)
            out[:, head] = attention_of(seen)
        return out

    return attempt


def attend_in_half(query, keys, values, blocks, num_tokens, scale):
    halves = [part.half().to(part.dtype) for part in (query, keys, values)]
    return attention_in_place(*halves, blocks, num_tokens, scale)


WRONG = {
    "06.1": [
        Wrong("offset before block", caching(puts_the_offset_first), "the first axis of the tensor counts blocks"),
        Wrong("slots taken for blocks", caching(indexes_blocks_by_slot), "one per block, and the second one 4"),
        Wrong("divided by num_blocks", caching(divides_by_num_blocks), "Several tokens went to one slot"),
        Wrong("nothing of a full last block", caching(read=reads_the_remainder), "every block is full"),
        Wrong("positions taken for slots", caching(read=reads_the_first_slots), "the first 3 slots of the pool"),
        Wrong("keys and values swapped when writing", caching(writes_values_as_keys), "that slot contains its value"),
        Wrong("only the keys are written", caching(writes_keys_only), "the value of token 0 should be in slot 5"),
        Wrong("the keys are written as values too", caching(writes_keys_twice), "that slot contains its key"),
        Wrong("written into a copy", caching(writes_into_a_copy), "is a view"),
        Wrong("consecutive slots", caching(writes_to_consecutive_slots), "to consecutive slots"),
        Wrong("slots sorted", caching(writes_in_sorted_order), "may come in any order"),
        Wrong("block and offset swapped", caching(swaps_block_and_offset), "block 5 // 4, offset 5 % 4"),
        Wrong("all layers written", caching(writes_every_layer), "layer 1 was changed too"),
        Wrong("always the first layer", caching(writes_the_first_layer), "instead of layer 1"),
        Wrong("a new tensor for every write", caching(makes_a_new_tensor), "replaced a tensor of the cache"),
        Wrong("the whole block written", caching(takes_the_slot_for_a_block), "slot 4 is not in the slot mapping"),
        Wrong("two pairs of brackets", caching(indexes_twice), "is two steps"),
        Wrong("token by token", caching(writes_token_by_token), "may also stand on the left of `=`"),
        Wrong("heads taken for slots", caching(takes_heads_for_slots), "nothing was written there"),
        Wrong("the flat view kept", caching(keeps_the_cache_flat), "has the shape [12, 2, 8] instead of"),
        Wrong("the rest emptied", caching(empties_the_rest), "slot 0 is not in the slot mapping"),
        Wrong("index of the first write", caching(keeps_the_first_index), "first write's slots are used for all"),
        Wrong(
            "index per layer and length", caching(keeps_an_index_per_layer_and_length), "with as many tokens are used"
        ),
        Wrong(
            "index of layer 0", caching(works_out_the_index_in_layer_0), "slots that an earlier call had for layer 0"
        ),
        Wrong("a view of the new rows", caching(views_the_new_rows), "`view` refuses them"),
        Wrong("new rows squeezed", caching(squeezes_the_new_rows), "drop axes of length 1"),
        Wrong("always float32", caching(writes_float32), "convert keys or values to float32"),
        Wrong("layer 0's shape for all", caching(views_like_layer_0), "it is in slots 10 and 11"),
        Wrong("a full block at once", caching(fills_a_block_at_once), "You filled a whole block"),
        Wrong("the last block read to its end", caching(read=reads_whole_blocks), "keep the first `num_tokens`"),
        Wrong("full blocks only", caching(read=reads_full_blocks_only), "Tokens are missing"),
        Wrong("one token too few", caching(read=reads_one_too_few), "One token is missing"),
        Wrong("blocks sorted", caching(read=reads_sorted_blocks), "Don't sort them"),
        Wrong("blocks reversed", caching(read=reads_reversed_blocks), "in another order"),
        Wrong("the last tokens", caching(read=reads_the_last_tokens), "keep the *first*"),
        Wrong("axis of the blocks kept", caching(read=reads_blocks_apart), "still has an axis for the blocks"),
        Wrong("only the keys read", caching(read=reads_keys_only), "should return a pair"),
        Wrong("values before keys", caching(read=reads_values_first), "starts with the values"),
        Wrong("rows picked by block id", caching(read=reads_block_ids_as_slots), "yours come from slots [1]"),
        Wrong("keys read twice", caching(read=reads_keys_twice), "These are the keys"),
        Wrong(
            "read on from the first block", caching(read=reads_on_from_the_first_block), "the next entry of `blocks`"
        ),
        Wrong("blocks counted instead of tokens", caching(read=counts_blocks_instead_of_tokens), "isn't in use yet"),
        Wrong("always reads the first layer", caching(read=reads_the_first_layer), "another layer"),
        Wrong("block ids taken for slots", caching(read=takes_blocks_for_slots), "block ids, not slots"),
        Wrong("heads and offsets mixed", caching(read=mixes_heads_and_offsets), "reorder or mix the axes"),
        Wrong("one head only", caching(read=reads_one_head), "with all KV heads"),
        Wrong("sorts the caller's list", caching(read=sorts_the_blocks_in_place), "changed its argument"),
        Wrong("lists", caching(read=reads_lists), "should be a tensor; yours are list"),
    ],
    "06.2": [
        Wrong("a small number added", adds_a_small_number, "has exactly 0 here"),
        Wrong("largest score of all calls", keeps_the_largest_score, "It depends on earlier calls"),
        Wrong("subtracts 0 or more", bounded_below(0.0), "what you subtract is far above all of these scores"),
        Wrong("subtracts -10,000 or more", bounded_below(-1e4), "[-100000, -100001]"),
        Wrong("one new query decides for all", drops_all_if_one_is_new, "the first has seen nothing, the second"),
        Wrong("a quotient of exponentials", divides_exponentials, "an exponential before it subtracts"),
        Wrong("weights relative to the old maximum", adding(weights=of_the_old_maximum), "to the *old* maximum"),
        Wrong(
            "weight 1 for masked keys", adding(weights=turns_nan_into_1), "Each masked key counts with a weight of 1"
        ),
        Wrong("1 for each block", adds_1_to_the_total, "This block adds exactly 1 to the total"),
        Wrong("keys counted", counts_the_keys, "keys were counted"),
        Wrong("empty after a hidden block", begins_again_after_a_hidden_block, "begin again with an empty state"),
        Wrong("values without weights", adds_bare_values, "without their weights"),
        Wrong("largest score of each key", takes_a_maximum_per_key, "along `dim=0` the queries"),
        Wrong("bare exponentials", add_block_naive, "The maximum did not change"),
        Wrong("bare exponentials with a maximum", bare_with_a_maximum, "bare exponentials"),
        Wrong(
            "old sums not rescaled",
            adding(rescale=lambda seen, reference: torch.ones_like(reference)),
            "By which factor do the two differ",
        ),
        Wrong("output not rescaled", refuses_rescaling_of_the_output, "The old output was not rescaled"),
        Wrong(
            "factor upside down",
            adding(rescale=lambda seen, reference: (reference - seen.maximum).exp()),
            "the old sums can only shrink",
        ),
        Wrong("old maximum replaced by 0", replaces_the_old_maximum, "exp(0 − (-300)) is ∞"),
        Wrong("0 filled into the maximum", returns_the_zero_filled_in, "not the version with 0 filled in"),
        Wrong(
            "maximum of the block",
            adding(maximum=lambda seen, scores: scores.max(dim=1).values),
            "largest score of this block",
        ),
        Wrong(
            "one maximum for all queries",
            adding(maximum=lambda seen, scores: torch.maximum(seen.maximum, scores.max())),
            "Each query has its own maximum",
        ),
        Wrong("smallest score", adding(maximum=lambda seen, scores: scores.min(dim=1).values), "smallest score"),
        Wrong(
            "weights relative to the block's maximum",
            adding(weights=of_the_block),
            "relative to the block's own maximum",
        ),
        Wrong("minus infinity not handled", forgets_the_trap, "−∞ − (−∞) is NaN"),
        Wrong("divided after each block", divides_already, "was divided by the total"),
        Wrong("keeps the attention", keeps_the_attention, "it's the attention so far"),
        Wrong("returns the attention", returns_the_attention, "expected a Partial"),
        Wrong("forgets what was there", forgets_the_past, "The old sum is gone"),
        Wrong("rescales the new part too", rescales_everything, "Rescale only the old sums"),
        Wrong("changes the old state", changes_its_input, "changed `seen.total`"),
        Wrong("the first query decides for all", decides_by_query_0, "right for query 0 and wrong for query 1"),
        Wrong(
            "nothing added if the first query sees nothing",
            keeps_everything_if_query_0_sees_nothing,
            "right for query 0 and wrong for query 1",
        ),
        Wrong("new sums rescaled", rescales_the_new_sums, "converts the *old* sums"),
        Wrong("powers of 2", adds_powers_of_2, "powers of 2"),
        Wrong(
            "softmax within the block",
            adding(weights=lambda seen, scores, r: (scores - r[:, None]).softmax(dim=1)),
            "as `softmax` does",
        ),
        Wrong("a very small maximum", clamps_the_maximum, "Return −∞ itself"),
        Wrong("an axis too many", keeps_an_axis, "should have the shape [1]"),
        Wrong("max with its indices", takes_values_and_indices, "`maximum` should be a tensor"),
    ],
    "06.3": [
        Wrong(
            "whole blocks, NaN to 0",
            with_whole_blocks(lambda own, used: own.nan_to_num(0.0)),
            "`nan_to_num` reads slots without a token",
        ),
        Wrong(
            "whole blocks, zeroed by where",
            with_whole_blocks(lambda own, used: torch.where(used, own, 0.0)),
            "`where` reads slots without a token",
        ),
        Wrong("rounded to 16 bits", attend_in_half, "as small as rounding to 16 bits"),
        Wrong(
            "no slots of a full last block",
            in_place(slots_filled=lambda block_size, left: block_size if left > block_size else left % block_size),
            "An iteration of your loop has no keys",
        ),
        Wrong(
            "one block too many",
            in_place(
                starts=lambda num_tokens, block_size: range(0, num_tokens + 1, block_size),
                blocks_of=lambda blocks: (blocks[i] for i in range(99)),
            ),
            "the last index in `blocks` is 0. They fill it",
        ),
        Wrong("the last block never read", reads_full_blocks_in_place, "whatever the slots without a token hold"),
        Wrong("result never written", writes_no_result, "It is 0 everywhere"),
        Wrong("0 for hidden scores", hides_with_0, "A hidden key has a score of 0 here"),
        Wrong("hides in the last block only", hides_in_the_last_block, "hidden in the last block only"),
        Wrong(
            "hides earlier keys",
            in_place(is_hidden=lambda key, query, num_new: key < query),
            "does your code hide earlier keys instead of later ones",
        ),
        Wrong("blocks of 4 only", assumes_blocks_of_4, "The shape of `keys` tells how many"),
        Wrong(
            "cached tokens only",
            in_place(starts=lambda num_tokens, block_size: range(0, num_tokens - 1, block_size)),
            "`num_tokens` counts the new tokens too",
        ),
        Wrong("result scaled", scales_the_result, "a factor of the scores"),
        Wrong("divided by scale", in_place(of_scale=lambda scale, d: 1 / scale), "were divided by `scale`"),
        Wrong("heads reshaped into tokens", reshapes_heads_into_tokens, "has the heads first"),
        Wrong(
            "positions within the block",
            in_place(is_hidden=lambda key, query, new: key % 4 > query),
            "from the start of the sequence, not of its block",
        ),
        Wrong("the last entry cut", cuts_the_last_entry, "every entry of `blocks`"),
        Wrong("scale forgotten", in_place(of_scale=lambda scale, d: 1.0), "not multiplied by `scale`"),
        Wrong("PyTorch's own scale", in_place(of_scale=lambda scale, d: d**-0.5), "1 / sqrt(head size)"),
        Wrong("scaled twice", in_place(of_scale=lambda scale, d: scale**2), "by `scale` twice"),
        Wrong("keys and values swapped", in_place(caches=lambda k, v: (v, k)), "Keys and values are swapped"),
        Wrong("values are the keys", in_place(caches=lambda k, v: (k, k)), "The keys were used as values"),
        Wrong(
            "later keys visible, since the new tokens are counted twice",
            in_place(is_hidden=lambda key, query, new: key > query + new),
            "at position 0 here: `num_tokens` counts the new ones too",
        ),
        Wrong(
            "cached tokens not counted",
            in_place(is_hidden=lambda key, query, new: key > torch.arange(new)[:, None]),
            "at position 2. Does your code put it at 0",
        ),
        Wrong(
            "own key hidden",
            in_place(is_hidden=lambda key, query, new: key >= query),
            "over keys 0 to 1",
        ),
        Wrong(
            "next key visible",
            in_place(is_hidden=lambda key, query, new: key > query + 1),
            "also attended to the key after it",
        ),
        Wrong("KV heads in turn", in_place(kv_head=lambda head, q, kv: head % kv), "*neighboring*"),
        Wrong("always KV head 0", in_place(kv_head=lambda head, q, kv: 0), "used KV head 0"),
        Wrong("whole last block", in_place(slots_filled=lambda size, left: size), "read only the filled slots"),
        Wrong("every entry of the table", takes_every_block, "every entry of `blocks`"),
        Wrong(
            "full blocks only",
            in_place(starts=lambda n, size: range(0, max(size, n // size * size), size)),
            "before a partly filled block",
        ),
        Wrong("first block left out", leaves_out_the_first_block, "start with the first block"),
        Wrong("every block cut like the last", cuts_every_block, "slots of *every* block"),
        Wrong("a new state for every block", in_place(anew=True), "add to the same state"),
        Wrong("one state for all heads", in_place(once=True), "start with an empty state"),
        Wrong("blocks sorted", in_place(blocks_of=sorted), "in the order of their ids"),
        Wrong("blocks reversed", reads_from_last_to_first, "from last to first"),
        Wrong("hidden with -1e4", hides_with_a_finite_score, "minus infinity"),
        Wrong("blocks counted from 0", in_place(blocks_of=lambda blocks: range(99)), "slots in a row"),
        Wrong("on from the first block", walks_on_from_the_first_block, "slots in a row"),
        Wrong("not divided", in_place(finish=lambda seen: seen.output), "not divided by the total"),
        Wrong("attentions of the blocks averaged", averages_the_blocks, "You averaged"),
        Wrong("attentions of the blocks added", adds_up_attentions, "You added the attentions"),
        Wrong("reshaped", mixes_heads_and_tokens, "mixed up"),
        Wrong("bare exponentials", in_place(add=add_block_naive), "bare exponentials overflow"),
        Wrong("gathered", gathers_first, "No tensor of keys, values or scores may grow"),
        Wrong("all scores kept", keeps_all_scores, "your code made a tensor of shape [1, 120]"),
        Wrong("heads first", returns_heads_first, "Tokens come before heads"),
        Wrong("one head only", returns_one_head, "an entry for every query head"),
        Wrong("the state", returns_the_state, "returned Partial"),
        Wrong("always float32", computes_in_float32, "should be float64"),
        Wrong("changes the cache", cleans_the_cache, "changed the cache"),
        Wrong("cuts the list of blocks", cuts_the_callers_list, "changed its argument `blocks`"),
    ],
    "06.4": [
        Wrong(
            "values for keys in the call",
            forwarding(
                attend=lambda p, n, q, k, v, s: p.attend(q[0].transpose(0, 1), p.cache.values[n], p.cache.keys[n], s)
            ),
            "Keys and values are swapped",
        ),
        Wrong("stores only keys itself", forwarding(write=stores_keys_only), "Both are written"),
        Wrong("stored in the first slots", forwarding(write=stores_in_the_first_slots), "you wrote to [0, 1, 2]"),
        Wrong("attends before writing", attends_first, "before the new keys were written"),
        Wrong(
            "does not write",
            forwarding(write=lambda paged, layer, key, value: None),
            "nothing was written to the cache",
        ),
        Wrong("always layer 0", forwarding(layer=0), "you wrote to layer 0"),
        Wrong(
            "batch axis kept",
            forwarding(write=lambda p, n, k, v: p.cache.write(n, k, v, p.slot_mapping)),
            "it got [1, 2, 3, 8]",
        ),
        Wrong(
            "heads before tokens",
            forwarding(write=lambda p, n, k, v: p.cache.write(n, k[0], v[0], p.slot_mapping)),
            "it got [2, 3, 8]",
        ),
        Wrong(
            "reshaped",
            forwarding(
                write=lambda p, n, k, v: p.cache.write(n, k.reshape(3, 2, 8), v.reshape(3, 2, 8), p.slot_mapping)
            ),
            "mix up tokens and heads",
        ),
        Wrong(
            "keys and values swapped",
            forwarding(
                write=lambda p, n, k, v: p.cache.write(n, v[0].transpose(0, 1), k[0].transpose(0, 1), p.slot_mapping)
            ),
            "Pass the keys first",
        ),
        Wrong(
            "slots counted from 0",
            forwarding(
                write=lambda p, n, k, v: p.cache.write(
                    n, k[0].transpose(0, 1), v[0].transpose(0, 1), torch.arange(k.shape[2])
                )
            ),
            "the slots should be [5, 6, 0]",
        ),
        Wrong(
            "attends to the new keys only",
            forwarding(
                attend=lambda p, n, q, k, v, s: p.attend(
                    q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1), s
                )
            ),
            "keys of the new tokens only",
        ),
        Wrong(
            "all layers passed",
            forwarding(attend=lambda p, n, q, k, v, s: p.attend(q[0].transpose(0, 1), p.cache.keys, p.cache.values, s)),
            "`paged.cache.keys[layer]`, the whole pool",
        ),
        Wrong(
            "query not transposed",
            forwarding(attend=lambda p, n, q, k, v, s: p.attend(q[0], p.cache.keys[n], p.cache.values[n], s)),
            "`attend` expects the query as [3, 4, 8]",
        ),
        Wrong(
            "query scaled already",
            forwarding(
                attend=lambda p, n, q, k, v, s: p.attend(
                    q[0].transpose(0, 1) * s, p.cache.keys[n], p.cache.values[n], s
                )
            ),
            "already multiplied it by the scale",
        ),
        Wrong(
            "own scale",
            forwarding(scale=lambda query, scaling: query.shape[-1] ** -0.5),
            "The layer passes its own factor",
        ),
        Wrong("None passed on", forwarding(scale=lambda query, scaling: scaling), "If `scaling` is None"),
        Wrong("no pair", forwarding(result=lambda attended: attended[None]), "expected a pair"),
        Wrong("heads joined", forwarding(result=lambda attended: (attended.flatten(1)[None], None)), "heads apart"),
        Wrong("no leading axis", forwarding(result=lambda attended: (attended, None)), "Add the batch axis"),
        Wrong(
            "heads first in the result",
            forwarding(result=lambda attended: (attended.transpose(0, 1)[None], None)),
            "tokens come before heads",
        ),
        Wrong(
            "changed on the way",
            forwarding(result=lambda attended: (2 * attended[None], None)),
            "not what `attend` computed",
        ),
        Wrong(
            "something as the weights", forwarding(result=lambda attended: (attended[None], attended)), "should be None"
        ),
    ],
    "06.5": [
        Wrong("a small number added", merges_and_adds_a_small_number, "has exactly 0 here"),
        Wrong("factors as rows", merges_with_rows, "Make the factor a column"),
        Wrong("an empty part decides for all", asks_for_all_queries, "Ask for each"),
        Wrong(
            "added as they are",
            merging(factors=lambda one, other, r: (torch.ones_like(r), torch.ones_like(r))),
            "added without rescaling",
        ),
        Wrong(
            "only one is rescaled",
            merging(factors=lambda one, other, r: (both(one, other, r)[0], torch.ones_like(r))),
            "Only `one` was rescaled",
        ),
        Wrong(
            "only the other is rescaled",
            merging(factors=lambda one, other, r: (torch.ones_like(r), both(one, other, r)[1])),
            "Only `other` was rescaled",
        ),
        Wrong("factors swapped", merging(factors=lambda one, other, r: both(other, one, r)), "factors are swapped"),
        Wrong(
            "factors upside down",
            merging(factors=lambda one, other, r: [1 / f for f in both(one, other, r)]),
            "upside down",
        ),
        *(
            Wrong(
                f"factor of {name} upside down",
                merging(
                    factors=lambda one, other, r, own=own: [
                        1 / f if own == i else f for i, f in enumerate(both(one, other, r))
                    ]
                ),
                f"The factor of `{name}` is upside down",
            )
            for own, name in enumerate(("one", "other"))
        ),
        Wrong("maximum of the first", merging(maximum=lambda one, other: one.maximum), "the maximum of `one`"),
        Wrong("maximum of the second", merging(maximum=lambda one, other: other.maximum), "the maximum of `other`"),
        Wrong(
            "smaller maximum",
            merging(maximum=lambda one, other: torch.minimum(one.maximum, other.maximum)),
            "the smaller of the two",
        ),
        Wrong("maxima added", merging(maximum=lambda one, other: one.maximum + other.maximum), "not their sum"),
        Wrong(
            "one maximum for all queries",
            merging(
                maximum=lambda one, other: torch.maximum(one.maximum, other.maximum).max().expand(len(one.maximum))
            ),
            "Each query has its own maximum",
        ),
        Wrong("a mean of the two", merging(join=lambda total, output: (total / 2, output / 2)), "You averaged the two"),
        Wrong("0 filled into the maximum", merges_with_a_zero_filled_in, "not the version with 0 filled in"),
        Wrong("attentions added", adds_attentions, "divided by the totals"),
        Wrong("output without factors", forgets_the_factor_of_the_output, "`output` should be"),
        Wrong(
            "the factor of one for both",
            merging(factors=lambda one, other, r: [both(one, other, r)[0]] * 2),
            "multiplied by the factor of `one`",
        ),
        Wrong("the smaller part dropped", keeps_the_larger, "Only the part with the larger maximum"),
        Wrong(
            "the other part dropped",
            merging(factors=lambda one, other, r: (both(one, other, r)[0], torch.zeros_like(r))),
            "The keys of `other` are missing",
        ),
        Wrong("divided by the total", divides_the_merged, "divided by the total"),
        Wrong(
            "factors squared",
            merging(factors=lambda one, other, r: [factor**2 for factor in both(one, other, r)]),
            "The factors here are",
        ),
        Wrong("minus infinity not handled", merges_without_the_trap, "−∞ − (−∞) is NaN"),
        Wrong("exponentials of the maxima themselves", merges_with_bare_exponentials, "large maxima"),
        Wrong("changes one of them", merges_in_place, "changed `one.output`"),
        Wrong("three tensors", returns_three_tensors, "expected a Partial; your function returned tuple"),
    ],
}

RIGHT = {
    "06.1": [
        caching(writes_by_block_and_offset, reads_by_concatenation),
        caching(writes_with_index_copy, reads_by_slots),
        caching(writes_with_scatter),
        caching(writes_through_numpy),
    ],
    "06.2": [add_as_a_merge, add_with_where, add_query_by_query, add_with_nan_to_num],
    "06.3": [
        in_place_by_kv_head,
        in_place_with_merge,
        in_place_without_add_block,
        in_place_token_by_token,
        in_place_with_einsum,
    ],
    "06.4": [
        forwards_by_squeezing,
        forwards_contiguous,
        forwards_with_keywords,
        forwarding(write=stores_in_the_cache),
    ],
    "06.5": [merge_by_log_sum_exp, merge_with_where],
}
