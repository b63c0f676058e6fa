"""Judges 05.3, `packed_forward`: one pass over the row; each sequence's logits match those it gets alone."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch
from transformers import DynamicCache

from lessons_lib.attention.masks import Tags, block_diagonal_mask, tag_tokens
from lessons_lib.attention.packing import PackedBatch, concatenate_caches, key_tags, pack, packed_mask
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_01.words import count
from lessons_lib.checks.lesson_04.earlier_calls import depends_on_earlier_calls
from lessons_lib.checks.lesson_05.requests import a_request
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model

# (family, cached tokens, new tokens) of each sequence, smallest first.
CASES = (
    ("qwen2", [0], [3]),
    ("qwen2", [3], [1]),
    ("qwen2", [0, 0], [2, 3]),
    ("qwen2", [0, 0], [3, 2]),
    ("qwen2", [3, 2], [1, 1]),
    ("qwen2", [2, 3], [1, 1]),
    ("qwen2", [3, 0, 5], [1, 4, 1]),
    ("qwen2", [4, 1], [2, 3]),
    ("gpt2", [3, 0, 5], [1, 4, 1]),
    ("llama", [6, 2, 0, 9], [1, 1, 12, 1]),
)
# Pairs of (cached tokens, new tokens) of two sequences, with the same sums. No case above has these sums.
EARLIER = {
    "nothing cached": ((([0, 0], [5, 6]), ([0, 0], [6, 5])), (([0, 0], [7, 6]), ([0, 0], [6, 7]))),
    "1 new token each": ((([4, 5], [1, 1]), ([5, 4], [1, 1])), (([7, 6], [1, 1]), ([6, 7], [1, 1]))),
}


@dataclass
class Seen:
    """For each pass, the model's inputs and the number of tokens whose logits it computed."""

    passes: list[dict] = field(default_factory=list)
    logits_of: list[int] = field(default_factory=list)
    calls: list[tuple[int, dict]] = field(default_factory=list)  # arguments without a name, and those with one


def check_packed_forward(attempt) -> None:
    for family, cached, new in CASES:
        _check_case(attempt, family, cached, new)
    _check_devices(attempt)


@contextmanager
def _watch(model):
    """Records the passes through the model's layers, whichever way the model is called."""
    seen = Seen()
    hooks = [
        model.base_model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.passes.append(dict(zip(("input_ids",), args)) | kwargs), with_kwargs=True
        ),
        model.register_forward_pre_hook(
            lambda module, args, kwargs: seen.calls.append((len(args), kwargs)), with_kwargs=True
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
    """A sequence on its own: the cache of its first `cached` tokens, and the logits after each token."""
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
        except (RuntimeError, ValueError, IndexError, AttributeError, TypeError) as error:
            if len(seen.passes) > 1:
                _check_passes(seen, packed, case, ", and the last one failed")
            _check_arguments(seen, packed, joined, case)
            _check_second_selection(error, seen, packed, case)
            raise
    _check_passes(seen, packed, case)
    got = _checked_shape(got, packed, case)
    want = torch.stack([logits[-1] for _, logits in alone])
    if not _close(got.float().cpu(), want):
        _refuse_earlier_calls(attempt, model)
        _check_arguments(seen, packed, joined, case)
        raise _name_wrong_logits(got.float().cpu(), want, alone, names, case)
    if sum(seen.logits_of) > len(new):
        raise Mistake(
            f"the logits are right, but the model computed them for {sum(seen.logits_of)} tokens; {len(new)} would be "
            "enough.",
            case=case,
            idea="The logits of a token have one element per vocabulary entry. Pass "
            "`logits_to_keep=packed.logits_index` to the model; if you select rows afterwards, it has already "
            "computed them all.",
        )
    if joined.get_seq_length() != sum(cached) + sum(new):
        what = (
            f"after the pass, the cache that was passed in should hold {sum(cached) + sum(new)} tokens; it holds "
            f"{joined.get_seq_length()}."
        )
        idea = (
            "The next step needs the keys and values of the new tokens. Pass `cache` itself to the model, not a copy."
        )
        if seen.passes[0].get("past_key_values") is None:
            idea = (
                "The next step needs the keys and values of the new tokens, and the model had no cache to append them "
                "to: `past_key_values=cache`."
            )
        raise Mistake(what, case=case, idea=idea)


def _refuse_earlier_calls(attempt, model) -> None:
    def is_right(lens: tuple[list[int], list[int]]) -> bool:
        cached, new = lens
        prompts = [a_request(name, c + n).prompt_ids for name, c, n in zip("AB", cached, new)]
        alone = [_alone(model, prompt, c) for prompt, c in zip(prompts, cached)]
        packed = pack([prompt[c:] for prompt, c in zip(prompts, cached)], cached)
        got = attempt(model, packed, concatenate_caches([cache for cache, _ in alone]))
        return _close(got.float().cpu(), torch.stack([logits[-1] for _, logits in alone]))

    for words, pairs in EARLIER.items():
        if depends_on_earlier_calls(is_right, pairs):
            (old_cached, old_new), (cached, new) = pairs[0]
            what = f"{old_new} new tokens, then {new}" if old_new != new else f"{old_cached} cached, then {cached}"
            raise Mistake(
                "the logits depend on an earlier call: those of the first call are right, and those of the second "
                "aren't.",
                case=f"two rows of A and B, {words}: {what}.",
                idea="Does your code keep a mask from one call to the next, by its shape? Masks of the same shape can "
                "be of other sequences. Call `packed_mask(packed)` in each pass.",
            )


def _close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return torch.allclose(got, want, atol=2e-3, rtol=1e-3)


def _check_passes(seen: Seen, packed: PackedBatch, case: str, failed: str = "") -> None:
    if not seen.passes:
        raise Mistake("your code never called the model.", case=case, idea="Call `model(...)` once.")
    if len(seen.passes) > 1:
        idea = (
            "A loop over the sequences reads all weights again for each of them. Pass the whole row to the model at "
            "once; the mask keeps the sequences apart."
        )
        if len(packed.new_lens) == 1:
            idea = (
                "There is only one sequence here. Each pass appends the row's keys to the cache, so a second one would "
                "append them twice. Keep the result of the first."
            )
        raise Mistake(f"there should be one forward pass; yours made {len(seen.passes)}{failed}.", case=case, idea=idea)


def _check_second_selection(error: Exception, seen: Seen, packed: PackedBatch, case: str) -> None:
    """Selecting from the model's logits with `logits_index`, which counts in the row, if they are selected already."""
    selected = sum(seen.logits_of)
    if isinstance(error, IndexError) and selected == len(packed.new_lens) < len(packed.input_ids):
        raise Mistake(
            f"your code raised IndexError: {str(error).rstrip('.')}.",
            case=case,
            idea=f"The model computed the logits of {selected} of the row's {len(packed.input_ids)} tokens: "
            "`logits_to_keep` has selected them. `packed.logits_index` counts in the whole row. Is it used a second "
            "time?",
        ) from None


def _checked_shape(got, packed: PackedBatch, case: str) -> torch.Tensor:
    want = [len(packed.new_lens), VOCAB_SIZE]
    if hasattr(got, "logits"):
        raise Mistake(
            f"you returned the model's whole output, {type(got).__name__}.",
            case=case,
            idea="The logits are in `.logits`, with shape [1, sequences, vocabulary].",
        )
    if not isinstance(got, torch.Tensor):
        raise Mistake(
            f"the logits should be a tensor; yours are {type(got).__name__}.",
            case=case,
            idea="Return the model's `.logits` without the first axis.",
        )
    if list(got.shape) == want:
        return got
    idea = "Return one row of logits per sequence: those after its last token."
    if list(got.shape) == [1, *want]:
        idea = "The model's logits have a batch axis in front. The batch has just one row: take `.logits[0]`."
    elif list(got.shape) == [VOCAB_SIZE] and want[0] == 1:
        idea = (
            "The sequence axis is gone. Keep it even if there is only one sequence: `.logits[0]` instead of a squeeze."
        )
    elif list(got.shape[-2:]) == [len(packed.input_ids), VOCAB_SIZE]:
        idea = (
            "Those are the logits of every token in the row. Say which ones you need: "
            "`logits_to_keep=packed.logits_index`."
        )
    elif list(got.shape[-2:]) == [1, VOCAB_SIZE] or list(got.shape) == [VOCAB_SIZE]:
        idea = (
            "Those are the logits of a single token. `logits_to_keep=1` keeps only the last token of the row; pass the "
            "tensor `packed.logits_index` instead."
        )
    elif not got.is_floating_point():
        idea = "These look like token ids. The caller picks tokens from the logits, so return the logits."
    raise Mistake(f"the logits should have shape {want}; yours have {list(got.shape)}.", case=case, idea=idea)


def _check_arguments(seen: Seen, packed: PackedBatch, joined, case: str) -> None:
    """Raise for a wrong input of the model; called when the output is wrong."""
    by_position = seen.calls[-1][0] if seen.calls else 0
    if by_position > 1:
        raise Mistake(
            f"you passed {by_position} arguments to the model without their names.",
            case=case,
            idea="Their order differs from model to model: the second one is the mask in a Llama and the cache in a "
            "GPT-2. Pass them by name.",
        )
    inputs = seen.passes[-1] if seen.passes else {}
    ids, positions, mask = inputs.get("input_ids"), inputs.get("position_ids"), inputs.get("attention_mask")
    if ids is None:
        return
    if list(ids.shape) != [1, len(packed.input_ids)] or ids[0].tolist() != packed.input_ids.tolist():
        what = (
            f"`input_ids` should be the row with a batch axis of 1, of shape {[1, len(packed.input_ids)]}: "
            f"{short(packed.input_ids[None])}; yours is {short(ids)}."
        )
        idea = "The model expects a batch: `packed.input_ids[None]` adds an axis in front."
        if list(ids.shape) == [1, len(packed.input_ids)]:
            idea = "The tokens go in as they are in `packed.input_ids`."
        raise Mistake(what, case=case, idea=idea)
    if inputs.get("past_key_values") is None and packed.cached_lens != [0] * len(packed.cached_lens):
        what = "the model wasn't given the cache, so the new tokens can't see what came before them."
        raise Mistake(
            what, case=case, idea="Pass `past_key_values=cache`. The mask has a column for each of its tokens."
        )
    if positions is None:
        what = "the model wasn't given positions. Without them it counts through the row, as if it were one sequence."
        raise Mistake(what, case=case, idea="Pass `position_ids=packed.positions[None]`.")
    if positions.flatten().tolist() != packed.positions.tolist():
        raise Mistake(
            f"the positions should be {short(packed.positions)}; the model was given {short(positions.flatten())}.",
            case=case,
            idea="The right positions are in `packed.positions`.",
        )
    if list(positions.shape) != [1, len(packed.positions)]:
        raise Mistake(
            f"`position_ids` should have shape {[1, len(packed.positions)]}; yours has {list(positions.shape)}.",
            case=case,
            idea="The model expects a batch: `packed.positions[None]` adds an axis in front.",
        )
    want = packed_mask(packed)
    if mask is None:
        what = (
            "the model wasn't given a mask, so a token also attends to the other sequences before it, in the cache "
            "and in the row."
        )
        raise Mistake(
            what,
            case=case,
            idea="Pass `attention_mask=packed_mask(packed)[None, None]`, with two axes in front, for batch and heads.",
        )
    if not isinstance(mask, torch.Tensor) or list(mask.shape) != [1, 1, *want.shape]:
        shape = list(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        idea = (
            "The axes are batch, heads, queries, keys: `packed_mask(packed)[None, None]`. The model treats a mask "
            "with two axes as a padding mask, as in lesson 01."
        )
        if isinstance(mask, torch.Tensor) and mask.dim() == 3:
            idea = "One axis is missing. Batch and heads both come in front: `packed_mask(packed)[None, None]`."
        if isinstance(mask, torch.Tensor) and mask.dim() == 4:
            idea = (
                "A row for each new token, and a column for each key, cached and new: "
                "`packed_mask(packed)[None, None]`."
            )
        raise Mistake(
            f"the mask should have shape {[1, 1, *want.shape]}; the model was given {shape}.", case=case, idea=idea
        )
    if bool(mask.isnan().any()):
        idea = "0 × −∞ is NaN. Pass the bool mask itself: the model makes what it needs of it."
        raise Mistake("the mask contains NaN.", case=case, idea=idea)
    allowed = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] > -1
    if mask.dtype != torch.bool and not bool((mask <= 0).all()):
        idea = (
            "In a bool mask, True means allowed. A float mask is added to the attention scores, and a 1 hides nothing."
        )
        raise Mistake(f"the mask should be bool; the model was given {mask.dtype}.", case=case, idea=idea)
    if mask.dtype == torch.bool and torch.equal(allowed.cpu(), ~want):
        raise Mistake("the mask is inverted.", case=case, idea="True means that the token may attend to the key.")
    if not torch.equal(allowed.cpu(), want):
        idea = (
            "A token attends to the keys of its own sequence, at its own position or before. `packed_mask(packed)` "
            "builds this mask."
        )
        if order := _order_of_columns(allowed.cpu(), packed):
            idea = (
                f"Are your columns the keys in another order, {order}? In this pass, the cached keys of all sequences "
                "come first, then the new ones. `packed_mask(packed)` has a column for each key in this order."
            )
        what = f"the mask isn't right for this pass: {_first_wrong_cell(allowed.cpu(), want, packed)}"
        raise Mistake(what, case=case, idea=idea)
    keep = seen.calls[-1][1].get("logits_to_keep") if seen.calls else None
    if isinstance(keep, torch.Tensor) and len(keep) and int(keep.max()) >= len(packed.input_ids):
        idea = "Use `packed.logits_index`: the index in the row of each sequence's last token."
        if keep.tolist() == packed.cu_seqlens_q[1:].tolist():
            idea = (
                "The last token of a sequence is at the index before its end. `packed.logits_index` has these indices."
            )
        elif keep.tolist() == (packed.context_lens - 1).tolist():
            idea = (
                "Those are positions in the sequences, which count the cached tokens too. `packed.logits_index` has "
                "the indices in the row."
            )
        what = f"`logits_to_keep` is {keep.tolist()}, but the row has {count(len(packed.input_ids), 'token')}."
        raise Mistake(what, case=case, idea=idea)


def _order_of_columns(allowed: torch.Tensor, packed: PackedBatch) -> str:
    """The order of the keys for which this mask would be right, in words; empty if there is none."""
    queries = Tags(packed.seq_ids, packed.positions)
    orders = {
        "sequence by sequence": tag_tokens(packed.context_lens.tolist()),
        "the new ones first": queries.followed_by(tag_tokens(packed.cached_lens)),
    }
    right = [words for words, keys in orders.items() if torch.equal(allowed, block_diagonal_mask(queries, keys))]
    return next(iter(right), "")


def _first_wrong_cell(allowed: torch.Tensor, want: torch.Tensor, packed: PackedBatch) -> str:
    query, key = (allowed != want).nonzero()[0].tolist()
    keys = key_tags(packed)
    token, other = (
        f"{'ABCD'[int(ids[index])]}'s token at position {int(positions[index])}"
        for ids, positions, index in ((packed.seq_ids, packed.positions, query), (keys.seq_ids, keys.positions, key))
    )
    other = "itself" if other == token else other
    if bool(allowed[query, key]):
        return f"yours lets {token} attend to {other}."
    return f"yours doesn't let {token} attend to {other}."


class _ModelElsewhere:
    """A model on another device than the packed batch. A call notes the devices of its inputs; its logits are there."""

    device = torch.device("meta")

    def __init__(self):
        self.inputs: dict = {}

    def __call__(self, *args, **kwargs):
        self.inputs = dict(zip(("input_ids",), args)) | kwargs
        return SimpleNamespace(logits=torch.zeros(1, 2, VOCAB_SIZE, device=self.device))


def _check_devices(attempt) -> None:
    """Check that the inputs go to the model's device, and that the logits stay there. The device has no data."""
    model, moved = _ModelElsewhere(), False
    try:
        got = attempt(model, pack([[5, 6], [7]], [0, 0]), DynamicCache())
        moved = isinstance(got, torch.Tensor) and got.device != model.device
    except NotImplementedError as error:
        moved = bool(model.inputs) and "out of meta tensor" in str(error)
    except Exception:  # this stand-in can't do everything that a model does
        pass
    for name in ("input_ids", "position_ids", "attention_mask"):
        tensor = model.inputs.get(name)
        if isinstance(tensor, torch.Tensor) and tensor.device != model.device:
            raise Mistake(
                f"`{name}` is on the CPU, but the model isn't.",
                case="a model on another device, such as a GPU.",
                idea="`.to(model.device)` moves a tensor to the model's device. If it is there already, nothing is "
                "copied.",
            )
    if moved:
        raise Mistake(
            "the logits were copied off the model's device.",
            case="a model on another device, such as a GPU.",
            idea="The step takes their argmax there, and copies one token per sequence instead of a whole vocabulary.",
        )


def _name_wrong_logits(got, want, alone, names: str, case: str) -> Mistake:
    wrong = next(index for index in range(len(want)) if not _close(got[index], want[index]))
    difference = float((got[wrong] - want[wrong]).abs().max())
    idea = "Row i of the result should have the logits after the last new token of sequence i."
    if _close(got[wrong], want[wrong].softmax(-1)) or _close(got[wrong], want[wrong].log_softmax(-1)):
        idea = "These are probabilities or log probabilities. Return the logits as the model gives them."
    for other, (_, logits) in enumerate(alone):
        for position, row in enumerate(logits):
            if _close(got[wrong], row):
                idea = (
                    f"Yours are those after position {position} of {names[other]}. `packed.logits_index` has the "
                    "index of each sequence's last token in the row."
                )
    what = (
        f"{names[wrong]}'s logits should be the same as for {names[wrong]} alone; they differ by up to "
        f"{difference:.2g}."
    )
    return Mistake(what, case=case, idea=idea)
