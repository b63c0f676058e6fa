"""The quiz of lesson 12."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="Someone tidies up `step`: it samples and returns the tokens first, and copies blocks at the very end. "
        "What goes wrong?",
        choices=(
            Choice(
                "Nothing: a copy only changes where data is stored, and every step has new block tables.",
                "The forward pass writes into the blocks that the scheduler assigned. Their old contents have to be "
                "saved before that.",
            ),
            Choice(
                "Each step takes longer, because the forward pass waits for the copies of the step before.",
                "It's the same work. It just comes too late.",
            ),
            Choice(
                "The forward pass overwrites data that should have been saved, and reads blocks that haven't been "
                "filled.",
                "A victim's blocks go to other sequences in this very step. Their contents must be swapped out, "
                "copied and swapped in before anything is computed.",
                right=True,
            ),
            Choice(
                "Only the metrics are wrong: the time of the copies is attributed to the wrong part of the step.",
                "The stopwatch would still time them correctly. The keys and values would be wrong.",
            ),
        ),
    ),
    Question(
        text="Four tokens have the probabilities 0.5, 0.3, 0.15 and 0.05. Which may be drawn with top_k = 3 and top_p "
        "= 0.83?",
        choices=(
            Choice(
                "Three: the first two add up to 0.8, which is less than 0.83.",
                "top_p looks at what top_k leaves: 0.526, 0.316 and 0.158. The first two of these add up to 0.842.",
            ),
            Choice(
                "Two: after top_k, the second token reaches 0.83.",
                "0.5 / 0.95 = 0.526 is less than 0.83, so the second token stays. Together they reach 0.842, so the "
                "third is cut.",
                right=True,
            ),
            Choice(
                "One: the second token exceeds 0.83, so it is cut.",
                "The token that reaches top_p stays. Otherwise a top_p of 0.1 would leave nothing.",
            ),
            Choice(
                "All four, with changed probabilities.",
                "top_k = 3 keeps the ranks 0, 1 and 2. The fourth token has rank 3, so it is cut.",
            ),
        ),
    ),
    Question(
        text="Someone makes the random numbers a hash of the seed and the token id alone. The temperature is 1, and "
        "nothing is cut. What do users see?",
        choices=(
            Choice(
                "Nothing unusual: every number is still pseudo-random, and so is every token.",
                "The first token of an answer is as good as before. But position 1 draws with the numbers of "
                "position 0.",
            ),
            Choice(
                "In one answer, the same tokens are lucky at every position, and keep coming back.",
                "Each token has one random number for the whole answer. One with a short time wins whenever its "
                "probability allows.",
                right=True,
            ),
            Choice(
                "Every answer is the greedy one.",
                "The times are still random: an unlikely token with a small random number beats a likely one.",
            ),
            Choice(
                "An answer changes when other requests are in the batch.",
                "There is still no state, so other requests don't matter.",
            ),
        ),
    ),
    Question(
        text="The callback of one of 30 running requests raises an exception. What does the engine do?",
        choices=(
            Choice(
                "It lets step() raise the exception, so that the caller can decide what to do.",
                "Then 29 healthy requests would be stuck in a half-finished step.",
            ),
            Choice(
                "It ends this request with the error; the other requests get their tokens.",
                "The engine knows which request the callback belongs to, so only that one fails.",
                right=True,
            ),
            Choice(
                "It ends all requests of the step with the error and frees their blocks.",
                "That's what happens if the *model* fails, because then there are no tokens. Here every request has "
                "its token.",
            ),
            Choice(
                "It prints the exception and continues with the request.",
                "The reader would have missed a token without ever knowing.",
            ),
        ),
    ),
]
