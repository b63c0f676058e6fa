"""The quiz of lesson 04."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A (3 tokens) and B (2 tokens) are packed into one row, positions begin anew. Which rule keeps B's token at position 1 from A's "
        "token at position 0?",
        choices=(
            Choice(
                "The rule of the sequence, and no other.",
                "To the causal rule the pair looks like any token and an earlier one. Only the sequence ids differ.",
                right=True,
            ),
            Choice(
                "The causal rule: A's token stands further left in the row.",
                "The causal rule compares positions, and 0 is not after 1. It would allow this pair.",
            ),
            Choice(
                "The padding rule.",
                "Neither of the two is padding. That rule asks only whether the key belongs to nobody.",
            ),
        ),
    ),
    Question(
        text="Three sequences have 10, 4 and 0 tokens in the cache. In this pass they bring 1, 1 and 6 new tokens. What shape has the mask?",
        choices=(
            Choice("[22, 22]", "Tokens in the cache are not computed again. They are keys, and ask nothing."),
            Choice("[8, 8]", "The new tokens must see the cached ones too, so there are more keys than queries."),
            Choice("[3, 22]", "Queries are tokens, not sequences. The third sequence brings six."),
            Choice(
                "[8, 22]", "Queries are the 1 + 1 + 6 new tokens; keys are those and the 14 in the cache.", right=True
            ),
        ),
    ),
    Question(
        text="A packed row ends with a few padding tokens. You leave out the padding rule and keep the two others. What happens to the logits "
        "of the stories?",
        choices=(
            Choice(
                "They change: the stories read padding.",
                "They can't. The padding's sequence id is that of no story, so the rule of the sequence forbids it already.",
            ),
            Choice(
                "Nothing. Padding now attends to padding, and nobody reads what it computes.",
                "The rules overlap here. The padding rule empties the padding's own rows, which a reader of the mask then sees at once.",
                right=True,
            ),
            Choice(
                "They turn to NaN.",
                "NaN comes from rows in which everything is forbidden. Leaving out a rule forbids less.",
            ),
        ),
    ),
    Question(
        text="In layer 1 a padding query's row is forbidden throughout, with minus infinity. Why can the stories be NaN after layer 2, though "
        "none of them may attend to padding?",
        choices=(
            Choice(
                "The mask holds for layer 1 only: from layer 2 on, stories may read padding.",
                "Every layer gets the same mask.",
            ),
            Choice(
                "Minus infinity plus a score overflows, in the rows of the stories as well.",
                "Minus infinity plus any number is minus infinity. In a row with at least one allowed key it does no harm.",
            ),
            Choice(
                "The padding's keys and values are NaN in layer 2, and 0 times NaN is NaN.",
                "A mask hides numbers. It can't hide NaN, because no arithmetic with NaN gives a number; a NaN score spoils even the softmax.",
                right=True,
            ),
        ),
    ),
    Question(
        text="On a Llama model without a cache you let the positions go on through the row, with the right mask. The answers stay the same. "
        "Why restart the positions all the same?",
        choices=(
            Choice(
                "With a cache, a sequence's older keys may carry another shift than its new tokens.",
                "Rotary attention depends on distances. Once a query and a cached key are shifted differently, their distance is wrong. And "
                "models with absolute positions break at once.",
                right=True,
            ),
            Choice(
                "Restarting is faster: with small positions there is less to compute.",
                "It changes a few whole numbers in the input. The work is the same.",
            ),
            Choice(
                "Without it the causal rule would let tokens attend to later ones of their sequence.",
                "Within a sequence the order stays the same, so the comparison gives the same result.",
            ),
        ),
    ),
    Question(
        text="You pack twice as many sequences of the same length into a row. How do the cells of the mask grow, and how the allowed ones?",
        choices=(
            Choice(
                "Both double.",
                "The mask has a cell for every pair of tokens. Twice the tokens is four times the pairs.",
            ),
            Choice(
                "Cells four times, allowed ones twice.",
                "Each new sequence adds its own triangle of allowed cells. All the rest that it adds is forbidden.",
                right=True,
            ),
            Choice("Both four times.", "A sequence gains no allowed cells from its neighbours."),
        ),
    ),
]
