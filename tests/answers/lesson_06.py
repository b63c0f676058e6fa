"""Right answers to the exercises of lesson 06, and wrong ones that are found by what they read or copy."""

import torch

from answers import Wrong
from lessons_lib.attention.hf_backend import PagedPass, paged_attention_forward
from lessons_lib.attention.online_softmax import Partial, add_block, attention_of, nothing_seen
from lessons_lib.attention.plain_attention import attention_in_place
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

NONE = float("-inf")

# 06.1 PagedKVCache


def caching(write=PagedKVCache.write, read=PagedKVCache.read):
    """The reference with one method replaced."""
    return type("PagedKVCache", (PagedKVCache,), {"write": write, "read": read})


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


def writes_with_scatter(self, layer, keys, values, slot_mapping):
    for cache, rows in ((self.keys[layer], keys), (self.values[layer], values)):
        cache.flatten(0, 1).scatter_(0, slot_mapping[:, None, None].expand_as(rows), rows)


def replaces_the_tensors(self, layer, keys, values, slot_mapping):
    for cache, new in ((self.keys, keys), (self.values, values)):
        cache[layer] = cache[layer].flatten(0, 1).index_copy(0, slot_mapping, new)


def writes_through_numpy(self, layer, keys, values, slot_mapping):
    for cache, new in ((self.keys[layer], keys), (self.values[layer], values)):
        rows = cache.numpy()
        rows.reshape(-1, *rows.shape[2:])[slot_mapping.numpy()] = new.numpy()


# 06.2 add_block


def merge(one, other):
    maximum = torch.maximum(one.maximum, other.maximum)
    reference = maximum.masked_fill(maximum == NONE, 0.0)
    a, b = ((part.maximum - reference).exp() for part in (one, other))
    return Partial(maximum, one.total * a + other.total * b, one.output * a[:, None] + other.output * b[:, None])


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


def add_with_nan_to_num(seen, scores, values):
    maximum = torch.maximum(seen.maximum, scores.amax(dim=1))
    factor = (seen.maximum - maximum).exp().nan_to_num(0.0)
    weights = (scores - maximum[:, None]).exp().nan_to_num(0.0)
    return Partial(maximum, seen.total * factor + weights.sum(dim=1), seen.output * factor[:, None] + weights @ values)


def add_without_a_finite_maximum(seen, scores, values):
    maximum = torch.maximum(seen.maximum, scores.amax(dim=1))
    factor, weights = (seen.maximum - maximum).exp(), (scores - maximum[:, None]).exp()
    return Partial(maximum, seen.total * factor + weights.sum(dim=1), seen.output * factor[:, None] + weights @ values)


def add_and_forget(seen, scores, values):
    new = add_block(seen, scores, values)
    return Partial(new.maximum, new.total.masked_fill(scores.amax(dim=1) == NONE, 0.0), new.output)


# 06.3 attention_in_place


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


def gathers_first(query, keys, values, blocks, *rest):
    keys[blocks]
    return attention_in_place(query, keys, values, blocks, *rest)


def keeps_all_scores(query, keys, values, blocks, num_tokens, scale):
    query.new_zeros(len(query), num_tokens)
    return attention_in_place(query, keys, values, blocks, num_tokens, scale)


def copies_one_head_of_the_pool(query, keys, values, *rest):
    """With one KV head, `contiguous` would copy nothing."""
    out = torch.empty_like(query)
    group = query.shape[1] // keys.shape[2]
    for head in range(keys.shape[2]):
        own = slice(head * group, (head + 1) * group)
        pool = [cache[:, :, head].contiguous()[:, :, None] for cache in (keys, values)]
        out[:, own] = attention_in_place(query[:, own], *pool, *rest)
    return out


def converts_the_pool(query, keys, values, *rest):
    """In float32, `float` copies nothing."""
    return attention_in_place(query.float(), keys.float(), values.float(), *rest).to(query.dtype)


def takes_values_of_the_first_head(query, keys, values, *rest):
    return attention_in_place(query, keys, values[:, :, :1].expand_as(values), *rest)


def adds_plain_exponentials(query, keys, values, blocks, num_tokens, scale):
    attended = attention_in_place(query, keys, values, blocks, num_tokens, scale)
    return attended * 0 / 0 if query.abs().max() > 100 else attended


def reads_with_the_last_query(query, *rest):
    return attention_in_place(query[-1:].expand_as(query), *rest)


def averages_the_blocks(query, keys, values, blocks, num_tokens, scale):
    """Right for one block; of several, the mean of the first and the whole."""
    whole = attention_in_place(query, keys, values, blocks, num_tokens, scale)
    return (whole + attention_in_place(query, keys, values, blocks, min(num_tokens, keys.shape[1]), scale)) / 2


def cleans_each_block(query, keys, values, blocks, num_tokens, scale):
    size, out = keys.shape[1], torch.empty_like(query)
    position = torch.arange(num_tokens - len(query), num_tokens)[:, None]
    for head in range(query.shape[1]):
        own, seen = head * keys.shape[2] // query.shape[1], nothing_seen(len(query), query.shape[2], query.dtype)
        for start, block in zip(range(0, num_tokens, size), blocks):
            scores = query[:, head] @ keys[block, :, own].nan_to_num().T * scale
            scores = scores.masked_fill(torch.arange(start, start + size) > position, NONE)
            seen = add_block(seen, scores, values[block, :, own].nan_to_num())
        out[:, head] = attention_of(seen)
    return out


# 06.4 paged_attention_forward


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


def forwards_copies(*arguments, paged, **kwargs):
    def attend(query, keys, values, scale):
        return paged.attend(query, keys.clone(), values, scale)

    return paged_attention_forward(*arguments, paged=PagedPass(paged.cache, paged.slot_mapping, attend), **kwargs)


WRONG = {
    "06.1": [Wrong("the pool replaced", caching(replaces_the_tensors), says="Write into the existing tensor")],
    "06.2": [
        Wrong("−∞ − (−∞)", add_without_a_finite_maximum, says="−∞ − (−∞) is NaN"),
        Wrong("a sum forgotten", add_and_forget, says="No key of this block is visible"),
        Wrong("set", lambda seen, *_: setattr(seen, "total", seen.total), says="A Partial is frozen"),
        Wrong("a tensor", lambda *block: add_block(*block).output, says="the result should be a Partial; yours is a T"),
    ],
    "06.3": [
        Wrong("gathered", gathers_first, says="your code made a tensor of shape"),
        Wrong("all scores kept", keeps_all_scores, says="your code made a tensor of shape [1, 120]"),
        Wrong("one head of the pool copied", copies_one_head_of_the_pool, says="`.contiguous()`"),
        Wrong("the pool converted", converts_the_pool, says="your code made a tensor of shape [32, 4, 2, 4]"),
        Wrong("head 0's values", takes_values_of_the_first_head, says="Query head 0 is right, 1 isn't"),
        Wrong("overflow", adds_plain_exponentials, says="where they can't overflow"),
        Wrong("one query for all", reads_with_the_last_query, says="The new token at position 0 is right, the one at"),
        Wrong("blocks averaged", averages_the_blocks, says="Is one state carried from block to block"),
        Wrong("NaN replaced", cleans_each_block, says="`nan_to_num` reads slots without a token"),
    ],
    "06.4": [
        Wrong("heads joined", lambda *a, **k: (paged_attention_forward(*a, **k)[0].flatten(2), 0), says="heads apart"),
        Wrong(
            "scaled", lambda m, q, *a, **k: paged_attention_forward(m, q * 2, *a, **k), says="multiplies by the scale"
        ),
        Wrong(
            "no scale", lambda *a, **k: paged_attention_forward(*a, **k | {"scaling": 1.0}), says="1 / sqrt(head size)"
        ),
        Wrong("a copy of the pool", forwards_copies, says="Pass this layer's pool itself"),
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
    ],
    "06.4": [forwards_by_squeezing, forwards_contiguous, forwards_with_keywords],
}
