"""The quiz of lesson 13."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A CUDA graph was captured for 16 decodes. Then the cache is enlarged: new tensors in other places. What must a replay of the graph be protected from?",
        choices=(
            Choice(
                "From an error message: the graph knows that its tensors are gone.",
                "It knows nothing. It launches its kernels on the addresses that it was captured with.",
            ),
            Choice(
                "From being slower with the larger cache, since it was tuned to the smaller one when it was captured.",
                "It would be as fast as before. It would read the wrong memory.",
            ),
            Choice(
                "From working on the old addresses without a word; so they belong to its key.",
                "With the old key it is found and replayed, no error is raised, and the answers are wrong. With addresses in the key it is not found, and captured anew.",
                right=True,
            ),
            Choice(
                "From being used for 15 decodes, one fewer than it was captured for.",
                "That is harmless: the row is filled up to 16 with a sequence that nobody reads.",
            ),
        ),
    ),
]
