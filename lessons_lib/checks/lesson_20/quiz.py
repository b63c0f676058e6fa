"""The quiz of lesson 20."""

from lessons_lib.checks.exercise import Choice, Question

SLIPS = {
    "20.a": {
        2.4: "That's the copy in µs. How often does it go into the time of computing?",
        1.4: "That's the disk, with 7 GB/s.",
    },
    "20.b": {
        20: "Only full blocks can be found. The prompt before had 315 tokens: 19 full blocks.",
        15: "The prompt before had 315 tokens, so its 20th block wasn't full.",
    },
    "20.c": {26: "Without block 9, those behind it are useless.", 218: "Blocks 0 to 8 are found: nine."},
}
QUIZ = [
    Question(
        text="A prompt's blocks are a, b, c and d. The pool has a and c, the host d, and b on the disk is damaged. How "
        "many blocks does `load_prefix` return?",
        choices=(
            Choice("One.", "Without b, c and d are useless: the pass computes from there on.", right=True),
            Choice("Three: a, c and d.", "Without b, the keys behind it can't be used."),
            Choice("None: a damaged block ends the lookup.", "What comes before it is right, and is used."),
        ),
    ),
    Question(
        text="A floor evicts the block of least depth first, since deep tokens cost most to compute. What is wrong?",
        choices=(
            Choice("Nothing: it keeps what is expensive.", "It keeps blocks that can't be used any more."),
            Choice("The rest of the conversation is useless without its first block.", "A lookup ends at the first "
                   "block that is nowhere. So the last ones have to go first.", right=True),
            Choice("Deep tokens are cheaper than others.", "They attend to more tokens, so they cost a little more."),
        ),
    ),
    Question(
        text="On the way from prefill to decode, one block of a prompt is lost. What does the user see?",
        choices=(
            Choice("A worse answer.", "Nothing is guessed: tokens whose keys are missing are computed."),
            Choice("An error.", "A block that isn't found is an ordinary miss of the cache."),
            Choice("The same answer, a little later.", "The decode engine finds the blocks before it, and computes the "
                   "rest.", right=True),
        ),
    ),
]  # fmt: skip
