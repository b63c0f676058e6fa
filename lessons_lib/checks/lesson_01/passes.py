"""What the forward passes of one wave were given, which of them was given something wrong, and which were too many."""

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_01.words import count
from lessons_lib.recording.forward_passes import Forward, watch_forwards


@dataclass(frozen=True)
class WaveCase:
    """One wave on a tiny model."""

    prompts: tuple[tuple[int, ...], ...]
    max_tokens_each: tuple[int, ...]
    eos: int | None = None
    pad: int = 0
    family: str = "gpt2"  # its positions are absolute, so a wrong one shows at once

    def __str__(self) -> str:
        end = "" if self.eos is None else f", eos_token_id={self.eos}"
        return f"prompt_ids={[list(ids) for ids in self.prompts]}, caps={list(self.max_tokens_each)}, pad_token_id={self.pad}{end}, on a tiny {self.family} model."


@dataclass
class Seen:
    """What the model was given in each pass: `forwards` as recorded, masks and positions as nested lists or None.

    shapes: of `input_ids`, None where it is no tensor. by_position: arguments passed without a name. largest: token fed.
    A pass that raised has no entry in `forwards`, but one in all the others.
    """

    forwards: list[Forward]
    shapes: list = field(default_factory=list)
    by_position: list[int] = field(default_factory=list)
    largest: list[int] = field(default_factory=list)
    vocabulary: int = 0
    masks: list = field(default_factory=list)
    positions: list = field(default_factory=list)


@contextmanager
def recorded(model):
    seen = Seen([], vocabulary=model.config.vocab_size)

    def note(module, args, kwargs):
        ids = args[0] if args else kwargs.get("input_ids")
        seen.shapes.append(list(ids.shape) if isinstance(ids, torch.Tensor) else None)
        seen.by_position.append(len(args))
        seen.largest.append(int(ids.max()) if isinstance(ids, torch.Tensor) and ids.numel() else 0)
        for name, kept in (("attention_mask", seen.masks), ("position_ids", seen.positions)):
            value = kwargs.get(name)
            kept.append(value.tolist() if isinstance(value, torch.Tensor) else value)

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with watch_forwards(model) as seen.forwards:
            yield seen
    finally:
        hook.remove()


def name_wrong_inputs(case: WaveCase, want, seen: Seen, passes: int, error: str = "") -> None:
    """Raise for the first pass that was not given what it needs; return when none is found."""
    longest = max(map(len, case.prompts))
    for number in range(min(passes, len(seen.masks))):
        name = "the prefill" if number == 0 else f"decode step {number}"
        ids = seen.forwards[number].input_ids if number < len(seen.forwards) else None
        for name_input in (_wrong_call, _wrong_tokens, _wrong_mask, _wrong_positions):
            fault = name_input(case, want, number, name, longest, ids, seen)
            if fault:
                raise Mistake(fault[0] + error, case=str(case), idea=fault[1])


def _wrong_call(case: WaveCase, want, number: int, name: str, longest: int, ids, seen: Seen):
    if seen.by_position[number] > 1:
        return (
            f"{name} passed {seen.by_position[number]} arguments to the model by position.",
            "Pass arguments by name: `model(input_ids=..., attention_mask=..., position_ids=..., past_key_values=...)`. Their order differs from model to model, "
            "so a mask may land in the place of the cache.",
        )
    shape, rows = seen.shapes[number], len(case.prompts)
    if shape is not None and len(shape) != 2:
        wanted = f"[{rows}, {longest}], all prompts" if number == 0 else f"[{rows}, 1], one column"
        idea = (
            "`pad_left` gives a rectangle; feed it as it is."
            if number == 0
            else "One new token a row has shape [B]; `next_tokens[:, None]` makes the column [B, 1] of it. It comes from `.logits[:, -1]`, the last column."
        )
        return f"{name} fed `input_ids` of shape {shape}; it should be {wanted}.", idea
    if seen.largest[number] >= seen.vocabulary:
        return (
            f"{name} fed token {seen.largest[number]}; the vocabulary ends at {seen.vocabulary - 1}.",
            "`.argmax()` without `dim` counts through all rows of the logits. `.argmax(dim=-1)` takes the best token of each row.",
        )
    return None


def _wrong_tokens(case: WaveCase, want, number: int, name: str, longest: int, ids, seen: Seen):
    if ids is None:
        return None
    if number == 0:
        if len(ids) == 1 and len(case.prompts) > 1:
            return (
                f"{name} fed 1 row; it should feed all {len(case.prompts)} rows at once.",
                "A wave is one batch: one forward pass for all its rows.",
            )
        lasts = [line[-1] for line in ids]
        if len(ids) == len(case.prompts) and lasts != [prompt[-1] for prompt in case.prompts]:
            return (
                f"{name} has the tokens {lasts} in its last column; the last token of every prompt belongs there.",
                "Pad on the left, with `pad_left`.",
            )
        return None
    cached = seen.forwards[number].cached
    if not seen.forwards[number].keeps_cache:
        if len(ids[0]) == 1:
            return (
                f"{name} fed one token and no cache.",
                "Without `past_key_values` the model knows nothing of the tokens before. Give it the cache of the prefill.",
            )
        return None
    if len(ids[0]) != 1:
        return (
            f"{name} fed {len(ids[0])} tokens of each row; it should feed 1, the newest.",
            f"The cache holds {count(cached, 'column')} already. What you feed again is added to it a second time.",
        )
    fed = [line[0] for line in ids]
    for row, answer in enumerate(want):
        if len(fed) == len(want) and number < len(answer) and fed[row] != answer[number - 1]:
            if fed[row] == case.prompts[row][-1]:
                return (
                    f"{name} fed token {fed[row]} to row {row}; it should feed {answer[number - 1]}.",
                    "You feed the last token of the prompt again. Feed the token that the pass before produced.",
                )
            return (
                f"{name} fed token {fed[row]} to row {row}; it should feed {answer[number - 1]}, the token that the pass before produced.",
                "The input of a decode step is each row's newest token: `next_tokens[:, None]`.",
            )
    return None


def _wrong_mask(case: WaveCase, want, number: int, name: str, longest: int, ids, seen: Seen):
    mask = seen.masks[number]
    padded = any(len(prompt) < longest for prompt in case.prompts)
    rows_as_given = ids is None or len(ids) == len(case.prompts)
    if not rows_as_given or mask is None and not padded:
        return None
    if mask is None:
        return (
            f"{name} had no `attention_mask`.",
            "Without it the shorter rows read their padding as if it were text. Pass the mask in every forward pass.",
        )
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
        return (
            f"{name} had a mask of {count(len(mask[0]), 'column')}; {_cells(number, longest)}, so it needs {longest + number}.",
            idea,
        )
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
        return (
            f"{name} had no `position_ids`.",
            "Left to itself, the model counts columns, padding included. Pass each row's own positions in every forward pass.",
        )
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
            return (
                what,
                "Your positions stand still. Every new token is one further than the one before: add 1 in each step.",
            )
        if number and got == [longest + number - 1]:
            return (
                what,
                "You give every row the position of the longest one, so padding is counted. Go on from each row's own last position.",
            )
        if number and got[0] == 0:
            return (
                what,
                "You begin to count at 0 again. The new token comes after the prompt: the last position of the row, plus 1.",
            )
        return what, "The position of a token is the number of real tokens before it in its own row."
    return None


def refuse_extra_work(case: WaveCase, want, seen: Seen) -> None:
    """The answers are right; refuse what costs more than a wave costs."""
    needed = max(map(len, want))
    again = [n for n, forward in enumerate(seen.forwards) if n and forward.tokens > 1]
    if again and len(seen.forwards) <= needed:
        forward = seen.forwards[again[0]]
        raise Mistake(
            f"the answers are right, but decode step {again[0]} fed {forward.tokens} tokens of each row; it should feed 1, the newest.",
            case=str(case),
            idea=f"The cache holds {count(forward.cached, 'token')} already. What you feed again is added to it a second time."
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
        raise Mistake(
            f"the answers are right, but the wave took {count(len(seen.forwards), 'forward pass')}; its longest answer needs {needed}.",
            case=str(case),
            idea=idea,
        )


def _cells(number: int, longest: int) -> str:
    if number == 0:
        return f"the prefill feeds {count(longest, 'column')}"
    return f"the cache holds {longest + number - 1} and 1 is fed"


def _numbered(noun: str, numbers: list) -> str:
    return noun + ("s " if len(numbers) != 1 else " ") + ", ".join(map(str, numbers))
