"""The quiz of lesson 00."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        "The cache holds 20 tokens. What does the next decode step feed to the model?",
        (
            Choice(
                "All 21 tokens, with the cache",
                "The 20 old ones are in the cache already. Fed again they would be stored, and attended to, a second time.",
            ),
            Choice(
                "Nothing: the cache is enough",
                "The cache has the keys and values of the past. The query that reads them comes from the newest token.",
            ),
            Choice(
                "The 20th token, the last one in the cache",
                "The model has read that one: its logits gave the newest token. Fed again it would stand in the cache twice.",
            ),
            Choice(
                "The newest token only",
                "It is the one token whose keys and values are not in the cache yet.",
                right=True,
            ),
        ),
    ),
    Question(
        "A prompt of 100 tokens was answered with 50 new tokens, and the cache was kept. Now the user adds 20 more tokens behind that text. "
        "How many tokens must the model compute, at the least, to choose the next one?",
        (
            Choice(
                "21",
                "The 50th new token was chosen, but never fed: it is not in the cache. It goes in first, and the 20 behind it, in one pass.",
                right=True,
            ),
            Choice(
                "20",
                "The cache holds 149 tokens, not 150. The last token of an answer is chosen, and no pass reads it.",
            ),
            Choice(
                "1",
                "That would be a decode step. But 20 tokens came from the user, and the model has read none of them.",
            ),
            Choice(
                "170",
                "The keys and values of the old tokens stay as they are, whatever comes behind them. They need not be computed again.",
            ),
        ),
    ),
    Question(
        "Why may keys and values be kept, while the text goes on?",
        (
            Choice(
                "Because greedy decoding never takes a token back",
                "Sampling does not take tokens back either, but that is not the reason: a vector could still depend on later tokens.",
            ),
            Choice(
                "Because the weights do not change",
                "True, but in a model in which tokens see later ones the same weights would give new keys at every step.",
            ),
            Choice(
                "Because a token sees only itself and earlier tokens",
                "What is appended comes later, so it changes nothing for the tokens before it, in any layer.",
                right=True,
            ),
        ),
    ),
    Question(
        "One short request is served alone. Its decode step does about 2 operations for each weight it fetches. What would make it faster on a machine "
        "where it is memory-bound?",
        (
            Choice("Arithmetic units that are twice as fast", "They wait for memory already. They would wait longer."),
            Choice(
                "Weights of half the size, such as bfloat16 for float32",
                "Half the bytes have to be moved for the same operations, and moving bytes is what takes the time.",
                right=True,
            ),
            Choice(
                "A prompt of half the length",
                "It makes the cache smaller. But for one short request nearly all bytes of the step are weights.",
            ),
            Choice("Computing logits for fewer positions", "There is only one position in a decode step."),
        ),
    ),
    Question(
        "Two models differ in one thing: the first has 32 KV heads, the second 8. Both have 32 query heads. How do their caches compare?",
        (
            Choice(
                "Equal: both have 32 query heads",
                "Queries are not kept. Only keys and values are, and those belong to KV heads.",
            ),
            Choice(
                "The second one's has a sixteenth of the bytes",
                "Keys and values both shrink to a quarter; so does their sum. The two factors do not multiply.",
            ),
            Choice(
                "The second one's has a quarter of the bytes",
                "Bytes grow with the number of KV heads; four query heads share each of them.",
                right=True,
            ),
        ),
    ),
    Question(
        "You forget to hand the cache to the decode step, and feed the last token only. What happens?",
        (
            Choice(
                "The model goes on as if that token were the whole text",
                "Without a cache it sees one token at position 0. The text derails, and no error says so: hence the comparison with `generate`.",
                right=True,
            ),
            Choice(
                "PyTorch raises an error: the shapes do not fit",
                "One token is a perfectly good input. Nothing tells you that the past is missing.",
            ),
            Choice(
                "The text is right, only slower",
                "Slower would be the whole sequence without a cache. Here the whole past is missing.",
            ),
        ),
    ),
]
