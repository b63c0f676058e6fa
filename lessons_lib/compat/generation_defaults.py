"""Lesson 12: what a model's own `generation_config` asks for. `generate` obeys it without being told, so the engine
must too, or say that it can't."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    InfNanRemoveLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.configuration import UnsupportedModel


@dataclass(frozen=True)
class Begun:
    """What processors need to know of a sequence.

    Attributes:
        prompt: int64 [1, T], on the device of the logits.
        max_length: the most tokens of prompt and completion together.
        end_token_ids: tokens that end it.
    """

    prompt: Any
    max_length: int
    end_token_ids: list[int]

    @property
    def device(self) -> str:
        return str(self.prompt.device)


# What changes the likeliest token, in the order in which `generate` applies it: Hugging Face's own processors.
HONORED: dict[str, Callable[[Any, Begun], LogitsProcessor]] = {
    "sequence_bias": lambda value, begun: SequenceBiasLogitsProcessor(value),
    "encoder_repetition_penalty": lambda value, begun: EncoderRepetitionPenaltyLogitsProcessor(value, begun.prompt),
    "repetition_penalty": lambda value, begun: RepetitionPenaltyLogitsProcessor(value),
    "no_repeat_ngram_size": lambda value, begun: NoRepeatNGramLogitsProcessor(value),
    "encoder_no_repeat_ngram_size": lambda value, begun: EncoderNoRepeatNGramLogitsProcessor(value, begun.prompt),
    "bad_words_ids": lambda value, begun: NoBadWordsLogitsProcessor(value, begun.end_token_ids),
    "min_length": lambda value, begun: MinLengthLogitsProcessor(value, begun.end_token_ids, begun.device),
    "min_new_tokens": lambda value, begun: MinNewTokensLengthLogitsProcessor(
        begun.prompt.shape[1], value, begun.end_token_ids, begun.device
    ),
    "forced_bos_token_id": lambda value, begun: ForcedBOSTokenLogitsProcessor(value),
    "forced_eos_token_id": lambda value, begun: ForcedEOSTokenLogitsProcessor(begun.max_length, value, begun.device),
    "remove_invalid_values": lambda value, begun: InfNanRemoveLogitsProcessor(),
    "exponential_decay_length_penalty": lambda value, begun: ExponentialDecayLengthPenalty(
        value, begun.end_token_ids, begun.prompt.shape[1]
    ),
    "suppress_tokens": lambda value, begun: SuppressTokensLogitsProcessor(value, begun.device),
    "begin_suppress_tokens": lambda value, begun: SuppressTokensAtBeginLogitsProcessor(
        value, begun.prompt.shape[1], begun.device
    ),
}
NEED_END_TOKENS = ("min_length", "min_new_tokens", "exponential_decay_length_penalty")
# What only a request can ask for: greedy decoding stays the default.
FOR_SAMPLING = (
    *("do_sample", "temperature", "top_k", "top_p", "min_p"),
    *("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h"),
)
# What would give other tokens, and the engine doesn't do.
NOT_OFFERED = (
    *("num_beams", "penalty_alpha", "dola_layers", "constraints", "force_words_ids"),
    *("guidance_scale", "watermarking_config", "token_healing"),
)
# Values with which a field changes nothing, besides None, False, 0 and empty ones.
NEUTRAL = {
    "num_beams": 1,
    "guidance_scale": 1,
    "repetition_penalty": 1,
    "encoder_repetition_penalty": 1,
    "temperature": 1,
    "top_p": 1,
    "typical_p": 1,
}
# Names of other things than what `generate` does with logits: they are not decisions that could be missed.
BOOKKEEPING = ("pad_token_id", "bos_token_id", "eos_token_id", "stop_strings", "transformers_version", "use_cache")


@dataclass(frozen=True)
class GenerationDefaults:
    """What an engine takes from its model's `generation_config`.

    Attributes:
        end_token_ids: tokens that end a completion, the model's and the tokenizer's.
        stop: strings that end a completion.
        honored: field -> value; every request obeys it, as in `generate`.
        for_sampling: field -> value; a request obeys it only if it asks, see `sampling_params_of`.
        ignored: field -> value; the engine doesn't look at it. Limits are a request's own, `SamplingParams.max_tokens`.
    """

    end_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    honored: dict[str, Any] = field(default_factory=dict)
    for_sampling: dict[str, Any] = field(default_factory=dict)
    ignored: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, asked: bool = True) -> "GenerationDefaults":
        """Of a model.

        Args:
            asked: if False, only the tokenizer's end token counts.

        Raises:
            UnsupportedModel: `generate` would decode this model in a way that the engine doesn't offer.
        """
        config = getattr(model, "generation_config", None) if asked else None
        end_token_ids = token_ids(getattr(tokenizer, "eos_token_id", None))
        if config is None:
            return cls(frozenset(end_token_ids))
        values = {name: value for name, value in vars(config).items() if counts(name, value)}
        for name in NOT_OFFERED:
            if name in values:
                raise UnsupportedModel(
                    f"the model's generation_config has {name}={values[name]!r}, which this engine doesn't offer: its "
                    f"tokens would not be those of `generate`. Set `model.generation_config.{name} = None`, or ignore "
                    "the generation_config with `EngineConfig(generation_config=False)`."
                )
        defaults = cls(
            frozenset(end_token_ids) | frozenset(token_ids(config.eos_token_id)),
            stop_strings(config),
            {name: values.pop(name) for name in HONORED if name in values},
            {name: values.pop(name) for name in FOR_SAMPLING if name in values},
            values,
        )
        defaults.check(model)
        return defaults

    def check(self, model: PreTrainedModel) -> None:
        """Try the processors once, so that a wrong value is found now and not in a step.

        Raises:
            UnsupportedModel: one of them refuses its value.
        """
        try:
            processors = self.processors([0], 1, self.end_token_ids, model.device)
            processed(processors, [0], torch.zeros(model.config.get_text_config().vocab_size, device=model.device))
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            raise UnsupportedModel(
                f"the model's generation_config can't be obeyed ({self.honored}): {error} Correct it, or ignore it "
                "with `EngineConfig(generation_config=False)`."
            ) from error

    def applied_to(self, params: SamplingParams, max_tokens: int) -> SamplingParams:
        """The SamplingParams of a request that obeys them, besides its own rules. A field of its own replaces the
        model's.

        Args:
            max_tokens: the most tokens to add.
        """
        if not self.honored:
            return params
        end_token_ids = frozenset() if params.ignore_eos else self.end_token_ids
        own_fields = ["repetition_penalty"] if params.repetition_penalty != 1 else []
        processors = None

        def obey(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            nonlocal processors
            if processors is None:
                processors = self.processors(prompt_ids, max_tokens, end_token_ids, logits.device, own_fields)
            return processed(processors, [*prompt_ids, *output_ids], logits)

        return replace(params, logits_processors=(obey, *params.logits_processors))

    def processors(
        self, prompt_ids: ListOf[int], max_tokens: int, end_token_ids: Iterable[int], device: torch.device,
        own_fields: Iterable[str] = (),
    ) -> LogitsProcessorList:  # fmt: skip
        """The processors that `generate` would apply to a request's logits.

        Args:
            own_fields: fields for which the request has a value of its own.
        """
        if not self.honored:
            return LogitsProcessorList()
        prompt = torch.tensor([list(prompt_ids)], device=device)
        begun = Begun(prompt, len(prompt_ids) + max_tokens, sorted(end_token_ids))
        return LogitsProcessorList(
            HONORED[name](value, begun)
            for name, value in self.honored.items()
            if name not in own_fields and (begun.end_token_ids or name not in NEED_END_TOKENS)
        )


def processed(processors: LogitsProcessorList, tokens: ListOf[int], logits: torch.Tensor) -> torch.Tensor:
    """The logits of one sequence as its processors change them.

    Args:
        tokens: all tokens of the sequence.
        logits: [vocabulary]; it stays as it is.

    Returns:
        float32 [vocabulary].
    """
    if not processors:
        return logits.float()
    token_ids: Any = torch.tensor([list(tokens)], device=logits.device)
    scores: Any = logits.float()[None].clone()
    changed: torch.Tensor = processors(token_ids, scores)[0]
    return changed


def sampling_params_of(model: PreTrainedModel, **own: Any) -> SamplingParams:
    """Parameters with which a model is sampled as `generate` samples it.

    Args:
        own: fields that replace those of the model's generation_config.

    Raises:
        UnsupportedModel: the generation_config cuts probabilities in a way that the engine doesn't offer.
    """
    config: GenerationConfig | None = model.generation_config
    values: dict[str, Any] = {}
    if config is None:
        return SamplingParams(**own)
    if config.max_new_tokens is not None:
        values["max_tokens"] = config.max_new_tokens
    if not config.do_sample:
        return SamplingParams(**values | own)
    # What `generate` takes if nothing is said: temperature 1, and the 50 likeliest tokens.
    values |= {"temperature": 1.0, "top_k": 50}
    values |= {name: getattr(config, name) for name in ("temperature", "top_k") if getattr(config, name) is not None}
    for name in FOR_SAMPLING[3:]:
        value = getattr(config, name, None)
        if not counts(name, value):
            continue
        if name not in SamplingParams.__dataclass_fields__:
            raise UnsupportedModel(
                f"the model's generation_config has {name}={value!r}, which this engine doesn't offer. Write the "
                "SamplingParams out, without it."
            )
        values[name] = value
    return SamplingParams(**values | own)


def counts(name: str, value: Any) -> bool:
    """Whether a field with this value changes what `generate` does."""
    if name.startswith("_") or name in BOOKKEEPING or value is None or value is False:
        return False
    # Token 0 may be forced; a penalty or a size of 0 is none.
    if name.endswith("_token_id"):
        return True
    return bool(value) and value != NEUTRAL.get(name)


def token_ids(value: Any) -> list[int]:
    """End tokens, which may be one, several, or none."""
    if value is None:
        return []
    value = value.tolist() if isinstance(value, torch.Tensor) else value
    return [int(token) for token in value] if isinstance(value, list | tuple) else [int(value)]


def stop_strings(config: GenerationConfig) -> tuple[str, ...]:
    value = getattr(config, "stop_strings", None) or ()
    return (value,) if isinstance(value, str) else tuple(value)
