"""The quiz of lesson 05."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="A loop sorts the sequences of the row by length before `pack`, but still joins the caches in the order "
        "of admission. What happens?",
        choices=(
            Choice(
                "Nothing: the mask compares ids and positions, and the keys can be anywhere.",
                "They can, as long as each key has its own tags. `key_tags` gives them by the order of the row.",
            ),
            Choice(
                "Requests attend to the keys of other requests.",
                "The tags of the cached keys follow the order of the row, and the keys that of admission. So the ids "
                "are attached to foreign keys, and no shape is wrong.",
                right=True,
            ),
            Choice(
                "The pass raises an error, because the lengths don't fit.",
                "The joined cache has the same number of keys in either order, and so has the mask.",
            ),
            Choice(
                "The answers are right, but the logits are in another order.",
                "The logits are in the order of the row, which the caller knows. It's the keys that are in the wrong "
                "one.",
            ),
        ),
    ),
    Question(
        text="B decodes alone, and F has just been admitted with a prompt of 40 tokens. How many token positions does "
        "the next step compute, with four slots and with the packed row?",
        choices=(
            Choice(
                "Slots: 41. Packed row: 41.",
                "41 tokens are needed. But the decode pass over the slots is a rectangle and also computes one for "
                "each of the three slots that don't decode.",
            ),
            Choice(
                "Slots: 160 in one pass. Packed row: 41 in one pass.",
                "Static batching would make a rectangle of 4 × 40. Lesson 02 computes a prompt in a separate pass.",
            ),
            Choice(
                "Slots: 44 in two passes. Packed row: 41 in two passes.",
                "The packed row doesn't separate prompts from decodes. All new tokens go through the weights in one "
                "pass.",
            ),
            Choice(
                "Slots: 44 in two passes. Packed row: 41 in one pass.",
                "Slots: 4 in the decode pass, three of them wasted, then 40 in a pass for the prompt. Packed row: 1 "
                "and 40 together.",
                right=True,
            ),
        ),
    ),
    Question(
        text="Four requests at a time: which load saves the smallest share of its passes with the packed row, compared "
        "with four slots?",
        choices=(
            Choice(
                "Four short prompts, each with an answer of 2,000 tokens.",
                "The slots are full until the end, and only four passes compute prompts, so there is hardly anything "
                "to save. And nowhere is more copied: each step moves thousands of cached tokens.",
                right=True,
            ),
            Choice(
                "Two hundred short prompts, each with an answer of 2 tokens.",
                "With slots, each of the two hundred prompts takes a pass of its own. The row computes four at a "
                "time, and copies little, since little is cached.",
            ),
            Choice(
                "Four prompts of 1,000 tokens, each with an answer of 1 token.",
                "The slots take sixteen passes, of 64 tokens, for each prompt; the row takes one for all four. Nothing "
                "was cached before it, so there is little to copy.",
            ),
            Choice(
                "Prompts of 200 tokens, each with an answer of 10.",
                "With slots, a prompt of 200 tokens takes four passes, so they make more passes for prompts than for "
                "decoding. The row saves most of them.",
            ),
        ),
    ),
    Question(
        text="Twice as many requests run, and each has twice as many cached tokens. How much more does a step copy?",
        choices=(
            Choice(
                "The same, because only the new tokens count.",
                "Writing the new ones is cheap. Joining, growing and splitting the cache move everything that is "
                "cached.",
            ),
            Choice(
                "Twice as much.",
                "Twice the requests at the same length would copy twice as much. Here each one is also twice as long.",
            ),
            Choice(
                "Four times as much.",
                "The copies are proportional to the total of cached tokens: twice the requests, with twice the "
                "tokens each.",
                right=True,
            ),
            Choice(
                "Sixteen times as much.",
                "Not even the mask grows like that: it has twice the rows (new tokens) and about four times the "
                "columns (keys). The copies grow with the total of cached tokens.",
            ),
        ),
    ),
]
