"""Shared by the exercises on greedy loops: test cases, recorded passes, messages about wrong beginnings and ends."""

import copy
import operator
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

import torch
from transformers import Cache, PreTrainedModel

from lessons_lib.batching.greedy import greedy_without_cache
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.recording.forward_passes import watch_forwards
from lessons_lib.viz.words import marked


@dataclass(frozen=True)
class Case:
    """One call of a greedy loop."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    eos: int | None = None
    family: str = "qwen2"
    model_end: int | None = None  # the end token in the model's configuration, which the answer must not depend on
    context: int = 256

    def __str__(self) -> str:
        end = "" if self.eos is None else f", eos_token_id={self.eos}"
        own = "" if self.model_end is None else f" with model.config.eos_token_id={self.model_end}"
        return (
            f"prompt_ids={short(list(self.prompt))}, max_new_tokens={self.max_new_tokens}{end}, "
            f"on a tiny {self.family} model{own}."
        )

    @property
    def model(self) -> PreTrainedModel:
        if self.model_end is None:
            return tiny_model(self.family, context=self.context)
        return _model_with_end(self.family, self.context, self.model_end)

    def expected(self) -> list[int]:
        return list(_reference_answer(self))

    def run(self, attempt):
        """Returns (what the attempt returned, the forward passes it ran)."""
        arguments = [list(self.prompt), self.max_new_tokens] + ([] if self.eos is None else [self.eos])
        model = self.model
        with watched(model, str(self)) as passes:
            got = call(attempt, model, *arguments, case=str(self))
        return got, passes


@cache
def _model_with_end(family: str, context: int, end: int) -> PreTrainedModel:
    model = copy.deepcopy(tiny_model(family, context=context))
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    return model


@contextmanager
def watched(model, case: str):
    """Record the forward passes, and explain a wrong input or a wrong argmax before PyTorch fails on it."""
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: _refuse_wrong_input(args, kwargs, case), with_kwargs=True
    )
    try:
        with watch_forwards(model) as passes:
            yield passes
    except (ValueError, RuntimeError) as error:
        if "can be converted to" not in str(error) and "cannot be converted to" not in str(error):
            raise
        raise Mistake(
            f"your code converts a tensor with several elements to a single value ({error}).",
            case=case,
            idea="The logits have shape [1, tokens, vocabulary]. First take the row of the last position, then its "
            "argmax.",
        ) from error
    finally:
        hook.remove()


def _refuse_wrong_input(args: tuple, kwargs: dict, case: str) -> None:
    if any(isinstance(argument, Cache) for argument in args[1:]):
        raise Mistake(
            "the cache was passed to the model as a positional argument; most models expect something else there.",
            case=case,
            idea="Pass the cache by keyword: `past_key_values=cache`.",
        )
    ids = args[0] if args else kwargs.get("input_ids")
    if ids is not None and not isinstance(ids, torch.Tensor):
        raise Mistake(
            f"the model was called with {type(ids).__name__} {short(ids)}; it needs a tensor.",
            case=case,
            idea="`torch.tensor([...])` makes one from a list of rows. Here there is one row.",
        )
    if ids is not None and ids.dim() != 2:
        raise Mistake(
            f"the model was called with input_ids of shape {list(ids.shape)}; it needs [rows, tokens].",
            case=case,
            idea="One request is one row: put the list of token ids inside another list.",
        )


# Smallest first. The tiny qwen2 model continues 5, 17, 42 with 74, 91, 74, 4, 82, ...
# and 5, 17, 42, 17 with 76, 78, 38, 63, 0, ...
PROMPT = (5, 17, 42)
GREEDY_CASES = (
    Case(PROMPT, 1),
    Case(PROMPT, 2),
    Case(PROMPT, 5),
    Case((5,), 3),
    Case(PROMPT, 6, eos=4),  # the end token comes before the limit
    Case(PROMPT, 6, eos=74),  # it is the very first new token
    Case(PROMPT, 4, eos=4),  # it is the last one that the limit allows
    Case(PROMPT, 6, eos=17),  # it is in the prompt, and the model doesn't write it
    Case(PROMPT, 4, eos=42),  # it is the last token of the prompt
    Case((*PROMPT, 17), 8, eos=0),  # an id that is falsy in Python
    Case((*PROMPT, 17), 8),  # the same without an end token: token 0 ends nothing
    Case(PROMPT, 2, model_end=74),  # nor does the model's own end token
    Case(tuple(range(3, 60, 4)), 20),
    Case(tuple(i * 7 % 97 for i in range(150)), 40),  # longer than any window or limit that a loop may have
    Case((9, 8, 7, 6, 5), 12, family="gpt2"),
    Case((9, 8, 7, 6, 5), 12, family="llama"),
    Case(tuple(i * 24 % 97 for i in range(257)), 1, context=512),  # the first token decides
)


@cache
def _reference_answer(case: Case) -> tuple[int, ...]:
    return tuple(greedy_without_cache(case.model, case.prompt, case.max_new_tokens, case.eos))


def prompt_tokens_kept(got: list[int], case: Case) -> int:
    """How many tokens of the prompt the answer begins with, if the right answer follows them; else 0."""
    kept = len(got) - len(case.expected())
    return kept if 0 < kept < len(case.prompt) and got == [*case.prompt[-kept:], *case.expected()] else 0


def name_wrong_ends(got: list[int], case: Case, attempt, too_few: str = "", one_too_many: str = "") -> None:
    """Raise if the answer begins or ends in the wrong place. `too_few` follows the count of missing tokens, and
    `one_too_many` a surplus of one."""
    expected, prompt = case.expected(), list(case.prompt)
    what = f"the answer should be {short(expected)}; yours is {marked(expected, got)}."

    def refuse(idea: str) -> None:
        raise Mistake(what, case=str(case), idea=idea)

    if got == prompt + expected:
        refuse("You seem to return the prompt too. Return only the new tokens.")
    if kept := prompt_tokens_kept(got, case):
        which = "token" if kept == 1 else f"{kept} tokens"
        refuse(
            f"It begins with the last {which} of the prompt. Return only the new tokens: those from index "
            "`len(prompt_ids)` on."
        )
    if case.eos is not None and case.eos in expected:
        if got == expected[:-1]:
            refuse(f"The end token, {case.eos}, is missing. It is part of the answer: append it, then stop.")
        if len(got) > len(expected) and got[: len(expected)] == expected and case.eos == 0:
            refuse(
                "The end token is 0 here, which is falsy in Python. Compare with `token == eos_token_id`; don't test "
                "`if eos_token_id`."
            )
        if len(got) > len(expected) and got[: len(expected)] == expected:
            when = "as the first new token" if len(expected) == 1 else f"as new token {len(expected)}"
            refuse(f"The end token, {case.eos}, came {when}. Stop there: what follows isn't part of the answer.")
    if case.eos == prompt[-1] and not got:
        refuse(
            f"The *prompt* ends with the end token, {case.eos}, and you return before the first pass. Look for the end "
            "token "
            "only after appending a new token."
        )
    if case.eos in prompt and got == expected[: len(got)]:
        refuse(
            f"You seem to stop because the *prompt* contains the end token, {case.eos}. Only a new token can end the "
            "answer."
        )
    if len(got) < len(expected) and got == expected[: len(got)]:
        if case.eos is None and got and got[-1] == case.model_end:
            refuse(
                f"`eos_token_id` is None here, so only the limit ends the answer. {got[-1]} is the end token in the "
                "model's configuration; do you replace None by it? Compare only with the argument."
            )
        probe = replace(case, max_new_tokens=7, eos=None)
        length = len(probe.run(attempt)[0])
        if length == max(7 - len(prompt), 0):
            refuse(
                f"You seem to count the prompt's {len(prompt)} tokens too. max_new_tokens limits only the *new* tokens."
            )
        if case.eos is None and got and got[-1] == 0:
            refuse(
                "`eos_token_id` is None here, so only the limit ends the answer, but yours stops at token 0. Do you "
                "replace None by 0? Compare with `token == eos_token_id`, which is never true for None."
            )
        missing = len(expected) - len(got)
        if case.eos is None and missing > 1 and got:
            too_few = f" Without an end token, only that limit ends the answer. What ended your loop after {got[-1]}?"
        refuse(f"{number_of_tokens(missing)} too few: max_new_tokens is {case.max_new_tokens}.{too_few}")
    if len(got) > len(expected) and got[: len(expected)] == expected:
        surplus = len(got) - len(expected)
        if surplus > 1 and case.eos is not None:
            why = "An answer ends at the limit or at the end token, whichever comes first. Does your loop check both?"
        else:
            why = "Does your loop check the length before or after appending a token?"
            why += one_too_many if surplus == 1 else ""
        refuse(f"{number_of_tokens(surplus)} too many: max_new_tokens is {case.max_new_tokens}. {why}")


def refuse_memory(case: Case, attempt) -> None:
    """Raise if a second, equal call gives a longer answer: something is kept between calls."""
    first, second = (list(case.run(attempt)[0]) for _ in range(2))
    if not case.run(attempt)[1] and first:
        raise Mistake(
            f"your answer is {short(first)}, and it took no forward pass.",
            case=str(case),
            idea="You seem to return an answer from an earlier call. Another limit, end token or model gives another "
            "answer: compute it anew in every call.",
        )
    if len(second) > len(first) and second[: len(first)] == first:
        raise Mistake(
            f"two equal calls gave different answers: {short(first)}, then {short(second)}.",
            case=str(case),
            idea="Something is kept from one call to the next. A list as a default argument, such as `new=[]`, is "
            "made only once. Make it inside the function.",
        )


def first_wrong_index(got: list[int], case: Case) -> int:
    """The index of the first wrong token; the length of the shorter answer if one merely continues the other."""
    expected = case.expected()
    return next((i for i, pair in enumerate(zip(got, expected)) if pair[0] != pair[1]), min(len(got), len(expected)))


def first_difference(got: list[int], case: Case) -> Mistake:
    expected, index = case.expected(), first_wrong_index(got, case)
    return Mistake(
        f"the answer should be {short(expected)}; yours is {marked(expected, got)}.",
        case=str(case),
        idea=f"They differ from new token {index + 1} on. What was the input of the pass that produced it?",
    )


def refuse_extra_passes(got: list[int], passes, case: Case, advice: str) -> None:
    """The tokens are right. Raise if there were more passes than tokens."""
    if len(passes) <= len(got):
        return
    extra = len(passes) - len(got)
    if extra > 1 and len(passes) == case.max_new_tokens:
        idea = (
            f"You seem to compute all {case.max_new_tokens} tokens and cut the answer at the end token afterwards. "
            "Look for the end token after each pass, and stop there."
        )
    else:
        what = "one extra token and throw it" if extra == 1 else f"{extra} extra tokens and throw them"
        idea = f"You seem to compute {what} away. {advice}"
    raise Mistake(
        f"the tokens are right, but {number_of_tokens(len(got))} should take {len(got)} forward "
        f"pass{'es' * (len(got) > 1)}; yours made {len(passes)}.",
        case=str(case),
        idea=idea,
    )


def number_of_tokens(count: int) -> str:
    return f"{count} token" + ("" if count == 1 else "s")


def count_rows(count: int) -> str:
    return f"{count} row" + ("" if count == 1 else "s")


def as_token_list(got, case: str) -> list[int]:
    if got is None:
        raise Mistake(
            "your function returned None; it should return a list of ints.",
            case=case,
            idea="Does it end with a `return`?",
        )
    if isinstance(got, torch.Tensor):
        raise Mistake(
            f"your function returned a tensor of shape {list(got.shape)}; it should return a list of ints.",
            case=case,
            idea="Collect the tokens in a list, each as a Python int: `int(...)`.",
        )
    if not isinstance(got, list):
        raise Mistake(
            f"your function returned {type(got).__name__} {short(got)}; it should return a list of ints.",
            case=case,
            idea="A function with a `yield` in it returns a generator. Collect the tokens in a list and `return` it."
            if isinstance(got, Generator)
            else "",
        )
    for index, token in enumerate(got):
        if isinstance(token, (list, tuple)):
            raise Mistake(
                f"element {index} of your answer is {type(token).__name__} {short(token)}; it should be an int.",
                case=case,
                idea="There is one pair of brackets too many. The `tolist()` of a tensor of shape [1] is a list; "
                "`.item()` or `int(...)` gives the int. Or did you put the whole answer into another list?"
                if len(got) == 1
                else "The `tolist()` of a tensor of shape [1] is a list. `.item()` or `int(...)` gives the int.",
            )
        if isinstance(token, torch.Tensor) or not hasattr(token, "__index__"):
            raise Mistake(
                f"element {index} of your answer is {type(token).__name__} {short(token)}; it should be an int.",
                case=case,
                idea="`argmax()` returns a tensor. `int(...)` converts it.",
            )
    return [operator.index(token) for token in got]
