"""The quiz of lesson 05."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A row holds one new token of A after 9 cached, then a prompt of 4 tokens of B, then one token of C after 5 cached. What are `cu_seqlens_q` and `logits_index`?",
        choices=(
            Choice(
                "[0, 10, 14, 20] and [9, 13, 19]",
                "Those count the cached tokens too. In the row are the new ones only: 1, 4 and 1.",
            ),
            Choice(
                "[0, 1, 5, 6] and [0, 4, 5]",
                "The row has 6 tokens. The pieces begin at 0, 1 and 5, and the last token of each lies one place before the next begins.",
                right=True,
            ),
            Choice(
                "[0, 1, 5, 6] and [1, 5, 6]",
                "At place 1 of the row B begins already. The index names the last token of a piece, not the first of the next.",
            ),
            Choice(
                "[1, 4, 1] and [0, 3, 0]",
                "Those are the lengths, and places counted within each piece. The row needs places in the row.",
            ),
        ),
    ),
    Question(
        text="In the same row, which positions does the model get?",
        choices=(
            Choice(
                "0, 1, 2, 3, 4, 5",
                "That counts through the row. A's token is the tenth of its own sequence, wherever it stands in the row.",
            ),
            Choice(
                "9, 0, 1, 2, 3, 5",
                "Each position counts from the start of its own sequence; with 9 cached tokens, the next one has position 9.",
                right=True,
            ),
            Choice("10, 1, 2, 3, 4, 6", "Positions count from 0: the cached tokens of A have 0 to 8."),
            Choice("9, 10, 11, 12, 13, 14", "That goes on from A as if B and C belonged to the same text."),
        ),
    ),
    Question(
        text="A, B and C decode, and E's prompt of 5 tokens has a place at last. How many token positions does the next step compute, with four slots and with the packed row?",
        choices=(
            Choice(
                "8 in the slots, 8 in the row.",
                "8 tokens are needed. But the decode pass of the slots is a rectangle, and has one for E's slot as well.",
            ),
            Choice(
                "9 in the slots in two passes, 8 in the row in one.",
                "The slots: 4 in the decode pass, one of them for nobody, then 5 in a pass for the prompt. The row: 3 and 5.",
                right=True,
            ),
            Choice(
                "20 in the slots in one pass, 8 in the row in one.",
                "A rectangle of 4 × 5 is what static batching would make. Lesson 02 computes a prompt in a pass of its own.",
            ),
            Choice(
                "9 in the slots in two passes, 8 in the row in two.",
                "The row does not part prompts from decodes. It takes all that is new through the weights at once.",
            ),
        ),
    ),
    Question(
        text="`loop_forward` makes a pass for each request, with the same result. Why is that not batching?",
        choices=(
            Choice(
                "A request that comes later has to wait until the loop is through.",
                "In both ways a newcomer waits for the step to end, and is in the next one.",
            ),
            Choice(
                "It computes more token positions for the same answers.",
                "It computes exactly the same tokens. None of them is padding, in either way.",
            ),
            Choice(
                "It reads all the weights once for each request.",
                "A row reads them once, however many tokens are in it. With four requests the loop reads them four times.",
                right=True,
            ),
            Choice(
                "It copies more keys and values than the row does.",
                "It copies fewer: nothing is joined or taken apart. That is the price that the row pays.",
            ),
        ),
    ),
    Question(
        text="Twice as many requests run, and each has twice as many tokens in its cache. How much more is copied in a step?",
        choices=(
            Choice(
                "The same; the new tokens alone count.",
                "Writing the new ones is small. Joining, enlarging and scattering move everything that is cached.",
            ),
            Choice(
                "Twice as much.",
                "Twice the requests at the same length would be twice as much. Here each is twice as long as well.",
            ),
            Choice(
                "Four times as much.",
                "What is copied is proportional to all cached tokens together: twice the requests, with twice the tokens each.",
                right=True,
            ),
            Choice(
                "Sixteen times as much.",
                "Not even the mask grows like that: it has twice the rows, for the new tokens, and four times the columns. The copies grow with the cached tokens.",
            ),
        ),
    ),
]
