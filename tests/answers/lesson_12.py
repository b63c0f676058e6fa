"""Answers to the exercises of lesson 12: what learners get wrong, and other ways to be right."""

import re

import torch

from answers import Wrong
from lessons_lib.engine.core import StepFailed
from lessons_lib.engine.detokenizer import releasable
from lessons_lib.engine.plain_sampling import token_probabilities

NONE = float("-inf")

# 12.1 token_probabilities


def probabilities_with(
    scale=lambda logits, t: logits / t,
    keeps=lambda rank, k: rank < k,
    reached=lambda p, top_p: p.cumsum(-1) - p >= top_p,
    order=dict(descending=True, stable=True),
):
    """The reference with one rule made another way."""

    def token_probabilities(logits, temperature, top_k, top_p):
        scaled, tokens = scale(logits.double(), temperature[:, None]).sort(dim=-1, **order)
        rank = torch.arange(logits.shape[-1])
        probabilities = scaled.masked_fill(~keeps(rank, top_k[:, None]), NONE).softmax(dim=-1)
        probabilities = probabilities.masked_fill(reached(probabilities, top_p[:, None]), 0.0)
        return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens

    return token_probabilities


def in_the_dtype_of_the_logits(logits, temperature, top_k, top_p):
    probabilities, tokens = probabilities_with()(logits, temperature, top_k, top_p)
    return probabilities.to(logits.dtype), tokens


def in_float16(logits, temperature, top_k, top_p):
    probabilities, tokens = probabilities_with()(logits, temperature, top_k, top_p)
    return probabilities.half(), tokens


def does_not_divide_by_the_sum(logits, temperature, top_k, top_p):
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    probabilities = scaled.softmax(dim=-1)
    probabilities = probabilities.masked_fill(torch.arange(logits.shape[-1]) >= top_k[:, None], 0.0)
    before = probabilities.cumsum(-1) - probabilities
    return probabilities.masked_fill(before >= top_p[:, None] * probabilities.sum(-1, keepdim=True), 0.0), tokens


def top_p_of_all_tokens(logits, temperature, top_k, top_p):
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    probabilities = scaled.softmax(dim=-1)
    outside = (probabilities.cumsum(-1) - probabilities >= top_p[:, None]) | (
        torch.arange(logits.shape[-1]) >= top_k[:, None]
    )
    probabilities = probabilities.masked_fill(outside, 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True), tokens


def top_p_before_temperature(logits, temperature, top_k, top_p):
    sorted_logits, tokens = logits.double().sort(dim=-1, descending=True, stable=True)
    cut = sorted_logits.masked_fill(torch.arange(logits.shape[-1]) >= top_k[:, None], NONE)
    plain = cut.softmax(-1)
    cut = cut.masked_fill(plain.cumsum(-1) - plain >= top_p[:, None], NONE)
    return (cut / temperature[:, None]).softmax(-1), tokens


def returns_probabilities_only(logits, temperature, top_k, top_p):
    return token_probabilities(logits, temperature, top_k, top_p)[0]


def returns_vocabulary_order(logits, temperature, top_k, top_p):
    probabilities, tokens = token_probabilities(logits, temperature, top_k, top_p)
    return torch.zeros_like(probabilities).scatter(1, tokens, probabilities), torch.arange(logits.shape[-1]).expand_as(
        tokens
    )


def returns_ranks_for_tokens(logits, temperature, top_k, top_p):
    probabilities, tokens = token_probabilities(logits, temperature, top_k, top_p)
    return probabilities, torch.arange(logits.shape[-1]).expand_as(tokens)


def returns_logits_for_tokens(logits, temperature, top_k, top_p):
    return token_probabilities(logits, temperature, top_k, top_p)[0], logits.sort(dim=-1, descending=True).values


def smallest_temperature(logits, temperature, top_k, top_p):
    return token_probabilities(logits, temperature.min().expand(len(logits)), top_k, top_p)


def settings_of_the_first_row(logits, temperature, top_k, top_p):
    return token_probabilities(
        logits, temperature[:1].expand_as(temperature), top_k[:1].expand_as(top_k), top_p[:1].expand_as(top_p)
    )


def cuts_at_the_largest_k(logits, temperature, top_k, top_p):
    return token_probabilities(logits, temperature, top_k.max().expand_as(top_k), top_p)


def cuts_if_all_rows_ask_for_it(logits, temperature, top_k, top_p):
    return token_probabilities(logits, temperature, top_k, top_p if (top_p < 1).all() else torch.ones_like(top_p))


def keeps_the_other_share(logits, temperature, top_k, top_p):
    return token_probabilities(logits, temperature, top_k, (1 - top_p).clamp(min=1e-6))


def returns_logarithms(logits, temperature, top_k, top_p):
    probabilities, tokens = token_probabilities(logits, temperature, top_k, top_p)
    return probabilities.log(), tokens


def rounds_on_the_way(logits, temperature, top_k, top_p):
    probabilities, tokens = token_probabilities(logits, temperature, top_k, top_p)
    return probabilities.bfloat16().float(), tokens


def shifts_the_sums_around(logits, temperature, top_k, top_p):
    probabilities, tokens = token_probabilities(logits, temperature, top_k, torch.ones_like(top_p))
    before = probabilities.cumsum(dim=-1).roll(1, dims=-1)  # the last sum comes around to the front
    return _cut_and_divided(probabilities.masked_fill(before >= top_p[:, None], 0.0), torch.ones_like(top_p)), tokens


def takes_minus_infinity_for_0(logits, temperature, top_k, top_p):
    return token_probabilities(logits.nan_to_num(neginf=0.0), temperature, top_k, top_p)


def divides_in_place(logits, temperature, top_k, top_p):
    logits /= temperature[:, None]
    return token_probabilities(logits, torch.ones_like(temperature), top_k, top_p)


def divides_float64_in_place(logits, temperature, top_k, top_p):
    scaled = logits.double()
    scaled /= temperature[:, None]
    return token_probabilities(scaled, torch.ones_like(temperature), top_k, top_p)


def exponentials_by_hand(logits, temperature, top_k, top_p):
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    weights = scaled.exp().masked_fill(torch.arange(logits.shape[-1]) >= top_k[:, None], 0.0)
    probabilities = weights / weights.sum(-1, keepdim=True)
    probabilities = probabilities.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p[:, None], 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True), tokens


def cuts_the_row(logits, temperature, top_k, top_p):
    probabilities, tokens = token_probabilities(logits, temperature, top_k, top_p)
    most = int(top_k.max().clamp(max=logits.shape[-1]))
    return probabilities[:, :most], tokens[:, :most]


def computes_in_the_given_dtype(logits, temperature, top_k, top_p):
    scaled, tokens = (logits / temperature[:, None].to(logits.dtype)).sort(dim=-1, descending=True, stable=True)
    cut = torch.arange(logits.shape[-1]) >= top_k[:, None]
    probabilities = scaled.masked_fill(cut, NONE).softmax(dim=-1)
    return _cut_and_divided(probabilities, top_p), tokens


def divides_probabilities(logits, temperature, top_k, top_p):
    scaled, tokens = logits.double().sort(dim=-1, descending=True, stable=True)
    cut = torch.arange(logits.shape[-1]) >= top_k[:, None]
    probabilities = scaled.masked_fill(cut, NONE).softmax(dim=-1) / temperature[:, None]
    return _cut_and_divided(probabilities, top_p), tokens


def later_of_two_alike(logits, temperature, top_k, top_p):
    probabilities, tokens = token_probabilities(logits.flip(-1), temperature, top_k, top_p)
    return probabilities, logits.shape[-1] - 1 - tokens


def cuts_with_zeros(logits, temperature, top_k, top_p):
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    outside = torch.arange(logits.shape[-1]) >= top_k[:, None]
    return _cut_and_divided(scaled.masked_fill(outside, 0.0).softmax(-1), top_p), tokens


def cuts_token_ids(logits, temperature, top_k, top_p):
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    return _cut_and_divided(scaled.masked_fill(tokens >= top_k[:, None], NONE).softmax(-1), top_p), tokens


def softmax_down_the_columns(logits, temperature, top_k, top_p):
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    outside = torch.arange(logits.shape[-1]) >= top_k[:, None]
    return _cut_and_divided(scaled.masked_fill(outside, NONE).softmax(0), top_p), tokens


def softmax_of_probabilities(logits, temperature, top_k, top_p):
    probabilities, tokens = token_probabilities(logits, temperature, top_k, top_p)
    scaled = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True).values
    outside = torch.arange(logits.shape[-1]) >= top_k[:, None]
    return scaled.masked_fill(outside, NONE).softmax(-1).masked_fill(probabilities == 0, NONE).softmax(-1), tokens


def settings_without_a_new_axis(logits, temperature, top_k, top_p):
    return token_probabilities(logits / temperature, torch.ones_like(temperature), top_k, top_p)


def _cut_and_divided(probabilities, top_p):
    probabilities = probabilities.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p[:, None], 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True)


def keeps_all_alike(logits, temperature, top_k, top_p):
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    least = scaled.gather(1, (top_k[:, None] - 1).clamp(max=logits.shape[-1] - 1))
    probabilities = scaled.masked_fill(scaled < least, NONE).softmax(-1)
    probabilities = probabilities.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p[:, None], 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True), tokens


def cut_tokens_leave_their_row(logits, temperature, top_k, top_p):
    probabilities, tokens = token_probabilities(logits, temperature, top_k, top_p)
    return probabilities, tokens.masked_fill(probabilities == 0, -1)


def row_by_row(logits, temperature, top_k, top_p):
    rows = []
    for row, t, k, p in zip(logits.tolist(), temperature.tolist(), top_k.tolist(), top_p.tolist()):
        order = sorted(range(len(row)), key=lambda token: -row[token])
        kept = torch.tensor([row[token] / t for token in order[:k]], dtype=torch.float64).softmax(0).tolist()
        left, total = [], 0.0
        for value in kept:
            left.append(0.0 if total >= p else value)
            total += value
        left += [0.0] * (len(row) - len(left))
        rows.append(([value / sum(left) for value in left], order))
    return torch.tensor([left for left, _ in rows]), torch.tensor([order for _, order in rows])


def with_weights(logits, temperature, top_k, top_p):
    """Without a softmax: weights that are 1 for the likeliest token."""
    scaled, tokens = torch.sort(
        logits.to(torch.float64) / temperature.unsqueeze(-1), dim=1, descending=True, stable=True
    )
    ranks = torch.arange(scaled.shape[1]).expand_as(scaled)
    weights = (scaled - scaled[:, :1]).exp() * (ranks < top_k.unsqueeze(-1))
    shares = weights / weights.sum(dim=1, keepdim=True)
    before = torch.nn.functional.pad(shares, (1, 0)).cumsum(dim=1)[:, :-1]
    weights = weights * (before < top_p.unsqueeze(-1))
    return weights / weights.sum(dim=1, keepdim=True), tokens


def cuts_before_it_sorts(logits, temperature, top_k, top_p):
    scaled = logits.double() / temperature[:, None]
    order = torch.argsort(scaled, dim=-1, descending=True, stable=True)
    ranks = order.argsort(dim=-1)
    left = scaled.where(ranks < top_k[:, None], torch.tensor(NONE, dtype=torch.float64)).softmax(dim=-1)
    left = left.gather(-1, order)
    left = left.where(left.cumsum(-1) - left < top_p[:, None], torch.zeros((), dtype=torch.float64))
    return torch.nn.functional.normalize(left, p=1, dim=-1), order


def in_float32_by_argsort(logits, temperature, top_k, top_p):
    tokens = logits.argsort(dim=-1, descending=True, stable=True)
    scaled = logits.gather(1, tokens) / temperature.unsqueeze(1)
    scaled[torch.arange(logits.shape[-1])[None] >= top_k[:, None]] = NONE
    probabilities = scaled.softmax(-1)
    before = torch.cat([torch.zeros(len(logits), 1), probabilities.cumsum(-1)[:, :-1]], dim=1)
    scaled[before >= top_p[:, None]] = NONE
    return [scaled.softmax(-1), tokens]


# 12.2 releasable


def held_back(text, stop, sizes=lambda string: range(1, len(string)), choose=max):
    return choose((size for string in stop for size in sizes(string) if text.endswith(string[:size])), default=0)


def releasing(found=lambda text, stop: min(text.index(s) for s in stop if s in text), held=held_back):
    """The reference with one rule made another way."""

    def releasable(text, stop):
        if any(string in text for string in stop):
            return found(text, stop), True
        return len(text) - held(text, stop), False

    return releasable


def ends_held_back(text, stop):
    return max((n for s in stop for n in range(1, len(s)) if text.endswith(s[-n:])), default=0)


def looks_at_the_end_only(text, stop):
    for string in stop:
        if text.endswith(string):
            return len(text) - len(string), True
    return len(text) - held_back(text, stop), False


def holds_back_first(text, stop):
    if held := held_back(text, stop):
        return len(text) - held, False
    return releasable(text, stop)


def first_that_fits(text, stop):
    return next((max(sizes) for s in stop if (sizes := [n for n in range(1, len(s)) if text.endswith(s[:n])])), 0)


def shows_the_stop_string(text, stop):
    return min(text.index(s) + len(s) for s in stop if s in text)


def never_says_stopped(text, stop):
    return releasable(text, stop)[0], False


def stops_at_a_beginning(text, stop):
    length, stopped = releasable(text, stop)
    return length, stopped or length < len(text)


def returns_the_text(text, stop):
    length, stopped = releasable(text, stop)
    return text[:length], stopped


def returns_the_length(text, stop):
    return releasable(text, stop)[0]


def other_order(text, stop):
    return tuple(reversed(releasable(text, stop)))


def counts_find(text, stop):
    places = [text.find(string) for string in stop]
    if places and min(places) >= 0:
        return min(places), True
    return len(text) - held_back(text, stop), False


def fails_without_stop(text, stop):
    held = max(size for string in stop for size in range(len(string)) if text.endswith(string[:size]))
    found = [text.index(string) for string in stop if string in text]
    return (min(found), True) if found else (len(text) - held, False)


def any_case(text, stop):
    return releasable(text.lower(), tuple(string.lower() for string in stop))


def waits_for_a_longer_one(text, stop):
    length, stopped = releasable(text, stop)
    return (
        (len(text) - held_back(text, stop), False) if len(text) - held_back(text, stop) < length else (length, stopped)
    )


def any_letter(text, stop):
    if any(string in text for string in stop):
        return releasable(text, stop)
    letters = "".join(stop)
    return len(text.rstrip(letters)) if letters else len(text), False


def by_regular_expression(text, stop):
    match = re.search("|".join(map(re.escape, stop)), text) if stop else None
    if match:
        return [match.start(), True]
    for start in range(len(text)):
        if any(string.startswith(text[start:]) for string in stop):
            return [start, False]
    return [len(text), False]


def walking_through(text, stop):
    for start in range(len(text)):
        rest = text[start:]
        if any(rest.startswith(string) for string in stop):
            return start, True
    for start in range(len(text)):
        if any(string.startswith(text[start:]) for string in stop):
            return start, False
    return len(text), False


# 12.3 run_step


def settings_of(requests):
    return (
        [each.params for each in requests],
        [each.seed for each in requests],
        [each.num_output_tokens for each in requests],
        [each.processor for each in requests],
    )


def to_blame(requests, output):
    return requests or output.swapped_out


def step_with(
    blamed=to_blame,
    kind=Exception,
    copies=lambda core, output: core.copy_blocks(output.block_copies),
    forward=lambda core, output: core.forward(output),
    rows=lambda logits, requests: logits[: len(requests)],
    settings=settings_of,
    keeps=lambda core, output, tokens: core.keep_tokens(output, tokens),
    ends=lambda core, output, in_flight, logits: core.count_launched(output, in_flight, logits),
    failed=StepFailed,
):
    """The reference with one part made another way."""

    def run_step(core, output):
        requests = list(output.num_scheduled_tokens)
        try:
            copies(core, output)
            if not requests:
                return None
            logits = forward(core, output)
            in_flight = keeps(core, output, core.sampler(rows(logits, requests), *settings(requests)))
        except kind as error:
            raise failed(blamed(requests, output)) from error
        return ends(core, output, in_flight, logits)

    return run_step


def other_settings(**changed):
    def settings(requests):
        names = ("params", "seeds", "positions", "processors")
        return [changed.get(name, lambda given: given)(each) for name, each in zip(names, settings_of(requests))]

    return settings


def positions_without_those_in_flight(requests):
    params, seeds, _, processors = settings_of(requests)
    return params, seeds, [len(each.output_ids) for each in requests], processors


def positions_with_the_prompt(requests):
    params, seeds, _, processors = settings_of(requests)
    return params, seeds, [each.num_tokens for each in requests], processors


def without_try(core, output):
    requests = list(output.num_scheduled_tokens)
    core.copy_blocks(output.block_copies)
    if not requests:
        return None
    logits = core.forward(output)
    tokens = core.sampler(logits[: len(requests)], *settings_of(requests))
    return core.count_launched(output, core.keep_tokens(output, tokens), logits)


def try_around_the_model_only(core, output):
    requests = list(output.num_scheduled_tokens)
    core.copy_blocks(output.block_copies)
    if not requests:
        return None
    try:
        logits = core.forward(output)
        tokens = core.sampler(logits[: len(requests)], *settings_of(requests))
        in_flight = core.keep_tokens(output, tokens)
    except Exception as error:
        raise StepFailed(requests) from error
    return core.count_launched(output, in_flight, logits)


def samples_outside_the_try(core, output):
    requests = list(output.num_scheduled_tokens)
    try:
        core.copy_blocks(output.block_copies)
        if not requests:
            return None
        logits = core.forward(output)
    except Exception as error:
        raise StepFailed(to_blame(requests, output)) from error
    tokens = core.sampler(logits[: len(requests)], *settings_of(requests))
    return core.count_launched(output, core.keep_tokens(output, tokens), logits)


def tries_everything(core, output):
    try:
        return without_try(core, output)
    except Exception as error:
        raise StepFailed(to_blame(list(output.num_scheduled_tokens), output)) from error


def returns_after_a_failure(core, output):
    try:
        return step_with()(core, output)
    except StepFailed:
        return None


def goes_on_after_a_failure(core, output):
    requests = list(output.num_scheduled_tokens)
    try:
        core.copy_blocks(output.block_copies)
        if not requests:
            return None
        logits = core.forward(output)
        in_flight = core.keep_tokens(output, core.sampler(logits[: len(requests)], *settings_of(requests)))
    except Exception:
        pass
    return core.count_launched(output, in_flight, logits)


def copies_after_the_model(core, output):
    requests = list(output.num_scheduled_tokens)
    if not requests:
        core.copy_blocks(output.block_copies)
        return None
    try:
        logits = core.forward(output)
        core.copy_blocks(output.block_copies)
        in_flight = core.keep_tokens(output, core.sampler(logits[: len(requests)], *settings_of(requests)))
    except Exception as error:
        raise StepFailed(requests) from error
    return core.count_launched(output, in_flight, logits)


def returns_before_the_copies(core, output):
    return step_with()(core, output) if output.num_scheduled_tokens else None


def computes_an_empty_step(core, output):
    requests = list(output.num_scheduled_tokens)
    try:
        core.copy_blocks(output.block_copies)
        logits = core.forward(output)
        in_flight = core.keep_tokens(output, core.sampler(logits[: len(requests)], *settings_of(requests)))
    except Exception as error:
        raise StepFailed(to_blame(requests, output)) from error
    return core.count_launched(output, in_flight, logits)


def tries_again(core, output):
    try:
        return step_with()(core, output)
    except StepFailed:
        return step_with()(core, output)


def raises_without_a_cause(core, output):
    try:
        return step_with()(core, output)
    except StepFailed as failed:
        raise StepFailed(failed.requests) from None


def raises_from_a_new_error(core, output):
    try:
        return step_with()(core, output)
    except StepFailed as failed:
        raise StepFailed(failed.requests) from RuntimeError(str(failed.__cause__))


def all_requests(core):
    return [request for group in core.groups.values() for request in group.completions]


def blames_all(core, output):
    return step_with(blamed=lambda requests, output: all_requests(core))(core, output)


def copies_block_after_block(core, output):
    for each in output.block_copies:
        try:
            core.copy_blocks([each])
        except Exception as error:
            requests = list(output.num_scheduled_tokens)
            raise StepFailed(requests or [each for each in output.preempted if each.swapped]) from error
    if output.num_scheduled_tokens:
        return step_with(copies=lambda core, output: None)(core, output)
    return None


def with_else(core, scheduler_output):
    scheduled, launched = scheduler_output.num_scheduled_tokens, None
    params, seeds, positions, processors = [], [], [], []
    for request in scheduled:
        params.append(request.params)
        seeds.append(request.seed)
        positions.append(len(request.output_ids) + request.num_placeholders)
        processors.append(request.processor)
    try:
        core.copy_blocks(scheduler_output.block_copies)
        if len(scheduled) > 0:
            logits = core.forward(scheduler_output)
            tokens = core.sampler(logits[: len(params)], params, seeds, positions, processors)
            launched = core.keep_tokens(scheduler_output, tokens)
    except Exception as error:
        victims = [each for each in scheduler_output.preempted if each.swapped]
        raise StepFailed(list(scheduled) if scheduled else victims) from error
    else:
        if launched is not None:
            return core.count_launched(scheduler_output, launched, logits)
    return None


def sorts_probabilities(logits, temperature, top_k, top_p):
    probabilities = (logits.float() / temperature[:, None]).softmax(dim=-1)
    _, tokens = probabilities.sort(dim=-1, descending=True, stable=True)
    found, order = token_probabilities(logits.gather(1, tokens), temperature, top_k, top_p)
    is_tie = probabilities.gather(1, tokens).diff(dim=-1).eq(0).any(dim=-1, keepdim=True)
    return found, torch.where(is_tie, tokens, tokens.gather(1, order))


def wraps_round(logits, temperature, top_k, top_p):
    size = logits.shape[-1]
    return token_probabilities(logits, temperature, torch.where(top_k > size, top_k % size, top_k), top_p)


def cuts_a_range(logits, temperature, top_k, top_p):
    for k in top_k.tolist():
        torch.arange(k, logits.shape[-1])
    return token_probabilities(logits, temperature, top_k, top_p)


def looks_up_the_last_one(logits, temperature, top_k, top_p):
    (logits.sort(dim=-1, descending=True).values).gather(1, top_k[:, None] - 1)
    return token_probabilities(logits, temperature, top_k, top_p)


def in_float64_rounded_to_float32(logits, temperature, top_k, top_p):
    probabilities, tokens = token_probabilities(logits.double(), temperature.double(), top_k, top_p)
    return probabilities.float(), tokens


def multiplies_by_a_mask(logits, temperature, top_k, top_p):
    """0 times minus infinity is NaN."""
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    keeps = (torch.arange(logits.shape[-1]) < top_k[:, None]).double()
    probabilities = (scaled * keeps - 1e9 * (1 - keeps)).softmax(dim=-1)
    before = probabilities.cumsum(-1) - probabilities
    probabilities = probabilities.masked_fill(before >= top_p[:, None], 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True), tokens


WRONG = {
    "12.1": [
        Wrong("a mask that multiplies", multiplies_by_a_mask, "Do you multiply logits by a mask"),
        Wrong("−1 for tokens that are cut", cut_tokens_leave_their_row, "each token of the vocabulary once"),
        Wrong("sorts float32 probabilities", sorts_probabilities, "token 1 has the larger logit"),
        Wrong("the dtype of the logits", in_the_dtype_of_the_logits, "the probabilities are returned as bfloat16"),
        Wrong("float16", in_float16, "the probabilities are returned as float16"),
        Wrong("top_k wraps round", wraps_round, "`top_k` may be larger than the vocabulary"),
        Wrong("a range from top_k", cuts_a_range, "larger than the vocabulary, 9 of 4 tokens here"),
        Wrong("top_k as an index", looks_up_the_last_one, "An index needs a limit"),
        Wrong("no temperature", probabilities_with(scale=lambda logits, t: logits), "Divide the logits by it"),
        Wrong(
            "temperature multiplied",
            probabilities_with(scale=lambda logits, t: logits * t),
            "You multiplied the logits",
        ),
        Wrong(
            "top_k one too many",
            probabilities_with(keeps=lambda rank, k: rank <= k),
            "One token too many is left. Exactly `top_k`",
        ),
        Wrong(
            "top_k one too few",
            probabilities_with(keeps=lambda rank, k: (rank < k - 1) | (rank == 0)),
            "One token too few is left. Exactly `top_k`",
        ),
        Wrong("top_k ignored", probabilities_with(keeps=lambda rank, k: rank < 10**6), "`top_k` cuts nothing"),
        Wrong(
            "the token that reaches top_p dropped",
            probabilities_with(
                reached=lambda p, top_p: (p.cumsum(-1) > top_p.double() + 1e-6) & (torch.arange(p.shape[-1]) > 0)
            ),
            "You cut the token that reaches `top_p`",
        ),
        Wrong(
            "top_p with the token's own share",
            probabilities_with(reached=lambda p, top_p: p.cumsum(-1) >= top_p),
            "sum *before* each token",
        ),
        Wrong(
            "top_p exactly reached",
            probabilities_with(reached=lambda p, top_p: p.cumsum(-1) - p > top_p),
            "instead of `>`",
        ),
        Wrong("cut logits are 0", cuts_with_zeros, "A logit of 0 doesn't cut a token"),
        Wrong("token ids instead of ranks", cuts_token_ids, "You compared token ids with `top_k`"),
        Wrong("softmax over the rows", softmax_down_the_columns, "goes down the columns"),
        Wrong("a second softmax", softmax_of_probabilities, "they aren't logits"),
        Wrong("without [:, None]", settings_without_a_new_axis, "`[:, None]` makes it [N, 1]"),
        Wrong("all alike kept by top_k", keeps_all_alike, "cut by rank, not by value"),
        Wrong(
            "top_p one too many",
            probabilities_with(
                reached=lambda p, top_p: p.cumsum(-1) - p - torch.cat([p[:, :1] * 0, p[:, :-1]], 1) >= top_p
            ),
            "One token too many is left. A token",
        ),
        Wrong(
            "top_p ignored",
            probabilities_with(reached=lambda p, top_p: torch.zeros_like(p, dtype=torch.bool)),
            "`top_p` cuts nothing",
        ),
        Wrong("top_p of all tokens", top_p_of_all_tokens, "to the probabilities of all tokens"),
        Wrong("top_p before the temperature", top_p_before_temperature, "without the temperature"),
        Wrong("not divided by the sum", does_not_divide_by_the_sum, "don't add up to 1"),
        Wrong("settings of the first row", settings_of_the_first_row, "setting of one row counts for another"),
        Wrong("the smallest temperature", smallest_temperature, "setting of one row counts for another"),
        Wrong("the largest top_k", cuts_at_the_largest_k, "setting of one row counts for another"),
        Wrong("top_p if all rows have one", cuts_if_all_rows_ask_for_it, "top_p [0.6, 1.0]"),
        Wrong("1 − top_p", keeps_the_other_share, "keeps a share of 1 − `top_p`"),
        Wrong("logarithms", returns_logarithms, "Are these logarithms, or logits?"),
        Wrong("rounded on the way", rounds_on_the_way, "so something is rounded"),
        Wrong("sums shifted around", shifts_the_sums_around, "The likeliest token always stays"),
        Wrong("a logit of minus infinity", takes_minus_infinity_for_0, "A logit of −∞ stands for a token"),
        Wrong("probabilities only", returns_probabilities_only, "expected a pair of tensors"),
        Wrong("in the order of the vocabulary", returns_vocabulary_order, "in the order of the vocabulary"),
        Wrong("ranks for tokens", returns_ranks_for_tokens, "are the ranks"),
        Wrong("logits for tokens", returns_logits_for_tokens, "should be token ids"),
        Wrong("least likely kept", probabilities_with(order=dict(descending=False)), "`descending=True`"),
        Wrong("in place", divides_in_place, "changed its argument `logits`"),
        Wrong("float64 in place", divides_float64_in_place, "It was [[-1.897"),
        Wrong("bfloat16", computes_in_the_given_dtype, "Change the logits to float64"),
        Wrong("probabilities divided", divides_probabilities, "You divided probabilities by the temperature"),
        Wrong("exponentials by hand", exponentials_by_hand, "NaN comes from ∞ / ∞"),
        Wrong("rows cut", cuts_the_row, "should have the shape"),
        Wrong("the later of two alike", later_of_two_alike, "the smaller token id comes first"),
    ],
    "12.2": [
        Wrong("only at the end", looks_at_the_end_only, "not only at the end"),
        Wrong("nothing held back", releasing(held=lambda text, stop: 0), "Hold it back"),
        Wrong(
            "everything held back",
            releasing(held=lambda text, stop: len(text) if stop else 0),
            "You hold back everything",
        ),
        Wrong(
            "as much as the longest",
            releasing(held=lambda text, stop: min(len(text), max(map(len, stop), default=1) - 1)),
            "whatever the text is",
        ),
        Wrong(
            "the shortest beginning",
            releasing(held=lambda text, stop: held_back(text, stop, choose=min)),
            "the longest of them",
        ),
        Wrong("the first that fits", releasing(held=first_that_fits), "the first stop string that matches"),
        Wrong(
            "one character only",
            releasing(held=lambda text, stop: held_back(text, stop, sizes=lambda s: range(1, min(2, len(s))))),
            "You hold back one character at most",
        ),
        Wrong(
            "not the longest beginning",
            releasing(held=lambda text, stop: held_back(text, stop, sizes=lambda s: range(1, len(s) - 1))),
            "all of it but its last character",
        ),
        Wrong(
            "the number of characters held back",
            releasing(held=lambda text, stop: len(text) - held_back(text, stop)),
            "Return how many can be shown",
        ),
        Wrong("held back before it looks for a stop string", holds_back_first, "Look for complete ones first"),
        Wrong("stop string shown", releasing(found=shows_the_stop_string), "shows the stop string"),
        Wrong(
            "the last one",
            releasing(found=lambda text, stop: max(text.rindex(s) for s in stop if s in text)),
            "the last stop string",
        ),
        Wrong(
            "first of the tuple",
            releasing(found=lambda text, stop: next(text.index(s) for s in stop if s in text)),
            "the first string of `stop`",
        ),
        Wrong(
            "last place of the earliest",
            releasing(found=lambda text, stop: max(text.index(s) for s in stop if s in text)),
            "several stop strings",
        ),
        Wrong(
            "the longest stop string",
            releasing(found=lambda text, stop: text.index(max((s for s in stop if s in text), key=len))),
            "You took the longest stop string",
        ),
        Wrong(
            "beginnings of the first only",
            releasing(held=lambda text, stop: held_back(text, stop[:1])),
            "only beginnings of the first string of `stop`",
        ),
        Wrong("ends of the stop strings", releasing(held=ends_held_back), "their beginnings: `string[:n]`"),
        Wrong(
            "less than the whole text",
            releasing(held=lambda text, stop: held_back(text, stop, sizes=lambda s: range(1, min(len(s), len(text))))),
            "The whole text may be the beginning",
        ),
        Wrong("whole text", releasing(found=lambda text, stop: len(text)), "is still in the text"),
        Wrong("never stopped", never_says_stopped, "`stopped` is True"),
        Wrong("stopped at a beginning", stops_at_a_beginning, "isn't a stop string yet"),
        Wrong("the text", returns_the_text, "should be an int, not a string"),
        Wrong("the length only", returns_the_length, "expected a pair"),
        Wrong("other order", other_order, "should be an int; yours is"),
        Wrong("find", counts_find, "You missed a stop string"),
        Wrong("no stop strings", fails_without_stop, "raised ValueError"),
        Wrong("any case", any_case, "Matching is case-sensitive"),
        Wrong("waits for a longer one", waits_for_a_longer_one, "Don't wait for a longer one"),
        Wrong("any letter", any_letter, "DNE"),
    ],
    "12.3": [
        Wrong("copies outside the try", try_around_the_model_only, "the error of copying blocks came out"),
        Wrong("sampling outside the try", samples_outside_the_try, "the error of `sampler` came out"),
        Wrong("no try", without_try, "the error of the model came out"),
        Wrong("tries everything", tries_everything, "`count_launched` raised an error, and your step caught it"),
        Wrong("copies after the model", copies_after_the_model, "the block copies of this step"),
        Wrong("returns before the copies", returns_before_the_copies, "without its block copies"),
        Wrong("copies of the output", step_with(copies=lambda core, output: core.copy_blocks(output)), "takes a list"),
        Wrong(
            "copies of one kind",
            step_with(
                copies=lambda core, output: core.copy_blocks([e for e in output.block_copies if e.kind == "copy"])
            ),
            "after 0 of its 2 block copies",
        ),
        Wrong("the model with an empty step", computes_an_empty_step, "although nothing was scheduled"),
        Wrong("tries again", tries_again, "although the step had failed"),
        Wrong("goes on after a failure", goes_on_after_a_failure, "went on after it had failed"),
        Wrong("no request ends", returns_after_a_failure, "but request A goes on"),
        Wrong("ends the first", step_with(blamed=lambda requests, output: requests[:1]), "request B goes on"),
        Wrong("ends all", blames_all, "only A and B should have"),
        Wrong(
            "what is swapped out, too",
            step_with(blamed=lambda requests, output: [*requests, *output.swapped_out]),
            "ends only if nothing is scheduled",
        ),
        Wrong("nothing scheduled", step_with(blamed=lambda requests, output: requests), "fail again in the next step"),
        Wrong(
            "groups",
            step_with(blamed=lambda requests, output: [each.group for each in requests]),
            "`StepFailed` takes requests; yours got RequestGroup",
        ),
        Wrong("without a cause", raises_without_a_cause, "ended with no error"),
        Wrong("with a new error", raises_from_a_new_error, "ended with RuntimeError"),
        Wrong("catches Ctrl-C", step_with(kind=BaseException), "caught KeyboardInterrupt"),
        Wrong("all rows of logits", step_with(rows=lambda logits, requests: logits), "got 6 rows of logits for 2"),
        Wrong(
            "only those that get a token",
            step_with(rows=lambda logits, requests: logits[:1]),
            "even in the middle of its prompt",
        ),
        Wrong("seeds the other way around", step_with(settings=other_settings(seeds=lambda e: e[::-1])), "other seeds"),
        Wrong(
            "params of the first",
            step_with(settings=other_settings(params=lambda each: each[:1] * len(each))),
            "other params",
        ),
        Wrong("no processors", step_with(settings=other_settings(processors=lambda e: [])), "other processors"),
        Wrong("tokens in flight don't count", step_with(settings=positions_without_those_in_flight), "in flight, too"),
        Wrong("positions with the prompt", step_with(settings=positions_with_the_prompt), "other positions"),
        Wrong("never kept", step_with(keeps=lambda core, output, tokens: tokens), "It takes what `keep_tokens`"),
        Wrong(
            "reads the tokens",
            step_with(keeps=lambda core, output, tokens: core.keep_tokens(output, tokens.tolist())),
            "It takes the tensor that `sampler` returned",
        ),
        Wrong("never counted", step_with(ends=lambda *_: None), "never called `core.count_launched`"),
        Wrong("returns the tokens", step_with(ends=lambda core, output, tokens, logits: tokens), "your step returned"),
        Wrong(
            "logits of the requests only",
            step_with(
                ends=lambda core, output, tokens, logits: core.count_launched(
                    output, tokens, logits[: len(output.num_scheduled_tokens)]
                )
            ),
            "of the 6 rows of logits",
        ),
        Wrong("does nothing", lambda core, output: None, "never called `core.forward`"),
    ],
}

RIGHT = {
    "12.1": [row_by_row, in_float32_by_argsort, in_float64_rounded_to_float32, with_weights, cuts_before_it_sorts],
    "12.2": [by_regular_expression, walking_through],
    "12.3": [step_with(), copies_block_after_block, with_else],
}
