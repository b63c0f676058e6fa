"""Judges 01.4, `generate_wave`: the answers of one wave, and why a row of them is wrong."""

from functools import lru_cache
from numbers import Integral

import torch

from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_01.passes import Seen, WaveCase, name_wrong_inputs, recorded, refuse_extra_work
from lessons_lib.checks.lesson_01.words import count, kind
from lessons_lib.models.tiny_models import tiny_model

# On these prompts the tiny gpt2 model never says a token twice, so that a mistake in any step shows.
FIRST, SECOND, THIRD = (80, 13, 34), (90, 70), (81, 42, 14, 90, 71)
SAYS_ZERO = (22, 43)  # its second token is 0, which Python takes for False


@lru_cache(maxsize=None)
def _expected(case: WaveCase) -> tuple[tuple[int, ...], ...]:
    model = tiny_model(case.family)
    return tuple(
        tuple(greedy_with_cache(model, list(ids), max_tokens, case.eos))
        for ids, max_tokens in zip(case.prompts, case.max_tokens_each)
    )


@lru_cache(maxsize=None)
def _wave_cases() -> tuple[WaveCase, ...]:
    """Smallest first. The end token is chosen from what the model says without one."""
    first, second = _expected(WaveCase((FIRST, SECOND), (8, 8)))
    end = next(token for token in first[2:] if token not in first[:2] and token not in second)
    return (
        WaveCase((FIRST,), (1,)),
        WaveCase((FIRST,), (2,)),
        WaveCase((FIRST,), (5,)),
        WaveCase((FIRST, FIRST[::-1]), (4, 4)),
        WaveCase((FIRST, SECOND), (4, 4)),
        WaveCase((SECOND[:1], THIRD), (6, 6)),
        WaveCase((FIRST,), (8,), eos=end),
        WaveCase((FIRST, SECOND), (6, 6), eos=end),
        WaveCase((FIRST, SECOND), (6, 6), eos=second[0]),
        # The end token is also the padding token, as in the bundled model, and stands in a prompt too.
        WaveCase(((end, *FIRST), SECOND), (6, 6), eos=end, pad=end),
        WaveCase((SAYS_ZERO, SECOND), (5, 5), eos=0, pad=1),
        # The model says the padding token, and goes on: with another end token, and with none.
        WaveCase((FIRST,), (6,), eos=second[0], pad=first[1]),
        WaveCase((FIRST,), (4,), pad=first[1]),
        WaveCase((FIRST, SECOND), (6, 6), eos=end, pad=second[1]),
        WaveCase((FIRST, SECOND), (2, 5)),
        WaveCase((FIRST, SECOND), (5, 2)),
        WaveCase(((75,), (52, 28, 37, 78, 40), (57, 2)), (3, 9, 6), family="llama"),
        WaveCase(((50, 66), (74, 31), (16, 62, 27, 1, 5), (39,)), (7, 2, 9, 1), eos=0, family="qwen2"),
    )


def test_generate_wave(attempt) -> None:
    for case in _wave_cases():
        want = [list(answer) for answer in _expected(case)]
        got, seen = _run_wave(attempt, case, want)
        rows = _as_rows(got, case)
        if rows != want:
            _name_wave_mistake(case, want, rows, seen)
        refuse_extra_work(case, want, seen)


def _run_wave(attempt, case: WaveCase, want):
    model = tiny_model(case.family)
    arguments = [[list(ids) for ids in case.prompts], list(case.max_tokens_each), case.pad] + (
        [] if case.eos is None else [case.eos]
    )
    with recorded(model) as seen:
        try:
            return call(attempt, model, *arguments, case=str(case)), seen
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
            if not isinstance(error, NotImplementedError):
                name_wrong_inputs(
                    case,
                    want,
                    seen,
                    len(seen.shapes),
                    f" PyTorch said: {str(error)[:120]}" if _is_from_pytorch(error) else "",
                )
                _name_wrong_argmax(case, seen, error)
            raise


def _is_from_pytorch(error: Exception) -> bool:
    """Whether a library refused something, and not the learner's own line."""
    trace = error.__traceback__
    while trace.tb_next:
        trace = trace.tb_next
    return isinstance(error, RuntimeError) or trace.tb_frame.f_globals.get("__name__", "").split(".")[0] in (
        "torch",
        "transformers",
    )


def _name_wrong_argmax(case: WaveCase, seen: Seen, error: Exception) -> None:
    """What the model was given is right; the learner's code stumbled over what was made of the logits."""
    text = str(error)
    rows, columns = seen.shapes[-1] if seen.shapes and seen.shapes[-1] else (len(case.prompts), 1)
    if any(
        words in text
        for words in (
            "0-d tensor",
            "0-dim",
            "of dimension 0",
            "'int' object is not iterable",
            "'int' object is not subscriptable",
        )
    ):
        raise Mistake(
            f"your code stopped at the first token: {text[:120]}.",
            case=str(case),
            idea="Is there an `.argmax()` without `dim`? It gives one number for the whole batch. `.argmax(dim=-1)` gives one token for each row.",
        ) from None
    if (
        "converted to Scalar" in text
        or "only integer tensors of a single element" in text
        or "only one element tensors" in text
    ):
        raise Mistake(
            f"your code took several numbers for one token: {text[:120]}.",
            case=str(case),
            idea=f"The logits have shape [{rows}, {columns}, vocabulary]. `.logits[:, -1]` is their last column, and `.argmax(dim=-1)` of it has one token for each row.",
        ) from None


def _as_rows(got, case: WaveCase) -> list[list[int]]:
    if isinstance(got, torch.Tensor) or not isinstance(got, (list, tuple)):
        raise Mistake(
            f"it should return a list with one list of int for each prompt, here {len(case.prompts)}; yours returned {kind(got)}.",
            case=str(case),
            idea="Answers have unequal lengths, so they do not fit into a tensor. Keep one list a row and append to it.",
        )
    for row, answer in enumerate(got):
        if not isinstance(answer, (list, tuple)):
            raise Mistake(
                f"answer {row} should be a list of int; yours is {kind(answer)}.",
                case=str(case),
                idea="One list for each row, also when the wave has only one row. `.tolist()` turns a tensor into a list.",
            )
    if len(got) != len(case.prompts):
        raise Mistake(
            f"{count(len(case.prompts), 'prompt')} should give {count(len(case.prompts), 'answer')}; yours are {len(got)}.",
            case=str(case),
            idea="One answer a row, in the order of the prompts.",
        )
    for token in (token for answer in got for token in answer):
        _refuse_non_integer(token, case)
    if len(got) > 1 and any(got[row] is got[0] for row in range(1, len(got))):
        raise Mistake(
            "all rows of your answer are one and the same list, so each holds the tokens of all.",
            case=str(case),
            idea="`[[]] * B` puts the same list into every place. Make a new one for each row: `[[] for _ in prompt_ids]`.",
        )
    return [[int(token) for token in answer] for answer in got]


def _refuse_non_integer(token, case: WaveCase) -> None:
    if isinstance(token, (list, tuple)) or isinstance(token, torch.Tensor) and token.numel() > 1:
        raise Mistake(
            f"one token is one int; your answers hold {kind(token)}.",
            case=str(case),
            idea="Did you take the best token of every column? `.logits[:, -1]` is the last column alone; `.argmax(dim=-1)` of it has shape [B], and `.tolist()` makes one int a row of it.",
        )
    if isinstance(token, torch.Tensor):
        raise Mistake(
            f"answers should hold ints; yours hold tensors, such as {str(token)[:60]}.",
            case=str(case),
            idea="A loop over a tensor hands out tensors. `for row, token in enumerate(next_tokens.tolist())` hands out ints.",
        )
    if isinstance(token, bool) or not isinstance(token, Integral):
        raise Mistake(
            f"answers should hold token ids, which are integers; yours hold {kind(token)}.",
            case=str(case),
            idea="`next_tokens.tolist()` gives one int a row.",
        )


def _name_wave_mistake(case: WaveCase, want, got, seen: Seen) -> None:
    row = next(r for r in range(len(want)) if got[r] != want[r])
    expected, answer, prompt = want[row], got[row], list(case.prompts[row])
    what = f"row {row} should be {short(expected)}; yours is {short(answer)}."
    common = next((i for i, (a, b) in enumerate(zip(expected, answer)) if a != b), min(len(expected), len(answer)))
    if answer[: len(prompt)] == prompt and answer[len(prompt) :] == expected:
        idea = "You return the prompt as well. The answer is only what is new."
    elif common == len(expected):
        idea = _why_too_long(case, expected, answer, want, seen)
    elif case.pad in expected and answer == [token for token in expected if token != case.pad]:
        idea = f"Token {case.pad} is missing. The padding token may be an answer's token too, when the model says it. Only what a row gets after its end is left out."
    elif common == len(answer):
        idea = _why_too_short(case, expected, answer, want, row)
    else:
        name_wrong_inputs(case, want, seen, common + 1)
        if max(answer) >= seen.vocabulary:
            idea = "That is more than the vocabulary has. `.argmax()` without `dim` counts through all rows of the logits; `.argmax(dim=-1)` takes the best token of each."
        elif row and answer[common] == want[0][common if common < len(want[0]) else -1]:
            idea = "This row got the token of row 0. Take the argmax of every row's own logits: `.logits[:, -1].argmax(dim=-1)`."
        elif case.eos is not None and case.eos == expected[common]:
            idea = "The end token itself is part of the answer; put no other token in its place."
        else:
            idea = f"The first wrong token is number {common}. What the model was fed looks right, so look at how you read the logits: the last column, each row its own."
    raise Mistake(what, case=str(case), idea=idea)


def _why_too_long(case: WaveCase, expected, answer, want, seen: Seen) -> str:
    if case.eos is not None and expected[-1] == case.eos:
        if case.eos == 0:
            return "Token 0 ends this answer, and 0 counts as false in Python. Compare with `token == eos_token_id`, never `if eos_token_id`."
        if set(answer[len(expected) :]) <= {case.pad, case.eos}:
            return "You append padding to a row that has ended. Its answer stays as it was while the others go on."
        if len(seen.forwards) > max(map(len, want)):
            return "The row goes on after the end token. Do you compare each new token with `eos_token_id`? When they are equal, the row has ended."
        return (
            "You append tokens after the end token. The row is still computed, but its further tokens are thrown away."
        )
    if len(set(case.max_tokens_each)) > 1 and len(answer) == max(case.max_tokens_each):
        return "You use one cap for all rows. Row i may have `max_tokens_each[i]` tokens; while others go on, its tokens are thrown away."
    if len(answer) == len(expected) + 1:
        return (
            "One token too many: the prefill's token counts as well. Ask whether a row is full right after appending."
        )
    return "Your row goes on past its cap. Stop appending when it holds `max_tokens_each[row]` tokens."


def _why_too_short(case: WaveCase, expected, answer, want, row: int) -> str:
    if case.pad in expected and case.eos != case.pad and len(answer) - expected.index(case.pad) in (0, 1):
        if case.eos is None:
            return f"Here `eos_token_id` is None: no token ends an answer, not even the padding token {case.pad}. You seem to put `pad_token_id` in the place of an end token."
        return f"You stop at the padding token, {case.pad}. The model may say it as any other token; only `eos_token_id`, here {case.eos}, ends an answer."
    others = [len(w) for i, w in enumerate(want) if i != row]
    if case.eos in case.prompts[row] and len(answer) <= 1:
        return (
            "You stop at an end token that stands in the prompt or in the padding. Only a new token can end an answer."
        )
    if case.eos is not None and expected[-1] == case.eos and len(answer) == len(expected) - 1:
        return "The end token is missing. It is part of the answer: append first, then ask whether it was the last."
    if len(set(case.max_tokens_each)) > 1 and len(answer) == min(case.max_tokens_each):
        return "You give every row the smallest cap. Each row has a cap of its own."
    if others and len(answer) == min(others):
        return "You stop the wave when its first row ends. It goes on until no row is running: `while any(running)`."
    if len(answer) == len(expected) - 1:
        return "One token too few: the prefill gives the first token, and each decode step one more."
    return "The row ended before its cap and without an end token."
