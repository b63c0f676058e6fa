"""The exercises and the quiz of lesson 01: padding, positions, waves, and the loop for one wave."""

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
        title="Pad to a rectangle",
        reference="lessons_lib.batching.static_batching:pad_left",
        test=test_pad_left,
        hints=(
            "Which length do all rows get, and how many cells does a prompt of 3 tokens lack if the longest has 5? "
            "Don't look for padding tokens in the rows: you know where they are when you put them there.",
            "For each prompt, compute how many cells are missing: `longest - len(ids)`. Its row is that many padding "
            "tokens, then the "
            "prompt. Its mask is that many zeros, then a 1 for each token.",
            "`longest = max(len(ids) for ids in prompt_ids)`. For each prompt: `pad = longest - len(ids)`, the row "
            "`[pad_token_id] * pad + list(ids)` and the mask `[0] * pad + [1] * len(ids)`. At the end, return "
            "`torch.tensor(rows), torch.tensor(masks)`.",
        ),
    ),
    Exercise(
        id="01.2",
        title="Positions from the mask (optional)",
        reference="lessons_lib.batching.static_batching:positions_from_mask",
        test=test_positions_from_mask,
        hints=(
            "The position of a token is the number of real tokens before it in its own row. The mask has a 1 for each "
            "real token.",
            "A running sum of the mask along each row counts the real tokens so far, including the current one. "
            "Subtract that one. "
            "Then check what the padding got.",
            "`attention_mask.cumsum(dim=1) - 1` is right on tokens and -1 on padding; `.clamp(min=0)` turns the -1 "
            "into a valid position.",
        ),
    ),
    Exercise(
        id="01.3",
        title="When each request starts and is returned",
        reference="lessons_lib.batching.static_batching:wave_steps",
        test=test_wave_steps,
        hints=(
            "Solve `[4, 1, 2]` with batch size 2 on paper: draw one row per request and one column per step. Which of "
            "the three numbers do the requests of a wave share?",
            "Keep the step after which the current wave starts, 0 at first. For each wave, compute the step after "
            "which it is returned, append three numbers for each of its requests, and let the next wave start there.",
            "`for wave in waves(answer_lengths, batch_size):` with `end = start + max(wave)`, "
            "`times += [(start, start + length, end) for length in wave]` and `start = end` in the loop body.",
        ),
    ),
    Exercise(
        id="01.4",
        title="The loop for one wave",
        reference="lessons_lib.batching.static_batching:generate_wave",
        test=test_generate_wave,
        points=4,
        hints=(
            "Every pass adds one column to the whole wave, but each row finishes on its own. So keep what the wave "
            "shares in tensors, and remember for every row whether it is still running.",
            "Before the loop: pad the prompts, compute the positions, create an empty `DynamicCache`, "
            "`answers = [[] for _ in prompt_ids]`, `running = [True] * len(prompt_ids)`. In the loop: call the model "
            "with `input_ids`, "
            "`attention_mask`, `position_ids` and `past_key_values`; take the argmax of every row's last column; "
            "append to the running "
            "rows, then check whether they have finished. For the next pass, feed the new tokens, append a 1 to every "
            "row of the mask, "
            "and use each row's last position plus 1.",
            "`for row, token in enumerate(next_tokens.tolist()): if running[row]: answers[row].append(token); "
            "running[row] = "
            "token != eos_token_id and len(answers[row]) < max_tokens_each[row]`. For the next pass: `input_ids = "
            "next_tokens[:, None]`, "
            "`attention_mask = torch.cat([attention_mask, torch.ones_like(input_ids)], dim=1)`, `position_ids = "
            "position_ids[:, -1:] + 1`.",
        ),
    ),
]
