"""Lesson 12: from logits to the next token, for every sequence of a batch by its own rules."""

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch

from lessons_lib.engine.race import race, settings_table
from lessons_lib.engine.rules import NEVER, NO_TOKEN_ALLOWED, NoTokenAllowed, Processor, process_logits, to_device
from lessons_lib.engine.sampling_params import SamplingParams as SamplingParams

NO_TOKEN = -1

Race = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


def token_probabilities(
    logits: torch.Tensor, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The probabilities that the next token is drawn from.

    Args:
        logits: [N, vocabulary].
        temperature: [N], above 0.
        top_k: int [N], 1 or more: only the `top_k` likeliest may be drawn.
        top_p: [N], above 0: of what `top_k` leaves, only the likeliest that together have this share. The one that
            reaches it is included.

    Returns:
        (probabilities, tokens), each [N, vocabulary], likeliest first: tokens[i, j] is drawn with probabilities[i, j].
    """
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    probabilities = scaled.masked_fill(rank >= top_k[:, None], float("-inf")).softmax(dim=-1)
    of_likelier = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill(of_likelier >= top_p[:, None], 0.0)
    return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens


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


@cache
def race_on(device: torch.device) -> Race:
    """The function that draws tokens on a device: on a GPU a kernel, if there is Triton; elsewhere PyTorch's."""
    if device.type == "cuda" and find_spec("triton"):
        from lessons_lib.kernels import race as kernel  # only here: Triton is not available everywhere

        return kernel.race
    return race


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
    Hugging Face keeps all of them. What is drawn has the distribution of `token_probabilities`; `race.winners` says how
    that is done without its sort.

    Args:
        logits: [N, vocabulary].
        params, seeds, positions: of each sequence; see `race.random_numbers`. Any seed does.
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


def why_no_token(token: int, processor: Processor | None) -> Exception:
    """The error of a request whose `choose_tokens` is negative."""
    if processor and processor.error:
        return processor.error
    if token == NO_TOKEN_ALLOWED:
        return NoTokenAllowed(
            "the request's rules leave no token that may be drawn, and no end token; loosen one of them."
        )
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
