"""The inputs of a wave's forward passes: records them, explains the first wrong one, and rejects unnecessary passes."""

import copy
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache

import torch
from transformers import PreTrainedModel

from lessons_lib.checks.exercise import Mistake, short
from lessons_lib.checks.lesson_01.words import count
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.recording.forward_passes import Forward, watch_forwards


@dataclass(frozen=True)
class WaveCase:
    """One wave on a tiny model."""

    prompts: tuple[tuple[int, ...], ...]
    max_tokens_each: tuple[int, ...]
    eos: int | None = None
    pad: int = 0
    family: str = "gpt2"  # it has absolute positions, so a wrong one changes the output at once
    model_end: int | None = None  # the end token in the model's configuration, which the answers must not depend on

    def __str__(self) -> str:
        end = "" if self.eos is None else f", eos_token_id={self.eos}"
        own = "" if self.model_end is None else f" with model.config.eos_token_id={self.model_end}"
        return (
            f"prompt_ids={short([list(ids) for ids in self.prompts])}, max_tokens_each={list(self.max_tokens_each)}, "
            f"pad_token_id={self.pad}{end}, on a tiny {self.family} model{own}."
        )

    @property
    def model(self) -> PreTrainedModel:
        return tiny_model(self.family) if self.model_end is None else _model_with_end(self.family, self.model_end)


@cache
def _model_with_end(family: str, end: int) -> PreTrainedModel:
    model = copy.deepcopy(tiny_model(family))
    model.config.eos_token_id = model.generation_config.eos_token_id = end
    return model


@dataclass
class Seen:
    """The model's inputs in each pass. A pass that raised has an entry in every list except `forwards`.

    Attributes:
        forwards: the passes as recorded.
        shapes: of `input_ids`, or None if it is not a tensor.
        by_position: the number of positional arguments.
        largest: the largest token id that was fed.
        vocabulary: the size of the model's vocabulary.
        masks, positions: nested lists, or None if not passed.
    """

    forwards: list[Forward]
    shapes: list = field(default_factory=list)
    by_position: list[int] = field(default_factory=list)
    largest: list[int] = field(default_factory=list)
    vocabulary: int = 0
    masks: list = field(default_factory=list)
    positions: list = field(default_factory=list)


@contextmanager
def recorded(model, most: int):
    """Record the inputs of the model's passes, and end a loop that makes more passes than `most`."""
    seen = Seen([], vocabulary=model.config.vocab_size)

    def note(module, args, kwargs):
        ids = args[0] if args else kwargs.get("input_ids")
        if len(seen.shapes) > most:
            raise ValueError("the loop doesn't end")
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
    """Raise for the first pass with a wrong input; return if there is none."""
    longest = max(map(len, case.prompts))
    for index in range(min(passes, len(seen.masks))):
        name = "the prefill" if index == 0 else f"decode step {index}"
        ids = seen.forwards[index].input_ids if index < len(seen.forwards) else None
        for name_input in (_wrong_call, _wrong_tokens, _wrong_mask, _wrong_positions):
            fault = name_input(case, want, index, name, longest, ids, seen)
            if fault:
                raise Mistake(fault[0] + error, case=str(case), idea=fault[1])


def _wrong_call(case: WaveCase, want, index: int, name: str, longest: int, ids, seen: Seen):
    if seen.by_position[index] > 1:
        return (
            f"{name} passed {seen.by_position[index]} positional arguments to the model.",
            "Pass the arguments by keyword: `model(input_ids=..., attention_mask=..., position_ids=..., "
            "past_key_values=...)`. Their "
            "order differs between models, so a mask may be taken for the cache.",
        )
    shape, rows = seen.shapes[index], len(case.prompts)
    if shape is not None and len(shape) != 2:
        wanted = f"[{rows}, {longest}], all prompts" if index == 0 else f"[{rows}, 1], one column"
        idea = (
            "`pad_left` returns a rectangle; feed it unchanged."
            if index == 0
            else f"The new tokens have shape [{rows}], one per row; `next_tokens[:, None]` turns them into the column "
            f"[{rows}, 1]. They come from `.logits[:, -1]`, the last column."
        )
        return f"{name} fed `input_ids` of shape {shape}; it should be {wanted}.", idea
    if shape is not None and index and shape[0] < rows == seen.shapes[0][0]:
        return (
            f"{name} fed {count(shape[0], 'row')}; the wave has {rows}.",
            "Do you take finished rows out of the batch? The cache still has them. A finished row stays until the wave "
            "is done: feed any token for it, and throw its result away.",
        )
    if seen.largest[index] >= seen.vocabulary:
        return (
            f"{name} fed token {seen.largest[index]}, but the largest token id is {seen.vocabulary - 1}.",
            "`.argmax()` without `dim` returns an index into the flattened logits of all rows. `.argmax(dim=-1)` "
            "returns the best token of each row.",
        )
    return None


def _wrong_tokens(case: WaveCase, want, index: int, name: str, longest: int, ids, seen: Seen):
    if ids is None:
        return None
    if index == 0:
        ends = [(row[-len(prompt) :], list(prompt)[-len(row) :]) for row, prompt in zip(ids, case.prompts)]
        if len(ids) == len(case.prompts) and len(ids[0]) < longest and all(fed == own for fed, own in ends):
            return (
                f"{name} fed {count(len(ids[0]), 'column')}; the longest prompt has {count(longest, 'token')}.",
                "You seem to cut the prompt. Every token of it counts: feed the rectangle that `pad_left` makes of the "
                "whole prompts.",
            )
        if len(ids) == 1 and len(case.prompts) > 1:
            return (
                f"{name} fed only 1 row; it should feed all {len(case.prompts)} rows at once.",
                "A wave is one batch: one forward pass for all its rows.",
            )
        lasts = [tokens[-1] for tokens in ids]
        if lasts != (own := [prompt[-1] for prompt in case.prompts]) and sorted(lasts) == sorted(own):
            return (
                f"{name} had the tokens {lasts} in its last column; the prompts end with {own}.",
                "Your rows are in another order than the prompts. Row i belongs to prompt i, in the answers too.",
            )
        if len(ids) == len(case.prompts) and lasts != own:
            return (
                f"{name} had the tokens {lasts} in its last column, which should hold the last token of every prompt.",
                "Pad on the left, with `pad_left`.",
            )
        return None
    cached = seen.forwards[index].cached
    if not seen.forwards[index].keeps_cache:
        if len(ids[0]) == 1:
            return (
                f"{name} fed one token and no cache.",
                "Without `past_key_values`, the model knows nothing about the earlier tokens. Pass it the cache that "
                "the prefill filled.",
            )
        return None
    if len(ids[0]) != 1:
        return (
            f"{name} fed {len(ids[0])} tokens of each row; it should feed 1, the newest.",
            f"The cache already holds {count(cached, 'column')}. What you feed again is stored a second time."
            if cached
            else "You seem to recompute the whole sequence with an empty cache. Create one cache before the loop and "
            "keep it.",
        )
    if cached == 0:
        return (
            f"{name} fed one token and an empty cache; the cache should hold {count(longest + index - 1, 'column')}.",
            "Do you create the `DynamicCache` inside the loop? Create it once before the loop and pass the same one to "
            "every pass.",
        )
    fed = [tokens[0] for tokens in ids]
    for row, answer in enumerate(want):
        if len(fed) == len(want) and index < len(answer) and fed[row] != answer[index - 1]:
            if fed[row] == case.prompts[row][-1]:
                return (
                    f"{name} fed token {fed[row]} to row {row}; it should feed {answer[index - 1]}.",
                    "You feed the last token of the prompt again. Feed the token that the previous pass produced.",
                )
            return (
                f"{name} fed token {fed[row]} to row {row}; it should feed {answer[index - 1]}, the token that the "
                "previous pass produced.",
                "The input of a decode step is each row's newest token: `next_tokens[:, None]`.",
            )
    return None


def _wrong_mask(case: WaveCase, want, index: int, name: str, longest: int, ids, seen: Seen):
    mask = seen.masks[index]
    padded = any(len(prompt) < longest for prompt in case.prompts)
    rows_as_given = ids is None or len(ids) == len(case.prompts)
    if not rows_as_given or (mask is None and not padded):
        return None
    if mask is None:
        return (
            f"{name} had no `attention_mask`.",
            "Without it, the shorter rows read their padding as text. Pass the mask in every forward pass.",
        )
    expected = [[0] * (longest - len(prompt)) + [1] * (len(prompt) + index) for prompt in case.prompts]
    if mask == expected:
        return None
    if not isinstance(mask[0], list) or isinstance(mask[0][0], list):
        return None  # a mask in another form, which may be right
    if len(mask[0]) != longest + index:
        idea = (
            "Append a column of ones after every pass, because each new token is real."
            if len(mask[0]) >= longest
            else "The mask covers everything that the new token may look at, including the cache, not just the new "
            "token itself."
        )
        return (
            f"{name} had a mask of {count(len(mask[0]), 'column')}; {_cells(index, longest)}, so the mask needs "
            f"{longest + index}.",
            idea,
        )
    row = next(r for r in range(len(mask)) if mask[r] != expected[r])
    if all(g == 1 - w for got_row, want_row in zip(mask, expected) for g, w in zip(got_row, want_row)):
        idea = "The mask is inverted: 1 is for tokens, 0 for padding."
    elif index and mask[row][-1] == 0:
        idea = "You append a 0 for the new token, which hides it. New tokens are real, so append a 1."
    elif index and mask[row] == [1] * index + expected[row][:-index]:
        idea = "You put the new column in front. The new token is in the last column, so append its 1 on the right."
    elif case.pad in case.prompts[row] and mask[row][:longest] == [
        *expected[row][: longest - len(case.prompts[row])],
        *(int(token != case.pad) for token in case.prompts[row]),
    ]:
        idea = (
            f"You seem to compare tokens with `pad_token_id`. This prompt contains token {case.pad} as text, which "
            "must stay visible. Use the mask that `pad_left` returns."
        )
    elif all(all(mask_row) for mask_row in mask):
        idea = "A mask of ones hides nothing. The padding of the prompts must stay hidden in every decode step, too."
    else:
        idea = "The mask is 0 on the padding and 1 everywhere else, and every pass appends another 1."
    return f"{name} had the mask {short(mask[row])} for row {row}; it should be {short(expected[row])}.", idea


def _wrong_positions(case: WaveCase, want, index: int, name: str, longest: int, ids, seen: Seen):
    positions = seen.positions[index]
    padded = any(len(prompt) < longest for prompt in case.prompts)
    if ids is not None and len(ids) != len(case.prompts):
        return None
    if positions is None:
        if not padded:
            return None
        return (
            f"{name} had no `position_ids`.",
            "By default, the model uses columns as positions, including the padding. Pass each row's own positions in "
            "every forward pass.",
        )
    if len(positions) != len(case.prompts):
        return None
    if not all(isinstance(row, list) for row in positions):
        rows = len(case.prompts)
        return (
            f"{name} passed `position_ids` of shape [{rows}]; it should be [{rows}, 1], the shape of `input_ids`.",
            "`[:, None]` turns one number per row into a column. A slice such as `[:, -1:]` keeps the axis in the "
            "first place.",
        )
    for row, prompt in enumerate(case.prompts):
        expected = list(range(len(prompt))) if index == 0 else [len(prompt) + index - 1]
        got = positions[row][-len(prompt) :] if index == 0 else positions[row]
        if got == expected:
            continue
        what = f"{name} gave row {row} {_numbered('position', got)}; expected {', '.join(map(str, expected))}."
        if index and len(got) != 1:
            return what, "One new token has one position. Keep only the last column of the positions and add 1."
        if index == 1 and got == [len(prompt) - 1]:
            return (
                what,
                "That is the position of the prompt's last token, which the new one follows. Do your positions advance "
                "by 1 in each step, from the first decode step on?",
            )
        if (index and got == [expected[0] - index]) or (index > 1 and got == [len(prompt)]):
            return (
                what,
                "Your positions don't advance. Every new token is one position further: add 1 in each step.",
            )
        if index and got == [longest + index - 1]:
            return (
                what,
                "You give every row the position of the longest one, which counts padding. Continue from each row's "
                "own last position.",
            )
        if index and got[0] == 0:
            return (
                what,
                "You start counting at 0 again. The new token comes after the prompt: use the row's last position plus "
                "1.",
            )
        return what, "The position of a token is the number of real tokens before it in its own row."
    row, lowest = min(enumerate(map(min, positions)), key=lambda pair: pair[1])
    if lowest < 0:
        return (
            f"{name} gave the padding of row {row} position {lowest}.",
            "Nothing uses the padding's results, but the model looks its position up, so it must be valid. "
            "`positions_from_mask` gives 0.",
        )
    return None


def refuse_extra_work(case: WaveCase, want, seen: Seen) -> None:
    """The answers are right; reject an attempt that does more work than a wave needs."""
    needed = max(map(len, want))
    again = [n for n, forward in enumerate(seen.forwards) if n and forward.tokens > 1]
    if again and len(seen.forwards) <= needed:
        forward = seen.forwards[again[0]]
        raise Mistake(
            f"the answers are right, but decode step {again[0]} fed {forward.tokens} tokens of each row; it should "
            "feed 1, the newest.",
            case=str(case),
            idea=f"The cache already holds {count(forward.cached, 'token')}. What you feed again is stored a second "
            "time."
            if forward.cached
            else "You recompute the whole sequence in every step. Keep one cache for all passes, as in lesson 00, and "
            "feed `[rows, 1]`.",
        )
    rows = len(case.prompts)
    if seen.forwards and seen.forwards[0].rows == len(set(case.prompts)) < rows and len(seen.forwards) == needed:
        raise Mistake(
            f"the answers are right, but the prefill computed {count(seen.forwards[0].rows, 'row')}; the wave has "
            f"{count(rows, 'request')}.",
            case=str(case),
            idea="You seem to compute equal prompts only once. Every request has a row of its own, and `pad_left` "
            "gives it one.",
        )
    for index, forward in enumerate(seen.forwards[:needed]):
        if forward.rows < len(case.prompts) and len(seen.forwards) == needed:
            raise Mistake(
                f"the answers are right, but decode step {index} computed only {forward.rows} of the wave's "
                f"{len(case.prompts)} rows.",
                case=str(case),
                idea="In static batching, a finished row stays in the batch until the wave ends. Feed any token for "
                "it and throw the result away.",
            )
    if len(seen.forwards) > needed:
        alone = len(case.prompts) > 1 and all(forward.rows == 1 for forward in seen.forwards)
        idea = (
            "You serve the rows one after the other. One pass can compute all rows at once: that is what a batch is "
            "for."
            if alone
            else "You keep going after the last row has finished. Before every pass, check whether any row is still "
            "running."
        )
        raise Mistake(
            f"the answers are right, but the wave took {count(len(seen.forwards), 'forward pass')}; its longest answer "
            f"needs {needed}.",
            case=str(case),
            idea=idea,
        )


def _cells(index: int, longest: int) -> str:
    if index == 0:
        return f"the prefill feeds {count(longest, 'column')}"
    return f"the cache holds {count(longest + index - 1, 'column')} and the step feeds 1"


def _numbered(noun: str, numbers: list) -> str:
    return noun + ("s " if len(numbers) != 1 else " ") + ", ".join(map(str, numbers))
