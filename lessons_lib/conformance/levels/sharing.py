"""Requests with the same beginning share its blocks, and nothing else."""

from lessons_lib.conformance.contract import BLOCKS, MODEL, PREFIXES
from lessons_lib.conformance.driver import Run
from lessons_lib.conformance.items import Level
from lessons_lib.conformance.levels.manners import _fail_once
from lessons_lib.conformance.oracle import a_prompt
from lessons_lib.conformance.served import Broken

LEVEL = Level("sharing", "Shared prefixes")
WORDS = a_prompt(48, 77)


@LEVEL.item("Prompts with the same beginning, cut anywhere: no answer changes", "11", PREFIXES)
def cut_anywhere(run: Run) -> None:
    for length in range(1, 20):
        run.add(WORDS[:length], 4, ignore_eos=True)
        run.add(WORDS[:length] + [index % 90 for index in range(3)], 4, ignore_eos=True)
        if length % 4 == 0:
            run.run_out()
    run.finish("at the end")


@LEVEL.item("The same prompt again computes less", "11", PREFIXES, MODEL)
def the_second_time_is_cheaper(run: Run) -> None:
    costs = []
    for _ in range(2):
        before = sum(run.watch.passes)
        run.add(WORDS[:41], 2, ignore_eos=True)
        run.run_out()
        costs.append(sum(run.watch.passes) - before)
    run.check_answers()
    if costs[0] and costs[1] > costs[0] // 2:
        raise Broken(
            f"a prompt of 41 tokens: {costs[0]} tokens computed the first time, {costs[1]} the second. Its ten full "
            "blocks are still in the cache."
        )


@LEVEL.item("A prompt that is in the cache to its last token still gets its first token", "11", PREFIXES)
def wholly_cached(run: Run) -> None:
    for length in (4, 8, 16):
        for _ in range(3):
            run.add(WORDS[:length], 5, ignore_eos=True)
            run.finish()


@LEVEL.item("Requests that share a prefix and then differ don't write into each other's blocks", "11", PREFIXES)
def diverging(run: Run) -> None:
    run.add(WORDS[:18], 6, ignore_eos=True)
    run.run_out()
    for index in range(4):
        run.add([*WORDS[:18], index, 50 + index], 10, ignore_eos=True)
    run.finish()


@LEVEL.item("Equal blocks behind different beginnings are not the same", "11", PREFIXES)
def other_beginnings(run: Run) -> None:
    for first in range(5):
        run.add([first] * 4 + WORDS[:12], 6, ignore_eos=True)
        run.run_out()
    run.add(WORDS[:12], 6, ignore_eos=True)
    run.add(WORDS[4:12] + WORDS[:4], 6, ignore_eos=True)
    run.finish()


@LEVEL.item("An answer that becomes part of the next prompt is shared rightly", "11", PREFIXES)
def a_conversation(run: Run) -> None:
    prompt = WORDS[:9]
    for turn in range(4):
        name = run.add(prompt, 5, ignore_eos=True)
        run.run_out()
        prompt = [*prompt, *run.requests[name].tokens, turn]
    run.check_answers()


@LEVEL.item("The pool is too small to keep everything: old prefixes give way", "11", PREFIXES)
def eviction(run: Run) -> None:
    run = run.another(num_blocks=11, max_num_seqs=3)
    for index in range(10):
        run.add(WORDS[: 8 + 4 * (index % 3)] + [index % 4] * 5, 7, ignore_eos=True)
    run.finish("at the end")


@LEVEL.item("When one of two sharers is aborted, the other's blocks stay", "11", PREFIXES)
def abort_of_a_sharer(run: Run) -> None:
    for first_leaves in (True, False):
        run = run.another(num_blocks=24)
        names = [run.add(WORDS[:17], 12, ignore_eos=True)]
        run.step()
        run.step()
        names.append(run.add(WORDS[:17], 12, ignore_eos=True))
        run.step()
        run.step()
        run.abort(names[0 if first_leaves else 1])
        for index in range(3):
            run.add(a_prompt(12, index), 6, ignore_eos=True)  # they take what is free
        run.finish("at the end")


@LEVEL.item("What a failed pass was to compute is not shared", "11", PREFIXES, MODEL)
def nothing_stale_is_shared(run: Run) -> None:
    run.add(WORDS[:33], 4, ignore_eos=True)
    _fail_once(run, 1)
    run.add(WORDS[:33], 4, ignore_eos=True)
    run.run_out()
    run.check_answers(may_fail=True)
    if all(each.finish_reason == "error" for each in run.requests.values()):
        raise Broken("a pass failed, and every request after it ended with 'error'.")


@LEVEL.item("Blocks that keep a prefix can be taken: they count as free", "11", PREFIXES, BLOCKS, num_blocks=12)
def kept_blocks_are_free(run: Run) -> None:
    run.add(WORDS[:40], 2, ignore_eos=True)
    run.run_out()
    run.check_all_free("after a prompt of 10 full blocks, which the cache may keep")
    run.add(a_prompt(40), 2, ignore_eos=True)
    run.finish()
