"""The quiz of lesson 13."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A CUDA graph was captured for 16 decodes. Then the cache is enlarged, so it's in new tensors at new "
        "addresses. What must the engine prevent?",
        choices=(
            Choice(
                "A replay that raises an error, because the graph's tensors no longer exist.",
                "A graph knows nothing about tensors. It launches its kernels with the captured addresses and "
                "raises no error.",
            ),
            Choice(
                "A slower replay, because the graph was tuned for the smaller cache.",
                "A replay would be as fast as before. It would read the wrong memory.",
            ),
            Choice(
                "A replay with the old addresses. So the addresses are part of the graph's key.",
                "A key without addresses would match, and the replay would return wrong answers without an error. "
                "With the addresses in the key it doesn't match, and the step is captured again.",
                right=True,
            ),
            Choice(
                "A replay for 15 decodes, one fewer than at the capture.",
                "That's harmless: the batch is padded to 16 with a sequence whose output is never read.",
            ),
        ),
    ),
    Question(
        text="A step of 5 decodes is padded to the captured batch size 8. Where do the three padding sequences write "
        "their keys and values?",
        choices=(
            Choice(
                "Nowhere: a padding sequence isn't computed.",
                "The graph launches the same work for all 8 sequences. It can't leave three of them out.",
            ),
            Choice(
                "Into the null block, which belongs to no sequence.",
                "They have to write somewhere. Nothing ever reads the null block, so they may all write to the same "
                "cache slot.",
                right=True,
            ),
            Choice(
                "Into the next free blocks of the pool, which are freed after the step.",
                "That would work, but a full pool has no free block, and padding would fail just when the engine is "
                "busiest.",
            ),
            Choice(
                "Into the last block of the fifth sequence, after its newest token.",
                "That block may be full. And the next decode of that sequence would share it with padding.",
            ),
        ),
    ),
    Question(
        text="The engine overlaps its steps. The in-flight step produces the end token of sequence A, but the next "
        "step, with A in it, has already been launched. What happens to A's token in that step?",
        choices=(
            Choice(
                "The step is canceled and launched again without A.",
                "GPU work that has been launched can't be canceled, and the other sequences need its results.",
            ),
            Choice(
                "It becomes part of A's answer, which is one token longer than without overlap.",
                "The answers must be the same as without overlap. Nothing after the end token belongs to A's answer.",
            ),
            Choice(
                "It is computed, and then thrown away.",
                "That's the price of launching before the results are known: at most one unneeded token for each "
                "sequence.",
                right=True,
            ),
            Choice(
                "That can't happen: the scheduler waits for A's token before it schedules A again.",
                "Then every step would wait for the one before, and there would be no overlap. A placeholder stands "
                "for the token.",
            ),
        ),
    ),
    Question(
        text="The draw of a step begins with `if (temperature == 0).all(): return logits.argmax(dim=-1)`. It returns "
        "the same tokens as before. What does the line cost on a GPU, in an engine whose steps overlap?",
        choices=(
            Choice(
                "Nothing worth mentioning: it compares 256 numbers.",
                "The comparison is quick. But the CPU wants to see its result, and the GPU computes in order.",
            ),
            Choice(
                "An error: the CPU can't look at tensors of the GPU.",
                "It can. PyTorch copies the value, and waits for it. Only a capture refuses that.",
            ),
            Choice(
                "The CPU waits until the GPU has finished the forward pass. Meanwhile it can't schedule the next step.",
                "The copy of one bool waits for all that was launched before it. The overlap is lost. The CPU knows "
                "the temperatures anyway: it could look at its own list.",
                right=True,
            ),
            Choice(
                "Memory: all temperatures have to be kept for the next step.",
                "They are a few numbers, which the step has anyway.",
            ),
        ),
    ),
]
