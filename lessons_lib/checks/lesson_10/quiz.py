"""The quiz of lesson 10."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A sequence was preempted after 13 tokens of its answer, and its cache was dropped. Now it is admitted "
        "again. What happens?",
        choices=(
            Choice(
                "The prompt is computed again, and the answer starts over.",
                "These 13 tokens have already been sent. They are kept: only keys and values are lost.",
            ),
            Choice(
                "The prompt and the answer so far are computed together.",
                "All of these tokens are known and none is computed. Lesson 09's rule does the rest.",
                right=True,
            ),
            Choice(
                "The prompt is computed in one step, and then the 13 tokens are decoded again, one per step.",
                "That is how they were produced. But known tokens don't have to wait for each other: they go through "
                "the model together.",
            ),
            Choice(
                "Only the 13 tokens of the answer are computed, since the keys of the prompt are kept.",
                "All of its blocks went back to the pool, those of the prompt too.",
            ),
        ),
    ),
    Question(
        text="First come, first served. A, B and C arrived in this order and are running. B needs a block, and none "
        "is free. Which sequence is preempted?",
        choices=(
            Choice(
                "A, because it has held its blocks the longest.",
                "A ranks first. If it could be preempted while others run, no sequence would be sure to finish.",
            ),
            Choice(
                "B, because it is the one that needs a block.",
                "Then C, which ranks behind B, would keep its blocks at B's expense. B is the victim only if no "
                "running sequence ranks behind it.",
            ),
            Choice(
                "C, because the policy would serve it last.",
                "The victim has the largest rank. Here, that is the latest arrival.",
                right=True,
            ),
            Choice(
                "Whichever has the most blocks, so that one preemption is enough.",
                "One free block is enough for B. The number of blocks plays no role in the choice, only the rank.",
            ),
        ),
    ),
    Question(
        text="Why does the scheduler admit no sequence in a step in which it has preempted one?",
        choices=(
            Choice(
                "The step's token budget is used up, because the victim had its share of it.",
                "A preempted sequence returns its share of the budget. Blocks are what ran out, not tokens.",
            ),
            Choice(
                "The victim must get its own blocks back before another sequence can take them.",
                "No sequence has a claim to particular blocks. When the victim is admitted again, any blocks will do.",
            ),
            Choice(
                "The admitted sequence would take the freed blocks and, under first come, first served, be the next "
                "victim.",
                "It ranks behind every running sequence, so its prefill would be wasted: the start of thrashing.",
                right=True,
            ),
            Choice(
                "Copying the victim's blocks takes the whole step.",
                "It takes some time, but less than a step, and if the victim's cache is dropped nothing is copied at "
                "all.",
            ),
        ),
    ),
    Question(
        text="With blocks of 1 token, swapping a sequence of 1,024 tokens out and in takes 661 ms, although its bytes "
        "alone would take 5 ms. Why?",
        choices=(
            Choice(
                "The swap space has to be searched for 1,024 free blocks.",
                "Taking blocks from a free queue costs next to nothing compared with a copy.",
            ),
            Choice(
                "Small blocks hold more bytes per token.",
                "A token has the same keys and values in a block of any size.",
            ),
            Choice(
                "In every block, each layer's keys and each layer's values are a separate transfer, and starting a "
                "transfer takes time.",
                "1,024 blocks × 64 transfers × 2 directions × 5 µs = 655 ms. Larger blocks, or blocks gathered before "
                "they are sent, need fewer transfers.",
                right=True,
            ),
            Choice(
                "The forward pass has to wait until every block has been computed again.",
                "Swapping computes nothing. Recomputing is the other option.",
            ),
        ),
    ),
    Question(
        text="On some GPU, a victim of 512 tokens is swapped out and in in 2 ms. A step that prefills 512 tokens takes "
        "17 ms, and one that prefills 8,192 takes 26 ms. Why may recomputing the victim be the better choice?",
        choices=(
            Choice(
                "The victim comes back in a step that runs anyway, and most of the 17 ms are what any step takes.",
                "What counts is how much longer 512 tokens make that step. 7,680 more tokens take 9 ms: about 1.2 µs "
                "per token, or 0.6 ms for the victim.",
                right=True,
            ),
            Choice(
                "A recomputed cache is more exact than a copied one.",
                "A copy has the same bits. The tokens are the same either way.",
            ),
            Choice(
                "The copies keep the GPU from computing anything else.",
                "The 2 ms already assume that. They are still less than 17 ms.",
            ),
            Choice(
                "It can't be: 2 ms is less than 17 ms.",
                "The choice isn't between 2 and 17 ms. A swap adds its 2 ms, but recomputing doesn't add a whole step.",
            ),
        ),
    ),
]
