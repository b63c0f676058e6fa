"""Lesson 12: from logits to the next token, for every sequence of a batch by its own rules."""

import hashlib
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

import torch

from lessons_lib.engine.logits_processors import LogitsProcessor, NoTokenAllowed, process_logits
from lessons_lib.engine.sampling_params import SamplingParams as SamplingParams

NO_TOKEN = -1
NO_TOKEN_ALLOWED = -2


def token_probabilities(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The probabilities that the next token is drawn from.

    Args:
        logits: [N, vocabulary].
        temperature: [N], above 0.
        top_k: int [N], 1 or more: only the `top_k` likeliest may be drawn.
        top_p: [N], above 0: of these, only the likeliest that together have this probability. The one that reaches it
            is included.

    Returns:
        (probabilities, tokens), each [N, vocabulary], likeliest first: tokens[i, j] is drawn with probabilities[i, j].
    """
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    probabilities = scaled.masked_fill(rank >= top_k[:, None], float("-inf")).softmax(dim=-1)
    of_likelier = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill(of_likelier >= top_p[:, None], 0.0)
    return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens


def random_number(seed: int, position: int) -> float:
    """A pseudo-random number in [0, 1), the same for the same seed and position.

    There is no state between draws. So it doesn't matter what else is in the batch, or whether the sequence was
    preempted and came back.

    Args:
        position: how many tokens the completion has so far.
    """
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def draw(probabilities: torch.Tensor, tokens: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Draw a token for each row: lay the probabilities end to end, and see on which of them the random number falls.

    Args:
        probabilities, tokens: [N, vocabulary], see `token_probabilities`.
        numbers: [N], each in [0, 1).

    Returns:
        int64 tensor [N].
    """
    index = torch.searchsorted(probabilities.cumsum(dim=-1), numbers[:, None], right=True)
    # By rounding, the sum may end below 1: the last token that can be drawn at all takes what is left.
    last = (probabilities > 0).sum(dim=-1, keepdim=True) - 1
    return tokens.gather(1, torch.minimum(index, last))[:, 0]


def cut_unlikely(
    logits: torch.Tensor, highest: torch.Tensor, temperature: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Give -inf to tokens that are less than `min_p` times as likely as the likeliest (Nguyen et al. 2024).

    Args:
        logits: [N, vocabulary]; they stay as they are.
        highest: [N], the largest logit of each row.
        temperature: [N], above 0.
        min_p: [N], 0 to 1.
    """
    # Two probabilities' ratio is the exponential of their logits' difference.
    return logits.masked_fill(logits.double() < (highest + temperature * min_p.log())[:, None], float("-inf"))


@torch.inference_mode()
def choose_tokens(
    logits: torch.Tensor,
    params: ListOf[SamplingParams],
    seeds: ListOf[int],
    positions: ListOf[int],
    processors: ListOf[LogitsProcessor | None] = (),
) -> torch.Tensor:
    """The next token of every sequence of a step, chosen on the device of the logits, without waiting for them.

    In vLLM's order: first what can change which token is likeliest, see `LogitsProcessor`; then temperature, min_p,
    top_k and top_p. Where several tokens share rank `top_k`, those with the smaller ids stay, so exactly `top_k` do;
    Hugging Face keeps all of them.

    Args:
        logits: [N, vocabulary].
        params, seeds, positions: of each sequence; see `random_number`.
        processors: of each sequence, None for those without rules; or () if none has any.

    Returns:
        int64 tensor [N] on the device of the logits; NO_TOKEN where the logits are not finite numbers,
        NO_TOKEN_ALLOWED where the rules of the sequence leave nothing.
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
        vocabulary = logits.shape[-1]
        drawn = [(row, params[row], random_number(seeds[row], positions[row])) for row in rows]
        columns = zip(
            *(
                (row, own.temperature, min(own.top_k or vocabulary, vocabulary), own.top_p, number, own.min_p)
                for row, own, number in drawn
            )
        )
        table = torch.tensor(list(columns), dtype=torch.float64)
        # A copy from page-locked memory doesn't wait.
        table = (table.pin_memory() if logits.is_cuda else table).to(logits.device, non_blocking=True)
        drawn_rows, temperature, top_k, top_p, numbers, min_p = table[0].long(), *table[1:]
        # Rows that can't be drawn from, such as NaN, get zeros: they must not stop the others.
        drawable = logits.masked_fill(~can_draw[:, None], 0.0)[drawn_rows]
        if any(params[row].min_p for row in rows):
            drawable = cut_unlikely(drawable, drawable.amax(dim=-1), temperature, min_p)
        tokens[drawn_rows] = draw(*token_probabilities(drawable, temperature, top_k, top_p), numbers)
    if can_draw is not is_finite:
        tokens.masked_fill_(~can_draw, NO_TOKEN_ALLOWED)
    return tokens.masked_fill_(~is_finite, NO_TOKEN)


def why_no_token(token: int, processor: LogitsProcessor | None) -> Exception:
    """The error of a request whose `choose_tokens` is negative."""
    if processor and processor.error:
        return processor.error
    if token == NO_TOKEN_ALLOWED:
        return NoTokenAllowed("the request's rules leave no token that may be drawn; loosen one of them.")
    return FloatingPointError("the model's logits are not finite numbers; check weights and dtype.")


@dataclass(frozen=True)
class TokenLogprobs:
    """Log-probabilities at one place of an answer, by the model's own logits, before temperature and cuts.

    Attributes:
        token, logprob: the token that stands there.
        top: (token, log-probability) of the likeliest, likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(logits: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """The log-probability of a chosen token, and those of the likeliest ones.

    Args:
        logits: [vocabulary].
        count: how many of the likeliest to return; -1 for all.
    """
    (found,) = rows_of_logprobs(logits[None], [token], count)
    return found


def rows_of_logprobs(logits: torch.Tensor, tokens: ListOf[int], count: int) -> list[TokenLogprobs]:
    """`token_logprobs` of several places: logits [T, vocabulary], and a token for each."""
    logprobs = logits.float().log_softmax(dim=-1)
    vocabulary = logprobs.shape[-1]
    values, likeliest = logprobs.topk(vocabulary if count < 0 else min(count, vocabulary))
    own = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    tops = zip(likeliest.tolist(), values.tolist())
    return [TokenLogprobs(token, value, tuple(zip(*top))) for token, value, top in zip(tokens, own, tops)]
