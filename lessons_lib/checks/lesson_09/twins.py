"""Two schedulers of the same make and the same sequences, the attempt and the reference, side by side through every step."""

import random

from lessons_lib.checks.exercise import Mistake, call
from lessons_lib.checks.lesson_09.made_up import END, a_sequence, listed, names_of
from lessons_lib.kv_cache.block_pool import BlockPool, OutOfBlocks, blocks_for
from lessons_lib.scheduling.scheduler import Deadlock, Scheduler, conservative
from lessons_lib.scheduling.sequence import Sequence

MOST_QUESTIONS = 200  # in one step; nobody needs as many


class Twins:
    """The attempt and the reference, each with a pool and sequences of its own.

    Args:
        people: name -> (prompt tokens, cap, tokens of the answer), or with an arrival time as fourth.
    """

    def __init__(
        self,
        attempt,
        people: dict[str, tuple],
        case: str,
        *,
        num_blocks: int,
        block_size: int = 4,
        admission=conservative,
        policy=None,
        **limits,
    ):
        self.case, self.people = case, people
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
                prompt, max_tokens, _, *arrival = self.people[name]
                scheduler.add(a_sequence(name, prompt, max_tokens=max_tokens, arrival=arrival[0] if arrival else 0.0))

    def add_begun(self, name: str, answered: int, computed: int) -> None:
        """Let somebody wait who has run before: so many tokens of the answer are known, and so many in the cache."""
        prompt, max_tokens, _ = self.people[name]
        for scheduler in (self.mine, self.want):
            sequence = a_sequence(name, prompt, answered=answered, computed=computed, max_tokens=max_tokens)
            sequence.blocks = scheduler.pool.allocate(blocks_for(computed, scheduler.pool.block_size))
            scheduler.add(sequence)

    def step(self) -> bool:
        """One step of both. Whether anything was computed; False as well where both stop with a Deadlock.

        Raises:
            Mistake: they differ.
        """
        self.number += 1
        self.questions = 0
        self.before = {sequence.id: len(sequence.blocks) for sequence in self.want.running}
        self.queue = names_of(self.want.waiting)
        want, expected = self._planned(self.want)
        computed = {sequence: sequence.num_computed_tokens for sequence in [*self.mine.running, *self.mine.waiting]}
        got, raised = self._planned(self.mine)
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
                    END if length == self.people[sequence.id][2] else 7
                    for sequence, length in zip(scheduler_output.num_scheduled_tokens, lengths)
                ],
                case=self.case,
            )
        return bool(want.num_scheduled_tokens)

    def _asked(self, admission):
        """The admission rule, with an end to questions."""

        def ask(scheduler, sequence) -> bool:
            self.questions += 1
            if self.questions > MOST_QUESTIONS:
                what = f"the admission rule was asked {MOST_QUESTIONS} times in one step, the last time about {sequence.id}."
                raise Mistake(
                    what,
                    case=self._now(),
                    idea="Does the loop ever end? When the next in the queue may not come in, stop: `break`, not `continue`.",
                )
            return admission(scheduler, sequence)

        return ask

    def _planned(self, scheduler):
        try:
            return call(scheduler.schedule, case=self._now()), None
        except Deadlock as error:
            return None, error
        except OutOfBlocks as error:
            idea = "Look first: where more blocks are missing than `len(self.pool.free_queue)`, the sequence is stalled, and nothing is allocated."
            raise Mistake(f"planning raised OutOfBlocks: {str(error)[:100]}", case=self._now(), idea=idea) from None
        except IndexError:
            if len(self.mine.waiting):
                raise
            raise Mistake(
                "planning raised IndexError, and nobody waits.",
                case=self._now(),
                idea="`waiting.next` needs somebody who waits: ask for that in the condition of the loop.",
            ) from None

    def _now(self) -> str:
        return f"{self.case} Step {self.number}."

    def _compare_computed(self, before: dict) -> None:
        for sequence, computed in before.items():
            if sequence.num_computed_tokens != computed:
                what = f"planning changed {sequence.id}: {computed} of its tokens were computed, and now {sequence.num_computed_tokens}, before any pass."
                raise Mistake(
                    what,
                    case=self._now(),
                    idea="This is a plan. What is computed is counted after the pass, by `update`: leave `num_computed_tokens` as it is.",
                )

    def _compare_errors(self, raised, expected, want) -> None:
        if bool(raised) == bool(expected):
            return
        if expected:
            what = "a Deadlock should be raised: all who run need a block, and none is free. Yours returned a plan."
            raise Mistake(
                what,
                case=self._now(),
                idea="A plan without tokens, while somebody runs, changes nothing: the next step would be the same, for ever. Say so instead.",
            )
        if want.num_scheduled_tokens:
            counts = {sequence.id: count for sequence, count in want.num_scheduled_tokens.items()}
            idea = "Nobody got a token. One that stalls does not stop the others."
            if all(sequence in want.admitted for sequence in want.num_scheduled_tokens):
                idea = "Whoever is admitted gets its first tokens in the same step: `self.give(scheduler_output, sequence, count)`."
            if want.stalled:
                idea = f"{listed(names_of(want.stalled))} has to wait for a block. A deadlock it is only if nobody at all can go on."
            raise Mistake(f"the step should compute {counts}; yours raised a Deadlock.", case=self._now(), idea=idea)
        idea = "A deadlock is: somebody runs, and the finished plan has no token for anyone."
        raise Mistake(
            "yours raised a Deadlock, but nobody runs, so nobody can be stuck: an empty plan is right.",
            case=self._now(),
            idea=idea,
        )

    def _compare(self, got, want) -> None:
        for field in ("counts", "admitted", "stalled"):
            if not hasattr(got, field):
                raise Mistake(
                    f"`schedule` should return a SchedulerOutput; yours returned {type(got).__name__}.",
                    case=self._now(),
                    idea="`self.new_output()` makes one; the two halves fill it in; return it.",
                )
        strange = [key for key in got.num_scheduled_tokens if not isinstance(key, Sequence)]
        if strange:
            what = f"`scheduler_output.num_scheduled_tokens` should have sequences as keys; yours has {strange[0]!r}."
            raise Mistake(
                what,
                case=self._now(),
                idea="The keys are the sequences themselves, not their names: `scheduler_output.num_scheduled_tokens[sequence] = count`.",
            )
        self._compare_admitted(got, want)
        self._compare_counts(got, want)
        self._compare_blocks(got)
        if sorted(names_of(got.stalled)) != sorted(names_of(want.stalled)):
            what = f"{listed(names_of(want.stalled))} should be in `scheduler_output.stalled`; there is {listed(names_of(got.stalled))}."
            raise Mistake(
                what,
                case=self._now(),
                idea="Who runs and gets no token because blocks are missing is noted there, once, and nobody else.",
            )

    def _compare_admitted(self, got, want) -> None:
        mine, theirs = names_of(got.admitted), names_of(want.admitted)
        runs, should = names_of(self.mine.running), names_of(self.want.running)
        waits = names_of(self.mine.waiting)
        if set(mine) & set(waits) or set(runs) & set(waits):
            both = listed(sorted((set(mine) | set(runs)) & set(waits)))
            raise Mistake(
                f"{both} was admitted and still waits.",
                case=self._now(),
                idea="`self.admit(scheduler_output, sequence)` takes it out of the queue, and into `running` and `scheduler_output.admitted`.",
            )
        if mine == theirs and runs == should:
            return
        if set(runs) == set(should) and mine != theirs and set(mine) != set(theirs):
            what = f"`scheduler_output.admitted` should name {listed(theirs)}; yours names {listed(mine)}."
            raise Mistake(
                what,
                case=self._now(),
                idea="`self.admit(scheduler_output, sequence)` does all three: out of the queue, into `running`, into `scheduler_output.admitted`.",
            )
        extra, missing = [n for n in runs if n not in should], [n for n in should if n not in runs]
        if extra:
            raise Mistake(
                f"{listed(theirs)} should be admitted; yours admitted {listed(n for n in runs if n not in self.before)}.",
                case=self._now(),
                idea=self._too_many(extra, got, missing),
            )
        if missing:
            raise Mistake(
                f"{listed(theirs)} should be admitted; yours admitted {listed(mine)}.",
                case=self._now(),
                idea=self._too_few(mine),
            )
        raise Mistake(
            f"`running` should be {should}; yours is {runs}.",
            case=self._now(),
            idea="`running` is in the order of admission: newcomers join at its end.",
        )

    def _too_many(self, extra, got, missing) -> str:
        if len(self.mine.running) > self.mine.max_num_seqs:
            return f"Now {len(self.mine.running)} sequences run, and max_num_seqs is {self.mine.max_num_seqs}. Go on only while `len(self.running) < self.max_num_seqs`."
        if self.want_stalled:
            return f"{listed(self.want_stalled)} stalls, and waits for blocks. A newcomer would take those that fall free: where `scheduler_output.stalled` holds anybody, admit nobody."
        if missing:
            return f"The next of the queue is {missing[0]}: `self.waiting.next(self.running)` names who is next by the policy."
        counts = {sequence.id: count for sequence, count in got.num_scheduled_tokens.items()}
        if not any(counts.get(name) for name in extra) and sum(counts.values()) >= self.mine.max_num_batched_tokens:
            return "No budget is left, so it would run without a token, and its place would be taken. Go on only while there is budget left."
        first = next(iter(self.want.waiting))
        if first.id in extra:
            return f"The admission rule says no to {first.id}: ask `self.admission(self, sequence)` before you admit."
        return f"{first.id} is next, and does not fit. {listed(extra)} stands behind it and passed it. If small ones may pass, a large one can wait for ever: stop at the first that may not come in."

    def _too_few(self, mine) -> str:
        if mine:
            return "Go on as long as somebody waits, budget is left and a place is free; one a step is too slow."
        if self.before and len(self.before) < self.mine.max_num_seqs:
            return "Others run, and that is no obstacle: budget and a place are left. Newcomers join whenever there is room."
        return "Somebody waits, budget is left, a place is free, and the admission rule says yes."

    def _compare_counts(self, got, want) -> None:
        mine = {sequence.id: count for sequence, count in got.num_scheduled_tokens.items()}
        theirs = {sequence.id: count for sequence, count in want.num_scheduled_tokens.items()}
        if mine == theirs:
            return
        budget = self.mine.max_num_batched_tokens
        what = f"the step should compute {theirs}; yours computes {mine}."
        newcomers = names_of(want.admitted)
        empty = [name for name in theirs if name not in mine]
        if any(count == 0 for count in mine.values()):
            idea = "Who gets no token is not in `scheduler_output.num_scheduled_tokens`."
        elif sum(mine.values()) > budget and self.before:
            idea = f"These are {sum(mine.values())} tokens, and max_num_batched_tokens is {budget}. Those who run have taken some of it: begin with `max_num_batched_tokens - scheduler_output.num_tokens`."
        elif sum(mine.values()) > budget:
            idea = f"These are {sum(mine.values())} tokens, and max_num_batched_tokens is {budget}. A newcomer gets at most what is left, and what it gets is taken off."
        elif any(name in names_of(got.stalled) for name in empty):
            name = next(name for name in empty if name in names_of(got.stalled))
            idea = f"{name} is in your `scheduler_output.stalled`, and there are enough free blocks for it. It stalls only if more are missing than are free: `>`, not `>=`."
        elif empty and all(name in newcomers for name in empty):
            idea = f"{listed(empty)} was admitted and got no tokens. Its first tokens are computed in the same step: `self.give(scheduler_output, sequence, count)`."
        elif empty and any(name in newcomers and mine.get(name, 0) >= theirs.get(name, 0) for name in mine):
            idea = "The budget went to newcomers before those who run. First `schedule_running`, then `schedule_waiting` with what is left."
        elif empty:
            idea = f"{listed(empty)} got nothing, although there are blocks for it. One that stalls does not stop the others."
        elif any(name not in theirs for name in mine):
            stalled = listed(name for name in mine if name not in theirs)
            idea = f"There are not enough free blocks for all tokens of {stalled}. Then it gets none in this step, and stalls."
        elif again := next((s.id for s in want.admitted if s.output_ids and mine[s.id] != theirs[s.id]), None):
            idea = f"{again} has run before. What it wants is `known − computed`, as with all others: known are its prompt and its answer so far, and some of it may be in the cache."
        elif all(mine[name] <= theirs[name] for name in theirs):
            idea = "Budget is left that somebody could use: a newcomer gets the smaller one of what it wants and what is left."
        else:
            idea = "A newcomer gets `min(known − computed, what is left of the budget)`."
        raise Mistake(what, case=self._now(), idea=idea)

    def _compare_blocks(self, got) -> None:
        size = self.mine.pool.block_size
        theirs = {sequence.id: sequence for sequence in self.want.running}
        for sequence in self.mine.running:
            held, due = len(sequence.blocks), len(theirs[sequence.id].blocks)
            if held == due:
                continue
            count = got.num_scheduled_tokens.get(sequence, 0)
            room = sequence.num_computed_tokens + count
            what = f"after planning, {sequence.id} should hold {due} blocks of {size}; yours holds {held}."
            if held < due and len(self.mine.pool.free_queue) == len(self.want.pool.free_queue):
                idea = "Blocks were taken from the pool, and nobody holds them: `sequence.blocks += self.pool.allocate(missing)`."
            elif not count:
                idea = "It stalls, and took blocks all the same. Take all that are missing or none: others need them, and it cannot use them."
            elif held < blocks_for(room, size):
                idea = f"{room} tokens will be in the cache after this step, and that is what its blocks must hold: allocate what is missing before the pass."
            elif held == due + self.before.get(sequence.id, 0):
                idea = (
                    "It holds blocks already. What is missing is the blocks for all its tokens less those that it has."
                )
            elif held == blocks_for(sequence.num_tokens, size):
                idea = "Blocks were taken for the whole prompt. This step computes a part of it, and needs blocks for that part; the rest can serve others until then."
            elif held == blocks_for(sequence.most_tokens, size):
                idea = "Blocks were taken up to its cap. A promise is a number; blocks are taken as tokens come."
            else:
                idea = "Needed are the blocks for the tokens computed so far and those of this step: `blocks_for(num_computed_tokens + count, block_size)`."
            raise Mistake(what, case=self._now(), idea=idea)
        lost = len(self.want.pool.free_queue) - len(self.mine.pool.free_queue)
        if lost:
            what = f"the pool should have {len(self.want.pool.free_queue)} free blocks; it has {len(self.mine.pool.free_queue)}."
            raise Mistake(
                what,
                case=self._now(),
                idea="Every block that the pool hands out must be in the `blocks` of a sequence: `sequence.blocks += self.pool.allocate(missing)`.",
            )


def random_people(seed: int) -> dict[str, tuple]:
    """Sequences of all kinds, with arrival times that are in order."""
    rng = random.Random(seed)
    return {
        name: (rng.choice((1, 3, 4, 9, 16, 30)), max_tokens, rng.randint(1, max_tokens), float(index))
        for index, (name, max_tokens) in enumerate((name, rng.choice((1, 2, 5, 12))) for name in "ABCDEFGHIJ")
    }
