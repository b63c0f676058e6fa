"""The quiz of lesson 19."""

from lessons_lib.checks.exercise import Choice, Question

SLIPS = {
    "19.a": {
        6: "That is 48 layers over 8. The 40 layers with a window keep something, too: 1,024 tokens each.",
        32: "That is the factor of one layer with a window. The 8 others keep everything.",
        1.2: "That is 48 over 40. The 8 layers that see everything keep 32 times as much as one with a window.",
    },
    "19.b": {
        512: "Keys *and* values: a token takes 2 × 2 × 256 numbers of 2 bytes in such a layer, 2 KiB.",
        2048: "Keys *and* values, of 2 heads each: a token takes 2 KiB, not 1.",
        256: "A number of the state has 4 bytes, one of keys and values 2: 2 MiB over 2 KiB.",
        1: "A state has 2 MiB, and a token 2 KiB.",
    },
}
QUIZ = [
    Question(
        text="A hybrid serves 64 chats of 30,000 tokens each, and memory is full. Then one more chat of 100 tokens "
        "arrives. Which of these is cheap for a chat of 30,000 tokens, but expensive for one of 100?",
        choices=(
            Choice("Keys and values of the layers with full attention", "They grow with each token, so a short chat "
                   "takes few of them."),
            Choice("The state", "It has the same size for 100 tokens as for 30,000.", right=True),
            Choice("The blocks of a window of 1,024", "A chat of 100 tokens needs no more than its 100 tokens' "
                   "blocks."),
        ),
    ),
    Question(
        text="Blocks of 16, a window of 64. A prompt's first 20 blocks are cached for full attention. For the window, "
        "blocks 0 to 9 are, and for the states there are copies after blocks 4, 12 and 20. How many tokens are a hit?",
        choices=(
            Choice("320", "There is a copy after 20 blocks, but the window has lost the blocks before that place."),
            Choice("160", "The window could go on behind 10 blocks, but no copy of the states was made there."),
            Choice("64", "Behind 4 blocks, full attention has all four, the window its last 63 tokens, and a copy of "
                   "the states is there.", right=True),
            Choice("192", "After 12 blocks there is a copy. The window needs blocks 8 to 11, and has only 8 and 9."),
        ),
    ),
    Question(
        text="A sequence with states is preempted after 500 tokens, and its blocks stay in the prefix cache. It comes "
        "back. Where does it go on?",
        choices=(
            Choice("At token 500: its blocks are all there.", "The state after 500 tokens is gone with its slot, "
                   "unless it was copied."),
            Choice("Behind the last copy of its state that is still there, or at the beginning.", "A state can't be "
                   "cut, and keys and values don't tell it. All tokens behind the copy are computed anew.", right=True),
            Choice("At the last full block, 496.", "That's the rule of lesson 11. It holds only if a copy of the state "
                   "was made there."),
        ),
    ),
]  # fmt: skip
