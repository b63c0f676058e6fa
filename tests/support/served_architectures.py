"""Which architectures of transformers the engine serves token for token: `python tests/support/served_architectures.py`
checks all causal language models, in about three minutes, and writes tests/conformance/MODELS.md.

A random workload is served with each model, and every answer compared with the one that `generate` gives its prompt:
its tokens, and their log-probabilities, since a random model may repeat itself.
"""

import random
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from tiny_architectures import FIRST_WORD, architectures, tiny_model
from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lessons_lib.compat.alone_runner import AloneRunner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.models.configuration import UnsupportedModel, text_config
from lessons_lib.models.support import REMEDY, check_supported

PAGED, ALONE, REFUSED, BROKEN, WRONG = "equal", "equal (alone)", "refused", "can't be built", "WRONG"
ANSWER = 8
CLOSE = 1e-3  # largest difference of log-probabilities
PROMPT_LENGTHS = (1, 3, 9, 16, 17, 40)
ENGINE = EngineConfig(block_size=4, num_blocks=60, max_num_batched_tokens=14, max_num_seqs=5, max_model_len=64)


@dataclass(frozen=True)
class Outcome:
    """What became of an architecture.

    Attributes:
        verdict: PAGED, ALONE, REFUSED, BROKEN (transformers can't build it or run it by itself), or WRONG.
        reason: for all but PAGED.
    """

    model_type: str
    verdict: str
    reason: str = ""


@dataclass(frozen=True)
class Answer:
    """Tokens, and the log-probability of each."""

    token_ids: list[int]
    logprobs: list[float]


class NoText:
    """The tokenizer of a model that writes nonsense."""

    eos_token_id = None

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return ""


def check_architecture(model_type: str) -> Outcome:
    """Build, serve and compare one architecture."""
    try:
        model = tiny_model(model_type)
    except Exception as error:
        return Outcome(model_type, BROKEN, one_line(error))
    try:
        check_supported(model)  # before `generate`, which some of these models don't have
        prompts = random_prompts(text_config(model.config).vocab_size)
        expected = [generate(model, prompt) for prompt in prompts]
    except UnsupportedModel as error:
        return Outcome(model_type, REFUSED, one_line(error))
    except Exception as error:
        return Outcome(model_type, BROKEN, f"`generate` fails: {one_line(error)}")
    return compare(model_type, model, prompts, expected)


def compare(
    model_type: str,
    model: PreTrainedModel,
    prompts: list[list[int]],
    expected: list[Answer],
    config: EngineConfig = ENGINE,
    n: int = 1,
) -> Outcome:
    """Serve the prompts together, n completions of each, and compare with what is expected."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            engine = LLMEngine(model, NoText(), config)  # type: ignore[arg-type]
        except UnsupportedModel as error:
            return Outcome(model_type, REFUSED, one_line(error))
    params = SamplingParams(temperature=0, ignore_eos=True, logprobs=0, n=n)
    with engine:
        outputs = engine.generate(prompts, [replace(params, max_tokens=len(each.token_ids)) for each in expected])
    for index, (output, right) in enumerate(zip(outputs, expected)):
        if output.error:
            return Outcome(model_type, WRONG, f"prompt {index} fails: {one_line(output.error)}")
        for found in output.completions:
            if found.token_ids != right.token_ids:
                return Outcome(model_type, WRONG, f"prompt {index}: {found.token_ids}, not {right.token_ids}")
            pairs = zip(found.logprobs or (), right.logprobs, strict=True)
            difference = max(abs(own.logprob - wanted) for own, wanted in pairs)
            if not difference <= CLOSE:
                return Outcome(model_type, WRONG, f"prompt {index}: log-probabilities differ by {difference:.2g}")
    if isinstance(engine.runner, AloneRunner):
        reasons = [str(each.message).split(": ", 1)[1] for each in caught if "is served slowly" in str(each.message)]
        return Outcome(model_type, ALONE, reasons[0].rstrip("."))
    return Outcome(model_type, PAGED)


def random_prompts(vocab_size: int) -> list[list[int]]:
    """Prompts of PROMPT_LENGTHS tokens; the last two share a prefix."""
    rng = random.Random(7)
    prompts = [[rng.randrange(FIRST_WORD, vocab_size) for _ in range(length)] for length in PROMPT_LENGTHS]
    prompts[-1][:10] = prompts[-2][:10]
    return prompts


@torch.inference_mode()
def generate(model: Any, prompt: list[int], max_tokens: int = ANSWER) -> Answer:
    """The greedy answer of so many tokens to one prompt, from Hugging Face."""
    ids = torch.tensor([prompt])
    options: dict[str, Any] = dict(max_new_tokens=max_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    options |= dict(output_logits=True, return_dict_in_generate=True)
    output = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    token_ids = output.sequences[0, len(prompt) :]
    logprobs = torch.cat(output.logits).log_softmax(dim=-1)
    return Answer(token_ids.tolist(), logprobs.gather(1, token_ids[:, None])[:, 0].tolist())


def one_line(error: BaseException) -> str:
    """An exception in one line of a table."""
    text = " ".join(str(error).split()).replace("|", "/")
    if isinstance(error, UnsupportedModel):
        return text.removesuffix(REMEDY).split(" can't be served: ")[-1].rstrip(" .")
    return f"{type(error).__name__}: {text}"[:200]


TABLE = Path(__file__).parents[1] / "conformance" / "MODELS.md"
MEANING = {
    PAGED: "served in one packed batch, token for token as `generate`",
    ALONE: "served token for token as `generate`, slowly: each sequence alone, over a cache of its own",
    REFUSED: "`UnsupportedModel`, before the first token",
    BROKEN: "transformers itself can't build a tiny model of it here, or `generate` fails; not known",
    WRONG: "a defect",
}


def markdown(outcomes: list[Outcome]) -> str:
    """The table of all architectures, MODELS.md."""
    counts = {verdict: sum(each.verdict == verdict for each in outcomes) for verdict in MEANING}
    summary = [f"| {verdict} | {counts[verdict]} | {meaning} |" for verdict, meaning in MEANING.items()]
    rows = [
        f"| {each.model_type} | {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[each.model_type]} | {each.verdict} | {each.reason} |"
        for each in outcomes
    ]
    return f"""\
# Which models the engine serves

Every causal language model of transformers {transformers.__version__}, as a tiny random model with \
short windows in float32: six prompts of 1 to 40 tokens in one paged batch, with chunked prefill. Tokens \
and their log-probabilities are compared with those of greedy `generate`, one prompt at a time. Written \
by `python tests/support/served_architectures.py`.

| result | architectures | meaning |
| --- | --- | --- |
{chr(10).join(summary)}

| model_type | class | result | why |
| --- | --- | --- | --- |
{chr(10).join(rows)}
"""


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # tiny models gain nothing from more
    TABLE.write_text(markdown([check_architecture(model_type) for model_type in architectures()]), encoding="utf-8")
