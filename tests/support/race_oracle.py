"""The race for a token with Python's own integers and floats, as slow and as plain as possible."""

import math
from unittest import mock

import torch

from lessons_lib.engine import sampling as race

WORD = 2**64
LEAST = 1e-30


def splitmix(x):
    """SplitMix64 as its authors wrote it: the number that follows the state `x`."""
    x = (x + 0x9E3779B97F4A7C15) % WORD
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB % WORD
    return x ^ x >> 31


def number(seed, position, token):
    """A number between 0 and 1: the state of the generator after `token` steps, hashed."""
    stream = splitmix((splitmix(seed % WORD) + position) % WORD)
    bits = splitmix((stream + token * 0x9E3779B97F4A7C15) % WORD) >> 32
    return min((bits + 0.5) / 2**32, 1 - 2**-24)


def kept(logits, params):
    """token -> weight, of those that may be drawn. Sorts, as the race doesn't."""
    highest = max(logits)
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    weights = {token: math.exp(max((logits[token] - highest) / params.temperature, -1e4)) for token in order}
    if params.min_p:  # by the logits: very hot, all weights round to 1
        lowest = highest + params.temperature * math.log(params.min_p)
        order = [token for token in order if logits[token] >= lowest]
    order = order[: params.top_k or len(order)]
    total, so_far, left = sum(weights[token] for token in order), 0.0, {}
    for token in order:
        if left and params.top_p < 1 and so_far >= params.top_p * total:
            break
        left[token] = weights[token]
        so_far += weights[token]
    return left


def drawn(logits, params, seed, position):
    """The token of one row, a list of floats."""
    if not params.temperature:
        return max(range(len(logits)), key=lambda token: (logits[token], -token))
    times = {
        token: -math.log1p(-number(seed, position, token)) / weight
        for token, weight in kept(logits, params).items()
        if weight
    }
    return min(times, key=times.__getitem__)


def kept_by_the_race(logits, params):
    """The tokens that the engine's race may draw from logits [vocabulary]: each that wins once it has the best time.

    Those with a weight below LEAST may be missing.
    """
    count = len(logits)
    rows = logits.expand(count, -1)
    table = race.settings_table(range(count), [params] * count, [0] * count, [0] * count, count)
    times = torch.ones(count, count).fill_diagonal_(LEAST**1.2)
    with mock.patch.object(race, "times", return_value=times):
        winners = race.winners(rows.float(), rows.float().amax(dim=-1, keepdim=True), table)
    return [token for token, winner in enumerate(winners.tolist()) if token == winner]
