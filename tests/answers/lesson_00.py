"""Answers to the exercises of lesson 00, wrong and right."""

import copy
import itertools

import numpy as np
import torch
from transformers import AutoConfig, DynamicCache

from answers import Wrong
from lessons_lib.batching.greedy import decode_step, greedy_with_cache, greedy_without_cache, prefill
from lessons_lib.models.configuration import cache_bytes_per_token, kv_head_size
from lessons_lib.models.loading import BUNDLED_MODEL

OURS = AutoConfig.from_pretrained(BUNDLED_MODEL)


def _logits(model, ids, **options):
    return model(input_ids=torch.tensor([ids]), **options).logits


# 00.1


def loop_without_cache(
    choose=lambda logits: int(logits[0, -1].argmax()),
    feed=lambda ids, prompt: ids,
    answer=lambda ids, prompt: ids[len(prompt) :],
):
    """A correct loop in which one part can be replaced by a wrong one."""

    def greedy(model, prompt_ids, max_new_tokens, eos_token_id=None):
        ids = list(prompt_ids)
        for _ in range(max_new_tokens):
            ids.append(choose(_logits(model, feed(ids, prompt_ids))))
            if ids[-1] == eos_token_id:
                break
        return answer(ids, prompt_ids)

    return greedy


def flat_argmax_before_the_model_sees_it(logits):
    return int(logits[0].argmax())


def reads_where_the_prompt_ends(model, prompt_ids, max_new_tokens, eos_token_id=None):
    choose = loop_without_cache(lambda logits: int(logits[0, len(prompt_ids) - 1].argmax()))
    return choose(model, prompt_ids, max_new_tokens, eos_token_id)


def stops_at_a_repeated_token(model, prompt_ids, max_new_tokens, eos_token_id=None):
    answer = greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id)
    return next((answer[: i + 1] for i, token in enumerate(answer) if token in answer[:i]), answer)


def appends_to_the_prompt(model, prompt_ids, max_new_tokens, eos_token_id=None):
    start = len(prompt_ids)
    for _ in range(max_new_tokens):
        prompt_ids.append(int(_logits(model, prompt_ids)[0, -1].argmax()))
        if prompt_ids[-1] == eos_token_id:
            break
    return prompt_ids[start:]


def one_too_few(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return greedy_without_cache(model, prompt_ids, max_new_tokens - 1, eos_token_id) if max_new_tokens > 1 else []


def one_too_many(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return greedy_without_cache(model, prompt_ids, max_new_tokens + 1, eos_token_id)


def counts_the_prompt(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = list(prompt_ids)
    while len(ids) < max_new_tokens:
        ids.append(int(_logits(model, ids)[0, -1].argmax()))
        if ids[-1] == eos_token_id:
            break
    return ids[len(prompt_ids) :]


def ignores_the_end_token(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return greedy_without_cache(model, prompt_ids, max_new_tokens)


def leaves_the_end_token_out(model, prompt_ids, max_new_tokens, eos_token_id=None):
    answer = greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id)
    return answer[:-1] if eos_token_id is not None and answer[-1] == eos_token_id else answer


def takes_end_token_0_for_none(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id or None)


def stops_at_an_end_token_of_the_prompt(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = list(prompt_ids)
    while len(ids) - len(prompt_ids) < max_new_tokens and eos_token_id not in ids:
        ids.append(int(_logits(model, ids)[0, -1].argmax()))
    return ids[len(prompt_ids) :]


def checks_the_last_token_first(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = list(prompt_ids)
    while len(ids) - len(prompt_ids) < max_new_tokens and ids[-1] != eos_token_id:
        ids.append(int(_logits(model, ids)[0, -1].argmax()))
    return ids[len(prompt_ids) :]


def one_pass_for_nothing(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = list(prompt_ids)
    while True:
        token = int(_logits(model, ids)[0, -1].argmax())
        if len(ids) - len(prompt_ids) == max_new_tokens or ids[len(prompt_ids) :][-1:] == [eos_token_id]:
            return ids[len(prompt_ids) :]
        ids.append(token)


def feeds_a_column(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        ids.append(int(model(input_ids=torch.tensor(ids).unsqueeze(1), use_cache=False).logits[-1, -1].argmax()))
        if ids[-1] == eos_token_id:
            break
    return ids[len(prompt_ids) :]


def feeds_two_rows(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        ids.append(int(model(input_ids=torch.tensor([ids, ids]), use_cache=False).logits[0, -1].argmax()))
        if ids[-1] == eos_token_id:
            break
    return ids[len(prompt_ids) :]


def feeds_the_whole_room(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = torch.zeros(1, len(prompt_ids) + max_new_tokens, dtype=torch.long)
    ids[0, : len(prompt_ids)] = torch.tensor(prompt_ids)
    for end in range(len(prompt_ids), ids.shape[1]):
        ids[0, end] = model(input_ids=ids, use_cache=False).logits[0, end - 1].argmax()
        if int(ids[0, end]) == eos_token_id:
            return ids[0, len(prompt_ids) : end + 1].tolist()
    return ids[0, len(prompt_ids) :].tolist()


def second_best_after_the_first(logits):
    """Stands for sampling: the first token is the best one, a later one isn't."""
    return int(logits[0, -1].topk(2).indices[int(logits.shape[1] > 3)])


def first_end_token_goes_unseen(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = [*prompt_ids, int(_logits(model, prompt_ids)[0, -1].argmax())]
    while len(ids) - len(prompt_ids) < max_new_tokens:
        ids.append(int(_logits(model, ids)[0, -1].argmax()))
        if ids[-1] == eos_token_id:
            break
    return ids[len(prompt_ids) :]


def feeds_a_list(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return [int(model(list(prompt_ids)).logits[0, -1].argmax())]


def feeds_one_dimension(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return [int(model(torch.tensor(prompt_ids)).logits[0, -1].argmax())]


def forgets_to_return(model, prompt_ids, max_new_tokens, eos_token_id=None):
    greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id)


def returns_tensors(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return [torch.tensor(token) for token in greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id)]


def returns_one_tensor(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return torch.tensor(greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id))


def returns_a_tuple(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return tuple(greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id))


def starts_one_token_early(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return [prompt_ids[-1], *greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id)]


def fills_caches_that_nothing_reads(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return loop_without_cache()(model, prompt_ids, max_new_tokens, eos_token_id)


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


def only_the_last_logits(model, prompt_ids, max_new_tokens, eos_token_id=None):
    new = []
    while len(new) < max_new_tokens and (not new or new[-1] != eos_token_id):
        new.append(
            model(input_ids=torch.tensor([prompt_ids + new]), use_cache=False, logits_to_keep=1).logits.argmax().item()
        )
    return new


def cuts_the_answer_afterwards(model, prompt_ids, max_new_tokens, eos_token_id=None):
    answer = greedy_without_cache(model, prompt_ids, max_new_tokens)
    return answer[: answer.index(eos_token_id) + 1] if eos_token_id in answer else answer


def keeps_its_list(model, prompt_ids, max_new_tokens, eos_token_id=None, new=[]):  # noqa: B006
    new += greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id)
    return new


def numbers_positions_from_1(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = list(prompt_ids)
    for _ in range(max_new_tokens):
        positions = torch.arange(1, len(ids) + 1)[None]
        ids.append(int(_logits(model, ids, position_ids=positions, use_cache=False)[0, -1].argmax()))
        if ids[-1] == eos_token_id:
            break
    return ids[len(prompt_ids) :]


def keeps_answers_by_prompt(model, prompt_ids, max_new_tokens, eos_token_id=None, kept={}):  # noqa: B006
    key = tuple(prompt_ids)
    if key not in kept:
        kept[key] = greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id)
    return kept[key]


def by_generator(model, prompt_ids, max_new_tokens, eos_token_id=None):
    buffer = torch.zeros(1, len(prompt_ids) + max_new_tokens, dtype=torch.int64)
    buffer[0, : len(prompt_ids)] = torch.tensor(prompt_ids)

    def tokens():
        for end in range(len(prompt_ids), buffer.shape[1]):
            buffer[0, end] = model(buffer[:, :end], use_cache=False)[0][0, end - 1].topk(1).indices
            yield buffer[0, end].item()
            if buffer[0, end] == eos_token_id:
                return

    return list(tokens())


def with_a_mask_of_ones(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = torch.full((1, len(prompt_ids) + max_new_tokens), -1)
    ids[0, : len(prompt_ids)] = torch.tensor(prompt_ids)
    for end in range(len(prompt_ids), ids.shape[1]):
        seen = ids[:, :end]
        ids[:, end] = model(seen, attention_mask=torch.ones_like(seen), use_cache=False).logits[:, -1].argmax(-1)
        if ids[0, end] == eos_token_id:
            break
    return [token for token in ids[0, len(prompt_ids) :].tolist() if token >= 0]


def with_numpy_arrays(model, prompt_ids, max_new_tokens, eos_token_id=None):
    text = np.array(prompt_ids)
    for _ in range(max_new_tokens):
        scores = model(input_ids=torch.from_numpy(text[np.newaxis]), use_cache=False).logits.numpy()
        text = np.append(text, np.argmax(scores[0, -1]))
        if text[-1] == eos_token_id:
            break
    return text[len(prompt_ids) :].tolist()


def takes_the_end_of_the_model_for_none(greedy):
    """The loop, with the end token of the model's configuration where it is given none."""

    def with_an_end(model, prompt_ids, max_new_tokens, eos_token_id=None):
        end = model.config.eos_token_id if eos_token_id is None else eos_token_id
        return greedy(model, prompt_ids, max_new_tokens, end)

    return with_an_end


# 00.2


def step(
    feed=lambda token, cache: [token],
    choose=lambda logits: int(logits[0, -1].argmax()),
    use=lambda cache: cache,
    **options,
):
    """A correct step in which one part can be replaced by a wrong one."""

    def decode_step(model, last_token, cache):
        ids = torch.tensor([feed(last_token, cache)])
        return choose(model(input_ids=ids, past_key_values=use(cache), **options).logits)

    return decode_step


def step_without_cache(model, last_token, cache):
    return int(_logits(model, [last_token])[0, -1].argmax())


def step_with_a_nameless_cache(model, last_token, cache):
    return int(model(torch.tensor([[last_token]]), cache).logits[0, -1].argmax())


def step_that_returns_both(model, last_token, cache):
    return decode_step(model, last_token, cache), cache


def step_that_returns_its_input(model, last_token, cache):
    decode_step(model, last_token, cache)
    return last_token


def step_that_returns_nothing(model, last_token, cache):
    decode_step(model, last_token, cache)


def step_that_steps_twice(model, last_token, cache):
    return decode_step(model, decode_step(model, last_token, cache), cache)


def step_of_one_dimension(model, last_token, cache):
    return int(model(input_ids=torch.tensor([last_token]), past_key_values=cache).logits[0, -1].argmax())


def step_that_makes_room_first(model, last_token, cache):
    cache.crop(cache.get_seq_length() - 1)
    return decode_step(model, last_token, cache)


def step_that_replaces_the_newest(model, last_token, cache):
    cache.crop(-1)
    return decode_step(model, last_token, cache)


def step_that_drops_the_oldest(model, last_token, cache):
    token = decode_step(model, last_token, cache)
    cache.crop(-2)
    return token


def step_that_takes_its_token_back(model, last_token, cache):
    token = decode_step(model, last_token, cache)
    cache.crop(-1)
    return token


def step_that_crops_to_the_old_length(model, last_token, cache):
    held = cache.get_seq_length()
    token = decode_step(model, last_token, cache)
    cache.crop(held)
    return token


def step_that_keeps_a_window(model, last_token, cache):
    token = decode_step(model, last_token, cache)
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, -16:], layer.values[:, :, -16:]
    return token


def step_that_hides_its_token(model, last_token, cache):
    """Has the same result as a mask of one column if the cache holds 1 token, and so the same message."""
    mask = torch.ones(1, cache.get_seq_length() + 1, dtype=torch.long)
    mask[0, -1] = 0
    return int(_logits(model, [last_token], past_key_values=cache, attention_mask=mask)[0, -1].argmax())


def step_by_comparing(model, last_token, cache):
    best, row = 0, _logits(model, [last_token], past_key_values=cache, use_cache=False).flatten().tolist()
    for token, score in enumerate(row):
        best = token if score > row[best] else best
    return best


def step_one_position_too_far(model, last_token, cache):
    positions = torch.tensor([[cache.get_seq_length() + 1]])
    logits = model(torch.tensor([[last_token]]), position_ids=positions, past_key_values=cache).logits
    return int(logits[0, -1].argmax())


def step_with_mask(model, last_token, cache):
    mask = torch.ones(1, cache.get_seq_length() + 1, dtype=torch.long)
    output = model(
        torch.tensor([[last_token]]), attention_mask=mask, past_key_values=cache, use_cache=True, return_dict=True
    )
    return output.logits.squeeze().argmax().item()


def step_with_positions(model, last_token, cache):
    ids = torch.full((1, 1), last_token)
    positions = torch.tensor([[cache.get_seq_length()]])
    return np.argmax(model.forward(ids, position_ids=positions, past_key_values=cache).logits[0, 0].numpy())


def step_on_a_copy_put_back(model, last_token, cache):
    changed = copy.deepcopy(cache)
    token = decode_step(model, last_token, changed)
    for layer, new in zip(cache.layers, changed.layers):
        layer.keys, layer.values = new.keys, new.values
    return token


def step_with_mask_and_positions(model, last_token, cache):
    held = cache.get_seq_length()
    options = dict(attention_mask=torch.ones(1, held + 1, dtype=torch.long), position_ids=torch.tensor([[held]]))
    logits = _logits(model, [last_token], past_key_values=cache, logits_to_keep=1, **options)
    return logits.flatten().topk(1).indices.item()


# 00.3


def feeds_everything_again(model, prompt_ids, max_new_tokens, eos_token_id=None):
    token, cache = prefill(model, prompt_ids)
    new = [token]
    while len(new) < max_new_tokens and new[-1] != eos_token_id:
        new.append(int(_logits(model, prompt_ids + new, past_key_values=cache)[0, -1].argmax()))
    return new


def feeds(what):
    """A loop that is correct except for the token that it feeds: what(new_tokens, prompt_ids)."""

    def greedy(model, prompt_ids, max_new_tokens, eos_token_id=None):
        token, cache = prefill(model, prompt_ids)
        new = [token]
        while len(new) < max_new_tokens and new[-1] != eos_token_id:
            new.append(decode_step(model, what(new, prompt_ids), cache))
        return new

    return greedy


def swaps_what_prefill_returns(model, prompt_ids, max_new_tokens, eos_token_id=None):
    cache, token = prefill(model, prompt_ids)
    new = [token]
    while len(new) < max_new_tokens and token != eos_token_id:
        token = decode_step(model, token, cache)
        new.append(token)
    return new


def swaps_what_decode_step_takes(model, prompt_ids, max_new_tokens, eos_token_id=None):
    token, cache = prefill(model, prompt_ids)
    new = [token]
    while len(new) < max_new_tokens and token != eos_token_id:
        token = decode_step(model, cache, token)
        new.append(token)
    return new


def loses_the_first_token(model, prompt_ids, max_new_tokens, eos_token_id=None):
    token, cache = prefill(model, prompt_ids)
    new = []
    while len(new) < max_new_tokens and token != eos_token_id:
        token = decode_step(model, token, cache)
        new.append(token)
    return new


def has_the_first_token_twice(model, prompt_ids, max_new_tokens, eos_token_id=None):
    token, cache = prefill(model, prompt_ids)
    new = [token]
    while len(new) < max_new_tokens and token != eos_token_id:
        new.append(token)
        token = decode_step(model, token, cache)
    return new


def one_step_for_nothing(model, prompt_ids, max_new_tokens, eos_token_id=None):
    token, cache = prefill(model, prompt_ids)
    new = []
    for _ in range(max_new_tokens):
        new.append(token)
        if token == eos_token_id:
            break
        token = decode_step(model, token, cache)
    return new


def one_token_too_many(model, prompt_ids, max_new_tokens, eos_token_id=None):
    token, cache = prefill(model, prompt_ids)
    new = [token]
    for _ in range(max_new_tokens):
        if token == eos_token_id:
            break
        token = decode_step(model, token, cache)
        new.append(token)
    return new


def prefill_not_counted(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return greedy_with_cache(model, prompt_ids, max_new_tokens - 1, eos_token_id)[: max(max_new_tokens - 1, 0)]


def cached_ignores_the_end_token(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return greedy_with_cache(model, prompt_ids, max_new_tokens)


def looks_for_the_end_only_in_the_loop(model, prompt_ids, max_new_tokens, eos_token_id=None):
    token, cache = prefill(model, prompt_ids)
    new = [token]
    while len(new) < max_new_tokens:
        token = decode_step(model, token, cache)
        new.append(token)
        if token == eos_token_id:
            break
    return new


def cached_leaves_the_end_token_out(model, prompt_ids, max_new_tokens, eos_token_id=None):
    answer = greedy_with_cache(model, prompt_ids, max_new_tokens, eos_token_id)
    return [token for token in answer if token != eos_token_id]


def cached_takes_end_token_0_for_none(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return greedy_with_cache(model, prompt_ids, max_new_tokens, eos_token_id or None)


def returns_the_cache_too(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return greedy_with_cache(model, prompt_ids, max_new_tokens, eos_token_id), "the cache"


def returns_the_prompt_too(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return list(prompt_ids) + greedy_with_cache(model, prompt_ids, max_new_tokens, eos_token_id)


def prefills_again_every_time(model, prompt_ids, max_new_tokens, eos_token_id=None):
    new = []
    while len(new) < max_new_tokens and (not new or new[-1] != eos_token_id):
        new.append(prefill(model, prompt_ids + new)[0])
    return new


def prefills_again_after(is_time):
    """A loop that is correct except that it prefills again when is_time(number of new tokens)."""

    def greedy(model, prompt_ids, max_new_tokens, eos_token_id=None):
        token, cache = prefill(model, prompt_ids)
        new = [token]
        while len(new) < max_new_tokens and token != eos_token_id:
            if is_time(len(new)):
                token, cache = prefill(model, prompt_ids + new)
            else:
                token = decode_step(model, token, cache)
            new.append(token)
        return new

    return greedy


def prefills_token_by_token(model, prompt_ids, max_new_tokens, eos_token_id=None):
    token, cache = prefill(model, prompt_ids[:1])
    for given in prompt_ids[1:]:
        token = decode_step(model, given, cache)
    new = [token]
    while len(new) < max_new_tokens and new[-1] != eos_token_id:
        new.append(decode_step(model, new[-1], cache))
    return new


def changes_the_prompt(model, prompt_ids, max_new_tokens, eos_token_id=None):
    answer = greedy_with_cache(model, prompt_ids, max_new_tokens, eos_token_id)
    prompt_ids += answer
    return answer


def with_a_for_loop(model, prompt_ids, max_new_tokens, eos_token_id=None):
    first, cache = prefill(model, prompt_ids)
    answer = [np.int64(first)]
    for _ in range(max_new_tokens - 1):
        if answer[-1] == eos_token_id:
            break
        answer.append(decode_step(model, int(answer[-1]), cache))
    return answer


@torch.no_grad()
def with_a_cache_of_its_own(model, prompt_ids, max_new_tokens, eos_token_id=None):
    cache, fed, answer = DynamicCache(), torch.tensor([prompt_ids]), []
    while True:
        fed = model(fed, past_key_values=cache).logits[:, -1:].argmax(-1)
        answer.append(fed.item())
        if len(answer) == max_new_tokens or answer[-1] == eos_token_id:
            return answer


def with_hugging_face(model, prompt_ids, max_new_tokens, eos_token_id=None):
    ids = torch.tensor([prompt_ids])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=eos_token_id,
        pad_token_id=0,
    )
    return out[0, len(prompt_ids) :].tolist()


def by_recursion(model, prompt_ids, max_new_tokens, eos_token_id=None):
    first, cache = prefill(model, prompt_ids)

    def answer_from(token, left):
        if left == 1 or token == eos_token_id:
            return [token]
        return [token, *answer_from(decode_step(model, token, cache), left - 1)]

    return answer_from(first, max_new_tokens)


def with_the_cache_that_the_model_makes(model, prompt_ids, max_new_tokens, eos_token_id=None):
    output = model(input_ids=torch.tensor([prompt_ids]))
    new = [int(output.logits[0, -1].argmax())]
    while not (len(new) == max_new_tokens or new[-1] == eos_token_id):
        output = model(input_ids=torch.tensor([new[-1:]]), past_key_values=output.past_key_values)
        new.append(int(output.logits[0, -1].argmax()))
    return new


# 00.4


def product(kv=2, layers=True, heads=None, width=None, factor=1):
    """A correct product in which one factor can be replaced by a wrong one."""

    def cache_bytes_per_token(config, bytes_per_element=4):
        kv_heads, head_dim = kv_head_size(config)
        count = kv * (heads(config) if heads else kv_heads) * (width(config) if width else head_dim)
        return count * (config.num_hidden_layers if layers else 1) * bytes_per_element * factor

    return cache_bytes_per_token


def always_float32(config, bytes_per_element=4):
    return cache_bytes_per_token(config, 4)


def counts_elements(config, bytes_per_element=4):
    return cache_bytes_per_token(config, 1)


def needs_num_key_value_heads(config, bytes_per_element=4):
    head_dim = kv_head_size(config)[1]
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * bytes_per_element


def needs_head_dim(config, bytes_per_element=4):
    return 2 * config.num_hidden_layers * kv_head_size(config)[0] * config.head_dim * bytes_per_element


def takes_none_for_a_size(config, bytes_per_element=4):
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    return 2 * config.num_hidden_layers * kv_head_size(config)[0] * head_dim * bytes_per_element


def takes_none_for_heads(config, bytes_per_element=4):
    kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    return 2 * config.num_hidden_layers * kv_heads * kv_head_size(config)[1] * bytes_per_element


def hidden_size_without_kv_heads(config, bytes_per_element=4):
    if getattr(config, "num_key_value_heads", None) is None:
        return 2 * config.num_hidden_layers * config.hidden_size * bytes_per_element
    return cache_bytes_per_token(config, bytes_per_element)


def queries_per_kv_head(config):
    return config.num_attention_heads // kv_head_size(config)[0]


def size_from_the_kv_heads(config, bytes_per_element=4):
    kv_heads, _ = kv_head_size(config)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // kv_heads
    return 2 * config.num_hidden_layers * kv_heads * head_dim * bytes_per_element


def with_try(config, bytes_per_element=4):
    try:
        kv_heads = config.num_key_value_heads
    except AttributeError:
        kv_heads = None
    if kv_heads is None:
        kv_heads = config.num_attention_heads
    head_dim = vars(config).get("head_dim")
    if head_dim is None:
        head_dim, _ = divmod(config.hidden_size, config.num_attention_heads)
    return bytes_per_element * config.num_hidden_layers * (kv_heads * head_dim + kv_heads * head_dim)


def default_of_two(config, bytes_per_element=2):
    return cache_bytes_per_token(config, bytes_per_element)


def whole_context(config, bytes_per_element=4):
    return cache_bytes_per_token(config, bytes_per_element) * config.max_position_embeddings


def reads(layers, heads):
    """The correct product, but of other configurations: layers from one, heads from another. None means the argument."""

    def cache_bytes_per_token(config, bytes_per_element=4):
        kv_heads, head_dim = kv_head_size(heads or config)
        return 2 * (layers or config).num_hidden_layers * kv_heads * head_dim * bytes_per_element

    return cache_bytes_per_token


def divides_to_a_float(config, bytes_per_element=4):
    kv_heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size / config.num_attention_heads
    return 2 * config.num_hidden_layers * kv_heads * head_dim * bytes_per_element


def prints_only(config, bytes_per_element=4):
    print(cache_bytes_per_token(config, bytes_per_element))


def in_words(config, bytes_per_element=4):
    return f"{cache_bytes_per_token(config, bytes_per_element)} bytes"


def keeps_its_cache(model, prompt_ids, max_new_tokens, eos_token_id=None, kept={}):  # noqa: B006
    token, cache = kept["start"] = kept.get("start") or prefill(model, prompt_ids)
    new = [token]
    while len(new) < max_new_tokens and new[-1] != eos_token_id:
        new.append(decode_step(model, new[-1], cache))
    return new


def decodes_the_prompt_again(model, prompt_ids, max_new_tokens, eos_token_id=None):
    _, cache = prefill(model, prompt_ids)
    new = [[decode_step(model, token, cache) for token in prompt_ids][-1]]
    while len(new) < max_new_tokens and new[-1] != eos_token_id:
        new.append(decode_step(model, new[-1], cache))
    return new


def no_limit_with_an_end_token(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return greedy_with_cache(model, prompt_ids, max_new_tokens if eos_token_id is None else 40, eos_token_id)


def from_a_stream(model, prompt_ids, max_new_tokens, eos_token_id=None):
    def stream():
        token, cache = prefill(model, prompt_ids)
        yield token
        while token != eos_token_id:
            token = decode_step(model, token, cache)
            yield token

    return list(itertools.islice(stream(), max_new_tokens))


def drops_what_prefill_returns(model, prompt_ids, max_new_tokens, eos_token_id=None):
    return greedy_with_cache(model, prompt_ids, max_new_tokens, eos_token_id)[1:]


def feeds_the_prompts_end_again(model, prompt_ids, max_new_tokens, eos_token_id=None):
    _, cache = prefill(model, prompt_ids)
    new = [decode_step(model, prompt_ids[-1], cache)]
    while len(new) < max_new_tokens and new[-1] != eos_token_id:
        new.append(decode_step(model, new[-1], cache))
    return new


def half_in_float32(config, bytes_per_element=4):
    return cache_bytes_per_token(config, bytes_per_element) // 2 + cache_bytes_per_token(config, 4) // 2


def values_in_elements(config, bytes_per_element=4):
    return (cache_bytes_per_token(config, bytes_per_element) + cache_bytes_per_token(config, 1)) // 2


def values_per_query_head(config, bytes_per_element=4):
    kv_heads, head_dim = kv_head_size(config)
    return config.num_hidden_layers * (kv_heads + config.num_attention_heads) * head_dim * bytes_per_element


def adds_heads_and_size(config, bytes_per_element=4):
    return 2 * config.num_hidden_layers * sum(kv_head_size(config)) * bytes_per_element


def whole_kib(config, bytes_per_element=4):
    return cache_bytes_per_token(config, bytes_per_element) // 1024


def adds_instead(config, bytes_per_element=4):
    kv_heads, head_dim = kv_head_size(config)
    return (2 + config.num_hidden_layers) * kv_heads * head_dim * bytes_per_element


def by_hand(config, bytes_per_element=4):
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    key = value = heads * width * bytes_per_element
    return sum(key + value for _ in range(config.num_hidden_layers))


def with_numpy(config, bytes_per_element=4):
    return np.prod([2, config.num_hidden_layers, bytes_per_element, *kv_head_size(config)])


def from_a_tensor(config, bytes_per_element=4):
    kv_heads, head_dim = kv_head_size(config)
    key = torch.empty(config.num_hidden_layers, 1, kv_heads, 1, head_dim, dtype=torch.uint8)
    return (key.nbytes + key.clone().nbytes) * bytes_per_element


WRONG = {
    "00.1": [
        Wrong(
            "argmax at the first position",
            loop_without_cache(lambda logits: int(logits[0, 0].argmax())),
            "position 0, the first",
        ),
        Wrong(
            "argmax one before the last",
            loop_without_cache(lambda logits: int(logits[0, :-1][-1:].sum(0).argmax())),
            "the second to last",
        ),
        Wrong(
            "argmax over all positions",
            loop_without_cache(flat_argmax_before_the_model_sees_it),
            "over all positions at once",
        ),
        Wrong(
            "argmax of every position",
            loop_without_cache(lambda logits: int(logits[0].argmax(dim=-1))),
            "converts a tensor with several elements to a single value",
        ),
        Wrong(
            "argmax at the prompt's last position",
            reads_where_the_prompt_ends,
            "at position 2, but the last position is 3",
        ),
        Wrong("argmin", loop_without_cache(lambda logits: int(logits[0, -1].argmin())), "smallest logit"),
        Wrong(
            "the second best",
            loop_without_cache(lambda logits: int(logits[0, -1].topk(2).indices[1])),
            "the logit of this token has rank 2 of 97",
        ),
        Wrong(
            "samples after the first token",
            loop_without_cache(second_best_after_the_first),
            "The input of that pass was right",
        ),
        Wrong(
            "feeds the prompt each time", loop_without_cache(feed=lambda ids, prompt: prompt), "Append every new token"
        ),
        Wrong(
            "feeds only the last token",
            loop_without_cache(feed=lambda ids, prompt: ids if ids == prompt else ids[-1:]),
            "feed the whole sequence",
        ),
        Wrong(
            "feeds only the last 64 tokens",
            loop_without_cache(feed=lambda ids, prompt: ids[-64:]),
            "You seem to feed only the last 64 tokens. Feed the whole sequence",
        ),
        Wrong("numbers positions from 1", numbers_positions_from_1, "such as positions or a mask?"),
        Wrong(
            "puts new tokens in front",
            loop_without_cache(feed=lambda ids, prompt: ids[len(prompt) :] + prompt),
            "belongs at the end",
        ),
        Wrong(
            "feeds only the last token from the start",
            loop_without_cache(feed=lambda ids, prompt: ids[-1:]),
            "pass 1 should feed 3 tokens, [5, 17, 42]; yours fed [42]",
        ),
        Wrong(
            "takes None for end token 0",
            lambda model, prompt_ids, max_new_tokens, eos_token_id=None: greedy_without_cache(
                model, prompt_ids, max_new_tokens, eos_token_id or 0
            ),
            "Do you replace None by 0?",
        ),
        Wrong("stops at a repeated token", stops_at_a_repeated_token, "What ended your loop after 74?"),
        Wrong(
            "a row for each token",
            feeds_a_column,
            "pass 1 should feed one row of 3 tokens, shape [1, 3]; yours fed shape [3, 1]",
        ),
        Wrong("feeds a list", feeds_a_list, "it needs a tensor"),
        Wrong("feeds one dimension", feeds_one_dimension, "it needs [rows, tokens]"),
        Wrong("returns the prompt too", loop_without_cache(answer=lambda ids, prompt: ids), "the prompt too"),
        Wrong("returns the last token", loop_without_cache(answer=lambda ids, prompt: ids[-1]), "returned int"),
        Wrong("appends to the prompt", appends_to_the_prompt, "changed its argument `prompt_ids`"),
        Wrong("one too few", one_too_few, "1 token too few"),
        Wrong("one too many", one_too_many, "1 token too many"),
        Wrong("counts the prompt", counts_the_prompt, "count the prompt's 3 tokens"),
        Wrong("ignores the end token", ignores_the_end_token, "came as new token 4. Stop there"),
        Wrong("end token seen too late", first_end_token_goes_unseen, "came as the first new token"),
        Wrong("leaves the end token out", leaves_the_end_token_out, "is missing. It is part of the answer"),
        Wrong("takes end token 0 for none", takes_end_token_0_for_none, "falsy in Python"),
        Wrong(
            "stops at an end token of the prompt", stops_at_an_end_token_of_the_prompt, "because the *prompt* contains"
        ),
        Wrong(
            "stops if the prompt ends with the end token",
            checks_the_last_token_first,
            "The *prompt* ends with the end token",
        ),
        Wrong("two equal rows", feeds_two_rows, "fed 2 rows of 3 tokens"),
        Wrong("feeds the room for the answer too", feeds_the_whole_room, "fed 1 row of 4 tokens"),
        Wrong("one pass for nothing", one_pass_for_nothing, "1 token should take 1 forward pass; yours made 2"),
        Wrong("returns the prompt's last token", starts_one_token_early, "begins with the last token of the prompt"),
        Wrong("no use_cache=False", fills_caches_that_nothing_reads, "fills a cache that no pass reads"),
        Wrong("returns nothing", forgets_to_return, "returned None"),
        Wrong("returns a tensor", returns_one_tensor, "a tensor of shape [1]"),
        Wrong("returns a list of tensors", returns_tensors, "element 0 of your answer is Tensor"),
        Wrong("returns a tuple", returns_a_tuple, "returned tuple"),
        Wrong("uses a cache", greedy_with_cache, "the tokens are right, but pass 2 was given a cache"),
        Wrong(
            "returns as many as the limit allows",
            lambda model, prompt_ids, max_new_tokens, eos_token_id=None: [
                *prompt_ids,
                *greedy_without_cache(model, prompt_ids, max_new_tokens, eos_token_id),
            ][-max_new_tokens:],
            "begins with the last 2 tokens of the prompt",
        ),
        Wrong(
            "takes the model's own end token for none",
            takes_the_end_of_the_model_for_none(greedy_without_cache),
            "74 is the end token in the model's configuration; do you replace None by it?",
        ),
        Wrong(
            "a window of 256 tokens",
            loop_without_cache(feed=lambda ids, prompt: ids[-256:]),
            "You seem to feed only the last 256 tokens",
        ),
        Wrong("cuts the answer afterwards", cuts_the_answer_afterwards, "cut the answer at the end token afterwards"),
        Wrong("keeps its list between calls", keeps_its_list, "made only once. Make it inside the function"),
        Wrong("keeps answers by prompt", keeps_answers_by_prompt, "and it took no forward pass"),
        Wrong(
            "lists of one token",
            loop_without_cache(answer=lambda ids, prompt: [[token] for token in ids[len(prompt) :]]),
            "The `tolist()` of a tensor of shape [1] is a list; `.item()` or `int(...)` gives the int. Or did you put the "
            "whole answer into another list?",
        ),
    ],
    "00.2": [
        Wrong("without the cache", step_without_cache, "without this cache"),
        Wrong(
            "with a copy of the cache",
            step(use=copy.deepcopy, choose=lambda logits: np.int64(logits.argmax())),
            "a copy of the cache",
        ),
        Wrong(
            "feeds the token twice", step(feed=lambda token, cache: [token, token]), "your step fed 2 tokens, [46, 46]"
        ),
        Wrong(
            "feeds as many as are cached",
            step(feed=lambda token, cache: [0] * cache.get_seq_length() + [token]),
            "your step fed 2 tokens, [0, 46]",
        ),
        Wrong("feeds a position", step(feed=lambda token, cache: [cache.get_seq_length()]), "it should feed [[46]]"),
        Wrong("cache without a name", step_with_a_nameless_cache, "Pass the cache by keyword: `past_key_values=cache`"),
        Wrong("at position 0", step(position_ids=torch.tensor([[0]])), "the result for `last_token` at position 0"),
        Wrong("one position too far", step_one_position_too_far, "the result for `last_token` at position 2"),
        Wrong("argmin", step(choose=lambda logits: int(logits.argmin())), "*smallest* logit"),
        Wrong("the second best", step(choose=lambda logits: int(logits[0, -1].topk(2).indices[1])), "has rank 2 of 97"),
        Wrong("returns logits", step(choose=lambda logits: logits[:, -1]), "Logits are scores"),
        Wrong("returns a tensor", step(choose=lambda logits: logits[0, -1].argmax()), "a tensor that contains 87"),
        Wrong("returns the cache too", step_that_returns_both, "a tuple of 2"),
        Wrong(
            "returns a list",
            step(choose=lambda logits: logits.argmax(-1)[0].tolist()),
            "a list of 1; it should return only the next token, an int.\nSmallest case: the cache holds 1 token, [2]; "
            "last_token=46, on a tiny qwen2 model.\nReturn the int itself",
        ),
        Wrong("returns its input", step_that_returns_its_input, "its own input"),
        Wrong("returns nothing", step_that_returns_nothing, "returned None"),
        Wrong("two steps", step_that_steps_twice, "yours made 2"),
        Wrong("one dimension", step_of_one_dimension, "it needs [rows, tokens]"),
        Wrong("shortens the cache", step_that_drops_the_oldest, "it holds 0"),
        Wrong(
            "crops to the old length", step_that_crops_to_the_old_length, "the step leaves `last_token` in the cache"
        ),
        Wrong("crops before the pass", step_that_makes_room_first, "your code crops the cache before the pass"),
        Wrong("takes its token back", step_that_takes_its_token_back, "remove the token again"),
        Wrong("returns the logit", step(choose=lambda logits: int(logits.max())), "`argmax` instead of `max`"),
        Wrong(
            "argmax over the positions",
            step(choose=lambda logits: int(logits[0].argmax(dim=0)[0])),
            "Does yours run along the positions?",
        ),
        Wrong(
            "mask hides the new token",
            step_that_hides_its_token,
            "the mask hides `last_token` from itself, as a mask of only one column does",
        ),
        Wrong("keeps a window of the cache", step_that_keeps_a_window, "it holds 16, and not those from before"),
        Wrong("replaces the newest in the cache", step_that_replaces_the_newest, "remove or change anything"),
    ],
    "00.3": [
        Wrong("feeds everything again", feeds_everything_again, "decode step 1 fed 4 tokens"),
        Wrong(
            "feeds the prompt's last token",
            feeds(lambda new, prompt: (prompt + new)[-2]),
            "the last token of the prompt",
        ),
        Wrong("feeds the first new token forever", feeds(lambda new, prompt: new[0]), "Decode step 1 fed the same"),
        Wrong("feeds a token twice", feeds(lambda new, prompt: new[len(new) // 2]), "Decode step 2 fed the same"),
        Wrong(
            "feeds the position instead of the token",
            feeds(lambda new, prompt: len(prompt + new) - 1),
            "fed [3]; it should feed [74], the newest token",
        ),
        Wrong("swaps what prefill returns", swaps_what_prefill_returns, "`(first_token, cache)`, in this order"),
        Wrong("swaps what decode_step takes", swaps_what_decode_step_takes, "`decode_step(model, last_token, cache)`"),
        Wrong("loses the first token", loses_the_first_token, "the first token is missing"),
        Wrong("drops the first token in the end", drops_what_prefill_returns, "the first token is missing"),
        Wrong("feeds the prompt's end again", feeds_the_prompts_end_again, "`prefill` has computed it already"),
        Wrong("has the first token twice", has_the_first_token_twice, "appears twice"),
        Wrong("one decode step for nothing", one_step_for_nothing, "1 token should take 1 forward pass; yours made 2"),
        Wrong(
            "as many decode steps as tokens",
            one_token_too_many,
            "Does it count the token that `prefill` gives? n tokens",
        ),
        Wrong("one too few", prefill_not_counted, "and each decode step gives one more"),
        Wrong("ignores the end token", cached_ignores_the_end_token, "came as new token 4"),
        Wrong("looks for the end only in the loop", looks_for_the_end_only_in_the_loop, "came as the first new token"),
        Wrong("leaves the end token out", cached_leaves_the_end_token_out, "is missing. It is part of the answer"),
        Wrong("takes end token 0 for none", cached_takes_end_token_0_for_none, "falsy in Python"),
        Wrong("returns the cache too", returns_the_cache_too, "returned tuple"),
        Wrong("returns the prompt too", returns_the_prompt_too, "the prompt too"),
        Wrong("no cache at all", greedy_without_cache, "in every pass, without a cache"),
        Wrong("prefills again every time", prefills_again_every_time, "prefill again for every token"),
        Wrong(
            "prefills again after every 8 tokens",
            prefills_again_after(lambda number: number % 8 == 0),
            "pass 9 computed 23 tokens; with a cache it computes 1.\nSmallest case: prompt_ids=[3, 7, 11, 15, 19, 23, "
            "27, 31, 35, 39, 43, 47, 51, 55, 59], max_new_tokens=20, on a tiny qwen2 model.\n"
            "You seem to prefill again after some of the tokens",
        ),
        Wrong(
            "prefills for every token from the 33rd",
            prefills_again_after(lambda number: number >= 32),
            "pass 33 computed 182 tokens",
        ),
        Wrong("prefills token by token", prefills_token_by_token, "1 of the prompt's 3 tokens"),
        Wrong("changes the prompt", changes_the_prompt, "changed its argument `prompt_ids`"),
        Wrong("keeps its cache between calls", keeps_its_cache, "the first pass was given a cache of 3 tokens"),
        Wrong(
            "takes None for end token 0, with a cache",
            lambda model, prompt_ids, max_new_tokens, eos_token_id=None: greedy_with_cache(
                model, prompt_ids, max_new_tokens, eos_token_id or 0
            ),
            "Do you replace None by 0?",
        ),
        Wrong(
            "takes the model's own end token for none, with a cache",
            takes_the_end_of_the_model_for_none(greedy_with_cache),
            "74 is the end token in the model's configuration; do you replace None by it?",
        ),
        Wrong(
            "prefills only the last 64 tokens",
            lambda model, prompt_ids, max_new_tokens, eos_token_id=None: greedy_with_cache(
                model, prompt_ids[-64:], max_new_tokens, eos_token_id
            ),
            "computed only the last 64 tokens of the prompt, which has 150",
        ),
        Wrong(
            "prefills only the first 64 tokens",
            lambda model, prompt_ids, max_new_tokens, eos_token_id=None: greedy_with_cache(
                model, prompt_ids[:64], max_new_tokens, eos_token_id
            ),
            "computed only the first 64 tokens of the prompt, which has 150",
        ),
        Wrong("decodes the prompt again", decodes_the_prompt_again, "decode step 1 fed [5], the first token"),
        Wrong("no limit with an end token", no_limit_with_an_end_token, "Does your loop check both?"),
    ],
    "00.4": [
        Wrong("forgets key and value", product(kv=1), "a key *and* a value"),
        Wrong("forgets the layers", product(layers=False), "You seem to count only one layer"),
        Wrong("query heads", product(heads=lambda config: config.num_attention_heads), "count the query heads"),
        Wrong(
            "computes the head size",
            product(width=lambda config: config.hidden_size // config.num_attention_heads),
            "hidden_size // heads",
        ),
        Wrong(
            "hidden size",
            product(heads=lambda config: 1, width=lambda config: config.hidden_size),
            "hidden_size elements per layer",
        ),
        Wrong("one head", product(heads=lambda config: 1), "only one head"),
        Wrong("query heads per KV head", product(heads=queries_per_kv_head), "divide the query heads by the KV heads"),
        Wrong(
            "hidden size of each head",
            product(width=lambda config: config.hidden_size),
            "hidden_size covers all of them",
        ),
        Wrong("takes None for KV heads", takes_none_for_heads, "`num_key_value_heads` exists and is None"),
        Wrong("always float32", always_float32, "seem to assume 4 bytes per element"),
        Wrong("elements instead of bytes", counts_elements, "elements, not bytes"),
        Wrong("bits", product(factor=8), "count bits"),
        Wrong("keeps queries", product(kv=3), "Queries aren't kept"),
        Wrong("KiB", product(factor=1 / 1024), "The result is in bytes"),
        Wrong("half in float32", half_in_float32, "half of the elements with 4 bytes"),
        Wrong("the whole context", whole_context, "the whole context"),
        Wrong("attribute that GPT-2 lacks", needs_num_key_value_heads, "has no `num_key_value_heads`"),
        Wrong("needs a head_dim", needs_head_dim, "has no `head_dim`"),
        Wrong("takes None for a size", takes_none_for_a_size, "`head_dim` exists and is None"),
        Wrong("a field that no model has", lambda config, bytes_per_element=4: config.kv_heads, "may be missing"),
        Wrong("size from the KV heads", size_from_the_kv_heads, "divide hidden_size by the KV heads"),
        Wrong("another default", default_of_two, "The default is 4"),
        Wrong("prints", prints_only, "returned None"),
        Wrong("the notebook's model", reads(OURS, OURS), "the notebook's own model, `model.config`"),
        Wrong("heads of the notebook's model", reads(None, OURS), "the notebook's own model, `model.config`"),
        Wrong("layers of the notebook's model", reads(OURS, None), "the notebook's own model, `model.config`"),
        Wrong("always the same", lambda config, bytes_per_element=4: 8192, "the same for every configuration"),
        Wrong("a float", divides_to_a_float, "a float; return an int"),
        Wrong("text", in_words, "returned str"),
        Wrong("adds", adds_instead, "Multiply"),
        Wrong("values in elements", values_in_elements, "multiply only half of the elements"),
        Wrong("values per query head", values_per_query_head, "once per query head"),
        Wrong("adds heads and size", adds_heads_and_size, "add the number of KV heads and their size"),
        Wrong("whole KiB", whole_kib, "count in KiB"),
        Wrong("hidden size without KV heads", hidden_size_without_kv_heads, "may be missing without the other"),
    ],
}

RIGHT = {
    "00.1": [
        in_tensors,
        recursive,
        only_the_last_logits,
        by_generator,
        with_a_mask_of_ones,
        with_numpy_arrays,
    ],
    "00.2": [
        step_with_mask,
        step_with_positions,
        step_by_comparing,
        step_on_a_copy_put_back,
        step_with_mask_and_positions,
    ],
    "00.3": [
        with_a_for_loop,
        with_a_cache_of_its_own,
        with_hugging_face,
        from_a_stream,
        by_recursion,
        with_the_cache_that_the_model_makes,
    ],
    "00.4": [by_hand, with_numpy, from_a_tensor, with_try],
}
