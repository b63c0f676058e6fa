"""Lesson 18: a smaller model guesses for a larger one."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from lessons_lib.engine.draft_lengths import Guess
from lessons_lib.engine.model_runner import InFlight, ModelRunner
from lessons_lib.engine.rules import to_device
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.models.loading import BUNDLED_DRAFT, no_progress_bar
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


def bundled_draft(target: PreTrainedModel) -> PreTrainedModel:
    """The draft of the bundled model, on the device and in the dtype of the larger one."""
    with no_progress_bar():
        loaded: Any = AutoModelForCausalLM.from_pretrained(BUNDLED_DRAFT, dtype=target.dtype, local_files_only=True)
    draft: PreTrainedModel = loaded.eval().requires_grad_(False).to(target.device)
    return draft


class DraftModel:
    """A proposer: a model with the same vocabulary, and a paged cache of its own.

    It draws with the noise that the larger model will draw with, so it is right more often than one that draws on its
    own: for each token, with about the probability that both models share, sum(min(p, q)).

    Attributes:
        mirrors: request -> its tokens as the draft has computed them, with blocks of the draft's own pool.
    """

    def __init__(
        self, model: PreTrainedModel, num_blocks: int = 1024, block_size: int = 16,
        make_runner: Callable[[PreTrainedModel, int, int], ModelRunner] = ModelRunner,
    ):  # fmt: skip
        self.runner, self.pool = make_runner(model, num_blocks, block_size), BlockPool(num_blocks, block_size)
        self.mirrors: dict[Sequence, Sequence] = {}

    @torch.inference_mode()
    def propose(self, sequences: list[Any], most: int) -> list[list[Guess]]:
        """See Proposer. A sequence that the pool has no room for gets no guesses."""
        try:
            self.drop_finished()
            mirrors = {each: mirror for each in sequences if (mirror := self.mirror(each, most))}
            guesses: dict[Sequence, list[Guess]] = {each: [] for each in mirrors}
            in_flight: deque[tuple[dict[Any, Sequence], InFlight]] = deque()
            for _ in range(most):
                # The last token is never computed, so no guess is worth anything in its place or behind it.
                if growing := {each: own for each, own in mirrors.items() if own.num_tokens < own.most_tokens}:
                    in_flight.append((growing, self.draw_next(growing)))
                self.read(guesses, in_flight, most if self.runner.can_overlap else 0)
            self.read(guesses, in_flight, 0)
        except BaseException:  # an interrupt may come between any two lines
            self.reset()
            raise
        return [guesses.get(each, []) for each in sequences]

    def draw_next(self, mirrors: dict[Any, Sequence]) -> InFlight:
        """Draw the next token of each mirror, and give the mirror a placeholder.

        Returns:
            [2, N]: the tokens, and how likely each is to be right, on their way to the host. That is more than its
            probability p, since both models draw with the same noise: (1 + p) / 2, which `Trust` corrects.
        """
        output = SchedulerOutput(
            {mirror: mirror.num_tokens - mirror.num_computed_tokens for mirror in mirrors.values()}
        )
        logits = self.runner.forward(output)
        params, seeds = [each.params for each in mirrors], [each.seed for each in mirrors]
        positions = [mirror.num_tokens - len(mirror.prompt_ids) for mirror in mirrors.values()]
        drawn = choose_tokens(logits, params, seeds, positions)
        self.runner.keep_tokens(output, drawn)
        temperatures = to_device(torch.tensor([each.temperature or 1.0 for each in params]), logits.device)
        probabilities = (logits / temperatures[:, None]).softmax(-1).gather(1, drawn.clamp(min=0)[:, None])[:, 0]
        for mirror in mirrors.values():
            mirror.num_computed_tokens = mirror.num_tokens
            mirror.num_placeholders += 1
        return InFlight.of(torch.stack([drawn.double(), (1 + probabilities.double()) / 2]))

    def read(self, guesses: dict[Sequence, list[Guess]], in_flight: deque[Any], depth: int) -> None:
        """Add the tokens of all passes but the last `depth` to the mirrors, and to the guesses."""
        while len(in_flight) > depth:
            mirrors, drawn = in_flight.popleft()
            for (request, mirror), token, chance in zip(mirrors.items(), *drawn.wait()):
                guesses[request].append(Guess(int(token), chance))
                mirror.output_ids.append(int(token))
                mirror.num_placeholders -= 1

    def mirror(self, request: Sequence, most: int) -> Sequence | None:
        """The request's tokens as the draft sees them, with blocks for `most` more. What it computed behind a wrong
        guess doesn't count."""
        mirror = self.mirrors.setdefault(request, Sequence(request.id, request.prompt_ids, request.max_new_tokens))
        mirror.output_ids = list(request.output_ids)
        mirror.num_computed_tokens = min(mirror.num_computed_tokens, mirror.num_tokens - 1)
        with suppress(OutOfBlocks):
            missing = blocks_for(mirror.num_tokens + most - 1, self.pool.block_size) - len(mirror.blocks)
            mirror.blocks += self.pool.allocate(max(0, missing))
            return mirror
        return None

    def drop_finished(self) -> None:
        """Free the blocks of requests that have ended."""
        for request in [each for each in self.mirrors if each.finish_reason]:
            self.pool.free(self.mirrors.pop(request).blocks)

    def reset(self) -> None:
        """Forget everything."""
        self.mirrors.clear()
        self.pool.reset()
        self.runner.reset()
