"""The quiz of lesson 11."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="Two prompts have the same tokens 16 to 31, and different tokens before. Blocks hold 16. May they share their second block?",
        choices=(
            Choice(
                "Yes, since the tokens in it are the same, in the same places.",
                "The keys are not. From the second layer on, a token's key depends on all tokens before it.",
            ),
            Choice(
                "No. The keys in it differ, and so do the two names.",
                "The name of the first block goes into that of the second: one name stands for everything up to the end of the block.",
                right=True,
            ),
            Choice(
                "Yes, if the block is copied before one of them writes to it.",
                "A copy is made so that a *write* does no harm. Here already reading would be wrong.",
            ),
            Choice(
                "Only if they are in the pool at the same time.",
                "What a block holds does not depend on when it was computed, but on which tokens stand before it.",
            ),
        ),
    ),
    Question(
        text="Why do freed blocks join the free queue with the last block of the sequence first?",
        choices=(
            Choice(
                "The last block was used last, and the least recently used is lost first.",
                "All blocks of a sequence are read in every step, so all of them were last used at the same time.",
            ),
            Choice(
                "Without the blocks before it, a block is of no use.",
                "So the tail should be lost before the beginning, which is also what other sequences are most likely to have.",
                right=True,
            ),
            Choice(
                "The last block is usually not full, so it has no name and can be handed out at once.",
                "One of them may be, and that one has no name. But the order matters for the full ones.",
            ),
            Choice(
                "The next sequence gets its blocks in the right order then.",
                "Blocks may lie in any order: the block table says where each is.",
            ),
        ),
    ),
    Question(
        text="A prompt of 32 tokens is found in the cache as a whole, in two blocks of 16, which another sequence holds; other blocks are free. What does its first step compute, and where does that go?",
        choices=(
            Choice(
                "Nothing. The answer begins at once.",
                "The next token is chosen from the logits of token 31, and logits lie in no cache. Engines have crashed on this.",
            ),
            Choice(
                "Token 31, into its place in the second block.",
                "The same numbers, up to rounding, would be written, but into a block that somebody else is reading. No block is written that others hold.",
            ),
            Choice(
                "Token 31, into a copy of the second block.",
                "The copy holds 15 tokens that are of use, and one that is written over. If no block were free for it, all of the second block is computed instead.",
                right=True,
            ),
            Choice(
                "All 32 tokens, as the sequence needs blocks of its own.",
                "It reads the others' blocks as they are. Only where it writes does it need one of its own.",
            ),
        ),
    ),
]
