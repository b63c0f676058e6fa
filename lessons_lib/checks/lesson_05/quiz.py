"""The quiz of lesson 05."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A row holds one new token of A after 9 cached, then a prompt of 4 tokens of B, then one token of C after 5 cached. What are `cu_seqlens_q` and `logits_index`?",
        choices=(
            Choice("[0, 10, 14, 20] and [9, 13, 19]", "Those count the cached tokens too. In the row are the new ones only: 1, 4 and 1."),
            Choice("[0, 1, 5, 6] and [0, 4, 5]", "The row has 6 tokens. The pieces begin at 0, 1 and 5, and the last token of each lies one place before the next begins.", right=True),
            Choice("[0, 1, 5, 6] and [1, 5, 6]", "At place 1 of the row B begins already. The index names the last token of a piece, not the first of the next."),
            Choice("[1, 4, 1] and [0, 3, 0]", "Those are the lengths, and places counted within each piece. The row needs places in the row."),
        ),
    ),
    Question(
        text="In the same row, which positions does the model get?",
        choices=(
            Choice("0, 1, 2, 3, 4, 5", "That counts through the row. A's token is the tenth of its own sequence, wherever it stands in the row."),
            Choice("9, 0, 1, 2, 3, 5", "Each position counts from the start of its own sequence; with 9 cached tokens, the next one has position 9.", right=True),
            Choice("10, 1, 2, 3, 4, 6", "Positions count from 0: the cached tokens of A have 0 to 8."),
            Choice("9, 10, 11, 12, 13, 14", "That goes on from A as if B and C belonged to the same text."),
        ),
    ),
    Question(
        text="In the step after the last token of D, the batch of lesson 02 computes a chunk of E beside the decodes of A, B and C. What is different in the packed row?",
        choices=(
            Choice("Nothing is computed for nobody, and there is one forward pass instead of two.", "The row has exactly the new tokens. All of them go through the weights together.", right=True),
            Choice("E's prompt attends to A, B and C, so it is computed faster.", "It attends to its own tokens only; the mask sees to that. And attending to more would not be faster."),
            Choice("E's prompt is computed later, when A, B and C have finished.", "It is in the next row, beside their tokens."),
        ),
    ),
    Question(
        text="`loop_forward` makes a pass for each request, with the same result. Why is that not batching?",
        choices=(
            Choice("It does the requests in another order.", "The order is the same, and would not matter: the requests do not see each other."),
            Choice("It computes more tokens.", "It computes exactly the same tokens. None of them is padding, in either way."),
            Choice("Every pass reads all weights and launches all operators again, for one token.", "A row pays for the weights once, however many tokens are in it. With four requests the loop pays four times.", right=True),
        ),
    ),
    Question(
        text="Twice as many requests run, and each has twice as many tokens in its cache. How much more is copied in a step?",
        choices=(
            Choice("The same; the new tokens alone count.", "Writing the new ones is small. Joining, enlarging and scattering move everything that is cached."),
            Choice("Twice as much.", "Twice the requests at the same length would be twice as much. Here each is twice as long as well."),
            Choice("Four times as much.", "What is copied is proportional to all cached tokens together: twice the requests, with twice the tokens each.", right=True),
            Choice("Sixteen times as much.", "Not even the mask grows like that: it has twice the rows, for the new tokens, and four times the columns. The copies grow with the cached tokens."),
        ),
    ),
]
