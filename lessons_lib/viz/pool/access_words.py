"""What a packed row writes and reads in a pool, in words."""

from lessons_lib.recording.paged_steps import PagedStep, named_slots
from lessons_lib.recording.pool_states import PoolState, TableState, named_blocks
from lessons_lib.viz.drawing.svg import count
from lessons_lib.viz.pool.words import Holding, ordinal


def pool_after(step: PagedStep) -> PoolState:
    """The pool after the row, as far as its requests' tables show it."""
    tables = tuple(TableState(name, blocks, step.context_lens[name]) for name, blocks in step.tables.items())
    return PoolState(step.num_blocks, step.block_size, (), tables)


def title(step: PagedStep) -> str:
    """What the row does, in a sentence or two."""
    written, held = sum(map(len, step.written.values())), sum(step.context_lens.values())
    if not step.written:
        return "The row is empty: nothing is written, nothing is read."
    told = (
        f"{count(written, 'slot')} {'is' if written == 1 else 'are'} written and {held:,} "
        f"{'is' if held == 1 else 'are'} read."
    )
    if held == written:
        return f"{told} Nothing was there before."
    if held - written == 1:
        return f"{told} The one cached before stays where it is."
    return f"{told} The {held - written:,} cached before stay where they are."


def run_title(step: PagedStep, name: str, position: int, slots: tuple[int, ...]) -> str:
    """The hover text of new tokens that go side by side into one block."""
    block, offset = divmod(slots[0], step.block_size)
    return (
        f"{name}, {_span('position', position, len(slots))}: written to {named_slots(slots)}, block {block}, "
        f"{_span('offset', offset, len(slots))}"
    )


def access_block_title(block: int, held: Holding | None, step: PagedStep) -> str:
    if held is None:
        return f"block {block}: free, in no table of this row"
    empty = step.block_size - held.tokens
    told = f"block {block}: the {ordinal(held.start // step.block_size + 1)} of {held.request}"
    if held.tokens:
        told += f", {_span('position', held.start, held.tokens)}, read"
    return told + (f", {count(empty, 'slot')} unused" if empty else "")


def access_cell_title(block: int, offset: int, held: Holding, step: PagedStep, is_written: bool) -> str:
    where = f"slot {block * step.block_size + offset}: block {block}, offset {offset}; {held.request}"
    if offset >= held.tokens:
        return f"{where}, unused, kept for position {held.start + offset}"
    return f"{where}, position {held.start + offset}, {'written by this row and ' * is_written}read"


def describe_access(step: PagedStep) -> str:
    """The whole picture in words."""
    told = [title(step), f"Pool of {count(step.num_blocks, 'block')} with {count(step.block_size, 'slot')} each."]
    for name, slots in step.written.items():
        context = step.context_lens[name]
        order = ", in this order" if len(step.tables[name]) > 1 else ""
        reads = f"its last new token reads {count(context, 'token')} in {named_blocks(step.tables[name])}{order}"
        where = (
            f"{_span('position', context - len(slots), len(slots))} {'is' if len(slots) == 1 else 'are'} written "
            f"to {named_slots(slots)}"
        )
        told.append(f"{name}: {where}; {reads}.")
    return " ".join(told)


def _span(noun: str, first: int, length: int) -> str:
    return f"{noun} {first}" if length == 1 else f"{noun}s {first} to {first + length - 1}"
