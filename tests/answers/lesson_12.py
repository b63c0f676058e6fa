"""Answers to the exercises of lesson 12: what learners get wrong, and other ways to be right."""

import re

import torch

from answers import Wrong
from lessons_lib.engine.detokenizer import releasable
from lessons_lib.engine.sampling import token_probabilities

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


def affected_requests(engine, output):
    """The right ones, as the stopwatch tells whether the copies were complete."""
    half_copied = [] if "move" in engine.watch.laps else output.swapped_out
    sequences = (*output.num_scheduled_tokens, *half_copied)
    return list(dict.fromkeys(engine.completions[each].request for each in sequences if each in engine.completions))


def step_with(
    fail=lambda engine, output, error: [engine.end(each, "error", error) for each in affected_requests(engine, output)],
    wants=lambda sequence, count: sequence.num_computed_tokens + count == sequence.num_tokens,
    copies=lambda engine, output: engine.copy_blocks(output.block_copies),
    kind=Exception,
    passed=lambda completions: completions,
    recorded=lambda gets_token, completions: (sum(gets_token), len(completions)),
    chosen=lambda tokens: tokens,
    listed=lambda scheduled, gets_token: gets_token,
    told=lambda tokens, gets_token: tokens,
):
    """The reference with one part made another way."""

    def run_step(engine):
        output = engine.schedule()
        scheduled = output.num_scheduled_tokens
        try:
            copies(engine, output)
            if not scheduled:
                return
            tokens, logits = engine.compute(output)
        except kind as error:
            fail(engine, output, error)
            return
        tokens = chosen(tokens)
        gets_token = [wants(each, count) for each, count in scheduled.items()]
        completions = engine.completions_with_token(output, listed(scheduled, gets_token), tokens, logits)
        engine.update(output, told(tokens, gets_token))
        engine.pass_on(passed(completions))
        engine.record_step(output, *recorded(gets_token, completions))

    return run_step


def of_sequences(scheduled, gets_token):
    return [sequence for sequence, is_due in zip(scheduled, gets_token) if is_due]


def as_indices(scheduled, gets_token):
    return [index if is_due else -1 for index, is_due in enumerate(gets_token)]


def completions_in_the_try(engine):
    output = engine.schedule()
    try:
        engine.copy_blocks(output.block_copies)
        if not output.num_scheduled_tokens:
            return
        tokens, logits = engine.compute(output)
        gets_token = gets_tokens(output.num_scheduled_tokens)
        completions = engine.completions_with_token(output, gets_token, tokens, logits)
    except Exception as error:
        fail_all(engine, output, error)
        return
    engine.update(output, tokens)
    engine.pass_on(completions)
    engine.record_step(output, sum(gets_token), len(completions))


def only_the_true_ones(tokens, gets_token):
    return [token for token, is_due in zip(tokens, gets_token) if is_due]


def gets_tokens(scheduled):
    return [each.num_computed_tokens + count == each.num_tokens for each, count in scheduled.items()]


def finish(engine, output, tokens, logits, parts):
    """What follows `compute`: c, u, p and r are its parts."""
    gets_token, completions = gets_tokens(output.num_scheduled_tokens), []
    for part in parts:
        if part == "c":
            completions = engine.completions_with_token(output, gets_token, tokens, logits)
        elif part == "u":
            engine.update(output, tokens)
        elif part == "p":
            engine.pass_on(completions)
        elif part == "r":
            engine.record_step(output, sum(gets_token), len(completions))


def fail_all(engine, output, error):
    for request in affected_requests(engine, output):
        engine.end(request, "error", error)


def in_parts(parts):
    def run_step(engine):
        output = engine.schedule()
        try:
            engine.copy_blocks(output.block_copies)
            if not output.num_scheduled_tokens:
                return
            tokens, logits = engine.compute(output)
        except Exception as error:
            fail_all(engine, output, error)
            return
        finish(engine, output, tokens, logits, parts)

    return run_step


def schedules_in_the_try(engine):
    try:
        output = engine.schedule()
        engine.copy_blocks(output.block_copies)
        if not output.num_scheduled_tokens:
            return
        tokens, logits = engine.compute(output)
    except Exception as error:
        fail_all(engine, output, error)
        return
    finish(engine, output, tokens, logits, "cupr")


def with_tokens_only(parts):
    """If no sequence gets a token, the step does no more than these parts."""

    def run_step(engine):
        output = engine.schedule()
        try:
            engine.copy_blocks(output.block_copies)
            if not output.num_scheduled_tokens:
                return
            tokens, logits = engine.compute(output)
        except Exception as error:
            fail_all(engine, output, error)
            return
        finish(engine, output, tokens, logits, "cupr" if any(gets_tokens(output.num_scheduled_tokens)) else parts)

    return run_step


def updates_after_a_failure(engine, output, error):
    fail_all(engine, output, error)
    engine.update(output, [0] * len(output.num_scheduled_tokens))


def goes_on_after_a_failure(engine, output, error):
    fail_all(engine, output, error)
    finish(engine, output, [], None, "cupr")


def ends_with_a_new_error(engine, output, error):
    fail_all(engine, output, RuntimeError(f"step failed: {error}"))


def ends_with_the_text(engine, output, error):
    for request in affected_requests(engine, output):
        engine.end(request, "error", str(error))


def without_try(engine):
    output = engine.schedule()
    engine.copy_blocks(output.block_copies)
    if output.num_scheduled_tokens:
        finish(engine, output, *engine.compute(output), "cupr")


def try_around_the_model_only(engine):
    output = engine.schedule()
    engine.copy_blocks(output.block_copies)
    if not output.num_scheduled_tokens:
        return
    try:
        tokens, logits = engine.compute(output)
    except Exception as error:
        fail_all(engine, output, error)
        return
    finish(engine, output, tokens, logits, "cupr")


def copies_after_the_model(engine):
    output, computed = engine.schedule(), None
    try:
        if output.num_scheduled_tokens:
            computed = engine.compute(output)
        engine.copy_blocks(output.block_copies)
    except Exception as error:
        fail_all(engine, output, error)
        return
    if computed:
        finish(engine, output, *computed, "cupr")


def until_something_is_scheduled(engine):
    output = engine.schedule()
    while not output.num_scheduled_tokens:
        output = engine.schedule()
    engine.copy_blocks(output.block_copies)
    finish(engine, output, *engine.compute(output), "cupr")


def computes_an_empty_step(engine):
    output = engine.schedule()
    try:
        engine.copy_blocks(output.block_copies)
        tokens, logits = engine.compute(output)
    except Exception as error:
        fail_all(engine, output, error)
        return
    finish(engine, output, tokens, logits, "cupr")


def records_in_finally(engine):
    output = engine.schedule()
    gets_token, completions = gets_tokens(output.num_scheduled_tokens), []
    try:
        engine.copy_blocks(output.block_copies)
        if not output.num_scheduled_tokens:
            return
        tokens, logits = engine.compute(output)
        completions = engine.completions_with_token(output, gets_token, tokens, logits)
        engine.update(output, tokens)
        engine.pass_on(completions)
    except Exception as error:
        fail_all(engine, output, error)
    finally:
        if output.num_scheduled_tokens:
            engine.record_step(output, sum(gets_token), len(completions))


def records_the_empty_step(engine):
    output = engine.schedule()
    try:
        engine.copy_blocks(output.block_copies)
        tokens, logits = engine.compute(output) if output.num_scheduled_tokens else ([], None)
    except Exception as error:
        fail_all(engine, output, error)
        return
    finish(engine, output, tokens, logits, "cupr")


def tries_everything(engine):
    output = engine.schedule()
    try:
        engine.copy_blocks(output.block_copies)
        if output.num_scheduled_tokens:
            finish(engine, output, *engine.compute(output), "cupr")
    except Exception as error:
        fail_all(engine, output, error)


def step_that_tries(*names):
    """A right step, but with these calls in a `try` of their own."""

    def run_step(engine):
        output = engine.schedule()
        try:
            engine.copy_blocks(output.block_copies)
        except Exception as error:
            engine.fail([*output.num_scheduled_tokens, *(each for each in output.preempted if each.swapped)], error)
            return
        if not output.num_scheduled_tokens:
            return
        try:
            tokens, logits = engine.compute(output)
        except Exception as error:
            fail_all(engine, output, error)
            return
        gets = [
            each.num_computed_tokens + count == each.num_tokens for each, count in output.num_scheduled_tokens.items()
        ]
        done = engine.completions_with_token(output, gets, tokens, logits)
        engine.update(output, tokens)
        for name, given in (("pass_on", (done,)), ("record_step", (output, sum(gets), len(done)))):
            try:
                getattr(engine, name)(*given)
            except Exception as error:
                if name not in names:
                    raise
                fail_all(engine, output, error)

    return run_step


def copies_one_kind(engine):
    output = engine.schedule()
    engine.copy_blocks([each for each in output.block_copies if each.kind == "copy"])
    if output.num_scheduled_tokens:
        finish(engine, output, *engine.compute(output), "cupr")


def returns_before_the_copies(engine):
    output = engine.schedule()
    if not output.num_scheduled_tokens:
        return
    try:
        engine.copy_blocks(output.block_copies)
        tokens, logits = engine.compute(output)
    except Exception as error:
        fail_all(engine, output, error)
        return
    finish(engine, output, tokens, logits, "cupr")


def forgets_to_return(engine):
    output = engine.schedule()
    try:
        engine.copy_blocks(output.block_copies)
        if not output.num_scheduled_tokens:
            return
        tokens, logits = engine.compute(output)
    except Exception as error:
        fail_all(engine, output, error)
    finish(engine, output, tokens, logits, "cupr")


def passes_the_scheduler_output(engine):
    output = engine.schedule()
    engine.copy_blocks(output)


def appends_by_hand(engine):
    output = engine.schedule()
    try:
        engine.copy_blocks(output.block_copies)
        if not output.num_scheduled_tokens:
            return
        tokens, logits = engine.compute(output)
    except Exception as error:
        fail_all(engine, output, error)
        return
    gets_token = gets_tokens(output.num_scheduled_tokens)
    completions = engine.completions_with_token(output, gets_token, tokens, logits)
    for sequence, token in zip(output.num_scheduled_tokens, tokens):
        sequence.append_token(token)
    engine.update(output, tokens)
    engine.pass_on(completions)
    engine.record_step(output, sum(gets_token), len(completions))


def asks_the_scheduler(engine):
    output = engine.scheduler.schedule()
    engine.copy_blocks(output.block_copies)
    if output.num_scheduled_tokens:
        finish(engine, output, *engine.compute(output), "cupr")


def does_nothing(engine):
    return None


def ends_all(engine, output, error):
    for request in list(engine.requests.values()):
        engine.end(request, "error", error)


def aborts(engine, output, error):
    for request in affected_requests(engine, output):
        engine.abort(request.id)


def ends_each_sequence(engine, output, error):
    requests = [engine.completions[each].request for each in output.num_scheduled_tokens]
    for request in requests:
        engine.end(request, "error", error)


def takes_out(engine, output, error):
    for sequence in output.num_scheduled_tokens:
        engine.scheduler.remove(sequence)


def ends_the_first(engine, output, error):
    engine.end(affected_requests(engine, output)[0], "error", error)


def ends_what_was_scheduled(engine, output, error):
    for request in dict.fromkeys(engine.completions[each].request for each in output.num_scheduled_tokens):
        engine.end(request, "error", error)


def scheduled(engine, output):
    return list(output.num_scheduled_tokens)


def what_is_written(engine, output):
    """What the pass or a copy of this step writes to."""
    return [*output.num_scheduled_tokens, *output.swapped_out]


def finish_in_order(engine, output, tokens, logits):
    finish(engine, output, tokens, logits, "cupr")


def with_doubts(if_copying_fails=what_is_written, if_the_model_fails=scheduled, then=finish_in_order):
    """A step that ends these sequences if it fails, and does `then` if not."""

    def run_step(engine):
        output = engine.schedule()
        in_doubt = if_copying_fails(engine, output)
        try:
            engine.copy_blocks(output.block_copies)
            in_doubt = if_the_model_fails(engine, output)
            if not output.num_scheduled_tokens:
                return
            tokens, logits = engine.compute(output)
        except Exception as error:
            engine.fail(in_doubt, error)
            return
        then(engine, output, tokens, logits)

    return run_step


def what_runs(engine, output):
    return list(engine.scheduler.running)


def what_runs_or_is_swapped_out(engine, output):
    return [*engine.scheduler.running, *output.swapped_out]


def what_gets_a_token(engine, output):
    counts = output.num_scheduled_tokens
    return [each for each, gets_token in zip(counts, gets_tokens(counts)) if gets_token]


def what_is_written_if_something_is_scheduled(engine, output):
    return what_is_written(engine, output) if output.num_scheduled_tokens else []


def scheduled_or_in_the_swap_space(engine, output):
    return [*output.num_scheduled_tokens, *(each for each in engine.scheduler.waiting if each.swapped)]


def what_is_copied_out(engine, output):
    saved = {copy.target for copy in output.block_copies if copy.kind == "swap out"}
    return set(output.num_scheduled_tokens) | {each for each in output.preempted if saved & set(each.swapped)}


def what_is_copied_to(engine, output):
    targets = {copy.target for copy in output.block_copies}
    return [*(each for each in output.num_scheduled_tokens if targets & set(each.blocks)), *output.swapped_out]


def with_rows_of_the_true_ones(engine, output, tokens, logits):
    gets_token = gets_tokens(output.num_scheduled_tokens)
    chosen = only_the_true_ones(tokens, gets_token)
    completions = engine.completions_with_token(output, gets_token, chosen, logits[torch.tensor(gets_token)])
    engine.update(output, tokens)
    engine.pass_on(completions)
    engine.record_step(output, sum(gets_token), len(completions))


def copies_block_after_block(engine):
    output = engine.schedule()
    try:
        for each in output.block_copies:
            engine.copy_blocks([each])
    except Exception as error:
        engine.fail([*output.num_scheduled_tokens, *output.swapped_out], error)
        return
    if not output.num_scheduled_tokens:
        return
    try:
        tokens, logits = engine.compute(output)
    except Exception as error:
        engine.fail(list(output.num_scheduled_tokens), error)
        return
    gets_token = gets_tokens(output.num_scheduled_tokens)
    completions = engine.completions_with_token(output, gets_token, tokens, logits)
    engine.update(output, tokens)
    if completions:  # otherwise there is nothing to pass on
        engine.pass_on(completions)
    engine.record_step(output, sum(gets_token), len(completions))


def computes_after_a_failed_copy(engine):
    output = engine.schedule()
    try:
        engine.copy_blocks(output.block_copies)
    except Exception as error:
        engine.fail([*output.num_scheduled_tokens, *output.swapped_out], error)
    if not output.num_scheduled_tokens:
        return
    try:
        tokens, logits = engine.compute(output)
    except Exception as error:
        engine.fail(list(output.num_scheduled_tokens), error)
        return
    finish(engine, output, tokens, logits, "cupr")


def fails_requests(engine, output, error):
    engine.fail([engine.completions[each].request for each in output.num_scheduled_tokens], error)


def raises_again(engine, output, error):
    fail_all(engine, output, error)
    raise error


def ends_with_a_reason_of_its_own(engine, output, error):
    for request in affected_requests(engine, output):
        engine.end(request, "failed", error)


def ends_without_the_error(engine, output, error):
    for request in affected_requests(engine, output):
        engine.end(request, "error")


def with_else(engine):
    scheduler_output = engine.schedule()
    counts = scheduler_output.num_scheduled_tokens
    computed = None
    try:
        engine.copy_blocks(scheduler_output.block_copies)
        if counts:
            computed = engine.compute(scheduler_output)
    except Exception as error:
        for request in affected_requests(engine, scheduler_output):
            engine.end(request, "error", error)
    else:
        if computed is not None:
            tokens, logits = computed
            ready = []
            for sequence, count in counts.items():
                ready.append(sequence.num_tokens - sequence.num_computed_tokens == count)
            completions = engine.completions_with_token(scheduler_output, ready, tokens, logits)
            engine.update(scheduler_output, tokens)
            engine.pass_on(completions)
            engine.record_step(scheduler_output, ready.count(True), len(completions))


def in_two_functions(engine):
    def computed(output):
        try:
            engine.copy_blocks(output.block_copies)
            return engine.compute(output) if output.num_scheduled_tokens else None
        except Exception as error:
            while affected := affected_requests(engine, output):
                engine.end(affected[0], "error", error)

    output = engine.schedule()
    if (result := computed(output)) is not None:
        finish(engine, output, *result, "cupr")


def with_a_loop_over_rows(engine):
    output = engine.schedule()
    try:
        engine.copy_blocks(output.block_copies)
        tokens, logits = engine.compute(output) if output.num_scheduled_tokens else (None, None)
    except Exception as error:
        [engine.end(request, "error", error) for request in affected_requests(engine, output)]
        return None
    if tokens is None:
        return None
    gets_token = [False] * len(tokens)
    for row, sequence in enumerate(output.num_scheduled_tokens):
        after = sequence.num_computed_tokens + output.num_scheduled_tokens[sequence]
        gets_token[row] = after >= len(sequence.prompt_ids) + len(sequence.output_ids)
    passed = engine.completions_with_token(output, gets_token, tokens, logits)
    engine.update(output, tokens)
    engine.pass_on(passed)
    return engine.record_step(output, sum(gets_token), len(passed))


def catches_each_part(engine):
    output = engine.schedule()
    try:
        engine.copy_blocks(output.block_copies)
    except Exception as error:
        return fail_all(engine, output, error)
    if len(output.num_scheduled_tokens) == 0:
        return None
    try:
        tokens, logits = engine.compute(output)
    except Exception as error:
        return fail_all(engine, output, error)
    return finish(engine, output, tokens, logits, "cupr")


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
        Wrong("copies after the model", copies_after_the_model, "the block copies of this step"),
        Wrong("loops until there is something", until_something_is_scheduled, "scheduled twice"),
        Wrong("the model with an empty step", computes_an_empty_step, "although nothing was scheduled"),
        Wrong("failed step recorded", records_in_finally, "a step that failed was recorded"),
        Wrong("empty step recorded", records_the_empty_step, "make the block copies, if there are any"),
        Wrong("a list of sequences", step_with(listed=of_sequences), "should be bools; the first one"),
        Wrong("tokens of the true ones", step_with(told=only_the_true_ones), "`update` got 1 tokens for 2"),
        Wrong("no try", without_try, "the error of the model came out"),
        Wrong("tries everything", tries_everything, "`update` raised an error, and your step caught it"),
        Wrong("returns before the copies", returns_before_the_copies, "without its block copies"),
        Wrong("no return", forgets_to_return, "went on after it had failed"),
        Wrong("copies of the output", passes_the_scheduler_output, "takes a list of block copies"),
        Wrong("appends by hand", appends_by_hand, "got a token before your step called `update`"),
        Wrong("scheduler.schedule", asks_the_scheduler, "Call `engine.schedule()`"),
        Wrong("nothing", does_nothing, "never scheduled anything"),
        Wrong("blocks leaked", step_with(fail=lambda *_: None), "goes on, and still has its blocks"),
        Wrong("ends all", step_with(fail=ends_all), "only A and B should have"),
        Wrong("aborts", step_with(fail=aborts), "`engine.abort` returns the output"),
        Wrong(
            "with a new error", step_with(fail=ends_with_a_new_error), "ended with another error, of type RuntimeError"
        ),
        Wrong("without the error", step_with(fail=ends_without_the_error), "ended with the reason 'error' and without"),
        Wrong("ends each sequence", step_with(fail=ends_each_sequence), "ended request A twice"),
        Wrong("takes sequences out", step_with(fail=takes_out), "`engine.fail(sequences, error)` takes it out"),
        Wrong("ends the first", step_with(fail=ends_the_first), "request B goes on"),
        Wrong("forgets what is copied", step_with(fail=ends_what_was_scheduled), "request C goes on"),
        Wrong(
            "all that is preempted",
            with_doubts(lambda engine, output: [*output.num_scheduled_tokens, *output.preempted]),
            "nothing but its tokens",
        ),
        Wrong(
            "swapped out, copied or not",
            with_doubts(if_the_model_fails=what_is_written),
            "the cache of what was swapped out is whole",
        ),
        Wrong("copied to", with_doubts(what_is_copied_to), "doesn't tell which copies it made"),
        Wrong("all that runs, if copying fails", with_doubts(what_runs_or_is_swapped_out), "write only into blocks of"),
        Wrong(
            "nothing scheduled, nothing failed",
            with_doubts(what_is_written_if_something_is_scheduled),
            "its cache was being swapped",
        ),
        Wrong(
            "only what gets a token",
            with_doubts(if_the_model_fails=what_gets_a_token),
            "request B goes on, and still has its blocks",
        ),
        Wrong("computes after a failed copy", computes_after_a_failed_copy, "called `compute` although"),
        Wrong("rows of the true ones", with_doubts(then=with_rows_of_the_true_ones), "got 1 tokens for 2 scheduled"),
        Wrong(
            "all that runs",
            with_doubts(what_runs_or_is_swapped_out, what_runs),
            "Requests that the step doesn't touch",
        ),
        Wrong(
            "all that wait in the swap space",
            with_doubts(scheduled_or_in_the_swap_space),
            "in an earlier step isn't touched",
        ),
        Wrong(
            "fails requests",
            step_with(fail=fails_requests),
            "`engine.fail` takes sequences; yours passed EngineRequest",
        ),
        Wrong("raises again", step_with(fail=raises_again), "and then raised the error"),
        Wrong("reason", step_with(fail=ends_with_a_reason_of_its_own), "'failed'; expected 'error'"),
        Wrong("catches Ctrl-C", step_with(kind=BaseException), "caught KeyboardInterrupt"),
        Wrong("tokens for all rows", step_with(wants=lambda sequence, count: True), "`gets_token` is true for B"),
        Wrong(
            "looks at the prompt only",
            step_with(wants=lambda each, count: each.num_computed_tokens + count == len(each.prompt_ids)),
            "computes the last of its known tokens",
        ),
        Wrong(
            "all since the prompt",
            step_with(wants=lambda each, count: each.num_computed_tokens + count >= len(each.prompt_ids)),
            "of the answer, if a preempted sequence",
        ),
        Wrong("indices", step_with(listed=as_indices), "Are yours indices or counts?"),
        Wrong("completions in the try", completions_in_the_try, "`completions_with_token` raised an error, and your"),
        Wrong("update first", in_parts("ucpr"), "`update` before `completions_with_token`"),
        Wrong("passes on first", in_parts("cpur"), "Call `update` first"),
        Wrong("records first", in_parts("crup"), "recorded before its tokens"),
        Wrong("never passed on", in_parts("cu"), "yours called it with nothing"),
        Wrong("updates twice", in_parts("cuupr"), "updated the scheduler twice"),
        Wrong("passes on twice", in_parts("cuppr"), "`pass_on` twice"),
        Wrong("not recorded", in_parts("cup"), "steps recorded so far: 0"),
        Wrong("the other way around", step_with(passed=lambda completions: completions[::-1]), "in the order"),
        Wrong("first answers only", step_with(passed=lambda c: [e for e in c if e.index == 0]), "the other answers"),
        Wrong("tokens of others", step_with(chosen=lambda tokens: tokens[::-1]), "a token of its own"),
        Wrong(
            "counts rows", step_with(recorded=lambda gets, done: (len(gets), len(done))), "`num_sampled` 2; expected 1"
        ),
        Wrong("schedules in the try", schedules_in_the_try, "`schedule` raised an error, and your step caught it"),
        Wrong("`pass_on` in a try", step_that_tries("pass_on"), "`pass_on` raised an error, and your step caught it"),
        Wrong("record in a try", step_that_tries("record_step"), "`record_step` raised an error, and your step caught"),
        Wrong("copies of one kind", copies_one_kind, "after 0 of its 2 block copies"),
        Wrong("no update without a token", with_tokens_only("cpr"), "but didn't call `update`"),
        Wrong("no record without a token", with_tokens_only("cup"), "Record each step that has computed something"),
        Wrong("updates after a failure", step_with(fail=updates_after_a_failure), "called `update` although"),
        Wrong("goes on after a failure", step_with(fail=goes_on_after_a_failure), "A failed step has no tokens"),
        Wrong("the text of the error", step_with(fail=ends_with_the_text), "Pass the exception itself"),
        Wrong("counts exchanged", step_with(recorded=lambda gets, done: (len(done), sum(gets))), "comes first, then"),
        Wrong("counts no forks", step_with(recorded=lambda gets, done: (sum(gets), sum(gets))), "new tokens; expected"),
    ],
}

RIGHT = {
    "12.1": [row_by_row, in_float32_by_argsort, in_float64_rounded_to_float32, with_weights, cuts_before_it_sorts],
    "12.2": [by_regular_expression, walking_through],
    "12.3": [
        with_doubts(),
        with_doubts(what_is_copied_out),
        copies_block_after_block,
        with_else,
        in_two_functions,
        step_that_tries(),
        with_a_loop_over_rows,
        catches_each_part,
    ],
}
