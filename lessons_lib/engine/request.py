"""Lesson 12: a request while the engine serves it.

Its tokens are its only lasting state. Its place in the scheduler, its blocks and its text follow from them, and are
made again after a step that didn't finish.
"""

from dataclasses import dataclass, field

from lessons_lib.engine.detokenizer import IncrementalDetokenizer
from lessons_lib.engine.logprobs import FlatLogprobs, TokenLogprobs
from lessons_lib.engine.outputs import OnToken, RequestOutput
from lessons_lib.engine.rules import Processor, Rules
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.scheduling.sequence import Sequence


@dataclass(eq=False)
class Request(Sequence):
    """One completion while it grows: a Sequence that the scheduler serves, and how its tokens are drawn and shown. A
    caller's request is a RequestGroup of one or more of them.

    Attributes:
        group, params: the request that it is a completion of, and its sampling parameters.
        has_begun: True once the scheduler has got it, also after it has finished; False again after a restart.
        index: its place among the completions of the group.
        seed: of its random numbers.
        processor: the rules that change its logits, or None.
        detokenizer: makes its text; None if the text isn't streamed and there are no stop strings.
        texts: what each token added to the text that can be shown; None without a detokenizer.
        logprobs: of each token, if they were asked for.
        token_times: when each of the tokens that this engine computed arrived, in seconds on its clock.
        num_draft_tokens, num_accepted_tokens: see CompletionOutput.
    """

    group: "RequestGroup" = field(kw_only=True, repr=False)
    params: SamplingParams = field(kw_only=True, repr=False)
    index: int = 0
    seed: int = 0
    has_begun: bool = False
    processor: Processor | None = field(default=None, repr=False)
    detokenizer: IncrementalDetokenizer | None = field(default=None, repr=False)
    texts: list[str] | None = field(default=None, repr=False)
    logprobs: FlatLogprobs | None = None
    token_times: list[float] = field(default_factory=list, repr=False)
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the completion, those in flight included."""
        return len(self.output_ids) + self.num_placeholders

    def restart(self) -> None:
        """Keep nothing but the tokens: none of them is in the cache, and the rules begin anew."""
        self.num_computed_tokens = self.num_placeholders = 0
        self.blocks, self.swapped, self.block_hashes = [], [], []
        self.processor = self.group.rules.processor(self) if self.group.rules else None


@dataclass(eq=False)
class RequestGroup:
    """A caller's request: a prompt, and `params.n` completions of it.

    Attributes:
        arrival: when it arrived, in seconds on the engine's clock.
        rules: what changes its logits, or None.
        on_token: called with each NewToken after the step, in the thread that called `step`.
        is_streamed: whether its text is wanted as it grows.
        is_awaited: whether `generate` or `stream` waits for it, so that `step` doesn't return its output.
        error: why it is to end, if it was cancelled because of an error.
        completions: one Request each. The second and those after it begin once the prompt is computed, and find it in
            the prefix cache.
        num_cached_tokens: see RequestOutput. None until it is admitted.
        admitted_at: when its first step began. None until it is admitted.
        output: what it returned, once it has ended.
    """

    id: str
    prompt_ids: list[int]
    params: SamplingParams
    arrival: float
    rules: Rules | None = None
    on_token: OnToken | None = None
    is_streamed: bool = False
    is_awaited: bool = False
    error: BaseException | None = None
    completions: list[Request] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int | None = None
    admitted_at: float | None = None
    output: RequestOutput | None = None
