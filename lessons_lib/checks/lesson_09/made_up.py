"""Sequences and schedulers in any state, built for the checks of lesson 09."""

from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.scheduling.sequence import Sequence

END = -1  # serves as the end token


def a_sequence(
    name: str,
    prompt: int,
    *,
    answered: int = 0,
    computed: int = 0,
    max_tokens: int = 50,
    arrival: float = 0.0,
    tier: int = 0,
    interactive: bool = False,
    expected: float | None = None,
) -> Sequence:
    """A sequence with `prompt` and `answered` known tokens, of which `computed` are computed."""
    return Sequence(
        name, list(range(prompt)), max_tokens, frozenset({END}), arrival_time=arrival, tier=tier,
        expected_tokens=expected, is_interactive=interactive,
        output_ids=list(range(answered)), num_computed_tokens=computed,
    )  # fmt: skip


def used_pool(num_blocks: int, block_size: int, in_use: int) -> BlockPool:
    """A pool with `in_use` of its blocks allocated."""
    pool = BlockPool(num_blocks, block_size)
    pool.allocate(in_use)
    return pool


def state_of(sequence: Sequence) -> tuple:
    """Everything about a sequence that a step may change."""
    return (
        list(sequence.prompt_ids),
        list(sequence.output_ids),
        sequence.num_computed_tokens,
        list(sequence.blocks),
        sequence.finish_reason,
    )


def names_of(sequences) -> list[str]:
    return [getattr(sequence, "id", repr(sequence)) for sequence in sequences]


def listed(names) -> str:
    """Names in a sentence: "A, B and C"; "none" if there are none."""
    names = list(names)
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part) if names else "none"
