"""Two elements of a page that a reader drives by hand; mask.js and pool.js, next to this file, bring them to life."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lessons_lib.attention.masks import PADDING, Tags, block_diagonal_mask, tag_tokens
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.recording.mask_text import letters
from lessons_lib.recording.pool_states import pool_state
from lessons_lib.viz.drawing.palette import in_both_themes
from lessons_lib.viz.drawing.picture import Picture
from lessons_lib.viz.masks.grid import draw_mask
from lessons_lib.viz.player.script import live_element
from lessons_lib.viz.pool.grid import draw_pool

HERE = Path(__file__).parent


@dataclass(frozen=True)
class ByHand:
    """An element <lessons-KIND>, what it starts from, and the picture of that for where no script runs."""

    kind: str
    given: dict[str, Any]
    still: Picture

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        module = HERE / f"{self.kind}.js"
        return live_element(module, f"lessons-{self.kind}", self.given, self.still._repr_mimebundle_())


def mask_by_hand(
    lengths: Sequence[int] = (4, 3, 2), cached: Sequence[int] = (0, 0, 0), longest: int = 20, row: int = 5
) -> ByHand:
    """The mask of sequences that share a packed row: sliders or the ends of their letters change their tokens, boxes
    the rules; the cell under the mouse, or at the arrow keys, is described.

    Args:
        lengths, cached: new and cached tokens of each sequence at first, at most `longest`. They are named A, B, ...
        row: index of the query that is read at first.
    """
    names = letters(len(lengths))
    queries, keys = row_tags(lengths, cached)
    still = draw_mask(block_diagonal_mask(queries, keys), queries, keys, names, row)
    given = {"names": names, "lengths": lengths, "cached": cached, "longest": longest, "padding": 8, "cell": (row, row)}
    return ByHand("mask", given | {"colors": {name: in_both_themes(name) for name in names}}, still)


def row_tags(lengths: Sequence[int], cached: Sequence[int], padding: int = 0) -> tuple[Tags, Tags]:
    """The tags of one pass. Queries: all new tokens, then the padding; keys: all cached tokens, then the queries."""
    at_the_end = Tags(torch.full((padding,), PADDING), torch.arange(padding))
    queries = tag_tokens(lengths, starts=cached).followed_by(at_the_end)
    return queries, tag_tokens(cached).followed_by(queries)


def pool_by_hand(num_blocks: int = 12, block_size: int = 4, calls: Sequence[tuple[str, int]] = ()) -> ByHand:
    """A block pool by hand. `calls`: what was done before, (request, tokens appended to it)."""
    pool, tables = BlockPool(num_blocks, block_size), {}
    for name, tokens in calls:
        tables.setdefault(name, BlockTable(pool)).append(tokens)
    colors = {name: in_both_themes(name) for name in "ABCDEF"}
    given = {"blocks": num_blocks, "size": block_size, "calls": calls, "colors": colors}
    return ByHand("pool", given, draw_pool(pool_state(pool, tables)))
