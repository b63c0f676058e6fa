"""The quiz of lesson 02."""

from lessons_lib.checks.exercise import Choice, Question

QUIZ = [
    Question(
        text="Two slots, requests with answers of 10, 2 and 8 tokens, prompts that fit in one chunk. When does the third request get its slot?",
        choices=(
            Choice(
                "After step 10, when both have ended.",
                "That is static batching: the free slot waits for the longest answer of the wave.",
            ),
            Choice(
                "In the step after the second request's last token.",
                "The slot is released at the start of the next step and given away at once, while the first request goes on.",
                right=True,
            ),
            Choice(
                "In step 1; the batch grows.",
                "The cache has two rows. A third request needs one of them, and both are taken.",
            ),
        ),
    ),
    Question(
        text="A slot is given to a new request. Why need the old keys and values in its row not be erased?",
        choices=(
            Choice(
                "They are zero by then.",
                "Nothing sets them to zero. They are there until something is written over them.",
            ),
            Choice(
                "The mask shows a token only the columns up to its own position, and those have been written over.",
                "A row's own tokens fill the columns 0, 1, 2, ... in order. Whatever lies beyond belongs to nobody and never counts.",
                right=True,
            ),
            Choice(
                "They are similar to the new ones, so they do little harm.",
                "They are keys of another text. Without the mask they change the answer, as the lesson shows.",
            ),
        ),
    ),
    Question(
        text="A prompt of 300 tokens arrives while three requests decode. What does a smaller `prefill_step` change?",
        choices=(
            Choice(
                "The prompt's first token comes sooner.",
                "It comes later: the same tokens take more steps, and every step decodes as well.",
            ),
            Choice(
                "Each step is shorter, so the three requests wait less for each of their tokens; the prompt takes more steps.",
                "A step lasts as long as its decode pass and its chunk. Chunking trades the newcomer's wait against everybody else's.",
                right=True,
            ),
            Choice(
                "The answers change slightly.",
                "Each token sees the same earlier tokens whichever chunk it is in, so the scores are the same up to rounding. The lesson compares the answers token for token.",
            ),
        ),
    ),
    Question(
        text="Which input does a chunk that starts at position 64 need, beside its tokens?",
        choices=(
            Choice(
                "The positions 64, 65, ..., and a mask that lets each token see columns 0 to its own position.",
                "Positions count from the start of the sequence. The mask `column <= position` is then right for every chunk.",
                right=True,
            ),
            Choice(
                "The positions 64, 65, ..., and the mask of the first chunk, since it has as many tokens.",
                "That mask lets the first token see one column. This chunk's first token must see 65: all of the first chunk, and itself.",
            ),
            Choice(
                "The positions 0, 1, 2, ..., and a mask that lets each token see the first 64 columns too.",
                "Positions say where the keys are written. They would go over those of the first chunk, which the mask then shows.",
            ),
            Choice(
                "The positions 64, 65, ..., and a mask that lets all its tokens see columns 0 to the chunk's end.",
                "Then a token would see those that come after it. Whoever decodes alone never does, so the answers would differ.",
            ),
        ),
    ),
    Question(
        text="Continuous batching computes an empty slot in every decode pass. What does that cost?",
        choices=(
            Choice(
                "Nothing; an empty row is skipped.", "The batch is a rectangle. The model computes all of its rows."
            ),
            Choice(
                "As much as a row in use, which is little here; only the result is thrown away.",
                "The timeline hatches it. Lesson 05 packs only the tokens that are needed into one row, so that an empty slot costs nothing.",
                right=True,
            ),
            Choice(
                "A wrong token in the other rows.",
                "Rows never see each other. An idle row wastes work and disturbs nobody.",
            ),
        ),
    ),
    Question(
        text="Every slot reserves `max_seq_len` places of cache. You double `max_seq_len` for one long request. What happens?",
        choices=(
            Choice(
                "All slots take twice the memory, and most of it lies empty.",
                "The reservation is the same for every slot, whoever sits in it. Lesson 03 reserves a small block at a time.",
                right=True,
            ),
            Choice(
                "Only the slot of the long request grows.",
                "All rows of one tensor are equally long. A slot of its own length needs another layout.",
            ),
            Choice(
                "Every decode step takes twice as long.",
                "A step looks only at as many columns as its longest running request has. It is memory that is lost here, not time.",
            ),
        ),
    ),
]
