"""The pool under pressure in words: what happened in a step, what a block is, and the alternative text of the
picture.
"""

from collections.abc import Sequence

from lessons_lib.kv_cache.block_copies import COPY, SWAP_OUT, BlockCopy
from lessons_lib.recording.memory_steps import MemoryStep
from lessons_lib.recording.pool_states import named_blocks
from lessons_lib.viz.drawing.svg import count

Event = tuple[str | None, str]  # the sequence that it concerns, if it is one, and what happened


def title(step: MemoryStep) -> str:
    return (
        f"Step {step.index + 1} computes {count(sum(step.counts.values()), 'token')} of "
        f"{count(len(step.counts), 'sequence')}"
    )


def events(step: MemoryStep) -> list[Event]:
    """What happened, in order: blocks are taken and copied before the forward pass; sequences finish after it."""
    told: list[Event] = []
    for name in step.preempted:
        told.append((name, "preempted, " + ("swapped out" if name in step.swapped_out else "cache dropped")))
    for name in step.admitted:
        how = (
            ", swapped in"
            if name in step.swapped_in
            else f", {count(step.hits[name], 'token')} found in the cache"
            if name in step.hits
            else ""
        )
        told.append((name, f"admitted{how}"))
    told += [(None, sentence) for sentence in _moved(step.block_copies)]
    told += [(name, "finished") for name in step.finished]
    return told


def _moved(block_copies: Sequence[BlockCopy]) -> list[str]:
    told = [f"block {move.source} is copied to block {move.target}" for move in block_copies if move.kind == COPY]
    for kind in dict.fromkeys(move.kind for move in block_copies if move.kind != COPY):
        group = [move for move in block_copies if move.kind == kind]
        sources, targets = named_blocks([move.source for move in group]), ", ".join(str(move.target) for move in group)
        if kind == SWAP_OUT:
            told.append(f"{sources} to swap {targets}")
        else:
            told.append(
                f"swap {', '.join(str(move.source) for move in group)} to "
                f"{named_blocks([move.target for move in group])}"
            )
    return told


def block_title(step: MemoryStep, block: int) -> str:
    """What a block is, shown under the pointer."""
    owners, size = step.owners.get(block, ()), step.block_size
    if owners:
        owner = (
            owners[0] if len(owners) == 1 else f"{', '.join(owners[:-1])} and {owners[-1]}, one block for {len(owners)}"
        )
        return f"block {block}: {owner}; {step.filled.get(block, 0)} of {count(size, 'token')}"
    if block in step.cached:
        return f"block {block}: free, but its contents can still be found"
    return f"block {block}: free"


def swap_title(block: int, owner: str | None) -> str:
    return f"swap block {block}: " + (f"{owner}, swapped out" if owner else "free")


def sums(step: MemoryStep) -> str:
    """How many blocks are in use, and of these shared; free, and of these cached."""
    used, cached = len(step.owners), len(step.cached)
    shared = sum(len(owners) > 1 for owners in step.owners.values())
    told = [f"{used:,} of {count(step.num_blocks, 'block')} in use" + (f" ({shared:,} shared)" if shared else "")]
    told.append(f"{step.num_blocks - used:,} free ({cached:,} cached)")
    if step.num_swap_blocks:
        told.append(f"{sum(map(len, step.swapped.values())):,} of {count(step.num_swap_blocks, 'swap block')} in use")
    return "; ".join(told)


def lost(step: MemoryStep) -> str:
    return f"{count(step.evicted, 'cached block')} evicted so far"


def describe(step: MemoryStep) -> str:
    """The whole picture in words."""
    told = [
        f"{title(step)}"
        + (": " + ", ".join(f"{name} {n}" for name, n in step.counts.items()) if step.counts else "")
        + "."
    ]
    happened = [f"{name} {what}" if name else what for name, what in events(step)]
    told.append("; ".join(happened)[:1].upper() + "; ".join(happened)[1:] + "." if happened else "No changes.")
    told.append(
        f"Pool of {count(step.num_blocks, 'block')} of {count(step.block_size, 'token')}: {sums(step)}; {lost(step)}."
    )
    for name, blocks in _tables(step).items():
        told.append(f"{name} uses {named_blocks(blocks)}.")
    shared = [block for block, owners in step.owners.items() if len(owners) > 1]
    if shared:
        told.append(f"Shared: {named_blocks(sorted(shared))}.")
    for name, blocks in step.swapped.items():
        told.append(f"{name} is swapped out to swap {named_blocks(blocks)}.")
    if step.cached:
        told.append(f"Free but cached: {named_blocks(sorted(step.cached))}.")
    told.append(f"Waiting: {', '.join(step.waiting) or 'none'}.")
    return " ".join(told)


def _tables(step: MemoryStep) -> dict[str, list[int]]:
    tables: dict[str, list[int]] = {}
    for block, owners in step.owners.items():
        for owner in owners:
            tables.setdefault(owner, []).append(block)
    return tables
