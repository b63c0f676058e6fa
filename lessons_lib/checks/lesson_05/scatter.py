"""Judges 05.2, `scatter_cache`: from one joined cache, every sequence gets its old and new tokens, in every layer."""

from random import Random
from types import SimpleNamespace

import torch

from lessons_lib.attention.packing import cache_of, pack
from lessons_lib.batching.ragged_batching import ragged_generate
from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_01.words import count
from lessons_lib.checks.lesson_05.requests import answer_alone, ragged_requests
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.viz.words import marked

# (cached tokens, new tokens) of each sequence, smallest first.
CASES = (
    ([0], [2]),
    ([2], [1]),
    ([1, 1], [1, 1]),
    ([2, 1], [1, 1]),
    ([0, 3], [2, 1]),
    ([3, 0], [1, 2]),
    ([2, 0, 4], [1, 3, 1]),
    ([3, 5, 1], [2, 1, 4]),
)
KV_HEADS, HEAD_DIM, LAYERS = 2, 3, 3


def check_scatter_cache(attempt) -> None:
    for cached, new in CASES:
        _check_case(attempt, cached, new)
    rng = Random(5)
    for _ in range(15):
        cached = [rng.choice((0, 1, 7, 30)) for _ in range(rng.randint(1, 6))]
        _check_case(attempt, cached, [rng.choice((1, 1, 5)) for _ in cached])
    _check_in_use(attempt)


def _letter(sequence: int) -> str:
    return chr(ord("A") + sequence)


def _codes(cached: list[int], new: list[int]) -> list[int]:
    """The tokens of the joined cache as integers, 100 * sequence + position: all cached ones, then all new ones."""
    old = [100 * sequence + position for sequence, count in enumerate(cached) for position in range(count)]
    return old + [100 * s + p for s, (count, more) in enumerate(zip(cached, new)) for p in range(count, count + more)]


def _keys(codes: list[int], layer: int) -> torch.Tensor:
    """Keys in which every element encodes its token, layer, head and dimension."""
    heads = torch.arange(KV_HEADS).reshape(-1, 1, 1) / 10
    dims = torch.arange(HEAD_DIM) / 100
    return (torch.tensor(codes).reshape(1, -1, 1) + 1000.0 * layer + heads + dims)[None]


def _joined(cached: list[int], new: list[int]):
    codes = _codes(cached, new)
    return cache_of((_keys(codes, layer), -_keys(codes, layer) - 1) for layer in range(LAYERS))


def _check_case(attempt, cached: list[int], new: list[int]) -> None:
    lengths = ", ".join(f"{_letter(s)} with {c} cached and {n} new" for s, (c, n) in enumerate(zip(cached, new)))
    case = f"{lengths}. Joined: {_tokens(_codes(cached, new))}." if len(_codes(cached, new)) <= 16 else f"{lengths}."
    packed = pack([[1] * count for count in new], cached)
    got = _scattered(attempt, _joined(cached, new), packed, case)
    _check_kind(got, cached, case)
    for sequence, cache in enumerate(got):
        _check_cache(cache, sequence, cached, new, case)


def _scattered(attempt, joined, packed, case: str):
    """Call the attempt, and explain the error of sizes that don't add up."""
    try:
        return call(attempt, joined, packed, case=case)
    except RuntimeError as error:
        if "Sizes of tensors must match" in str(error):
            idea = (
                "The parts differ along another axis than the one you concatenate. The tokens are the third axis: "
                "`keys[:, :, start:end]`, and `dim=2` in `torch.cat`."
            )
            raise Mistake(f"these parts can't be concatenated: {str(error)[:160]}", case=case, idea=idea) from None
        if "split_with_sizes" not in str(error):
            raise
        idea = (
            "The tokens are the third axis, `dim=2`. The sizes must add up to all tokens of the joined cache: first "
            "the cached lengths of all sequences, then the new ones."
        )
        raise Mistake(f"the split sizes don't add up: {str(error)[:160]}", case=case, idea=idea) from None


def _check_kind(got, cached: list[int], case: str) -> None:
    num_seqs = len(cached)
    if not isinstance(got, (list, tuple)):
        idea = "Return a list with one cache per sequence, in the order of the row."
        raise Mistake(
            f"`scatter_cache` should return a list of caches; yours returned {type(got).__name__}.",
            case=case,
            idea=idea,
        )
    if len(got) != num_seqs:
        idea = "The loop over the sequences adds one cache each time. Does it return or stop too early?"
        if len(got) == sum(map(bool, cached)):
            idea = (
                "Every sequence gets a cache, even if nothing was cached before: its new tokens are in the joined "
                "cache."
            )
        if len(got) == LAYERS:
            idea = (
                "That is the number of layers. Did you group by layer, or add a cache inside the loop over the layers? "
                "Every sequence needs one cache, with its part of all layers."
            )
        raise Mistake(
            f"there should be {count(num_seqs, 'cache')}, one per sequence; yours returned {len(got)}.",
            case=case,
            idea=idea,
        )
    for sequence, cache in enumerate(got):
        if not hasattr(cache, "layers") or not hasattr(cache, "get_seq_length"):
            idea = "`cache_of(...)` makes a DynamicCache from one (keys, values) pair per layer."
            raise Mistake(
                f"{_letter(sequence)}'s cache should be a DynamicCache; yours is {type(cache).__name__}.",
                case=case,
                idea=idea,
            )
    if len({id(cache) for cache in got}) < num_seqs:
        idea = "`[DynamicCache()] * n` is the same object n times. Each sequence needs its own cache."
        raise Mistake("two sequences got the same cache object.", case=case, idea=idea)


def _check_cache(cache, sequence: int, cached: list[int], new: list[int], case: str) -> None:
    letter, length = _letter(sequence), cached[sequence] + new[sequence]
    if len(cache.layers) != LAYERS:
        idea = "Each layer of the model has its own keys and values, and the next pass needs all of them."
        if len(cache.layers) > LAYERS:
            idea = "Are there pairs of another sequence among them? Each sequence needs a new list of pairs."
        raise Mistake(
            f"{letter}'s cache should have {LAYERS} layers; yours has {len(cache.layers)}.", case=case, idea=idea
        )
    want = [100 * sequence + position for position in range(length)]
    for layer in range(LAYERS):
        for what in ("keys", "values"):
            found = getattr(cache.layers[layer], what, None)
            expected = _keys(want, layer) if what == "keys" else -_keys(want, layer) - 1
            if not (
                isinstance(found, torch.Tensor)
                and found.shape == expected.shape
                and torch.equal(found.float(), expected)
            ):
                raise _name_wrong_tokens(found, what, layer, sequence, cached, new, case)
    if cache.get_seq_length() != length:
        idea = "A layer must be marked as initialized. `cache_of` does that."
        raise Mistake(
            f"{letter}'s cache should report {length} tokens; it reports {cache.get_seq_length()}.",
            case=case,
            idea=idea,
        )


def _name_wrong_tokens(
    found, what: str, layer: int, sequence: int, cached: list[int], new: list[int], case: str
) -> Mistake:
    letter = _letter(sequence)
    where = f"{letter}'s cache, {what} of layer {layer}"
    if (
        not isinstance(found, torch.Tensor)
        or found.dim() != 4
        or (found.shape[0], *found.shape[1::2]) != (1, KV_HEADS, HEAD_DIM)
    ):
        shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        length = cached[sequence] + new[sequence]
        idea = "The tokens are the third axis: split and concatenate with `dim=2`."
        if isinstance(found, torch.Tensor) and found.dim() < 4:
            idea = "An axis is missing. Keep all four, the first one too: slices such as `[:, :, start:end]` keep them."
        return Mistake(
            f"{where}: the shape should be {[1, KV_HEADS, length, HEAD_DIM]}; yours is {shape}.", case=case, idea=idea
        )
    elements = found[0, 0, :, 0].float().nan_to_num()
    if bool((elements < 0).any()) != (what == "values") and len(elements):
        other = "values" if what == "keys" else "keys"
        return Mistake(
            f"{where}: these are {other}.",
            case=case,
            idea="You swapped them. `cache_of` takes (keys, values) pairs, in this order."
            if what == "keys"
            else "The keys of this layer are right. Take its values from `layer.values`.",
        )
    codes = [round(float(-element - 1 if what == "values" else element)) for element in elements]
    layers = {code // 1000 for code in codes}
    if layers != {layer} and codes:
        idea = "Every layer has its own keys and values. Split each layer of `joined` separately."
        return Mistake(f"{where}: these come from layer {', '.join(map(str, sorted(layers)))}.", case=case, idea=idea)
    codes = [code - 1000 * layer for code in codes]
    if codes == [100 * sequence + position for position in range(cached[sequence] + new[sequence])]:
        return Mistake(
            f"{where}: the tokens are right, but some of their elements are wrong.",
            case=case,
            idea="Split only along the token axis.",
        )
    want = [100 * sequence + position for position in range(cached[sequence] + new[sequence])]
    yours = marked(_tokens(want), _tokens(codes)) if codes else "nothing"
    return Mistake(
        f"{where}: it should hold {_tokens(want)}; yours holds {yours}.",
        case=case,
        idea=_why_tokens(codes, sequence, cached, new),
    )


def _why_tokens(codes: list[int], sequence: int, cached: list[int], new: list[int]) -> str:
    own = [100 * sequence + position for position in range(cached[sequence] + new[sequence])]
    row = _codes(cached, new)
    start = sum(cached[i] + new[i] for i in range(sequence))
    end = start + cached[sequence] + new[sequence]
    old_start, new_start = sum(cached[:sequence]), sum(new[:sequence])
    old = row[old_start : old_start + cached[sequence]]
    known = (
        (
            own[cached[sequence] :],
            "The cached tokens are missing. The next pass needs all of them: put the old ones before the new ones.",
        ),
        (
            own[: cached[sequence]],
            f"The new tokens are missing. In the joined cache they begin at index {sum(cached) + new_start}, after "
            "everything that was cached and the new tokens of the sequences before.",
        ),
        (
            own[cached[sequence] :] + own[: cached[sequence]],
            "The new tokens come before the old ones. A cache keeps its tokens in the order of their positions.",
        ),
        (
            row[start:end] if sequence == 0 else None,
            "These tokens are adjacent in the joined cache, but a sequence's tokens aren't: first come the cached "
            "tokens of all N sequences, then the new ones of all. Sequence i has parts i and N + i.",
        ),
        (
            old + row[new_start : new_start + new[sequence]],
            "You took the new tokens from the front of the joined cache. They begin after everything that was cached.",
        ),
        (row, "That is the whole joined cache. Each sequence takes only its own parts."),
        (
            old + row[len(row) - new[sequence] :] if len(set(cached)) == 1 else None,
            "You took the end of the joined cache for every sequence. The new tokens of sequence i come after those "
            "of the sequences before it.",
        ),
        (
            row[: cached[sequence]] + own[cached[sequence] :],
            "You took the cached tokens from the front for every sequence. Those of sequence i come after those of the "
            "sequences before it.",
        ),
    )
    for other in range(len(new)):
        if other != sequence and codes == [100 * other + position for position in range(cached[other] + new[other])]:
            return (
                f"Those are the tokens of {_letter(other)}, where {_letter(sequence)}'s should be. Are the caches in "
                "the order of the row, and does each part begin where its sequence does?"
            )
    for wrong, idea in known:
        if codes == wrong:
            return idea
    if codes == own[: len(codes)]:
        return (
            f"The end is missing. {_letter(sequence)} has {count(new[sequence], 'new token')} in the row "
            f"(`packed.new_lens`), and yours holds {len(codes) - cached[sequence]} of them."
        )
    if codes[: len(own)] == own:
        return (
            f"{_letter(sequence)}'s own tokens are right, but others follow. Its new part ends after "
            f"{count(new[sequence], 'token')} (`packed.new_lens`)."
        )
    begins = sum(cached) + new_start
    first = codes[: cached[sequence]]
    if first and first[0] in row and codes[len(first) :] == own[cached[sequence] :]:
        at = row.index(first[0])
        if row[at : at + len(first)] == first:
            return (
                f"The new tokens are right. Your old ones begin at index {at} of the joined cache. They should begin "
                f"at index {old_start}, after the cached tokens of the sequences before."
            )
    found = codes[cached[sequence] :]
    if codes[: cached[sequence]] == old and len(found) == new[sequence] and found[0] in row:
        at = row.index(found[0])
        if row[at : at + len(found)] == found:
            return (
                f"The old tokens are right. Your new ones begin at index {at} of the joined cache. They should begin "
                f"at index {begins}, after everything that was cached and the new tokens of the sequences before."
            )
    return (
        "The sizes of the parts, from left to right, are `packed.cached_lens`, then `packed.new_lens`. A sequence "
        "takes one part of each kind."
    )


def _tokens(codes: list[int]) -> str:
    """The tokens by name, such as "A0 A1 B0", with "?" for a code that isn't a token of the case."""
    return _shortened([f"{_letter(code // 100)}{code % 100}" if 0 <= code < 900 else "?" for code in codes])


def _shortened(words: list[str], limit: int = 16) -> str:
    return " ".join(words if len(words) <= limit else [*words[:8], "…", *words[-8:]])


def _check_in_use(attempt) -> None:
    """Check that the model can continue with these caches; comparing their contents doesn't show that."""
    prompts, max_tokens_each = ragged_requests(5, seed=3)
    case = (
        f"five requests with prompts of {[len(prompt) for prompt in prompts]} tokens and max_tokens "
        f"{max_tokens_each}, at most three per row, through `ragged_generate`."
    )
    tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=None)
    got = call(
        ragged_generate,
        tiny_model("qwen2"),
        tokenizer,
        prompts,
        case=case,
        max_new_tokens=max_tokens_each,
        max_num_seqs=3,
        scatter_cache=attempt,
    )
    for name, (prompt, max_tokens, answer) in enumerate(zip(prompts, max_tokens_each, got)):
        want = answer_alone(tuple(prompt), max_tokens)
        if answer != want:
            what = f"request {name} should get {short(want)}, as it does alone; it got {marked(want, answer)}."
            raise Mistake(
                what,
                case=case,
                idea="Does a later step change what an earlier one stored? Two caches must not share tensors.",
            )
