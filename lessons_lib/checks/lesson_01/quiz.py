"""The quiz of lesson 01."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        "Three requests want 10, 10 and 100 tokens. They go through the model as one wave. How many forward passes "
        "does the wave take?",
        (
            Choice(
                "40, the mean",
                "The mean says how long a request would take on average. But the wave can't leave before its longest "
                "answer is done.",
            ),
            Choice(
                "100",
                "One pass gives a token to every row. The longest answer needs 100 passes, including the prefill; the "
                "other rows are computed along with it.",
                right=True,
            ),
            Choice(
                "120",
                "That is how many it takes to serve them one after the other. In a wave, one pass serves all three.",
            ),
            Choice(
                "10, and the third row continues alone",
                "Dropping finished rows makes the later passes cheaper, but there are still 100 of them. And static "
                "batching keeps the rows.",
            ),
        ),
    ),
    Question(
        "Why does the padding go on the left?",
        (
            Choice(
                "So that the last column holds each row's newest token: the next one is read from there and appended.",
                "With padding on the right, the last column of a short row is padding, and new tokens would come after "
                "a gap.",
                right=True,
            ),
            Choice(
                "Because the model reads from right to left.",
                "It reads from left to right: every token looks at the tokens before it.",
            ),
            Choice(
                "Because padding on the left costs nothing.",
                "Padding costs the same on either side: every cell of the rectangle is computed.",
            ),
            Choice(
                "Because the mask can only hide the beginning.",
                "The mask can hide any cell. With more bookkeeping, padding on the right can be made to work.",
            ),
        ),
    ),
    Question(
        "A row has 3 cells of padding and a prompt of 5 tokens. What is the position of its first new token?",
        (
            Choice(
                "8",
                "That counts the padding. Served alone, the same token has a different position, so a model "
                "may answer differently.",
            ),
            Choice("6", "The prompt's positions start at 0, so its five tokens end at 4."),
            Choice("0", "The new token continues the row. Only the first token of the prompt has position 0."),
            Choice("5", "The prompt has positions 0 to 4, so the next is 5. Padding does not count.", right=True),
        ),
    ),
    Question(
        "In a wave of four, one answer was done after 20 of 100 steps. What happens in its row until step 100?",
        (
            Choice(
                "It is skipped, so the steps get cheaper.",
                "The batch is a rectangle: every row is computed in every pass, and the result is thrown away.",
            ),
            Choice(
                "The next request in the queue gets its batch slot.",
                "That is continuous batching, the next lesson. In a static wave, no request joins before all have "
                "left.",
            ),
            Choice(
                "It is still computed, its tokens are thrown away, and its answer is held back.",
                "The row costs as much as before. This is the batch barrier.",
                right=True,
            ),
        ),
    ),
    Question(
        "The batch size goes from 4 to 8, with the same requests of unequal length. Which of these can grow or stay "
        "the same, but never shrink?",
        (
            Choice(
                "The number of tokens computed",
                "Every wave of eight combines two old waves, so each row is now as long as the longest row of both. "
                "The useful tokens stay the same.",
                right=True,
            ),
            Choice(
                "Tokens per second",
                "They often grow, but not always: a pass over more rows takes longer, and one long answer per wave can "
                "keep the number of passes nearly the same.",
            ),
            Choice(
                "The share of computed tokens that are useful",
                "It falls or stays the same: the longest answer and the longest prompt of eight are at least as long "
                "as those of four.",
            ),
        ),
    ),
]
