"""The exercises and the quiz of lesson 10: which sequence is preempted, how, and whether it is swapped."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_10.choosing import check_swap_if_cheaper
from lessons_lib.checks.lesson_10.preempting import check_preempt_sequence
from lessons_lib.checks.lesson_10.quiz import QUIZ
from lessons_lib.checks.lesson_10.victim import check_last_in_rank

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="10.1",
        title="the victim",
        reference="lessons_lib.scheduling.preemption:last_in_rank",
        test=check_last_in_rank,
        hints=(
            "Suppose that C, which the policy serves last, isn't the victim but B is, and C is the one that needs the "
            "block. What happens then? And what if C needs the block and is the victim?",
            "So the victim is the candidate with the largest rank, whichever one needs the block. `max` with "
            "`key=policy.rank` finds it. If several are equally large, `max` returns the first one it sees. You want "
            "the last one in the list.",
            "`reversed(candidates)` iterates from the end and doesn't change the list: `max(reversed(candidates), "
            "key=policy.rank)`.",
        ),
        points=1,
    ),
    Exercise(
        id="10.2",
        title="preempt",
        reference="lessons_lib.scheduling.preemption:preempt_sequence",
        test=check_preempt_sequence,
        hints=(
            "Follow F through the first try: preempted, waiting, admitted again. Which of its attributes still says "
            "what was true before? Then go through the two ways in which victims differ: which lines assume that "
            "nothing of it is scheduled yet?",
            "The step: take the victim out of `num_scheduled_tokens` if it is there, and append it to `preempted`. The "
            "scheduler: remove the victim from `running` and add it to `waiting`. The pool: free the "
            "victim's blocks; then it has none. The victim: without its cache, no token is computed. Its token ids "
            "stay.",
            "`scheduler_output.num_scheduled_tokens.pop(victim, None)`; `scheduler_output.preempted.append(victim)`; "
            "`scheduler.running.remove(victim)`; `scheduler.waiting.add(victim)`; "
            "`scheduler.pool.free(victim.blocks)`; `victim.blocks = []`; `if not victim.swapped:` "
            "`victim.num_computed_tokens = 0`.",
        ),
    ),
    Exercise(
        id="10.3",
        title="swap or recompute",
        reference="lessons_lib.scheduling.swap_cost:swap_if_cheaper",
        test=check_swap_if_cheaper,
        hints=(
            "Draw time against tokens: one line for swapping, one for recomputing. Which of the two lines starts at 0, "
            "if the step runs anyway?",
            "Two points make a line: take the first and the last measurement. Swapping is out plus in; it has a slope "
            "(seconds per token) and a base (what is left at 0 tokens). For recomputing you need the slope only. "
            "Inside `should_swap`, the tokens to recompute are `victim.num_computed_tokens`, and the tokens to copy "
            "are those rounded up to whole blocks.",
            '`swap_per_token = (swap_last - swap_first) / (last["tokens"] - first["tokens"])`, where `swap_first = '
            'first["swap_out_s"] + first["swap_in_s"]`, and `swap_last` likewise; `swap_base = swap_first - '
            'swap_per_token * first["tokens"]`; `recompute_per_token` is the same slope for `recompute_s`. In '
            "`should_swap`: `copied = size * blocks_for(computed, size)`; `return swap_base + swap_per_token * copied "
            "< recompute_per_token * computed`.",
        ),
    ),
]
