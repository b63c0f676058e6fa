"""The exercises and the quiz of lesson 12: probabilities under three settings, text that can be shown, and a step of
the engine, whole or failed.
"""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_12.probabilities import check_token_probabilities
from lessons_lib.checks.lesson_12.quiz import QUIZ
from lessons_lib.checks.lesson_12.steps import check_run_step
from lessons_lib.checks.lesson_12.stopping import check_releasable

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="12.1",
        title="what to draw from",
        reference="lessons_lib.engine.plain_sampling:token_probabilities",
        test=check_token_probabilities,
        hints=(
            "Sort each row first. Then both cuts keep a beginning of it, so each cut is one comparison per rank: of "
            "the rank itself, or of a running sum.",
            "`values, tokens = logits.sort(dim=-1, descending=True, stable=True)`. Then divide: `temperature[:, None]` "
            "is [N, 1] and broadcasts over [N, vocabulary]. Make a `rank` 0, 1, 2, … with `torch.arange`; put −∞ where "
            "`rank >= top_k` (`x.masked_fill(mask, value)`); softmax, which gives 0 there. The tokens before each one "
            "add up to `cumsum(dim=-1)` minus the token's own probability. Put 0 where that is `top_p` or more, and "
            "divide by the row's sum.",
            "`scaled = values.float() / temperature[:, None]`; `rank = torch.arange(logits.shape[-1])`; "
            '`probabilities = scaled.masked_fill(rank >= top_k[:, None], float("-inf")).softmax(dim=-1)`; `before = '
            "probabilities.cumsum(dim=-1) - probabilities`; `probabilities = probabilities.masked_fill(before >= "
            "top_p[:, None], 0.0)`. Then divide by `probabilities.sum(dim=-1, keepdim=True)`.",
        ),
        points=3,
    ),
    Exercise(
        id="12.2",
        title="what can be shown (optional)",
        reference="lessons_lib.engine.detokenizer:releasable",
        test=check_releasable,
        hints=(
            "Two questions, one after the other. Is a complete stop string anywhere in the text? If not, does the "
            "text end with the beginning of one?",
            "For each stop string in the text, `text.index(string)` says where it begins; the smallest index ends the "
            "text. Otherwise try all proper beginnings of each stop string: "
            "does the text end with one? Hold back the longest that matches.",
            "`found = [text.index(string) for string in stop if string in text]`; if it isn't empty, `return "
            "min(found), True`. Otherwise hold back `max((size for string in stop for size "
            "in range(1, len(string)) if text.endswith(string[:size])), default=0)` characters.",
        ),
        points=2,
    ),
    Exercise(
        id="12.3",
        title="a step, whole or failed",
        reference="lessons_lib.engine.core:run_step",
        test=check_run_step,
        hints=(
            "Which of the calls can fail because of the model or the memory, so that they belong in the `try`? And if "
            "nothing is scheduled and copying fails: which requests would make the next step fail in the same way?",
            "Make a list of the scheduled requests. In a `try`: the block copies, a return if nothing is scheduled, "
            "`forward`, `sampler` and `keep_tokens`. The sampler takes a row of logits for each request of the list, "
            "and four list comprehensions over it. In `except Exception as error`: `raise StepFailed(…) from error`. "
            "After it, return what `count_launched` returns.",
            "`requests = list(scheduler_output.num_scheduled_tokens)`; `tokens = core.sampler(logits[: len(requests)], "
            "[each.params for each in requests], [each.seed for each in requests], [each.num_output_tokens for each in "
            "requests], [each.processor for each in requests])`; `in_flight = core.keep_tokens(scheduler_output, "
            "tokens)`; `raise StepFailed(requests or [each for each in scheduler_output.preempted if each.swapped]) "
            "from error`; `return core.count_launched(scheduler_output, in_flight, logits)`.",
        ),
        points=3,
    ),
]
