"""What an engine has returned of a request, and what no engine may return."""

from dataclasses import dataclass, field

from lessons_lib.conformance.contract import NewTokens, Params
from lessons_lib.conformance.oracle import expected
from lessons_lib.models.tiny_models import VOCAB_SIZE

REASONS = ("stop", "length", "abort", "error")


class Broken(AssertionError):
    """The engine violates the contract. The message names what was expected, what came, and the case."""


class BrokenRule(Broken):
    """The engine broke a rule that holds for every request, whatever the item is about."""


@dataclass
class Served:
    """A request and what the engine has returned of it so far.

    Attributes:
        first_step, last_step: of its tokens; None before the first.
        given: the list that the engine got as `prompt_ids`.
    """

    prompt: list[int]
    params: Params
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None
    first_step: int | None = None
    last_step: int | None = None
    is_aborted: bool = False
    given: list[int] | None = None

    def __str__(self) -> str:
        length = len(self.prompt)
        told = f"prompt of {length} token{'s' * (length != 1)}, max_tokens {self.params.max_tokens}"
        if self.params.stop_token_ids:
            told += f", stop_token_ids {list(self.params.stop_token_ids)}"
        return told + (", ignore_eos" if self.params.ignore_eos else "")

    def take(self, event: NewTokens, step: int, has_steps: bool) -> None:
        """Keep what a step has returned; Broken if no engine may return it. `has_steps`: a step is one pass."""
        where = f"request {event.request_id!r} ({self}), in step {step}"
        if self.is_aborted and event.token_ids:
            raise Broken(f"{where}: the token {event.token_ids[0]} came after abort() had ended the request.")
        if self.is_aborted and event.finish_reason not in (None, "abort"):
            raise Broken(
                f"{where}: it ended with {event.finish_reason!r} after abort(). An aborted request ends with 'abort', "
                "or nothing more is said of it."
            )
        if self.finish_reason and not self.is_aborted:
            raise Broken(
                f"{where}: {event.token_ids or repr(event.finish_reason)} came after the request had ended with "
                f"{self.finish_reason!r}. A request ends once."
            )
        if event.finish_reason not in (None, *REASONS):
            raise BrokenRule(
                f"{where}: finish_reason is {event.finish_reason!r}; it must be one of {REASONS}, or None."
            )
        if not isinstance(event.token_ids, list | tuple):
            raise BrokenRule(f"{where}: token_ids is {event.token_ids!r}; it must be a list of the step's new tokens.")
        for token in event.token_ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < VOCAB_SIZE:
                raise BrokenRule(f"{where}: {token!r} is no token id; it must be an int from 0 to {VOCAB_SIZE - 1}.")
        is_empty = not (event.token_ids or event.finish_reason or event.text)
        if is_empty and has_steps and not self.is_aborted:
            raise BrokenRule(
                f"{where}: a NewTokens came without tokens and without a reason. Return one only for requests that got "
                "a token or that end; while part of a prompt is still to be computed, there is nothing to say."
            )
        if event.token_ids:
            self.first_step = step if self.first_step is None else self.first_step
            self.last_step = step
        earlier = self.tokens[1 - len(event.token_ids) :]
        self.tokens += event.token_ids
        self.text += event.text
        if len(self.tokens) > self.params.max_tokens:
            told = (
                f"{where}: token {len(self.tokens)} came, and max_tokens is {self.params.max_tokens}. The step "
                f"returned {event.token_ids}."
            )
            if len(event.token_ids) > 1 and event.token_ids[:-1] == earlier:
                raise BrokenRule(
                    f"{told} Before, it returned {earlier}. Are these the same tokens again? A step returns only the "
                    "tokens that are new."
                )
            raise Broken(told)
        self.finish_reason = self.finish_reason or event.finish_reason


def check_answer(family: str, name: str, served: Served, company: int, end: int) -> None:
    """Raises Broken if a request that has ended hasn't the tokens that `generate` gives its prompt alone."""
    params = served.params
    right = expected(family, served.prompt, params.max_tokens, params.ignore_eos, params.stop_token_ids, end)
    case = f"request {name!r} ({served}, {family}, {company} in all)"
    if served.finish_reason == "error":
        raise Broken(f"{case} ended with 'error'; nothing had failed.")
    if served.given not in (None, served.prompt):
        raise BrokenRule(
            f"{case}: the engine changed the caller's list `prompt_ids`: it has {len(served.given or ())} tokens now. "
            "Append to a list of your own."
        )
    if served.tokens != right:
        same = next(
            (index for index, (a, b) in enumerate(zip(served.tokens, right)) if a != b),
            min(len(served.tokens), len(right)),
        )
        raise Broken(
            f"{case}: `generate` gives {_shown(right, same)}, the engine gave {_shown(served.tokens, same)}. "
            f"{_difference(same, len(served.tokens), len(right))}{_why_it_ended(served, same, right, end)}"
        )
    ends = (*params.stop_token_ids, *(() if params.ignore_eos else (end,)))
    reason = "stop" if right[-1] in ends else "length"
    if served.finish_reason != reason:
        raise Broken(f"{case}: finish_reason is {served.finish_reason!r}; it must be {reason!r}.")


def _difference(same: int, got: int, wanted: int) -> str:
    told = f"The first {same} tokens are" if same != 1 else "The first token is"
    if same == got:
        return f"{told} right, and {wanted - got} missing." if same else "No token came."
    if same == wanted:
        return f"{told} right; the answer should have ended there."
    return f"{told} the same; then they differ." if same else "The first token differs."


def _why_it_ended(served: Served, same: int, right: list[int], end: int) -> str:
    """Why an answer that is right so far may have ended too early or too late; "" if nothing tells."""
    params, length = served.params, len(served.prompt) + len(served.tokens)
    if same < len(served.tokens) and served.tokens == right[1:]:
        return f" The answer is right but for its first token, {right[0]}, which no step returned."
    is_cut = 0 < same == len(served.tokens) < len(right)
    if is_cut and params.ignore_eos and served.tokens[-1] == end:
        return f" The last one that came is {end}, the end token, and the request has `ignore_eos`."
    if is_cut and served.finish_reason == "length" and length == params.max_tokens:
        return (
            f" It ended with 'length', and the prompt and the answer are {len(served.prompt)} + {len(served.tokens)} = "
            f"{length} tokens. Does max_tokens count the prompt in your engine? It limits the answer alone."
        )
    if same == len(right) < len(served.tokens) and right[-1] == end:
        told = f" {end} is the end token of these `limits`"
        if params.ignore_eos and end in params.stop_token_ids:
            told += ", and here also a stop token of the request. `ignore_eos` says nothing of its stop tokens"
        return f"{told}."
    return ""


def _shown(tokens: list[int], around: int) -> str:
    begin = max(0, around - 2)
    inner = ", ".join(map(str, tokens[begin : around + 4]))
    return f"[{'…, ' if begin else ''}{inner}{', …' if len(tokens) > around + 4 else ''}]"
