"""Rules that contradict each other: refused with the names of the fields where that shows before the run; otherwise the
completion ends with the text so far. Never an error, and never at another request's cost."""

import random

import pytest
from engine_cases import KINDS, engine_of_kind, run_out

from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.structured_outputs import StructuredOutputsParams
from lessons_lib.models.loading import load_model
from lessons_lib.models.validate import BadRequest

pytest.importorskip("llguidance")
END, OTHER = 0, 300
ANSWERS = {"structured_outputs": StructuredOutputsParams(choice=("yes", "no"))}
NAME = {"structured_outputs": StructuredOutputsParams(regex="[a-z]{3}")}


@pytest.fixture(scope="module")
def engines():
    model, tokenizer = load_model(device="cpu")
    sizes = dict(max_num_seqs=6, num_blocks=60, max_num_batched_tokens=64)
    found = {kind: engine_of_kind(kind, model, tokenizer, **sizes) for kind in KINDS}
    yield found
    for engine in found.values():
        engine.close()


CONTRADICTIONS = [
    (ANSWERS | {"min_tokens": 20}, ["min_tokens", "structured_outputs.choice"]),
    (ANSWERS | {"bad_words": ["yes", "no"]}, ["bad_words", "structured_outputs.choice"]),
    (ANSWERS | {"bad_words": [" e", "o"]}, ["bad_words", "structured_outputs.choice"]),
    (ANSWERS | {"allowed_token_ids": [OTHER]}, ["allowed_token_ids", "structured_outputs"]),
    (ANSWERS | {"allowed_token_ids": [END]}, ["allowed_token_ids", "structured_outputs"]),
    (NAME | {"bad_words": list("abcdefghijklmnopqrstuvwxyz"), "allowed_token_ids": range(66, 92)}, ["bad_words"]),
    ({"allowed_token_ids": [END], "min_tokens": 1, "logit_bias": {5: 1}}, ["allowed_token_ids", "min_tokens"]),
    (
        {"allowed_token_ids": [END, 7], "stop_token_ids": [7], "min_tokens": 2},
        ["allowed_token_ids", "min_tokens", "stop_token_ids"],
    ),
    ({"structured_outputs": StructuredOutputsParams(grammar='start: ""')}, ["structured_outputs"]),
    ({"structured_outputs": StructuredOutputsParams(regex="()")}, ["structured_outputs"]),
    ({"structured_outputs": StructuredOutputsParams(regex=r"[^\s\S]")}, ["structured_outputs"]),
]


@pytest.mark.parametrize("fields, names", CONTRADICTIONS, ids=str)
def test_what_shows_before_the_run_is_refused_by_name(engines, fields, names):
    engine = engines["overlaps"]
    params = SamplingParams(**fields)
    with pytest.raises(BadRequest) as caught:
        engine.add_request("Once", params)
    assert all(name in str(caught.value) for name in names)
    assert "logit_bias" not in str(caught.value), "only fields at fault are named"
    with pytest.raises(BadRequest):
        engine.generate(["Once", "Twice"], [SamplingParams(max_tokens=3), params])
    assert not engine.requests and not engine.scheduler.pool.used


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fields, texts",
    [
        (NAME | {"min_tokens": 20}, None),
        (ANSWERS | {"min_tokens": 3}, ("yes", "no")),
        (
            {"min_tokens": 20, "structured_outputs": StructuredOutputsParams(json={"type": "boolean"})},
            ("true", "false"),
        ),
        ({"min_tokens": 20, "structured_outputs": StructuredOutputsParams(json={"enum": [1]})}, ("1",)),
        ({"allowed_token_ids": [65], "bad_words": ["aa"]}, ("a",)),
        (ANSWERS | {"logit_bias": dict.fromkeys(range(1000), -100)}, ("yes", "no")),
        (ANSWERS | {"stop_token_ids": [86, 79]}, None),
        (ANSWERS | {"stop": ["e", "n"]}, ("y", "")),
    ],
    ids=str,
)
def test_what_only_the_run_can_know_ends_with_the_text_so_far(engines, kind, fields, texts):
    engine, seen = engines[kind], []
    name = engine.add_request("Once", SamplingParams(max_tokens=40, n=2, **fields), on_token=seen.append)
    outputs = run_out(engine)
    output = outputs[name]
    assert output.error is None
    for completion in output.completions:
        assert completion.finish_reason == "stop"
        assert texts is None or completion.text in texts
        own = [token for token in seen if token.index == completion.index]
        assert "".join(token.text for token in own) == completion.text
        assert [token.finish_reason for token in own] == [None] * (len(own) - 1) + ["stop"]
    assert not engine.scheduler.pool.used


def test_without_an_end_it_goes_on_to_its_limit(engines):
    """`ignore_eos` says that the end token ends nothing."""
    params = SamplingParams(max_tokens=9, ignore_eos=True, allowed_token_ids=[65], bad_words=["aa"])
    (output,) = engines["waits"].generate(["Once"], params)
    assert output.error is None
    assert (output.finish_reason, len(output.token_ids), output.text.strip("a")) == ("length", 9, "")


@pytest.mark.parametrize("kind", KINDS)
def test_random_rules_end_every_request_without_an_error(engines, kind):
    engine, rng, tokenizer = engines[kind], random.Random(0), engines["waits"].tokenizer
    words = ["yes", "no", "maybe so", "a", "b", "1", "{", "true", '"', "yes no"]
    tokens = [tokenizer.encode(word)[0] for word in words]
    a_flag = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    outputs = [
        StructuredOutputsParams(choice=("yes", "no", "maybe so")),
        StructuredOutputsParams(json=a_flag),
        StructuredOutputsParams(regex="[ab]{1,4}"),
        StructuredOutputsParams(grammar='start: "yes" start | "no"'),
    ]
    some = {
        "structured_outputs": lambda: rng.choice(outputs),
        "bad_words": lambda: rng.sample(words, rng.randint(1, 4)),
        "allowed_token_ids": lambda: [*rng.sample(tokens, 4), END],
        "min_tokens": lambda: rng.randint(1, 8),
        "stop_token_ids": lambda: rng.sample(tokens, 2),
        "logit_bias": lambda: {rng.randrange(4096): rng.choice([-100, 100]) for _ in range(20)},
        "stop": lambda: rng.sample(words, 2),
    }
    plain = SamplingParams(max_tokens=10)
    (alone,) = engine.generate(["The old dog"], plain)
    added, refused = {}, []
    for _ in range(40):
        fields = {name: some[name]() for name in rng.sample(list(some), rng.randint(1, 5))}
        try:
            name = engine.add_request("Once", SamplingParams(max_tokens=10, temperature=1.0, seed=1, **fields))
            added[name] = fields
        except BadRequest as error:
            refused.append((str(error), fields))
    honest = engine.add_request("The old dog", plain)
    found = run_out(engine)
    assert found[honest].token_ids == alone.token_ids
    assert len(refused) > 2 and len(added) > 10
    assert all(any(name in message for name in fields) for message, fields in refused)
    for name, fields in added.items():
        assert found[name].error is None and found[name].finish_reason in ("stop", "length"), fields
    assert not engine.scheduler.pool.used
