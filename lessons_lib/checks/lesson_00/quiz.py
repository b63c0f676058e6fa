"""The quiz of lesson 00."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        "The cache holds 20 tokens. What does the next decode step feed to the model?",
        (
            Choice(
                "All 21 tokens, with the cache",
                "The 20 old ones are already in the cache. Fed again, they would be stored, and attended to, a second "
                "time.",
            ),
            Choice(
                "Nothing: the cache is enough",
                "The cache has the keys and values of the earlier tokens. The query that reads them comes from the "
                "newest token.",
            ),
            Choice(
                "The 20th token, the last one in the cache",
                "The model has already read that one: its logits gave the newest token. Fed again, it would be in the "
                "cache twice.",
            ),
            Choice(
                "Only the newest token",
                "It is the one token whose keys and values aren't in the cache yet.",
                right=True,
            ),
        ),
    ),
    Question(
        "The model answered a prompt of 100 tokens with 50 new tokens, and the cache was kept. Now the user appends 20 "
        "more tokens "
        "to that text. What is the minimum number of tokens the model must compute to choose the next one?",
        (
            Choice(
                "21",
                "The 50th new token was chosen but never fed, so it isn't in the cache. One pass computes it and the "
                "20 tokens after it.",
                right=True,
            ),
            Choice(
                "20",
                "The cache holds 149 tokens, not 150. The last token of an answer is chosen, but no pass reads it.",
            ),
            Choice(
                "1",
                "That would be a decode step. But the user added 20 tokens, and the model has read none of them.",
            ),
            Choice(
                "170",
                "Appending text doesn't change the keys and values of the old tokens, so they needn't be computed "
                "again.",
            ),
        ),
    ),
    Question(
        "Why do cached keys and values stay valid as the text grows?",
        (
            Choice(
                "Because greedy decoding never takes a token back",
                "Sampling doesn't take tokens back either, but that isn't the reason: a vector could still depend on "
                "later tokens.",
            ),
            Choice(
                "Because the weights don't change",
                "True, but in a model whose tokens see later ones, the same weights would give new keys at every step.",
            ),
            Choice(
                "Because a token sees only itself and earlier tokens",
                "Appended tokens come later, so they change nothing for the tokens before them, in any layer.",
                right=True,
            ),
        ),
    ),
    Question(
        "One short request is served alone. Its decode step does about 2 operations for each weight it reads. What "
        "would make it "
        "faster on a machine where it is memory-bound?",
        (
            Choice(
                "Arithmetic units that are twice as fast",
                "They already wait for memory. They would only wait longer.",
            ),
            Choice(
                "Weights of half the size, such as bfloat16 instead of float32",
                "Half the bytes have to be moved for the same operations, and moving bytes is what takes the time.",
                right=True,
            ),
            Choice(
                "A prompt of half the length",
                "It makes the cache smaller. But for one short request, nearly all bytes of the step are weights.",
            ),
            Choice("Computing logits for fewer positions", "There is only one position in a decode step."),
        ),
    ),
    Question(
        "Two models differ only in this: the first has 32 KV heads, the second 8. Both have 32 query heads. How do "
        "their caches "
        "compare?",
        (
            Choice(
                "They are equal: both models have 32 query heads",
                "Queries aren't cached. Only keys and values are, and those belong to KV heads.",
            ),
            Choice(
                "The second one takes a sixteenth of the bytes",
                "Keys and values each shrink to a quarter, so their sum does too. The two factors don't multiply.",
            ),
            Choice(
                "The second one takes a quarter of the bytes",
                "The bytes are proportional to the number of KV heads; here four query heads share each KV head.",
                right=True,
            ),
        ),
    ),
    Question(
        "You forget to pass the cache to the decode step, and feed only the last token. What happens?",
        (
            Choice(
                "The model continues as if that token were the whole text",
                "Without a cache it sees one token at position 0. The text derails without any error, which is why we "
                "compare with "
                "`generate`.",
                right=True,
            ),
            Choice(
                "PyTorch raises an error because the shapes don't match",
                "One token is a perfectly valid input. Nothing tells you that the past is missing.",
            ),
            Choice(
                "The text is right, but it takes longer",
                "Recomputing the whole sequence without a cache would be slower. Here the past is missing altogether.",
            ),
        ),
    ),
]
