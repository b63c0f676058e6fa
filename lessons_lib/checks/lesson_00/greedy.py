"""00.1 and 00.3, the greedy loops: what each pass feeds, what the cache holds before it, and where the answer ends."""

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedModel

from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.checks.diagnosis import Known, Task, Watch, is_tensor, mistakes
from lessons_lib.checks.diagnosis.own_passes import own_passes
from lessons_lib.checks.exercise import Exercise, short
from lessons_lib.models.tiny_models import tiny_model


class Case(NamedTuple):
    prompt: list[int]
    limit: int
    end: int | None = None
    family: str = "qwen2"
    own_end: int | None = None  # the end token in the model's configuration, which the answer must not depend on


@cache
def model_of(family: str, own_end: int | None) -> PreTrainedModel:
    model = tiny_model(family)
    if own_end is not None:
        model = copy.deepcopy(model)
        model.config.eos_token_id = model.generation_config.eos_token_id = own_end
    return model


PROMPT = [5, 17, 42]


FED, CACHED = "the inputs of the passes", "the number of cached tokens before each pass"


def cases() -> Iterator[Case]:
    """The tiny qwen2 model continues 5, 17, 42 with 74, 91, 74, 4, 82, ... and 5, 17, 42, 17 with 76, 78, 38, 63, 0."""
    yield Case(PROMPT, 1)
    yield Case(PROMPT, 2)
    yield Case(PROMPT, 5)
    yield Case([5], 3)
    yield Case(PROMPT, 6, end=4)  # the end token comes before the limit
    yield Case(PROMPT, 6, end=74)  # it is the very first new token
    yield Case(PROMPT, 4, end=4)  # it is the last one that the limit allows
    yield Case(PROMPT, 6, end=17)  # it is in the prompt, and the model doesn't write it
    yield Case(PROMPT, 4, end=42)  # it is the last token of the prompt
    yield Case([*PROMPT, 17], 8, end=0)  # an id that is falsy in Python
    yield Case([*PROMPT, 17], 8)  # the same without an end token: token 0 ends nothing
    yield Case(PROMPT, 2, own_end=74)
    yield Case([9, 8, 7, 6, 5], 9, family="gpt2")
    yield Case([9, 8, 7, 6, 5], 9, family="llama")
    yield Case([index * 7 % 97 for index in range(300)], 2)  # longer than any window that a loop may have
    yield Case(list(range(3, 40, 4)), 34)  # than any limit


def run(attempt: Any, case: Case, watch: Watch) -> None:
    model = model_of(case.family, case.own_end)
    arguments = [list(case.prompt), case.limit] + ([] if case.end is None else [case.end])
    with torch.random.fork_rng(devices=()), own_passes(model, 2 * (len(case.prompt) + case.limit)) as passes:
        torch.manual_seed(0)  # one that samples does so in the same way twice

        def look() -> dict[str, Any]:
            return {
                FED: [each.token_ids for each in passes],
                CACHED: [each.cached for each in passes],
            }

        watch("the call", attempt, model, *arguments, look=look, returns=plain_tokens, subject="the answer")


def feed(model: Any, token_ids: list[int], cache: Any = None) -> Any:
    """A pass, for mistakes that make one more."""
    return model(input_ids=torch.tensor([token_ids]), past_key_values=cache, use_cache=cache is not None)


def plain_tokens(got: Any) -> Any:
    """A list with its tokens as plain ints, whatever kind of int they are."""
    if not isinstance(got, list):
        return got
    return [int(token) if hasattr(token, "__index__") and not is_tensor(token) else token for token in got]


def tell(case: Case) -> str:
    end = "" if case.end is None else f", eos_token_id={case.end}"
    own = "" if case.own_end is None else f" with model.config.eos_token_id={case.own_end}"
    prompt = short(list(case.prompt))
    return f"prompt_ids={prompt}, max_new_tokens={case.limit}{end}, on a tiny {case.family} model{own}."


CHOICE_AND_END = """
The logits of a position predict the token *after* it, so read the next token at the last position, `logits[0, -1]`.
~ logits[0, -1] => logits[0, 0]
or ~ logits[0, -1] => logits[0, -2]
That is the largest logit of *all* positions, or its place among them. Only the last position, `logits[0, -1]`, says
what follows.
~ logits[0, -1].argmax() => logits.argmax()
The logits have shape [1, tokens, vocabulary]. First take the row of the last position, then its argmax.
~ logits[0, -1].argmax() => logits[0].argmax(dim=-1)
Greedy decoding takes the token with the *largest* logit, every time, without sampling: yours took another one.
~ .argmax() => .argmin()
or ~ logits[0, -1].argmax() => torch.multinomial(logits[0, -1].softmax(-1), 1)
A logit is a score. The token is its place in the vocabulary: `argmax` instead of `max`.
~ .argmax() => .max()
The model returns an object that contains the logits: read its `.logits`.
~ ).logits => )
The model needs token ids, which are ints, in a tensor with one row: `torch.tensor([ids])`. A logit is no id, and an
empty list makes a tensor of floats.
~ int(logits[0, -1].argmax()) => logits[0, -1].max().item()
or ~ torch.tensor([token_ids], device=model.device) => [token_ids]
or ~ torch.tensor([token_ids], device=model.device) => torch.tensor([token_ids], dtype=torch.float32)
`input_ids` has two axes, [rows, tokens]. One request is one row: put the list into another list.
~ torch.tensor([token_ids], => torch.tensor(token_ids,
Each token is a row of its own here, and a row sees nothing of the others. The sequence is *one* row.
~ torch.tensor([token_ids], device=model.device) => torch.tensor(token_ids).unsqueeze(1)
~ logits[0, -1] => logits[-1, -1]
Return only the new tokens: yours come after tokens of the prompt.
= return [*prompt_ids, *new_tokens]
or = return [*prompt_ids, *new_tokens][-max_new_tokens:]
or = return [prompt_ids[-1], *new_tokens]
That is the last token only. Return all new ones.
= return new_tokens[-1]
Your loop ends after its first pass, though the limit allows more. Is a `return` or `break` indented too far? Or does
`None == None` end it?
~ while len(new_tokens) < max_new_tokens => while not new_tokens
or ~ if new_tokens[-1] == eos_token_id => if eos_token_id in (None, new_tokens[-1])
Too few: the answer has `max_new_tokens` tokens, unless the end token comes first.
~ < max_new_tokens => < max_new_tokens - 1
Too many: does your loop check the length before or after it appends a token?
~ < max_new_tokens => <= max_new_tokens
`max_new_tokens` limits only the *new* tokens. The prompt's don't count.
~ len(new_tokens) < => len(prompt_ids) + len(new_tokens) <
The end token, {end}, ends the answer, and what follows isn't part of it.
- if new_tokens[-1] == eos_token_id: ... break
The end token may come as the very first new token, too.
~ if new_tokens[-1] == eos_token_id => if len(new_tokens) > 1 and new_tokens[-1] == eos_token_id
The end token, {end}, is part of the answer: append it, then stop.
= return new_tokens[:-1] if new_tokens[-1:] == [eos_token_id] else new_tokens
or = return [token for token in new_tokens if token != eos_token_id]
0 is a token like any other, but falsy in Python. Compare with `token == eos_token_id`; don't test `if eos_token_id`.
~ if new_tokens[-1] == eos_token_id => if eos_token_id and new_tokens[-1] == eos_token_id
Only the argument `eos_token_id` says which token ends the answer, and if it is None, none does. You compare with
another: 0, the tokenizer's, or the model's.
~ == eos_token_id => == (eos_token_id or 0)
or ~ == eos_token_id => == 0
or ~ == eos_token_id => == (model.config.eos_token_id if eos_token_id is None else eos_token_id)
or ~ == eos_token_id => == model.config.eos_token_id
Only a *new* token ends the answer. The prompt may contain the end token, {end}, and even end with it.
~ while len(new_tokens) < max_new_tokens => while len(new_tokens) < max_new_tokens and eos_token_id not in prompt_ids
or ~ if new_tokens[-1] == eos_token_id => if eos_token_id in [*prompt_ids, *new_tokens]
"""

WITHOUT = """
The model numbers the tokens from 0, by itself. Pass it no positions, or the right ones.
~ use_cache=False => use_cache=False, position_ids=torch.arange(1, len(token_ids) + 1)[None]
Without a cache, the model remembers nothing between calls. Feed the whole sequence, not only its last token.
= token_ids = new_tokens[-1:] or [*prompt_ids]
The last position moves with every new token, and you read where the prompt ends.
~ logits[0, -1] => logits[0, len(prompt_ids) - 1]
"""

WITH = """
The cache holds the earlier tokens already. Tokens that are fed again are stored, and attended to, twice.
= token_ids = [*prompt_ids, *new_tokens]
or = token_ids = [*new_tokens]
The model knows which tokens are in the cache, and their positions. Pass it no `position_ids` or `attention_mask`, or
the right ones.
~ past_key_values=cache => past_key_values=cache, attention_mask=torch.ones(1, len(token_ids))
or ~ past_key_values=cache => past_key_values=cache, position_ids=torch.arange(len(token_ids))[None]
or
~ past_key_values=cache => past_key_values=cache, position_ids=cache.num_tokens + 1 + torch.arange(len(token_ids))[None]
The pass isn't given the cache, so the token sees nothing of the text before it.
~ past_key_values=cache => use_cache=False
or ~ past_key_values=cache => past_key_values=KVCache()
The cache goes to the model by name: `past_key_values=cache`.
~ input_ids=torch.tensor([token_ids], device=model.device), past_key_values=cache => torch.tensor([token_ids]), cache
`KVCache` is the class. Call it to make a cache: `KVCache()`.
~ KVCache() => KVCache
`max_new_tokens` limits only the *new* tokens, and the cache holds those of the prompt, too.
~ len(new_tokens) < => cache.num_tokens <
The tokens are right, but every pass computes the whole text again. Keep *one* cache, and feed only what it lacks.
- logits = model => logits = feed(model, [*prompt_ids, *new_tokens], KVCache()).logits
The prefill's logits give the first new token, and that one belongs to the answer.
= return new_tokens[1:]
or - while len(new_tokens) < max_new_tokens
+ token_ids = [int(feed(model, prompt_ids, cache).logits[0, -1].argmax())]
+ if token_ids[0] == eos_token_id: return []
+ ...
"""


CHOICE = (
    "Each pass feeds what it should. Choose the largest logit of the last position, `logits[0, -1]`, and return the "
    "tokens chosen, each once, in order: a list of ints."
)


def about_passes(rule: str) -> Callable[[dict, dict], str]:
    """What a difference means that no known mistake makes: the first pass that is another, or the end of the loop."""

    def about(mine: dict, want: dict) -> str:
        passes = zip(mine[FED], want[FED], mine[CACHED], want[CACHED])
        for number, (fed, should, cached, before) in enumerate(passes, start=1):
            if fed != should:
                return f"Pass {number} should feed {short(should)}, and yours feeds {short(fed)}. {rule}"
            if cached != before:
                return f"Before pass {number}, the cache should hold {before} tokens. Yours holds {cached}."
        got, wanted = len(mine[FED]), len(want[FED])
        passes = "1 pass" if wanted == 1 else f"{wanted} passes"
        if got > wanted:
            return f"{passes} would be enough. Then yours feeds {short(mine[FED][wanted])}: stop before that."
        if got < wanted:
            return f"This takes {passes}, and yours makes {got}. What ends your loop, and when?"
        return CHOICE

    return about


def task(name: str, known: list[Known], rule: str) -> Task:
    return Task(
        reference=f"lessons_lib.batching.greedy:{name}",
        cases=cases,
        run=run,
        tell=tell,
        known=known,
        about=dict.fromkeys(("returned", FED, CACHED), about_passes(rule))
        | {
            "raised TooManyPasses": "Your loop doesn't end. Does it append each token? Does it end at the limit *or* "
            "at the end token, whichever comes first?",
            "raised IndexError": "`input_ids` is [1, tokens], and the logits have a position for each token *fed*.",
        },
        facts=lambda case: {"end": case.end},
        enough=6,
    )


NO_CACHE_YET = "This loop recomputes everything, to see what that costs. The cache comes in 00.2 and 00.3."
WITHOUT_CACHE = task(
    "greedy_without_cache",
    [
        *mistakes(CHOICE_AND_END + WITHOUT, feed=feed),
        Known(NO_CACHE_YET, answer=greedy_with_cache),
        Known(
            NO_CACHE_YET, "- new_tokens: list\n+ cache = KVCache()\n+ ...\n~ use_cache=False => past_key_values=cache"
        ),
    ],
    "Each pass feeds the prompt followed by all new tokens so far, as one row.",
)
WITH_CACHE = task(
    "greedy_with_cache",
    mistakes(CHOICE_AND_END + WITH, feed=feed),
    "The first pass feeds the prompt, and each further one the newest token alone.",
)
EXERCISES = (
    Exercise(
        id="00.1",
        title="greedy decoding without a cache",
        reference=WITHOUT_CACHE.reference,
        test=WITHOUT_CACHE,
        hints=(
            "After the first pass, what does the input of the second one consist of? And which position of the "
            "logits do you need, however long the sequence is?",
            "Start with an empty list of new tokens. In a loop, make a tensor of shape [1, tokens] from the prompt and "
            "these, call the model, take the argmax at the last position, and append it. Stop when there are "
            "max_new_tokens of them, or when the one you just appended is eos_token_id.",
            "`logits = model(input_ids=torch.tensor([[*prompt_ids, *new_tokens]]), use_cache=False).logits` has shape "
            "[1, tokens, vocabulary]; the next token is `int(logits[0, -1].argmax())`.",
        ),
    ),
    Exercise(
        id="00.3",
        title="greedy decoding with your cache",
        reference=WITH_CACHE.reference,
        test=WITH_CACHE,
        hints=(
            "Copy your loop from 00.1. Which of its lines must change, now that the model remembers what it computed?",
            "Make one cache before the loop and pass it to the model in every pass. The first pass feeds the prompt. "
            "What do the others feed?",
            "`model(input_ids=torch.tensor([token_ids]), past_key_values=cache).logits`, where `token_ids` is the "
            "prompt at first, and at the end of the loop `token_ids = new_tokens[-1:]`.",
        ),
    ),
)
