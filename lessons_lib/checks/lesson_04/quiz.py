"""The quiz of lesson 04."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A (3 tokens) and B (2 tokens) are packed into one row, and positions restart in each sequence. Which "
        "rule keeps B's token at position 1 from attending to A's token at position 0?",
        choices=(
            Choice(
                "Only the sequence rule.",
                "To the causal rule, position 0 is simply before position 1. Only the sequence ids tell A from B.",
                right=True,
            ),
            Choice(
                "The causal rule, because A's token is further left in the row.",
                "The causal rule compares positions, and 0 isn't after 1. It would allow this pair.",
            ),
            Choice(
                "The padding rule.",
                "Neither token is padding, and that rule only checks whether the key is padding.",
            ),
        ),
    ),
    Question(
        text="Three sequences have 10, 4 and 0 tokens in the cache. In this pass they add 1, 1 and 6 new tokens. "
        "What is the shape of the mask?",
        choices=(
            Choice("[22, 22]", "Cached tokens aren't computed again. They provide keys, but no queries."),
            Choice("[8, 8]", "The new tokens must see the cached ones too, so there are more keys than queries."),
            Choice("[3, 22]", "Queries are tokens, not sequences. The third sequence adds six of them."),
            Choice(
                "[8, 22]",
                "The queries are the 1 + 1 + 6 new tokens. The keys are those plus the 14 in the cache.",
                right=True,
            ),
        ),
    ),
    Question(
        text="A packed row ends with a few padding tokens. You drop the padding rule and keep the other two. What "
        "happens to the logits of the stories?",
        choices=(
            Choice(
                "They change, because the stories attend to padding.",
                "They can't. The padding's sequence id matches no story's, so the sequence rule already blocks it.",
            ),
            Choice(
                "Nothing. Padding now attends to padding, and nothing reads the result.",
                "The two rules overlap here. The padding rule empties the padding's own rows, which makes them easy to "
                "spot in the mask.",
                right=True,
            ),
            Choice(
                "They turn into NaN.",
                "NaN comes from rows in which everything is forbidden. Dropping a rule forbids less.",
            ),
        ),
    ),
    Question(
        text="In layer 1, a padding query's whole row is masked with minus infinity. Why can the stories be NaN "
        "after layer 2, although none of them may attend to padding?",
        choices=(
            Choice(
                "The mask applies only to layer 1; from layer 2 on, stories may attend to padding.",
                "Every layer gets the same mask.",
            ),
            Choice(
                "Minus infinity plus a score overflows, in the stories' rows as well.",
                "Minus infinity plus any finite score is minus infinity. In a row with at least one allowed key it "
                "does no harm.",
            ),
            Choice(
                "The padding's keys and values are NaN in layer 2, and 0 times NaN is NaN.",
                "A mask can hide finite values but not NaN: any arithmetic with NaN gives NaN, and a single NaN score "
                "is enough to spoil the softmax.",
                right=True,
            ),
        ),
    ),
    Question(
        text="On a Llama model without a cache, you use the right mask but let positions run on through the row. The "
        "answers stay the same. Why restart the positions anyway?",
        choices=(
            Choice(
                "With a cache, a sequence's older keys may be shifted differently from its new tokens.",
                "Rotary attention depends on distances. If a query and a cached key are shifted differently, their "
                "distance is wrong. And models with absolute positions break right away.",
                right=True,
            ),
            Choice(
                "Restarting is faster: with small positions there's less to compute.",
                "It changes a few integers in the input. The amount of work is the same.",
            ),
            Choice(
                "Otherwise the causal rule would let tokens attend to later tokens of their sequence.",
                "The order within a sequence stays the same, so the comparison gives the same result.",
            ),
        ),
    ),
    Question(
        text="Half as many sequences, each twice as long: the row has as many tokens as before. How do the number of "
        "cells in the mask and the number of allowed cells change?",
        choices=(
            Choice(
                "The cells quadruple, and the allowed cells double.",
                "The mask has one cell per pair of tokens, and there are as many tokens as before.",
            ),
            Choice(
                "The cells stay the same, and about twice as many are allowed.",
                "A sequence's triangle of allowed cells grows with the square of its length: half as many triangles, "
                "each about four times as large.",
                right=True,
            ),
            Choice(
                "Both stay the same.",
                "A token may now attend to up to twice as many earlier tokens, since its own sequence is longer.",
            ),
        ),
    ),
]
