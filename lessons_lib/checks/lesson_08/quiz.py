"""The quiz of lesson 08."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A machine reads 4 TB/s and does 800 TFLOP/s. An attention pass must read 8 GB, and does 40 GFLOP. What bounds it, and how long does it take at least?",
        choices=(
            Choice("The operations; 50 µs.", "40 GFLOP at 800 TFLOP/s are 50 µs, but reading takes 2,000 µs. The longer of the two counts."),
            Choice("The memory; 2,000 µs.", "8 GB at 4 TB/s are 2,000 µs; the operations take 50 µs. Its intensity is 5 operations a byte, the ridge is at 200.", right=True),
            Choice("Both; 2,050 µs.", "Reading and computing go on at the same time. The shorter one hides behind the longer one, if the kernel lets it."),
            Choice("Neither; the number of tokens counts.", "More tokens mean more bytes and more operations. What bounds is how long either takes."),
        ),
    ),
    Question(
        text="A model has 32 query heads over 8 KV heads, in bfloat16. Why does a decode have about 4 operations for each byte, however long the context is?",
        choices=(
            Choice("Because a tile has 64 keys.", "The count knows no tiles: it is about what must be read and computed, however a kernel cuts it."),
            Choice("Because each key's number has 2 bytes and serves 4 query heads, with 2 operations for each.", "4 query heads × 2 operations / 2 bytes = 4. The same for the values. The context cancels: both grow with it.", right=True),
            Choice("Because scores and outputs take 4 operations for each number.", "They do, 2 for the key and 2 for the value. But that is for one query head; what counts is how many heads use what was read."),
            Choice("Because the softmax is counted as well.", "It is not counted here. It would add a few operations a score, against hundreds for its product."),
        ),
    ),
    Question(
        text="One request with 8,192 tokens decodes alone, on a GPU with 132 processors. There are 8 KV heads. What do splits bring?",
        choices=(
            Choice("Fewer bytes are read.", "The bytes stay the same, and a little is added: the partial results are written and read again."),
            Choice("Without them 8 programs read everything, one after the other; with them, enough programs to keep all processors reading.", "8 programs on 132 processors: most of the GPU would look on.", right=True),
            Choice("Each key is used by more query heads.", "That comes of one program for all query heads of a KV head. It does not change with splits."),
            Choice("Nothing; splits are for long prefills.", "A prefill has many tiles of tokens, so it has programs enough. It is the decode of few requests that has too few."),
        ),
    ),
    Question(
        text="Two splits of a sequence hand over the log-sum-exps 5 and 3, in base 2. With what shares do their results enter?",
        choices=(
            Choice("1/2 and 1/2", "Only equal log-sum-exps mean equal shares, however many keys a split has."),
            Choice("5/8 and 3/8", "Log-sum-exps are logarithms. The weights are 2 to them."),
            Choice("4/5 and 1/5", "2⁵ = 32 and 2³ = 8: 32/40 and 8/40. Relative to the larger one: 1 and 2⁻².", right=True),
            Choice("0.88 and 0.12", "These are the shares with e⁵ and e³. The kernel works in base 2, so its log-sum-exps do, too."),
        ),
    ),
    Question(
        text="`triton.autotune` finds the fastest tiles by trying them at the first call. Why do these kernels not use it?",
        choices=(
            Choice("It does not find the fastest ones.", "It finds the fastest of those that it is given, for the inputs of that call. That is not the problem."),
            Choice("It needs a GPU.", "So do the compiled kernels. The sweep needed one as well."),
            Choice("A user's call would now and then take seconds, and it would fail while a CUDA graph is captured.", "Each new key, such as another number of tokens, tries all configurations. Better once, on purpose, before anybody waits.", right=True),
            Choice("With other tiles the results are wrong.", "Tiles change how the work is cut up and in what order sums are added. The result is the same up to rounding."),
        ),
    ),
]
