"""The quiz of lesson 12."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="Somebody makes `step` tidier: the tokens are sampled and handed out first, and the moves of blocks are carried out at the end of the step. What goes wrong?",
        choices=(
            Choice(
                "Nothing: a move only changes where things lie, and the block tables are written anew in every step.",
                "The forward pass writes to the places that the plan names. What was to be saved from there must be saved before.",
            ),
            Choice(
                "Each step takes longer, since the forward pass has to wait for the moves of the step before.",
                "The same work is done. It is done too late.",
            ),
            Choice(
                "The forward pass overwrites what was to be saved, and reads blocks that are not filled.",
                "A victim's blocks belong to others in this very step. Their contents are swapped out, copied and swapped in before anything is computed.",
                right=True,
            ),
            Choice(
                "Only the metrics are wrong: the time of the moves is counted in the wrong part.",
                "The time of the moves would still be counted. The keys and values would be wrong.",
            ),
        ),
    ),
    Question(
        text="Four tokens have the probabilities 0.5, 0.3, 0.15 and 0.05. With top_k = 3 and top_p = 0.8, which may be drawn?",
        choices=(
            Choice(
                "Three: the first three have 0.95 together, and that is the first sum above 0.8.",
                "top_p is a second cut, and the first two reach it.",
            ),
            Choice(
                "Two: after top_k, the second of them reaches 0.8.",
                "0.5 / 0.95 = 0.526 is less than 0.8, so the second belongs to them; together they have 0.842, so the third does not.",
                right=True,
            ),
            Choice(
                "One: with the second, 0.8 is passed, so it is cut.",
                "The token that reaches the share belongs to those that stay. Otherwise a top_p of 0.1 would leave nothing.",
            ),
            Choice(
                "All four, each with another probability.",
                "A token of rank 3 is cut by top_k = 3: the ranks 0, 1 and 2 stay.",
            ),
        ),
    ),
    Question(
        text="Someone replaces random_number(seed, position) by random_number(seed + position). With n = 2 the second answer gets the next seed. What do its readers see?",
        choices=(
            Choice(
                "Nothing unusual: every number is still as good as random, and so is every token.",
                "Each on its own is. But the two answers draw almost the same numbers, one place apart.",
            ),
            Choice(
                "The second answer is drawn with the first one's numbers, one place earlier.",
                "seed + 1 at position 0 is seed at position 1. Answers that are meant to be independent are not.",
                right=True,
            ),
            Choice(
                "Both answers are the same, token for token, as long as they have the same prompt.",
                "They would be if both had the same seed. Here they are shifted by one.",
            ),
            Choice(
                "The answers change when somebody else is in the batch.",
                "Nothing is remembered here either, so others in the batch do not matter.",
            ),
        ),
    ),
    Question(
        text='The stop string is "\\n\\n". A token brings " end.\\n". What does the reader get to see at this moment?',
        choices=(
            Choice(
                "Everything, since no stop string has been found.",
                'If the next token begins with "\\n", the reader would have seen a part of the stop string.',
            ),
            Choice(
                "Nothing, until it is clear whether the answer goes on.",
                'Only what may be the beginning of a stop string has to wait, and " end." cannot be.',
            ),
            Choice('" end.", and the answer is over.', 'One "\\n" is not the stop string. The answer goes on.'),
            Choice(
                '" end."; the "\\n" is held back.',
                "It is the beginning of the stop string. The next token decides, and if none follows, it is shown at the end.",
                right=True,
            ),
        ),
    ),
    Question(
        text="The callback of one of 30 running requests raises an exception. What does the engine do?",
        choices=(
            Choice(
                "It raises the exception out of step(), so that whoever drives the engine can decide what to do.",
                "Then 29 others, who have done nothing wrong, would be stuck in a step that was half done.",
            ),
            Choice(
                "It ends this request with the error; the others get their tokens.",
                "Whose fault it is can be told, so only that request fails.",
                right=True,
            ),
            Choice(
                "It ends all requests of the step with the error, and their blocks go back to the pool.",
                "That is what happens when the *model* fails: then nobody knows what the tokens would have been. Here all have their tokens.",
            ),
            Choice(
                "It prints the exception and goes on with the request.",
                "Its reader has missed a token, and nobody would know.",
            ),
        ),
    ),
]
