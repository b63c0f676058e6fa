"""What an attempt and the reference decided in one step: computed tokens, errors, and which sequences run."""

from lessons_lib.checks.exercise import Mistake
from lessons_lib.checks.lesson_09.amounts import compare_blocks, compare_counts
from lessons_lib.checks.lesson_09.made_up import listed, names_of
from lessons_lib.checks.lesson_09.pair import Pair
from lessons_lib.scheduling.sequence import Sequence


def compare_computed(twins: Pair, before: dict) -> None:
    for sequence, computed in before.items():
        if sequence.num_computed_tokens != computed:
            what = (
                f"`schedule` changed {sequence.id}: {computed} of its tokens were computed, now "
                f"{sequence.num_computed_tokens}, before any forward pass."
            )
            raise Mistake(
                what,
                case=twins.now(),
                idea=(
                    "Nothing has been computed yet. Computed tokens are counted after the forward pass, by "
                    "`update`: leave `num_computed_tokens` as it is."
                ),
            )


def compare_errors(twins: Pair, raised, expected, want) -> None:
    if bool(raised) == bool(expected):
        return
    if expected:
        what = (
            "`schedule` should raise a Deadlock: all running sequences need a block, and none is free. Yours "
            "returned a SchedulerOutput."
        )
        raise Mistake(
            what,
            case=twins.now(),
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
        if twins.mine.watermark and len(twins.mine.pool.free_queue):
            idea = (
                "Blocks are free. Does `allocate_slots` keep the watermark free? The watermark is for admission; a "
                "running sequence may take any free block."
            )
        if want.stalled:
            idea = (
                f"Waiting for a block: {listed(names_of(want.stalled))}. It's a deadlock only if no sequence "
                "at all can continue."
            )
            roomy = (s for s in want.num_scheduled_tokens if len(s.blocks) == twins.before.get(s.id))
            none_scheduled = "running sequences need a block" in str(raised)  # the words of the given `schedule`
            if none_scheduled and (sequence := next(roomy, None)):
                held, tokens = len(sequence.blocks), sequence.num_computed_tokens + counts[sequence.id]
                idea = (
                    f"{listed(names_of(want.stalled))} waits for a block. {sequence.id} needs none: its {held} "
                    f"block{'s' * (held != 1)} of {twins.mine.pool.block_size} have room for the {tokens} tokens that "
                    "are in the cache after this step. Does yours see that?"
                )
        raise Mistake(f"the step should compute {counts}; yours raised a Deadlock.", case=twins.now(), idea=idea)
    idea = "It's a deadlock only if sequences are running and `schedule` has found no tokens for any of them."
    raise Mistake(
        (
            "yours raised a Deadlock, but nothing runs, so nothing can be stuck. `schedule` should return an "
            "empty SchedulerOutput."
        ),
        case=twins.now(),
        idea=idea,
    )


def compare_outputs(twins: Pair, got, want) -> None:
    for field in ("num_scheduled_tokens", "admitted", "stalled"):
        if not hasattr(got, field):
            raise Mistake(
                f"`schedule` should return a SchedulerOutput; yours returned {type(got).__name__}.",
                case=twins.now(),
                idea=(
                    "`SchedulerOutput()` creates one, `schedule_running` and `schedule_waiting` fill it in; return it."
                ),
            )
    strange = [key for key in got.num_scheduled_tokens if not isinstance(key, Sequence)]
    if strange:
        what = f"the keys of `scheduler_output.num_scheduled_tokens` should be sequences; yours has {strange[0]!r}."
        raise Mistake(
            what,
            case=twins.now(),
            idea=(
                "The keys are the sequences themselves, not their ids: "
                "`scheduler_output.num_scheduled_tokens[sequence] = count`."
            ),
        )
    _compare_admitted(twins, got, want)
    compare_counts(twins, got, want)
    compare_blocks(twins, got)
    if sorted(names_of(got.stalled)) != sorted(names_of(want.stalled)):
        what = (
            f"`scheduler_output.stalled` should contain {listed(names_of(want.stalled))}; yours contains "
            f"{listed(names_of(got.stalled))}."
        )
        idea = "It contains each running sequence that gets no token for lack of blocks, once, and nothing else."
        if names_of(got.stalled) == names_of(want.stalled)[-1:]:
            idea += " Yours has the last one only. Is the list replaced where one should be appended to it?"
        raise Mistake(what, case=twins.now(), idea=idea)


def _compare_admitted(twins: Pair, got, want) -> None:
    mine, theirs = names_of(got.admitted), names_of(want.admitted)
    runs, should = names_of(twins.mine.running), names_of(twins.want.running)
    waits = names_of(twins.mine.waiting)
    if set(mine) & set(waits) or set(runs) & set(waits):
        both = listed(sorted((set(mine) | set(runs)) & set(waits)))
        raise Mistake(
            f"admitted but still in the queue: {both}.",
            case=twins.now(),
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
            case=twins.now(),
            idea=(
                "`self.admit(scheduler_output, sequence)` does all three: remove it from the queue, append "
                "it to `running`, append it to `scheduler_output.admitted`."
            ),
        )
    extra, missing = [n for n in runs if n not in should], [n for n in should if n not in runs]
    if gone := [n for n in twins.before if n not in runs]:
        raise Mistake(
            f"`running` should be {should}; yours is {runs}.",
            case=twins.now(),
            idea=(
                f"{listed(gone)} ran before this step, and must still run. A sequence that stalls keeps its batch slot "
                "and its blocks: it only gets no token."
            ),
        )
    if extra:
        raise Mistake(
            (
                f"this step should admit {listed(theirs)}; yours admitted "
                f"{listed(n for n in runs if n not in twins.before)}."
            ),
            case=twins.now(),
            idea=_too_many(twins, extra, got, missing),
        )
    if missing:
        raise Mistake(
            f"this step should admit {listed(theirs)}; yours admitted {listed(mine)}.",
            case=twins.now(),
            idea=_too_few(twins, mine, want),
        )
    raise Mistake(
        f"`running` should be {should}; yours is {runs}.",
        case=twins.now(),
        idea="`running` is in the order of admission: append new sequences at the end.",
    )


def _too_many(twins: Pair, extra, got, missing) -> str:
    if len(twins.mine.running) > twins.mine.max_num_seqs:
        return (
            f"Now {len(twins.mine.running)} sequences run, and max_num_seqs is {twins.mine.max_num_seqs}. "
            "Continue only while `len(self.running) < self.max_num_seqs`."
        )
    if late := [name for name in twins.want_stalled if name not in names_of(got.stalled)]:
        return (
            f"More blocks are missing for {listed(late)} than are free, so it should stall: it gets no tokens, not "
            "even for the blocks there are. As long as a sequence stalls, none is admitted."
        )
    if twins.want_stalled:
        return (
            f"Stalled: {listed(twins.want_stalled)}. A new sequence would take the blocks that stalled ones "
            "are waiting for: if `scheduler_output.stalled` isn't empty, admit none."
        )
    if missing:
        return (
            f"The next sequence is {missing[0]}: `self.waiting.next(self.running)` asks the policy. It isn't "
            "always the first in the queue, and what runs already may make a difference, also what this step has "
            "just admitted."
        )
    counts = {sequence.id: count for sequence, count in got.num_scheduled_tokens.items()}
    if not any(counts.get(name) for name in extra) and sum(counts.values()) >= twins.mine.max_num_batched_tokens:
        return (
            "No budget is left, so the sequence would get no token and still occupy a batch slot. Continue "
            "only while there is budget left."
        )
    before = {name: count for name, count in counts.items() if name not in extra}
    if sum(before.values()) >= twins.mine.max_num_batched_tokens:
        taken = " + ".join(f"{name} {count}" for name, count in before.items())
        return (
            f"No budget is left: {taken} = {sum(before.values())}. A running sequence may take more than one token. "
            "Does your code subtract `scheduler_output.num_tokens` from the budget?"
        )
    first = next(iter(twins.want.waiting))
    if first.id in extra:
        return f"The admission rule says no to {first.id}: call `self.admission(self, sequence)` before you admit."
    return (
        f"{first.id} is next and doesn't fit, but {listed(extra)} overtook it. If small sequences may overtake "
        "a large one, it can wait forever: stop at the first that can't be admitted."
    )


def _too_few(twins: Pair, mine, want) -> str:
    first = next(sequence for sequence in want.admitted if sequence.id not in mine)
    wants, gets = first.num_tokens - first.num_computed_tokens, want.num_scheduled_tokens.get(first, 0)
    chunk = (
        f"{first.id} wants {wants} tokens, and {gets} of the budget are left. That is enough to start: it gets a "
        f"chunk of {gets}."
    )
    if not mine and gets < wants:
        return chunk
    left_out = next((sequence for sequence in twins.mine.waiting if sequence.id in names_of(want.admitted)), None)
    if left_out and twins.mine.missing_blocks(left_out) > len(twins.mine.pool.free_queue):
        return (
            f"There aren't blocks for all tokens of {left_out.id}, but this step computes only some of them. "
            "Whether a sequence may start is for the admission rule to say, and it says yes."
        )
    if not mine and twins.stalls and not want.stalled:
        step, names = next(reversed(twins.stalls.items()))
        return (
            f"{listed(names)} stalled in step {step}, but in this step none stalls. Is an earlier stall remembered? "
            "Only `scheduler_output.stalled` counts, and that is a new, empty list in every step."
        )
    if mine and gets < wants:  # earlier cases have admitted several whole prompts in a step
        return chunk
    if mine:
        return "Continue while a sequence waits, budget is left and a batch slot is free; one per step is too slow."
    if twins.before and len(twins.before) < twins.mine.max_num_seqs:
        return (
            "Other sequences run, but that doesn't prevent admission: budget and a batch slot are left. New "
            "sequences join whenever there is room."
        )
    return "A sequence waits, budget is left, a batch slot is free, none has stalled, and the admission rule says yes."
