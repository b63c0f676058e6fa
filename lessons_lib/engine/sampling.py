"""Lesson 12: from logits to the next token, with separate settings for every sequence of a batch.

Tokens are drawn by a race, without sorting the vocabulary and without a random state. Each token gets a time: an
exponential random number, divided by the token's probability. The token with the smallest time is drawn, so each token
wins with exactly its own probability: an exponential race (Efraimidis & Spirakis 2006), in logarithms the Gumbel-max
trick (Maddison et al. 2014). On an NVIDIA GPU, kernels/race.py does the same in one launch.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as ListOf
from functools import cache
from importlib.util import find_spec

import numpy as np
import torch

from lessons_lib.engine.rules import Processor, to_device
from lessons_lib.engine.sampling_params import SamplingParams as SamplingParams
from lessons_lib.engine.stateless_random import random_numbers

NO_TOKEN = -1
LARGEST_TEMPERATURE = 1e30  # fits into a float32; all tokens are alike long before
NUM_SETTINGS, POSITION = 7, 2  # columns of a table of settings, and which of them is the position
NUM_LOGITS_AT_ONCE = 2**16  # on a CPU: what is made of them stays in its cache


@torch.inference_mode()
def choose_tokens(
    logits: torch.Tensor, params: ListOf[SamplingParams], seeds: ListOf[int], positions: ListOf[int],
    processors: ListOf[Processor | None] = (),
) -> torch.Tensor:  # fmt: skip
    """The next token of every sequence of a step, chosen on the device of the logits, without waiting for them.

    In vLLM's order: first what can change which token is likeliest, see `LogitsProcessor`; then temperature, min_p,
    top_k and top_p. Where several tokens share rank `top_k`, those with the smaller ids stay, so exactly `top_k` do;
    Hugging Face keeps all of them. What is drawn has the distribution of `token_probabilities`; `winners` says how
    that is done without its sort.

    Args:
        logits: [N, vocabulary].
        params, seeds: of each sequence. Any seed does.
        positions: of each sequence, tokens of its completion, those in flight included.
        processors: of each sequence, None for those without rules; or () if none has any.

    Returns:
        int64 tensor [N] on the device of the logits; NO_TOKEN where the logits are not finite numbers. Where the rules
        of a sequence leave nothing, its end token; NO_TOKEN_ALLOWED where it has none, or a rule has failed.
    """
    memory = next((each.memory for each in processors if each), None)
    highest, tokens = logits.max(dim=-1)
    # NaN fails every comparison; `isfinite` would launch twice as many kernels.
    is_finite = highest.abs() < float("inf")
    if memory:
        logits = memory.process(logits, processors, positions)
        highest, tokens = logits.max(dim=-1)
    rows = [row for row, own in enumerate(params) if own.temperature > 0]
    if rows:
        table = to_device(settings_table(rows, params, seeds, positions, logits.shape[-1]), logits.device)
        race_on(logits.device)(logits, highest, table, tokens)
    if memory:
        memory.settle(tokens, highest)
    return tokens.masked_fill_(~is_finite, NO_TOKEN)


def settings_table(
    rows: ListOf[int], params: ListOf[SamplingParams], seeds: ListOf[int], positions: ListOf[int], vocabulary: int
) -> torch.Tensor:
    """Settings for the draws of a step in one tensor, so that one copy takes them to the device.

    Args:
        rows: which rows; they are sampled, not greedy.
        params, seeds, positions: of all rows. Seeds that differ by a multiple of 2**64 are the same.

    Returns:
        int64 [rows, 7]: row, seed, position, top_k, then the bits of three float64: 1 / temperature; top_p, or
        infinity where it cuts nothing; and how far below the highest of its row a logit may be, which is min_p.
    """
    own = [params[row] for row in rows]
    table = np.empty((len(rows), NUM_SETTINGS), dtype=np.int64)
    numbers = table.view(np.float64)
    temperature = np.array([each.temperature for each in own]).clip(max=LARGEST_TEMPERATURE)
    top_p = np.array([each.top_p for each in own])
    table[:, 0] = rows
    table[:, 1] = np.array([seeds[row] % 2**64 for row in rows], dtype=np.uint64).view(np.int64)
    table[:, POSITION] = [positions[row] for row in rows]
    table[:, 3] = [min(each.top_k or vocabulary, vocabulary) for each in own]
    numbers[:, 4] = 1 / temperature
    numbers[:, 5] = np.where(top_p < 1, top_p, np.inf)
    # Two probabilities' ratio is the exponential of their logits' difference.
    numbers[:, 6] = [-math.log(each.min_p) if each.min_p else math.inf for each in own] * temperature
    return torch.from_numpy(table)


@cache
def race_on(device: torch.device) -> Callable[..., None]:
    """The function that draws tokens on a device: a kernel on a GPU with Triton, `race` elsewhere."""
    if device.type == "cuda" and find_spec("triton"):
        from lessons_lib.kernels import race as kernel  # only here: Triton is not available everywhere

        return kernel.race
    return race


def race(logits: torch.Tensor, highest: torch.Tensor, table: torch.Tensor, tokens: torch.Tensor) -> None:
    """Draw a token from every row of the table, and write it to `tokens`.

    Args:
        logits: [N, vocabulary]; they stay as they are.
        highest: [N], the largest logit of each row. Where it isn't a finite number, any token is written.
        table: see `settings_table`, on the device of the logits.
        tokens: int64 [N].
    """
    for part in torch.split(table, max(1, NUM_LOGITS_AT_ONCE // logits.shape[-1])):
        rows = part[:, 0]
        tokens[rows] = winners(logits[rows].float(), highest[rows, None].float(), part)


def winners(logits: torch.Tensor, highest: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The tokens that are drawn from a few rows: those of the table, in its order.

    Order the tokens by logit, equal ones by token id. `top_k` admits the first `top_k` tokens, `min_p` those with a
    logit that is high enough, and `top_p` those whose predecessors have less than `top_p` of what the other two admit.

    No sort is needed to apply these cuts. Race all tokens, and check the winner's rank and the probability before it.
    If a cut excludes the winner, it also excludes every token behind it: race again without them, with the same times.
    The first winner that no cut excludes would have won a race of the admitted tokens alone.

    Args:
        logits: float32 [R, vocabulary].
        highest: float32 [R, 1].
        table: see `settings_table`.

    Returns:
        int64 [R].
    """
    _, seed, position, top_k = table[:, :4, None].unbind(1)  # each [R, 1]
    inverse_temperature, top_p, margin = table[:, 4:, None].view(torch.float64).unbind(1)
    inverse_temperature, margin = inverse_temperature.float(), margin.float()
    ids = torch.arange(logits.shape[-1], device=logits.device)
    weights = ((logits - highest) * inverse_temperature).exp_()  # of the likeliest token, 1
    scores = weights / times(random_numbers(seed, position, ids))
    floor, limited, nucleus = highest - margin, top_k < logits.shape[-1], top_p < math.inf
    if limited.any():
        ranked = logits.topk(int(top_k[limited].max())).values
        kth = ranked.gather(1, top_k.clamp(max=ranked.shape[-1]) - 1)
        floor = torch.where(limited, torch.maximum(floor, kth), floor)
    above_floor = logits >= floor
    scores.masked_fill_(~above_floor, -1)
    if not (limited | nucleus).any():
        return scores.argmax(dim=-1)

    # Tokens that share the logit of rank `top_k` are all above the floor: some of them may be too many for `top_k`.
    num_too_many = (above_floor.sum(dim=-1, keepdim=True) - top_k).clamp_(min=0)
    weight_at_floor = ((floor - highest) * inverse_temperature).exp()
    admitted = _sum(weights * above_floor) - num_too_many * weight_at_floor
    while True:
        winner = scores.argmax(dim=-1, keepdim=True)
        value = logits.gather(1, winner)
        before = (logits > value) | ((logits == value) & (ids < winner))
        rank, weight_before = before.sum(dim=-1, keepdim=True), _sum(weights * before)
        is_excluded = (rank > 0) & ((rank >= top_k) | (weight_before >= top_p * admitted))
        if not is_excluded.any():
            return winner[:, 0]
        scores.masked_fill_(is_excluded & ~before, -1)


def _sum(weights: torch.Tensor) -> torch.Tensor:
    """The sums of the rows, [R, 1]. In float64 it doesn't matter in which order they are added."""
    return weights.sum(dim=-1, keepdim=True, dtype=torch.float64)


def times(numbers: torch.Tensor) -> torch.Tensor:
    """Exponential random numbers, made of numbers between 0 and 1.

    The smallest times decide. They come from the numbers near 0, of which a float has the most digits.
    """
    return numbers.neg().log1p_().neg_()
