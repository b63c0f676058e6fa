"""Any server that speaks the OpenAI protocol and, as vLLM's, has `return_token_ids`, behind the contract."""

import json
import threading

import httpx

from examples.engines.threaded import ThreadedEngine
from lessons_lib.conformance.contract import PREFIXES, SAMPLING, SERVER, STREAM, TEXT, NewTokens, Params

LIMIT = 30.0


class HttpEngine(ThreadedEngine):
    """Each request is a streamed completion, read in a thread.

    Attributes:
        url: of the server, without /v1.
        model: what the server calls its model.
    """

    features = frozenset({PREFIXES, SAMPLING, SERVER, STREAM, TEXT})

    def __init__(self, url: str):
        super().__init__()
        self.url = url
        self.client = httpx.Client(base_url=url, timeout=LIMIT)
        self.model: str = self.client.get("/v1/models").json()["data"][0]["id"]
        self.responses: dict[str, httpx.Response] = {}
        self.lock = threading.Lock()

    def add_request(self, request_id: str, prompt_ids: list[int], params: Params) -> None:
        self.take(request_id)
        body = {
            "model": self.model, "prompt": prompt_ids, "stream": True, "return_token_ids": True,
            "max_tokens": params.max_tokens, "ignore_eos": params.ignore_eos, "temperature": params.temperature,
            "top_k": params.top_k, "top_p": params.top_p, "seed": params.seed,
            "stop_token_ids": list(params.stop_token_ids),
        }  # fmt: skip
        try:
            request = self.client.build_request("POST", "/v1/completions", json=body)
            response = self.client.send(request, stream=True)
            if response.status_code != 200:
                text = response.read().decode()
                response.close()
                raise ValueError(f"status {response.status_code}: {text}")
        except BaseException:
            self.open.discard(request_id)
            raise
        self.responses[request_id] = response
        threading.Thread(target=self._read, args=(request_id, response), daemon=True).start()

    def _read(self, request_id: str, response: httpx.Response) -> None:
        ended = False
        try:
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                for choice in json.loads(line[6:]).get("choices", ()):
                    reason = choice.get("finish_reason")
                    ended = ended or bool(reason)
                    self._put(response, NewTokens(request_id, choice.get("token_ids") or [], reason, choice["text"]))
        except (httpx.HTTPError, httpx.StreamError, ValueError, KeyError, OSError, AttributeError):
            pass  # the answer broke off
        finally:
            if not ended:
                self._put(response, NewTokens(request_id, [], "error"))
            response.close()

    def _put(self, response: httpx.Response, event: NewTokens) -> None:
        """Unless the request was aborted: its id may be in use again."""
        with self.lock:
            if self.responses.get(event.request_id) is response:
                self.arrived.put(event)

    def stop(self, request_id: str) -> None:
        """A client aborts by closing its connection."""
        with self.lock:
            response = self.responses.pop(request_id)
        response.close()

    def close(self) -> None:
        self.client.close()
