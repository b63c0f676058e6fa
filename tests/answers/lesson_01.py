"""Answers to the exercises of lesson 01: wrong ones that learners give, and right ones written differently."""

import itertools

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from answers import Wrong
from lessons_lib.batching import static_batching
from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.batching.static_batching import pad_left, positions_from_mask, wave_steps, waves

# 01.1


def pads_right(prompt_ids, pad_token_id):
    longest = max(map(len, prompt_ids))
    rows = [ids + [pad_token_id] * (longest - len(ids)) for ids in prompt_ids]
    return torch.tensor(rows), torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in prompt_ids])


def pads_to(width):
    """A correct answer, if the width is."""

    def pad(prompt_ids, pad_token_id):
        lengths = [(width(prompt_ids) - len(ids), len(ids)) for ids in prompt_ids]
        rows = [[pad_token_id] * padding + ids for (padding, _), ids in zip(lengths, prompt_ids)]
        return torch.tensor(rows), torch.tensor([[0] * padding + [1] * real for padding, real in lengths])

    return pad


def cuts_to_the_greatest(prompt_ids, pad_token_id):
    width = len(max(prompt_ids))
    return pad_left([ids[-width:] for ids in prompt_ids], pad_token_id)


def fills_rows_of_the_greatest(prompt_ids, pad_token_id):
    input_ids = torch.full((len(prompt_ids), len(max(prompt_ids))), pad_token_id)
    for row, ids in zip(input_ids, prompt_ids):
        row[len(row) - len(ids) :] = torch.tensor(ids)
    return input_ids, pad_left(prompt_ids, pad_token_id)[1]


def repeats_one_row(prompt_ids, pad_token_id):
    longest = max(map(len, prompt_ids))
    rows = [[pad_token_id] * longest] * len(prompt_ids)
    for row, ids in zip(rows, prompt_ids):
        row[:] = [pad_token_id] * (longest - len(ids)) + ids
    return torch.tensor(rows), pad_left(prompt_ids, pad_token_id)[1]


def masks_in_one_list(prompt_ids, pad_token_id):
    input_ids, _ = pad_left(prompt_ids, pad_token_id)
    mask = [[1] * input_ids.shape[1]] * len(prompt_ids)
    for row, ids in zip(mask, prompt_ids):
        row[: len(row) - len(ids)] = [0] * (len(row) - len(ids))
    return input_ids, torch.tensor(mask)


def mask_inverted(prompt_ids, pad_token_id):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    return input_ids, (mask == 0).long()


def mask_never_filled(prompt_ids, pad_token_id):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    return input_ids, torch.zeros_like(mask)


def ones_begin_late(prompt_ids, pad_token_id):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    return input_ids, mask * (positions_from_mask(mask) > 0)


def pads_to_fixed_length(prompt_ids, pad_token_id):
    return pad_left([*prompt_ids, [0] * 16], pad_token_id)[0][:-1], pad_left([*prompt_ids, [0] * 16], pad_token_id)[1][
        :-1
    ]


def one_column_too_many(prompt_ids, pad_token_id):
    longest = max(prompt_ids, key=len)
    input_ids, mask = pad_left([*prompt_ids, [*longest, 0]], pad_token_id)
    return input_ids[:-1], mask[:-1]


def mask_is_bool(prompt_ids, pad_token_id):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    return input_ids, mask == 1


def mask_is_float(prompt_ids, pad_token_id):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    return input_ids, mask.float()


def mask_of_one_row(prompt_ids, pad_token_id):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    return input_ids, mask[0]


def cuts_to_shortest(prompt_ids, pad_token_id):
    shortest = min(map(len, prompt_ids))
    return pad_left([ids[-shortest:] for ids in prompt_ids], pad_token_id)


def all_ones(prompt_ids, pad_token_id):
    input_ids, _ = pad_left(prompt_ids, pad_token_id)
    return input_ids, torch.ones_like(input_ids)


def mask_by_comparing(prompt_ids, pad_token_id):
    input_ids, _ = pad_left(prompt_ids, pad_token_id)
    return input_ids, (input_ids != pad_token_id).long()


def mask_on_the_other_side(prompt_ids, pad_token_id):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    return input_ids, mask.flip(1)


def pads_with_zero(prompt_ids, pad_token_id):
    return pad_left(prompt_ids, 0)


def swaps_results(prompt_ids, pad_token_id):
    return pad_left(prompt_ids, pad_token_id)[::-1]


def reverses_prompts(prompt_ids, pad_token_id):
    return pad_left([ids[::-1] for ids in prompt_ids], pad_token_id)


def sorts_prompts(prompt_ids, pad_token_id):
    return pad_left(sorted(prompt_ids, key=len, reverse=True), pad_token_id)


def returns_lists(prompt_ids, pad_token_id):
    return [tensor.tolist() for tensor in pad_left(prompt_ids, pad_token_id)]


def forgets_the_mask(prompt_ids, pad_token_id):
    return pad_left(prompt_ids, pad_token_id)[0]


def changes_the_prompts(prompt_ids, pad_token_id):
    longest = max(map(len, prompt_ids))
    masks = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompt_ids]
    for ids in prompt_ids:
        while len(ids) < longest:
            ids.insert(0, pad_token_id)
    return torch.tensor(prompt_ids), torch.tensor(masks)


def does_not_pad(prompt_ids, pad_token_id):
    return torch.tensor(prompt_ids), torch.ones_like(torch.tensor(prompt_ids))


def requests_in_columns(prompt_ids, pad_token_id):
    return tuple(tensor.T for tensor in pad_left(prompt_ids, pad_token_id))


def pads_by_filling(prompt_ids, pad_token_id):
    shape = len(prompt_ids), max(map(len, prompt_ids))
    input_ids, mask = torch.full(shape, pad_token_id), torch.zeros(shape, dtype=torch.int64)
    for row, ids in enumerate(prompt_ids):
        input_ids[row, -len(ids) :] = torch.tensor(ids)
        mask[row, -len(ids) :] = 1
    return input_ids, mask


def pads_with_pytorch(prompt_ids, pad_token_id):
    rows = [torch.tensor(ids) for ids in prompt_ids]
    input_ids = pad_sequence(rows, batch_first=True, padding_value=pad_token_id, padding_side="left")
    return [input_ids, pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left")]


def pads_into_tensors(prompt_ids, pad_token_id):
    longest = max(map(len, prompt_ids))
    input_ids = torch.full((len(prompt_ids), longest), pad_token_id)
    attention_mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(prompt_ids):
        input_ids[row, longest - len(ids) :] = torch.tensor(ids)
        attention_mask[row, longest - len(ids) :] = 1
    return input_ids, attention_mask


def pads_from_reversed(prompt_ids, pad_token_id):
    columns = list(itertools.zip_longest(*(ids[::-1] for ids in prompt_ids)))
    cells = [list(row)[::-1] for row in zip(*columns)]
    return (
        torch.tensor([[pad_token_id if cell is None else cell for cell in row] for row in cells]),
        torch.tensor([[int(cell is not None) for cell in row] for row in cells]),
    )


def pads_with_numpy(prompt_ids, pad_token_id):
    longest = max(len(ids) for ids in prompt_ids)
    input_ids = np.full((len(prompt_ids), longest), pad_token_id, dtype=np.int64)
    mask = np.zeros_like(input_ids)
    for row, ids in enumerate(prompt_ids):
        input_ids[row, longest - len(ids) :] = ids
        mask[row, longest - len(ids) :] = 1
    return torch.from_numpy(input_ids), torch.from_numpy(mask)


def pads_through_the_mask(prompt_ids, pad_token_id):
    lengths = torch.tensor([len(ids) for ids in prompt_ids])
    real = torch.arange(int(lengths.max())) >= (lengths.max() - lengths)[:, None]
    input_ids = torch.full(real.shape, pad_token_id)
    input_ids[real] = torch.tensor([token for ids in prompt_ids for token in ids])
    return input_ids, real.long()


def pads_with_int32(prompt_ids, pad_token_id):
    lengths = torch.tensor([len(ids) for ids in prompt_ids])
    mask = (torch.arange(int(lengths.max())) >= (lengths.max() - lengths)[:, None]).int()
    return pad_left(prompt_ids, pad_token_id)[0].int(), mask


# 01.2


def one_too_far(attention_mask):
    return attention_mask.cumsum(dim=1)


def counts_padding(attention_mask):
    return torch.arange(attention_mask.shape[1]).expand_as(attention_mask)


def minus_one_on_padding(attention_mask):
    return attention_mask.cumsum(dim=1) - 1


def continues_from_the_row_above(attention_mask):
    return (attention_mask.flatten().cumsum(0).view_as(attention_mask) - 1).clamp(min=0)


def counts_down_the_rows(attention_mask):
    return (attention_mask.cumsum(dim=0) - 1).clamp(min=0)


def padding_of_the_first_row(attention_mask):
    padding = (attention_mask[0] == 0).sum()
    return (torch.arange(attention_mask.shape[1]) - padding).clamp(min=0).repeat(len(attention_mask), 1)


def counts_from_the_end(attention_mask):
    return (attention_mask.flip(1).cumsum(1).flip(1) - 1).clamp(min=0)


def floats(attention_mask):
    return (attention_mask.float().cumsum(1) - 1).clamp(min=0)


def int32_positions(attention_mask):
    return positions_from_mask(attention_mask).int()


def position_of_the_newest(attention_mask):
    return attention_mask.sum(dim=1) - 1


def as_lists(attention_mask):
    return positions_from_mask(attention_mask).tolist()


def mask_times_columns_plus(attention_mask):
    return attention_mask * attention_mask.sum(dim=1, keepdim=True) - attention_mask


def sums_in_place(attention_mask):
    return attention_mask.cumsum_(dim=1).sub_(1).clamp_(min=0)


def positions_like_generate(attention_mask):
    return (attention_mask.long().cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)


def positions_by_loop(attention_mask):
    rows = []
    for row in attention_mask.tolist():
        rows.append([max(sum(row[: column + 1]) - 1, 0) for column in range(len(row))])
    return torch.tensor(rows)


def positions_by_shift(attention_mask):
    first = attention_mask.argmax(dim=1, keepdim=True)
    return torch.relu(torch.arange(attention_mask.shape[1]) - first)


# 01.3


def barrier(length_of=max, start=0, made=lambda start, length, end: (start, start + length, end), carries=True):
    """A correct answer in which one part can be replaced by a wrong one."""

    def wave_steps(answer_lengths, batch_size):
        times, begin = [], start
        for wave in waves(answer_lengths, batch_size):
            end = begin + length_of(wave)
            times += [made(begin, length, end) for length in wave]
            begin = end if carries else start
        return times

    return wave_steps


def looks_up_by_length(answer_lengths, batch_size):
    times = wave_steps(answer_lengths, batch_size)
    return [times[answer_lengths.index(length)] for length in answer_lengths]


def one_list_per_wave(answer_lengths, batch_size):
    return waves(wave_steps(answer_lengths, batch_size), batch_size)


def steps_by_splitting(answer_lengths, batch_size):
    parts = torch.tensor(answer_lengths).split(batch_size)
    ends = torch.stack([part.max() for part in parts]).cumsum(0).tolist()
    starts = [0, *ends]
    return [(start, start + n, end) for start, end, part in zip(starts, ends, parts) for n in part.tolist()]


def sorts_first(answer_lengths, batch_size):
    order = sorted(range(len(answer_lengths)), key=lambda index: answer_lengths[index])
    times = wave_steps([answer_lengths[index] for index in order], batch_size)
    return [times[order.index(index)] for index in range(len(answer_lengths))]


def longest_of_all(answer_lengths, batch_size):
    return barrier(lambda wave: max(answer_lengths))(answer_lengths, batch_size)


def that_many_waves(answer_lengths, batch_size):
    return wave_steps(answer_lengths, -(-len(answer_lengths) // batch_size) or 1)


def forgets_last_wave(answer_lengths, batch_size):
    whole = max(len(answer_lengths) // batch_size * batch_size, len(answer_lengths) == 1)
    return wave_steps(answer_lengths[:whole], batch_size)


def fills_the_last_wave(answer_lengths, batch_size):
    filled = [*answer_lengths, *[0] * (-len(answer_lengths) % batch_size)]
    return wave_steps(filled, batch_size)


def one_element_per_wave(answer_lengths, batch_size):
    return [(wave[0]) for wave in waves(wave_steps(answer_lengths, batch_size), batch_size)]


def starts_late(answer_lengths, batch_size):
    times = wave_steps(answer_lengths, batch_size)
    late = [row // batch_size for row in range(len(times))]
    return [tuple(number + by for number in time) for time, by in zip(times, late)]


def deals_them_out(answer_lengths, batch_size):
    number = -(-len(answer_lengths) // batch_size)
    dealt = [answer_lengths[first::number] for first in range(number)]
    times = iter(wave_steps([length for wave in dealt for length in wave], batch_size))
    found = {first + number * i: next(times) for first, wave in enumerate(dealt) for i in range(len(wave))}
    return [found[index] for index in range(len(answer_lengths))]


def shares_them_evenly(answer_lengths, batch_size):
    times, start = [], 0
    for wave in np.array_split(answer_lengths, -(-len(answer_lengths) // batch_size)):
        end = start + max(wave.tolist())
        times += [(start, start + length, end) for length in wave.tolist()]
        start = end
    return times


def number_of_the_wave(answer_lengths, batch_size):
    times = wave_steps(answer_lengths, batch_size)
    return [(row // batch_size, last, end) for row, (_, last, end) in enumerate(times)]


def forgets_return(answer_lengths, batch_size):
    wave_steps(answer_lengths, batch_size)


def steps_by_loop(answer_lengths, batch_size):
    times, start = [], 0
    for index in range(0, len(answer_lengths), batch_size):
        longest = 0
        for length in answer_lengths[index : index + batch_size]:
            longest = length if length > longest else longest
        for length in answer_lengths[index : index + batch_size]:
            times.append([start, start + length, start + longest])
        start += longest
    return tuple(times)


def steps_by_numpy(answer_lengths, batch_size):
    lengths = np.array(answer_lengths, dtype=int)
    longest = np.array([max(wave) for wave in waves(answer_lengths, batch_size)], dtype=int)
    end = np.repeat(longest.cumsum(), batch_size)[: len(lengths)]
    start = end - np.repeat(longest, batch_size)[: len(lengths)]
    return np.stack([start, start + lengths, end], axis=1)


def steps_by_recursion(answer_lengths, batch_size, start=0):
    wave, rest = answer_lengths[:batch_size], answer_lengths[batch_size:]
    if not wave:
        return []
    end = start + max(wave)
    return [(start, start + length, end) for length in wave] + steps_by_recursion(rest, batch_size, end)


def steps_by_counting_down(answer_lengths, batch_size):
    times, step = [None] * len(answer_lengths), 0
    for first in range(0, len(answer_lengths), batch_size):
        rows, start = range(first, min(first + batch_size, len(answer_lengths))), step
        last = {}
        while len(last) < len(rows):
            step += 1
            last |= {row: step for row in rows if step - start == answer_lengths[row]}
        for row in rows:
            times[row] = (start, last[row], step)
    return times


def closes_an_empty_wave(answer_lengths, batch_size):
    times, wave = [], []
    for length in answer_lengths:
        wave.append(length)
        if len(wave) == batch_size:
            times, wave = [*times, *wave], []
    longest = max(wave)  # of the last wave
    return wave_steps([*times, *wave], batch_size) if longest else []


def steps_by_accumulating(answer_lengths, batch_size):
    ends = list(itertools.accumulate(max(wave) for wave in waves(answer_lengths, batch_size)))
    starts = [0, *ends]
    numbers = [index // batch_size for index in range(len(answer_lengths))]
    return [(starts[k], starts[k] + length, ends[k]) for k, length in zip(numbers, answer_lengths)]


def steps_by_reducing(answer_lengths, batch_size):
    lengths = np.array(answer_lengths, dtype=int)
    wave = np.arange(len(lengths)) // batch_size
    longest = np.maximum.reduceat(lengths, range(0, len(lengths), batch_size))
    ends = longest.cumsum()
    starts = ends - longest
    return list(zip(starts[wave].tolist(), (starts[wave] + lengths).tolist(), ends[wave].tolist()))


# 01.4


def loop(
    *,
    go_on=any,
    keep=lambda row, answers, token, eos, max_tokens_each: token != eos and len(answers[row]) < max_tokens_each[row],
    pad=pad_left,
    positions=positions_from_mask,
    mask_in=lambda mask: mask,
    grow=lambda mask: torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1),
    advance=lambda positions: positions[:, -1:] + 1,
    feed=lambda ids, tokens: tokens[:, None],
    with_cache=True,
    new_cache=False,
    choose=lambda logits: logits[:, -1].argmax(dim=-1),
    take=lambda answers, row, token, running, eos: answers[row].append(token) if running[row] else None,
    answer=lambda answers, prompts: answers,
    leave_out=(),
):
    """The reference loop with one part replaced: most wrong answers differ from it in one line."""

    @torch.inference_mode()
    def generate_wave(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
        input_ids, attention_mask = pad(prompt_ids, pad_token_id)
        position_ids, cache = positions(attention_mask), DynamicCache(config=model.config)
        answers, running = [[] for _ in prompt_ids], [True] * len(prompt_ids)
        while go_on(running):
            inputs = dict(input_ids=input_ids, attention_mask=mask_in(attention_mask), position_ids=position_ids)
            if with_cache:
                inputs["past_key_values"] = DynamicCache(config=model.config) if new_cache else cache
            tokens = choose(model(**{name: value for name, value in inputs.items() if name not in leave_out}).logits)
            for row, token in enumerate(tokens.tolist()):
                take(answers, row, token, running, eos_token_id)
                if running[row]:
                    running[row] = keep(row, answers, token, eos_token_id, max_tokens_each)
            input_ids = feed(input_ids, tokens)
            attention_mask, position_ids = grow(attention_mask), advance(position_ids)
        return answer(answers, prompt_ids)

    return generate_wave


def leaves_end_token_out(answers, row, token, running, eos):
    if running[row] and token != eos:
        answers[row].append(token)


def appends_always(answers, row, token, running, eos):
    answers[row].append(token)


def appends_padding(answers, row, token, running, eos):
    answers[row].append(token if running[row] else eos if eos is not None else token)


def one_limit_for_all(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    return static_batching.generate_wave(
        model, prompt_ids, [max(max_tokens_each)] * len(max_tokens_each), pad_token_id, eos_token_id
    )


def smallest_limit_for_all(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    return static_batching.generate_wave(
        model, prompt_ids, [min(max_tokens_each)] * len(max_tokens_each), pad_token_id, eos_token_id
    )


def limit_of_row_0_for_all(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    return static_batching.generate_wave(
        model, prompt_ids, [max_tokens_each[0]] * len(max_tokens_each), pad_token_id, eos_token_id
    )


def limit_counts_the_prompt(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    limits = [max(limit - len(prompt), 1) for prompt, limit in zip(prompt_ids, max_tokens_each)]
    return static_batching.generate_wave(model, prompt_ids, limits, pad_token_id, eos_token_id)


def loses_the_first_token(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    limits = [limit + 1 for limit in max_tokens_each]
    return [a[1:] for a in static_batching.generate_wave(model, prompt_ids, limits, pad_token_id, eos_token_id)]


def sorts_the_wave(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    wave = sorted(zip(max_tokens_each, prompt_ids), key=lambda request: request[0])
    limits, prompts = zip(*wave)
    return static_batching.generate_wave(model, list(prompts), list(limits), pad_token_id, eos_token_id)


def joins_a_row(ids, tokens):
    torch.cat([ids, tokens[None]], dim=1)
    return tokens[:, None]


def ignores_end_token(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    return static_batching.generate_wave(model, prompt_ids, max_tokens_each, pad_token_id)


def takes_token_0_for_none(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    return static_batching.generate_wave(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id or None)


def one_after_the_other(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    return [
        greedy_with_cache(model, ids, max_tokens, eos_token_id) for ids, max_tokens in zip(prompt_ids, max_tokens_each)
    ]


@torch.inference_mode()
def runs_to_the_largest_limit(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """Right answers, cut to length afterwards; it keeps going after every row has finished."""
    answers = static_batching.generate_wave(
        model, prompt_ids, [max(max_tokens_each)] * len(max_tokens_each), pad_token_id
    )
    ends = [[*answer, eos_token_id].index(eos_token_id) + 1 for answer in answers]
    return [answer[: min(max_tokens, end)] for answer, max_tokens, end in zip(answers, max_tokens_each, ends)]


def ends_at_any_end_token(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    return [
        [] if eos_token_id in ids else answer
        for ids, answer in zip(
            prompt_ids, static_batching.generate_wave(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id)
        )
    ]


def returns_tensor(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    return torch.tensor(
        static_batching.generate_wave(model, prompt_ids, [max(max_tokens_each)] * len(max_tokens_each), pad_token_id)
    )


def forgets_the_answers(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    static_batching.generate_wave(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id)


def changes_the_limits(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    answers = static_batching.generate_wave(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id)
    for row, answer in enumerate(answers):
        max_tokens_each[row] -= len(answer)
    return answers


def takes_padding_for_none(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    return static_batching.generate_wave(
        model, prompt_ids, max_tokens_each, pad_token_id, pad_token_id if eos_token_id is None else eos_token_id
    )


def stops_at_padding(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """`token in (eos_token_id, pad_token_id)` ends a row."""
    answers = static_batching.generate_wave(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id)
    return [answer[: [*answer, pad_token_id].index(pad_token_id) + 1] for answer in answers]


def filters_padding(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """Appends the padding token to finished rows, and removes it from the answers at the end."""
    answers = static_batching.generate_wave(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id)
    return [[token for token in answer if token != pad_token_id or token == eos_token_id] for answer in answers]


@torch.inference_mode()
def passes_by_position(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    input_ids, attention_mask = pad_left(prompt_ids, pad_token_id)
    logits = model(
        input_ids, attention_mask, positions_from_mask(attention_mask), DynamicCache(config=model.config)
    ).logits
    return [[token] for token in logits[:, -1].argmax(-1).tolist()]


@torch.inference_mode()
def one_list_for_all_rows(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    answers = [[]] * len(prompt_ids)
    for answer, tokens in zip(
        answers, static_batching.generate_wave(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id)
    ):
        answer += tokens
    return answers


def looks_beyond_its_rows(answers, row, token, running, eos):
    """The learner's own list index is out of range, after a pass with a wrong input."""
    answers[row].append(token)
    if len(answers[row]) > 1:
        running[len(running)]


def grows_mask_with_zeros(mask):
    return torch.cat([mask, torch.zeros_like(mask[:, :1])], dim=1)


def whole_positions(positions):
    return torch.cat([positions, positions[:, -1:] + 1], dim=1)


@torch.inference_mode()
def wave_like_generate(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """With a tensor of unfinished rows, as in Hugging Face transformers."""
    input_ids, attention_mask = pad_left(prompt_ids, pad_token_id)
    width, limits = input_ids.shape[1], torch.tensor(max_tokens_each)
    unfinished = torch.ones(len(max_tokens_each), dtype=torch.bool)
    lengths, sequences, cache = torch.zeros_like(limits), input_ids, None
    while unfinished.any():
        positions = (attention_mask.cumsum(-1) - 1).masked_fill(attention_mask == 0, 1)[:, -input_ids.shape[1] :]
        output = model(
            input_ids, attention_mask=attention_mask, position_ids=positions, past_key_values=cache, use_cache=True
        )
        tokens, cache = output.logits[:, -1, :].max(-1).indices, output.past_key_values
        lengths += unfinished
        sequences = torch.cat([sequences, tokens.unsqueeze(1)], 1)
        ended = lengths >= limits
        if eos_token_id is not None:
            ended = ended | (tokens == eos_token_id)
        unfinished &= ~ended
        input_ids = tokens.unsqueeze(1)
        attention_mask = torch.nn.functional.pad(attention_mask, (0, 1), value=1)
    return [row[width : width + int(length)].tolist() for row, length in zip(sequences, lengths)]


@torch.inference_mode()
def wave_that_sheds_rows(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """Removes finished rows from the batch: not a static wave, whose finished rows are still computed."""
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    positions, cache = positions_from_mask(mask), DynamicCache(config=model.config)
    answers, rows = [[] for _ in prompt_ids], list(range(len(prompt_ids)))
    while rows:
        tokens = (
            model(input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
            .logits[:, -1]
            .argmax(-1)
        )
        for row, token in zip(rows, tokens):
            answers[row].append(int(token))
        stay = [
            i
            for i, row in enumerate(rows)
            if answers[row][-1] != eos_token_id and len(answers[row]) != max_tokens_each[row]
        ]
        rows = [rows[i] for i in stay]
        if len(stay) < len(tokens) and rows:
            cache.batch_select_indices(torch.tensor(stay))
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)[stay]
        input_ids, positions = tokens[stay, None], positions[stay, -1:] + 1
    return answers


@torch.inference_mode()
def sheds_rows_but_keeps_the_cache(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    positions, cache = positions_from_mask(mask), DynamicCache(config=model.config)
    answers, rows = [[] for _ in prompt_ids], list(range(len(prompt_ids)))
    while rows:
        inputs = dict(input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        tokens = model(**inputs).logits[:, -1].argmax(-1)
        for row, token in zip(rows, tokens.tolist()):
            answers[row].append(token)
        stay = [i for i, row in enumerate(rows) if not _complete(answers[row], max_tokens_each[row], eos_token_id)]
        rows = [rows[i] for i in stay]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)[stay]
        input_ids, positions = tokens[stay, None], positions[stay, -1:] + 1
    return answers


def _complete(answer, max_tokens, eos_token_id):
    return answer[-1] == eos_token_id or len(answer) == max_tokens


@torch.inference_mode()
def positions_without_a_column(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    positions, cache = positions_from_mask(mask), DynamicCache(config=model.config)
    answers = [[] for _ in prompt_ids]
    while True:
        inputs = dict(input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        input_ids = model(**inputs).logits[:, -1].argmax(-1)[:, None]
        running = False
        for answer, limit, token in zip(answers, max_tokens_each, input_ids[:, 0].tolist()):
            if not answer or not _complete(answer, limit, eos_token_id):
                answer.append(token)
            running = running or not _complete(answer, limit, eos_token_id)
        if not running:
            return answers
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        positions = mask.sum(1) - 1


@torch.inference_mode()
def wave_by_recursion(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    cache = DynamicCache(config=model.config)

    def go_on(ids, mask, positions, answers):
        inputs = dict(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        best = model(**inputs).logits[:, -1].argmax(-1, keepdim=True)
        over = [len(a) == limit or a[-1:] == [eos_token_id] for a, limit in zip(answers, max_tokens_each)]
        answers = [a if done else [*a, token] for a, done, (token,) in zip(answers, over, best.tolist())]
        if all(len(a) == limit or a[-1] == eos_token_id for a, limit in zip(answers, max_tokens_each)):
            return answers
        return go_on(best, torch.cat([mask, mask.new_ones(len(mask), 1)], 1), positions[:, -1:] + 1, answers)

    ids, mask = pad_left(prompt_ids, pad_token_id)
    return go_on(ids, mask, positions_from_mask(mask), [[] for _ in prompt_ids])


@torch.inference_mode()
def wave_by_counting(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """Runs for a fixed number of steps, and recomputes masks and positions in each of them."""
    lengths, cache, answers = (
        [len(ids) for ids in prompt_ids],
        DynamicCache(config=model.config),
        [[] for _ in prompt_ids],
    )
    done = [False for _ in prompt_ids]
    fed, _ = pad_left(prompt_ids, pad_token_id)
    for step in range(max(max_tokens_each)):
        if all(done):
            break
        mask = torch.tensor([[False] * (max(lengths) - length) + [True] * (length + step) for length in lengths])
        positions = torch.tensor([[length + step - 1] for length in lengths]) if step else positions_from_mask(mask)
        best = torch.argmax(
            model(fed, attention_mask=mask, position_ids=positions, past_key_values=cache, logits_to_keep=1).logits, -1
        )
        for answer, token, max_tokens, i in zip(
            answers, best[:, 0].numpy(), max_tokens_each, range(len(max_tokens_each))
        ):
            if not done[i]:
                answer.append(token)
            done[i] = done[i] or len(answer) >= max_tokens or token == eos_token_id
        fed = best
    return answers


@torch.inference_mode()
def wave_that_feeds_padding(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """Feeds the padding token for a finished row, and counts the positions in the mask."""
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    positions, cache = positions_from_mask(mask), DynamicCache(config=model.config)
    answers, finished = [[] for _ in prompt_ids], [False] * len(prompt_ids)
    while True:
        inputs = dict(input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        tokens = model(**inputs).logits[:, -1].argmax(-1).tolist()
        for row, token in enumerate(tokens):
            if not finished[row]:
                answers[row].append(token)
                finished[row] = _complete(answers[row], max_tokens_each[row], eos_token_id)
        if all(finished):
            return answers
        input_ids = torch.tensor([[pad_token_id if over else token] for token, over in zip(tokens, finished)])
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], 1)
        positions = mask.sum(1, keepdim=True) - 1


class _Row:
    def __init__(self, limit):
        self.left, self.tokens = limit, []

    def take(self, token, eos_token_id):
        if self.left:
            self.tokens.append(token)
            self.left = 0 if token == eos_token_id else self.left - 1


@torch.inference_mode()
def wave_that_hides_finished_rows(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    """An object for each row; the new columns of a finished row are hidden."""
    rows, cache = [_Row(limit) for limit in max_tokens_each], DynamicCache(config=model.config)
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    positions = positions_from_mask(mask)
    while True:
        inputs = dict(input_ids=input_ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
        tokens = model(**inputs).logits[:, -1].argmax(-1)
        for row, token in zip(rows, tokens.tolist()):
            row.take(token, eos_token_id)
        if not any(row.left for row in rows):
            return [row.tokens for row in rows]
        mask = torch.cat([mask, torch.tensor([[int(row.left > 0)] for row in rows])], 1)
        input_ids, positions = tokens[:, None], positions[:, -1:] + 1


def adds_the_rest_to_the_last_wave(answer_lengths, batch_size):
    number = max(1, len(answer_lengths) // batch_size)
    steps, start = [], 0
    for wave in range(number):
        end = None if wave == number - 1 else (wave + 1) * batch_size
        lengths = answer_lengths[wave * batch_size : end]
        steps += [(start, start + length, start + max(lengths)) for length in lengths]
        start += max(lengths)
    return steps


def takes_the_end_of_the_model_for_none(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    end = model.config.eos_token_id if eos_token_id is None else eos_token_id
    return static_batching.generate_wave(model, prompt_ids, max_tokens_each, pad_token_id, end)


def computes_equal_prompts_once(model, prompt_ids, max_tokens_each, pad_token_id, eos_token_id=None):
    limits = {}
    for ids, limit in zip(map(tuple, prompt_ids), max_tokens_each):
        limits[ids] = max(limit, limits.get(ids, 0))
    prompts = [list(ids) for ids in limits]
    answers = static_batching.generate_wave(model, prompts, list(limits.values()), pad_token_id, eos_token_id)
    answer_to = dict(zip(limits, answers))
    return [answer_to[tuple(ids)][:limit] for ids, limit in zip(prompt_ids, max_tokens_each)]


def one_end_for_all(answers, row, token, running, eos):
    if running[row]:
        answers[row].append(token)
    if token == eos:
        running[:] = [False] * len(running)


WRONG = {
    "01.1": [
        Wrong("pads on the right", pads_right, says="pad on the right"),
        Wrong("mask inverted", mask_inverted, says="mask is inverted"),
        Wrong("one list for all masks", masks_in_one_list, says="All rows of your mask are equal, and the prompts"),
        Wrong("mask never filled", mask_never_filled, says="0 everywhere"),
        Wrong("mask begins a column late", ones_begin_late, says="The ones begin one column too late"),
        Wrong("pads to a fixed length", pads_to_fixed_length, says="a `+ 1` or a fixed length"),
        Wrong("one column too many", one_column_too_many, says="a `+ 1` or a fixed length"),
        Wrong("mask of bool", mask_is_bool, says="torch.bool"),
        Wrong("mask of float", mask_is_float, says="torch.float32"),
        Wrong("mask of one row", mask_of_one_row, says="the shape of `input_ids`"),
        Wrong("drops tokens", cuts_to_shortest, says="No token may be lost"),
        Wrong("mask of ones", all_ones, says="1 everywhere, so the model would read the padding as text"),
        Wrong("mask by comparing with the padding token", mask_by_comparing, says="compare tokens with `pad_token_id`"),
        Wrong("mask on the other side", mask_on_the_other_side, says="your mask says that they are on the left"),
        Wrong("pads with 0", pads_with_zero, says="should be `pad_token_id`, here 9"),
        Wrong("one list for all rows", repeats_one_row, says="All your rows are equal to the last one"),
        Wrong("swaps the results", swaps_results, says="the mask came first"),
        Wrong(
            "merges equal prompts",
            lambda prompts, pad: pad_left([list(ids) for ids in dict.fromkeys(map(tuple, prompts))], pad),
            says="You seem to merge equal prompts",
        ),
        Wrong(
            "keeps only the last 64 tokens",
            lambda prompts, pad: pad_left([ids[-64:] for ids in prompts], pad),
            says="the longest prompt has 65 tokens, so there should be 65 columns; yours has 64",
        ),
        Wrong("reverses the prompts", reverses_prompts, says="wrong order"),
        Wrong("sorts the prompts", sorts_prompts, says="sort the prompts"),
        Wrong("returns lists", returns_lists, says="should be a tensor"),
        Wrong("forgets the mask", forgets_the_mask, says="two things"),
        Wrong("changes the prompts", changes_the_prompts, says="changed its argument `prompt_ids`"),
        Wrong("requests in columns", requests_in_columns, says="A request is a row"),
        Wrong("as wide as the greatest", pads_to(lambda prompts: len(max(prompts))), says="element by element: [5, 6]"),
        Wrong("fills rows of the greatest", fills_rows_of_the_greatest, says="the greatest here"),
        Wrong("cuts to the greatest", cuts_to_the_greatest, says="The longest is `max(prompt_ids, key=len)`"),
        Wrong(
            "as wide as the last",
            pads_to(lambda prompts: len(prompts[-1])),
            says="Pad every row to the longest prompt before",
        ),
        Wrong("does not pad", does_not_pad, says="rows of unequal length"),
        Wrong("int32", pads_with_int32, says="torch.int32"),
    ],
    "01.2": [
        Wrong("begins at 1", one_too_far, says="positions start at 0"),
        Wrong("counts padding", counts_padding, says="count the padding too"),
        Wrong("-1 on padding", minus_one_on_padding, says="its padding has position -1"),
        Wrong("continues from the row above", continues_from_the_row_above, says="from the row above. Every row"),
        Wrong(
            "subtracts the tokens",
            lambda mask: (torch.arange(mask.shape[1]) - mask.sum(1, keepdim=True)).clamp(min=0),
            says="Do you subtract something other than the row's padding",
        ),
        Wrong("counts down the rows", counts_down_the_rows, says="Did you sum down the rows"),
        Wrong(
            "the padding of row 0 for all", padding_of_the_first_row, says="Alone, this row gets the right positions"
        ),
        Wrong(
            "the padding of all rows",
            lambda mask: (torch.arange(mask.shape[1]) - (mask == 0).sum()).clamp(min=0).expand_as(mask),
            says="should have positions [0, 1, 2]; yours have [0, 0, 1].",
        ),
        Wrong("at least 1", lambda mask: (mask.cumsum(1) - 1).clamp(min=1), says="raise position 0 to 1"),
        Wrong("counts the 0s", lambda mask: (1 - mask).cumsum(1), says="count the padding cells before each token"),
        Wrong(
            "position beyond the row on padding",
            lambda mask: (mask.cumsum(1) - 1).masked_fill(mask == 0, mask.shape[1]),
            says="and then 2 is its last position",
        ),
        Wrong("counts from the end", counts_from_the_end, says="count from the end"),
        Wrong("floats", floats, says="torch.float32"),
        Wrong("int32", int32_positions, says="torch.int32"),
        Wrong("only the newest token", position_of_the_newest, says="the shape of the mask"),
        Wrong("lists", as_lists, says="should return a tensor"),
        Wrong("sums in place", sums_in_place, says="changed its argument `attention_mask`"),
    ],
    "01.3": [
        Wrong("adds the rest to the last wave", adds_the_rest_to_the_last_wave, says="a smaller wave of their own"),
        Wrong("adds up", barrier(sum), says="add up the lengths of a wave"),
        Wrong("mean", barrier(lambda wave: sum(wave) / len(wave)), says="take the mean"),
        Wrong("shortest", barrier(min), says="with its shortest answer"),
        Wrong("last of the wave", barrier(lambda wave: wave[-1]), says="with its last request"),
        Wrong("first of the wave", barrier(lambda wave: wave[0]), says="with its first request"),
        Wrong("longest of all", longest_of_all, says="longest answer of all"),
        Wrong("sorts first", sorts_first, says="requests sorted by length"),
        Wrong(
            "in the order of their lengths",
            lambda lengths, batch_size: wave_steps(sorted(lengths), batch_size),
            says="sorted by length, in that order",
        ),
        Wrong("looks up by length", looks_up_by_length, says="Do you look up a request by its length?"),
        Wrong("one list per wave", one_list_per_wave, says="Return one flat list"),
        Wrong("counts from 1", barrier(made=lambda s, n, e: (s + 1, s + n, e)), says="counted from 1"),
        Wrong(
            "decode steps only",
            lambda lengths, batch_size: wave_steps([length - 1 for length in lengths], batch_size),
            says="decode steps only",
        ),
        Wrong(
            "one more", lambda lengths, size: wave_steps([length + 1 for length in lengths], size), says="too many for"
        ),
        Wrong("every wave at 0", barrier(carries=False), says="start every wave at 0"),
        Wrong("returned at its own end", barrier(made=lambda s, n, e: (s, s + n, s + n)), says="Behind the barrier"),
        Wrong("length as last step", barrier(made=lambda s, n, e: (s, n, e)), says="Yours is the length of the answer"),
        Wrong("the wave's end as last step", barrier(made=lambda s, n, e: (s, e, e)), says="the last step of the wave"),
        Wrong("steps of the wave as return", barrier(made=lambda s, n, e: (s, s + n, e - s)), says="Yours counts from"),
        Wrong("another order", barrier(made=lambda s, n, e: (s, e, s + n)), says="but in another order"),
        Wrong("number of the wave", number_of_the_wave, says="Yours is the number of the wave"),
        Wrong("batch_size waves", that_many_waves, says="not the number of waves"),
        Wrong("forgets the last wave", forgets_last_wave, says="last wave is missing"),
        Wrong("closes an empty wave", closes_an_empty_wave, says="does your code make another, an empty one?"),
        Wrong("fills the last wave", fills_the_last_wave, says="a row without a request"),
        Wrong("one element per wave", one_element_per_wave, says="one element per wave"),
        Wrong("two numbers", barrier(made=lambda s, n, e: (s, e)), says="three numbers"),
        Wrong(
            "steps of all waves", lambda lengths, size: [max(lengths, default=0)] * len(lengths), says="three numbers"
        ),
        Wrong("one step too few", barrier(lambda wave: max(wave) - 1), says="one step too few for a wave"),
        Wrong("a step between waves", starts_late, says="one step too many for a wave"),
        Wrong("deals the requests out", deals_them_out, says="deal the requests out"),
        Wrong("tensors", barrier(start=torch.tensor(0)), says="contain tensor(0), a Tensor; they should be ints"),
        Wrong("floats", barrier(lambda wave: float(max(wave))), says="contain 3.0, a float; they should be ints"),
        Wrong("waves of nearly equal size", shares_them_evenly, says="share the requests evenly among the waves"),
        Wrong("one total", lambda lengths, size: sum(map(max, waves(lengths, size))), says="should return a list"),
        Wrong("no return", forgets_return, says="None"),
    ],
    "01.4": [
        Wrong(
            "sorts the answers",
            loop(answer=lambda answers, prompts: sorted(answers, key=len)),
            says="the right answers in another order",
        ),
        Wrong("one end token ends all rows", loop(take=one_end_for_all), says="In the next pass, another row finished"),
        Wrong("stops with the first row", loop(go_on=all), says="stop the wave when its first row finishes"),
        Wrong("leaves the end token out", loop(take=leaves_end_token_out), says="end token is missing"),
        Wrong(
            "appends after the end", loop(take=appends_always), says="after the end token. The row is still computed"
        ),
        Wrong("appends padding after the end", loop(take=appends_padding), says="append padding"),
        Wrong("one limit for all", one_limit_for_all, says="one limit for all"),
        Wrong("smallest limit for all", smallest_limit_for_all, says="the smallest limit for every row"),
        Wrong("limit of row 0 for all", limit_of_row_0_for_all, says="stopped at the limit of row 0"),
        Wrong("sheds rows, the cache keeps them", sheds_rows_but_keeps_the_cache, says="fed 1 row; the wave has 2"),
        Wrong("positions without a column", positions_without_a_column, says="the shape of `input_ids`"),
        Wrong("sheds finished rows", wave_that_sheds_rows, says="computed only 1 of the wave's 2 rows"),
        Wrong(
            "never appends",
            loop(take=lambda answers, row, token, running, eos: None),
            says="still running in pass",
        ),
        Wrong("loses the first token", loses_the_first_token, says="The first new token is missing"),
        Wrong("sorts the wave", sorts_the_wave, says="in another order than the prompts"),
        Wrong("the limit counts the prompt", limit_counts_the_prompt, says="count the tokens of the prompt too"),
        Wrong(
            "new column of the mask in front",
            loop(grow=lambda mask: torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)),
            says="put the new column in front",
        ),
        Wrong(
            "mask by comparing with the padding token",
            loop(pad=mask_by_comparing),
            says="compare tokens with `pad_token_id`",
        ),
        Wrong(
            "joins a row to a column",
            loop(feed=joins_a_row),
            says="`next_tokens[:, None]` turns them into a column, [2, 1]",
        ),
        Wrong("ignores the end token", ignores_end_token, says="continues after the end token. Do you compare"),
        Wrong("takes token 0 for none", takes_token_0_for_none, says="falsy in Python"),
        Wrong("stops at an end token of the prompt", ends_at_any_end_token, says="an end token in the prompt"),
        Wrong(
            "one token too many",
            loop(
                keep=lambda row, answers, token, eos, max_tokens_each: (
                    token != eos and len(answers[row]) <= max_tokens_each[row]
                )
            ),
            says="one token too many",
        ),
        Wrong(
            "one token too few",
            loop(
                keep=lambda row, answers, token, eos, max_tokens_each: (
                    token != eos and len(answers[row]) + 1 < max(max_tokens_each[row], 2)
                )
            ),
            says="one token too few",
        ),
        Wrong("mask left out", loop(leave_out=("attention_mask",)), says="had no `attention_mask`"),
        Wrong("mask inverted", loop(mask_in=lambda mask: 1 - mask), says="inverted"),
        Wrong("mask not grown", loop(grow=lambda mask: mask), says="Append a column of ones"),
        Wrong(
            "mask of the new token only",
            loop(grow=lambda mask: torch.ones_like(mask[:, :1])),
            says="not just the new token itself",
        ),
        Wrong("mask grown with zeros", loop(grow=grows_mask_with_zeros), says="which hides it"),
        Wrong(
            "mask of ones while decoding",
            loop(grow=lambda mask: torch.ones(len(mask), mask.shape[1] + 1, dtype=torch.int64)),
            says="A mask of ones hides nothing",
        ),
        Wrong("positions left out", loop(leave_out=("position_ids",)), says="had no `position_ids`"),
        Wrong("positions not advanced", loop(advance=lambda positions: positions[:, -1:]), says="advance by 1"),
        Wrong(
            "-1 as the position of the padding",
            loop(positions=lambda mask: mask.cumsum(1) - 1),
            says="gave the padding of row 1 position -1",
        ),
        Wrong(
            "positions count padding",
            loop(positions=lambda mask: torch.arange(mask.shape[1]).expand_as(mask)),
            says="number of real tokens before it",
        ),
        Wrong(
            "decodes at the longest row's position",
            loop(advance=lambda positions: positions[:, -1:].max().expand(len(positions), 1) + 1),
            says="position of the longest one",
        ),
        Wrong("all positions for one token", loop(advance=whole_positions), says="One new token has one position"),
        Wrong(
            "feeds everything again into the cache",
            loop(feed=lambda ids, tokens: torch.cat([ids, tokens[:, None]], 1), advance=whole_positions),
            says="a second time",
        ),
        Wrong(
            "forgets the cache",
            loop(
                with_cache=False, feed=lambda ids, tokens: torch.cat([ids, tokens[:, None]], 1), advance=whole_positions
            ),
            says="recompute the whole sequence in every step",
        ),
        Wrong("forgets the cache and feeds one token", loop(with_cache=False), says="fed one token and no cache"),
        Wrong(
            "makes a new cache in every pass", loop(new_cache=True), says="create the `DynamicCache` inside the loop"
        ),
        Wrong(
            "feeds the prompt's last token again",
            loop(feed=lambda ids, tokens: ids[:, -1:]),
            says="last token of the prompt again",
        ),
        Wrong("pads on the right", loop(pad=pads_right), says="Pad on the left"),
        Wrong(
            "reads the logits of row 0",
            loop(choose=lambda logits: logits[:1, -1].argmax(-1).expand(len(logits))),
            says="the token of row 0",
        ),
        Wrong("reads the first column", loop(choose=lambda logits: logits[:, 0].argmax(-1)), says="the last column"),
        Wrong(
            "returns the prompts too",
            loop(answer=lambda answers, prompts: [p + a for p, a in zip(prompts, answers)]),
            says="return the prompt as well",
        ),
        Wrong(
            "returns a flat list",
            loop(answer=lambda answers, prompts: answers[0] if len(answers) == 1 else answers),
            says="should be a list of ints",
        ),
        Wrong("returns a tensor", returns_tensor, says="don't fit into a tensor"),
        Wrong("no return", forgets_the_answers, says="None"),
        Wrong("one after the other", one_after_the_other, says="one after the other"),
        Wrong("keeps going when all have finished", runs_to_the_largest_limit, says="after the last row has finished"),
        Wrong("stops at the padding token", stops_at_padding, says="You stop at the padding token"),
        Wrong(
            "the padding token ends a row when there is no end token",
            takes_padding_for_none,
            says="no token ends an answer, not even the padding token",
        ),
        Wrong(
            "filters the padding token out of the answers",
            filters_padding,
            says="is missing. If the model writes the padding token",
        ),
        Wrong(
            "answers of tensors",
            loop(answer=lambda answers, prompts: [list(torch.tensor(answer)) for answer in answers]),
            says="yours contain tensors, such as tensor(",
        ),
        Wrong("one list for all rows", one_list_for_all_rows, says="the same list object"),
        Wrong(
            "feeds a row instead of a column",
            loop(feed=lambda ids, tokens: tokens),
            says="fed `input_ids` of shape [1]; it should be [1, 1]",
        ),
        Wrong(
            "best token of every column",
            loop(choose=lambda logits: logits.argmax(dim=-1)),
            says="best token of every column",
        ),
        Wrong(
            "best token of every column, one item",
            loop(choose=lambda logits: torch.tensor([logits.argmax(dim=-1).item()])),
            says="a tensor with several elements as one token",
        ),
        Wrong(
            "argmax without dim", loop(choose=lambda logits: logits[:, -1].argmax()), says="`.argmax()` without `dim`"
        ),
        Wrong(
            "argmax without dim, for all rows",
            loop(choose=lambda logits: logits[:, -1].argmax().expand(len(logits))),
            says="an index into the flattened logits",
        ),
        Wrong("arguments by position", passes_by_position, says="Pass the arguments by keyword"),
        Wrong(
            "an index of its own out of range",
            loop(take=looks_beyond_its_rows, grow=lambda mask: mask),
            says="so the mask needs 4.\n",
        ),
        Wrong(
            "takes the model's own end token for none",
            takes_the_end_of_the_model_for_none,
            says="is the end token in the model's configuration; do you replace None by it?",
        ),
        Wrong("computes equal prompts once", computes_equal_prompts_once, says="compute equal prompts only once"),
        Wrong(
            "cuts prompts to their last 64 tokens",
            loop(pad=lambda prompts, pad: pad_left([ids[-64:] for ids in prompts], pad)),
            says="the prefill fed 64 columns; the longest prompt has 65 tokens",
        ),
        Wrong("changes the limits", changes_the_limits, says="changed its argument `max_tokens_each`"),
    ],
}

RIGHT = {
    "01.1": [
        pads_by_filling,
        pads_with_pytorch,
        pads_into_tensors,
        pads_from_reversed,
        pads_with_numpy,
        pads_through_the_mask,
    ],
    "01.2": [positions_like_generate, positions_by_loop, positions_by_shift],
    "01.3": [
        steps_by_splitting,
        steps_by_loop,
        steps_by_numpy,
        steps_by_recursion,
        steps_by_counting_down,
        steps_by_accumulating,
        steps_by_reducing,
    ],
    "01.4": [
        wave_like_generate,
        wave_by_recursion,
        wave_by_counting,
        wave_that_feeds_padding,
        wave_that_hides_finished_rows,
    ],
}
