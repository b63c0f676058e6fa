"""Lesson 12: does the engine compute what the model computes? Asked once, before the first request.

A model that relies on something the engine lacks gives wrong tokens without an error. So the engine serves two short
prompts of random tokens and compares its logits with those of Hugging Face's `generate`, one prompt at a time. It makes
this as hard as serving gets: both sequences in one packed batch, prompts in two chunks, blocks scattered, then a few
decodes, and windows and other lengths so short that all of this reaches past them (see `lengths`). The first layers
answer for those like them (see `shallow`).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers import DynamicCache, GenerationConfig, PretrainedConfig, PreTrainedModel

from lessons_lib.compat.gathered_runner import GatheredRunner, forward_with_cache
from lessons_lib.compat.lengths import names_of_lengths, short_lengths
from lessons_lib.compat.shallow import shallow
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import KVShape, UnsupportedModel, text_config
from lessons_lib.models.support import REMEDY, check_supported
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

PAGED, GATHERED = "paged", "gathered"
PROMPT_LENGTHS = (8, 13)
NEW_TOKENS = 3
BLOCK_SIZE = 4
# Largest relative error of a row of logits. In float32, right and wrong are far apart: 1e-6 and 1. In bfloat16, tiny
# models that are served right differ by up to 0.03, so a term that changes less than that isn't noticed.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.1}


@dataclass(frozen=True)
class ProbeResult:
    """How a model can be served.

    Attributes:
        way: PAGED: by ModelRunner. GATHERED: by GatheredRunner only.
        layer_shapes: the keys and values of each layer, measured; see PagedKVCache.
        reason: why the model can't be served from the paged cache directly; "" if it can.
    """

    way: str
    layer_shapes: list[KVShape]
    reason: str = ""


@dataclass(frozen=True)
class Reference:
    """What is right for one sequence: `logits` [NEW_TOKENS, vocabulary] after the last tokens of `token_ids`. The final
    token isn't computed."""

    token_ids: list[int]
    logits: torch.Tensor


_probed: "WeakKeyDictionary[PreTrainedModel, ProbeResult]" = WeakKeyDictionary()


def probe(model: PreTrainedModel) -> ProbeResult:
    """Find out how a model can be served, by serving. The result is kept for the lifetime of the model.

    The model is left as it was. The probe has a cache of its own of a few blocks.

    Raises:
        UnsupportedModel: in no way. The message names the first layer that differs.
    """
    if model not in _probed:
        _probed[model] = _probe(model)
    return _probed[model]


@torch.inference_mode()
def _probe(model: PreTrainedModel) -> ProbeResult:
    check_supported(model)
    config_says = features(model.config)  # not its lengths when they are short
    with undisturbed(model), short_lengths(model, lengths_of(model)):
        with shallow(model) as first_of_kind:
            if first_of_kind and (result := try_first_layers(model, first_of_kind)):
                return result
        references = [generated(model, prompt) for prompt in random_prompts(model)]
        result, reason = try_paged(model, references)
        if result is None:
            result, gathered_reason = try_gathered(model, references, reason)
        if result is None:
            raise UnsupportedModel(
                f"{type(model).__name__} would give wrong answers: {reason}. Computing each sequence alone over a copy "
                f"of its cache fails too: {gathered_reason}.{config_says} {REMEDY}"
            )
    return result


def lengths_of(model: PreTrainedModel) -> list[str]:
    """The names of the model's lengths, found in its first layers; none if it can't compute them."""
    with shallow(model):
        try:
            return names_of_lengths(model, max(random_prompts(model), key=len))
        except Exception:
            return []  # `generate` will say why, with more words


def try_first_layers(model: PreTrainedModel, first_of_kind: list[int]) -> ProbeResult | None:
    """How the whole model is served, if its first layers are served right. None if they aren't, or can't be run alone:
    then the whole model decides.

    Args:
        first_of_kind: see `shallow`.
    """
    try:
        result, _ = try_paged(model, [generated(model, prompt) for prompt in random_prompts(model)])
    except UnsupportedModel:
        return None
    return result and replace(result, layer_shapes=[result.layer_shapes[first] for first in first_of_kind])


def try_paged(model: PreTrainedModel, references: list[Reference]) -> tuple[ProbeResult | None, str]:
    """(result, "") if the model is right with its attention over a paged cache; (None, reason) if not."""
    try:
        runner = MeasuredRunner(model, num_blocks_for(references), BLOCK_SIZE, backend="torch")
        difference = error_of(runner, references)
    except Exception as error:
        return None, first_line(error)
    calls = runner.cache.calls
    if not calls:
        return None, "its layers compute attention themselves and don't call Hugging Face's attention interface"
    if repeated := [layer for layer in calls if calls[layer] != runner.num_passes]:
        share = calls[repeated[0]] / runner.num_passes
        return None, f"layer {repeated[0]} calls attention {share:g} times in each pass, not once"
    if sorted(calls) != list(range(len(calls))):
        return None, f"only layers {sorted(calls)} call attention"
    if difference > tolerance(model):
        return None, where_it_differs(model, references, difference)
    return ProbeResult(PAGED, [runner.cache.shapes[layer] for layer in range(len(calls))]), ""


def try_gathered(
    model: PreTrainedModel, references: list[Reference], why_not_paged: str
) -> tuple[ProbeResult | None, str]:
    """As `try_paged`, for a GatheredRunner."""
    try:
        own: Any = DynamicCache()
        forward_with_cache(model, references[0].token_ids, 0, own)
        if not own.layers:
            return None, "it doesn't fill a Hugging Face cache"
        shapes = [KVShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in own.layers]
        difference = error_of(GatheredRunner(model, num_blocks_for(references), BLOCK_SIZE, None, shapes), references)
    except Exception as error:
        return None, first_line(error)
    if difference > tolerance(model):
        return None, f"its logits differ by {difference:.0%}, so its layers remember more than keys and values"
    return ProbeResult(GATHERED, shapes, why_not_paged), ""


# --- What is right ---------------------------------------------------------------------------------------------------


def random_prompts(model: PreTrainedModel) -> list[list[int]]:
    """Prompts of PROMPT_LENGTHS tokens, the same for every model of a vocabulary."""
    generator = torch.Generator().manual_seed(0)
    vocab_size = text_config(model.config).vocab_size
    # Ids below 3 are often padding, which some models don't give a position.
    return [
        torch.randint(min(3, vocab_size - 1), vocab_size, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS
    ]


def generated(model: PreTrainedModel, prompt: list[int]) -> Reference:
    """What Hugging Face's `generate` computes for one prompt alone."""
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


# --- What the engine computes ----------------------------------------------------------------------------------------


class MeasuringCache(PagedKVCache):
    """A paged cache that learns the shapes of a layer when the layer writes to it, and counts how often it does."""

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
    num_passes = 0

    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """See `ModelRunner.forward`."""
        self.num_passes += 1
        return super().forward(scheduler_output)


def error_of(runner: ModelRunner, references: list[Reference]) -> float:
    """The largest relative error of the logits of a runner."""
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
    rows = [torch.stack(row[1:]) for row in found]  # after the first chunk of a prompt, nothing is chosen
    return max(relative_error(row, each.logits) for row, each in zip(rows, references))


def scattered_sequences(references: list[Reference]) -> list[Sequence]:
    """Sequences whose blocks are neither neighbors nor in order."""
    count = len(references)
    last = num_blocks_for(references) - 1
    return [
        Sequence(
            str(index),
            each.token_ids,
            1,
            blocks=[last - count * block - index for block in range(blocks_for(len(each.token_ids), BLOCK_SIZE))],
        )
        for index, each in enumerate(references)
    ]


def num_blocks_for(references: list[Reference]) -> int:
    """Blocks for all sequences."""
    return len(references) * blocks_for(max(len(each.token_ids) for each in references), BLOCK_SIZE)


def steps(references: list[Reference]) -> Iterator[dict[int, int]]:
    """How many tokens of which sequence each step computes: the prompts in two chunks, then token by token."""
    prompts = {index: len(each.token_ids) - len(each.logits) for index, each in enumerate(references)}
    yield {index: length - length // 3 for index, length in prompts.items()}
    yield {index: length // 3 for index, length in prompts.items()}
    for token in range(1, NEW_TOKENS):
        if counts := {index: 1 for index, each in enumerate(references) if token < len(each.logits)}:
            yield counts


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """How far rows of logits are from those expected, as a share of their spread: the largest over the rows in float32,
    the median in half precision, where a rounded router may send one token to another expert.

    Args:
        found, expected: [rows, vocabulary].
    """
    exact = found.dtype.itemsize >= 4
    found, expected = found.double().nan_to_num(nan=1e9), expected.double().nan_to_num()
    spread = (expected - expected.mean(dim=-1, keepdim=True)).norm(dim=-1).clamp(min=1e-9)
    errors = (found - expected).norm(dim=-1) / spread
    return float(errors.max() if exact else errors.median())


def tolerance(model: PreTrainedModel) -> float:
    """The largest relative error of a model that is served right."""
    return TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16])


# --- Leaving no trace, and saying what is wrong ---------------------------------------------------------------------


@contextmanager
def undisturbed(model: PreTrainedModel) -> Iterator[None]:
    """Inside, `generate` takes nothing from the model's own generation config, and hooks on the model as a whole aren't
    called, so that a hook which counts passes counts those of requests only."""
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


def where_it_differs(model: PreTrainedModel, references: list[Reference], error: float) -> str:
    """A sentence about the first attention layer whose output is not what the model computes by itself."""
    longest = max(references, key=lambda each: len(each.token_ids))
    alone = [Reference(longest.token_ids, longest.logits)]
    expected = layer_outputs(model, lambda: forward_with_cache(model, longest.token_ids[:-1], 0, None))
    runner = MeasuredRunner(model, num_blocks_for(alone), BLOCK_SIZE, backend="torch")
    found = layer_outputs(model, lambda: error_of(runner, alone))
    for name, output in expected.items():
        if output.shape != found[name].shape:
            return f"layer {name} is called for other tokens than without paging"
        if relative_error(found[name], output) > tolerance(model):
            layer = type(model.get_submodule(name)).__name__
            return f"the output of {name} ({layer}) differs from the model's own, and the logits by {error:.0%}"
    return f"its logits differ by {error:.0%} if sequences share a batch"


def layer_outputs(model: PreTrainedModel, compute: Callable[[], Any]) -> dict[str, torch.Tensor]:
    """What each layer that knows its index returns, for the tokens of one sequence in order: [T, hidden size]."""
    outputs: dict[str, list[torch.Tensor]] = {}

    def keep(name: str) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, torch.Tensor):
                outputs.setdefault(name, []).append(first.reshape(-1, first.shape[-1]))

        return hook

    layers = [(name, module) for name, module in model.named_modules() if hasattr(module, "layer_idx")]
    hooks = [module.register_forward_hook(keep(name)) for name, module in layers]
    try:
        compute()
    finally:
        for each in hooks:
            each.remove()
    return {name: torch.cat(tensors) for name, tensors in outputs.items()}


def features(config: Any) -> str:
    """Fields of a configuration that tell which kind of attention a model has, for a message."""
    pattern = re.compile("window|chunk|softcap|alibi|layer_types|attention_type|position_embedding|block_types")
    fields = {name: value for name, value in vars(text_config(config)).items() if pattern.search(name) and value}
    fields = {name: sorted(set(value)) if isinstance(value, list) else value for name, value in fields.items()}
    return f" Its configuration says: {fields}." if fields else ""


def first_line(error: Exception) -> str:
    """An exception in one line."""
    text = str(error).strip().split("\n")[0]
    return text.rstrip(".") if isinstance(error, UnsupportedModel) else f"{type(error).__name__}: {text}"
