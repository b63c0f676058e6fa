"""Lesson 18: a smaller model guesses for a larger one."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from lessons_lib.engine.draft_lengths import Guess
from lessons_lib.engine.model_runner import ModelRunner
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
            for _ in range(most):
                # The last token is never computed, so no guess is worth anything in its place or behind it.
                growing = {each: own for each, own in mirrors.items() if len(own.output_ids) < own.max_new_tokens - 1}
                for request, guess in zip(growing, self.next_guesses(growing) if growing else ()):
                    guesses[request].append(guess)
        except BaseException:  # an interrupt may come between any two lines
            self.reset()
            raise
        return [guesses.get(each, []) for each in sequences]

    def next_guesses(self, mirrors: dict[Any, Sequence]) -> list[Guess]:
        """Draw the next token of each mirror, and append it."""
        counts = {mirror: mirror.num_tokens - mirror.num_computed_tokens for mirror in mirrors.values()}
        logits = self.runner.forward(SchedulerOutput(counts))
        params, seeds = [each.params for each in mirrors], [each.seed for each in mirrors]
        drawn = choose_tokens(logits, params, seeds, [len(mirror.output_ids) for mirror in counts])
        temperatures = torch.tensor([each.temperature or 1.0 for each in params], device=logits.device)
        chances = (logits / temperatures[:, None]).softmax(-1).gather(1, drawn.clamp(min=0)[:, None])[:, 0]
        for mirror, count, token in zip(counts, counts.values(), drawn.tolist()):
            mirror.num_computed_tokens += count
            mirror.output_ids.append(token)
        return list(map(Guess, drawn.tolist(), chances.tolist()))

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
