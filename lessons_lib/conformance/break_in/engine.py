"""The engine and the server of the break-in, in one object that only moves when it is called: no thread, no clock."""

from collections.abc import Generator, Iterator
from contextlib import closing

from lessons_lib.conformance.adapters.course import CourseEngine, config_of
from lessons_lib.conformance.contract import Limits, NewTokens, Params
from lessons_lib.conformance.oracle import a_model
from lessons_lib.conformance.texts import byte_tokenizer
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.serving.http.chat_events import sse_events

MAX_STEPS = 600  # the right engine needs less than a hundred for any test that is worth writing


class TooManySteps(RuntimeError):
    """The test goes on stepping: what it waits for doesn't come."""


class ChatEngine(CourseEngine):
    """The contract of this lesson, and what a server writes to a client.

    `params` are SamplingParams of lesson 12, so a request may have stop strings (`stop=["..."]`). `num_free_blocks()`
    and `block_tables()` are as in the contract.

    Attributes:
        steps: how many there were.
    """

    def __init__(self, engine: LLMEngine):
        super().__init__(engine)
        self.steps = 0

    def step(self) -> list[NewTokens]:
        """Serve the requests that are there with one pass of the model.

        Raises:
            TooManySteps: this engine has taken 600 steps.
        """
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise TooManySteps(f"{MAX_STEPS} steps were taken, and the test still goes on. Give its loop an end.")
        return super().step()

    def events(self, request_id: str, prompt_ids: list[int], params: Params | SamplingParams) -> Iterator[bytes]:
        """The events of a streamed chat completion, as the server of lesson 14 writes them.

        The first `next` adds the request, and each one steps the engine until there is an event. `close()` on the
        iterator: the client leaves.

        Yields:
            bytes: "data: ", JSON with the text in `choices[0].delta.content` and `choices[0].finish_reason`, and an
                empty line; the last one is "data: [DONE]".
        """
        with closing(self.batches(request_id, prompt_ids, params)) as batches:
            yield from sse_events({"id": request_id, "object": "chat.completion.chunk"}, batches)  # type: ignore[arg-type]

    def batches(
        self, request_id: str, prompt_ids: list[int], params: Params | SamplingParams
    ) -> Generator[list[NewTokens], None, None]:
        """The new tokens of one request, step by step. Those of others stay for the next `step`."""
        self.add_request(request_id, prompt_ids, params)
        try:
            has_ended = False
            while not has_ended:
                events = self.step()
                self.new = [event for event in events if event.request_id != request_id] + self.new
                own = [event for event in events if event.request_id == request_id]
                if own:
                    yield own
                has_ended = any(event.finish_reason for event in own)
        finally:
            self.leave(request_id)

    def text_of(self, token_ids: list[int]) -> str:
        """The text of tokens that are all there. A special token has none."""
        return str(self.engine.tokenizer.decode(token_ids, skip_special_tokens=True))

    def leave(self, request_id: str) -> None:
        """The client has left, or has the whole answer."""
        self.abort(request_id)


def right_engine(**limits: int) -> ChatEngine:
    """An engine without a mistake.

    Args:
        limits: fields of `Limits`, such as max_num_seqs=2 or num_blocks=9; its defaults apply to the others.
    """
    chosen = Limits(**limits)
    return ChatEngine(LLMEngine(a_model("qwen2"), byte_tokenizer(), config_of(chosen)))
