"""Lesson 12: from logits to the next token, for every sequence of a batch by rules of its own."""

import hashlib
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from numbers import Integral

import torch

from lessons_lib.models.prompts import BadRequest

NO_TOKEN = -1


@dataclass(frozen=True)
class SamplingParams:
    """What a user asks for beside the prompt. A bad value is refused when this is made.

    Attributes:
        max_tokens: the most tokens to add; None for as many as the context has room for.
        temperature: logits are divided by it; 0 takes the likeliest token every time, and so would anything below 1e-5.
        top_k: only so many of the likeliest tokens may be drawn; 0 for all.
        top_p: only the likeliest tokens may be drawn that together have this probability; 1 for all.
        seed: the same seed draws the same answer; None for another one every time.
        stop: strings that end the answer; they are not part of it.
        stop_token_ids: tokens that end the answer, beside the model's end token.
        ignore_eos: go on after the end token.
        logprobs: None, or for how many of the likeliest tokens log-probabilities are handed out, with those of the answer's own.
        n: how many answers are drawn for the prompt.
    """

    max_tokens: int | None = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self):
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        self._must(
            self.max_tokens is None or _is_whole(self.max_tokens, 1), "max_tokens", "a whole number from 1 on, or None"
        )
        # NaN fails every comparison, so each rule is written as what must hold. A logit divided by less than 1e-5 might overflow.
        self._must(
            self.temperature == 0 or 1e-5 <= self.temperature < float("inf"),
            "temperature",
            "0, or a number from 1e-5 on",
        )
        self._must(_is_whole(self.top_k, 0), "top_k", "a whole number: 0 for all tokens, or more")
        self._must(0 < self.top_p <= 1, "top_p", "above 0 and at most 1")
        self._must(self.seed is None or _is_whole(self.seed), "seed", "a whole number, or None")
        self._must(
            self.logprobs is None or _is_whole(self.logprobs, 0), "logprobs", "a whole number from 0 on, or None"
        )
        self._must(_is_whole(self.n, 1), "n", "a whole number from 1 on")
        self._must(all(isinstance(text, str) and text for text in self.stop), "stop", "strings that are not empty")
        is_list = not isinstance(self.stop_token_ids, Integral)
        self._must(is_list and all(map(_is_whole, self.stop_token_ids)), "stop_token_ids", "token ids, such as (13,)")

    def _must(self, holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise BadRequest(f"{name} is {getattr(self, name)!r}; it must be {wanted}.")


def _is_whole(value, least: float = float("-inf")) -> bool:
    return isinstance(value, Integral) and value >= least


def token_probabilities(logits, temperature, top_k, top_p):
    """What the next token is drawn from.

    Args:
        logits: [B, vocabulary].
        temperature: [B], above 0.
        top_k: int [B], 1 or more: only the `top_k` likeliest may be drawn.
        top_p: [B], above 0: of these, only the likeliest that together have this probability. The one that reaches it belongs to them.

    Returns:
        (probabilities, tokens), each [B, vocabulary], likeliest first: tokens[i, j] is drawn with probabilities[i, j].
    """
    scaled, tokens = (logits.double() / temperature[:, None]).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    probabilities = scaled.masked_fill(rank >= top_k[:, None], float("-inf")).softmax(dim=-1)
    of_likelier = probabilities.cumsum(dim=-1) - probabilities
    probabilities = probabilities.masked_fill(of_likelier >= top_p[:, None], 0.0)
    return probabilities / probabilities.sum(dim=-1, keepdim=True), tokens


def random_number(seed, position):
    """A number from 0 up to 1, as good as random, and the same for the same seed and position.

    Nothing is remembered from draw to draw. So it does not matter what else is in the batch, nor whether the sequence lost its cache
    and came back.

    Args:
        seed: int. position: how many tokens the answer has so far.
    """
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def draw(probabilities, tokens, numbers):
    """Draw a token for each row: lay the probabilities end to end, and see on which of them the number falls.

    Args:
        probabilities, tokens: [B, vocabulary], see `token_probabilities`.
        numbers: [B], each from 0 up to 1.

    Returns:
        int64 tensor [B].
    """
    index = torch.searchsorted(probabilities.cumsum(dim=-1), numbers[:, None], right=True)
    # A sum may stop short of 1 by rounding: the last token that can be drawn at all takes what is left.
    last = (probabilities > 0).sum(dim=-1, keepdim=True) - 1
    return tokens.gather(1, torch.minimum(index, last))[:, 0]


@torch.inference_mode()
def choose_tokens(
    logits: torch.Tensor, params: ListOf[SamplingParams], seeds: ListOf[int], positions: ListOf[int]
) -> torch.Tensor:
    """The next token of every sequence of a step, chosen where the logits are, without waiting for them.

    Args:
        logits: [B, vocabulary].
        params, seeds, positions: of each sequence; see `random_number`.

    Returns:
        int64 tensor [B] on the device of the logits; NO_TOKEN where the logits are not numbers.
    """
    highest, tokens = logits.max(dim=-1)
    is_number = highest.abs() < float(
        "inf"
    )  # NaN fails every comparison; `isfinite` would launch twice as many kernels
    rows = [row for row, own in enumerate(params) if own.temperature > 0]
    if rows:
        vocabulary = logits.shape[-1]
        drawn = [(row, params[row], random_number(seeds[row], positions[row])) for row in rows]
        columns = zip(
            *((row, own.temperature, own.top_k or vocabulary, own.top_p, number) for row, own, number in drawn)
        )
        table = torch.tensor(list(columns), dtype=torch.float64)
        # Out of page-locked memory, a copy waits for nothing.
        table = (table.pin_memory() if logits.is_cuda else table).to(logits.device, non_blocking=True)
        places, temperature, top_k, top_p, numbers = table[0].long(), *table[1:]
        # Rows that are not numbers get some, whatever they are: nobody can draw from NaN, and it must not stop the others.
        drawable = logits.masked_fill(~is_number[:, None], 0.0)[places]
        tokens[places] = draw(*token_probabilities(drawable, temperature, top_k, top_p), numbers)
    return tokens.masked_fill_(~is_number, NO_TOKEN)


def sample(
    logits: torch.Tensor, params: ListOf[SamplingParams], seeds: ListOf[int], positions: ListOf[int]
) -> list[int]:
    """`choose_tokens`, and wait for them: list of B ints."""
    return choose_tokens(logits, params, seeds, positions).tolist()


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
    """Of one place.

    Args:
        logits: [vocabulary]. count: how many of the likeliest to name.
    """
    logprobs = logits.float().log_softmax(dim=-1)
    values, tokens = logprobs.topk(min(count, len(logprobs)))
    return TokenLogprobs(token, float(logprobs[token]), tuple(zip(tokens.tolist(), values.tolist())))
