"""Checks 01.4, `generate_wave`: the answers of one wave, and why one of them is wrong."""

from functools import cache
from numbers import Integral

import torch

from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_01.passes import Seen, WaveCase, name_wrong_inputs, recorded, refuse_extra_work
from lessons_lib.checks.lesson_01.words import count, kind
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.viz.words import marked

# On these prompts the tiny gpt2 model never repeats a token, so a mistake in any step shows.
FIRST, SECOND, THIRD = (80, 13, 34), (90, 70), (81, 42, 14, 90, 71)
SAYS_ZERO = (22, 43)  # the second token of its answer is 0, which is falsy in Python


@cache
def _expected(case: WaveCase) -> tuple[tuple[int, ...], ...]:
    model = tiny_model(case.family)
    return tuple(
        tuple(greedy_with_cache(model, list(ids), max_tokens, case.eos))
        for ids, max_tokens in zip(case.prompts, case.max_tokens_each)
    )


@cache
def _wave_cases() -> tuple[WaveCase, ...]:
    """Smallest first. The end token is chosen among the tokens that the model writes without one."""
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
        # The end token is also the padding token, as in the bundled model, and occurs in a prompt too.
        WaveCase(((end, *FIRST), SECOND), (6, 6), eos=end, pad=end),
        WaveCase((SAYS_ZERO, SECOND), (5, 5), eos=0, pad=1),
        # The model writes the padding token and continues: with another end token, and with none.
        WaveCase((FIRST,), (6,), eos=second[0], pad=first[1]),
        WaveCase((FIRST,), (4,), pad=first[1]),
        WaveCase((FIRST,), (2,), model_end=first[0]),
        WaveCase((FIRST, SECOND), (6, 6), eos=end, pad=second[1]),
        # The first limit is neither the smallest nor the largest, and neither is the last.
        WaveCase((FIRST, SECOND, THIRD, FIRST[::-1]), (3, 5, 2, 4)),
        WaveCase(((75,), (52, 28, 37, 78, 40), (57, 2)), (3, 9, 6), family="llama"),
        WaveCase(((75,), (75,)), (2, 2)),  # equal prompts are two requests
        WaveCase((tuple(i * 5 % 97 for i in range(65)),), (1,)),  # longer than any limit that a learner may set
        WaveCase(((50, 66), (74, 31), (16, 62, 27, 1, 5), (39,)), (7, 2, 9, 1), eos=0, family="qwen2"),
    )


def test_generate_wave(attempt) -> None:
    for case in _wave_cases():
        want = [list(answer) for answer in _expected(case)]
        got, seen = _run_wave(attempt, case, want)
        rows = _as_rows(got, case)
        if rows != want:
            _name_wave_mistake(attempt, case, want, rows, seen)
        refuse_extra_work(case, want, seen)


def _run_wave(attempt, case: WaveCase, want):
    model = case.model
    arguments = [[list(ids) for ids in case.prompts], list(case.max_tokens_each), case.pad] + (
        [] if case.eos is None else [case.eos]
    )
    needed = max(map(len, want))
    with recorded(model, most=(needed + 10) * len(case.prompts)) as seen:
        try:
            return call(attempt, model, *arguments, case=str(case)), seen
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
            if not isinstance(error, NotImplementedError):
                said = f" PyTorch said: {str(error)[:120]}" if _is_from_pytorch(error) else ""
                try:
                    name_wrong_inputs(case, want, seen, len(seen.shapes), said)
                except Mistake as mistake:
                    if not said:
                        mistake.__context__ = None  # `error` only followed from it, and in another line
                    raise
                _name_endless_wave(case, want, seen)
                _name_wrong_argmax(case, seen, error)
            raise


def _name_endless_wave(case: WaveCase, want, seen: Seen) -> None:
    """Raise if the loop was still running long after the last row had finished."""
    needed = max(map(len, want))
    if len(seen.shapes) > needed + 8:
        raise Mistake(
            f"your loop was still running in pass {len(seen.shapes)}; the longest answer of the wave needs {needed}.",
            case=str(case),
            idea="Which condition ends your loop, and does it ever become true? If all rows share one list (`[[]] * "
            "n`), it grows by n tokens in each pass, so its length may skip the limit.",
        )


def _is_from_pytorch(error: Exception) -> bool:
    """Whether the error comes from a library, not from the learner's own code."""
    trace = error.__traceback__
    while trace.tb_next:
        trace = trace.tb_next
    return isinstance(error, RuntimeError) or trace.tb_frame.f_globals.get("__name__", "").split(".")[0] in (
        "torch",
        "transformers",
    )


def _name_wrong_argmax(case: WaveCase, seen: Seen, error: Exception) -> None:
    """The model's inputs are right; raise if the code failed because it took the argmax of the wrong shape."""
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
            f"your code failed on the chosen tokens: {text[:120]}.",
            case=str(case),
            idea="Is there an `.argmax()` without `dim`? It returns one index for the whole batch. `.argmax(dim=-1)` "
            "returns one token per row."
            + (" Or is there a list `+=` token? `.append(token)` adds one." if "not iterable" in text else ""),
        ) from None
    if "Sizes of tensors must match" in text:
        raise Mistake(
            f"your code joins tensors of different shapes: {text[:120].rstrip('.')}.",
            case=str(case),
            idea=f"What you append to a row of the mask, or of the positions, needs {rows} rows too. The new tokens "
            f"have shape [{rows}], and `next_tokens[:, None]` turns them into a column, [{rows}, 1].",
        ) from None
    if (
        "converted to Scalar" in text
        or "only integer tensors of a single element" in text
        or "only one element tensors" in text
    ):
        raise Mistake(
            f"your code uses a tensor with several elements as one token: {text[:120]}.",
            case=str(case),
            idea=f"The logits have shape [{rows}, {columns}, vocabulary]. `.logits[:, -1]` is their last column, and "
            "its `.argmax(dim=-1)` "
            "has one token per row.",
        ) from None


def _as_rows(got, case: WaveCase) -> list[list[int]]:
    if isinstance(got, torch.Tensor) or not isinstance(got, (list, tuple)):
        raise Mistake(
            f"it should return one list of ints per prompt, here {len(case.prompts)}; yours returned {kind(got)}.",
            case=str(case),
            idea="Answers have unequal lengths, so they don't fit into a tensor. Keep one list per row and append to "
            "it.",
        )
    for row, answer in enumerate(got):
        if not isinstance(answer, (list, tuple)):
            raise Mistake(
                f"answer {row} should be a list of ints; yours is {kind(answer)}.",
                case=str(case),
                idea="Return one list per row, even if the wave has only one row. `.tolist()` turns a tensor into a "
                "list.",
            )
    if len(got) != len(case.prompts):
        raise Mistake(
            f"{count(len(case.prompts), 'prompt')} should give {count(len(case.prompts), 'answer')}; yours gave "
            f"{len(got)}.",
            case=str(case),
            idea="Return one answer per row, in the order of the prompts.",
        )
    for token in (token for answer in got for token in answer):
        _refuse_non_integer(token, case)
    if len(got) > 1 and any(got[row] is got[0] for row in range(1, len(got))):
        raise Mistake(
            "all rows of your answer are the same list object, so each contains the tokens of all rows.",
            case=str(case),
            idea="`[[]] * n` repeats the same list n times. Make a new one for each row: `[[] for _ in prompt_ids]`.",
        )
    return [[int(token) for token in answer] for answer in got]


def _refuse_non_integer(token, case: WaveCase) -> None:
    if isinstance(token, (list, tuple)) or (isinstance(token, torch.Tensor) and token.numel() > 1):
        raise Mistake(
            f"each token should be one int; your answers contain {kind(token)}.",
            case=str(case),
            idea="Did you take the best token of every column? `.logits[:, -1]` is only the last column; its "
            "`.argmax(dim=-1)` has one "
            "element per row, and `.tolist()` turns them into ints.",
        )
    if isinstance(token, torch.Tensor):
        raise Mistake(
            f"answers should contain ints; yours contain tensors, such as {str(token)[:60]}.",
            case=str(case),
            idea="Iterating over a tensor yields tensors. `for row, token in enumerate(next_tokens.tolist())` yields "
            "ints.",
        )
    if isinstance(token, bool) or not isinstance(token, Integral):
        raise Mistake(
            f"answers should contain token ids, which are ints; yours contain {kind(token)}.",
            case=str(case),
            idea="`next_tokens.tolist()` gives one int per row.",
        )


def _name_wave_mistake(attempt, case: WaveCase, want, got, seen: Seen) -> None:
    row = next(r for r in range(len(want)) if got[r] != want[r])
    expected, answer, prompt = want[row], got[row], list(case.prompts[row])
    what = f"row {row} should be {short(expected)}; yours is {marked(expected, answer)}."
    common = next((i for i, (a, b) in enumerate(zip(expected, answer)) if a != b), min(len(expected), len(answer)))
    if answer[: len(prompt)] == prompt and answer[len(prompt) :] == expected:
        idea = "You return the prompt as well. Return only the new tokens."
    elif answer and answer[0] != expected[0] and answer == _continuation(case, row)[1 : len(answer) + 1]:
        idea = "The first new token is missing. The prefill's logits give it, and it belongs to the answer."
    elif common == len(expected):
        idea = _why_too_long(case, expected, answer, want, got, seen)
    elif case.pad in expected and answer == [token for token in expected if token != case.pad]:
        idea = (
            f"Token {case.pad} is missing. If the model writes the padding token, it is part of the answer. Leave out "
            "only what a row "
            "gets after it has finished."
        )
    elif common == len(answer):
        idea = _why_too_short(attempt, case, expected, answer, want, row)
    else:
        name_wrong_inputs(case, want, seen, common + 1)
        if max(answer) >= seen.vocabulary:
            idea = (
                "A token is outside the vocabulary. `.argmax()` without `dim` returns an index into the flattened "
                "logits of all rows; "
                "`.argmax(dim=-1)` returns the best token of each row."
            )
        elif row and answer[common] == want[0][common if common < len(want[0]) else -1]:
            idea = (
                "This row got the token of row 0. Take the argmax of every row's own logits: `.logits[:, "
                "-1].argmax(dim=-1)`."
            )
        elif case.eos is not None and case.eos == expected[common]:
            idea = "The end token itself is part of the answer; don't replace it with another token."
        elif sorted(got) == sorted(want):
            idea = "These are the right answers in another order. Row i belongs to prompt i."
        else:
            idea = (
                f"The first wrong token is at index {common}. The inputs of that pass look right, so check how you "
                "read the logits: take "
                "the last column, and the argmax of each row."
            )
    raise Mistake(what, case=str(case), idea=idea)


def _continuation(case: WaveCase, row: int) -> list[int]:
    """What the model writes in this row with one more token and no end token."""
    longer = WaveCase((case.prompts[row],), (case.max_tokens_each[row] + 1,), family=case.family)
    return list(_expected(longer)[0])


def _why_too_long(case: WaveCase, expected, answer, want, got, seen: Seen) -> str:
    if case.eos is not None and expected[-1] == case.eos:
        if case.eos == 0:
            return (
                "Token 0 ends this answer, and 0 is falsy in Python. Compare with `token == eos_token_id`; don't test "
                "`if eos_token_id`."
            )
        if set(answer[len(expected) :]) <= {case.pad, case.eos}:
            return "You append padding to a finished row. Leave its answer unchanged while the others continue."
        if len(seen.forwards) > max(map(len, want)):
            return (
                "The row continues after the end token. Do you compare each new token with `eos_token_id`? If they are "
                "equal, the row has finished."
            )
        return (
            "You append tokens after the end token. The row is still computed, but any further tokens must be thrown "
            "away."
        )
    same_for_all = {len(row) for row in got} == {len(answer)}
    if len(set(case.max_tokens_each)) > 1 and len(answer) in case.max_tokens_each and same_for_all:
        return (
            "You seem to use one limit for all rows. Row i may have `max_tokens_each[i]` tokens; throw away what it "
            "gets after that."
        )
    if len(answer) == len(expected) + 1:
        return "That is one token too many: the prefill's token counts as well. Check the limit right after appending."
    return "The row continues past its limit. Stop appending when it has `max_tokens_each[row]` tokens."


def _why_too_short(attempt, case: WaveCase, expected, answer, want, row: int) -> str:
    if case.pad in expected and case.eos != case.pad and len(answer) - expected.index(case.pad) in (0, 1):
        if case.eos is None:
            return (
                f"Here `eos_token_id` is None, so no token ends an answer, not even the padding token {case.pad}. You "
                "seem to use "
                "`pad_token_id` as the end token."
            )
        return (
            f"You stop at the padding token, {case.pad}. The model may write it like any other token; only "
            "`eos_token_id`, here "
            f"{case.eos}, ends an answer."
        )
    if case.eos is None and answer and answer[-1] == case.model_end:
        return (
            f"Here `eos_token_id` is None, so no token ends an answer. {case.model_end} is the end token in the "
            "model's configuration; do you replace None by it? Compare only with the argument."
        )
    if row and len(set(case.max_tokens_each)) > 1 and len(answer) == case.max_tokens_each[0]:
        return (
            f"This row stopped at the limit of row 0, {len(answer)} tokens. Each row has its own limit: "
            "`max_tokens_each[row]`."
        )
    others = [len(w) for i, w in enumerate(want) if i != row]
    if case.eos in case.prompts[row] and len(answer) <= 1:
        return "You seem to stop at an end token in the prompt or in the padding. Only a new token can end an answer."
    if case.eos is not None and expected[-1] == case.eos and len(answer) == len(expected) - 1:
        return (
            "The end token is missing. It is part of the answer: append the token first, then check whether it was the "
            "last."
        )
    if len(set(case.max_tokens_each)) > 1 and len(answer) == min(case.max_tokens_each):
        return "You seem to use the smallest limit for every row. Each row has its own limit in `max_tokens_each`."
    if others and len(answer) == min(others):
        return (
            "You seem to stop the wave when its first row finishes. Continue until no row is running: `while "
            "any(running)`."
        )
    if others and len(answer) == min(others) - 1 < len(expected) - 2:
        return (
            "In the next pass, another row finished. Does that end this row too? Continue until no row is running: "
            "`while any(running)`."
        )
    if len(answer) == len(expected) - 1:
        longer = WaveCase((FIRST,), (6,))
        if len(_run_wave(attempt, longer, [list(_expected(longer)[0])])[0][0]) == 6 - len(FIRST):
            return "You seem to count the tokens of the prompt too. `max_tokens_each` limits only the *new* tokens."
        return "That is one token too few: the prefill gives the first token, and each decode step gives one more."
    return "The row stopped before its limit and without an end token."
