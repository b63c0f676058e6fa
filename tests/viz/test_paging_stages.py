"""The stages from rows of cache slots to blocks of a pool."""

from svg_reading import SVG, elements

from lessons_lib.viz.pool import paging, watch_paging


def boxes(picture):
    """Where each token's cell, or each block, is: request and index -> (x, y)."""
    return {
        rect.get("data-moves"): (float(rect.get("x")), float(rect.get("y")))
        for rect in elements(picture, "rect")
        if len((rect.get("data-moves") or "").split()) == 2 and rect.find(f"{SVG}title") is not None
    }


PROMPTS, TOKENS = {"A": 5, "B": 1}, {"A": 9, "B": 2}


def test_blocks_are_allocated_as_their_tokens_come():
    # Prompts: A gets 0 and 1, B gets 2. A's ninth token needs another one, B's second doesn't.
    assert paging.allocated(PROMPTS, TOKENS, 32, 4) == {"A": [0, 1, 3], "B": [2]}
    assert paging.allocated({**PROMPTS, "C": 3}, {"A": 9}, 16, 4) == {"A": [0, 1, 2]}, "others are left out"


def test_empty_blocks_fall_away_and_a_block_of_the_pool_is_where_its_number_says():
    pictures = watch_paging(PROMPTS, TOKENS, row=16, block_size=4).pictures
    every = {f"{name} {index}" for name in "AB" for index in range(4)}
    held = {"A 0", "A 1", "A 2", "B 0"}
    assert len(pictures) == len(paging.STAGES)
    assert [set(boxes(picture)) for picture in pictures] == [set(), every, held, held]
    rows, pool = boxes(pictures[1]), boxes(pictures[3])
    # Four blocks a line: block 2 of the pool is where A's third block was, block 3 where its fourth was.
    assert (pool["B 0"], pool["A 2"]) == (rows["A 2"], rows["A 3"])
    assert "34 % of the 32 slots hold a token" in pictures[0].alt
    assert "4 blocks hold all 11 tokens; 5 of their slots are empty" in pictures[2].alt
    assert "A: 9 tokens, in blocks 0, 1, 3; B: 2 tokens, in blocks 2" in pictures[3].alt
    assert "block table: 0, 1, 3" in pictures[3].svg and "block table" not in pictures[2].svg
