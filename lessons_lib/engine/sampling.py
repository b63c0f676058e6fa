"""Lesson 12: from logits to the next token, for every sequence of a batch by its own rules."""

import hashlib
from collections.abc import Sequence as ListOf
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from transformers import PreTrainedModel

from lessons_lib.engine.generation_defaults import sampling_values
from lessons_lib.models.prompts import BadRequest

NO_TOKEN = -1


@dataclass(frozen=True)
class SamplingParams:
    """What a user asks for besides the prompt.

    Attributes:
        max_tokens: the most tokens to add; None for as many as the context has room for.
        temperature: logits are divided by it, 1e-5 or more; 0 takes the likeliest token every time.
        top_k: only this many of the likeliest tokens may be drawn; 0 for all.
        top_p: only the likeliest tokens that together have this probability may be drawn; 1 for all.
        seed: the same seed draws the same completion; None for another one every time.
        stop: strings that end the completion; they are not part of it.
        stop_token_ids: tokens that end the completion, besides the model's end token.
        ignore_eos: go on after the end token.
        logprobs: None, or for how many of the likeliest tokens log-probabilities are returned, besides those of the
            chosen ones.
        n: how many completions are drawn for the prompt.

    Raises:
        BadRequest: a value makes no sense.
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

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        self._must(
            self.max_tokens is None or _is_whole(self.max_tokens, 1), "max_tokens", "a whole number from 1 on, or None"
        )
        # NaN fails every comparison, so each rule is written as what must hold. A logit divided by less than 1e-5 might
        # overflow.
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

    @classmethod
    def from_generation_config(cls, model: PreTrainedModel, **own: Any) -> "SamplingParams":
        """Parameters with which a model is sampled as `generate` samples it.

        Args:
            own: fields that replace those of the model's generation_config.

        Raises:
            UnsupportedModel: it cuts probabilities in a way that the engine doesn't offer.
        """
        return cls(**(sampling_values(model.generation_config, cls.__dataclass_fields__) | own))

    def _must(self, holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise BadRequest(f"{name} is {getattr(self, name)!r}; it must be {wanted}.")


def _is_whole(value: object, least: float = float("-inf")) -> bool:
    return isinstance(value, Integral) and int(value) >= least


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


@torch.inference_mode()
def choose_tokens(
    logits: torch.Tensor, params: ListOf[SamplingParams], seeds: ListOf[int], positions: ListOf[int]
) -> torch.Tensor:
    """The next token of every sequence of a step, chosen on the device of the logits, without waiting for them.

    Args:
        logits: [N, vocabulary].
        params, seeds, positions: of each sequence; see `random_number`.

    Returns:
        int64 tensor [N] on the device of the logits; NO_TOKEN where the logits are not finite numbers.
    """
    highest, tokens = logits.max(dim=-1)
    # NaN fails every comparison; `isfinite` would launch twice as many kernels.
    is_finite = highest.abs() < float("inf")
    rows = [row for row, own in enumerate(params) if own.temperature > 0]
    if rows:
        vocabulary = logits.shape[-1]
        drawn = [(row, params[row], random_number(seeds[row], positions[row])) for row in rows]
        columns = zip(
            *((row, own.temperature, own.top_k or vocabulary, own.top_p, number) for row, own, number in drawn)
        )
        table = torch.tensor(list(columns), dtype=torch.float64)
        # A copy from page-locked memory doesn't wait.
        table = (table.pin_memory() if logits.is_cuda else table).to(logits.device, non_blocking=True)
        drawn_rows, temperature, top_k, top_p, numbers = table[0].long(), *table[1:]
        # Rows that aren't finite get zeros: NaN can't be drawn from, and must not stop the others.
        drawable = logits.masked_fill(~is_finite[:, None], 0.0)[drawn_rows]
        tokens[drawn_rows] = draw(*token_probabilities(drawable, temperature, top_k, top_p), numbers)
    return tokens.masked_fill_(~is_finite, NO_TOKEN)


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
        count: how many of the likeliest to return.
    """
    logprobs = logits.float().log_softmax(dim=-1)
    values, tokens = logprobs.topk(min(count, len(logprobs)))
    top = [(int(token), float(value)) for token, value in zip(tokens.tolist(), values.tolist())]
    return TokenLogprobs(token, float(logprobs[token]), tuple(top))
