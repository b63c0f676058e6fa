"""What the programs of 08.2 load: their queries, length and blocks, and each key and value once."""

from collections import Counter

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.kernels import cells, ranges, touched
from lessons_lib.checks.lesson_08.groups_cases import Decodes


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


def check_loads(recording, program, made: Decodes) -> None:
    """The result is right; every key and value must have been loaded once, a tile per iteration."""
    kv_head, seq = program.ids
    want, head_dim = made.own_cells(seq, kv_head), made.q.shape[2]
    for tensor, name in (("k_cache", "keys"), ("v_cache", "values")):
        loads = [access for access in program.accesses if (access.kind, access.tensor) == ("load", tensor)]
        loaded, necessary = sum(len(access.offsets) for access in loads), len(want) * head_dim
        times = Counter(offset for access in loads for offset in access.offsets)
        what = (
            f"the result is right, but program ({kv_head}, {seq}) loads {loaded} elements of {name} in "
            f"{_calls(len(loads))} of `tl.load`. Necessary: {necessary} elements, {_calls(-(-len(want) // made.tile))}."
        )
        if idea := why_cells(recording, program, tensor, made):
            raise Mistake(what, case=made.text, idea=idea)
        most = max(times.values())
        if most > 1 and len(loads) <= -(-len(want) // made.tile) and len(want) % made.tile:
            idea = (
                f"One `tl.load` reads some of the {name} {most} times. Is there a copy of the tile per row? One, "
                "[BLOCK_N, HEAD_DIM], serves all query heads of the group. Or do the positions past the last token "
                "point at a key? Mask them."
            )
            raise Mistake(what, case=made.text, idea=idea)
        if most > 1:
            idea = (
                f"Each of the {name} is loaded {most} times"
                + (", once per query head" if most == made.group else ", once per row" if most == 16 else "")
                + ". One tile serves all query heads of the group: load it once per iteration, [BLOCK_N, HEAD_DIM], "
                "and let `tl.dot` multiply it with all rows."
            )
            raise Mistake(what, case=made.text, idea=idea)
        if len(loads) > -(-len(want) // made.tile):
            idea = (
                "An iteration has BLOCK_N positions, in as many blocks as it takes. Yours has fewer: do you still go "
                "block by block, or head by head?"
            )
            raise Mistake(what, case=made.text, idea=idea)
    stores = [access for access in program.accesses if access.kind == "store"]
    if sum(len(access.offsets) for access in stores) > made.group * head_dim:
        count = sum(len(access.offsets) for access in stores)
        what = (
            f"the result is right, but program ({kv_head}, {seq}) stores {count} elements in "
            f"{_calls(len(stores))} of `tl.store`. Necessary: {made.group * head_dim} elements, 1 call."
        )
        idea = "Store once, after the loop: bytes that are written count too."
        if ("load", "out") in ((access.kind, access.tensor) for access in program.accesses):
            idea = "You read `out` back and store it again. The result is in `acc`; bytes that are written count."
        elif len(stores) == 1:
            idea = (
                f"One `tl.store` writes some elements several times. Only GROUP = {made.group} of the BLOCK_M = 16 "
                "rows are heads. Do you let the others point at a head too? Mask them instead, `row < GROUP`."
            )
        raise Mistake(what, case=made.text, idea=idea)


def why_queries(recording, program, made: Decodes) -> str:
    kv_head, seq = program.ids
    loaded, want = cells(recording, program, "load", "q", 2), {(seq, head) for head in made.heads(kv_head)}
    if not loaded:
        return "The queries weren't loaded: a tile [BLOCK_M, HEAD_DIM], one row per query head of the group."
    if not want <= set(loaded):
        shown = ", ".join(f"({i}, {head})" for i, head in sorted(loaded)[:6])
        return (
            f"The queries that you loaded are those of (sequence, head) {shown}. The heads of KV head {kv_head} are "
            f"{ranges(made.heads(kv_head))}: KV head × GROUP + row."
        )
    if not set(made.elements(seq, kv_head)) <= set(touched(recording, program, "load", "q")):
        return (
            "Only parts of the queries were loaded. A head has HEAD_DIM elements, and two heads are `stride_q_head` "
            "apart: q may be a view of a larger tensor."
        )
    return ""


def why_length(recording, program, made: Decodes) -> str:
    looked_up = [index[0] for index in cells(recording, program, "load", "context_lens", 1)]
    if looked_up == [program.ids[1]]:
        return ""
    if not looked_up:
        return "The context length wasn't loaded: `tl.load(context_lens + seq)`."
    return f"The program used the context length of sequence {ranges(looked_up)}; its own is {program.ids[1]}."


def why_table(recording, program, made: Decodes) -> str:
    _, seq = program.ids
    looked_up = cells(recording, program, "load", "block_tables", 2)
    rows, entries = {row for row, _ in looked_up}, {entry for _, entry in looked_up}
    size, context = made.k_cache.shape[1], made.contexts[seq]
    needed = set(range(-(-context // size)))
    if not looked_up and context == 1:
        return (
            "No entry of the block table was read: the loop isn't entered, or the mask is False everywhere. Position "
            "0 is below the context length of 1, which includes the new token."
        )
    if not looked_up:
        return "You read no entry of the block tables. The blocks of sequence i are in row i, at i × stride_table."
    if rows != {seq}:
        return (
            f"The program read the block table of sequence {ranges(sorted(rows))}; its own starts at seq × "
            "stride_table."
        )
    if needed - entries and made.tile > size and entries <= {first // size for first in range(0, context, made.tile)}:
        return (
            f"Each iteration looks up one block, and a tile of {made.tile} positions is in {made.tile // size} of "
            "them. Every position looks up its own: a tile of addresses, table + position // BLOCK_SIZE."
        )
    iterations = sum((access.kind, access.tensor) == ("load", "k_cache") for access in program.accesses)
    if needed - entries and context > made.tile and iterations == 1 and entries == set(range(-(-made.tile // size))):
        return "Only the first tile was read. Go on in steps of BLOCK_N until the context ends."
    if needed - entries and iterations < -(-context // made.tile) and entries == set(range(len(entries))):
        return (
            f"Your loop ends after {iterations} tiles of {made.tile} positions, and a context of {context} takes "
            f"{-(-context // made.tile)}. Go on in steps of BLOCK_N until the context ends."
        )
    if needed - entries:
        return (
            f"You read the entries {ranges(sorted(entries))} of the table; {context} tokens in blocks of {size} need "
            f"the entries {ranges(sorted(needed))}. Position p is in entry p // BLOCK_SIZE."
        )
    return ""


def why_cells(recording, program, tensor: str, made: Decodes) -> str:
    kv_head, seq = program.ids
    name = "keys" if tensor == "k_cache" else "values"
    read, want = cells(recording, program, "load", tensor, 3), made.own_cells(seq, kv_head)
    size, head_dim = made.k_cache.shape[1], made.q.shape[2]
    if not read:
        return f"No {name} were loaded from `{tensor}`."
    if (idea := _why_stride_block(recording, program, tensor, name, want, made)) != "":
        return idea
    missing, extra = [cell for cell in want if cell not in set(read)], [cell for cell in read if cell not in set(want)]
    if not missing and not extra:
        count = len(touched(recording, program, "load", tensor))
        if count < len(want) * head_dim:
            return f"Only part of each of the {name} was loaded: {count} elements of {len(want)} × {head_dim}."
        times = Counter(offset for access in program.accesses if access.tensor == tensor for offset in access.offsets)
        if len(set(times.values())) > 1:
            return (
                f"Some {name} are loaded in one iteration, others in several: the tiles overlap. A tile has BLOCK_N "
                "positions, and so has a step of the loop."
            )
        return ""
    heads = {head for _, _, head in read}
    if heads != {kv_head}:
        own = {(block, slot) for block, slot, _ in read} == {(block, slot) for block, slot, _ in want}
        if own and len(heads) == 1:
            return (
                f"You read the {name} of KV head {heads.pop()}; this program's is {kv_head}, at KV head × stride_head."
            )
        return (
            f"You read {name} of the KV heads {ranges(sorted(heads))}; this program's is {kv_head}. It starts at "
            "KV head × stride_head, and slots are `stride_slot` apart."
        )
    places, own_blocks = [(block, slot) for block, slot, _ in read], {block for block, _, _ in want}
    if not missing and len(extra) == 1 and -len(want) % made.tile > 1:
        return (
            f"You load one position too many: slot {extra[0][1]} of block {extra[0][0]} holds no token. Positions "
            f"count from 0, and the context length of {len(want)} includes the new token: `position < context_len`, "
            "not `<=`."
        )
    if not missing and {block for block, _ in places} <= own_blocks | {0}:
        return (
            f"The mask of the tail is missing. The last tile has {-len(want) % made.tile} positions past the last "
            f"token; you load {name} for them, here from slot {extra[0][1]} of block {extra[0][0]}, which may be NaN. "
            "Load only where `position < context_len`, with `other=0.0`."
        )
    if missing == want[-1:] and not extra:
        return "The newest token is left out. `context_len` includes it: `position < context_len`."
    if not extra and len(want) > made.tile and len(missing) >= len(want) - made.tile:
        return f"Only the first tile of {name} was loaded. Go on in steps of BLOCK_N until the context ends."
    if not extra and made.tile > size and missing == [c for p, c in enumerate(want) if p % made.tile >= size]:
        return (
            f"Of each tile of {made.tile} positions you load {size} {name}, one block's. A tile is BLOCK_N positions "
            "long, whatever the block size is."
        )
    block, slot, _ = (missing or extra)[0]
    verb = f"you don't read slot {slot} of block {block}" if missing else f"you read slot {slot} of block {block}"
    return (
        f"The {name} come from other slots than the sequence's: {verb}. Position p is in the block of table entry "
        f"p // BLOCK_SIZE, in slot p % BLOCK_SIZE. A tile of {made.tile} positions and a block of {size} slots needn't "
        "begin together, nor be equally long."
    )


def _why_stride_block(recording, program, tensor: str, name: str, want, made: Decodes) -> str:
    """Offsets of a cache whose blocks follow each other without gaps, where they don't."""
    size, head_dim = made.k_cache.shape[1], made.q.shape[2]
    stride_block, stride_slot, stride_head, _ = made.k_cache.stride()
    starts = [(block * size + slot) * stride_slot + head * stride_head for block, slot, head in want]
    packed = {start + dim for start in starts for dim in range(head_dim)}
    if stride_block == size * stride_slot or set(touched(recording, program, "load", tensor)) != packed:
        return ""
    return (
        f"You read the {name} as if block b started at b × BLOCK_SIZE × stride_slot. Between two blocks of this cache "
        "there is something else: a block starts at b × stride_block."
    )
