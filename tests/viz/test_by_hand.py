"""The pool and the mask that are driven by hand: their JavaScript has the rules and the words of the Python code."""

import json
import random

import pytest
from test_player_functions import needs_node, run_in_node

from lessons_lib.attention.masks import combine, not_in_the_future, not_padding, same_sequence
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks
from lessons_lib.kv_cache.block_table import BlockTable
from lessons_lib.recording.mask_text import read_pairs, read_row
from lessons_lib.recording.pool_states import pool_state
from lessons_lib.recording.words import count, numbered
from lessons_lib.viz.by_hand import mask_by_hand, pool_by_hand
from lessons_lib.viz.by_hand.elements import HERE, row_tags
from lessons_lib.viz.player.script import bundled
from lessons_lib.viz.pool.words import sums

RULES = [not_padding, same_sequence, not_in_the_future]  # in the order of the boxes


def mask_case(seed):
    rng = random.Random(seed)
    lengths, cached = [[rng.randrange(4) for _ in "ABC"] for _ in range(2)]
    padding, on = rng.randrange(3), [rng.random() < 0.7 for _ in RULES]
    rules = [rule for rule, applies in zip(RULES, on) if applies]
    queries, keys = row_tags(lengths, cached, padding)
    mask = combine(rules, queries, keys)
    rows = [read_row(mask, queries, keys, row, "ABC") for row in range(len(queries))]
    cells = read_pairs(queries, keys, "ABC", rules)
    given = dict(lengths=lengths, cached=cached, padding=padding, on=on)
    return given | dict(mask=mask.tolist(), rows=rows, cells=cells)


def pool_case(seed):
    rng = random.Random(seed)
    pool, tables, calls = BlockPool(rng.randint(3, 12), rng.randint(1, 4)), {}, []
    for _ in range(40):
        name, tokens = rng.choice("ABC"), rng.choice([0, *range(1, 9)])
        told = called(pool, tables, name, tokens)
        seen = {each: {"blocks": table.blocks.copy(), "tokens": table.num_tokens} for each, table in tables.items()}
        allocated = sums(pool_state(pool, tables)).split(" allocated")[0]
        calls.append(
            dict(name=name, tokens=tokens, told=told, queue=list(pool.free_queue), tables=seen, sums=allocated)
        )
    return dict(blocks=pool.num_blocks, size=pool.block_size, calls=calls)


def called(pool, tables, name, tokens):
    """Append tokens to a request, or free it if there are none; what the page should say."""
    if not tokens:
        blocks = tables[name].blocks if name in tables else []
        if name in tables:
            tables.pop(name).release()
        return f"{name} frees {numbered('block', blocks)}" if blocks else f"{name} owns no blocks"
    table = tables.get(name) or BlockTable(pool)
    had = len(table.blocks)
    try:
        table.append(tokens)
    except OutOfBlocks as error:
        return f"OutOfBlocks: {str(error).split('.')[0]}"
    does = "grows" if name in tables else "arrives"
    tables[name], taken = table, table.blocks[had:]
    takes = f"{does} and takes {numbered('block', taken)}" if taken else "needs no new block"
    return f"{name}, now {count(table.num_tokens, 'token')}, {takes}."


@needs_node
def test_its_rules_and_words_are_those_of_python(tmp_path):
    cases = {"masks": [mask_case(seed) for seed in range(30)], "pools": [pool_case(seed) for seed in range(20)]}
    assert any("may not attend to padding" in str(case) for case in cases["masks"])
    assert any("OutOfBlocks" in str(case) for case in cases["pools"])
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    places = {"CASES": str(tmp_path / "cases.json")}
    for name in ("pool", "mask"):
        module = tmp_path / f"{name}.mjs"
        module.write_text(bundled(HERE / f"{name}.js"), encoding="utf-8")
        places[name.upper()] = module.as_uri()
    assert "tests 4" in run_in_node("by_hand.test.mjs", places)


@pytest.mark.parametrize(
    ("element", "told"),
    [
        (pool_by_hand(calls=[("A", 6), ("B", 9), ("A", 5)]), "A: blocks 0, 1, 5; 11 tokens, 1 unused."),
        (mask_by_hand(cached=(2, 0, 0)), "Keys in the cache: A 0 to 1."),
    ],
)
def test_where_no_script_runs_there_is_a_picture_of_what_it_starts_from(element, told):
    bundle = element._repr_mimebundle_()
    assert told in bundle["text/plain"] and bundle["image/svg+xml"] == element.still.svg
    start = bundle["text/html"].split("<script")[0]
    assert start.startswith(f"<lessons-{element.kind} ") and "<img" in start
