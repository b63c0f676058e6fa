"""Many requests at once get the same tokens, and no slot waits."""

import random
from itertools import pairwise

from lessons_lib.conformance.contract import MODEL, STEPS
from lessons_lib.conformance.driver import Run
from lessons_lib.conformance.items import Level
from lessons_lib.conformance.oracle import FAMILIES, a_prompt, prompt_that_ends
from lessons_lib.conformance.served import Broken

LEVEL = Level("batches", "Many requests at once")
RAGGED = ((1, 5), (40, 3), (7, 20), (2, 1), (16, 9), (17, 2), (3, 30), (23, 7), (5, 12))


@LEVEL.item("Requests of unequal length get the tokens that each gets alone", "05")
def ragged(run: Run) -> None:
    for family in FAMILIES:
        run = run.another(family)
        run.add_all(RAGGED)
        run.finish()


@LEVEL.item("Requests that arrive while others run change no answer", "02")
def arrivals(run: Run) -> None:
    rng = random.Random("arrivals")
    for family in FAMILIES:
        run = run.another(family)
        waiting = [(rng.randrange(1, 40), rng.randrange(1, 20)) for _ in range(12)]
        while waiting:
            for _ in range(rng.randrange(3)):
                if waiting:
                    run.add(a_prompt(waiting[-1][0], len(waiting)), waiting.pop()[1])
            run.step()
        run.finish()


@LEVEL.item("The same prompt several times at once", "05")
def twins(run: Run) -> None:
    for max_tokens in (6, 6, 9, 1, 6):
        run.add(a_prompt(11), max_tokens)
    run.finish()


@LEVEL.item("A short prompt beside one that fills the context", "05")
def shortest_and_longest(run: Run) -> None:
    limit = run.limits.max_model_len
    run.add([4], limit - 1, ignore_eos=True)
    run.add(a_prompt(limit - 1), 1)
    run.add([9], 1)
    run.add(a_prompt(limit - 2), 2, ignore_eos=True)
    run.finish()


@LEVEL.item("All of a batch ends in the same step, and another batch follows", "02", max_num_seqs=3)
def all_end_at_once(run: Run) -> None:
    run.add_many(9, 6, 4)
    run.finish()


@LEVEL.item("One batch slot is enough for any number of requests", "02", max_num_seqs=1)
def one_slot(run: Run) -> None:
    run.add_all(RAGGED[:5])
    run.finish()


@LEVEL.item("No more than `max_num_seqs` requests run at a time", "02", STEPS, max_num_seqs=3)
def no_more_than_the_slots(run: Run) -> None:
    run.add_many(8, 4, 10)
    run.run_out(lambda: _check_slots(run))


def _check_slots(run: Run) -> None:
    served = [name for name, each in run.requests.items() if each.last_step == run.steps]
    if len(served) > run.limits.max_num_seqs:
        raise Broken(
            f"step {run.steps} returned tokens of {len(served)} requests, {served}; max_num_seqs is "
            f"{run.limits.max_num_seqs}."
        )


@LEVEL.item("A decode step computes one token of a request, not its whole sequence again", "00", MODEL)
def the_cache_is_used(run: Run) -> None:
    run.add_many(4, 10, 50)
    run.finish()
    computed, needed = sum(run.watch.passes), 4 * (10 + 49)
    if not computed:
        return  # the engine computes with weights of its own
    if computed > 1.6 * needed:
        raise Broken(
            f"four prompts of 10 tokens and answers of 50 need {needed} tokens computed; the model computed "
            f"{computed}. Keep the keys and values of what was computed, and compute the last token only."
        )


@LEVEL.item("Requests share the model's passes, and none waits while a slot is free", "02", MODEL)
def passes_are_shared(run: Run) -> None:
    for count in (4, 12):
        run = run.another(max_num_seqs=count)
        run.add_many(count, 5, 30)
        run.finish()
        # Without steps, requests come one by one, and on a busy machine slowly.
        if len(run.watch.passes) > (34 if STEPS in run.features else 40 + 5 * count):
            raise Broken(
                f"{count} requests of 30 tokens at once, with max_num_seqs {count}, took {len(run.watch.passes)} "
                "passes of the model; together they need about 30. One pass computes the next token of every running "
                "request, and as long as slots are free (`while`, not `if`), a step admits waiting requests."
            )


@LEVEL.item("A request takes the slot of one that has finished while others still run", "02", STEPS, max_num_seqs=2)
def a_freed_slot_is_taken(run: Run) -> None:
    long = run.add(a_prompt(5), 40, ignore_eos=True)
    run.add(a_prompt(5, 1), 2, ignore_eos=True)
    late = run.add(a_prompt(5, 2), 2, ignore_eos=True)
    run.run_out()
    if run.last_step(late) >= run.last_step(long):
        raise Broken(
            f"two slots, three requests of 40, 2 and 2 tokens: the third got its last token in step "
            f"{run.last_step(late)}, the first in step {run.last_step(long)}. The second "
            "request's slot was free long before; a batch that waits for its longest request is static batching."
        )
    run.check_answers()


@LEVEL.item("A request that ends by the end token frees its slot, too", "02", STEPS, max_num_seqs=1)
def an_early_end_frees_its_slot(run: Run) -> None:
    run.add(prompt_that_ends("qwen2", 3), 60)
    second = run.add(a_prompt(4), 2, ignore_eos=True)
    run.finish()
    if run.first_step(second) > 12:
        raise Broken(
            f"the first request ended after 3 tokens, its max_tokens is 60; the second, which waited for its slot, got "
            f"its first token in step {run.first_step(second)}."
        )


@LEVEL.item("Requests start in the order in which they arrived", "09", STEPS, max_num_seqs=2)
def first_come(run: Run) -> None:
    for each in (run, run.another(max_num_seqs=3, max_num_batched_tokens=8)):
        # None longer than the budget: an engine that begins new prompts before it goes on with others starts in order.
        lengths = (8, 3, 8, 3, 8, 3, 8)
        names = [each.add(a_prompt(n, i), 6, f"r{9 - i}", ignore_eos=True) for i, n in enumerate(lengths)]
        each.run_out()
        starts = {name: each.first_step(name) for name in names}
        for earlier, later in pairwise(names):
            if starts[earlier] > starts[later]:
                raise Broken(
                    f"prompts of {lengths} tokens in {each.limits.max_num_seqs} slots, with a budget of "
                    f"{each.limits.max_num_batched_tokens} tokens: {later!r} got its first token before {earlier!r}, "
                    f"which arrived earlier. Steps of the first tokens, in order of arrival: {starts}."
                )


@LEVEL.item("A running request goes on while new ones keep arriving", "09", STEPS, max_num_seqs=4)
def no_starvation(run: Run) -> None:
    long = run.add(a_prompt(4), 20, ignore_eos=True)
    for index in range(30):
        run.add(a_prompt(8, index), 2, ignore_eos=True)
        run.step()
        if run.requests[long].finish_reason:
            break
    if not run.requests[long].finish_reason:
        raise Broken(
            f"a request of 20 tokens ran, and one short request arrived in each step: after 30 steps it has "
            f"{len(run.requests[long].tokens)} tokens. New prompts must not stop the requests that run."
        )
    run.finish()


@LEVEL.item("A step keeps to `max_num_batched_tokens`; only a prompt's last part gives a token", "05", MODEL)
def token_budget(run: Run) -> None:
    for budget in (8, 13):
        run = run.another(max_num_batched_tokens=budget)
        run.add_all(((40, 4), (3, 9), (17, 5)), ignore_eos=True)
        run.finish()
        run.check_budget()


@LEVEL.item("As long as tokens are left to compute, a pass is full", "05", MODEL, STEPS, max_num_batched_tokens=8)
def the_budget_is_used(run: Run) -> None:
    run.add_all(((40, 1), (3, 1), (10, 1), (11, 1)))
    run.finish()
    if len(run.watch.passes) > 9:
        raise Broken(
            f"prompts of 40, 3, 10 and 11 tokens, max_num_batched_tokens 8: the passes computed {run.watch.passes} "
            "tokens. Eight passes of 8 are enough if a request gets what still fits, though only a part of its prompt."
        )


@LEVEL.item("The same requests give the same tokens again", "12")
def repeated(run: Run) -> None:
    for _ in range(3):
        run.add_all(RAGGED[2:6])
        run.finish()
