"""The quiz of lesson 08."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A machine reads 4 TB/s and does 800 TFLOP/s. An attention pass must read 8 GB, and does 40 GFLOP. What bounds it, and how long does it take at least?",
        choices=(
            Choice(
                "The operations, of which there are more; 50 µs.",
                "40 GFLOP at 800 TFLOP/s are 50 µs, but reading takes 2,000 µs. The longer of the two counts.",
            ),
            Choice(
                "The memory; 2,000 µs.",
                "8 GB at 4 TB/s are 2,000 µs; the operations take 50 µs. Its intensity is 5 operations a byte, the ridge is at 200.",
                right=True,
            ),
            Choice(
                "Both; 2,050 µs.",
                "Reading and computing go on at the same time. The shorter one hides behind the longer one, if the kernel lets it.",
            ),
            Choice(
                "The memory; 10,000 µs.",
                "That is five times too long. There are 5 operations for each byte, but reading the byte takes no longer for it.",
            ),
        ),
    ),
    Question(
        text="A model has 32 query heads over 8 KV heads, in bfloat16. Why does a decode have about 4 operations for each byte, however long the context is?",
        choices=(
            Choice(
                "A tile has 16 rows, and 4 of them are real.",
                "The count knows no tiles: it is about what must be read and computed, however a kernel cuts it.",
            ),
            Choice(
                "A number of a key, 2 bytes, takes 2 operations for each of 4 query heads.",
                "4 query heads × 2 operations / 2 bytes = 4. The same for the values. The context cancels: both grow with it.",
                right=True,
            ),
            Choice(
                "Score and output together take 4 operations for each number.",
                "They do, 2 for the key and 2 for the value. But that is for one query head; what counts is how many heads use what was read.",
            ),
            Choice(
                "The 32 query heads read the 8 KV heads four times.",
                "Then there would be more bytes for the same operations, and the intensity would be 1. Counted is one reading.",
            ),
        ),
    ),
    Question(
        text="One request with 8,192 tokens decodes alone, on a GPU with 132 processors. There are 8 KV heads. What do splits bring?",
        choices=(
            Choice(
                "Fewer bytes are read.",
                "The bytes stay the same, and a little is added: the partial results are written and read again.",
            ),
            Choice(
                "128 programs read at the same time, in place of 8.",
                "16 pieces of 512 keys, which is the fewest that the rule gives a program, times 8 KV heads. Without splits 124 processors would have nothing to do; with them, 4.",
                right=True,
            ),
            Choice(
                "Each key is used by more query heads.",
                "That comes of one program for all query heads of a KV head. It does not change with splits.",
            ),
            Choice(
                "Nothing: 8,192 keys are too few to be cut.",
                "They are 16 times as many as the rule's smallest piece. Without splits, 8 programs would have to read it all.",
            ),
        ),
    ),
    Question(
        text="Two splits of a sequence hand over the log-sum-exps 5 and 3, in base 2. With what shares do their results enter?",
        choices=(
            Choice("1/2 and 1/2", "Only equal log-sum-exps mean equal shares, however many keys a split has."),
            Choice("5/8 and 3/8", "Log-sum-exps are logarithms. The weights are 2 to them."),
            Choice(
                "4/5 and 1/5", "2⁵ = 32 and 2³ = 8: 32/40 and 8/40. Relative to the larger one: 1 and 2⁻².", right=True
            ),
            Choice(
                "0.88 and 0.12",
                "These are the shares with e⁵ and e³. The kernel works in base 2, so its log-sum-exps do, too.",
            ),
        ),
    ),
    Question(
        text="`triton.autotune` finds the fastest tiles by trying them at the first call. Why do these kernels not use it?",
        choices=(
            Choice(
                "It does not find the fastest ones, because it tries too few.",
                "It tries all that it is given, as the sweep did. That is not the problem.",
            ),
            Choice(
                "It keeps what was fastest for the first call, whatever comes later.",
                "Only if the key leaves out what differs. With the lengths in the key it tries anew for each of them, and that is the trouble.",
            ),
            Choice(
                "Now and then a call would take seconds, and none with a new key could be captured.",
                "Each new key, such as another number of tokens, tries all configurations, which cannot happen in a CUDA graph. Better once, on purpose, before anybody waits.",
                right=True,
            ),
            Choice(
                "With other tiles a user would get another result.",
                "Tiles change how the work is cut up and in what order sums are added. The result is the same up to rounding.",
            ),
        ),
    ),
]
