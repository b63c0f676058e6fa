"""Lesson 12: a model's own `generation_config`. `generate` follows it unasked, so the engine follows it too, or refuses
the model."""

from collections.abc import Collection
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.configuration import UnsupportedModel, text_config

# Fields that change the likeliest token, by one of Hugging Face's logits processors each.
HONORED = (
    *("sequence_bias", "bad_words_ids", "repetition_penalty", "encoder_repetition_penalty"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"),
    *("forced_bos_token_id", "forced_eos_token_id", "suppress_tokens", "begin_suppress_tokens"),
    *("exponential_decay_length_penalty", "remove_invalid_values"),
)
# Fields that would change the tokens, and that the engine doesn't support.
NOT_OFFERED = (
    *("num_beams", "penalty_alpha", "dola_layers", "constraints", "force_words_ids"),
    *("guidance_scale", "watermarking_config", "token_healing"),
)
# Values without effect, besides None, False, 0 and empty ones. The fields for sampling count only if a request samples,
# and then its own SamplingParams do.
NEUTRAL = {"num_beams": 1, "guidance_scale": 1, "repetition_penalty": 1, "encoder_repetition_penalty": 1}


@dataclass(frozen=True)
class GenerationDefaults:
    """The part of a model's `generation_config` that every request follows.

    Attributes:
        end_token_ids: tokens that end a completion, the model's and the tokenizer's.
        stop: strings that end a completion.
        honored: field -> value, of HONORED.
        model: knows what `generate` does with them.
    """

    end_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    honored: dict[str, Any] = field(default_factory=dict)
    model: PreTrainedModel | None = None

    @classmethod
    def of(cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, asked: bool = True) -> "GenerationDefaults":
        """Read a model's generation_config, unless `asked` is False: then only the tokenizer's end token counts.

        Raises:
            UnsupportedModel: the generation_config makes `generate` decode in a way that the engine doesn't support, or
                has an invalid value.
        """
        config = getattr(model, "generation_config", None) if asked else None
        end_token_ids = token_ids(getattr(tokenizer, "eos_token_id", None))
        if config is None:
            return cls(frozenset(end_token_ids))
        for name in NOT_OFFERED:
            if counts(name, value := getattr(config, name, None)):
                raise UnsupportedModel(
                    f"the model's generation_config has {name}={value!r}, which this engine doesn't offer: its "
                    f"tokens would not be those of `generate`. Set `model.generation_config.{name} = None`, or ignore "
                    "the generation_config with `EngineConfig(generation_config=False)`."
                )
        stop = getattr(config, "stop_strings", None) or ()
        defaults = cls(
            frozenset([*end_token_ids, *token_ids(config.eos_token_id)]),
            (stop,) if isinstance(stop, str) else tuple(stop),
            {name: value for name in HONORED if counts(name, value := getattr(config, name, None))},
            model,
        )
        logits = torch.zeros(text_config(model.config).vocab_size, device=model.device)
        try:  # so that an invalid value is found now and not in a step
            processed(defaults.processors([0], 1, defaults.end_token_ids), [0], logits)
        except (ValueError, TypeError, IndexError, RuntimeError) as error:
            raise UnsupportedModel(
                f"the model's generation_config can't be obeyed ({defaults.honored}): {error} Correct it, or ignore it "
                "with `EngineConfig(generation_config=False)`."
            ) from error
        return defaults

    def applied_to(self, params: SamplingParams, max_tokens: int) -> SamplingParams:
        """Add them to the SamplingParams of a request with at most `max_tokens` new tokens. The request's own value of
        a field replaces the model's."""
        if not self.honored:
            return params
        end_token_ids = frozenset() if params.ignore_eos else self.end_token_ids
        own_fields = ["repetition_penalty"] if params.repetition_penalty != 1 else []
        processors = None

        def obey(prompt_ids: list[int], output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
            nonlocal processors
            if processors is None:
                processors = self.processors(prompt_ids, max_tokens, end_token_ids, own_fields)
            return processed(processors, [*prompt_ids, *output_ids], logits)

        return replace(params, logits_processors=(obey, *params.logits_processors))

    def processors(
        self, prompt_ids: ListOf[int], max_tokens: int, end_token_ids: Collection[int], own_fields: Collection[str] = ()
    ) -> LogitsProcessorList:
        """The processors that `generate` would apply to a request's logits, without those of `own_fields`."""
        model: Any = self.model
        config: Any = GenerationConfig(max_length=len(prompt_ids) + max_tokens)  # type: ignore[no-untyped-call]
        for name, value in self.honored.items():
            if name not in own_fields and (end_token_ids or name != "exponential_decay_length_penalty"):
                setattr(config, name, value)
        config._eos_token_tensor = torch.tensor(sorted(end_token_ids), device=model.device) if end_token_ids else None
        prompt = torch.tensor([list(prompt_ids)], device=model.device)
        made: LogitsProcessorList = model._get_logits_processor(
            config, len(prompt_ids), prompt, device=str(model.device)
        )
        return made


def processed(processors: LogitsProcessorList, tokens: ListOf[int], logits: torch.Tensor) -> torch.Tensor:
    """Apply processors to the logits of one sequence, [vocabulary], given its tokens; float32 [vocabulary]."""
    if not processors:
        return logits.float()
    token_ids: Any = torch.tensor([list(tokens)], device=logits.device)
    scores: Any = logits.float()[None].clone()
    changed: torch.Tensor = processors(token_ids, scores)[0]
    return changed


def counts(name: str, value: Any) -> bool:
    """True if a field with this value changes the tokens of `generate`."""
    # Token 0 may be forced; a penalty or a size of 0 is none.
    return value is not None and (name.endswith("_token_id") or (bool(value) and value != NEUTRAL.get(name)))


def token_ids(value: Any) -> list[int]:
    """List end tokens, given as one, several, or None."""
    if value is None:
        return []
    value = value.tolist() if isinstance(value, torch.Tensor) else value
    return [int(token) for token in value] if isinstance(value, list | tuple) else [int(value)]
