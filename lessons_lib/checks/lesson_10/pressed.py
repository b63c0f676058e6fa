"""A scheduler in the middle of a step, as the checks of lesson 10 need it, and what `preempt_sequence` should do to
it.
"""

from collections.abc import Iterable

from lessons_lib.checks.exercise import Mistake, call, short
from lessons_lib.checks.lesson_09.made_up import names_of
from lessons_lib.kv_cache.block_copies import SWAP_OUT, BlockCopy
from lessons_lib.kv_cache.block_pool import BlockPool, blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.swapping import SwappingScheduler, never_swap

SIZE = 4  # of a block


def listed(names: Iterable[str]) -> str:
    """Names in a sentence: "A, B"; "none" if there are none."""
    return ", ".join(names) or "none"


class Pressed:
    """Sequences that run and wait, and the attempt.

    Sequences arrive at 0, 1, 2, ... in the order in which they are added, unless `arrival` says something else.
    """

    def __init__(self, attempt, case: str, *, num_blocks: int, **limits):
        self.attempt, self.case = attempt, case
        self.scheduler = SwappingScheduler(
            PrefixCache(num_blocks, SIZE),
            swap_space=BlockPool(4, SIZE),
            preempt_sequence=attempt,
            should_swap=never_swap,
            share_prefixes=False,
            **limits,
        )
        self.output = SchedulerOutput()
        self.sequences: dict[str, Sequence] = {}

    def wait(
        self, *names: str, prompt: int = 6, answered: int = 0, arrival: float | None = None, tier: int = 0
    ) -> None:
        for name in names:
            time = float(len(self.sequences)) if arrival is None else arrival
            sequence = Sequence(
                name,
                list(range(prompt)),
                answered + 2,
                arrival_time=time,
                tier=tier,
                output_ids=list(range(70, 70 + answered)),
            )
            self.sequences[name] = sequence
            self.scheduler.waiting.add(sequence)

    def run(
        self,
        name: str,
        prompt: int,
        *,
        answered: int = 0,
        num_blocks: int,
        computed: int | None = None,
        scheduled: int = 0,
        arrival: float | None = None,
        tier: int = 0,
    ) -> None:
        self.wait(name, prompt=prompt, answered=answered, arrival=arrival, tier=tier)
        sequence = self.sequences[name]
        self.scheduler.waiting.remove(sequence)
        self.scheduler.running.append(sequence)
        all_but_last = prompt + answered - (answered > 0)
        sequence.num_computed_tokens = all_but_last if computed is None else computed
        sequence.blocks = self.scheduler.pool.allocate(num_blocks)
        if scheduled:
            self.output.num_scheduled_tokens[sequence] = scheduled

    def swap(self, name: str) -> None:
        sequence = self.sequences[name]
        sequence.swapped = self.scheduler.swap_space.allocate(blocks_for(sequence.num_computed_tokens, SIZE))
        copies = [BlockCopy(SWAP_OUT, *pair) for pair in zip(sequence.blocks, sequence.swapped)]
        self.output.block_copies += copies

    def share_first_block(self, name: str, other: str) -> None:
        """One sequence begins with the first block of the other."""
        pool, sequence = self.scheduler.pool, self.sequences[name]
        pool.free(sequence.blocks[:1])
        sequence.blocks[0] = self.sequences[other].blocks[0]
        pool.touch(sequence.blocks[:1])

    def preempted_before(self, name: str) -> None:
        """A sequence that this step has preempted already."""
        self.wait(name, prompt=7, answered=2)
        self.output.preempted.append(self.sequences[name])

    def preempt(self, name: str) -> None:
        """Let the attempt preempt a sequence, and compare the result."""
        victim, scheduler = self.sequences[name], self.scheduler
        self.victim = victim
        self.before = {each: self._facts(each) for each in self.sequences.values()}
        self.queue = names_of(self._queue_after())
        self.running = [other for other in names_of(scheduler.running) if other != name]
        self.counts = {key.id: n for key, n in self.output.num_scheduled_tokens.items() if key is not victim}
        self.preempted = [*names_of(self.output.preempted), name]
        self.was_scheduled = victim in self.output.num_scheduled_tokens
        self.taken_back = victim.num_computed_tokens - self.output.num_scheduled_tokens.get(victim, 0)
        counts = scheduler.pool.ref_count
        self.shared = {block: counts[block] - 1 for block in victim.blocks if counts[block] > 1}
        self.blocks = [block for block in victim.blocks if block not in self.shared]
        self.used = set(scheduler.pool.used) - set(self.blocks)
        self.copies = list(self.output.block_copies)
        self.swapped, self.computed = list(victim.swapped), victim.num_computed_tokens
        self._call()
        self._compare_tokens()
        self._compare_queue()
        self._compare_running()
        self._compare_output()
        self._compare_swap_space()
        self._compare_blocks()
        self._compare_computed()
        self._compare_rest()

    def _call(self) -> None:
        try:
            call(lambda: self.attempt(self.scheduler, self.output, self.victim), case=self.case)
        except KeyError as error:
            if error.args != (self.victim,):
                raise
            self._fail(
                f"your code raised KeyError: {self.victim.id} isn't in `num_scheduled_tokens`.",
                "A victim may or may not have been scheduled in this step. Take it out only if it's there.",
            )
        except AttributeError as error:
            if "'WaitingQueue' object has no attribute" not in str(error):
                raise
            self._fail(
                f"your code raised AttributeError: {error}.",
                "The waiting queue isn't a list: it keeps its sequences in the order of the policy. Call "
                "`scheduler.waiting.add(sequence)`.",
            )

    def _fail(self, what: str, idea: str) -> None:
        raise Mistake(what, case=self.case, idea=idea)

    def _facts(self, sequence: Sequence) -> dict[str, object]:
        """What preemption must not change."""
        return {
            "prompt_ids": list(sequence.prompt_ids),
            "output_ids": list(sequence.output_ids),
            "arrival_time": sequence.arrival_time,
            "tier": sequence.tier,
            "queue_place": sequence.queue_place,
            "max_new_tokens": sequence.max_new_tokens,
            "finish_reason": sequence.finish_reason,
        }

    def _queue_after(self) -> list[Sequence]:
        waiting = [*self.scheduler.waiting, self.victim]
        rank = self.scheduler.waiting.policy.rank
        return sorted(waiting, key=lambda sequence: (rank(sequence), sequence.queue_place))

    def _compare_tokens(self) -> None:
        name, victim = self.victim.id, self.victim
        if list(victim.prompt_ids) != self.before[victim]["prompt_ids"]:
            self._fail(
                f"`{name}.prompt_ids` has changed.",
                "Leave the tokens where they are: known tokens are computed again, whether they belong to the prompt "
                "or to the answer.",
            )
        kept = self.before[victim]["output_ids"]
        if list(victim.output_ids) != kept:
            self._fail(
                f"{name} should still have its {len(kept)} answer tokens; yours leaves {len(victim.output_ids)}.",
                "They have already been sent. Only the keys and values are lost; the tokens themselves stay known.",
            )

    def _compare_queue(self) -> None:
        name, queue = self.victim.id, names_of(self.scheduler.waiting)
        if queue == self.queue:
            if not any(sequence is self.victim for sequence in self.scheduler.waiting):
                self._fail(
                    f"{name} itself should wait; your queue has another `Sequence` with this id.",
                    "Is it a copy? The next steps would give its tokens to the copy. Add the victim itself.",
                )
            return
        what = f"the waiting queue should be {listed(self.queue)}; yours is {listed(queue)}."
        place = "`scheduler.waiting.add(sequence)` puts a sequence at its place."
        if queue.count(name) > 1:
            idea = f"{name} is in the queue {queue.count(name)} times. Add it once."
        elif name not in queue:
            idea = f"{name} isn't finished: it has to wait for its next turn. {place}"
        elif missing := [other for other in self.queue if other not in queue]:
            idea = f"{listed(missing)} isn't waiting any more. Change nothing but the victim."
        elif extra := [other for other in queue if other not in self.queue]:
            idea = f"{listed(extra)} should still run. Preempt the victim and no other sequence."
        elif self.before[self.victim] != self._facts(self.victim):
            changed = self._changed(self.victim)
            idea = (
                f"`{changed}` of {name} has changed. The queue's order follows from the policy's rank and, for equal "
                "ranks, from the order in which sequences first waited. A victim keeps both."
            )
        else:
            idea = f"Leave the order to the queue. {place}"
        self._fail(what, idea)

    def _compare_running(self) -> None:
        running = names_of(self.scheduler.running)
        if running == self.running:
            return
        what = f"`scheduler.running` should be {listed(self.running)}; yours is {listed(running)}."
        if self.victim.id in running and set(self.running) <= set(running):
            idea = f"{self.victim.id} waits now, so it must give up its batch slot."
        elif self.victim.id in running:
            idea = (
                f"Another sequence lost its batch slot. The victim is {self.victim.id}, wherever it is in the list: "
                "the last one admitted isn't always the victim."
            )
        else:
            idea = "Only the victim leaves. The others keep their batch slots and their order."
        self._fail(what, idea)

    def _compare_output(self) -> None:
        counts = {sequence.id: count for sequence, count in self.output.num_scheduled_tokens.items()}
        name = self.victim.id
        if counts != self.counts:
            what = f"`num_scheduled_tokens` should be {self.counts}; yours is {counts}."
            if not counts.get(name, 1):
                idea = f"With 0 tokens {name} would still be part of the batch. Take it out."
            elif name in counts and self.was_scheduled:
                idea = (
                    f"The forward pass would compute {counts[name]} token{'s' * (counts[name] != 1)} of {name} and "
                    f"write keys and values to blocks that it no longer has. Take {name} out. The keys of the dict are "
                    "the sequences themselves."
                )
            else:
                idea = "The other sequences still compute what was scheduled for them, and the victim nothing."
            self._fail(what, idea)
        if not isinstance(self.output.preempted, list):
            self._fail(
                f"`scheduler_output.preempted` should be a list; yours is {short(self.output.preempted)}.",
                "A step may preempt several sequences: append the victim to the list.",
            )
        preempted = names_of(self.output.preempted)
        if preempted != self.preempted:
            idea = "The scheduler admits no sequence in a step that preempts one, and this list is how it knows."
            if len(self.preempted) > 1:
                idea = (
                    f"A step may preempt several sequences. Keep those that are in the list already, and append {name}."
                )
            what = (
                f"`scheduler_output.preempted` should be [{', '.join(self.preempted)}]; yours is "
                f"[{', '.join(preempted)}]."
            )
            self._fail(what, idea)

        if changed := [*self.output.admitted, *self.output.stalled]:
            self._fail(
                f"`admitted` and `stalled` of the output should be empty; one of yours has "
                f"{getattr(changed[0], 'id', None) or short(changed[0])}.",
                "The victim wasn't admitted in this step, and it doesn't stall.",
            )
        self._compare_copies()

    def _compare_copies(self) -> None:
        name, copies = self.victim.id, list(self.output.block_copies)
        if missing := [copy for copy in self.copies if copy not in copies]:
            self._fail(
                f"`scheduler_output.block_copies` should still have {missing[0]}; yours has lost it.",
                f"This copy takes {name}'s keys and values to the swap space, and it hasn't been made yet. Block "
                f"copies are carried out before the step computes anything, so block {missing[0].source} may be free. "
                f"Without the copy, {name} gets back whatever the swap space holds.",
            )
        if copies != self.copies:
            self._fail(
                f"`scheduler_output.block_copies` should be as it was, {short(self.copies)}; yours is {short(copies)}.",
                "Preempting copies nothing: what is swapped out has been listed before your function is called. Leave "
                "the list as it is.",
            )

    def _compare_swap_space(self) -> None:
        name = self.victim.id
        if list(self.victim.swapped) != self.swapped or self.scheduler.swap_space.used != set(self.swapped):
            used = sorted(self.scheduler.swap_space.used)
            leave = f"Leave `{name}.swapped` as it is: when {name} is admitted again, it says where they are."
            free = (
                "Free its blocks in `scheduler.pool` only, not those in the swap space. (`scheduler.release` frees "
                "both.)"
            )
            self._fail(
                f"`{name}.swapped` should be {self.swapped}, and these blocks of the swap space in use; yours leaves "
                f"{list(self.victim.swapped)}, and {used} in use.",
                f"The swap space holds the only copy of {name}'s keys and values. "
                + (leave if used == sorted(self.swapped) else free),
            )

    def _compare_blocks(self) -> None:
        name, pool, mine = self.victim.id, self.scheduler.pool, self.victim.blocks
        due = f"blocks {listed(map(str, self.blocks))} of {name} should be free"
        lost = sorted(set(self.blocks) & pool.used)
        if both := sorted(pool.used & set(pool.free_queue)):
            are, them = ("are", "them") if len(both) > 1 else ("is", "it")
            self._fail(
                f"{due}; with yours, {listed(map(str, both))} {are} in the free queue, but the pool counts {them} as "
                "in use.",
                "Leave the pool's books to the pool: `scheduler.pool.free(blocks)`.",
            )
        if lost and not mine:
            self._fail(
                f"{due}; with yours, the pool still counts {listed(map(str, lost))} as used, and {name} has no blocks.",
                "The pool must be told: `scheduler.pool.free(blocks)`. It needs *all* blocks of the victim, also those "
                "that aren't full, and it needs them before the victim forgets them.",
            )
        if lost:
            self._fail(
                f"{due}; with yours, the pool still counts {listed(map(str, lost))} as used.",
                "Another sequence needs the blocks now. Return them: `scheduler.pool.free(blocks)`.",
            )
        if not isinstance(mine, list):
            self._fail(
                f"`{name}.blocks` should be []; yours is {short(mine)}.",
                "It stays a list: the scheduler adds blocks to it when the victim is admitted again.",
            )
        if mine:
            self._fail(
                f"`{name}.blocks` should be []; yours is {mine}.",
                f"These blocks belong to the pool now, and soon to another sequence. {name} would read that "
                "sequence's keys, and free its blocks.",
            )
        for block, count in self.shared.items():
            if pool.ref_count.get(block, 0) != count or block not in pool.used:
                self._fail(
                    f"block {block} should still be in use, with a count of {count} in `pool.ref_count`; yours leaves "
                    f"it {'in use' if block in pool.used else 'free'}, with a count of {pool.ref_count.get(block, 0)}.",
                    f"Another sequence reads it. The pool counts the users of a block, and frees it when {name} was "
                    "the last one: leave its books to it, and call `scheduler.pool.free(blocks)`.",
                )
        if pool.used != self.used or len(pool.free_queue) + len(pool.used) != pool.num_blocks:
            self._fail(
                f"blocks {sorted(self.used)} of the pool should be in use, and all others free once; yours leaves "
                f"{sorted(pool.used)} in use and {sorted(pool.free_queue)} free.",
                "Free the victim's blocks through `scheduler.pool.free`, each once, and no others.",
            )

    def _compare_computed(self) -> None:
        name, computed = self.victim.id, self.victim.num_computed_tokens
        if self.swapped and computed != self.computed:
            idea = "These tokens' keys and values are in the swap space, so they won't be computed again."
            if computed == self.taken_back:
                idea = (
                    "The tokens that this step has scheduled aren't in that count yet: `update` adds them after the "
                    "step. So there is nothing to subtract."
                )
            self._fail(f"`{name}.num_computed_tokens` should still be {self.computed}; yours is {computed}.", idea)
        if computed < 0:
            self._fail(f"`{name}.num_computed_tokens` should be 0; yours is {computed}.", "A count can't be negative.")
        if not self.swapped and computed:
            idea = (
                "All its keys and values are lost, those of the prompt too. If tokens count as computed, the scheduler "
                "won't compute them again, and attention reads whatever is in the new blocks."
            )
            self._fail(f"`{name}.num_computed_tokens` should be 0; yours is {computed}.", idea)

    def _changed(self, sequence: Sequence) -> str:
        facts = self._facts(sequence)
        return next(key for key, value in self.before[sequence].items() if facts[key] != value)

    def _compare_rest(self) -> None:
        for sequence in self.sequences.values():
            if self._facts(sequence) != self.before[sequence]:
                key = self._changed(sequence)
                self._fail(
                    f"`{sequence.id}.{key}` should still be {self.before[sequence][key]}; yours is "
                    f"{getattr(sequence, key)}.",
                    "Preemption changes nothing else. Its rank in particular stays: a victim goes where it was in the "
                    "order.",
                )
        if self.scheduler.num_preempted:
            self._fail(
                f"`scheduler.num_preempted` should still be 0; yours is {self.scheduler.num_preempted}.",
                "The method that calls your function counts: the preemption would be counted twice.",
            )
