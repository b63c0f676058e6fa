"""The quiz of lesson 00."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        "The cache holds 20 tokens. What does the next decode step feed to the model?",
        (
            Choice("All 21 tokens, with the cache", "The 20 old ones are in the cache already. Fed again they would be stored, and attended to, a second time."),
            Choice("The newest token only", "It is the one token whose keys and values are not in the cache yet.", right=True),
            Choice("Nothing: the cache is enough", "The cache has the keys and values of the past. The query that reads them comes from the newest token."),
            Choice(
                "The 20th token, the last one in the cache",
                "The model has read that one: its logits gave the newest token. Fed again it would stand in the cache twice.",
            ),
        ),
    ),
    Question(
        "A prompt has 10 tokens. You want 5 new ones. How many tokens does the model compute with a cache?",
        (
            Choice("5", "The prompt has to be read too: prefill computes its 10 tokens."),
            Choice(
                "14",
                "Prefill computes 10 and gives the first new token. Four decode steps compute one token each. The fifth new token is chosen, but never read.",
                right=True,
            ),
            Choice("15", "The last new token is chosen and returned. Nobody needs its keys and values, so no pass computes it."),
            Choice("60", "That is the count without a cache: 10 + 11 + 12 + 13 + 14."),
        ),
    ),
    Question(
        "Why may keys and values be kept, while the text goes on?",
        (
            Choice("Because greedy decoding never takes a token back", "Sampling does not take tokens back either, but that is not the reason: a vector could still depend on later tokens."),
            Choice("Because the weights do not change", "True, but in a model in which tokens see later ones the same weights would give new keys at every step."),
            Choice(
                "Because a token sees only itself and earlier tokens",
                "What is appended comes later, so it changes nothing for the tokens before it, in any layer.",
                right=True,
            ),
        ),
    ),
    Question(
        "A decode step does about 2 operations for each weight it fetches. What would make it faster on a machine where it is memory-bound?",
        (
            Choice("Arithmetic units that are twice as fast", "They wait for memory already. They would wait longer."),
            Choice("Weights of half the size, such as bfloat16 for float32", "Half the bytes have to be moved for the same operations, and moving bytes is what takes the time.", right=True),
            Choice("A shorter prompt", "It makes the cache a little smaller. Nearly all bytes of the step are weights."),
            Choice("Computing logits for fewer positions", "There is only one position in a decode step."),
        ),
    ),
    Question(
        "Two models differ in one thing: the first has 32 KV heads, the second 8. Both have 32 query heads. How do their caches compare?",
        (
            Choice("Equal: both have 32 query heads", "Queries are not kept. Only keys and values are, and those belong to KV heads."),
            Choice("The second one's has a quarter of the bytes", "Bytes grow with the number of KV heads; four query heads share each of them.", right=True),
            Choice("The second one's has a sixteenth of the bytes", "Keys and values both shrink to a quarter; so does their sum. The two factors do not multiply."),
        ),
    ),
    Question(
        "You forget to hand the cache to the decode step, and feed the last token only. What happens?",
        (
            Choice("PyTorch raises an error: the shapes do not fit", "One token is a perfectly good input. Nothing tells you that the past is missing."),
            Choice(
                "The model goes on as if that token were the whole text",
                "Without a cache it sees one token at position 0. The text derails, and no error says so: hence the comparison with `generate`.",
                right=True,
            ),
            Choice("The text is right, only slower", "Slower would be the whole sequence without a cache. Here the whole past is missing."),
        ),
    ),
]
