"""Answers to the exercises of lesson 12: what learners get wrong, and other ways to be right."""

import re

import torch

from answers import Wrong
from lessons_lib.engine.detokenizer import releasable
from lessons_lib.engine.sampling import draw, token_probabilities

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


def settings_of_the_first_row(logits, temperature, top_k, top_p):
    return token_probabilities(
        logits, temperature[:1].expand_as(temperature), top_k[:1].expand_as(top_k), top_p[:1].expand_as(top_p)
    )


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


def later_of_two_alike(logits, temperature, top_k, top_p):
    probabilities, tokens = token_probabilities(logits.flip(-1), temperature, top_k, top_p)
    return probabilities, logits.shape[-1] - 1 - tokens


def keeps_all_alike(logits, temperature, top_k, top_p):
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    least = scaled.gather(1, (top_k[:, None] - 1).clamp(max=logits.shape[-1] - 1))
    probabilities = scaled.masked_fill(scaled < least, NONE).softmax(-1)
    probabilities = probabilities.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p[:, None], 0.0)
    return probabilities / probabilities.sum(-1, keepdim=True), tokens


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


def in_float32_by_argsort(logits, temperature, top_k, top_p):
    tokens = logits.argsort(dim=-1, descending=True, stable=True)
    scaled = logits.gather(1, tokens) / temperature.unsqueeze(1)
    scaled[torch.arange(logits.shape[-1])[None] >= top_k[:, None]] = NONE
    probabilities = scaled.softmax(-1)
    before = torch.cat([torch.zeros(len(logits), 1), probabilities.cumsum(-1)[:, :-1]], dim=1)
    scaled[before >= top_p[:, None]] = NONE
    return [scaled.softmax(-1), tokens]


# 12.2 draw


def takes_the_likeliest(probabilities, tokens, numbers):
    return tokens[:, 0]


def draws_with_multinomial(probabilities, tokens, numbers):
    return tokens.gather(1, torch.multinomial(probabilities, 1))[:, 0]


def at_the_border_the_first(probabilities, tokens, numbers):
    index = torch.searchsorted(probabilities.cumsum(-1), numbers[:, None])
    return tokens.gather(1, index.clamp(max=tokens.shape[-1] - 1))[:, 0]


def returns_the_index(probabilities, tokens, numbers):
    return draw(probabilities, torch.arange(tokens.shape[-1]).expand_as(tokens), numbers)


def runs_over_the_end(probabilities, tokens, numbers):
    return tokens.gather(1, torch.searchsorted(probabilities.cumsum(-1), numbers[:, None], right=True))[:, 0]


def ends_at_the_last_index(probabilities, tokens, numbers):
    index = torch.searchsorted(probabilities.cumsum(-1), numbers[:, None], right=True)
    return tokens.gather(1, index.clamp(max=tokens.shape[-1] - 1))[:, 0]


def first_number_for_all(probabilities, tokens, numbers):
    return draw(probabilities, tokens, numbers[:1].expand_as(numbers))


def first_order_for_all(probabilities, tokens, numbers):
    return draw(probabilities, tokens[:1].expand_as(tokens), numbers)


def nearest_probability(probabilities, tokens, numbers):
    return tokens.gather(1, (probabilities - numbers[:, None]).abs().argmin(-1, keepdim=True))[:, 0]


def one_column(probabilities, tokens, numbers):
    return draw(probabilities, tokens, numbers)[:, None]


def a_list(probabilities, tokens, numbers):
    return draw(probabilities, tokens, numbers).tolist()


def floats(probabilities, tokens, numbers):
    return draw(probabilities, tokens, numbers).float()


def as_int32(probabilities, tokens, numbers):
    return draw(probabilities, tokens, numbers).int()


def last_of_the_first_row(probabilities, tokens, numbers):
    index = torch.searchsorted(probabilities.cumsum(-1), numbers[:, None], right=True)
    return tokens.gather(1, index.clamp(max=int((probabilities[0] > 0).sum()) - 1))[:, 0]


def from_the_other_end(probabilities, tokens, numbers):
    return draw(probabilities, tokens, 1 - numbers)


def all_alike(probabilities, tokens, numbers):
    return tokens.gather(1, (numbers[:, None] * tokens.shape[-1]).floor().long())[:, 0]


def one_too_far(probabilities, tokens, numbers):
    index = torch.searchsorted(probabilities.cumsum(-1), numbers[:, None], right=True) + 1
    return tokens.gather(1, index.clamp(max=tokens.shape[-1] - 1))[:, 0]


def nearest_end(probabilities, tokens, numbers):
    return tokens.gather(1, (probabilities.cumsum(-1) - numbers[:, None]).abs().argmin(-1, keepdim=True))[:, 0]


def adds_up_in_place(probabilities, tokens, numbers):
    ends = probabilities.cumsum_(-1)
    return tokens.gather(1, torch.searchsorted(ends, numbers[:, None], right=True).clamp(max=tokens.shape[-1] - 1))[
        :, 0
    ]


def draw_by_a_loop(probabilities, tokens, numbers):
    chosen = []
    for line, own, number in zip(probabilities.tolist(), tokens.tolist(), numbers.tolist()):
        total, token = 0.0, None
        for value, candidate in zip(line, own):
            if value == 0:
                break
            token, total = candidate, total + value
            if number < total:
                break
        chosen.append(token)
    return torch.tensor(chosen)


def draw_by_counting(probabilities, tokens, numbers):
    passed = (probabilities.cumsum(-1) <= numbers[:, None]).sum(-1)
    last = (probabilities > 0).sum(-1) - 1
    return tokens[torch.arange(len(tokens)), passed.clamp(max=last)]


# 12.3 releasable


def held_back(text, stop, sizes=lambda string: range(1, len(string)), choose=max):
    return choose((size for string in stop for size in sizes(string) if text.endswith(string[:size])), default=0)


def releasing(found=lambda text, stop: min(text.index(s) for s in stop if s in text), held=held_back):
    """The reference with one rule made another way."""

    def releasable(text, stop):
        if any(string in text for string in stop):
            return found(text, stop), True
        return len(text) - held(text, stop), False

    return releasable


def looks_at_the_end_only(text, stop):
    for string in stop:
        if text.endswith(string):
            return len(text) - len(string), True
    return len(text) - held_back(text, stop), False


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


WRONG = {
    "12.1": [
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
        Wrong("settings of the first row", settings_of_the_first_row, "settings of the first row for all rows"),
        Wrong("probabilities only", returns_probabilities_only, "expected a pair of tensors"),
        Wrong("in the order of the vocabulary", returns_vocabulary_order, "in the order of the vocabulary"),
        Wrong("ranks for tokens", returns_ranks_for_tokens, "are the ranks"),
        Wrong("logits for tokens", returns_logits_for_tokens, "should be token ids"),
        Wrong("least likely kept", probabilities_with(order=dict(descending=False)), "`descending=True`"),
        Wrong("in place", divides_in_place, "changed its argument `logits`"),
        Wrong("float64 in place", divides_float64_in_place, "It was [[-1.897"),
        Wrong("exponentials by hand", exponentials_by_hand, "NaN"),
        Wrong("rows cut", cuts_the_row, "should have the shape"),
        Wrong("the later of two alike", later_of_two_alike, "the smaller token id comes first"),
    ],
    "12.2": [
        Wrong("the likeliest", takes_the_likeliest, "likeliest token every time"),
        Wrong("multinomial", draws_with_multinomial, "the same number should give the same token"),
        Wrong("border", at_the_border_the_first, "on the border between two tokens"),
        Wrong("the index, not the token", returns_the_index, "the index in the sorted row"),
        Wrong("over the end", runs_over_the_end, "raised"),
        Wrong("a cut token", ends_at_the_last_index, "must never be drawn"),
        Wrong("one number for all", first_number_for_all, "its own number"),
        Wrong("one order for all", first_order_for_all, "its own order of tokens"),
        Wrong("nearest probability", nearest_probability, "nearest to the number"),
        Wrong("a column", one_column, "[:, 0]"),
        Wrong("a list", a_list, "expected a tensor of token ids"),
        Wrong("floats", floats, "should be integers"),
        Wrong("int32", as_int32, "the dtype torch.int64"),
        Wrong("last token of the first row", last_of_the_first_row, "row 1"),
        Wrong("from the other end", from_the_other_end, "from the other end"),
        Wrong("all tokens alike", all_alike, "all tokens as equally likely"),
        Wrong("one too far", one_too_far, "after the right one"),
        Wrong("nearest end", nearest_end, "the end nearest to the number"),
        Wrong("in place", adds_up_in_place, "changed its argument `probabilities`"),
    ],
    "12.3": [
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
            "You hold back one character",
        ),
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
}

RIGHT = {
    "12.1": [row_by_row, in_float32_by_argsort],
    "12.2": [draw_by_a_loop, draw_by_counting],
    "12.3": [by_regular_expression, walking_through],
}
