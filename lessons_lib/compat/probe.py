"""Lesson 12: check, before the first request, that the engine computes the same as the model.

A model that relies on a feature that the engine lacks yields wrong tokens without an error. So the engine serves two
short prompts of random tokens and compares its logits with those of Hugging Face's `generate`, one prompt at a time.
The probe is as hard as serving gets: both sequences in one packed batch, prompts in two chunks, scattered blocks, a few
decodes, and windows and other lengths so short that the prompts exceed them (see `lengths`). Layers that differ only in
their weights are probed once (see `shallow`).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel

from lessons_lib.compat.alone_runner import AloneRunner, forward_alone
from lessons_lib.compat.lengths import names_of_lengths, short_lengths
from lessons_lib.compat.shallow import shallow
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.hybrid.find_states import find_states
from lessons_lib.hybrid.hybrid_runner import HybridRunner
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import KVShape, UnsupportedModel, text_config
from lessons_lib.models.support import REMEDY, check_supported
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

PAGED, HYBRID, ALONE, RECOMPUTED = "paged", "hybrid", "alone", "recomputed"
PROMPT_LENGTHS = (8, 13)
NEW_TOKENS = 3
BLOCK_SIZE = 4
# Largest relative error of a row of logits. In float32, right and wrong are far apart: 1e-6 and 1. In bfloat16, tiny
# models that are served correctly differ by up to 0.03, so the probe misses a term that changes less than that.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.1}


@dataclass(frozen=True)
class ProbeResult:
    """The way to serve a model.

    Attributes:
        way: PAGED: by ModelRunner. HYBRID: by HybridRunner. ALONE: by AloneRunner. RECOMPUTED: by AloneRunner,
            without caches.
        layer_shapes: the keys and values of each layer, measured; see PagedKVCache.
        reason: why the model's sequences can't share a packed row; "" if they can.
    """

    way: str
    layer_shapes: list[KVShape]
    reason: str = ""


@dataclass(frozen=True)
class Reference:
    """The expected `logits` [NEW_TOKENS, vocabulary] after a sequence's last tokens. The final token isn't computed."""

    token_ids: list[int]
    logits: torch.Tensor


_probed: "WeakKeyDictionary[PreTrainedModel, ProbeResult]" = WeakKeyDictionary()


def probe(model: PreTrainedModel) -> ProbeResult:
    """Determine how a model can be served, by serving it. The result is kept for the lifetime of the model.

    The model doesn't change. The probe allocates a cache of a few blocks.

    Raises:
        UnsupportedModel: the model can't be served.
    """
    if model not in _probed:
        _probed[model] = _probe(model)
    return _probed[model]


@torch.inference_mode()
def _probe(model: PreTrainedModel) -> ProbeResult:
    check_supported(model)
    with undisturbed(model), short_lengths(model, lengths_of(model)):
        with shallow(model) as first_of_kind:
            if first_of_kind:
                with suppress(Exception):  # layers that can't run alone prove nothing: the whole model decides
                    shapes = paged_shapes(model, references_of(model))
                    return ProbeResult(PAGED, [shapes[first] for first in first_of_kind])
        references = references_of(model)
        reasons: list[str] = []
        for way, shapes_of in WAYS.items():
            try:
                return ProbeResult(way, shapes_of(model, references), reasons[1] if len(reasons) > 1 else "")
            except Exception as error:
                reasons.append(first_line(error))
        raise UnsupportedModel(
            f"{type(model).__name__} would give wrong answers: {reasons[1]}. Computing each sequence alone fails, too: "
            f"{reasons[2]}; without a cache: {reasons[3]}. {REMEDY}"
        )


def lengths_of(model: PreTrainedModel) -> list[str]:
    """Find the names of the model's lengths in its first layers; none if these fail."""
    with shallow(model):
        try:
            return names_of_lengths(model, max(random_prompts(model), key=len))
        except Exception:
            return []  # the error of `generate` will say why


def paged_shapes(model: PreTrainedModel, references: list[Reference]) -> list[KVShape]:
    """Serve a model with its attention over a paged cache; return the shape of each layer's keys and values.

    Raises:
        Exception: says why the model can't be served so; one of ours has no full stop.
    """
    runner = MeasuredRunner(model, num_blocks_for(references), BLOCK_SIZE, backend="torch")
    return checked_shapes(model, runner.cache, references, error_of(runner, references))


def hybrid_shapes(model: PreTrainedModel, references: list[Reference]) -> list[KVShape]:
    """`paged_shapes` of a model with stateful layers; one for each call of attention."""
    packed = find_states(model, BLOCK_SIZE)
    packed.states.resize(len(references))
    runner = MeasuredHybridRunner(model, num_blocks_for(references), BLOCK_SIZE, "torch", packed=packed)
    return checked_shapes(model, runner.cache, references, error_of(runner, references), bool(packed.layers))


def checked_shapes(
    model: PreTrainedModel, cache: "MeasuringCache", references: list[Reference], difference: float,
    has_states: bool = False,
) -> list[KVShape]:  # fmt: skip
    """The shapes of a cache over which all sequences were served together. Raises what `paged_shapes` raises."""
    calls, num_passes = cache.calls, len(list(steps(references)))
    if not calls and not has_states:
        raise UnsupportedModel(
            "its layers compute attention themselves and don't call Hugging Face's attention interface"
        )
    if repeated := [layer for layer in calls if calls[layer] != num_passes]:
        share = calls[repeated[0]] / num_passes
        raise UnsupportedModel(f"layer {repeated[0]} calls attention {share:g} times in each pass, not once")
    if sorted(calls) != list(range(len(calls))):
        raise UnsupportedModel(f"only layers {sorted(calls)} call attention")
    if difference > tolerance(model):
        raise UnsupportedModel(f"its logits differ by {difference:.0%} if sequences share a batch")
    return [cache.shapes[layer] for layer in range(len(calls))]


def recomputed_shapes(model: PreTrainedModel, references: list[Reference], keeps_caches: bool = False) -> list[KVShape]:
    """`paged_shapes` with an AloneRunner. Without caches, nothing is kept."""
    runner = AloneRunner(model, num_blocks_for(references), BLOCK_SIZE, keeps_caches=keeps_caches)
    difference = error_of(runner, references)
    if difference > tolerance(model):
        raise UnsupportedModel(f"its logits differ by {difference:.0%}")
    return []


def alone_shapes(model: PreTrainedModel, references: list[Reference]) -> list[KVShape]:
    """`paged_shapes` with an AloneRunner and its caches."""
    recomputed_shapes(model, references, keeps_caches=True)
    _, cache = forward_alone(model, references[0].token_ids, 0, None)
    filled = [each for each in getattr(cache, "layers", ()) if getattr(each, "keys", None) is not None]
    return [KVShape(each.keys.shape[1], each.keys.shape[-1], each.values.shape[-1]) for each in filled]


WAYS = {PAGED: paged_shapes, HYBRID: hybrid_shapes, ALONE: alone_shapes, RECOMPUTED: recomputed_shapes}


def random_prompts(model: PreTrainedModel) -> list[list[int]]:
    """Prompts of PROMPT_LENGTHS tokens, the same for all models with the same vocabulary size."""
    rng = torch.Generator().manual_seed(0)
    vocab_size = text_config(model.config).vocab_size
    # Ids below 3 are often padding, to which some models assign no position.
    return [torch.randint(min(3, vocab_size - 1), vocab_size, (n,), generator=rng).tolist() for n in PROMPT_LENGTHS]


def references_of(model: PreTrainedModel) -> list[Reference]:
    """Compute what Hugging Face's `generate` returns for each of the random prompts."""
    return [generated(model, prompt) for prompt in random_prompts(model)]


def generated(model: PreTrainedModel, prompt: list[int]) -> Reference:
    """Run Hugging Face's `generate` on one prompt."""
    ids = torch.tensor([prompt], device=model.device)
    options: dict[str, Any] = dict(max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    options |= dict(output_logits=True, return_dict_in_generate=True)
    try:
        output: Any = model.generate(ids, attention_mask=torch.ones_like(ids), **options)  # type: ignore[operator]
    except Exception as error:
        raise UnsupportedModel(
            f"{type(model).__name__} can't be served: its own `generate` fails with {first_line(error)}. {REMEDY}"
        ) from error
    logits = torch.cat(output.logits)
    if logits.isnan().any():
        raise UnsupportedModel(
            f"{type(model).__name__} can't be served: its own logits are NaN. Its weights are damaged, or too large "
            f"for {model.dtype}."
        )
    return Reference(output.sequences[0].tolist(), logits)


class MeasuringCache(PagedKVCache):
    """A paged cache that takes the shapes of a layer from its first write, and counts each layer's writes."""

    def __init__(
        self, config: PretrainedConfig, num_blocks: int, block_size: int, dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu", layer_shapes: list[KVShape] | None = None,
    ):  # fmt: skip
        self.num_blocks, self.block_size, self.dtype, self.device = num_blocks, block_size, dtype, device
        self.keys, self.values = {}, {}  # type: ignore[assignment]
        self.shapes: dict[int, KVShape] = {}
        self.calls: Counter[int] = Counter()

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        if layer not in self.shapes:
            self.shapes[layer] = KVShape(keys.shape[1], keys.shape[2], values.shape[2])
            for tensors, new in ((self.keys, keys), (self.values, values)):
                shape = (self.num_blocks, self.block_size, *new.shape[1:])
                tensors[layer] = torch.full(shape, torch.nan, dtype=self.dtype, device=self.device)
        self.calls[layer] += 1
        super().write(layer, keys, values, slot_mapping)


class MeasuredRunner(ModelRunner):
    """A ModelRunner over a MeasuringCache."""

    cache: MeasuringCache
    cache_type = MeasuringCache


class MeasuredHybridRunner(HybridRunner):
    """A HybridRunner over a MeasuringCache."""

    cache: MeasuringCache
    cache_type = MeasuringCache


def error_of(runner: ModelRunner, references: list[Reference]) -> float:
    """Compute the largest relative error of a runner's logits."""
    sequences = scattered_sequences(references)
    found: list[list[torch.Tensor]] = [[] for _ in references]
    for counts in steps(references):
        scheduled = {sequences[index]: count for index, count in counts.items()}
        logits = runner.forward(SchedulerOutput(scheduled))
        if len(logits) != len(scheduled):
            raise UnsupportedModel(f"it returns {len(logits)} rows of logits for {len(scheduled)} sequences")
        for row, (index, count) in enumerate(counts.items()):
            sequences[index].num_computed_tokens += count
            found[index].append(logits[row])
    rows = [torch.stack(row[1:]) for row in found]  # the first chunk of a prompt yields no token
    return max(relative_error(row, each.logits) for row, each in zip(rows, references))


def scattered_sequences(references: list[Reference]) -> list[Sequence]:
    """Sequences whose blocks are neither adjacent nor in order."""
    count, last = len(references), num_blocks_for(references) - 1
    scattered = [[*range(last - index, -1, -count)] for index in range(count)]
    return [
        Sequence(str(index), each.token_ids, 1, blocks=blocks[: blocks_for(len(each.token_ids), BLOCK_SIZE)])
        for index, (each, blocks) in enumerate(zip(references, scattered))
    ]


def num_blocks_for(references: list[Reference]) -> int:
    """Number of blocks for all sequences."""
    return len(references) * blocks_for(max(len(each.token_ids) for each in references), BLOCK_SIZE)


def steps(references: list[Reference]) -> Iterator[dict[int, int]]:
    """Number of tokens of each sequence (by index) in each step: prompts in two chunks, then token by token."""
    prompts = {index: len(each.token_ids) - len(each.logits) for index, each in enumerate(references)}
    yield {index: length - length // 3 for index, length in prompts.items()}
    yield {index: length // 3 for index, length in prompts.items()}
    for token in range(1, NEW_TOKENS):
        if counts := {index: 1 for index, each in enumerate(references) if token < len(each.logits)}:
            yield counts


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Difference of logits [rows, vocabulary] from those expected, relative to their spread: the largest over the rows
    in float32, the median in half precision, where a rounded router may send one token to another expert."""
    exact = found.dtype.itemsize >= 4
    found, expected = found.double().nan_to_num(nan=1e9), expected.double().nan_to_num()
    spread = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1).clamp(min=1e-9)
    errors = (found - expected).norm(dim=-1) / spread
    return float(errors.max() if exact else errors.median())


def tolerance(model: PreTrainedModel) -> float:
    """Largest relative error of a model that is served correctly."""
    return TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16])


@contextmanager
def undisturbed(model: PreTrainedModel) -> Iterator[None]:
    """Context manager: `generate` ignores the model's own generation config, and hooks on the model as a whole aren't
    called, so that a hook that counts passes counts those of requests only."""
    hooks = [(each, dict(each)) for each in (model._forward_hooks, model._forward_pre_hooks)]
    generation_config = model.generation_config
    try:
        model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
        for current, _ in hooks:
            current.clear()
        yield
    finally:
        model.generation_config = generation_config
        for current, before in hooks:
            current.update(before)


def first_line(error: Exception) -> str:
    """Shorten an exception to one line."""
    text = str(error).strip().split("\n")[0]
    return text.rstrip(".") if isinstance(error, UnsupportedModel) else f"{type(error).__name__}: {text}"
