"""The attempt and the reference, run side by side on the same sequences and compared after every step."""

import random

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_09.made_up import END, a_sequence, listed, names_of
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.scheduling.scheduler import Deadlock, Scheduler, conservative
from lessons_lib.scheduling.sequence import Sequence

MOST_QUESTIONS = 200  # in one step; no correct scheduler asks that often


class Twins:
    """The attempt and the reference, each with its own pool and sequences.

    Args:
        requests: name -> (prompt tokens, max_tokens, answer tokens), optionally with an arrival time as the fourth.
    """

    def __init__(
        self,
        attempt,
        requests: dict[str, tuple],
        case: str,
        *,
        num_blocks: int,
        block_size: int = 4,
        admission=conservative,
        policy=None,
        **limits,
    ):
        self.case, self.requests = case, requests
        limits |= {"policy": policy}
        self.mine = call(
            lambda: attempt(BlockPool(num_blocks, block_size), admission=self._asked(admission), **limits), case=case
        )
        self.want = Scheduler(BlockPool(num_blocks, block_size), admission=admission, **limits)
        self.questions = 0
        self.number = 0

    def add(self, *names: str) -> None:
        for scheduler in (self.mine, self.want):
            for name in names:
                prompt, max_tokens, _, *arrival = self.requests[name]
                scheduler.add(a_sequence(name, prompt, max_tokens=max_tokens, arrival=arrival[0] if arrival else 0.0))

    def add_begun(self, name: str, answered: int, computed: int) -> None:
        """Add a sequence that has run before: `answered` answer tokens are known, `computed` tokens are cached."""
        prompt, max_tokens, _ = self.requests[name]
        for scheduler in (self.mine, self.want):
            sequence = a_sequence(name, prompt, answered=answered, computed=computed, max_tokens=max_tokens)
            sequence.blocks = scheduler.pool.allocate(blocks_for(computed, scheduler.pool.block_size))
            scheduler.add(sequence)

    def step(self) -> bool:
        """Run one step of both. Returns whether anything was computed; False also if both raise a Deadlock.

        Raises:
            Mistake: they differ.
        """
        self.number += 1
        self.questions = 0
        self.before = {sequence.id: len(sequence.blocks) for sequence in self.want.running}
        self.queue = names_of(self.want.waiting)
        want, expected = self._scheduled(self.want)
        computed = {sequence: sequence.num_computed_tokens for sequence in [*self.mine.running, *self.mine.waiting]}
        got, raised = self._scheduled(self.mine)
        self._compare_computed(computed)
        self._compare_errors(raised, expected, want)
        self.want_stalled = names_of(want.stalled) if want else []
        if expected:
            return False
        self._compare(got, want)
        for scheduler, scheduler_output in ((self.mine, got), (self.want, want)):
            lengths = [len(sequence.output_ids) + 1 for sequence in scheduler_output.num_scheduled_tokens]
            call(
                scheduler.update,
                scheduler_output,
                [
                    END if length == self.requests[sequence.id][2] else 7
                    for sequence, length in zip(scheduler_output.num_scheduled_tokens, lengths)
                ],
                case=self.case,
            )
        return bool(want.num_scheduled_tokens)

    def _asked(self, admission):
        """The admission rule, with a limit on how often it may be asked."""

        def ask(scheduler, sequence) -> bool:
            self.questions += 1
            if self.questions > MOST_QUESTIONS:
                what = (
                    f"the admission rule was asked {MOST_QUESTIONS} times in one step, the last time about "
                    f"{sequence.id}."
                )
                raise Mistake(
                    what,
                    case=self._now(),
                    idea=(
                        "Does the loop ever end? If the next sequence can't be admitted, stop: `break`, not `continue`."
                    ),
                )
            return admission(scheduler, sequence)

        return ask

    def _scheduled(self, scheduler):
        try:
            return call(scheduler.schedule, case=self._now()), None
        except Deadlock as error:
            return None, error
        except OutOfBlocks as error:
            idea = (
                "Check first: if more blocks are missing than `len(self.pool.free_queue)`, the sequence stalls, "
                "and nothing is allocated."
            )
            raise Mistake(f"`schedule` raised OutOfBlocks: {str(error)[:100]}", case=self._now(), idea=idea) from None
        except ValueError as error:
            if "does not wait in this queue" in str(error):
                raise Mistake(
                    f"`schedule` raised ValueError: {error}",
                    case=self._now(),
                    idea="Was it removed before? `self.admit(scheduler_output, sequence)` takes it out of the queue.",
                ) from None
            if "can't allocate" not in str(error):
                raise
            idea = (
                "More blocks were subtracted than needed. After this step, `num_computed_tokens + count` tokens are in "
                "the cache. Do you count the blocks for all of them before you subtract those that the sequence has?"
            )
            if both := [name for name in names_of(scheduler.running) if name in names_of(scheduler.waiting)]:
                idea = (
                    f"{listed(dict.fromkeys(both))} runs and is still in the queue, so it was admitted again: "
                    "`self.admit(scheduler_output, sequence)` takes it out."
                )
            raise Mistake(f"`schedule` raised ValueError: {error}", case=self._now(), idea=idea) from None
        except IndexError:
            if len(self.mine.waiting):
                raise
            raise Mistake(
                "`schedule` raised IndexError, and the queue is empty.",
                case=self._now(),
                idea="`waiting.next` needs a waiting sequence: make `self.waiting` part of the loop's condition.",
            ) from None

    def _now(self) -> str:
        return f"{self.case} Step {self.number}."

    def _compare_computed(self, before: dict) -> None:
        for sequence, computed in before.items():
            if sequence.num_computed_tokens != computed:
                what = (
                    f"`schedule` changed {sequence.id}: {computed} of its tokens were computed, now "
                    f"{sequence.num_computed_tokens}, before any forward pass."
                )
                raise Mistake(
                    what,
                    case=self._now(),
                    idea=(
                        "Nothing has been computed yet. Computed tokens are counted after the forward pass, by "
                        "`update`: leave `num_computed_tokens` as it is."
                    ),
                )

    def _compare_errors(self, raised, expected, want) -> None:
        if bool(raised) == bool(expected):
            return
        if expected:
            what = (
                "`schedule` should raise a Deadlock: all running sequences need a block, and none is free. Yours "
                "returned a SchedulerOutput."
            )
            raise Mistake(
                what,
                case=self._now(),
                idea=(
                    "If sequences run and none gets a token, nothing changes, and the next step would be the "
                    "same, forever. Raise instead."
                ),
            )
        if want.num_scheduled_tokens:
            counts = {sequence.id: count for sequence, count in want.num_scheduled_tokens.items()}
            idea = "No sequence got a token. One that stalls doesn't stop the others."
            if all(sequence in want.admitted for sequence in want.num_scheduled_tokens):
                idea = (
                    "An admitted sequence gets its first tokens in the same step: "
                    "`self.allocate_slots(scheduler_output, sequence, count)`."
                )
            if self.mine.watermark and len(self.mine.pool.free_queue):
                idea = (
                    "Blocks are free. Does `allocate_slots` keep the watermark free? The watermark is for admission; a "
                    "running sequence may take any free block."
                )
            if want.stalled:
                idea = (
                    f"Waiting for a block: {listed(names_of(want.stalled))}. It's a deadlock only if no sequence "
                    "at all can continue."
                )
            raise Mistake(f"the step should compute {counts}; yours raised a Deadlock.", case=self._now(), idea=idea)
        idea = "It's a deadlock only if sequences are running and `schedule` has found no tokens for any of them."
        raise Mistake(
            (
                "yours raised a Deadlock, but nothing runs, so nothing can be stuck. `schedule` should return an "
                "empty SchedulerOutput."
            ),
            case=self._now(),
            idea=idea,
        )

    def _compare(self, got, want) -> None:
        for field in ("num_scheduled_tokens", "admitted", "stalled"):
            if not hasattr(got, field):
                raise Mistake(
                    f"`schedule` should return a SchedulerOutput; yours returned {type(got).__name__}.",
                    case=self._now(),
                    idea=(
                        "`self.new_output()` creates one, `schedule_running` and `schedule_waiting` fill it in; "
                        "return it."
                    ),
                )
        strange = [key for key in got.num_scheduled_tokens if not isinstance(key, Sequence)]
        if strange:
            what = f"the keys of `scheduler_output.num_scheduled_tokens` should be sequences; yours has {strange[0]!r}."
            raise Mistake(
                what,
                case=self._now(),
                idea=(
                    "The keys are the sequences themselves, not their ids: "
                    "`scheduler_output.num_scheduled_tokens[sequence] = count`."
                ),
            )
        self._compare_admitted(got, want)
        self._compare_counts(got, want)
        self._compare_blocks(got)
        if sorted(names_of(got.stalled)) != sorted(names_of(want.stalled)):
            what = (
                f"`scheduler_output.stalled` should contain {listed(names_of(want.stalled))}; yours contains "
                f"{listed(names_of(got.stalled))}."
            )
            raise Mistake(
                what,
                case=self._now(),
                idea="It contains each running sequence that gets no token for lack of blocks, once, and nothing else.",
            )

    def _compare_admitted(self, got, want) -> None:
        mine, theirs = names_of(got.admitted), names_of(want.admitted)
        runs, should = names_of(self.mine.running), names_of(self.want.running)
        waits = names_of(self.mine.waiting)
        if set(mine) & set(waits) or set(runs) & set(waits):
            both = listed(sorted((set(mine) | set(runs)) & set(waits)))
            raise Mistake(
                f"admitted but still in the queue: {both}.",
                case=self._now(),
                idea=(
                    "`self.admit(scheduler_output, sequence)` removes it from the queue and appends it to "
                    "`running` and `scheduler_output.admitted`."
                ),
            )
        if mine == theirs and runs == should:
            return
        if set(runs) == set(should) and mine != theirs and set(mine) != set(theirs):
            what = f"`scheduler_output.admitted` should contain {listed(theirs)}; yours contains {listed(mine)}."
            raise Mistake(
                what,
                case=self._now(),
                idea=(
                    "`self.admit(scheduler_output, sequence)` does all three: remove it from the queue, append "
                    "it to `running`, append it to `scheduler_output.admitted`."
                ),
            )
        extra, missing = [n for n in runs if n not in should], [n for n in should if n not in runs]
        if extra:
            raise Mistake(
                (
                    f"this step should admit {listed(theirs)}; yours admitted "
                    f"{listed(n for n in runs if n not in self.before)}."
                ),
                case=self._now(),
                idea=self._too_many(extra, got, missing),
            )
        if missing:
            raise Mistake(
                f"this step should admit {listed(theirs)}; yours admitted {listed(mine)}.",
                case=self._now(),
                idea=self._too_few(mine, want),
            )
        raise Mistake(
            f"`running` should be {should}; yours is {runs}.",
            case=self._now(),
            idea="`running` is in the order of admission: append new sequences at the end.",
        )

    def _too_many(self, extra, got, missing) -> str:
        if len(self.mine.running) > self.mine.max_num_seqs:
            return (
                f"Now {len(self.mine.running)} sequences run, and max_num_seqs is {self.mine.max_num_seqs}. "
                "Continue only while `len(self.running) < self.max_num_seqs`."
            )
        if late := [name for name in self.want_stalled if name not in names_of(got.stalled)]:
            return (
                f"More blocks are missing for {listed(late)} than are free, so it should stall: it gets no tokens, not "
                "even for the blocks there are. As long as a sequence stalls, none is admitted."
            )
        if self.want_stalled:
            return (
                f"Stalled: {listed(self.want_stalled)}. A new sequence would take the blocks that stalled ones "
                "are waiting for: if `scheduler_output.stalled` isn't empty, admit none."
            )
        if missing:
            return (
                f"The next sequence is {missing[0]}: `self.waiting.next(self.running)` asks the policy. It isn't "
                "always the first in the queue."
            )
        counts = {sequence.id: count for sequence, count in got.num_scheduled_tokens.items()}
        if not any(counts.get(name) for name in extra) and sum(counts.values()) >= self.mine.max_num_batched_tokens:
            return (
                "No budget is left, so the sequence would get no token and still occupy a batch slot. Continue "
                "only while there is budget left."
            )
        first = next(iter(self.want.waiting))
        if first.id in extra:
            return f"The admission rule says no to {first.id}: call `self.admission(self, sequence)` before you admit."
        return (
            f"{first.id} is next and doesn't fit, but {listed(extra)} overtook it. If small sequences may overtake "
            "a large one, it can wait forever: stop at the first that can't be admitted."
        )

    def _too_few(self, mine, want) -> str:
        first = want.admitted[0]
        wants, gets = first.num_tokens - first.num_computed_tokens, want.num_scheduled_tokens.get(first, 0)
        if first.id not in mine and gets < wants:
            return (
                f"{first.id} wants {wants} tokens, and {gets} of the budget are left. That is enough to start: it gets "
                f"a chunk of {gets}."
            )
        left_out = next((sequence for sequence in self.mine.waiting if sequence.id in names_of(want.admitted)), None)
        if left_out and self.mine.missing_blocks(left_out) > len(self.mine.pool.free_queue):
            return (
                f"There aren't blocks for all tokens of {left_out.id}, but this step computes only some of them. "
                "Whether a sequence may start is for the admission rule to say, and it says yes."
            )
        if mine:
            return "Continue while a sequence waits, budget is left and a batch slot is free; one per step is too slow."
        if self.before and len(self.before) < self.mine.max_num_seqs:
            return (
                "Other sequences run, but that doesn't prevent admission: budget and a batch slot are left. New "
                "sequences join whenever there is room."
            )
        return (
            "A sequence waits, budget is left, a batch slot is free, none has stalled, and the admission rule says yes."
        )

    def _compare_counts(self, got, want) -> None:
        mine = {sequence.id: count for sequence, count in got.num_scheduled_tokens.items()}
        theirs = {sequence.id: count for sequence, count in want.num_scheduled_tokens.items()}
        if mine == theirs:
            return
        budget = self.mine.max_num_batched_tokens
        what = f"the step should compute {theirs}; yours computes {mine}."
        admitted = names_of(want.admitted)
        empty = [name for name in theirs if name not in mine]
        if any(count == 0 for count in mine.values()):
            idea = "Leave out sequences that get no tokens from `scheduler_output.num_scheduled_tokens`."
        elif sum(mine.values()) > budget and self.before:
            idea = (
                f"That makes {sum(mine.values())} tokens, and max_num_batched_tokens is {budget}. The running "
                "sequences have used some of it: start with `max_num_batched_tokens - "
                "scheduler_output.num_tokens`."
            )
        elif sum(mine.values()) > budget:
            idea = (
                f"That makes {sum(mine.values())} tokens, and max_num_batched_tokens is {budget}. A new sequence "
                "gets at most what is left of the budget; subtract what it gets."
            )
        elif any(name in names_of(got.stalled) for name in empty):
            name = next(name for name in empty if name in names_of(got.stalled))
            idea = (
                f"{name} is in your `scheduler_output.stalled`, but there are enough free blocks for it. It "
                "stalls only if more are missing than are free: `>`, not `>=`."
            )
        elif empty and all(name in admitted for name in empty):
            idea = (
                f"Admitted, but without tokens: {listed(empty)}. An admitted sequence gets its first tokens in "
                "the same step: `self.allocate_slots(scheduler_output, sequence, count)`."
            )
        elif empty and any(name in admitted and mine.get(name, 0) >= theirs.get(name, 0) for name in mine):
            idea = (
                "The budget went to new sequences before the running ones. First `schedule_running`, then "
                "`schedule_waiting` with what is left."
            )
        elif empty:
            idea = (
                f"{listed(empty)} got nothing, although enough blocks are free. A sequence that stalls doesn't stop "
                "the others."
            )
        elif any(name not in theirs for name in mine):
            stalled = listed(name for name in mine if name not in theirs)
            idea = (
                f"There aren't enough free blocks for all the tokens of {stalled}. A sequence that can't get all the "
                "blocks it needs stalls: it gets no tokens in this step."
            )
        elif name := next((name for name in mine if name in self.before and mine[name] != theirs[name]), None):
            idea = (
                f"{name} runs already, and `allocate_slots` was asked to schedule {theirs[name]} of its tokens: set "
                "`num_scheduled_tokens[sequence]` to `count`."
            )
        elif again := next((s.id for s in want.admitted if s.output_ids and mine[s.id] != theirs[s.id]), None):
            idea = (
                f"{again} has run before. Like all others, it wants `known − computed`: its prompt and its answer "
                "so far are known, and some of them may be in the cache."
            )
        elif all(mine[name] <= theirs[name] for name in theirs):
            idea = (
                "Some of the budget is left unused: a new sequence gets what it wants or what is left, whichever "
                "is smaller. Subtract what each one gets, no more."
            )
        else:
            idea = "A new sequence gets `min(known − computed, what is left of the budget)`."
        raise Mistake(what, case=self._now(), idea=idea)

    def _compare_blocks(self, got) -> None:
        size = self.mine.pool.block_size
        theirs = {sequence.id: sequence for sequence in self.want.running}
        for sequence in self.mine.running:
            if strange := [block for block in sequence.blocks if not isinstance(block, int)]:
                raise Mistake(
                    f"`{sequence.id}.blocks` should be a list of block numbers; yours contains {strange[0]!r}.",
                    case=self._now(),
                    idea="`self.pool.allocate(missing)` returns a list. `+=` or `.extend` adds each of its blocks.",
                )
            held, due = len(sequence.blocks), len(theirs[sequence.id].blocks)
            if held == due:
                continue
            count = got.num_scheduled_tokens.get(sequence, 0)
            room = sequence.num_computed_tokens + count
            blocks = f"{due} block{'s' * (due != 1)} of {size}"
            what = f"after `schedule`, {sequence.id} should have {blocks}; yours has {held}."
            if held < due and len(self.mine.pool.free_queue) == len(self.want.pool.free_queue):
                idea = (
                    "Blocks were allocated, but no sequence has them: `sequence.blocks += self.pool.allocate(missing)`."
                )
            elif not count and held < due:
                idea = "It stalls, and has lost blocks. A sequence that stalls keeps what it has and gets nothing new."
            elif not count:
                idea = (
                    "It stalls, but took blocks anyway. Allocate all the missing blocks or none: it can't use "
                    "them, and others need them."
                )
            elif held < blocks_for(room, size):
                idea = (
                    f"{room} tokens will be in the cache after this step, and its blocks must hold them all: "
                    "allocate the missing blocks before the forward pass."
                )
            elif held == due + self.before.get(sequence.id, 0):
                idea = (
                    "It already has blocks. The missing blocks are those for all its computed tokens and this step's, "
                    "minus those it has."
                )
            elif held == blocks_for(sequence.num_tokens, size):
                idea = (
                    "Blocks were allocated for the whole prompt. This step computes only a part of it and needs "
                    "blocks for that part; until then, other sequences can use the rest."
                )
            elif held == blocks_for(sequence.most_tokens, size):
                idea = (
                    "Blocks were allocated up to `max_tokens`. A promise is only a number; blocks are allocated "
                    "as tokens are scheduled."
                )
            else:
                idea = (
                    "It needs blocks for the tokens computed so far and those of this step: "
                    "`blocks_for(num_computed_tokens + count, block_size)`."
                )
            raise Mistake(what, case=self._now(), idea=idea)
        lost = len(self.want.pool.free_queue) - len(self.mine.pool.free_queue)
        if lost:
            free = len(self.want.pool.free_queue)
            what = (
                f"the pool should have {free} free block{'s' * (free != 1)}; yours has "
                f"{len(self.mine.pool.free_queue)}."
            )
            raise Mistake(
                what,
                case=self._now(),
                idea=(
                    "Every allocated block must be in the `blocks` of a sequence: `sequence.blocks += "
                    "self.pool.allocate(missing)`."
                ),
            )


def random_requests(seed: int) -> dict[str, tuple]:
    """Sequences of all kinds, with increasing arrival times."""
    rng = random.Random(seed)
    return {
        name: (rng.choice((1, 3, 4, 9, 16, 30)), max_tokens, rng.randint(1, max_tokens), float(index))
        for index, (name, max_tokens) in enumerate((name, rng.choice((1, 2, 5, 12))) for name in "ABCDEFGHIJ")
    }
