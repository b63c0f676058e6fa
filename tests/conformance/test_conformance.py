"""Every causal language model of transformers: served right, or refused. A slice in each run, all of them each night.

LESSONS_CONFORMANCE_SHARD=2/5 checks every fifth architecture from the second on, "1/1" all. If it is not set, a run checks
those that are served most, and one slice of SLICES, another one each day. A test's name has the slice's number, so that
the run can be repeated: LESSONS_CONFORMANCE_SHARD=7/16.
"""

import os
import re

import pytest
from served_architectures import (
    ALONE,
    BROKEN,
    PAGED,
    REFUSED,
    TABLE,
    WRONG,
    Outcome,
    check_architecture,
    compare,
    generate,
    random_prompts,
)
from tiny_architectures import VOCAB_SIZE, WINDOW, architectures, tiny_model

PAGED_MODELS = [
    "deepseek_v3", "gemma2", "gemma3_text", "gpt_oss", "llama", "ministral3", "mistral", "mixtral", "olmo3", "phi3",
    "qwen3", "qwen3_next", "jamba",
]  # fmt: skip
EXPECTED = dict.fromkeys(PAGED_MODELS, PAGED) | dict(bloom=ALONE, gptj=ALONE, llama4_text=ALONE, xlnet=REFUSED)
SLICES = 16
SHARD = os.environ.get("LESSONS_CONFORMANCE_SHARD", "")
DAY = int(os.environ["LESSONS_CONFORMANCE_DAY"])


def slice_of(shard):
    index, count = map(int, shard.split("/"))
    return dict.fromkeys(architectures()[index - 1 :: count], shard)


def of_this_run():
    """The model types that this run checks, each with the shard that repeats it."""
    if SHARD:
        return slice_of(SHARD)
    return slice_of(f"{DAY % SLICES + 1}/{SLICES}") | dict.fromkeys(EXPECTED, "always")


@pytest.mark.parametrize("model_type, shard", sorted(of_this_run().items()))
def test_an_architecture_is_served_right_or_refused(model_type, shard):
    outcome = check_architecture(model_type)
    assert outcome.verdict != WRONG, outcome.reason
    assert outcome.verdict == in_table()[model_type], f"{outcome}; run `python tests/support/served_architectures.py`"
    assert outcome.verdict == EXPECTED.get(model_type, outcome.verdict)


def test_the_slices_of_sixteen_days_are_all_architectures():
    days = [slice_of(f"{day + 1}/{SLICES}") for day in range(SLICES)]
    assert sorted(model_type for day in days for model_type in day) == architectures()


def in_table():
    rows = re.findall(r"^\| ([\w-]+) \| \w+[A-Z]\w+ \| ([^|]+) \|", TABLE.read_text(encoding="utf-8"), re.M)
    return dict(rows)


def test_the_table_has_every_architecture_and_nothing_wrong():
    verdicts = in_table()
    assert list(verdicts) == architectures()
    assert set(verdicts.values()) == {PAGED, ALONE, REFUSED, BROKEN}


def test_wrong_answers_are_found():
    model = tiny_model("llama")
    prompts = random_prompts(VOCAB_SIZE)
    expected = [generate(model, prompt) for prompt in prompts]
    assert compare("llama", model, prompts, expected) == Outcome("llama", PAGED)
    expected[4].logprobs[3] += 0.02
    assert compare("llama", model, prompts, expected).reason == "prompt 4: log-probabilities differ by 0.02"
    expected[4].token_ids[3] += 1
    assert compare("llama", model, prompts, expected).verdict == WRONG


@pytest.mark.parametrize("model_type", ["gpt2", "gpt_oss", "mistral"])
def test_tiny_models_write_varied_text_and_have_no_zeros(model_type):
    model = tiny_model(model_type)
    answers = [token for prompt in random_prompts(VOCAB_SIZE) for token in generate(model, prompt).token_ids]
    assert len(set(answers)) > len(answers) // 5
    assert all((weight != 0).any() for weight in model.parameters())
    assert getattr(model.config, "sliding_window", None) in (None, WINDOW)
