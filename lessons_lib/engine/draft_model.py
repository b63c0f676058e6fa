"""Lesson 18: a smaller model guesses for a larger one."""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from lessons_lib.engine.draft_lengths import Guess
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.rules import to_device
from lessons_lib.engine.sampling import POSITION, race_on, settings_table
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.models.configuration import context_length
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
        longest: most tokens of a sequence, guesses included; None if unlimited.
    """

    def __init__(
        self, model: PreTrainedModel, num_blocks: int = 1024, block_size: int = 16,
        make_runner: Callable[[PreTrainedModel, int, int], ModelRunner] = ModelRunner,
    ):  # fmt: skip
        self.runner, self.pool = make_runner(model, num_blocks, block_size), BlockPool(num_blocks, block_size)
        width, longest = self.runner.tables.max_blocks, context_length(model.config)
        self.longest = min(longest or math.inf, width * block_size if width else math.inf)
        self.mirrors: dict[Sequence, Sequence] = {}

    @torch.inference_mode()
    def propose(self, sequences: list[Any], most: int) -> list[list[Guess]]:
        """See Proposer. A sequence that the pool has no room for gets no guesses."""
        try:
            self.drop_finished()
            mirrors = {each: mirror for each in sequences if (mirror := self.mirror(each, most))}
            guesses = dict(zip(mirrors, self.guess(mirrors, most))) if mirrors else {}
        except BaseException:  # an interrupt may come between any two lines
            self.reset()
            raise
        # The last token is never computed, so no guess is worth anything in its place or behind it.
        return [guesses.get(each, [])[: each.most_tokens - each.num_tokens] for each in sequences]

    def guess(self, mirrors: dict[Any, Sequence], most: int) -> list[list[Guess]]:
        """Draw the next `most` tokens of each mirror, without waiting for them if the runner can overlap.

        A guess is likelier to be right than its probability p, since both models draw with the same noise: (1 + p) / 2,
        which `Trust` corrects.
        """
        device, params = self.runner.model.device, [each.params for each in mirrors]
        seeds, positions = [each.seed for each in mirrors], [len(each.output_ids) for each in mirrors]
        temperatures = to_device(torch.tensor([[own.temperature or 1.0] for own in params]), device)
        drawn = [row for row, own in enumerate(params) if own.temperature > 0]
        table, tokens, chances = None, [], []
        for place in range(most):
            step = SchedulerOutput({each: each.num_tokens - each.num_computed_tokens for each in mirrors.values()})
            logits = (self.runner.decode_again if place else self.runner.forward)(step)
            highest, found = logits.max(dim=-1)
            if drawn:
                if table is None:
                    table = to_device(settings_table(drawn, params, seeds, positions, logits.shape[-1]), device)
                race_on(device)(logits, highest, table, found)
                table[:, POSITION] += 1
            found.clamp_(0, logits.shape[-1] - 1)  # where logits are no numbers, it can be anything
            probabilities = (logits / temperatures).softmax(dim=-1).gather(1, found[:, None])[:, 0]
            chances.append((1 + probabilities) / 2)
            tokens.append(self.runner.keep_tokens(step, found))
            known = [] if self.runner.can_overlap else tokens[-1].wait()
            for row, mirror in enumerate(mirrors.values()):
                mirror.num_computed_tokens = mirror.num_tokens
                mirror.output_ids += known[row : row + 1]
                mirror.num_placeholders += not known
        for mirror in mirrors.values():
            mirror.num_placeholders = 0
        by_pass = [each.wait() for each in tokens], torch.stack(chances).nan_to_num().tolist()
        return [list(map(Guess, *own)) for own in zip(*(zip(*values) for values in by_pass))]

    def mirror(self, request: Sequence, most: int) -> Sequence | None:
        """The request's tokens as the draft sees them, with blocks for `most` more. What it computed behind a wrong
        guess doesn't count."""
        mirror = self.mirrors.setdefault(request, Sequence(request.id, request.prompt_ids, request.max_new_tokens))
        mirror.output_ids = list(request.output_ids)
        mirror.num_computed_tokens = min(mirror.num_computed_tokens, mirror.num_tokens - 1)
        with suppress(OutOfBlocks):
            missing = blocks_for(mirror.num_tokens + most - 1, self.pool.block_size) - len(mirror.blocks)
            mirror.blocks += self.pool.allocate(max(0, missing))
            return mirror if mirror.num_tokens + most <= self.longest else None
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
