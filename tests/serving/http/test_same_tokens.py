"""What comes over HTTP, in one piece or streamed, are the tokens, texts and log-probabilities of `LLMEngine.generate`."""

import json

import pytest
from live_server import MODEL

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.structured_outputs import StructuredOutputsParams
from lessons_lib.models.loading import load_model

PROMPT = "Once upon a time, there was a little dog"
GREEDY = {"temperature": 0}
TABLE = [
    {"temperature": 0},
    {"temperature": 1, "seed": 5},
    {"temperature": 0.7, "seed": 6, "top_p": 0.8},
    {"temperature": 1.3, "seed": 7, "top_k": 5},
    {"temperature": 1, "seed": 8, "min_p": 0.2},
    {"temperature": 1, "seed": 9, "n": 3},
    {**GREEDY, "repetition_penalty": 1.5},
    {**GREEDY, "presence_penalty": 1.5, "frequency_penalty": 0.5},
    {**GREEDY, "logit_bias": {"385": 100, "12": -100}},
    {**GREEDY, "allowed_token_ids": [300, 301, 302]},
    {**GREEDY, "bad_words": ["named"]},
    {**GREEDY, "stop": "named"},
    {**GREEDY, "stop": ["zebra", "named"], "include_stop_str_in_output": True},
    {**GREEDY, "stop": " "},
    {**GREEDY, "stop": "named", "min_tokens": 6},
    {"temperature": 1, "seed": 3, "logit_bias": {"0": 100}},
    {"temperature": 1, "seed": 3, "logit_bias": {"0": 100}, "ignore_eos": True, "max_tokens": 5},
    {"temperature": 1, "seed": 3, "logit_bias": {"0": 100}, "skip_special_tokens": False},
    {**GREEDY, "stop_token_ids": [13]},
    {**GREEDY, "max_tokens": 1},
]
STRUCTURED = [{"regex": "[a-f]{3,9}"}, {"choice": ["yes", "no"]}, {"json": {"type": "array", "maxItems": 2}}]


@pytest.fixture(scope="module")
def reference():
    model, tokenizer = load_model(device="cpu")
    with LLMEngine(model, tokenizer, EngineConfig(max_num_seqs=16)) as engine:
        yield engine


def params_of(fields):
    fields = {"max_tokens": 10} | fields
    if rules := fields.pop("structured_outputs", None):
        fields["structured_outputs"] = StructuredOutputsParams(**rules)
    return SamplingParams(**fields)


def events(http, path, body):
    """The events of a stream, without the last, [DONE]."""
    with http.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[len("data: ") :]) for line in lines[:-1]]


def collected(chunks, count, text_of):
    """Of each choice: [text, token ids, finish reason, stop reason]."""
    found = [["", [], None, None] for _ in range(count)]
    for chunk in chunks:
        for choice in chunk["choices"]:
            own = found[choice["index"]]
            assert own[2] is None, "something follows a finish reason"
            own[0] += text_of(choice)
            own[1] += choice.get("token_ids", [])
            own[2] = choice["finish_reason"]
            own[3] = choice.get("stop_reason")
    return found


def expected(output):
    return [[each.text, each.token_ids, each.finish_reason, each.stop_reason] for each in output.completions]


@pytest.mark.parametrize("fields", TABLE, ids=str)
def test_completions(http, reference, fields):
    (output,) = reference.generate([PROMPT], params_of(fields))
    body = {"max_tokens": 10, "return_token_ids": True, "prompt": PROMPT, "model": MODEL} | fields
    whole = http.post("/v1/completions", json=body).raise_for_status().json()
    found = [
        [each[name] for name in ("text", "token_ids", "finish_reason", "stop_reason")] for each in whole["choices"]
    ]
    assert found == expected(output)
    assert [each["prompt_token_ids"] for each in whole["choices"]] == [output.prompt_ids] * len(found)
    assert whole["usage"]["completion_tokens"] == sum(len(each.token_ids) for each in output.completions)
    assert whole["usage"]["prompt_tokens"] == len(output.prompt_ids)
    chunks = events(http, "/v1/completions", body)
    assert collected(chunks, len(found), lambda choice: choice["text"]) == expected(output)


@pytest.mark.parametrize("rules", STRUCTURED, ids=str)
def test_structured_outputs(http, reference, rules):
    pytest.importorskip("llguidance")
    fields = {**GREEDY, "structured_outputs": rules}
    (output,) = reference.generate([PROMPT], params_of(fields))
    body = {"max_tokens": 10, "return_token_ids": True, "prompt": PROMPT} | fields
    assert collected(events(http, "/v1/completions", body), 1, lambda choice: choice["text"]) == expected(output)


@pytest.mark.parametrize("fields", TABLE[:9], ids=str)
def test_chat(http, reference, fields):
    # The bundled model has no chat template: the default one joins the messages.
    messages = [{"role": "system", "content": "A story."}, {"role": "user", "content": PROMPT}]
    (output,) = reference.generate([f"A story.\n{PROMPT}"], params_of(fields))
    body = {"max_completion_tokens": 10, "return_token_ids": True, "messages": messages} | fields
    whole = http.post("/v1/chat/completions", json=body).raise_for_status().json()
    found = [
        [each["message"]["content"], *(each[name] for name in ("token_ids", "finish_reason", "stop_reason"))]
        for each in whole["choices"]
    ]
    assert found == expected(output)
    assert whole["prompt_token_ids"] == output.prompt_ids
    chunks = events(http, "/v1/chat/completions", body)
    assert collected(chunks, len(found), lambda choice: choice["delta"]["content"]) == expected(output)


def test_several_prompts_are_choices_in_their_order(http, reference):
    prompts = [PROMPT, "The sun", "A big red ball"]
    params = SamplingParams(max_tokens=6, temperature=1.0, seed=2, n=2)
    outputs = reference.generate(prompts, params)
    wanted = [each for output in outputs for each in expected(output)]
    of_tokens = [reference.tokenizer(prompt).input_ids for prompt in prompts]
    for given in (prompts, of_tokens):
        body = {"prompt": given, "max_tokens": 6, "seed": 2, "n": 2, "return_token_ids": True}
        whole = http.post("/v1/completions", json=body).json()
        assert [choice["index"] for choice in whole["choices"]] == list(range(6))
        assert [each["text"] for each in whole["choices"]] == [each[0] for each in wanted]
        assert whole["usage"]["prompt_tokens"] == sum(map(len, of_tokens))
        assert collected(events(http, "/v1/completions", body), 6, lambda choice: choice["text"]) == wanted


def test_defaults_are_openais(http, reference):
    whole = http.post("/v1/completions", json={"prompt": PROMPT, "seed": 4}).json()
    (output,) = reference.generate([PROMPT], SamplingParams(max_tokens=16, temperature=1.0, seed=4))
    assert whole["choices"][0]["text"] == output.text
    # Of a prompt that leaves room for less than 16 tokens, what fits.
    whole = http.post("/v1/completions", json={"prompt": [300] * 1020, "ignore_eos": True}).json()
    assert whole["usage"]["completion_tokens"] == 4
    # A chat goes on until the end token comes or the context is full.
    body = {"messages": [{"role": "user", "content": PROMPT}], "ignore_eos": True}
    prompt = [{"type": "text", "text": " dog" * 500}, {"type": "text", "text": " dog" * 515}]
    whole = http.post("/v1/chat/completions", json=body | {"messages": [{"role": "user", "content": prompt}]}).json()
    assert whole["usage"]["total_tokens"] == 1024
    assert whole["choices"][0]["finish_reason"] == "length"


def test_logprobs_of_completions(http, reference):
    (output,) = reference.generate([PROMPT], SamplingParams(max_tokens=5, logprobs=2))
    body = {"prompt": PROMPT, "max_tokens": 5, "logprobs": 2, **GREEDY}
    whole = http.post("/v1/completions", json=body).json()["choices"][0]
    texts = [reference.tokenizer.decode([token]) for token in output.token_ids]
    found = whole["logprobs"]
    assert found["tokens"] == texts
    assert found["token_logprobs"] == [each.logprob for each in output.completions[0].logprobs]
    assert [list(each.items())[:2] for each in found["top_logprobs"]] == [
        [(reference.tokenizer.decode([token]), value) for token, value in each.top]
        for each in output.completions[0].logprobs
    ]
    assert [whole["text"][at : at + len(text)] for at, text in zip(found["text_offset"], texts)] == texts
    pieces = [choice["logprobs"] for chunk in events(http, "/v1/completions", body) for choice in chunk["choices"]]
    assert {name: [value for piece in pieces for value in piece[name]] for name in found} == found


def test_the_chosen_token_has_a_logprob_when_it_is_not_among_the_likeliest(http):
    body = {"prompt": PROMPT, "max_tokens": 8, "logprobs": 1, "temperature": 2, "seed": 1}
    found = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert {len(each) for each in found["top_logprobs"]} == {1, 2}
    for token, value, top in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"]):
        assert next(iter(top.items())) == (token, value)
    none = http.post("/v1/completions", json=body | {"logprobs": 0}).json()["choices"][0]["logprobs"]
    assert [list(each.items()) for each in none["top_logprobs"]] == [
        [(token, value)] for token, value in zip(found["tokens"], found["token_logprobs"])
    ]


def test_echo_puts_the_prompt_in_front(http, reference):
    (output,) = reference.generate([PROMPT], SamplingParams(max_tokens=4, logprobs=1, prompt_logprobs=1))
    body = {"prompt": PROMPT, "max_tokens": 4, "echo": True, **GREEDY}
    assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == PROMPT + output.text
    (choice,) = collected(events(http, "/v1/completions", body), 1, lambda choice: choice["text"])
    assert choice[0] == PROMPT + output.text
    as_tokens = http.post("/v1/completions", json=body | {"prompt": output.prompt_ids}).json()
    assert as_tokens["choices"][0]["text"] == PROMPT + output.text
    found = http.post("/v1/completions", json=body | {"logprobs": 1}).json()["choices"][0]
    values = [each.logprob if each else None for each in output.prompt_logprobs]
    assert found["logprobs"]["token_logprobs"] == values + [each.logprob for each in output.completions[0].logprobs]
    assert found["logprobs"]["top_logprobs"][0] is None
    assert "".join(found["logprobs"]["tokens"]) == found["text"]
    # The prompt alone, to measure how likely a text is.
    body = body | {"logprobs": 1, "max_tokens": 0}
    alone = http.post("/v1/completions", json=body).json()
    assert alone["choices"][0]["text"] == PROMPT
    assert alone["choices"][0]["logprobs"]["token_logprobs"] == values
    assert alone["usage"]["completion_tokens"] == 0
    del body["logprobs"]
    (choice,) = collected(events(http, "/v1/completions", body), 1, lambda choice: choice["text"])
    assert choice[0] == PROMPT and choice[2] == "length"


def test_logprobs_of_chats(http, reference):
    (output,) = reference.generate([PROMPT], SamplingParams(max_tokens=5, logprobs=2))
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 5, "logprobs": True, "top_logprobs": 2}
    found = http.post("/v1/chat/completions", json=body | GREEDY).json()["choices"][0]["logprobs"]["content"]

    def entry(token, value):
        text = reference.tokenizer.decode([token])
        return {"token": text, "logprob": value, "bytes": list(text.encode())}

    logprobs = output.completions[0].logprobs
    assert [{**each, "top_logprobs": None} for each in found] == [
        entry(each.token, each.logprob) | {"top_logprobs": None} for each in logprobs
    ]
    assert [each["top_logprobs"] for each in found] == [[entry(*pair) for pair in each.top] for each in logprobs]
    chunks = events(http, "/v1/chat/completions", body | GREEDY)
    pieces = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"]]
    assert pieces[0] is None  # of the role
    assert [each for piece in pieces[1:] for each in piece["content"]] == found


def test_prompt_logprobs(http, reference):
    (output,) = reference.generate([PROMPT], SamplingParams(max_tokens=1, prompt_logprobs=1))
    body = {"prompt": PROMPT, "max_tokens": 1, "prompt_logprobs": 1, **GREEDY}
    found = http.post("/v1/completions", json=body).json()["choices"][0]["prompt_logprobs"]
    del body["prompt"]
    body["messages"] = [{"role": "user", "content": PROMPT}]
    assert http.post("/v1/chat/completions", json=body).json()["prompt_logprobs"] == found
    assert found[0] is None
    for each, token, own in zip(output.prompt_logprobs[1:], output.prompt_ids[1:], found[1:]):
        assert own[str(token)] == {"logprob": each.logprob, "decoded_token": reference.tokenizer.decode([token])}
        assert own[str(each.top[0][0])]["logprob"] == each.top[0][1]
