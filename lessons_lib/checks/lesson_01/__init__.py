"""The exercises and the quiz of lesson 01: padding, positions, waves, and the loop over one wave."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_01.generation import test_generate_wave
from lessons_lib.checks.lesson_01.padding import test_pad_left
from lessons_lib.checks.lesson_01.positions import test_positions_from_mask
from lessons_lib.checks.lesson_01.quiz import QUIZ
from lessons_lib.checks.lesson_01.waves import test_wave_steps

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="01.1",
        title="pad to a rectangle",
        reference="lessons_lib.batching.static_batching:pad_left",
        test=test_pad_left,
        hints=(
            "A rectangle needs rows of one length. The longest prompt sets it; the others get padding in front, and the mask says how much.",
            "For each prompt: count how many cells are missing, `longest - len(ids)`. Its row is that many padding tokens, then the prompt. "
            "Its mask is that many 0, then a 1 for each token.",
            "`longest = max(len(ids) for ids in prompt_ids)`; for each prompt `pad = longest - len(ids)`, the row `[pad_token_id] * pad + list(ids)` and "
            "the mask `[0] * pad + [1] * len(ids)`; at the end `torch.tensor(rows), torch.tensor(masks)`.",
        ),
    ),
    Exercise(
        id="01.2",
        title="positions from the mask",
        reference="lessons_lib.batching.static_batching:positions_from_mask",
        test=test_positions_from_mask,
        hints=(
            "The position of a token is the number of real tokens before it in its own row. The mask has a 1 for each real token.",
            "A running sum of the mask along each row counts the real tokens so far, the present one included. Take that one off again. "
            "Then look at what padding got.",
            "`attention_mask.cumsum(dim=1) - 1` is right on tokens and -1 on padding; `.clamp(min=0)` makes a valid position of it.",
        ),
    ),
    Exercise(
        id="01.3",
        title="steps of each wave",
        reference="lessons_lib.batching.static_batching:wave_steps",
        test=test_wave_steps,
        hints=(
            "One step gives one token to every row of the wave. So the row that wants most tokens decides how many steps there are.",
            "Cut the list into waves of `batch_size`, in order; `waves(answer_lengths, batch_size)` does it. Of each wave take one number.",
            "`[max(wave) for wave in waves(answer_lengths, batch_size)]`",
        ),
    ),
    Exercise(
        id="01.4",
        title="the loop over one wave",
        reference="lessons_lib.batching.static_batching:generate_wave",
        test=test_generate_wave,
        points=4,
        hints=(
            "It is the loop of lesson 00 with B rows. Three things change with every pass: what is fed, the mask, the positions. And each row "
            "has to be asked whether it has ended; the wave ends when none is running.",
            "Before the loop: pad, positions, an empty `DynamicCache`, `answers = [[] for _ in prompt_ids]`, `running = [True] * B`. "
            "In the loop: call the model with `input_ids`, `attention_mask`, `position_ids`, `past_key_values`; take the argmax of the last column of every row; "
            "append to the rows that are running, then see whether they have ended. Then feed the new tokens, append a 1 to every row of the mask, and "
            "take the last position plus 1.",
            "`for row, token in enumerate(next_tokens.tolist()): if running[row]: answers[row].append(token); running[row] = token != eos_token_id and "
            "len(answers[row]) < caps[row]`. For the next pass: `input_ids = next_tokens[:, None]`, "
            "`attention_mask = torch.cat([attention_mask, torch.ones_like(input_ids)], dim=1)`, `position_ids = position_ids[:, -1:] + 1`.",
        ),
    ),
]
