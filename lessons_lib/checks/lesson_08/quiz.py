"""The quiz of lesson 08."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A machine reads 4 TB/s. The keys and values of a batch of decodes are 8 GB, and a kernel takes 2,500 µs. "
        "What follows?",
        choices=(
            Choice(
                "No kernel can take less than 2,000 µs, so at most a fifth of the time can be saved.",
                "8 GB at 4 TB/s take 2,000 µs, however the kernel is written, and 500 of 2,500 µs is a fifth.",
                right=True,
            ),
            Choice(
                "Every key is read more than once.",
                "That would explain the time, but so would waiting. Bytes divided by bandwidth is a lower bound on the "
                "time; it doesn't say where the rest goes.",
            ),
            Choice(
                "The arithmetic takes 500 µs.",
                "Reading and computing can overlap, so the difference isn't the time of either.",
            ),
            Choice(
                "A kernel with larger tiles would take less than 2,000 µs.",
                "Larger tiles mean fewer iterations. The bytes stay the same, and reading them takes 2,000 µs.",
            ),
        ),
    ),
    Question(
        text="Blocks of 16, BLOCK_N = 64, a context of 100. How many keys does the second iteration of your kernel "
        "load, and from how many blocks?",
        choices=(
            Choice(
                "64 keys from 4 blocks",
                "The tile has the positions 64 to 127, and the sequence ends at 99. What is past it is masked.",
            ),
            Choice("36 keys from 4 blocks", "The fourth block would start at position 112, past the last token."),
            Choice(
                "16 keys from 1 block",
                "That's a kernel that goes block by block. Here each of the 64 positions looks up its own block.",
            ),
            Choice(
                "36 keys from 3 blocks",
                "Positions 64 to 99: all of blocks 4 and 5 of the table, and 4 keys of its block 6.",
                right=True,
            ),
        ),
    ),
    Question(
        text="A model has 4 query heads per KV head. What changes in a step of decodes if BLOCK_M goes from 16 to 64?",
        choices=(
            Choice(
                "The bytes of keys and values fall to a quarter.",
                "The keys were loaded once before, too, for all 4 rows that a decode has. More rows of padding don't "
                "save a load.",
            ),
            Choice(
                "The kernel does four times the arithmetic for the same bytes.",
                "60 rows of padding are multiplied instead of 12, and each key is still loaded once. A decode waits "
                "for bytes, so the time need not grow as much.",
                right=True,
            ),
            Choice(
                "Nothing: `tl.dot` skips masked rows.",
                "`tl.dot` has no mask. A masked load gives those rows zeros, and they're multiplied like the others.",
            ),
            Choice(
                "The results change in all digits, since more rows share a softmax.",
                "The softmax runs along a row. Rows don't affect each other, and those of the padding aren't stored.",
            ),
        ),
    ),
    Question(
        text="The launch passes `scale` without log₂ e, and the kernel still uses `tl.exp2`. What comes out?",
        choices=(
            Choice(
                "The same attention: the factor cancels in the division.",
                "A constant added to all scores cancels, a factor doesn't: it changes their differences.",
            ),
            Choice("NaN", "The largest score is still subtracted, so every exponent is at most 0."),
            Choice(
                "Attention with sharper weights.",
                "That would be a factor of log₂ e too many, 1.44. Here it's missing.",
            ),
            Choice(
                "Attention with flatter weights.",
                "2ˢ is e to the power of 0.69 s. All differences of scores shrink to 69%, so the weights are closer "
                "together.",
                right=True,
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
                "A sixteenth of the bytes, a sixteenth of the iterations.",
                "Larger tiles don't change the bytes: every key is still loaded once per program.",
            ),
            Choice(
                "A quarter of the bytes, a sixteenth of the iterations.",
                "4 query heads share what one program loads, so there are 8 programs instead of 32, with 16 iterations "
                "each instead of 64.",
                right=True,
            ),
            Choice(
                "The same bytes, a quarter of the iterations.",
                "The first kernel loads each key four times, once for each query head of a group.",
            ),
        ),
    ),
]
