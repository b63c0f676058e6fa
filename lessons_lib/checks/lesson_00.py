"""Judges the exercises of lesson 00 on tiny random models, whose every token differs from the one before."""

import copy
import operator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from transformers import GPT2Config, LlamaConfig, Qwen2Config, Qwen3Config

from lessons_lib.checks.exercise import Choice, Exercise, Mistake, Question, call, short
from lessons_lib.generate import greedy_without_cache, prefill
from lessons_lib.model import cache_bytes_per_token, kv_head_size
from lessons_lib.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.watch import watch_forwards


@dataclass(frozen=True)
class Case:
    """One call of a greedy loop."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    eos: int | None = None
    family: str = "qwen2"

    def __str__(self) -> str:
        end = "" if self.eos is None else f", eos_token_id={self.eos}"
        return f"prompt_ids={list(self.prompt)}, max_new_tokens={self.max_new_tokens}{end}, on a tiny {self.family} model."

    def expected(self) -> list[int]:
        return list(_reference_answer(self))

    def run(self, attempt):
        """(what the attempt returned, the forward passes it made)"""
        arguments = [list(self.prompt), self.max_new_tokens] + ([] if self.eos is None else [self.eos])
        model = tiny_model(self.family)
        with _watched(model, str(self)) as passes:
            got = call(attempt, model, *arguments, case=str(self))
        return got, passes


@contextmanager
def _watched(model, case: str):
    """Records the forward passes, and names an input or an argmax of the wrong shape before PyTorch complains of it."""
    hook = model.register_forward_pre_hook(lambda module, args, kwargs: _refuse_wrong_shape(args, kwargs, case), with_kwargs=True)
    try:
        with watch_forwards(model) as passes:
            yield passes
    except (ValueError, RuntimeError) as error:
        if "can be converted to" not in str(error) and "cannot be converted to" not in str(error):
            raise
        raise Mistake(
            f"your code asks for one number of a tensor that holds several ({error}).",
            case=case,
            idea="The logits have shape [1, tokens, vocabulary]. Take the row of the last position first, then the argmax of that row.",
        ) from error
    finally:
        hook.remove()


def _refuse_wrong_shape(args: tuple, kwargs: dict, case: str) -> None:
    ids = args[0] if args else kwargs.get("input_ids")
    if ids is not None and not isinstance(ids, torch.Tensor):
        raise Mistake(
            f"the model was called with {type(ids).__name__} {short(ids)}; it takes a tensor.",
            case=case,
            idea="`torch.tensor([...])` makes one of a list of rows. Here there is one row.",
        )
    if ids is not None and ids.dim() != 2:
        raise Mistake(
            f"the model was called with input_ids of shape {list(ids.shape)}; it takes [rows, tokens].",
            case=case,
            idea="One request is one row: put the token ids into a list, and that list into a list.",
        )


# Smallest first. The tiny qwen2 model continues 5, 17, 42 with 74, 91, 74, 4, 82, ... and 5, 17, 42, 17 with 76, 78, 38, 63, 0, ...
PROMPT = (5, 17, 42)
GREEDY_CASES = (
    Case(PROMPT, 1),
    Case(PROMPT, 2),
    Case(PROMPT, 5),
    Case((5,), 3),
    Case(PROMPT, 6, eos=4),  # the end token comes before the cap
    Case(PROMPT, 6, eos=74),  # it is the very first new token
    Case(PROMPT, 4, eos=4),  # it is the last one that the cap allows
    Case(PROMPT, 6, eos=17),  # it stands in the prompt, and does not come
    Case((*PROMPT, 17), 8, eos=0),  # an id that Python takes for False
    Case(tuple(range(3, 60, 4)), 20),
    Case((9, 8, 7, 6, 5), 12, family="gpt2"),
    Case((9, 8, 7, 6, 5), 12, family="llama"),
)


@lru_cache(maxsize=None)
def _reference_answer(case: Case) -> tuple[int, ...]:
    return tuple(greedy_without_cache(tiny_model(case.family), case.prompt, case.max_new_tokens, case.eos))


# 00.1


def test_greedy_without_cache(attempt) -> None:
    for case in GREEDY_CASES:
        got, passes = case.run(attempt)
        got = _as_token_list(got, str(case))
        if got != case.expected():
            _name_wrong_position(got, case)
            _name_wrong_ends(got, case, attempt)
            _name_wrong_input_without_cache(passes, case)
            raise _first_difference(got, case)
        if any(forward.cached for forward in passes):
            raise Mistake(
                f"the tokens are right, but pass 2 was given a cache of {passes[1].cached} tokens.",
                case=str(case),
                idea="This exercise computes the whole sequence in every pass, to see what that costs. The cache comes in 00.2 and 00.3.",
            )


def _name_wrong_input_without_cache(passes, case: Case) -> None:
    fed = list(case.prompt)
    for number, (forward, token) in enumerate(zip(passes, case.expected()), start=1):
        if forward.input_ids != [fed]:
            what = f"pass {number} should feed {len(fed)} tokens, {fed}; yours fed {short(forward.input_ids[0])}."
            if number > 1 and forward.input_ids == passes[0].input_ids:
                idea = "You seem to feed the prompt alone each time. Append every new token to the sequence before the next pass."
            elif number > 1 and forward.tokens == 1:
                idea = (
                    "You seem to feed only the last token. Without a cache the model remembers nothing from one call to the next: "
                    "feed the whole sequence."
                )
            elif number > 1 and fed[-1] in forward.input_ids[0] and forward.input_ids[0][-1] != fed[-1]:
                idea = "The newest token belongs at the end of the sequence: the prompt, then the new tokens in order."
            else:
                idea = "Each pass feeds the prompt and, behind it, all new tokens so far."
            raise Mistake(what, case=str(case), idea=idea)
        fed.append(token)


# 00.2


def test_decode_step(attempt) -> None:
    for prompt, family in (((2,), "qwen2"), (PROMPT, "qwen2"), (PROMPT, "gpt2"), (PROMPT, "llama")):
        model = tiny_model(family)
        answer = Case(prompt, 5, family=family).expected()
        token, cache = prefill(model, list(prompt))
        for number, expected in enumerate(answer[1:], start=1):
            held = len(prompt) + number - 1
            case = f"the cache holds {_tokens(held)}, {[*prompt, *answer][:held]}; last_token={token}, on a tiny {family} model."
            before = copy.deepcopy(cache)
            with _watched(model, case) as passes:
                got = call(attempt, model, token, cache, case=case)
            got = _as_token(got, case)
            _name_wrong_step(got, expected, token, before, cache, passes, model, case)
            token = expected


def _name_wrong_step(got, expected, token, before, cache, passes, model, case) -> None:
    held, now = before.get_seq_length(), cache.get_seq_length()
    if len(passes) > 1:
        raise Mistake(
            f"a decode step is one forward pass; yours made {len(passes)}.", case=case, idea="Call the model once, with `last_token` alone."
        )
    fed = passes[0].input_ids if passes else [[token]]
    if len(fed) == 1 and len(fed[0]) > 1:
        raise Mistake(
            f"the pass fed {len(fed[0])} tokens, {short(fed[0])}; it should feed 1: `last_token`, {token}.",
            case=case,
            idea="The cache already holds the keys and values of all tokens before it. Feeding them again adds them a second time.",
        )
    if fed != [[token]]:
        raise Mistake(
            f"the pass fed {short(fed)}; it should feed [[{token}]], `last_token` as one row of one token.",
            case=case,
            idea="The input of a decode step is the token that the step before produced.",
        )
    if now == held:
        copied = passes and passes[0].cached == held
        raise Mistake(
            f"after the step the cache should hold {_tokens(held + 1)}; it still holds {held}.",
            case=case,
            idea="You seem to give the model a copy of the cache. Pass the cache itself: the next step needs what this one adds to it."
            if copied
            else "You seem to call the model without this cache. Pass `past_key_values=cache`: the model reads the old keys and values from "
            "it and adds those of `last_token`.",
        )
    if now != held + 1:
        raise Mistake(
            f"after the step the cache should hold {_tokens(held + 1)}; it holds {now}.",
            case=case,
            idea="A decode step adds the key and value of `last_token` and removes nothing.",
        )
    if got == expected:
        return
    if got == token:
        raise Mistake(
            f"your step returned {got}, the token it was given; it should return {expected}.",
            case=case,
            idea="The last token goes in. What comes out are logits for the token *after* it: take the largest.",
        )
    shifted = model(torch.tensor([[token]]), past_key_values=copy.deepcopy(before), position_ids=torch.tensor([[0]])).logits[0, -1]
    if got == int(shifted.argmax()):
        raise Mistake(
            f"the token should be {expected}; yours is {got}, which comes out when `last_token` is placed at position 0.",
            case=case,
            idea=f"Its position is {held}, behind the {_tokens(held)} of the cache. Leave `position_ids` out: the model counts from the cache.",
        )
    logits = model(torch.tensor([[token]]), past_key_values=copy.deepcopy(before)).logits[0, -1]
    rank = int((logits > logits[got]).sum())
    if rank == VOCAB_SIZE - 1:
        raise Mistake(f"the token should be {expected}; yours is {got}, the one with the *smallest* logit.", case=case, idea="Greedy takes the largest.")
    raise Mistake(
        f"the token should be {expected}; yours is {got}, number {rank + 1} of {VOCAB_SIZE} by its logit.",
        case=case,
        idea="Feed `last_token` with the cache, nothing else, and take the token with the largest logit.",
    )


# 00.3


def test_greedy_with_cache(attempt) -> None:
    for case in GREEDY_CASES:
        got, passes = case.run(attempt)
        got = _as_token_list(got, str(case))
        if got != case.expected():
            _name_wrong_input_with_cache(passes, case)
            _name_wrong_first_token(got, case)
            _name_wrong_ends(got, case, attempt)
            raise _first_difference(got, case)
        _name_too_much_work(passes, case)


def _name_wrong_input_with_cache(passes, case: Case) -> None:
    """The first pass that fed something else than the prompt, or than the newest token."""
    sequence = [*case.prompt, *case.expected()]
    for number, forward in enumerate(passes[: len(case.expected())]):
        fed = forward.input_ids[0]
        if number == 0 or fed == [sequence[len(case.prompt) + number - 1]]:
            continue
        newest = sequence[len(case.prompt) + number - 1]
        what = f"decode step {number} fed {_tokens(len(fed))}, {short(fed)}; it should feed 1: the last one, {newest}."
        if len(fed) > 1 and forward.cached:
            idea = f"The cache already holds {forward.cached} tokens. Fed again, they are stored and attended to twice."
        elif len(fed) > 1:
            idea = "You seem to compute the whole sequence again. Keep the cache that `prefill` returns and hand it to every `decode_step`."
        elif fed[0] == case.prompt[-1] and number == 1:
            idea = "That is the last token of the prompt, which the cache holds already. Feed the token that `prefill` returned."
        elif number > 1 and fed == passes[number - 1].input_ids[0]:
            idea = "You seem to feed the same token in every step. What a step returns is what the next one feeds."
        else:
            idea = "The input of a decode step is the token that the step before produced."
        raise Mistake(what, case=str(case), idea=idea)


def _name_wrong_first_token(got: list[int], case: Case) -> None:
    expected = case.expected()
    further = replace(case, max_new_tokens=case.max_new_tokens + 1, eos=None).expected()
    if got and got == further[1 : len(got) + 1]:
        raise Mistake(
            f"the answer should be {short(expected)}; yours is {short(got)}: the first token is missing.",
            case=str(case),
            idea="`prefill` returns the cache *and* the first new token. That token belongs to the answer.",
        )
    if got[:2] == expected[:1] * 2 and got[1:3] == expected[:2][: len(got) - 1]:
        raise Mistake(
            f"the answer should be {short(expected)}; yours is {short(got)}: the first token stands there twice.",
            case=str(case),
            idea="Append each token once: the one from `prefill` before the loop, and in the loop the one from `decode_step`.",
        )


def _name_too_much_work(passes, case: Case) -> None:
    """The tokens are right. Were they had for one prefill and one decode step for each further token?"""
    wanted = len(case.expected())
    if not passes:  # the attempt calls parts of the model: nothing to count
        return
    if any(forward.tokens > 1 and forward.cached == 0 for forward in passes[1:]):
        raise Mistake(
            f"the tokens are right, but pass 2 computed {passes[1].tokens} tokens; with a cache it computes 1.",
            case=str(case),
            idea="You seem to prefill again for every token, each time into a new cache. Prefill once, then feed one token a step."
            if passes[1].keeps_cache
            else "You seem to compute the whole sequence again in every pass, without a cache. Prefill once, then feed one token a step.",
        )
    if passes[0].tokens < len(case.prompt):
        raise Mistake(
            f"the tokens are right, but the first pass computed {passes[0].tokens} of the prompt's {len(case.prompt)} tokens.",
            case=str(case),
            idea="The whole prompt is known: `prefill` computes it in one pass.",
        )
    if len(passes) > wanted:
        raise Mistake(
            f"the tokens are right, but {_tokens(wanted)} should take {wanted} forward pass{'es' * (wanted > 1)}; "
            f"yours made {len(passes)}.",
            case=str(case),
            idea="You seem to compute one token more and throw it away. `prefill` gives the first token, so n tokens need n - 1 decode steps: "
            "look whether to stop *before* the next step.",
        )


# What 00.1 and 00.3 have in common


def _name_wrong_position(got: list[int], case: Case) -> None:
    """The first token: right, or read from another position than the last."""
    if not got or got[0] == case.expected()[0] or got[: len(case.prompt)] == list(case.prompt):
        return
    logits = tiny_model(case.family)(input_ids=torch.tensor([case.prompt])).logits[0]
    last = len(case.prompt) - 1
    by_position = logits.argmax(dim=-1).tolist()
    what = f"the first new token should be {case.expected()[0]}; yours is {got[0]}."
    if got[0] >= VOCAB_SIZE:
        idea = (
            f"The vocabulary has {VOCAB_SIZE} tokens. You seem to take the argmax over all positions at once; take it over the last "
            "position alone, `logits[0, -1]`."
        )
    elif got[0] in by_position[:last]:
        position = by_position.index(got[0])
        which = "the first" if position == 0 else "the one before the last" if position == last - 1 else "not the last"
        idea = (
            f"You seem to read the logits of position {position}, {which}. The logits of a position predict the token *after* it, "
            f"so the next token stands at the last position, {last}."
        )
    elif got[0] == int(logits[-1].argmin()):
        idea = "You seem to take the token with the smallest logit. Greedy takes the largest."
    else:
        rank = int((logits[-1] > logits[-1, got[0]]).sum()) + 1
        idea = f"By the logits of the last position this token is number {rank} of {VOCAB_SIZE}. Greedy takes number 1, every time."
    raise Mistake(what, case=str(case), idea=idea)


def _name_wrong_ends(got: list[int], case: Case, attempt) -> None:
    """Answers that begin or end in the wrong place."""
    expected, prompt = case.expected(), list(case.prompt)
    what = f"the answer should be {short(expected)}; yours is {short(got)}."

    def refuse(idea: str) -> None:
        raise Mistake(what, case=str(case), idea=idea)

    if got == prompt + expected:
        refuse("You seem to return the prompt too. Return the new tokens alone.")
    if case.eos is not None and case.eos in expected:
        if got == expected[:-1]:
            refuse(f"The end token, {case.eos}, is missing. It is part of the answer: append it, then stop.")
        if len(got) > len(expected) and got[: len(expected)] == expected and case.eos == 0:
            refuse("The end token is 0 here, which Python takes for False. Write `token == eos_token_id`, without `if eos_token_id` before it.")
        if len(got) > len(expected) and got[: len(expected)] == expected:
            when = "as the first new token" if len(expected) == 1 else f"as new token {len(expected)}"
            refuse(f"The end token, {case.eos}, came {when}. Stop there: what follows belongs to no story.")
    if case.eos in prompt and got == expected[: len(got)]:
        refuse(f"You seem to stop because the *prompt* holds the end token, {case.eos}. Only a new token can end the answer.")
    if len(got) < len(expected) and got == expected[: len(got)]:
        probe = replace(case, max_new_tokens=7, eos=None)
        length = len(probe.run(attempt)[0])
        if length == max(7 - len(prompt), 0):
            refuse(f"You seem to count the prompt's {len(prompt)} tokens too. max_new_tokens is the number of *new* tokens.")
        refuse(f"{_tokens(len(expected) - len(got))} too few: max_new_tokens is {case.max_new_tokens}.")
    if len(got) > len(expected) and got[: len(expected)] == expected:
        refuse(f"{_tokens(len(got) - len(expected))} too many: max_new_tokens is {case.max_new_tokens}. Does your loop test the length before it adds a token, or after?")


def _first_difference(got: list[int], case: Case) -> Mistake:
    expected = case.expected()
    index = next((i for i, pair in enumerate(zip(got, expected)) if pair[0] != pair[1]), min(len(got), len(expected)))
    return Mistake(
        f"the answer should be {short(expected)}; yours is {short(got)}.",
        case=str(case),
        idea=f"They differ from new token {index + 1} on. What did you feed to the pass that produced it?",
    )


def _tokens(count: int) -> str:
    return f"{count} token" + ("" if count == 1 else "s")


def _as_token_list(got, case: str) -> list[int]:
    if got is None:
        raise Mistake("your function returned None; it should return a list of ints.", case=case, idea="Is there a `return` at its end?")
    if isinstance(got, torch.Tensor):
        raise Mistake(
            f"your function returned a tensor of shape {list(got.shape)}; it should return a list of ints.",
            case=case,
            idea="Collect the tokens in a list, each as a plain number: `int(...)`.",
        )
    if not isinstance(got, list):
        raise Mistake(f"your function returned {type(got).__name__} {short(got)}; it should return a list of ints.", case=case)
    for index, token in enumerate(got):
        if isinstance(token, torch.Tensor) or not hasattr(token, "__index__"):
            raise Mistake(
                f"element {index} of your answer is {type(token).__name__} {short(token)}; it should be an int.",
                case=case,
                idea="`argmax()` gives a tensor. `int(...)` makes a number of it.",
            )
    return [operator.index(token) for token in got]


def _as_token(got, case: str) -> int:
    if got is None:
        raise Mistake("your step returned None; it should return the next token, an int.", case=case, idea="Is there a `return` at its end?")
    if isinstance(got, (tuple, list)):
        raise Mistake(
            f"your step returned a {type(got).__name__} of {len(got)}; it should return the next token alone, an int.",
            case=case,
            idea="The cache need not be returned: the model changes it in place.",
        )
    if isinstance(got, torch.Tensor) and got.numel() == 1:
        raise Mistake(f"your step returned a tensor that holds {got.item()}; it should return an int.", case=case, idea="`int(...)` makes a number of it.")
    if isinstance(got, torch.Tensor):
        raise Mistake(
            f"your step returned a tensor of shape {list(got.shape)}; it should return the next token, an int.",
            case=case,
            idea="Logits are scores, one for each token of the vocabulary. The next token is the index of the largest: `argmax`.",
        )
    if not hasattr(got, "__index__"):
        raise Mistake(f"your step returned {type(got).__name__} {short(got)}; it should return the next token, an int.", case=case)
    return operator.index(got)


# 00.4


def _llama(**changes) -> LlamaConfig:
    shape = dict(num_hidden_layers=1, hidden_size=8, num_attention_heads=1, num_key_value_heads=1, intermediate_size=16, vocab_size=32)
    return LlamaConfig(**(shape | changes))


# (configuration, bytes_per_number, in words), smallest first; each brings one rule more into play.
BYTES_CASES = (
    (_llama(), 1, "one layer, one KV head of size 8, 1 byte a number."),
    (_llama(), 2, "one layer, one KV head of size 8, 2 bytes a number (bfloat16)."),
    (_llama(num_hidden_layers=3), 2, "3 layers, one KV head of size 8, 2 bytes a number."),
    (_llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=4), 2, "one layer, 4 KV heads of size 8, 2 bytes a number."),
    (
        _llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=2),
        2,
        "one layer, 4 query heads over 2 KV heads of size 8 (grouped-query attention), 2 bytes a number.",
    ),
    (
        _llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16),
        2,
        "one layer, hidden size 32, 4 query heads over 2 KV heads, and head_dim=16 stated in the configuration, 2 bytes a number.",
    ),
    (GPT2Config(n_layer=2, n_head=3, n_embd=48), 4, "GPT-2 with 2 layers and 3 heads of size 16, 4 bytes a number."),
    (
        Qwen2Config(num_hidden_layers=5, hidden_size=96, num_attention_heads=6, num_key_value_heads=3),
        4,
        "Qwen2 with 5 layers, 6 query heads over 3 KV heads of size 16, 4 bytes a number.",
    ),
    (
        Qwen3Config(num_hidden_layers=3, hidden_size=96, num_attention_heads=6, num_key_value_heads=2, head_dim=40),
        2,
        "Qwen3 with 3 layers, 6 query heads over 2 KV heads of size 40, 2 bytes a number.",
    ),
)


def test_cache_bytes_per_token(attempt) -> None:
    for config, size, case in BYTES_CASES:
        try:
            got = call(attempt, config, size, case=case)
        except AttributeError as error:
            raise Mistake(
                f"your code raised AttributeError: {error}.",
                case=case,
                idea="Families name the parts of their configurations differently. `kv_head_size(config)` gives KV heads and head size for all.",
            ) from error
        _refuse_no_number(got, case)
        expected = cache_bytes_per_token(config, size)
        if got != expected:
            raise Mistake(f"{expected:,} bytes a token; yours says {_plain(got)}.", case=case, idea=_why_bytes(got, expected, config, size, attempt))
    config, _, case = BYTES_CASES[0]
    got = call(attempt, config, case=case)
    if got != cache_bytes_per_token(config):
        raise Mistake(
            f"without `bytes_per_number` it should be {cache_bytes_per_token(config)} bytes a token; yours says {_plain(got)}.",
            case="one layer, one KV head of size 8, called without bytes_per_number.",
            idea="The default is 4, the bytes of a float32.",
        )


def _why_bytes(got, expected: int, config, size: int, attempt) -> str:
    kv_heads, head_dim = kv_head_size(config)
    layers = config.num_hidden_layers
    # hidden_size and (query heads) x (head size) are the same unless the configuration states head_dim.
    if config.num_attention_heads > kv_heads and got == _bytes(config, size, config.num_attention_heads, head_dim):
        stated = _llama(hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
        if attempt(stated, 1) == _bytes(stated, 1, 1, stated.hidden_size):
            return "You seem to count hidden_size numbers a layer. Count KV heads times their size: query heads share them, so here that is less."
        return "You seem to count the query heads. Only KV heads are stored; query heads share them."
    if got == _bytes(config, size, kv_heads, config.hidden_size // config.num_attention_heads):
        return "You seem to compute the head size as hidden_size // heads. This configuration states it: `head_dim`."
    if kv_heads > 1 and got * kv_heads == expected:
        return f"You seem to count one head. There are {kv_heads} KV heads, each with a key and a value."
    if got == 8 * expected:
        return "You seem to count bits. Count bytes: a bfloat16 has 2, a float32 has 4."
    if layers > 1 and got * layers == expected:
        return f"You seem to count one layer. The model has {layers}, and every layer keeps keys and values of its own."
    if size > 1 and got * size == expected:
        return f"You seem to count numbers, not bytes. Each number takes {size} here."
    if got * 2 == expected:
        return "You seem to count one number where there are two: a token leaves a key *and* a value in every layer."
    if got * size == expected * 4:
        return f"You seem to take 4 bytes a number. `bytes_per_number` is {size} here."
    if got == expected * config.max_position_embeddings:
        return "You seem to count the whole context. The question is about *one* token."
    return "Multiply: key and value (2) × layers × KV heads × size of a head × bytes a number."


def _bytes(config, size: int, heads: int, width: int) -> int:
    return 2 * config.num_hidden_layers * heads * width * size


def _refuse_no_number(got, case: str) -> None:
    if got is None:
        raise Mistake("your function returned None; it should return a number of bytes.", case=case, idea="Is there a `return` at its end?")
    if isinstance(got, (torch.Tensor, str, list, tuple, dict)) or not hasattr(got, "__mul__"):
        raise Mistake(f"your function returned {type(got).__name__} {short(got)}; it should return a number of bytes, an int.", case=case)


def _plain(number) -> str:
    return f"{number:,}"


EXERCISES = [
    Exercise(
        id="00.1",
        title="Greedy decoding without a cache",
        reference="lessons_lib.generate:greedy_without_cache",
        test=test_greedy_without_cache,
        hints=(
            "The model maps a sequence to logits, one row for each position. The row of the last position scores the token that comes next. "
            "Take the best, put it behind the sequence, and ask again.",
            "Copy the prompt into a list. In a loop: make a tensor of shape [1, length] from the list, call the model, take the argmax of the "
            "last position, append it. Leave the loop when there are max_new_tokens new tokens, or when the token just appended is eos_token_id.",
            "`logits = model(input_ids=torch.tensor([token_ids], device=model.device), use_cache=False).logits` has shape "
            "[1, length, vocabulary]; the next token is `int(logits[0, -1].argmax())`. At the end, `token_ids[len(prompt_ids):]` is the answer.",
        ),
    ),
    Exercise(
        id="00.2",
        title="One decode step",
        reference="lessons_lib.generate:decode_step",
        test=test_decode_step,
        hints=(
            "Everything the model needs to know of the older tokens is in the cache. Only one token is not in it yet: `last_token`.",
            "Make a tensor of shape [1, 1] that holds last_token. Call the model with it and with the cache. Return the argmax of the logits as an int.",
            "`model(input_ids=torch.tensor([[last_token]], device=model.device), past_key_values=cache).logits` has shape [1, 1, vocabulary]. "
            "The model itself adds the new key and value to `cache`.",
        ),
    ),
    Exercise(
        id="00.3",
        title="Greedy decoding with a cache",
        reference="lessons_lib.generate:greedy_with_cache",
        test=test_greedy_with_cache,
        hints=(
            "The prompt goes through the model once. After that each step feeds the one token that the step before produced.",
            "`prefill` returns the first new token and the cache. Begin the answer with that token. While the answer is shorter than max_new_tokens "
            "and its last token is not eos_token_id: make one decode step, append what it returns.",
            "`token, cache = prefill(model, prompt_ids)`, `new_tokens = [token]`, then "
            "`while len(new_tokens) < max_new_tokens and token != eos_token_id:` with `token = decode_step(model, token, cache)` and an append inside.",
        ),
    ),
    Exercise(
        id="00.4",
        title="Bytes of cache that one token takes",
        reference="lessons_lib.model:cache_bytes_per_token",
        test=test_cache_bytes_per_token,
        points=1,
        hints=(
            "Count what one token leaves behind in one layer, then count the layers, then the bytes of one number.",
            "In a layer a token leaves a key and a value for each KV head. A key has head_dim numbers, a value too. "
            "`config.num_hidden_layers` is the number of layers.",
            "`kv_heads, head_dim = kv_head_size(config)`. The product has five factors: 2, layers, kv_heads, head_dim, bytes_per_number.",
        ),
    ),
]

QUIZ = [
    Question(
        "The cache holds 20 tokens. What does the next decode step feed to the model?",
        (
            Choice("All 21 tokens, with the cache", "The 20 old ones are in the cache already. Fed again they would be stored, and attended to, a second time."),
            Choice("The newest token only", "It is the one token whose keys and values are not in the cache yet.", right=True),
            Choice("Nothing: the cache is enough", "The cache has the keys and values of the past. The query that reads them comes from the newest token."),
            Choice(
                "The 20th token, the last one in the cache",
                "The model has read that one: its logits gave the newest token. Fed again it would stand in the cache twice.",
            ),
        ),
    ),
    Question(
        "A prompt has 10 tokens. You want 5 new ones. How many tokens does the model compute with a cache?",
        (
            Choice("5", "The prompt has to be read too: prefill computes its 10 tokens."),
            Choice(
                "14",
                "Prefill computes 10 and gives the first new token. Four decode steps compute one token each. The fifth new token is chosen, but never read.",
                right=True,
            ),
            Choice("15", "The last new token is chosen and returned. Nobody needs its keys and values, so no pass computes it."),
            Choice("60", "That is the count without a cache: 10 + 11 + 12 + 13 + 14."),
        ),
    ),
    Question(
        "Why may keys and values be kept, while the text goes on?",
        (
            Choice("Because greedy decoding never takes a token back", "Sampling does not take tokens back either, but that is not the reason: a vector could still depend on later tokens."),
            Choice("Because the weights do not change", "True, but in a model in which tokens see later ones the same weights would give new keys at every step."),
            Choice(
                "Because a token sees only itself and earlier tokens",
                "What is appended comes later, so it changes nothing for the tokens before it, in any layer.",
                right=True,
            ),
        ),
    ),
    Question(
        "A decode step does about 2 operations for each weight it fetches. What would make it faster on a machine where it is memory-bound?",
        (
            Choice("Arithmetic units that are twice as fast", "They wait for memory already. They would wait longer."),
            Choice("Weights of half the size, such as bfloat16 for float32", "Half the bytes have to be moved for the same operations, and moving bytes is what takes the time.", right=True),
            Choice("A shorter prompt", "It makes the cache a little smaller. Nearly all bytes of the step are weights."),
            Choice("Computing logits for fewer positions", "There is only one position in a decode step."),
        ),
    ),
    Question(
        "Two models differ in one thing: the first has 32 KV heads, the second 8. Both have 32 query heads. How do their caches compare?",
        (
            Choice("Equal: both have 32 query heads", "Queries are not kept. Only keys and values are, and those belong to KV heads."),
            Choice("The second one's has a quarter of the bytes", "Bytes grow with the number of KV heads; four query heads share each of them.", right=True),
            Choice("The second one's has a sixteenth of the bytes", "Keys and values both shrink to a quarter; so does their sum. The two factors do not multiply."),
        ),
    ),
    Question(
        "You forget to hand the cache to the decode step, and feed the last token only. What happens?",
        (
            Choice("PyTorch raises an error: the shapes do not fit", "One token is a perfectly good input. Nothing tells you that the past is missing."),
            Choice(
                "The model goes on as if that token were the whole text",
                "Without a cache it sees one token at position 0. The text derails, and no error says so: hence the comparison with `generate`.",
                right=True,
            ),
            Choice("The text is right, only slower", "Slower would be the whole sequence without a cache. Here the whole past is missing."),
        ),
    ),
]
