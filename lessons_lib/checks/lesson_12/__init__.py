"""The exercises and the quiz of lesson 12: probabilities under three settings, drawing a token, and text that can be
shown.
"""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_12.drawing import check_draw
from lessons_lib.checks.lesson_12.probabilities import check_token_probabilities
from lessons_lib.checks.lesson_12.quiz import QUIZ
from lessons_lib.checks.lesson_12.stopping import check_releasable

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="12.1",
        title="what to draw from",
        reference="lessons_lib.engine.sampling:token_probabilities",
        test=check_token_probabilities,
        hints=(
            "Sort once, right after dividing by the temperature. Then both cuts keep the beginning of each row, and "
            "you never have to undo the sort.",
            "`scaled, tokens = (...).sort(dim=-1, descending=True, stable=True)`. Make a `rank` 0, 1, 2, … along the "
            "row; put −∞ where `rank >= top_k`; softmax. The tokens before "
            "each one add up to `cumsum` minus the token's own probability. Put 0 where that is `top_p` or more, and "
            "divide by the row's sum.",
            "`rank = torch.arange(logits.shape[-1])`; `probabilities = scaled.masked_fill(rank >= top_k[:, None], "
            'float("-inf")).softmax(dim=-1)`; `before = '
            "probabilities.cumsum(dim=-1) - probabilities`; `probabilities = probabilities.masked_fill(before >= "
            "top_p[:, None], 0.0)`. Then divide by "
            "`probabilities.sum(dim=-1, keepdim=True)`.",
        ),
        points=3,
    ),
    Exercise(
        id="12.2",
        title="draw a token",
        reference="lessons_lib.engine.sampling:draw",
        test=check_draw,
        hints=(
            "`cumsum` gives the end of each token on the line. Which is the first end beyond the number?",
            "Find its index in each row, [N, 1]. Limit it to the last token with a probability above 0. Then look up "
            "the token at that index.",
            "`index = torch.searchsorted(probabilities.cumsum(dim=-1), numbers[:, None], right=True)`; `last = "
            "(probabilities > 0).sum(dim=-1, keepdim=True) - 1`; "
            "`tokens.gather(1, torch.minimum(index, last))[:, 0]`.",
        ),
        points=2,
    ),
    Exercise(
        id="12.3",
        title="what can be shown",
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
]
