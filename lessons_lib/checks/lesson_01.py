"""Judges the exercises of lesson 01: padding, positions, waves, and the loop over one wave."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from lessons_lib.checks.exercise import Choice, Exercise, Mistake, Question, call, short
from lessons_lib.generate import greedy_with_cache
from lessons_lib.static_batching import pad_left, wave_steps
from lessons_lib.tiny_models import tiny_model
from lessons_lib.watch import Forward, watch_forwards

PAD = 9  # not 0, so that padding with a 0 of one's own is seen

# 01.1 pad_left

# Smallest first.
PAD_CASES = (
    ([[5]], PAD),
    ([[5], [6, 7]], PAD),
    ([[6, 7], [5]], PAD),
    ([[1, 2, 3], [4], [5, 6]], PAD),
    ([[PAD, 5], [6, 7, 8]], PAD),  # the padding token is also a token of a prompt
    ([[0, 4, 0], [0], [3, 0, 0, 1, 2]], 0),
)


def test_pad_left(attempt) -> None:
    for prompts, pad in PAD_CASES:
        case = f"pad_left({prompts}, pad_token_id={pad})"
        result = call(attempt, [list(ids) for ids in prompts], pad, case=case)
        input_ids, mask = _two_tensors(result, case)
        expected_ids, expected_mask = pad_left(prompts, pad)
        if input_ids.tolist() != expected_ids.tolist() or mask.tolist() != expected_mask.tolist():
            _name_padding_mistake(prompts, pad, input_ids, mask, expected_ids, expected_mask, case)


def _two_tensors(result, case: str) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise Mistake(
            f"it should return two things, `(input_ids, attention_mask)`; yours returned {_kind(result)}.",
            case=case,
            idea="End with `return input_ids, attention_mask`. The mask tells the model which cells of the rectangle are real.",
        )
    for name, value in zip(("input_ids", "attention_mask"), result):
        _refuse_non_integers(name, value, case)
    return tuple(result)


def _refuse_non_integers(name: str, value, case: str) -> None:
    if not isinstance(value, torch.Tensor):
        raise Mistake(
            f"`{name}` should be a tensor; yours is {_kind(value)}.",
            case=case,
            idea="`torch.tensor(...)` makes a tensor of a list of rows of equal length.",
        )
    if value.is_floating_point() or value.dtype == torch.bool:
        raise Mistake(
            f"`{name}` should hold int64 numbers; yours holds {value.dtype}.",
            case=case,
            idea="`torch.tensor` of Python integers is int64 by itself; `torch.zeros` and `torch.ones` make float32 unless told `dtype=torch.int64`. "
            "`.long()` turns true and false into 1 and 0.",
        )


def _name_padding_mistake(prompts, pad, input_ids, mask, expected_ids, expected_mask, case: str) -> None:
    rows, columns = expected_ids.shape
    got, want = input_ids.tolist(), expected_ids.tolist()
    if got == expected_mask.tolist() and mask.tolist() == want:
        raise Mistake(
            "the mask came first and the tokens second; the order is `(input_ids, attention_mask)`.",
            case=case,
            idea="Swap them in the `return` line.",
        )
    if got != want and input_ids.dim() == 2 and input_ids.T.tolist() == want:
        raise Mistake(
            f"`input_ids` should be {short(want)}; yours is {short(got)}.",
            case=case,
            idea="You seem to have a request in every column. A request is a row.",
        )
    if input_ids.dim() != 2 or len(input_ids) != rows:
        raise Mistake(f"`input_ids` should have shape [{rows}, {columns}]; yours has {list(input_ids.shape)}.", case=case, idea="One row a prompt.")
    if input_ids.shape[1] != columns:
        idea = (
            "You seem to cut prompts to a shorter one. No token may be lost: the rectangle is as wide as the longest prompt."
            if input_ids.shape[1] < columns
            else "You seem to pad to some length of your own. Every further column is computed for all rows, for nothing."
        )
        raise Mistake(f"the longest prompt has {columns} tokens, so there should be {columns} columns; yours are {input_ids.shape[1]}.", case=case, idea=idea)
    if got != want:
        _name_wrong_ids(prompts, pad, got, want, case)
    if mask.shape != expected_mask.shape:
        raise Mistake(
            f"`attention_mask` should have the shape of `input_ids`, {list(expected_mask.shape)}; yours has {list(mask.shape)}.",
            case=case,
            idea="One number for each cell of the rectangle.",
        )
    _name_wrong_mask(prompts, pad, mask.tolist(), expected_mask.tolist(), case)


def _name_wrong_ids(prompts, pad, got, want, case: str) -> None:
    columns = len(want[0])
    row = next(r for r in range(len(want)) if got[r] != want[r])
    what = f"row {row} of `input_ids` should be {want[row]}; yours is {got[row]}."
    if got[row] == prompts[row] + [pad] * (columns - len(prompts[row])):
        idea = "You pad on the right. The next token is read off the last column, and there this row has padding. Put the padding on the left."
    elif sorted(map(sorted, got)) == sorted(map(sorted, want)) and got != want and sorted(got) == sorted(want):
        idea = "You seem to sort the prompts. Row i belongs to request i: the caller hands the answers back in that order."
    elif sorted(got[row]) == sorted(want[row]):
        idea = "The right tokens in the wrong order. Only padding is put in front; the prompt itself stays as it was."
    elif got[row][-len(prompts[row]) :] == prompts[row]:
        idea = f"The padding should be `pad_token_id`, here {pad}; the model's vocabulary decides which token that is."
    else:
        idea = "Each row is some padding and then the whole prompt, token by token."
    raise Mistake(what, case=case, idea=idea)


def _name_wrong_mask(prompts, pad, got, want, case: str) -> None:
    row = next(r for r in range(len(want)) if got[r] != want[r])
    what = f"row {row} of `attention_mask` should be {want[row]}; yours is {got[row]}."
    if all(number == 1 for line in got for number in line):
        idea = "Your mask is 1 everywhere, so the model would read the padding as if it were text. It is 0 on padding."
    elif all(g == 1 - w for line, wanted in zip(got, want) for g, w in zip(line, wanted)):
        idea = "Your mask is inverted. 1 means: a token, look at it. 0 means: padding, do not look."
    elif pad in prompts[row] and got[row] == [int(token != pad) for token in [pad] * (len(want[row]) - len(prompts[row])) + prompts[row]]:
        idea = (
            f"You seem to compare tokens with `pad_token_id`. This prompt holds token {pad} as text, and it must be seen. "
            "What is padding follows from the lengths, not from the tokens."
        )
    elif got[row] == want[row][::-1]:
        idea = "Your tokens are on the right and your mask says that they are on the left. Build both with the same number of padding cells."
    else:
        idea = "In each row as many 0 as there are padding cells, then as many 1 as the prompt has tokens."
    raise Mistake(what, case=case, idea=idea)


# 01.2 positions_from_mask

POSITION_CASES = (
    [[1]],
    [[1, 1, 1]],
    [[0, 0, 1]],
    [[0, 0, 1, 1]],
    [[1, 1, 1], [0, 1, 1]],
    [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1]],
)


def test_positions_from_mask(attempt) -> None:
    for mask in POSITION_CASES:
        case = f"attention_mask = {mask}"
        got = call(attempt, torch.tensor(mask), case=case)
        if not isinstance(got, torch.Tensor):
            raise Mistake(f"it should return a tensor; yours returned {_kind(got)}.", case=case, idea="Stay with tensor methods, such as `attention_mask.cumsum(dim=1)`.")
        if list(got.shape) != [len(mask), len(mask[0])]:
            raise Mistake(
                f"positions should have the shape of the mask, {[len(mask), len(mask[0])]}; yours have {list(got.shape)}.",
                case=case,
                idea="Every cell of the rectangle gets a position, row by row.",
            )
        if got.is_floating_point() or got.dtype == torch.bool:
            raise Mistake(f"positions should be int64; yours are {got.dtype}.", case=case, idea="A position is an index, so it is a whole number. `.long()` converts.")
        _compare_positions(mask, got.tolist(), case)


def _compare_positions(mask, got, case: str) -> None:
    for row, (line, positions) in enumerate(zip(mask, got)):
        padding = line.count(0)
        real, want = positions[padding:], list(range(sum(line)))
        if real != want:
            raise Mistake(
                f"the tokens of row {row} should have positions {want}; yours have {real}.",
                case=case,
                idea=_why_positions(mask, row, real, want),
            )
        # What padding gets is never read. But a model looks it up all the same, so it must exist.
        outside = [position for position in positions[:padding] if not 0 <= position < len(line)]
        if outside:
            raise Mistake(
                f"the tokens of row {row} are right, but padding got position {outside[0]}.",
                case=case,
                idea="Nobody reads what padding computes, so any valid position will do, such as 0. But the model looks it up in a table, "
                f"and {outside[0]} is not in the table.",
            )


def _why_positions(mask, row: int, real, want) -> str:
    padding = mask[row].count(0)
    above = sum(map(sum, mask[:row]))
    if real == [p + 1 for p in want]:
        return "Your first token has position 1; positions begin at 0. `cumsum` counts the token itself."
    if padding and real == [p + padding for p in want]:
        return "You count the padding too. Counted from its own first token, a prompt has the same positions in every wave and alone."
    if len(want) > 1 and real == want[::-1]:
        return "You count from the end. The first real token has position 0, and positions grow to the right."
    if len(real) > 1 and len(set(real)) == 1:
        return "All your tokens share one position. Each token is one further than the one before."
    if above and real == [p + above for p in want]:
        return "You go on counting from the row above. Every row begins at 0 again."
    if row:
        return "Count along the columns, dimension 1: each row by itself. You may be counting down the rows."
    return "The position of a token is the number of real tokens before it in its own row."


# 01.3 wave_steps

WAVE_CASES = (
    ([3], 1),
    ([6, 9, 1, 2], 4),
    ([5, 2], 1),
    ([2, 5, 4, 1, 3], 2),
    ([3, 4], 5),
    ([20, 30, 40, 60], 4),
    ([30, 60, 100, 20, 80, 40], 4),
    ([], 3),
)


def test_wave_steps(attempt) -> None:
    for lengths, batch_size in WAVE_CASES:
        case = f"wave_steps({lengths}, batch_size={batch_size})"
        got = call(attempt, list(lengths), batch_size, case=case)
        want = wave_steps(lengths, batch_size)
        got = got.tolist() if hasattr(got, "tolist") and not isinstance(got, (int, float)) else got
        if not isinstance(got, (list, tuple)):
            total = " You seem to add the waves up." if got == sum(want) and len(want) > 1 else ""
            raise Mistake(f"it should return a list, the steps of each wave, here {want}; yours returned {_kind(got)}.{total}", case=case, idea="One number for each wave.")
        if list(got) != want:
            raise Mistake(f"the waves should take {want} steps; yours take {short(list(got))}.", case=case, idea=_why_steps(lengths, batch_size, want, list(got)))


def _why_steps(lengths, size: int, want, got) -> str:
    waves = [lengths[i : i + size] for i in range(0, len(lengths), size)]
    if got == [w + 1 for w in want]:
        return "One too many: the prefill gives the first token already. An answer of n tokens takes n passes, the prefill among them."
    if got == [w - 1 for w in want]:
        return "One too few: the prefill is a forward pass too, and it gives the first token."
    if any(len(wave) > 1 for wave in waves):
        for name, rule in (
            ("You add the lengths up. The rows of a wave are computed in the same pass: one step serves all of them.", sum),
            ("You take the mean. A wave cannot leave before its longest answer is done.", lambda wave: sum(wave) / len(wave)),
            ("You stop with the shortest answer; the others of its wave have not finished then.", min),
        ):
            if got in ([rule(wave) for wave in waves], [int(rule(wave)) for wave in waves], [-int(-rule(wave) // 1) for wave in waves]):
                return name
        if got == [wave[-1] for wave in waves] or got == [wave[0] for wave in waves]:
            return "You look at one request of each wave by its place. The longest one decides, wherever it sits."
    if got == want[:-1]:
        return "The last wave is missing. It may have fewer requests than `batch_size`, and it is computed all the same."
    if got in (wave_steps(sorted(lengths), size), wave_steps(sorted(lengths, reverse=True), size)):
        return "You seem to sort the requests. How long an answer will be is not known when it begins, so waves follow the order of arrival."
    if len(want) > 1 and got == [max(lengths)] * len(want):
        return "You give every wave the longest answer of all. A wave waits for its own longest answer only."
    parts = [lengths[i::size] for i in range(size)]
    if got == [max(part) for part in parts if part] or len(got) == size != len(want):
        return "`batch_size` is the number of requests in a wave, not the number of waves. The first wave is `answer_lengths[:batch_size]`."
    if len(got) > len(want):
        return "There are more numbers than waves. Waves do not overlap: the next one begins `batch_size` requests later."
    return "Cut the list into pieces of `batch_size`, in order, and take the longest answer of each piece."


# 01.4 generate_wave


@dataclass(frozen=True)
class WaveCase:
    """One wave on a tiny model."""

    prompts: tuple[tuple[int, ...], ...]
    caps: tuple[int, ...]
    eos: int | None = None
    pad: int = 0
    family: str = "gpt2"  # its positions are absolute, so a wrong one shows at once

    def __str__(self) -> str:
        end = "" if self.eos is None else f", eos_token_id={self.eos}"
        return f"prompt_ids={[list(ids) for ids in self.prompts]}, caps={list(self.caps)}, pad_token_id={self.pad}{end}, on a tiny {self.family} model."


@dataclass
class Seen:
    """What the model was given in each pass: `forwards` as recorded, masks and positions as nested lists or None."""

    forwards: list[Forward]
    masks: list = field(default_factory=list)
    positions: list = field(default_factory=list)


# On these prompts the tiny gpt2 model never says a token twice, so that a mistake in any step shows.
FIRST, SECOND, THIRD = (80, 13, 34), (90, 70), (81, 42, 14, 90, 71)
SAYS_ZERO = (22, 43)  # its second token is 0, which Python takes for False


@lru_cache(maxsize=None)
def _expected(case: WaveCase) -> tuple[tuple[int, ...], ...]:
    model = tiny_model(case.family)
    return tuple(tuple(greedy_with_cache(model, list(ids), cap, case.eos)) for ids, cap in zip(case.prompts, case.caps))


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
        _refuse_extra_work(case, want, seen)


def _run_wave(attempt, case: WaveCase, want):
    model = tiny_model(case.family)
    arguments = [[list(ids) for ids in case.prompts], list(case.caps), case.pad] + ([] if case.eos is None else [case.eos])
    with _recorded(model) as seen:
        try:
            return call(attempt, model, *arguments, case=str(case)), seen
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if not isinstance(error, NotImplementedError):
                _name_wrong_inputs(case, want, seen, len(seen.forwards), f" PyTorch said: {str(error)[:120]}")
            raise


@contextmanager
def _recorded(model):
    seen = Seen([])

    def note(module, args, kwargs):
        for name, kept in (("attention_mask", seen.masks), ("position_ids", seen.positions)):
            value = kwargs.get(name)
            kept.append(value.tolist() if isinstance(value, torch.Tensor) else value)

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with watch_forwards(model) as seen.forwards:
            yield seen
    finally:
        hook.remove()


def _as_rows(got, case: WaveCase) -> list[list[int]]:
    if isinstance(got, torch.Tensor) or not isinstance(got, (list, tuple)):
        raise Mistake(
            f"it should return a list of {len(case.prompts)} lists of int; yours returned {_kind(got)}.",
            case=str(case),
            idea="Answers have unequal lengths, so they do not fit into a tensor. Keep one list a row and append to it.",
        )
    for row, answer in enumerate(got):
        if not isinstance(answer, (list, tuple)):
            raise Mistake(
                f"answer {row} should be a list of int; yours is {_kind(answer)}.",
                case=str(case),
                idea="One list for each row, also when the wave has only one row. `.tolist()` turns a tensor into a list.",
            )
    if len(got) != len(case.prompts):
        raise Mistake(f"{len(case.prompts)} prompts should give {len(case.prompts)} answers; yours are {len(got)}.", case=str(case), idea="One answer a row, in the order of the prompts.")
    try:
        return [[int(token) for token in answer] for answer in got]
    except (TypeError, ValueError, RuntimeError):
        odd = next(t for answer in got for t in answer if not isinstance(t, int))
        raise Mistake(f"answers should hold token ids, which are integers; yours hold {_kind(odd)}.", case=str(case), idea="`next_tokens.tolist()` gives one int a row.") from None


def _name_wave_mistake(case: WaveCase, want, got, seen: Seen) -> None:
    row = next(r for r in range(len(want)) if got[r] != want[r])
    expected, answer, prompt = want[row], got[row], list(case.prompts[row])
    what = f"row {row} should be {short(expected)}; yours is {short(answer)}."
    common = next((i for i, (a, b) in enumerate(zip(expected, answer)) if a != b), min(len(expected), len(answer)))
    if answer[: len(prompt)] == prompt and answer[len(prompt) :] == expected:
        idea = "You return the prompt as well. The answer is only what is new."
    elif common == len(expected):
        idea = _why_too_long(case, expected, answer, want)
    elif common == len(answer):
        idea = _why_too_short(case, expected, answer, want, row)
    else:
        _name_wrong_inputs(case, want, seen, common + 1)
        if row and answer[common] == want[0][common if common < len(want[0]) else -1]:
            idea = "This row got the token of row 0. Take the argmax of every row's own logits: `.logits[:, -1].argmax(dim=-1)`."
        elif case.eos is not None and case.eos == expected[common]:
            idea = "The end token itself is part of the answer; put no other token in its place."
        else:
            idea = f"The first wrong token is number {common}. What the model was fed looks right, so look at how you read the logits: the last column, each row its own."
    raise Mistake(what, case=str(case), idea=idea)


def _why_too_long(case: WaveCase, expected, answer, want) -> str:
    if case.eos is not None and expected[-1] == case.eos:
        if case.eos == 0:
            return "Token 0 ends this answer, and 0 counts as false in Python. Compare with `token == eos_token_id`, never `if eos_token_id`."
        if set(answer[len(expected) :]) <= {case.pad, case.eos}:
            return "You append padding to a row that has ended. Its answer stays as it was while the others go on."
        return "You append tokens after the end token. The row is still computed, but its further tokens are thrown away."
    if len(set(case.caps)) > 1 and len(answer) == max(case.caps):
        return "You use one cap for all rows. Row i may have `caps[i]` tokens; while others go on, its tokens are thrown away."
    if len(answer) == len(expected) + 1:
        return "One token too many: the prefill's token counts as well. Ask whether a row is full right after appending."
    return "Your row goes on past its cap. Stop appending when it holds `caps[row]` tokens."


def _why_too_short(case: WaveCase, expected, answer, want, row: int) -> str:
    others = [len(w) for i, w in enumerate(want) if i != row]
    if case.eos in case.prompts[row] and len(answer) <= 1:
        return "You stop at an end token that stands in the prompt or in the padding. Only a new token can end an answer."
    if case.eos is not None and expected[-1] == case.eos and len(answer) == len(expected) - 1:
        return "The end token is missing. It is part of the answer: append first, then ask whether it was the last."
    if len(set(case.caps)) > 1 and len(answer) == min(case.caps):
        return "You give every row the smallest cap. Each row has a cap of its own."
    if others and len(answer) == min(others):
        return "You stop the wave when its first row ends. It goes on until no row is running: `while any(running)`."
    if len(answer) == len(expected) - 1:
        return "One token too few: the prefill gives the first token, and each decode step one more."
    return "The row ended before its cap and without an end token."


def _name_wrong_inputs(case: WaveCase, want, seen: Seen, passes: int, error: str = "") -> None:
    """Raise for the first pass that was not given what it needs; return when none is found."""
    longest = max(map(len, case.prompts))
    for number in range(min(passes, len(seen.masks))):
        name = "the prefill" if number == 0 else f"decode step {number}"
        ids = seen.forwards[number].input_ids if number < len(seen.forwards) else None
        for name_input in (_wrong_tokens, _wrong_mask, _wrong_positions):
            fault = name_input(case, want, number, name, longest, ids, seen)
            if fault:
                raise Mistake(fault[0] + error, case=str(case), idea=fault[1])


def _wrong_tokens(case: WaveCase, want, number: int, name: str, longest: int, ids, seen: Seen):
    if ids is None:
        return None
    if number == 0:
        if len(ids) == 1 and len(case.prompts) > 1:
            return f"{name} fed 1 row; it should feed all {len(case.prompts)} rows at once.", "A wave is one batch: one forward pass for all its rows."
        lasts = [line[-1] for line in ids]
        if len(ids) == len(case.prompts) and lasts != [prompt[-1] for prompt in case.prompts]:
            return f"{name} has the tokens {lasts} in its last column; the last token of every prompt belongs there.", "Pad on the left, with `pad_left`."
        return None
    cached = seen.forwards[number].cached
    if not seen.forwards[number].keeps_cache:
        if len(ids[0]) == 1:
            return f"{name} fed one token and no cache.", "Without `past_key_values` the model knows nothing of the tokens before. Give it the cache of the prefill."
        return None
    if len(ids[0]) != 1:
        return (
            f"{name} fed {len(ids[0])} tokens of each row; it should feed 1, the newest.",
            f"The cache holds {cached} columns already. What you feed again is added to it a second time.",
        )
    fed = [line[0] for line in ids]
    for row, answer in enumerate(want):
        if len(fed) == len(want) and number < len(answer) and fed[row] != answer[number - 1]:
            if fed[row] == case.prompts[row][-1]:
                return f"{name} fed token {fed[row]} to row {row}; it should feed {answer[number - 1]}.", "You feed the last token of the prompt again. Feed the token that the pass before produced."
            return f"{name} fed token {fed[row]} to row {row}; it should feed {answer[number - 1]}, the token that the pass before produced.", "The input of a decode step is each row's newest token: `next_tokens[:, None]`."
    return None


def _wrong_mask(case: WaveCase, want, number: int, name: str, longest: int, ids, seen: Seen):
    mask = seen.masks[number]
    padded = any(len(prompt) < longest for prompt in case.prompts)
    rows_as_given = ids is None or len(ids) == len(case.prompts)
    if not rows_as_given or mask is None and not padded:
        return None
    if mask is None:
        return f"{name} had no `attention_mask`.", "Without it the shorter rows read their padding as if it were text. Pass the mask in every forward pass."
    expected = [[0] * (longest - len(prompt)) + [1] * (len(prompt) + number) for prompt in case.prompts]
    if mask == expected:
        return None
    if not isinstance(mask[0], list) or isinstance(mask[0][0], list):
        return None  # a mask of another form, which may be right
    if len(mask[0]) != longest + number:
        idea = (
            "Append a column of ones after every pass: the token that comes next is real in every row."
            if len(mask[0]) >= longest
            else "The mask is about everything that the new token may look at, what is in the cache too, not about the new token alone."
        )
        return f"{name} had a mask of {len(mask[0])} columns; the cache holds {longest + number - 1 if number else 0} and {1 if number else longest} are fed, so it needs {longest + number}.", idea
    row = next(r for r in range(len(mask)) if mask[r] != expected[r])
    if all(g == 1 - w for line, wanted in zip(mask, expected) for g, w in zip(line, wanted)):
        idea = "It is inverted: 1 is for tokens, 0 for padding."
    elif number and mask[row][-1] == 0:
        idea = "You append a 0 for the new token, which hides it. New tokens are real: append a 1."
    elif all(all(line) for line in mask):
        idea = "A mask of ones hides nothing: the padding of the prompts must stay hidden in every decode step too."
    else:
        idea = "0 on the padding, 1 on everything else, and one more 1 after every pass."
    return f"{name} had the mask {short(mask[row])} for row {row}; it should be {short(expected[row])}.", idea


def _wrong_positions(case: WaveCase, want, number: int, name: str, longest: int, ids, seen: Seen):
    positions = seen.positions[number]
    padded = any(len(prompt) < longest for prompt in case.prompts)
    if ids is not None and len(ids) != len(case.prompts):
        return None
    if positions is None:
        if not padded:
            return None
        return f"{name} had no `position_ids`.", "Left to itself, the model counts columns, padding included. Pass each row's own positions in every forward pass."
    if len(positions) != len(case.prompts):
        return None
    for row, prompt in enumerate(case.prompts):
        expected = list(range(len(prompt))) if number == 0 else [len(prompt) + number - 1]
        got = positions[row][-len(prompt) :] if number == 0 else positions[row]
        if got == expected:
            continue
        what = f"{name} gave row {row} {_numbered('position', got)}; it should be {', '.join(map(str, expected))}."
        if number and len(got) != 1:
            return what, "One new token has one position. Keep only the last column of the positions and add 1."
        if number and got == [expected[0] - number] or number > 1 and got == [len(prompt)]:
            return what, "Your positions stand still. Every new token is one further than the one before: add 1 in each step."
        if number and got == [longest + number - 1]:
            return what, "You give every row the position of the longest one, so padding is counted. Go on from each row's own last position."
        if number and got[0] == 0:
            return what, "You begin to count at 0 again. The new token comes after the prompt: the last position of the row, plus 1."
        return what, "The position of a token is the number of real tokens before it in its own row."
    return None


def _refuse_extra_work(case: WaveCase, want, seen: Seen) -> None:
    """The answers are right; refuse what costs more than a wave costs."""
    needed = max(map(len, want))
    again = [n for n, forward in enumerate(seen.forwards) if n and forward.tokens > 1]
    if again and len(seen.forwards) <= needed:
        forward = seen.forwards[again[0]]
        raise Mistake(
            f"the answers are right, but decode step {again[0]} fed {forward.tokens} tokens of each row; it should feed 1, the newest.",
            case=str(case),
            idea=f"The cache holds {forward.cached} tokens already. What you feed again is added to it a second time."
            if forward.keeps_cache
            else "You compute the whole sequence again in every step. Keep one cache through all passes, as in lesson 00, and feed `[B, 1]`.",
        )
    if len(seen.forwards) > needed:
        alone = len(case.prompts) > 1 and all(forward.rows == 1 for forward in seen.forwards)
        idea = (
            "You serve the rows one after the other. One pass computes all rows at once: that is what a batch is for."
            if alone
            else "You go on after the last row has ended. Ask before every pass whether a row is still running."
        )
        raise Mistake(f"the answers are right, but the wave took {len(seen.forwards)} forward passes; its longest answer needs {needed}.", case=str(case), idea=idea)


def _numbered(noun: str, numbers: list) -> str:
    return noun + ("s " if len(numbers) != 1 else " ") + ", ".join(map(str, numbers))


def _kind(value) -> str:
    """What something is, in a few words."""
    if value is None:
        return "None (is a `return` missing?)"
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    return f"{type(value).__name__} {short(value, 60)}"


EXERCISES = [
    Exercise(
        id="01.1",
        title="pad to a rectangle",
        reference="lessons_lib.static_batching:pad_left",
        test=test_pad_left,
        hints=(
            "A rectangle needs rows of one length. The longest prompt sets it; the others get padding in front, and the mask says how much.",
            "For each prompt: count how many cells are missing, `longest - len(ids)`. Its row is that many padding tokens, then the prompt. "
            "Its mask is that many 0, then a 1 for each token.",
            "`longest = max(len(ids) for ids in prompt_ids)`; for each prompt `pad = longest - len(ids)`, the row `[pad_token_id] * pad + list(ids)` and "
            "the mask `[0] * pad + [1] * len(ids)`; at the end `torch.tensor(rows), torch.tensor(masks)`.",
        ),
    ),
    Exercise(
        id="01.2",
        title="positions from the mask",
        reference="lessons_lib.static_batching:positions_from_mask",
        test=test_positions_from_mask,
        hints=(
            "The position of a token is the number of real tokens before it in its own row. The mask has a 1 for each real token.",
            "A running sum of the mask along each row counts the real tokens so far, the present one included. Take that one off again. "
            "Then look at what padding got.",
            "`attention_mask.cumsum(dim=1) - 1` is right on tokens and -1 on padding; `.clamp(min=0)` makes a valid position of it.",
        ),
    ),
    Exercise(
        id="01.3",
        title="steps of each wave",
        reference="lessons_lib.static_batching:wave_steps",
        test=test_wave_steps,
        hints=(
            "One step gives one token to every row of the wave. So the row that wants most tokens decides how many steps there are.",
            "Cut the list into waves of `batch_size`, in order; `waves(answer_lengths, batch_size)` does it. Of each wave take one number.",
            "`[max(wave) for wave in waves(answer_lengths, batch_size)]`",
        ),
    ),
    Exercise(
        id="01.4",
        title="the loop over one wave",
        reference="lessons_lib.static_batching:generate_wave",
        test=test_generate_wave,
        points=4,
        hints=(
            "It is the loop of lesson 00 with B rows. Three things change with every pass: what is fed, the mask, the positions. And each row "
            "has to be asked whether it has ended; the wave ends when none is running.",
            "Before the loop: pad, positions, an empty `DynamicCache`, `answers = [[] for _ in prompt_ids]`, `running = [True] * B`. "
            "In the loop: call the model with `input_ids`, `attention_mask`, `position_ids`, `past_key_values`; take the argmax of the last column of every row; "
            "append to the rows that are running, then see whether they have ended. Then feed the new tokens, append a 1 to every row of the mask, and "
            "take the last position plus 1.",
            "`for row, token in enumerate(next_tokens.tolist()): if running[row]: answers[row].append(token); running[row] = token != eos_token_id and "
            "len(answers[row]) < caps[row]`. For the next pass: `input_ids = next_tokens[:, None]`, "
            "`attention_mask = torch.cat([attention_mask, torch.ones_like(input_ids)], dim=1)`, `position_ids = position_ids[:, -1:] + 1`.",
        ),
    ),
]


QUIZ = [
    Question(
        "Three requests want 10, 10 and 100 tokens. They go through the model as one wave. How many forward passes does the wave take?",
        (
            Choice("40, the mean", "The mean says how long a request would take on average. But the wave cannot leave before its longest answer is done."),
            Choice("100", "One pass gives a token to every row. The longest answer needs 100 passes, the prefill among them; the other rows are computed along.", right=True),
            Choice("120", "That is how many it takes one after the other. In a wave one pass serves all three."),
            Choice("10, and the third row goes on alone", "Dropping rows that have ended makes the later passes cheaper, but there are still 100 of them. And static batching keeps the rows."),
        ),
    ),
    Question(
        "Why is padding put on the left?",
        (
            Choice("Because the model reads from right to left.", "It reads from left to right: every token looks at what stands before it."),
            Choice("Because padding on the left costs nothing.", "Padding costs as much on either side: every cell of the rectangle is computed."),
            Choice("So that the last column holds each row's newest token, where the next one is read off and appended.", "With padding on the right, the last column of a short row is padding, and new tokens would come after a gap.", right=True),
            Choice("Because the mask can only hide the beginning.", "The mask can hide any cell. With more bookkeeping, padding on the right can be made to work."),
        ),
    ),
    Question(
        "A row has 3 cells of padding and a prompt of 5 tokens. Which position does its first new token have?",
        (
            Choice("8", "That counts the padding. Alone, the same token would have another position, and a model with absolute positions would answer differently."),
            Choice("5", "The prompt has positions 0 to 4, so the next is 5. Padding does not count.", right=True),
            Choice("6", "The prompt's positions begin at 0, so its five tokens end at 4."),
            Choice("0", "The new token continues the row. Only the first token of the prompt has position 0."),
        ),
    ),
    Question(
        "A rotary model, such as the bundled one, is run with the right padding mask but without position ids. What happens?",
        (
            Choice("All stories of the wave turn into other stories.", "Each row is shifted by its own padding, but the differences of positions within a row stay as they were."),
            Choice("Next to nothing: attention sees only differences of positions, and a shift changes none.", "The numbers differ in the last digits. A model with absolute positions, such as GPT-2, does break.", right=True),
            Choice("The longest row breaks.", "The longest row has no padding, so its columns are its positions. It is the only row that could not change at all."),
        ),
    ),
    Question(
        "A wave of four is running; one answer was done after 20 of 100 steps. What happens in this row until step 100?",
        (
            Choice("It is skipped, so the steps become cheaper.", "The batch is a rectangle: every row is computed in every pass, and the result is thrown away."),
            Choice("The next request in the queue takes its place.", "That is continuous batching, the next lesson. In a static wave nobody enters before all have left."),
            Choice("It is computed on, its tokens are thrown away, and its answer is held back.", "The row costs what it cost before. This is the batch barrier.", right=True),
        ),
    ),
    Question(
        "Batch size goes from 4 to 8, with the same ragged requests. Which of these can grow or stay as it is, but never shrink?",
        (
            Choice("Tokens a second", "Often they grow, but not for certain: more rows a pass, and more of them computed for nothing."),
            Choice("The share of the tokens that is useful", "It falls: the longest answer and the longest prompt of eight are at least as long as those of four."),
            Choice("The number of tokens computed", "Every wave of eight is two old waves in one; each row is now as long as the longest of both. Useful tokens stay the same.", right=True),
        ),
    ),
]
