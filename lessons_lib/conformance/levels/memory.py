"""Blocks: taken when they are needed, given back by every ending, and too few of them."""

import random

from lessons_lib.conformance.contract import BLOCKS, MODEL, STEPS, TABLES, Params
from lessons_lib.conformance.driver import Run
from lessons_lib.conformance.items import Level
from lessons_lib.conformance.levels.manners import _fail_once
from lessons_lib.conformance.oracle import FAMILIES, a_prompt
from lessons_lib.conformance.served import Broken
from lessons_lib.kv_cache.block_pool import blocks_for

LEVEL = Level("memory", "Blocks, and too few of them")
REQUESTS = ((17, 12), (3, 20), (9, 9), (25, 6), (1, 24), (12, 12))


def _add_all(run: Run) -> None:
    run.add_all(REQUESTS, ignore_eos=True)


@LEVEL.item("All blocks are free at first, and free again at the end", "03", BLOCKS)
def all_come_back(run: Run) -> None:
    run.check_all_free("before the first request")
    for _ in range(3):
        _add_all(run)
        run.finish("after all requests have ended", after_step=run.free_blocks)


@LEVEL.item("A running request holds the blocks of its tokens, and few more", "03", BLOCKS, STEPS)
def blocks_on_demand(run: Run) -> None:
    size = run.limits.block_size
    name = run.add(a_prompt(9), 40, ignore_eos=True)
    served = run.requests[name]
    while run.engine.has_unfinished():
        run.step()
        if served.finish_reason or not served.tokens:
            continue
        in_cache = len(served.prompt) + len(served.tokens) - 1
        used = run.limits.num_blocks - run.free_blocks()
        least, most = blocks_for(in_cache, size), blocks_for(in_cache + 2, size) + 1
        if used < least:
            raise Broken(
                f"the only request has {in_cache} tokens in the cache, which need {least} blocks of {size}; "
                f"{used} are in use by num_free_blocks(). Two of its tokens share a slot, or the books are wrong."
            )
        if used > most:
            raise Broken(
                f"the only request has {in_cache} tokens in the cache, which need {least} blocks of {size}; {used} are "
                "in use. Take a block when a token needs it: blocks reserved for the longest answer are wasted."
            )


@LEVEL.item("Block sizes 1, 3, 16 and 64", "03", BLOCKS)
def block_sizes(run: Run) -> None:
    for block_size in (1, 3, 16, 64):
        run = run.another(block_size=block_size, num_blocks=max(8, 300 // block_size))
        _add_all(run)
        run.finish(f"block size {block_size}")


@LEVEL.item("A request may fill the pool to its last slot", "03", BLOCKS)
def to_the_last_slot(run: Run) -> None:
    run = run.another(num_blocks=6)  # 24 slots; the last token of an answer needs none
    run.add(a_prompt(10), 15, ignore_eos=True)
    run.finish("at the end")


@LEVEL.item("A request that the pool can never hold is refused, and nothing changes", "10", BLOCKS, num_blocks=5)
def never_fits(run: Run) -> None:
    run.add(a_prompt(4), 6, ignore_eos=True)
    run.step()
    free = run.free_blocks()
    for length, max_tokens, why in (
        (30, 4, "a prompt of 30 tokens needs 8 blocks of 4"),
        (4, 30, "a prompt of 4 tokens and an answer of 30 (the last token is never computed) need 9 blocks of 4"),
    ):
        try:
            run.engine.add_request("large", a_prompt(length), Params(max_tokens, ignore_eos=True))
        except Exception:  # of any kind: it was refused
            if STEPS in run.features and run.free_blocks() != free:
                raise Broken("a request larger than the pool was refused, and the free blocks changed.") from None
        else:
            raise Broken(
                f"{why}, and the pool has 5: add_request took it. It can never be completed, and what waits behind it "
                "waits for ever."
            )
    run.finish()


@LEVEL.item("Too few blocks for all: no answer changes, whatever the size of the pool", "10", BLOCKS)
def under_pressure(run: Run) -> None:
    for num_blocks in (8, 9, 10, 11, 13, 16, 20, 26):
        run = run.another("qwen2" if num_blocks % 2 else "gpt2", num_blocks=num_blocks, max_num_seqs=6)
        _add_all(run)
        run.finish(f"a pool of {num_blocks} blocks", after_step=run.free_blocks)


@LEVEL.item("Too few blocks and blocks of one token", "10", BLOCKS)
def under_pressure_token_by_token(run: Run) -> None:
    for num_blocks in (31, 37, 50):
        run = run.another("llama", num_blocks=num_blocks, block_size=1, max_num_seqs=6)
        _add_all(run)
        run.finish(f"a pool of {num_blocks} blocks of one token")


@LEVEL.item("Under pressure, tokens that a reader has got are not taken back or repeated", "10", BLOCKS, STEPS)
def preempted_streams_go_on(run: Run) -> None:
    run = run.another(num_blocks=9, max_num_seqs=3)
    run.add_many(3, 8, 24)
    run.finish()


@LEVEL.item("Abort and pressure at once lose no block", "10", BLOCKS)
def abort_under_pressure(run: Run) -> None:
    rng = random.Random("abort_under_pressure")
    for family in FAMILIES:
        run = run.another(family, num_blocks=9, max_num_seqs=5)
        names = [run.add(a_prompt(1 + 3 * index, index), 12, ignore_eos=True) for index in range(7)]
        rng.shuffle(names)
        for name in names[:4]:
            for _ in range(rng.randrange(5)):
                run.step()
            run.abort(name)
        run.finish("aborts in a pool of 9 blocks")


@LEVEL.item("A pass of the model that fails loses no block, also under pressure", "12", BLOCKS, MODEL)
def fault_under_pressure(run: Run) -> None:
    for at_pass in (1, 4, 9):
        run = run.another(num_blocks=9, max_num_seqs=4)
        for index in range(4):
            run.add(a_prompt(5 + index, index), 12, ignore_eos=True)
        _fail_once(run, at_pass)
        run.check_answers(may_fail=True)
        run.check_all_free(f"after a failed pass (the {at_pass}.)")


@LEVEL.item("Preempted requests are computed anew within `max_num_batched_tokens`", "10", BLOCKS, MODEL)
def budget_under_pressure(run: Run) -> None:
    run = run.another(max_num_batched_tokens=8, num_blocks=12)
    run.add_many(4, 6, 24)
    run.finish()
    run.check_budget()


@LEVEL.item("No block is in two tables, nor in a table and free", "03", BLOCKS, TABLES, num_blocks=12, max_num_seqs=4)
def no_block_twice(run: Run) -> None:
    for index in range(5):
        run.add(a_prompt(7 + index, index), 10, ignore_eos=True)  # nothing to share
    run.run_out(lambda: _check_tables(run))


def _check_tables(run: Run) -> None:
    tables: dict[str, list[int]] = run.engine.block_tables()
    owner: dict[int, str] = {}
    for name, table in tables.items():
        for block in table:
            if not 0 <= block < run.limits.num_blocks:
                raise Broken(
                    f"the table of {name!r} has block {block}; the pool has blocks 0 to {run.limits.num_blocks - 1}."
                )
            if block in owner:
                raise Broken(
                    f"step {run.steps}: block {block} is in the tables of {owner[block]!r} and {name!r}, whose "
                    "prompts have nothing in common. One overwrites the other's keys and values."
                )
            owner[block] = name
    if len(owner) + run.free_blocks() > run.limits.num_blocks:
        raise Broken(
            f"step {run.steps}: {len(owner)} blocks are in tables and {run.free_blocks()} are free, of "
            f"{run.limits.num_blocks}: a block is in a table and free, and will be given away while it is read."
        )
