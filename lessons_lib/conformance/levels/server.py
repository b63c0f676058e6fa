"""The OpenAI protocol, as clients use it."""

import json
import threading
from typing import Any

import httpx

from lessons_lib.conformance.contract import MODEL, SERVER
from lessons_lib.conformance.driver import Run
from lessons_lib.conformance.items import Level
from lessons_lib.conformance.oracle import a_prompt, expected
from lessons_lib.conformance.served import Broken

LEVEL = Level("server", "The OpenAI protocol")
PROMPT = a_prompt(9)
NUM_TOKENS = 12


class Client:
    """A client of the server that is judged."""

    def __init__(self, run: Run):
        self.http = httpx.Client(base_url=run.engine.url, timeout=20)
        self.model = self.http.get("/v1/models").json()["data"][0]["id"]
        self.text = run.tokenizer.decode(expected("qwen2", PROMPT, NUM_TOKENS, ignore_eos=True))

    def body(self, **changed: Any) -> dict[str, Any]:
        asked = {"model": self.model, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        return {key: value for key, value in (asked | changed).items() if value is not None}

    def post(self, path: str = "/v1/completions", **changed: Any) -> httpx.Response:
        return self.http.post(path, json=self.body(**changed))

    def completion(self, path: str = "/v1/completions", **changed: Any) -> dict[str, Any]:
        response = self.post(path, **changed)
        if response.status_code != 200:
            raise Broken(
                f"POST {path} {_short(self.body(**changed))}: status {response.status_code}, {response.text[:300]}"
            )
        answer: dict[str, Any] = response.json()
        return answer

    def chunks(self, path: str = "/v1/completions", **changed: Any) -> list[dict[str, Any]]:
        """The events of a stream, without the last, which must be [DONE]."""
        with self.http.stream("POST", path, json=self.body(stream=True, **changed)) as response:
            kind = response.headers.get("content-type", "")
            if response.status_code != 200 or not kind.startswith("text/event-stream"):
                raise Broken(
                    f"a stream has status {response.status_code} and content type {kind!r}, not text/event-stream."
                )
            lines = [line[6:] for line in response.iter_lines() if line.startswith("data: ")]
        if not lines or lines[-1] != "[DONE]":
            raise Broken(f"the last event of a stream must be `data: [DONE]`; it is {lines[-1:]}.")
        return [json.loads(line) for line in lines[:-1]]


def _short(body: dict[str, Any]) -> str:
    return json.dumps(body)[:160]


def _equal(what: str, came: object, right: object) -> None:
    if came != right:
        raise Broken(f"{what}: {came!r} came; it must be {right!r}.")


@LEVEL.item("GET /v1/models lists the model", "14", SERVER)
def models(run: Run) -> None:
    client = Client(run)
    answer = client.http.get("/v1/models").json()
    _equal("`object` of /v1/models", answer.get("object"), "list")
    _equal("`object` of a model", answer["data"][0].get("object"), "model")


@LEVEL.item("A completion has the text of `generate`, a reason, and counts its tokens", "14", SERVER)
def completion(run: Run) -> None:
    client = Client(run)
    answer = client.completion()
    choice = answer["choices"][0]
    _equal("the text", choice["text"], client.text)
    _equal("finish_reason", choice["finish_reason"], "length")
    _equal("`object`", answer["object"], "text_completion")
    usage = {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    right = {"prompt_tokens": 9, "completion_tokens": NUM_TOKENS, "total_tokens": 9 + NUM_TOKENS}
    _equal("usage", usage, right)


@LEVEL.item("A text as prompt is the same as its tokens", "14", SERVER)
def text_prompt(run: Run) -> None:
    client = Client(run)
    text = "some words"
    ids = run.tokenizer.encode(text)
    _equal("the answer to a text", *(client.completion(prompt=each)["choices"][0]["text"] for each in (text, ids)))


@LEVEL.item("A stream's pieces are the text, its last piece has the reason, then comes [DONE]", "14", SERVER)
def streamed(run: Run) -> None:
    client = Client(run)
    chunks = [chunk["choices"][0] for chunk in client.chunks() if chunk["choices"]]
    _equal("the pieces together", "".join(each["text"] for each in chunks), client.text)
    reasons = [each.get("finish_reason") for each in chunks]
    _equal("the reasons", [each for each in reasons if each], ["length"])
    if len(chunks) < 3:
        raise Broken(f"a stream of {NUM_TOKENS} tokens came in {len(chunks)} pieces; send tokens as they are computed.")


@LEVEL.item("`stream_options.include_usage` adds one event with the counts, without choices", "14", SERVER)
def stream_usage(run: Run) -> None:
    chunks = Client(run).chunks(stream_options={"include_usage": True})
    _equal("choices of the last event", chunks[-1]["choices"], [])
    _equal("completion_tokens of the last event", chunks[-1]["usage"]["completion_tokens"], NUM_TOKENS)


@LEVEL.item("Several prompts, and n completions of each, come with their indices", "14", SERVER)
def several(run: Run) -> None:
    client = Client(run)
    prompts = [a_prompt(4), PROMPT, a_prompt(6)]
    choices = client.completion(prompt=prompts)["choices"]
    _equal("indices of three prompts", [each["index"] for each in choices], [0, 1, 2])
    _equal("the answer to the second prompt", choices[1]["text"], client.text)
    choices = client.completion(n=3, temperature=1.5, seed=4)["choices"]
    _equal("indices with n = 3", sorted(each["index"] for each in choices), [0, 1, 2])


@LEVEL.item("A stop string ends the text and is not part of it", "14", SERVER)
def stop_string(run: Run) -> None:
    client = Client(run)
    stop = client.text[4:6]
    choice = client.completion(stop=[stop])["choices"][0]
    _equal(f"the text up to {stop!r}", choice["text"], client.text[: client.text.index(stop)])
    _equal("finish_reason", choice["finish_reason"], "stop")
    chunks = [chunk["choices"][0] for chunk in client.chunks(stop=[stop]) if chunk["choices"]]
    _equal("the same as a stream", "".join(each["text"] for each in chunks), client.text[: client.text.index(stop)])


@LEVEL.item("A chat gets an answer of the assistant, and streams it as deltas", "14", SERVER)
def chat(run: Run) -> None:
    client = Client(run)
    asked: dict[str, Any] = dict(
        path="/v1/chat/completions", prompt=None, messages=[{"role": "user", "content": "hello"}]
    )
    answer = client.completion(**asked)
    message = answer["choices"][0]["message"]
    _equal("the role", message["role"], "assistant")
    _equal("`object`", answer["object"], "chat.completion")
    chunks = [chunk["choices"][0] for chunk in client.chunks(**asked) if chunk["choices"]]
    _equal("the deltas together", "".join(each["delta"].get("content") or "" for each in chunks), message["content"])
    _equal("`role` of the first delta", chunks[0]["delta"].get("role"), "assistant")


@LEVEL.item("Many clients at once get the answers that each gets alone", "14", SERVER)
def at_once(run: Run) -> None:
    client = Client(run)
    prompts = [a_prompt(3 + index, index) for index in range(10)]
    texts: dict[int, str] = {}

    def ask(index: int) -> None:
        texts[index] = client.completion(prompt=prompts[index])["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, prompt in enumerate(prompts):
        right = run.tokenizer.decode(expected("qwen2", prompt, NUM_TOKENS, ignore_eos=True))
        _equal(f"the answer of client {index}, of ten at once", texts.get(index), right)


def _refused(client: Client, what: str, statuses: tuple[int, ...], response: httpx.Response) -> None:
    if response.status_code not in statuses:
        raise Broken(f"{what}: status {response.status_code}; it must be {' or '.join(map(str, statuses))}.")
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        raise Broken(
            f"{what}: the body is {response.text[:200]!r}; clients read `error.message` of a JSON object."
        ) from None
    if not message:
        raise Broken(f"{what}: error.message is empty; say what is wrong.")
    _equal(f"the answer after {what}", client.completion()["choices"][0]["text"], client.text)


@LEVEL.item("What makes no sense gets status 400 and a message, and the server serves on", "14", SERVER)
def errors(run: Run) -> None:
    client = Client(run)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("no prompt", {"prompt": None}), ("an empty prompt", {"prompt": []}), ("max_tokens 0", {"max_tokens": 0}),
        ("temperature -1", {"temperature": -1}), ("top_p 2", {"top_p": 2}), ("an unknown token", {"prompt": [500]}),
        ("a prompt that fills the context", {"prompt": a_prompt(64)}), ("n 0", {"n": 0}),
    ]  # fmt: skip
    for what, changed in wrong:
        _refused(client, what, (400, 422), client.post(**changed))
    bad = client.http.post("/v1/completions", content=b"{not json", headers={"content-type": "application/json"})
    _refused(client, "a body that is no JSON", (400, 422), bad)


@LEVEL.item("An unknown model gets status 404", "14", SERVER)
def unknown_model(run: Run) -> None:
    client = Client(run)
    _refused(client, "an unknown model", (404,), client.post(model="another"))


@LEVEL.item("A client that disconnects ends its request", "14", SERVER, MODEL)
def disconnect(run: Run) -> None:
    client = Client(run)
    watch = run.watch
    watch.seconds_per_pass = 0.03  # slow enough to leave in the middle
    with client.http.stream("POST", "/v1/completions", json=client.body(stream=True, max_tokens=54)) as response:
        next(response.iter_lines())
    while run.engine.num_free_blocks() < run.limits.num_blocks and len(watch.passes) < 55:
        watch.wait()
    if len(watch.passes) > 45:
        raise Broken(
            f"a client left its stream of 54 tokens after the first piece, and the model computed {len(watch.passes)} "
            "passes: the request went on without a reader. Abort it when the connection closes."
        )
