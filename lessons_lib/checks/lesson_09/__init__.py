"""The exercises and the quiz of lesson 09: the budget shared out, admission by promise, the scheduler, and a priority that ages."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_09.admission import check_conservative
from lessons_lib.checks.lesson_09.ageing import check_priority_with_ageing
from lessons_lib.checks.lesson_09.quiz import QUIZ
from lessons_lib.checks.lesson_09.scheduling import check_scheduler
from lessons_lib.checks.lesson_09.share import check_share_budget

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="09.1",
        title="the budget shared out",
        reference="lessons_lib.scheduling.scheduler:share_budget",
        test=check_share_budget,
        hints=(
            "What a sequence wants is one subtraction: tokens known minus tokens computed. Nothing else about it matters.",
            "Two turns. In the first, each that wants exactly one token gets it while there is budget. In the second, each of the others, in order, gets the smaller "
            "one of its wish and what is left. Who would get 0 is left out.",
            "`wanted = sequence.num_tokens - sequence.num_computed_tokens`. First turn: `if wanted == 1 and budget: counts[sequence] = 1; budget -= 1`. Second turn: "
            "`if wanted > 1 and budget: counts[sequence] = min(wanted, budget); budget -= counts[sequence]`.",
        ),
    ),
    Exercise(
        id="09.2",
        title="admission by promise",
        reference="lessons_lib.scheduling.scheduler:conservative",
        test=check_conservative,
        hints=(
            "Imagine that everybody who runs, and the newcomer, went on to the cap. Would the pool have blocks for all of them at once?",
            "For each sequence in `[*scheduler.running, sequence]`: the blocks for its `most_tokens`. Add these up, and compare with the number of blocks of the pool.",
            "`promised = sum(blocks_for(other.most_tokens, scheduler.pool.block_size) for other in [*scheduler.running, sequence])`; "
            "`return promised <= scheduler.pool.num_blocks`.",
        ),
        points=1,
    ),
    Exercise(
        id="09.3",
        title="the scheduler",
        reference="lessons_lib.scheduling.scheduler:Scheduler",
        test=check_scheduler,
        hints=(
            "`schedule_waiting` does nothing while somebody stalls; else it is a loop with three conditions and one way out. `give` asks one question before it changes anything: are there enough free blocks?",
            "`schedule_waiting`: return if `scheduler_output.stalled` holds anybody. The budget is the limit less the tokens of the plan. While somebody waits, budget is left, and a place is free: take the next; if the admission rule says "
            "no, stop; admit it; give it what it wants, or what is left; take that off the budget. `give`: the blocks for computed + count tokens, less those that it has. If more are "
            "missing than are free, note it as stalled and return.",
            "`if scheduler_output.stalled: return`. `while self.waiting and budget and len(self.running) < self.max_num_seqs:`, inside it `sequence = self.waiting.next(self.running)` and `if not self.admission(self, sequence): break`. "
            "In `give`: `missing = blocks_for(sequence.num_computed_tokens + count, self.pool.block_size) - len(sequence.blocks)`; if it is more than `len(self.pool.free_queue)`, "
            "`scheduler_output.stalled.append(sequence)` and return; `if missing > 0: sequence.blocks += self.pool.allocate(missing)`; `scheduler_output.num_scheduled_tokens[sequence] = count`.",
        ),
        points=3,
    ),
    Exercise(
        id="09.4",
        title="a priority that ages",
        reference="lessons_lib.scheduling.policies:PriorityWithAgeing",
        test=check_priority_with_ageing,
        hints=(
            "Everybody who waits gets older by the same. So it is enough to know when each one came, how many seconds its tier costs it, and how many it gains by being read.",
            "The rank is a time: when it came, `patience` seconds more for each tier below the best, and `head_start` seconds less if it is interactive. Tier 0 is the best.",
            "`head_start = self.head_start if sequence.is_interactive else 0`; `return sequence.arrival_time + sequence.tier * self.patience - head_start`",
        ),
        points=1,
    ),
]
