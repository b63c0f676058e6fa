"""Runs in a browser's Python: right and wrong answers to what lesson 03 lets one build there. Ends with a report."""

import json
import os

os.environ["LESSONS_PROGRESS"] = "/tmp/progress.json"

from lessons_lib.checks.judge import describe, judge
from lessons_lib.checks.registry import get_exercise
from lessons_lib.kv_cache import block_pool, block_serving, block_table


class ForgetsTheOrder(block_pool.BlockPool):
    def free(self, blocks):
        for block in blocks:
            if block not in self.used:
                raise ValueError(f"block {block} is not allocated")
        if len(set(blocks)) < len(blocks):
            raise ValueError("a block is listed twice")
        self.used.difference_update(blocks)
        self.free_queue.extend(blocks)


answers = {
    "03.1": (block_pool.BlockPool, ForgetsTheOrder),
    "03.2": (block_pool.blocks_for, lambda num_tokens, block_size: num_tokens // block_size + 1),
    "03.3": (block_table.BlockTable, object),
    "03.6": (block_serving.step_in_blocks, lambda waiting, running, pool: None),
}


def judged(id, answer):
    exercise = get_exercise(id)
    panel = describe(exercise, *judge(exercise, answer), answer)
    return [panel.kind, repr(panel)]


json.dumps({id: [judged(id, answer) for answer in pair] for id, pair in answers.items()})
