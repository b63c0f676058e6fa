"""The quiz of lesson 08."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A machine reads 4 TB/s and does 800 TFLOP/s. An attention pass must read 8 GB and does 40 GFLOP. What "
        "limits it, and what is the lower bound on its time?",
        choices=(
            Choice(
                "The operations, since there are more of them; 50 µs.",
                "40 GFLOP at 800 TFLOP/s take 50 µs, but reading takes 2,000 µs. The longer of the two counts.",
            ),
            Choice(
                "The memory; 2,000 µs.",
                "8 GB at 4 TB/s take 2,000 µs; the operations take 50 µs. The machine could do 200 operations per byte "
                "that it reads, and this pass needs 5.",
                right=True,
            ),
            Choice(
                "Both; 2,050 µs.",
                "Reading and computing overlap. The shorter one hides behind the longer one, if the kernel lets it.",
            ),
            Choice(
                "The memory; 10,000 µs.",
                "That's five times too long. There are 5 operations per byte, but they don't make reading the byte "
                "take longer.",
            ),
        ),
    ),
    Question(
        text="A model has 32 query heads over 8 KV heads, in bfloat16. Why does a decode have about 4 operations per "
        "byte, however long the context is?",
        choices=(
            Choice(
                "A tile has 16 rows, and 4 of them are real.",
                "The count ignores tiles: it's about what must be read and computed, however a kernel divides it.",
            ),
            Choice(
                "An element of a key, 2 bytes, takes 2 operations for each of 4 query heads.",
                "4 query heads × 2 operations / 2 bytes = 4. The same holds for the values. The context cancels: both "
                "grow with it.",
                right=True,
            ),
            Choice(
                "Score and output together take 4 operations per element.",
                "They do, 2 for the key and 2 for the value. But that's for one query head; what counts is how many "
                "heads use what was read.",
            ),
            Choice(
                "The 32 query heads read the 8 KV heads four times.",
                "Then there would be more bytes for the same operations, and the intensity would be 1. In the "
                "count, each key and value is read once.",
            ),
        ),
    ),
    Question(
        text="One request with 8,192 tokens decodes alone, on a GPU with 132 processors. There are 8 KV heads. What "
        "does splitting gain?",
        choices=(
            Choice(
                "Fewer bytes are read.",
                "The bytes stay the same, plus a few: the partial results are written and read back.",
            ),
            Choice(
                "128 programs read at the same time instead of 8.",
                "16 splits of 512 keys, the fewest that the rule gives a program, times 8 KV heads. Without splits 124 "
                "processors would be idle; with them, 4 are.",
                right=True,
            ),
            Choice(
                "Each key is used by more query heads.",
                "That comes from one program for all query heads of a KV head. Splits don't change it.",
            ),
            Choice(
                "Nothing: 8,192 keys are too few to split.",
                "They are 16 times the rule's smallest split. Without splits, 8 programs would have to read "
                "everything.",
            ),
        ),
    ),
    Question(
        text="Two splits of a sequence have the log-sum-exps 5 and 3, in base 2. With what weights are their results "
        "merged?",
        choices=(
            Choice("1/2 and 1/2", "Only equal log-sum-exps mean equal weights, however many keys a split has."),
            Choice(
                "5/8 and 3/8", "Log-sum-exps are logarithms. The weights are proportional to 2 to the power of them."
            ),
            Choice(
                "4/5 and 1/5", "2⁵ = 32 and 2³ = 8: 32/40 and 8/40. Relative to the larger one: 1 and 2⁻².", right=True
            ),
            Choice(
                "0.88 and 0.12",
                "Those are the weights with e⁵ and e³. The kernel works in base 2, and so do its log-sum-exps.",
            ),
        ),
    ),
    Question(
        text="32 query heads share 8 KV heads. One kernel has a program per query head and loads 16 keys per "
        "iteration; another has a program per KV head and loads 64. A sequence has 1,024 tokens. How many of the "
        "first kernel's bytes of keys, and of its iterations, does the second one need, over all programs?",
        choices=(
            Choice(
                "A quarter of the bytes, a quarter of the iterations.",
                "Each program has a quarter of the iterations, and there are a quarter as many programs.",
            ),
            Choice(
                "A quarter of the bytes, a sixteenth of the iterations.",
                "4 query heads share what one program loads, so there are 8 programs instead of 32, with 16 iterations "
                "each instead of 64.",
                right=True,
            ),
            Choice(
                "A sixteenth of the bytes, a sixteenth of the iterations.",
                "Larger tiles don't change the bytes: every key is still loaded once per program.",
            ),
            Choice(
                "The same bytes, a quarter of the iterations.",
                "The first kernel loads each key four times, once for each query head of a group.",
            ),
        ),
    ),
]
