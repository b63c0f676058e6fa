"""Judges 05.3, `packed_forward`: one pass over the row, logits after each sequence's last token, the same as alone."""

from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache

from lessons_lib.attention.packing import PackedBatch, concatenate_caches, pack, packed_mask
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_05.requests import a_request
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

# (family, cached tokens, new tokens) of each sequence, smallest first.
CASES = (
    ("qwen2", [0], [3]),
    ("qwen2", [3], [1]),
    ("qwen2", [0, 0], [2, 3]),
    ("qwen2", [3, 2], [1, 1]),
    ("qwen2", [3, 0, 5], [1, 4, 1]),
    ("qwen2", [4, 1], [2, 3]),
    ("gpt2", [3, 0, 5], [1, 4, 1]),
    ("llama", [6, 2, 0, 9], [1, 1, 12, 1]),
)


@dataclass
class Seen:
    """What the model was given, and for how many tokens it computed logits, pass by pass."""

    passes: list[dict] = field(default_factory=list)
    logits_of: list[int] = field(default_factory=list)


def check_packed_forward(attempt) -> None:
    for family, cached, new in CASES:
        _check_case(attempt, family, cached, new)


@contextmanager
def _watch(model):
    """Records the passes through the model's layers, however they are reached."""
    seen = Seen()
    hooks = [
        model.base_model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.passes.append(dict(zip(("input_ids",), args)) | kwargs), with_kwargs=True
        ),
        model.get_output_embeddings().register_forward_pre_hook(
            lambda module, args: seen.logits_of.append(args[0].numel() // args[0].shape[-1])
        ),
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@torch.inference_mode()
def _alone(model, prompt: list[int], cached: int) -> tuple[DynamicCache, torch.Tensor]:
    """A sequence by itself: the cache of its first tokens, and the logits after its last one."""
    first, whole = DynamicCache(), DynamicCache()
    if cached:
        model(input_ids=torch.tensor([prompt[:cached]]), past_key_values=first)
    return first, model(input_ids=torch.tensor([prompt]), past_key_values=whole).logits[0]


def _check_case(attempt, family: str, cached: list[int], new: list[int]) -> None:
    names = "ABCD"[: len(new)]
    lengths = ", ".join(f"{name} with {n} new after {c} cached" for name, c, n in zip(names, cached, new))
    case = f"one row of {lengths}; a small {family} model."
    model = tiny_model(family)
    prompts = [a_request(name, c + n).prompt_ids for name, c, n in zip(names, cached, new)]
    alone = [_alone(model, prompt, c) for prompt, c in zip(prompts, cached)]
    packed = pack([prompt[c:] for prompt, c in zip(prompts, cached)], cached)
    joined = concatenate_caches([cache for cache, _ in alone])
    with _watch(model) as seen:
        try:
            got = call(attempt, model, packed, joined, case=case)
        except (RuntimeError, ValueError, IndexError, AttributeError, TypeError):
            _check_arguments(seen, packed, joined, case)
            raise
    _check_passes(seen, packed, case)
    got = _checked_shape(got, packed, case)
    want = torch.stack([logits[-1] for _, logits in alone])
    if not torch.allclose(got.float().cpu(), want, atol=2e-3, rtol=1e-3):
        _check_arguments(seen, packed, joined, case)
        raise _name_wrong_logits(got.float().cpu(), want, alone, names, case)
    if sum(seen.logits_of) > len(new):
        raise Mistake(
            f"the logits are right, but the model computed them for {sum(seen.logits_of)} tokens where {len(new)} would do.",
            case=case,
            idea="Logits are one number for each entry of the vocabulary. Hand the model `logits_to_keep=packed.logits_index`; picking them afterwards computes them all.",
        )
    if joined.get_seq_length() != sum(cached) + sum(new):
        what = f"after the pass the cache that was handed in should hold {sum(cached) + sum(new)} tokens; it holds {joined.get_seq_length()}."
        idea = "The keys and values of the new tokens are needed in the next step. Hand the model `cache` itself, not a copy."
        if seen.passes[0].get("past_key_values") is None:
            idea = "The keys and values of the new tokens are needed in the next step, and the model was given no cache to add them to: `past_key_values=cache`."
        raise Mistake(what, case=case, idea=idea)


def _check_passes(seen: Seen, packed: PackedBatch, case: str) -> None:
    if not seen.passes:
        raise Mistake("no forward pass was made.", case=case, idea="Call `model(...)` once.")
    if len(seen.passes) > 1:
        idea = "A loop over the sequences reads all weights once for each of them. Lay the whole row before the model at once; the mask keeps the sequences apart."
        raise Mistake(f"one row is one forward pass; yours made {len(seen.passes)}.", case=case, idea=idea)


def _checked_shape(got, packed: PackedBatch, case: str) -> torch.Tensor:
    want = [len(packed.new_lens), VOCAB_SIZE]
    if hasattr(got, "logits"):
        raise Mistake(
            f"you returned the model's whole output, {type(got).__name__}.",
            case=case,
            idea="Its logits are in `.logits`, of shape [1, sequences, vocabulary].",
        )
    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"the logits should be a tensor; yours are {type(got).__name__}.",
            case=case,
            idea="Return what the model has in `.logits`, without its first axis.",
        )
    if list(got.shape) == want:
        return got
    idea = "One line of logits for each sequence: those after its last token."
    if list(got.shape) == [1, *want]:
        idea = "The model puts the axis of the rows in front. There is one row: take `.logits[0]`."
    elif list(got.shape[-2:]) == [len(packed.input_ids), VOCAB_SIZE]:
        idea = "Those are the logits of every token in the row. Name the places you need: `logits_to_keep=packed.logits_index`."
    elif list(got.shape[-2:]) == [1, VOCAB_SIZE] or list(got.shape) == [VOCAB_SIZE]:
        idea = "That is one token's logits. `logits_to_keep=1` keeps the last of the row; hand over the tensor `packed.logits_index` instead."
    elif not got.is_floating_point():
        idea = "These look like tokens. The caller chooses them from the logits; return the logits."
    raise Mistake(f"the logits should have the shape {want}; yours have {list(got.shape)}.", case=case, idea=idea)


def _check_arguments(seen: Seen, packed: PackedBatch, joined, case: str) -> None:
    """What the model was given, when something is wrong with what came out."""
    given = seen.passes[-1] if seen.passes else {}
    ids, positions, mask = given.get("input_ids"), given.get("position_ids"), given.get("attention_mask")
    if ids is None:
        return
    if list(ids.shape) != [1, len(packed.input_ids)] or ids[0].tolist() != packed.input_ids.tolist():
        what = f"`input_ids` should be the row as a batch of one, {[1, len(packed.input_ids)]}: {short(packed.input_ids[None])}; yours is {short(ids)}."
        raise Mistake(what, case=case, idea="The model takes rows: `packed.input_ids[None]` puts an axis in front.")
    if given.get("past_key_values") is None and packed.cached_lens != [0] * len(packed.cached_lens):
        what = "the model was not given the cache, so no new token can see what came before it."
        raise Mistake(what, case=case, idea="`past_key_values=cache`. The mask has a column for each of its tokens.")
    if positions is None:
        what = (
            "the model was not given positions. Without them it counts on through the row, as if it were one sequence."
        )
        raise Mistake(what, case=case, idea="`position_ids=packed.positions[None]`.")
    if positions.flatten().tolist() != packed.positions.tolist():
        raise Mistake(
            f"the positions should be {short(packed.positions)}; the model was given {short(positions.flatten())}.",
            case=case,
            idea="`packed.positions` has them.",
        )
    want = packed_mask(packed)
    if mask is None:
        what = "the model was not given a mask, so a token attends to all sequences that lie before it in the cache and in the row."
        raise Mistake(
            what,
            case=case,
            idea="`attention_mask=packed_mask(packed)`, with two axes in front, for the rows and the heads.",
        )
    if not isinstance(mask, torch.Tensor) or list(mask.shape) != [1, 1, *want.shape]:
        shape = list(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        idea = "Rows, heads, queries, keys: `packed_mask(packed)[None, None]`. A mask with two axes is taken for a padding mask, as in lesson 01."
        raise Mistake(
            f"the mask should have the shape {[1, 1, *want.shape]}; the model was given {shape}.", case=case, idea=idea
        )
    allowed = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] > -1
    if mask.dtype != torch.bool and not bool((mask <= 0).all()):
        idea = "With bool, True means may attend. Numbers are added to the attention scores, and a 1 hides nothing."
        raise Mistake("the mask should hold bool; the model was given numbers.", case=case, idea=idea)
    if not torch.equal(allowed.cpu(), want):
        raise Mistake(
            "the mask lets tokens attend to others than those of their own sequence up to their own position.",
            case=case,
            idea="`packed_mask(packed)` is the mask of this pass.",
        )


def _name_wrong_logits(got, want, alone, names: str, case: str) -> Mistake:
    wrong = next(
        index for index in range(len(want)) if not torch.allclose(got[index], want[index], atol=2e-3, rtol=1e-3)
    )
    far = float((got[wrong] - want[wrong]).abs().max())
    idea = "Row i of the result is what the model says after the last new token of sequence i."
    for other, (_, logits) in enumerate(alone):
        for position, line in enumerate(logits):
            if torch.allclose(got[wrong], line, atol=2e-3, rtol=1e-3):
                at = f"position {position} of {names[other]}"
                idea = f"Yours are those after {at}. `packed.logits_index` says where each sequence's last token lies in the row."
    what = f"{names[wrong]}'s logits should be those of {names[wrong]} alone; they differ by up to {far:.2g}."
    return Mistake(what, case=case, idea=idea)
