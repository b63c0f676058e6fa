"""The quiz of lesson 12."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="Someone moves `count_launched` into the `try` of `run_step`. Because of a bug, it raises an error "
        "halfway. What happens now?",
        choices=(
            Choice(
                "The tokens that it has counted stay counted, although the cache doesn't have them.",
                "After a failed step everything is made again from the requests' tokens, whatever was counted.",
            ),
            Choice(
                "The requests of the step end, though they aren't to blame, and the bug looks like a failure of the "
                "model.",
                "An error of the model can come from what a request asks for. A bug of the engine must come out, or "
                "it ends innocent requests in one step after the other.",
                right=True,
            ),
            Choice(
                "Each request of the step gets its token twice.",
                "No token has been appended yet: the core does that once the step is whole.",
            ),
            Choice(
                "The same step is tried again, forever.",
                "The requests of the step have ended, so the next step has others.",
            ),
        ),
    ),
    Question(
        text="Four tokens have the probabilities 0.4, 0.3, 0.2 and 0.1. How many of them may be drawn with top_k = 2 "
        "and top_p = 0.5?",
        choices=(
            Choice(
                "Two: the first has 0.4, which is less than 0.5, so the second stays.",
                "top_p looks at the shares of what top_k leaves, and there the first has 0.4 of 0.7.",
            ),
            Choice(
                "Two: top_k says so, and top_p cuts only unlikely tokens.",
                "top_p cuts whatever comes after the token that reaches it, however likely that is.",
            ),
            Choice(
                "One: of what top_k leaves, the first has more than half.",
                "0.4 / 0.7 = 0.571 reaches 0.5, so the second is cut.",
                right=True,
            ),
            Choice(
                "None: the first already exceeds 0.5.",
                "The token that reaches top_p stays. Otherwise a top_p of 0.1 would leave nothing.",
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
        text="B has 12 tokens of its answer when Ctrl-C comes. What does the engine compute again?",
        choices=(
            Choice(
                "Nothing of B: its blocks are still in its block table.",
                "It drops all blocks. After an interrupt at any line, no table can be trusted.",
            ),
            Choice(
                "Only the token that was being drawn.",
                "That token needs the keys and values of all tokens before it, and they are gone.",
            ),
            Choice(
                "B's whole answer: all 12 tokens are drawn again, with the same seed.",
                "The request has its tokens, and they are never drawn twice. Their readers have seen them.",
            ),
            Choice(
                "The keys and values of B's prompt and of its 12 tokens; none of these tokens is drawn again.",
                "As after a preemption: everything but the tokens can be computed from the tokens.",
                right=True,
            ),
        ),
    ),
]
