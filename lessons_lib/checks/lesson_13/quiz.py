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
        text="A step of 5 decodes is padded to the captured size 8. By mistake, the cache slots of the three padding "
        "sequences are still those of the last step, in which 8 sequences decoded. What happens?",
        choices=(
            Choice(
                "Nothing: what padding computes is thrown away.",
                "Its logits are. But it also writes keys and values, into the slots that it is given.",
            ),
            Choice(
                "Keys and values of other sequences may be overwritten.",
                "The three have left, and their blocks may belong to others by now. That is what the null block is "
                "for: it belongs to no sequence.",
                right=True,
            ),
            Choice(
                "An error: those sequences have ended.",
                "A graph knows no sequences. It writes to any slot in its buffers.",
            ),
            Choice(
                "The 5 real sequences attend to padding.",
                "Each attends through its own block table, which padding doesn't change.",
            ),
        ),
    ),
    Question(
        text="Each answer has 9 tokens, an end token last: one from the prompt's step, 8 from decodes. The engine "
        "overlaps its steps. What share of the decodes that it computes is thrown away?",
        choices=(
            Choice(
                "None: the step in flight is canceled.",
                "GPU work that has been launched can't be canceled, and the other sequences need its results.",
            ),
            Choice(
                "None: the scheduler waits for a token that may be the last.",
                "Any token may be the last. If it waited, there would be no overlap; a placeholder stands for the "
                "token.",
            ),
            Choice(
                "A ninth",
                "When the end token is known, the next step has been launched with the sequence in it: one decode in "
                "nine.",
                right=True,
            ),
            Choice(
                "Half",
                "Only the decode after the end token isn't needed. All others were launched before their input was "
                "known on the CPU, and are right.",
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
                "It can. PyTorch copies the value, and waits for it. A capture would refuse it.",
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
