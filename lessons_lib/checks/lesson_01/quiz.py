"""The quiz of lesson 01."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        "Three requests want 10, 10 and 100 tokens. They go through the model as one wave. How many forward passes does the wave take?",
        (
            Choice(
                "40, the mean",
                "The mean says how long a request would take on average. But the wave cannot leave before its longest answer is done.",
            ),
            Choice(
                "100",
                "One pass gives a token to every row. The longest answer needs 100 passes, the prefill among them; the other rows are computed along.",
                right=True,
            ),
            Choice("120", "That is how many it takes one after the other. In a wave one pass serves all three."),
            Choice(
                "10, and the third row goes on alone",
                "Dropping rows that have ended makes the later passes cheaper, but there are still 100 of them. And static batching keeps the rows.",
            ),
        ),
    ),
    Question(
        "Why is padding put on the left?",
        (
            Choice(
                "So that the last column holds each row's newest token, where the next one is read off and appended.",
                "With padding on the right, the last column of a short row is padding, and new tokens would come after a gap.",
                right=True,
            ),
            Choice(
                "Because the model reads from right to left.",
                "It reads from left to right: every token looks at what stands before it.",
            ),
            Choice(
                "Because padding on the left costs nothing.",
                "Padding costs as much on either side: every cell of the rectangle is computed.",
            ),
            Choice(
                "Because the mask can only hide the beginning.",
                "The mask can hide any cell. With more bookkeeping, padding on the right can be made to work.",
            ),
        ),
    ),
    Question(
        "A row has 3 cells of padding and a prompt of 5 tokens. Which position does its first new token have?",
        (
            Choice(
                "8",
                "That counts the padding. Alone, the same token would have another position, and a model with absolute positions would answer differently.",
            ),
            Choice("6", "The prompt's positions begin at 0, so its five tokens end at 4."),
            Choice("0", "The new token continues the row. Only the first token of the prompt has position 0."),
            Choice("5", "The prompt has positions 0 to 4, so the next is 5. Padding does not count.", right=True),
        ),
    ),
    Question(
        "A rotary model, such as the bundled one, is run with a correct mask but without position ids. What happens?",
        (
            Choice(
                "All stories of the wave turn into other stories.",
                "Each row is shifted by its own padding, but the differences of positions within a row stay as they were.",
            ),
            Choice(
                "Next to nothing: attention sees only differences of positions, and a shift changes none.",
                "The numbers differ in the last digits. A model with absolute positions, such as GPT-2, does break.",
                right=True,
            ),
            Choice(
                "A longest row breaks.",
                "A longest row has no padding, so its columns are its positions. Such a row cannot change at all.",
            ),
        ),
    ),
    Question(
        "A wave of four is running; one answer was done after 20 of 100 steps. What happens in this row until step 100?",
        (
            Choice(
                "It is skipped, so the steps become cheaper.",
                "The batch is a rectangle: every row is computed in every pass, and the result is thrown away.",
            ),
            Choice(
                "The next request in the queue takes its place.",
                "That is continuous batching, the next lesson. In a static wave nobody enters before all have left.",
            ),
            Choice(
                "It is computed on, its tokens are thrown away, and its answer is held back.",
                "The row costs what it cost before. This is the batch barrier.",
                right=True,
            ),
        ),
    ),
    Question(
        "Batch size goes from 4 to 8, with the same ragged requests. Which of these can grow or stay as it is, but never shrink?",
        (
            Choice(
                "The number of tokens computed",
                "Every wave of eight is two old waves in one; each row is now as long as the longest of both. Useful tokens stay the same.",
                right=True,
            ),
            Choice(
                "Tokens a second",
                "Often they grow, but not for certain: a pass over more rows takes longer, and one long answer in a wave can leave nearly as many passes as before.",
            ),
            Choice(
                "The share of the tokens that is useful",
                "It falls or stays: the longest answer and the longest prompt of eight are at least as long as those of four.",
            ),
        ),
    ),
]
