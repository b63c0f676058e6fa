"""Questions at the end of lesson 07."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="`add_kernel` is launched on 1,000 numbers with BLOCK = 256. How many programs are needed, and how many numbers does the last one add?",
        choices=(
            Choice("3 programs; the last adds 256.", "3 × 256 = 768. The numbers 768 to 999 would be nobody's."),
            Choice(
                "4 programs; the last adds 256.",
                "Its tile has 256 places, 768 to 1,023. The mask leaves out those from 1,000 on.",
            ),
            Choice(
                "4 programs; the last adds 232.", "1,000 − 3 × 256 = 232. Its other 24 places are masked.", right=True
            ),
            Choice(
                "1,000 programs; the last adds 1.",
                "That is the view of CUDA, with a thread for each number. A Triton program has a tile of them.",
            ),
        ),
    ),
    Question(
        text="A kernel without a mask reads beyond the end of its input. What happens on a GPU?",
        choices=(
            Choice(
                "Triton raises an IndexError.",
                "Nobody checks an address. Only our recorder does, because it runs the kernel in Python.",
            ),
            Choice(
                "It reads whatever lies there, or the whole process ends with an illegal memory access, sometimes only much later.",
                "An address is a number. If memory of the process lies there, it is read without a word.",
                right=True,
            ),
            Choice(
                "It reads zeros.",
                "That would be one check for each number. `other=0.0` gives zeros, and only where a mask says no.",
            ),
            Choice(
                "The compiler refuses it.", "The length is known when the kernel is launched, not when it is compiled."
            ),
        ),
    ),
    Question(
        text="32 query heads share 8 KV heads. Which KV head does query head 13 use, in the models that we load?",
        choices=(
            Choice("KV head 5, that is 13 % 8.", "That would deal the heads out in turns. Neighbours share a KV head."),
            Choice(
                "KV head 3, that is 13 // 4.", "GROUP is 32 / 8 = 4. Query heads 12 to 15 share KV head 3.", right=True
            ),
            Choice("KV head 1, that is 13 // 8.", "Divide by the size of a group, 4, not by the number of KV heads."),
            Choice("KV head 13.", "There are only 8. In the cache, what lies behind head 7 is the next slot."),
        ),
    ),
    Question(
        text="In `attend_blocks`, the loads of keys and values have a mask and `other=0.0`. Why is the score of a masked key set to minus infinity all the same?",
        choices=(
            Choice(
                "Since a key of zeros has the score 0, and exp(0 − maximum) is a weight above 0, which `row_sum` would count.",
                "The value of zeros adds nothing to `acc`, but the sum below would be too large, so the result too small.",
                right=True,
            ),
            Choice(
                "Since what the mask hides might be NaN.",
                "With `other=0.0` it is 0. Without `other` it could be anything.",
            ),
            Choice(
                "Since otherwise the address would be checked.",
                "Nobody checks addresses, and a masked one is not used.",
            ),
            Choice(
                "It need not be; the weight of a key of zeros is 0.",
                "Its score is 0. Its weight is exp(0 − maximum), which may be larger than that of many real keys.",
            ),
        ),
    ),
    Question(
        text="Through the interpreter, a kernel gave the right results in all tests. What does this say about it on a GPU?",
        choices=(
            Choice(
                "It will run there, since the source is the same.",
                "The compiler may refuse what Python takes: a number that a loop turns from `0` into a fraction, or an `if` on a tile.",
            ),
            Choice(
                "How fast it is, if the time is divided by the number of programs.",
                "The interpreter runs Python, one program after the other. Its time says nothing about a GPU's.",
            ),
            Choice(
                "It addresses and computes what it should. Whether it compiles, and how fast it is, has to be tried apart.",
                "The first is what tests are for, the second what a compiler says, even without a GPU. The third needs the GPU.",
                right=True,
            ),
            Choice(
                "Nothing. The interpreter computes something else.",
                "It does the same loads, stores and arithmetic, up to rounding. A wrong stride is wrong in both.",
            ),
        ),
    ),
]
