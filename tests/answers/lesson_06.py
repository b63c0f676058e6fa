"""Right answers to the exercises of lesson 06, and wrong ones that are found by what they read or copy."""

import torch

from answers import Wrong, rights, slips
from lessons_lib.attention.hf_backend import paged_attention_forward
from lessons_lib.attention.online_softmax import Partial, add_block, attention_of, nothing_seen
from lessons_lib.attention.plain_attention import attention_in_place
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache

# 06.1 PagedKVCache

CACHES = """
A block and an offset; a copy of each block.
- cache.flatten => cache[slot_mapping // self.block_size, slot_mapping % self.block_size] = new
= keys, values = (torch.stack([all[layer][block] for block in blocks]) for all in (self.keys, self.values))
= return [keys.flatten(0, 1)[:num_tokens], values.flatten(0, 1)[:num_tokens]]
PyTorch's functions for an index; the slots of each position.
- cache.flatten => cache.view(-1, *cache.shape[2:]).index_copy_(0, slot_mapping, new)
- keys, values = self.keys
+ position = torch.arange(num_tokens)
+ slots = torch.tensor(blocks)[position // self.block_size] * self.block_size + position % self.block_size
= return self.keys[layer].flatten(0, 1)[slots], self.values[layer].flatten(0, 1)[slots]
A scatter.
- cache.flatten => cache.flatten(0, 1).scatter_(0, slot_mapping[:, None, None].expand_as(new), new)
NumPy sees the same memory.
- cache.flatten => cache.numpy().reshape(-1, *cache.shape[2:])[slot_mapping.numpy()] = new.numpy()
"""
REPLACED = """
Write into the existing tensor
- cache.flatten
+ (self.keys if new is keys else self.values)[layer] = cache.flatten(0, 1).index_copy(0, slot_mapping, new)
"""

# 06.2 add_block


def add_as_a_merge(seen, scores, values):
    own = scores.amax(1)
    weights = torch.nan_to_num(torch.exp(scores - own.unsqueeze(1)), nan=0.0)
    maximum = torch.maximum(seen.maximum, own)
    reference = maximum.masked_fill(maximum == float("-inf"), 0.0)
    a, b = torch.exp(seen.maximum - reference), torch.exp(own - reference)
    output = seen.output * a.unsqueeze(1) + (weights @ values) * b.unsqueeze(1)
    return Partial(maximum=maximum, total=seen.total * a + weights.sum(-1) * b, output=output)


def add_query_by_query(seen, scores, values):
    rows = []
    for q in range(len(scores)):
        new = max(seen.maximum[q].item(), scores[q].max().item())
        if new == float("-inf"):
            rows.append((seen.maximum[q], seen.total[q], seen.output[q]))
            continue
        factor, weights = torch.exp(seen.maximum[q] - new), torch.exp(scores[q] - new)
        maximum = torch.tensor(new, dtype=scores.dtype)
        rows.append((maximum, seen.total[q] * factor + weights.sum(), seen.output[q] * factor + weights @ values))
    return Partial(*(torch.stack(column) for column in zip(*rows)))


ADDED = """
NaN becomes 0.
= weights = (scores - maximum[:, None]).exp().nan_to_num(0.0)
= rescale = (seen.maximum - maximum).exp().nan_to_num(0.0)
NaN is left out; the maximum is one of all scores.
= maximum = torch.cat([seen.maximum[:, None], scores], dim=1).max(dim=1)[0]
= weights = torch.where(torch.isinf(maximum)[:, None], torch.zeros_like(scores), torch.exp(scores - maximum[:, None]))
= rescale = torch.where(torch.isinf(maximum), torch.ones_like(maximum), torch.exp(seen.maximum - maximum))
"""
NOT_ADDED = """
−∞ − (−∞) is NaN
= reference = maximum
No key of this block is visible
~ seen.total * rescale => (seen.total * rescale).masked_fill(scores.amax(dim=1) == float("-inf"), 0.0)
"""

# 06.3 attention_in_place


def in_place_without_add_block(query, keys, values, blocks, num_tokens, scale):
    """All heads at once, with the running softmax written out."""
    size, kv_heads = keys.shape[1:3]
    num_new, q_heads, _ = query.shape
    positions = torch.arange(num_tokens - num_new, num_tokens)
    largest = torch.full((q_heads, num_new, 1), float("-inf"), dtype=query.dtype)
    total, out = torch.zeros_like(largest), torch.zeros_like(query.transpose(0, 1))
    for i in range((num_tokens + size - 1) // size):
        filled = min(size, num_tokens - i * size)
        k, v = (
            c[blocks[i], :filled].repeat_interleave(q_heads // kv_heads, dim=1).transpose(0, 1) for c in (keys, values)
        )
        scores = query.transpose(0, 1) @ k.transpose(1, 2) * scale
        scores = scores.masked_fill(i * size + torch.arange(filled) > positions[:, None], float("-inf"))
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


IN_PLACE = """
The blocks from last to first, and scores that are changed in place.
~ zip(range(0, num_tokens, block_size), blocks) => reversed([*zip(range(0, num_tokens, block_size), blocks)])
> is_later = => scores[is_later] = float("-inf")
"""
NOT_IN_PLACE = """
your code made a tensor of shape
< num_new, => keys[blocks]
your code made a tensor of shape [1, 120]
< num_new, => query.new_zeros(len(query), num_tokens)
`.contiguous()`
~ [block, :filled, kv_head] => [:, :, kv_head].contiguous()[block, :filled]
your code made a tensor of shape [32, 4, 2, 4]
> out = => query, keys, values = query.float(), keys.float(), values.float()
Query head 0 is right, 1 isn't
~ values[block, :filled, kv_head] => values[block, :filled, 0]
where they can't overflow
~ return out => return out * 0 / 0 if query.abs().max() > 100 else out
The new token at position 0 is right, the one at
~ query[:, head] => query[-1:, head].expand(num_new, -1)
Is one state carried from block to block
- return
+ if num_tokens > block_size:
+     out = (out + attention_in_place(query, keys, values, blocks, block_size, scale)) / 2
+ ...
`nan_to_num` reads slots without a token
= filled = block_size
~ [block, :filled, kv_head] => [block, :, kv_head].nan_to_num()
"""

# 06.4 paged_attention_forward

FORWARD = """
Names of arguments, and a scale by `or`.
~ [0].transpose(0, 1) => .squeeze(0).permute(1, 0, 2)
- paged.cache.write
+ new_keys, new_values = (part.squeeze(0).permute(1, 0, 2) for part in (key, value))
+ paged.cache.write(layer=layer, keys=new_keys, values=new_values, slot_mapping=paged.slot_mapping)
= scale = scaling or 1 / query.size(-1) ** 0.5
~ paged.cache.keys[layer], paged.cache.values[layer] => keys=paged.cache.keys[layer], values=paged.cache.values[layer]
~ , scale) => , scale=scale)
= return attended.unsqueeze(0), None
Contiguous tensors, and a list.
~ .transpose(0, 1) => .transpose(0, 1).contiguous()
= return [attended[None], None]
All that is named in `kwargs`.
~ scaling: float | None = None, *, paged: "PagedPass", **kwargs: object, => **kwargs
- layer = => layer, paged, scaling = module.layer_idx, kwargs["paged"], kwargs.get("scaling")
~ .transpose(0, 1) => .swapaxes(0, 1)
"""
NO_FORWARD = """
the heads apart
= return attended[None].flatten(2), 0
and multiplies by the scale
~ paged.attend(query[0] => paged.attend(2 * query[0]
the scale is 1 / sqrt(head size)
= scale = 1.0
Pass this layer's pool itself
~ paged.cache.keys[layer], => paged.cache.keys[layer].clone(),
"""

WRONG = {
    "06.1": slips(PagedKVCache, REPLACED),
    "06.2": [
        *slips(add_block, NOT_ADDED),
        Wrong("set", lambda seen, *_: setattr(seen, "total", seen.total), says="A Partial is frozen"),
        Wrong("a tensor", lambda *block: add_block(*block).output, says="the result should be a Partial; yours is a T"),
    ],
    "06.3": slips(attention_in_place, NOT_IN_PLACE),
    "06.4": slips(paged_attention_forward, NO_FORWARD),
}

RIGHT = {
    "06.1": rights(PagedKVCache, CACHES),
    "06.2": [add_as_a_merge, add_query_by_query, *rights(add_block, ADDED)],
    "06.3": [in_place_without_add_block, in_place_token_by_token, *rights(attention_in_place, IN_PLACE)],
    "06.4": rights(paged_attention_forward, FORWARD),
}
