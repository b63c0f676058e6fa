"""The quiz of lesson 06."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="Blocks hold 16 tokens. A request has the blocks [7, 2] and 20 tokens, and decodes. Where is its new key written, and what is read?",
        choices=(
            Choice(
                "Slot 20; the slots 0 to 20.",
                "These are positions. Position 20 is in the second block of the table, block 2, in its cell 4.",
            ),
            Choice(
                "Slot 36; the cells of blocks 7 and 2 up to and with cell 4 of block 2.",
                "2 × 16 + 4 = 36. It reads its 20 old tokens and the new one, in the order 7, then 2.",
                right=True,
            ),
            Choice(
                "Slot 36; all 32 cells of blocks 7 and 2.",
                "The slot is right. But the last 11 cells of block 2 hold no token of this request; what lies there must not be used.",
            ),
            Choice(
                "Slot 116; the cells of blocks 2 and 7, in this order.",
                "7 × 16 + 4 is in block 7, which is full. And the order is that of the table: first 7, then 2.",
            ),
        ),
    ),
    Question(
        text="After some blocks, a query's state is maximum 4, total 3. The next block has the scores 6 and 5. What is the new total?",
        choices=(
            Choice(
                "3 + e⁰ + e⁻¹",
                "The old total is relative to the maximum 4, the new weights to 6. They cannot be added before the old one is rescaled.",
            ),
            Choice(
                "3 e² + e⁰ + e⁻¹",
                "The factor is exp(old − new) = e⁻². A larger maximum makes what was there count for less.",
            ),
            Choice("3 e⁻² + e⁰ + e⁻¹", "The old total times exp(4 − 6), plus exp(6 − 6) and exp(5 − 6).", right=True),
            Choice(
                "3 + e⁶ + e⁵",
                "These are bare exponentials beside a total that is relative to 4. And with scores near 90 they would overflow.",
            ),
        ),
    ),
    Question(
        text="Why does the online softmax subtract the largest score, and not, say, the mean of the scores?",
        choices=(
            Choice(
                "With any other number the result would be another.",
                "The result is the same with every number, as both sums change by the same factor. Only rounding and overflow differ.",
            ),
            Choice(
                "Because the mean is not known until all scores are.",
                "Neither is the largest score. For both one would have to correct as one goes along.",
            ),
            Choice(
                "So that all weights add up to 1.", "They do only after dividing by the total, whatever was subtracted."
            ),
            Choice(
                "So that no exponential is above 1, and one of them is 1.",
                "Nothing can overflow then, and the sum below the line is at least 1, never 0.",
                right=True,
            ),
        ),
    ),
    Question(
        text="Two workers took half of a sequence's keys each: attention a with log-sum-exp 5, and attention b with log-sum-exp 5. What is the attention over all keys?",
        choices=(
            Choice("(a + b) / 2", "Equal log-sum-exps mean equal weight, so each has the share 1/2.", right=True),
            Choice("a + b", "Attentions are weighted means of values, and so is the result: the shares add up to 1."),
            Choice(
                "The one with more keys counts for more.",
                "What counts is the sum of exp(score). A part with few keys and high scores may have all the weight.",
            ),
            Choice(
                "It cannot be known: the maxima are missing.",
                "The log-sum-exp contains the maximum: maximum + log(total). It is all that is needed.",
            ),
        ),
    ),
    Question(
        text="In a step of sixteen decodes, what does the paged cache of this lesson, on a CPU, still copy beside the sixteen new keys and values?",
        choices=(
            Choice(
                "Nothing at all; the keys are read where they lie.",
                "That is true of `attention_in_place`, and of a GPU kernel. The vectorised version gathers.",
            ),
            Choice(
                "All caches, three times, as in lesson 05.",
                "Nothing is joined, enlarged or taken apart any more: the ledger's column says 0.",
            ),
            Choice(
                "For the moment of each layer, the keys and values of that layer; nothing of it is kept.",
                "PyTorch's attention wants a rectangle, so they are gathered. The cache itself does not move.",
                right=True,
            ),
            Choice(
                "The blocks of requests that leave.",
                "A block that goes back to the pool is only a number in the free queue. Its content stays until somebody writes over it.",
            ),
        ),
    ),
]
