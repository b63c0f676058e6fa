"""The quiz of lesson 11."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="Two prompts have the same tokens 16 to 31, but different tokens before them. Blocks hold 16 tokens. Can "
        "they share their second block?",
        choices=(
            Choice(
                "Yes, since it holds the same tokens at the same positions.",
                "The keys are different. From the second layer on, a token's key depends on all tokens before it.",
            ),
            Choice(
                "No. From the second layer on its keys differ, and so do the two block hashes.",
                "The hash of the first block is part of what the second one's hash is computed from: it covers "
                "everything up to the end of the block.",
                right=True,
            ),
            Choice(
                "Yes, if the block is copied before one of them writes to it.",
                "The copy protects against *writes*. Here even reading the block would be wrong.",
            ),
            Choice(
                "Only if both are in the pool at the same time.",
                "The contents of a block don't depend on when it was computed, but on the tokens before it.",
            ),
        ),
    ),
    Question(
        text="A pool of four blocks of 16 tokens. X has 32 tokens in two full blocks with hashes, and ends. Then Y, "
        "which begins differently, allocates three blocks. How many tokens does a sequence find that begins like X?",
        choices=(
            Choice(
                "None: X has ended, and its blocks were given back.",
                "A free block keeps its contents and its hash until it is allocated for something else.",
            ),
            Choice(
                "16.",
                "Y gets the two blocks that never held anything, then X's second block: the last block of a sequence "
                "joins the queue first. X's first block is still there.",
                right=True,
            ),
            Choice(
                "16, and they are those of X's second block.",
                "X's second block was ahead of its first one in the queue, so Y has it. And it would be useless alone.",
            ),
            Choice(
                "32: nothing is erased.",
                "Only two blocks have never been used. For the third, Y gets one of X's, which loses its hash.",
            ),
        ),
    ),
    Question(
        text="Why do freed blocks join the free queue with the last block of the sequence first?",
        choices=(
            Choice(
                "The last block was used last, and the least recently used block is evicted first.",
                "Every step reads all blocks of a sequence, so all of them were last used at the same time.",
            ),
            Choice(
                "A block is useless without the blocks before it.",
                "So the tail should be evicted before the beginning, which other sequences are more likely to share.",
                right=True,
            ),
            Choice(
                "The last block is usually not full, so it has no hash and can be reused at once.",
                "At most one block is like that, and the order matters for the full ones.",
            ),
            Choice(
                "Then the next sequence gets its blocks in the right order.",
                "A sequence can use blocks in any order: its block table says where each one is.",
            ),
        ),
    ),
    Question(
        text="A prompt of 32 tokens is entirely in the cache, in two blocks of 16 that another sequence uses; other "
        "blocks are free. What does its first step compute, and where is that stored?",
        choices=(
            Choice(
                "Nothing. The answer starts at once.",
                "The next token is chosen from the logits of token 31, and no cache holds logits. Engines have "
                "crashed on this.",
            ),
            Choice(
                "Token 31, in its slot of the second block.",
                "That would write the same values, up to rounding, but into a block that another sequence is reading. "
                "A sequence never writes to a block that others use.",
            ),
            Choice(
                "Token 31, in a copy of the second block.",
                "In the copy, 15 tokens are reused and one is overwritten. If no block were free for the copy, the "
                "whole second block would be computed instead.",
                right=True,
            ),
            Choice(
                "All 32 tokens, because the sequence needs blocks of its own.",
                "It can read the other sequence's blocks. It needs one of its own only where it writes.",
            ),
        ),
    ),
]
