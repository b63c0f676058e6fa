"""How rows become blocks: they are cut, the empty blocks fall away, and the others may be anywhere."""

from collections.abc import Mapping

from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.viz.drawing.palette import EDGE, INK, PAPER, SOFT_INK, color_of, tint
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.drawing.svg import WIDTH, Drawing, share_text
from lessons_lib.viz.stepper import Stepper

STAGES = ("rows", "cut into blocks", "without empty blocks", "anywhere, with tables")
_LEFT, _TOP, _RIGHT, _HEIGHT, _LINE = 52, 44, 16, 30, 40
_GAP = 3  # between blocks


def watch_paging(prompts: Mapping[str, int], tokens: Mapping[str, int], row: int, block_size: int) -> Stepper:
    """Step from rows of cache slots to blocks of a pool; `prompts`, `tokens`: tokens of each request."""
    tables = allocated(prompts, tokens, row * len(tokens), block_size)
    return Stepper(
        lambda stage: draw_paging(tokens, tables, row, block_size, stage),
        count=len(STAGES), label="stage", name=lambda i: STAGES[i],
    )  # fmt: skip


def allocated(
    prompts: Mapping[str, int], tokens: Mapping[str, int], num_slots: int, block_size: int
) -> dict[str, list[int]]:
    """The block tables, if all prompts are computed first and the requests then get their tokens in turn."""
    pool, counts = BlockPool(num_slots // block_size, block_size), {name: prompts[name] for name in tokens}
    tables = {name: pool.allocate(blocks_for(counts[name], block_size)) for name in tokens}
    while counts != dict(tokens):
        for name in tokens:
            if counts[name] < tokens[name]:
                counts[name] += 1
                tables[name] += pool.allocate(blocks_for(counts[name], block_size) - len(tables[name]))
    return tables


def draw_paging(
    tokens: Mapping[str, int], tables: Mapping[str, list[int]], row: int, block_size: int, stage: int
) -> Picture:
    """One of `STAGES`. `tables`: request -> its blocks, in the order of its tokens."""
    per_row, width = row // block_size, float((WIDTH - _LEFT - _RIGHT) // (row // block_size))
    d = Drawing()
    title = _title(tokens, tables, row, block_size, stage)
    d.text(16, 20, title, 15, bold=True)
    if stage == 3:
        used = {block for table in tables.values() for block in table}
        for block in set(range(len(tokens) * per_row)) - used:
            x, y = _place(block // per_row, block % per_row, width)
            with d.marked([("free", str(block))]):
                d.rect(x, y, width - _GAP, _HEIGHT, PAPER, EDGE, radius=3, title=f"block {block}: free")
                d.text(x + 4, y + 9, str(block), 10, fill=SOFT_INK, mono=True)
    for line, (name, count) in enumerate(tokens.items()):
        if stage < 3:
            with d.marked([(name,)], moves=f"chip {name}"):
                d.request_chip(20, _TOP + line * _LINE + _HEIGHT / 2 - 10, name)
        if not stage:
            with d.marked([(name,)]):
                _row(d, name, count, row, *_place(line, 0, width), width * per_row)
            continue
        for index in range(per_row):
            filled = max(0, min(block_size, count - index * block_size))
            if not filled and stage >= 2:
                continue
            block = tables[name][index] if stage == 3 else None
            place = (line, index) if block is None else divmod(block, per_row)
            with d.marked([(name, "" if block is None else str(block))], moves=f"{name} {index}"):
                _block(d, name, index, filled / block_size, block, *_place(*place, width), width - _GAP)
    _tables(d, tables, stage)
    return d.picture(f"{title}. {_told(tokens, tables)}")


def _place(line: int, column: int, width: float) -> tuple[float, float]:
    return _LEFT + column * width, _TOP + line * _LINE


def _row(d: Drawing, name: str, count: int, row: int, x: float, y: float, width: float) -> None:
    d.rect(x, y, width, _HEIGHT, tint(color_of(name)), title=f"request {name}: {count} of {row} slots hold a token")
    d.rect(x, y, width * count / row, _HEIGHT, color_of(name))


def _block(
    d: Drawing, name: str, index: int, filled: float, block: int | None, x: float, y: float, width: float
) -> None:
    color = color_of(name)
    where = f"request {name}, block {index} of its table" + ("" if block is None else f": block {block} of the pool")
    d.rect(x, y, width, _HEIGHT, tint(color), title=f"{where}; {filled:.0%} of its slots hold a token")
    if filled:
        d.rect(x, y, width * filled, _HEIGHT, color)
    if block is not None:
        d.rect(x + 2, y + 2, 7 * len(str(block)) + 4, 13, PAPER)
        d.text(x + 4, y + 9, str(block), 10, fill=INK, mono=True)
        d.text(x + width - 4, y + _HEIGHT - 8, f"{name}{index}", 10, "end", on=color if filled > 0.7 else tint(color))


def _tables(d: Drawing, tables: Mapping[str, list[int]], stage: int) -> None:
    """The block tables, in the last stage; the picture has room for them in all."""
    top = _TOP + len(tables) * _LINE + 10
    for line, (name, table) in enumerate(tables.items()):
        if stage == 3:
            with d.marked([(name,)], moves=f"chip {name}"):
                d.request_chip(20, top + line * 24, name)
            d.text(_LEFT, top + line * 24 + 10, "block table: " + ", ".join(map(str, table)), 12, mono=True)
    d.height = top + len(tables) * 24 + 6


def _title(tokens: Mapping[str, int], tables: Mapping[str, list[int]], row: int, block_size: int, stage: int) -> str:
    slots, held, blocks = len(tokens) * row, sum(tokens.values()), sum(map(len, tables.values()))
    empty = blocks * block_size - held
    return (
        f"{len(tokens)} rows of {row} slots: {share_text(held, slots)} of the {slots:,} slots hold a token",
        f"The same rows, cut into {slots // block_size} blocks of {block_size} slots",
        f"{blocks} blocks hold all {held} tokens; {empty} of their slots are empty",
        f"A block may be anywhere, if a table says where; {slots // block_size - blocks} blocks are free for others",
    )[stage]


def _told(tokens: Mapping[str, int], tables: Mapping[str, list[int]]) -> str:
    return "; ".join(
        f"{name}: {tokens[name]} tokens, in blocks {', '.join(map(str, table))}" for name, table in tables.items()
    )
