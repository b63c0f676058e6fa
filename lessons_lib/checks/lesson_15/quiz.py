"""The quiz of lesson 15."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="Four replicas, and every request goes to the one that was sent the longest beginning of its prompt, "
        "without any limit. All prompts begin with the same instructions. What happens?",
        choices=(
            Choice(
                "The requests spread evenly, because all replicas know the instructions.",
                "Only one of them does: the one that got the first request. Nothing gives the others a reason to be "
                "chosen.",
            ),
            Choice(
                "One replica gets all of them, and three are idle.",
                "The first replica that was sent the instructions always has the longest beginning. That's what the "
                "imbalance limit is for.",
                right=True,
            ),
            Choice(
                "The cache of one replica gets full, and then the next one takes over.",
                "The router doesn't stop when a cache is full: it remembers what it has sent, and blocks that are used "
                "often are evicted last.",
            ),
            Choice(
                "The result is the same as with round robin.",
                "Round robin looks at nothing. This rule looks only at the prefix, and here that is always the same "
                "replica.",
            ),
        ),
    ),
    Question(
        text="A replica dies after 7 tokens of a completion with temperature 1 and seed 3. The balancer sends the "
        "prompt and the 7 tokens as one longer prompt to another one, with the same seed. What does the reader get?",
        choices=(
            Choice(
                "The same completion as without the failure: the model sees the same tokens.",
                "The model gives the same probabilities. But token 8 is now drawn with the first random number of the "
                "seed "
                "instead of the eighth.",
            ),
            Choice(
                "An error: a prompt can't end in the middle of an answer.",
                "To the model it's just tokens. Nothing tells a prompt from an answer.",
            ),
            Choice(
                "A completion that goes on well, but with other tokens than without the failure.",
                "The probabilities are right, but the random numbers differ. For a reader without a seed that is "
                "fine. "
                "One who gave a seed was promised the same tokens.",
                right=True,
            ),
            Choice(
                "The first 7 tokens twice.",
                "The new replica returns only what comes after its prompt. They would come twice if the *first* "
                "request "
                "were sent again.",
            ),
        ),
    ),
    Question(
        text="A request crashes each engine that computes it. The balancer moves lost streams to another replica, "
        "without a limit. There are eight replicas. What is the damage?",
        choices=(
            Choice(
                "One replica is lost: the balancer sees that the request is bad and refuses it.",
                "From outside, a crash looks the same whatever the cause. The balancer sees only a broken connection.",
            ),
            Choice(
                "None: a crashed engine is restarted at once.",
                "A start takes from seconds to minutes, and the streams that were in it are lost or have to move.",
            ),
            Choice(
                "Two, because prefix affinity sends it only to the replicas that know its prompt.",
                "Affinity prefers a replica. It doesn't forbid the others, and a lost one isn't asked again.",
            ),
            Choice(
                "All eight are lost, and with them every stream.",
                "Each one dies of it in turn. With `max_moves` = 1, two die. Engines should turn bad requests away "
                "before they "
                "compute anything, but the limit is still needed.",
                right=True,
            ),
        ),
    ),
    Question(
        text="An MLP computes down(silu(gate(x)) * up(x)). Why are gate and up cut by columns and down by rows, not "
        "all three by columns?",
        choices=(
            Choice(
                "Then each process has exactly the inputs of its part of down, and one sum at the end is enough.",
                "The outputs of a column cut are the inputs of a row cut. Between the two matrices nothing has to be "
                "sent.",
                right=True,
            ),
            Choice(
                "A row cut saves more memory than a column cut.",
                "Both leave each process with the same share of the matrix.",
            ),
            Choice(
                "SiLU is computed element by element, so its input has to be complete.",
                "Element by element means the opposite: each process can apply it to its own elements. That's what "
                "makes "
                "this pair of cuts possible.",
            ),
            Choice(
                "With a column cut, down would have to add its bias several times.",
                "With a column cut, every output has its own bias, exactly once. The *row* cut is the one where the "
                "bias "
                "needs care.",
            ),
        ),
    ),
    Question(
        text="A model is cut over 16 GPUs instead of 4, and its all-reduce is a ring. What changes for one sum?",
        choices=(
            Choice(
                "Each GPU sends about four times as many bytes.",
                "It sends 2 (N - 1) / N of the tensor: 1.5 times the tensor with 4 GPUs, and less than twice with any "
                "number.",
            ),
            Choice(
                "Each GPU sends a quarter of the bytes, since its part of the matrix is a quarter as large.",
                "A row cut makes each process compute a part of *every* output. So the tensors that are added up keep "
                "their size, however many processes there are.",
            ),
            Choice(
                "Each GPU sends a quarter more bytes, but five times as many messages have to follow one another.",
                "1.875 instead of 1.5 times the tensor, but 2 (N - 1) = 30 messages in a row instead of 6. For the few "
                "kilobytes of a decode step, the messages count more.",
                right=True,
            ),
            Choice(
                "Nothing: the tensor has the same size.",
                "It has, but a sum now needs the results of 16 GPUs, and waits for the slowest of them.",
            ),
        ),
    ),
    Question(
        text="A model of 0.5 billion parameters fits on one GPU, with plenty of room for the cache. You have two GPUs "
        "and many users. Which is the better start?",
        choices=(
            Choice(
                "Tensor parallel over both: each token takes half as long, so the throughput doubles.",
                "A step of so small a model gets slower: two sums in each layer cost more than the cut saves. In the "
                "table, the two GPUs that share it generate fewer tokens per second than one.",
            ),
            Choice(
                "One GPU for prompts and one for answers.",
                "That exists (*disaggregated prefill*), and it's one more thing to balance. It is not where you start.",
            ),
            Choice(
                "Two replicas: they need no communication, and one of them can fail.",
                "In the table, they are the fastest of the three. Tensor parallelism is for a model that doesn't fit, "
                "or for a large one whose streams have to be faster.",
                right=True,
            ),
            Choice(
                "It makes no difference: two GPUs compute twice as much either way.",
                "Communication, failures and the latency of a single stream all differ.",
            ),
        ),
    ),
]
