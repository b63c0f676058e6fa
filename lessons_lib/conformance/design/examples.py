"""A good design for the workload, found by thinking about each choice and trying three values of it."""

from typing import Any

from lessons_lib.conformance.design.machine import BLOCK_SIZE, Design, Machine
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.scheduling.policies import PriorityWithAgeing
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.serving.router import PrefixAffinity


def design(machine: Machine) -> Design:
    """What serves the workload best on this machine.

    Args:
        machine: what is fixed.

    Returns:
        a Design that the machine can hold.
    """

    def blocks_expected(sequence: Sequence) -> int:
        """Of the prompt, and of twice the answer that is expected; at least one more than it has."""
        answer = min(2 * max(sequence.expected_tokens or 0, 16), sequence.max_new_tokens)
        return max(blocks_for(len(sequence.prompt_ids) + int(answer), BLOCK_SIZE), len(sequence.blocks) + 1)

    def expected_fits(scheduler: Any, sequence: Sequence) -> bool:
        promised = sum(blocks_expected(each) for each in [*scheduler.running, sequence])
        return bool(promised <= scheduler.pool.num_blocks)

    # Alone, a device needs no all-reduce, and one step's fixed part serves only its own batch. Each replica then keeps
    # two of the eight system prompts, so a tenant's chats belong together.
    slots = 12
    return Design(
        num_replicas=machine.num_devices,
        max_num_seqs=slots,
        max_num_batched_tokens=128,  # a longer chunk of a document would delay the tokens of all chats beside it
        num_blocks=machine.blocks_per_device - slots * machine.blocks_per_slot,
        policy=PriorityWithAgeing(patience=2.0, head_start=1.0),
        admission=expected_fits,
        routing=PrefixAffinity(imbalance_limit=8),
    )
