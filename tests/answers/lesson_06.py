"""Answers to the exercises of lesson 06: wrong answers that learners give, and other right ones."""

import dataclasses

import torch
import torch.nn.functional as F

from answers import Wrong
from lessons_lib.attention.online_softmax import Partial, add_block, add_block_naive, merge
from lessons_lib.attention.paged_attention import paged_attention
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


def reads_one_head(self, layer, blocks, num_tokens):
    return tuple(part[:, 0] for part in PagedKVCache.read(self, layer, blocks, num_tokens))


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


# 06.3 merge


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


# 06.4 paged_attention


def attending(
    mask=True,
    causal=False,
    swapped=False,
    repeat=False,
    fill=False,
    count=None,
    factor=None,
    once_more=False,
    anew=False,
    back="transpose",
):
    """`paged_attention` with one mistake."""

    def attempt(query, keys, values, groups, scale):
        out = torch.zeros_like(query)
        for group in groups[:count]:
            out = torch.zeros_like(query) if anew else out
            k, v = (
                cache.flatten(0, 1)[group.slots].transpose(1, 2)
                for cache in ((values, keys) if swapped else (keys, values))
            )
            q = query[group.rows].transpose(1, 2) * (scale if once_more else 1)
            if repeat:
                k, v = (part.repeat(1, q.shape[1] // part.shape[1], 1, 1) for part in (k, v))
            own_mask = group.mask if mask and not causal else None
            own_scale = scale if factor is None else factor(scale)
            done = F.scaled_dot_product_attention(
                q, k, v, attn_mask=own_mask, is_causal=causal, scale=own_scale, enable_gqa=not repeat
            )
            if back == "transpose":
                done = done.transpose(1, 2)
            elif back == "reshape":
                done = done.reshape(query[group.rows].shape)
            if fill:
                out[group.rows] = done
            else:
                out[group.rows[group.is_query]] = done[group.is_query]
        return out

    return attempt


def attends_to_keys_twice(query, keys, values, groups, scale):
    return paged_attention(query, keys, keys, groups, scale)


def forgets_to_transpose(query, keys, values, groups, scale):
    out = torch.empty_like(query)
    for group in groups:
        k, v = (cache.flatten(0, 1)[group.slots] for cache in (keys, values))
        done = F.scaled_dot_product_attention(
            query[group.rows], k, v, attn_mask=group.mask, scale=scale, enable_gqa=True
        )
        out[group.rows[group.is_query]] = done[group.is_query]
    return out


def takes_slots_for_blocks(query, keys, values, groups, scale):
    out = torch.empty_like(query)
    for group in groups:
        k, v = (cache[group.slots].transpose(1, 2) for cache in (keys, values))
        done = F.scaled_dot_product_attention(
            query[group.rows].transpose(1, 2), k, v, attn_mask=group.mask, scale=scale, enable_gqa=True
        )
        out[group.rows[group.is_query]] = done.transpose(1, 2)[group.is_query]
    return out


def attends_sequence_by_sequence(query, keys, values, groups, scale):
    out = torch.empty_like(query)
    for group in groups:
        for s in range(len(group.rows)):
            k, v = (cache.flatten(0, 1)[group.slots[s]].transpose(0, 1) for cache in (keys, values))
            q = query[group.rows[s]].transpose(0, 1)
            done = F.scaled_dot_product_attention(
                q[None], k[None], v[None], attn_mask=group.mask[s], scale=scale, enable_gqa=True
            )[0].transpose(0, 1)
            out[group.rows[s][group.is_query[s]]] = done[group.is_query[s]]
    return out


def computes_in_float32(query, keys, values, groups, scale):
    return paged_attention(query.float(), keys.float(), values.float(), groups, scale)


def makes_an_output_of_its_own_type(query, keys, values, groups, scale):
    out = torch.empty(query.shape)
    for group in groups:
        k, v = (cache.flatten(0, 1)[group.slots].transpose(1, 2) for cache in (keys, values))
        done = F.scaled_dot_product_attention(
            query[group.rows].transpose(1, 2), k, v, attn_mask=group.mask, scale=scale, enable_gqa=True
        )
        out[group.rows[group.is_query]] = done.transpose(1, 2)[group.is_query]
    return out


def returns_the_last_rectangle(query, keys, values, groups, scale):
    for group in groups:
        k, v = (cache.flatten(0, 1)[group.slots].transpose(1, 2) for cache in (keys, values))
        done = F.scaled_dot_product_attention(
            query[group.rows].transpose(1, 2), k, v, attn_mask=group.mask, scale=scale, enable_gqa=True
        )
    return done


def joins_the_heads(query, keys, values, groups, scale):
    return paged_attention(query, keys, values, groups, scale).flatten(1)


def returns_heads_first(query, keys, values, groups, scale):
    return paged_attention(query, keys, values, groups, scale).transpose(0, 1)


def attends_to_the_whole_pool(query, keys, values, groups, scale):
    """All slots of the pool as keys, with those of other sequences masked: but 0 x NaN is NaN."""
    out = torch.empty_like(query)
    for group in groups:
        slots = keys.shape[0] * keys.shape[1]
        mask = torch.zeros(*group.rows.shape, slots, dtype=torch.bool)
        for s in range(len(group.rows)):
            for q in range(group.rows.shape[1]):
                mask[s, q, group.slots[s][group.mask[s, 0, q]]] = True
        k, v = (cache.flatten(0, 1).transpose(0, 1).expand(len(mask), -1, -1, -1) for cache in (keys, values))
        done = F.scaled_dot_product_attention(
            query[group.rows].transpose(1, 2), k, v, attn_mask=mask[:, None], scale=scale, enable_gqa=True
        )
        out[group.rows[group.is_query]] = done.transpose(1, 2)[group.is_query]
    return out


def scales_the_query_in_place(query, keys, values, groups, scale):
    query *= scale
    return paged_attention(query, keys, values, groups, 1.0)


def returns_nothing(query, keys, values, groups, scale):
    paged_attention(query, keys, values, groups, scale)


def cleans_the_cache(query, keys, values, groups, scale):
    keys.nan_to_num_(0.0)
    return paged_attention(query, keys, values, groups, scale)


def attention_by_hand(query, keys, values, groups, scale):
    out = query.new_zeros(query.shape)
    heads, kv_heads = query.shape[1], keys.shape[2]
    for group in groups:
        k, v = (
            cache.reshape(-1, *cache.shape[2:])[group.slots].repeat_interleave(heads // kv_heads, dim=2)
            for cache in (keys, values)
        )
        scores = torch.einsum("sqhd,skhd->shqk", query[group.rows], k) * scale
        done = torch.einsum("shqk,skhd->sqhd", scores.masked_fill(~group.mask, NONE).softmax(dim=-1), v)
        for s, q in group.is_query.nonzero().tolist():
            out[group.rows[s, q]] = done[s, q]
    return out


def attention_by_block_and_offset(query, keys, values, groups, scale):
    pieces = {}
    size = keys.shape[1]
    for group in groups:
        k, v = (cache[group.slots // size, group.slots % size].permute(0, 2, 1, 3) for cache in (keys, values))
        done = F.scaled_dot_product_attention(
            query[group.rows].permute(0, 2, 1, 3), k, v, group.mask, scale=scale, enable_gqa=True
        ).permute(0, 2, 1, 3)
        pieces.update(zip(group.rows[group.is_query].tolist(), done[group.is_query]))
    return torch.stack([pieces[row] for row in range(len(query))])


# 06.5 paged_attention_forward


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


WRONG = {
    "06.1": [
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
        Wrong("token by token", caching(writes_token_by_token), "loops over the tokens"),
        Wrong("the rest emptied", caching(empties_the_rest), "slot 0 is not in the slot mapping"),
        Wrong("the last block read to its end", caching(read=reads_whole_blocks), "keep the first `num_tokens`"),
        Wrong("full blocks only", caching(read=reads_full_blocks_only), "Tokens are missing"),
        Wrong("one token too few", caching(read=reads_one_too_few), "One token is missing"),
        Wrong("blocks sorted", caching(read=reads_sorted_blocks), "Don't sort them"),
        Wrong("axis of the blocks kept", caching(read=reads_blocks_apart), "still has an axis for the blocks"),
        Wrong("only the keys read", caching(read=reads_keys_only), "should return a pair"),
        Wrong("values before keys", caching(read=reads_values_first), "Keys and values are swapped"),
        Wrong("always reads the first layer", caching(read=reads_the_first_layer), "another layer"),
        Wrong("block ids taken for slots", caching(read=takes_blocks_for_slots), "block ids, not slots"),
        Wrong("one head only", caching(read=reads_one_head), "with all KV heads"),
        Wrong("sorts the caller's list", caching(read=sorts_the_blocks_in_place), "changed its argument"),
        Wrong("lists", caching(read=reads_lists), "should be a tensor; yours are list"),
    ],
    "06.2": [
        Wrong("bare exponentials", add_block_naive, "The maximum did not change"),
        Wrong("bare exponentials with a maximum", bare_with_a_maximum, "bare exponentials"),
        Wrong(
            "old sums not rescaled",
            adding(rescale=lambda seen, reference: torch.ones_like(reference)),
            "The old total was not rescaled",
        ),
        Wrong("output not rescaled", refuses_rescaling_of_the_output, "The old output was not rescaled"),
        Wrong(
            "factor upside down",
            adding(rescale=lambda seen, reference: (reference - seen.maximum).exp()),
            "The factor is upside down",
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
        Wrong("returns the attention", returns_the_attention, "expected a Partial"),
        Wrong("forgets what was there", forgets_the_past, "The old sum is gone"),
        Wrong("rescales the new part too", rescales_everything, "Rescale only the old sums"),
        Wrong("changes the old state", changes_its_input, "changed `seen.total`"),
        Wrong("an axis too many", keeps_an_axis, "should have the shape [1]"),
        Wrong("max with its indices", takes_values_and_indices, "`maximum` should be a tensor"),
    ],
    "06.3": [
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
        Wrong("minus infinity not handled", merges_without_the_trap, "−∞ − (−∞) is NaN"),
        Wrong("exponentials of the maxima themselves", merges_with_bare_exponentials, "large maxima"),
        Wrong("changes one of them", merges_in_place, "changed `one.output`"),
        Wrong("three tensors", returns_three_tensors, "expected a Partial; your function returned tuple"),
    ],
    "06.4": [
        Wrong("no mask", attending(mask=False), "attended to all keys of the rectangle"),
        Wrong("is_causal in place of the mask", attending(causal=True), "`is_causal=True` lets"),
        Wrong("keys and values swapped", attending(swapped=True), "Keys and values are swapped"),
        Wrong("values are the keys", attends_to_keys_twice, "The values are the keys"),
        Wrong("scale forgotten", attending(factor=lambda scale: 1.0), "not multiplied by `scale`"),
        Wrong("PyTorch's own scale", attending(factor=lambda scale: None), "1 / sqrt(head size)"),
        Wrong("scaled twice", attending(once_more=True), "twice"),
        Wrong("heads repeated in the wrong order", attending(repeat=True), "adjacent query heads share"),
        Wrong("padding written to row 0", attending(fill=True), "Row 0 was overwritten"),
        Wrong("only the first group", attending(count=1), "Only the entries of the first group"),
        Wrong("only the last group", attending(anew=True), "Only the entries of the last group"),
        Wrong("not swapped back", attending(back=""), "Swap heads and tokens back first"),
        Wrong("reshaped back", attending(back="reshape"), "mixed up after the attention"),
        Wrong("slots taken for blocks", takes_slots_for_blocks, "are slots, not block ids"),
        Wrong("sequence by sequence", attends_sequence_by_sequence, "loops over the sequences"),
        Wrong("always float32", computes_in_float32, "should be float16, like the query; yours is float32"),
        Wrong("an output of its own type", makes_an_output_of_its_own_type, "Everything has the dtype of the query"),
        Wrong("heads not before tokens", forgets_to_transpose, "heads come before tokens"),
        Wrong("the rectangle of a group", returns_the_last_rectangle, "rectangle of one group"),
        Wrong("heads joined", joins_the_heads, "Keep the heads separate"),
        Wrong("heads first", returns_heads_first, "Transpose back"),
        Wrong("all slots of the pool", attends_to_the_whole_pool, "contains NaN"),
        Wrong("changes the query", scales_the_query_in_place, "changed its argument `query`"),
        Wrong("changes the cache", cleans_the_cache, "changed the cache"),
        Wrong("double precision", lambda *row: paged_attention(*row).double(), "should be float32"),
        Wrong("returns nothing", returns_nothing, "returned NoneType"),
    ],
    "06.5": [
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
}

RIGHT = {
    "06.1": [
        caching(writes_by_block_and_offset, reads_by_concatenation),
        caching(writes_with_index_copy, reads_by_slots),
    ],
    "06.2": [add_as_a_merge, add_with_where, add_query_by_query],
    "06.3": [merge_by_log_sum_exp, merge_with_where],
    "06.4": [attention_by_hand, attention_by_block_and_offset],
    "06.5": [forwards_by_squeezing, forwards_contiguous, forwards_with_keywords],
}
