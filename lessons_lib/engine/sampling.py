"""Lesson 12: from logits to the next token, for every sequence of a batch by its own rules.

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

from lessons_lib.engine.rules import NEVER, NO_TOKEN_ALLOWED, Processor, process_logits, to_device
from lessons_lib.engine.sampling_params import SamplingParams as SamplingParams
from lessons_lib.engine.stateless_random import random_numbers

NO_TOKEN = -1
LARGEST_TEMPERATURE = 1e30  # fits into a float32; all tokens are alike long before
NUM_SETTINGS = 7
NUM_LOGITS_AT_ONCE = 2**16  # on a CPU: what is made of them stays in its cache

Race = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


@torch.inference_mode()
def choose_tokens(
    logits: torch.Tensor,
    params: ListOf[SamplingParams],
    seeds: ListOf[int],
    positions: ListOf[int],
    processors: ListOf[Processor | None] = (),
) -> torch.Tensor:
    """The next token of every sequence of a step, chosen on the device of the logits, without waiting for them.

    In vLLM's order: first what can change which token is likeliest, see `LogitsProcessor`; then temperature, min_p,
    top_k and top_p. Where several tokens share rank `top_k`, those with the smaller ids stay, so exactly `top_k` do;
    Hugging Face keeps all of them. What is drawn has the distribution of `token_probabilities`; `winners` says how
    that is done without its sort.

    Args:
        logits: [N, vocabulary].
        params, seeds, positions: of each sequence; see `random_numbers`. Any seed does.
        processors: of each sequence, None for those without rules; or () if none has any.

    Returns:
        int64 tensor [N] on the device of the logits; NO_TOKEN where the logits are not finite numbers. Where the rules
        of a sequence leave nothing, its end token; NO_TOKEN_ALLOWED where it has none, or a rule has failed.
    """
    highest, tokens = logits.max(dim=-1)
    # NaN fails every comparison; `isfinite` would launch twice as many kernels.
    is_finite = can_draw = highest.abs() < float("inf")
    if any(processors):
        logits = process_logits(logits, processors, positions)
        highest, tokens = logits.max(dim=-1)
        can_draw = highest.abs() < float("inf")
    rows = [row for row, own in enumerate(params) if own.temperature > 0]
    if rows:
        table = settings_table(rows, params, seeds, positions, logits.shape[-1])
        # A copy from page-locked memory doesn't wait.
        table = (table.pin_memory() if logits.is_cuda else table).to(logits.device, non_blocking=True)
        race_on(logits.device)(logits, highest, table, tokens)
    if can_draw is not is_finite:
        tokens.masked_fill_(~can_draw, NO_TOKEN_ALLOWED)
        ends = to_device([each.end_token if each else NO_TOKEN_ALLOWED for each in processors], logits)
        torch.where(highest == NEVER, ends, tokens, out=tokens)
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
    table[:, 2] = [positions[row] for row in rows]
    table[:, 3] = [min(each.top_k or vocabulary, vocabulary) for each in own]
    numbers[:, 4] = 1 / temperature
    numbers[:, 5] = np.where(top_p < 1, top_p, np.inf)
    # Two probabilities' ratio is the exponential of their logits' difference.
    numbers[:, 6] = [-math.log(each.min_p) if each.min_p else math.inf for each in own] * temperature
    return torch.from_numpy(table)


@cache
def race_on(device: torch.device) -> Race:
    """The function that draws tokens on a device: on a GPU a kernel, if there is Triton; elsewhere PyTorch's."""
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
    at_once = max(1, NUM_LOGITS_AT_ONCE // logits.shape[-1])
    for start in range(0, len(table), at_once):
        part = table[start : start + at_once]
        rows = part[:, 0]
        tokens[rows] = winners(logits[rows].float(), highest[rows, None].float(), part)


def winners(logits: torch.Tensor, highest: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The tokens that are drawn from a few rows: those of the table, in its order.

    A token stays if it is among the first `top_k`, and if those before it have less than `top_p` of what `top_k` and
    `min_p` left. The order is by logit; of equal logits, the smaller token id comes first.

    No sort is needed to decide that. The race is run among all tokens. If the winner doesn't stay, no token after it
    does; then the race is run again among those before it, with the same times, until a winner stays. That one would
    also have won among the tokens that stay alone.

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
    stays = logits >= floor
    scores.masked_fill_(~stays, -1)
    if not (limited | nucleus).any():
        return scores.argmax(dim=-1)

    # Those that share the floor are all alike, and may be more than `top_k` has room for.
    surplus = (stays.sum(dim=-1, keepdim=True) - top_k).clamp_(min=0)
    total = _sum(weights * stays) - surplus * ((floor - highest) * inverse_temperature).exp()
    while True:
        winner = scores.argmax(dim=-1, keepdim=True)
        value = logits.gather(1, winner)
        before = (logits > value) | ((logits == value) & (ids < winner))
        rank, mass = before.sum(dim=-1, keepdim=True), _sum(weights * before)
        leaves = (rank > 0) & ((rank >= top_k) | (mass >= top_p * total))
        if not leaves.any():
            return winner[:, 0]
        scores.masked_fill_(leaves & ~before, -1)


def _sum(weights: torch.Tensor) -> torch.Tensor:
    """The sums of the rows, [R, 1]. In float64 it doesn't matter in which order they are added."""
    return weights.sum(dim=-1, keepdim=True, dtype=torch.float64)


def times(numbers: torch.Tensor) -> torch.Tensor:
    """Exponential random numbers, made of numbers between 0 and 1.

    The smallest times decide. They come from the numbers near 0, of which a float has the most digits.
    """
    return numbers.neg().log1p_().neg_()
