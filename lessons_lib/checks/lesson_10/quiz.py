"""The quiz of lesson 10."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A sequence was preempted after 13 tokens of its answer, and its cache was dropped. It is admitted again, and nothing is found by name. What happens?",
        choices=(
            Choice(
                "The prompt is computed again, and the answer begins anew.",
                "Somebody has read these 13 tokens already. They are known, and they stay: only keys and values are lost.",
            ),
            Choice(
                "Prompt and answer so far are computed together.",
                "All of them are known and none is computed. Lesson 09's rule does the rest.",
                right=True,
            ),
            Choice(
                "The prompt is computed in one step, and then the 13 tokens are decoded again, one a step.",
                "That is how they came about. But known tokens need not wait for one another: they go through the model together.",
            ),
            Choice(
                "Only the 13 tokens of the answer are computed, as the keys of the prompt are kept.",
                "All its blocks went back to the pool. Only if some of them are found by name does it begin further on.",
            ),
        ),
    ),
    Question(
        text="Why does the scheduler admit nobody in a step in which it has preempted somebody?",
        choices=(
            Choice(
                "The step's budget of tokens is used up by then, as the victim had its share of it.",
                "A preempted sequence gives its share of the budget back. What is short are blocks.",
            ),
            Choice(
                "The victim should get its own blocks back before anybody else can take them.",
                "Blocks have no owner by right. It gets any blocks, when its turn comes.",
            ),
            Choice(
                "A newcomer would take the victim's blocks and be the next victim.",
                "The newcomer's prefill would be thrown away in its turn: the beginning of thrashing.",
                right=True,
            ),
            Choice(
                "The moves of the victim's blocks take the whole step.",
                "They take some time, but less than a step, and a victim whose cache is dropped moves nothing at all.",
            ),
        ),
    ),
]
