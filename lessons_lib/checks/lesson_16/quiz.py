"""The quiz of lesson 16."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
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
    Question(
        text="A model of 70 billion parameters (bfloat16, 8 KV heads) is cut over four GPUs of 80 GB. A fifth is idle. "
        "What can it do?",
        choices=(
            Choice(
                "Hold a replica of the model.",
                "140 GB don't fit on one GPU. A replica of this model takes a group of GPUs, too.",
            ),
            Choice(
                "Join the group: five parts instead of four.",
                "The parts must be equal, and attention heads stay whole. 8 KV heads can't be divided among five "
                "processes.",
            ),
            Choice(
                "Take over if one of the four is lost, without any of the streams noticing.",
                "The lost GPU held its part of every layer's keys and values. These have to be computed again, by all "
                "parts together. To a balancer, the whole group was one replica, and it was lost.",
            ),
            Choice(
                "Nothing for this model by itself. But it can replace a GPU that fails, once the group has restarted.",
                "A group starts and dies as a whole. For a second replica you need three more GPUs.",
                right=True,
            ),
        ),
    ),
]
