"""Answers to the exercises of lesson 00: other ways to be right. What is wrong stands in the exercises."""

import itertools

import numpy as np
import torch

from answers import Wrong
from lessons_lib.batching.greedy import greedy_without_cache
from lessons_lib.batching.growing_cache import KVCache, ModelCache

# 00.1


def in_tensors(model, prompt_ids, max_new_tokens, eos_token_id=None):
    with torch.no_grad():
        ids = torch.as_tensor(prompt_ids)[None]
        while ids.shape[1] < len(prompt_ids) + max_new_tokens:
            best = torch.softmax(model(ids, use_cache=False).logits[:, -1, :], dim=-1).max(dim=-1).indices
            ids = torch.cat([ids, best[:, None]], dim=1)
            if eos_token_id is not None and best.item() == eos_token_id:
                break
    return ids[0, len(prompt_ids) :].tolist()


def recursive(model, prompt_ids, max_new_tokens, eos_token_id=None):
    token = np.argmax(model.forward(torch.tensor([prompt_ids])).logits.numpy()[0, -1])
    if max_new_tokens == 1 or token == eos_token_id:
        return [token]
    return [token] + recursive(model, [*prompt_ids, int(token)], max_new_tokens - 1, eos_token_id)


def with_a_mask_of_ones(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = torch.full((1, len(prompt_ids) + max_new_tokens), -1)
    ids[0, : len(prompt_ids)] = torch.tensor(prompt_ids)
    for end in range(len(prompt_ids), ids.shape[1]):
        seen = ids[:, :end]
        ids[:, end] = model(seen, attention_mask=torch.ones_like(seen), use_cache=False).logits[:, -1].argmax(-1)
        if ids[0, end] == eos_token_id:
            break
    return [token for token in ids[0, len(prompt_ids) :].tolist() if token >= 0]


# 00.2


class CacheOfPieces(ModelCache):
    """Joins only when it is asked, and counts as it goes."""

    def __init__(self):
        self.pieces = []

    def update(self, key, value, layer):
        if layer == len(self.pieces):
            self.pieces.append(([], []))
        for piece, new in zip(self.pieces[layer], (key, value)):
            piece.append(new.clone())
        return [torch.cat(piece, dim=-2) for piece in self.pieces[layer]]

    @property
    def num_tokens(self):
        return sum(key.size(2) for key in self.pieces[0][0]) if self.pieces else 0

    @property
    def num_bytes(self):
        tensors = itertools.chain.from_iterable(piece for pieces in self.pieces for piece in pieces)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class CacheWithRoom(ModelCache):
    """Doubles its room when it is full; one tensor for both."""

    def __init__(self):
        self.room, self.held = {}, {}

    def update(self, key, value, layer):
        new = torch.stack([key, value])
        start = self.held.get(layer, 0)
        end = start + key.shape[2]
        if layer not in self.room or end > self.room[layer].shape[3]:
            room = new.new_zeros(*new.shape[:3], 2 * end, new.shape[4])
            if start:
                room[:, :, :, :start] = self.room[layer][:, :, :, :start]
            self.room[layer] = room
        self.room[layer][:, :, :, start:end] = new
        self.held[layer] = end
        keys, values = self.room[layer][:, :, :, :end]
        return keys, values

    @property
    def num_tokens(self):
        return self.held.get(0, 0)

    @property
    def num_bytes(self):
        return sum(room[:, :, :, : self.held[layer]].nbytes for layer, room in self.room.items())


# 00.3


def with_a_for_loop(model, prompt_ids, max_new_tokens, eos_token_id=None):
    cache, answer = KVCache(), []
    for number in range(max_new_tokens):
        fed = [prompt_ids] if number == 0 else [answer[-1:]]
        answer.append(model(torch.tensor(fed), past_key_values=cache, logits_to_keep=1).logits.argmax().item())
        if answer[-1] == eos_token_id:
            break
    return answer


def by_recursion(model, prompt_ids, max_new_tokens, eos_token_id=None, cache=None):
    cache = cache or CacheOfPieces()
    token = int(model(input_ids=torch.tensor([prompt_ids]), past_key_values=cache).logits[0, -1].argmax())
    if max_new_tokens == 1 or token == eos_token_id:
        return [token]
    return [token, *by_recursion(model, [token], max_new_tokens - 1, eos_token_id, cache)]


def with_the_cache_that_the_model_makes(model, prompt_ids, max_new_tokens, eos_token_id=None):
    output = model(input_ids=torch.tensor([prompt_ids]))
    new = [int(output.logits[0, -1].argmax())]
    while not (len(new) == max_new_tokens or new[-1] == eos_token_id):
        output = model(input_ids=torch.tensor([new[-1:]]), past_key_values=output.past_key_values)
        new.append(int(output.logits[0, -1].argmax()))
    return new


# What no change of the reference can be: the oracle itself, state, arguments


def with_hugging_face(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = torch.tensor([prompt_ids])
    options = dict(max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=eos_token_id, pad_token_id=0)
    return model.generate(ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompt_ids) :].tolist()


def slides_a_window(model, prompt_ids, max_new_tokens, eos_token_id=None):
    token = greedy_without_cache(model, prompt_ids, 1)[0]
    if max_new_tokens == 1 or token == eos_token_id:
        return [token]
    return [token, *slides_a_window(model, [*prompt_ids[1:], token], max_new_tokens - 1, eos_token_id)]


def keeps_answers_by_prompt(model, prompt_ids, max_new_tokens, eos_token_id=None, kept={}):  # noqa: B006
    key = tuple(prompt_ids)
    if key not in kept:
        kept[key] = greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id)
    return kept[key]


def appends_to_the_prompt(model, prompt_ids, max_new_tokens, eos_token_id=None):
    answer = greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id)
    prompt_ids += answer
    return answer


def keeps_its_cache(model, prompt_ids, max_new_tokens, eos_token_id=None, cache=KVCache()):  # noqa: B008
    return by_recursion(model, prompt_ids, max_new_tokens, eos_token_id, cache)


class CacheThatCountsItsRoom(CacheWithRoom):
    @property
    def num_bytes(self):
        return sum(room.nbytes for room in self.room.values())


class HalfACache(KVCache):
    @property
    def num_bytes(self):
        raise NotImplementedError


class CacheOfNoModel(CacheOfPieces):
    get_seq_length = property()


class SharedCache(KVCache):
    keys = {}
    values = {}

    def __init__(self):
        pass


WRONG = {
    "00.1": [
        Wrong("the oracle itself", with_hugging_face, "your code calls `model.generate`"),
        Wrong("a window", slides_a_window, "Pass 2 should feed [[5, 17, 42, 74]], and yours feeds [[17, 42, 74]]"),
        Wrong("answers kept by prompt", keeps_answers_by_prompt, "Your code keeps something between calls"),
        Wrong("appends to the prompt", appends_to_the_prompt, "changed its argument `prompt_ids`"),
    ],
    "00.2": [
        Wrong("one cache for all", SharedCache, "an attribute of the class"),
        Wrong(
            "room that isn't used counts", CacheThatCountsItsRoom, "in every layer, each once. Yours is 2 times that."
        ),
        Wrong("a part is missing", HalfACache, "This part isn't written yet."),
        Wrong("ModelCache is missing", CacheOfNoModel, "`cache.get_seq_length()` can't be read"),
    ],
    "00.3": [
        Wrong("the oracle itself", with_hugging_face, "your code calls `model.generate`"),
        Wrong("one cache for all calls", keeps_its_cache, "Your code keeps something between calls"),
    ],
}

RIGHT = {
    "00.1": [in_tensors, recursive, with_a_mask_of_ones],
    "00.2": [CacheOfPieces, CacheWithRoom],
    "00.3": [with_a_for_loop, by_recursion, with_the_cache_that_the_model_makes],
}
