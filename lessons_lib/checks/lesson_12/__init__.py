"""The exercises and the quiz of lesson 12: probabilities under three settings, a draw, and text that may be shown."""

from lessons_lib.checks.exercise import Exercise
from lessons_lib.checks.lesson_12.drawing import check_draw
from lessons_lib.checks.lesson_12.probabilities import check_token_probabilities
from lessons_lib.checks.lesson_12.quiz import QUIZ
from lessons_lib.checks.lesson_12.stopping import check_releasable

__all__ = ["EXERCISES", "QUIZ"]

EXERCISES = [
    Exercise(
        id="12.1",
        title="what the next token is drawn from",
        reference="lessons_lib.engine.sampling:token_probabilities",
        test=check_token_probabilities,
        hints=(
            "Sort once, right after dividing by the temperature. Then both cuts leave the beginning of each row, and nothing has to be sorted back.",
            "`scaled, tokens = (...).sort(dim=-1, descending=True, stable=True)`. A `rank` 0, 1, 2, … along the row; −∞ where `rank >= top_k`; softmax. What the tokens "
            "before each one have together: `cumsum` less the token's own. 0 where that is `top_p` or more; divide by the row's sum.",
            '`rank = torch.arange(logits.shape[-1])`; `probabilities = scaled.masked_fill(rank >= top_k[:, None], float("-inf")).softmax(dim=-1)`; `before = '
            "probabilities.cumsum(dim=-1) - probabilities`; `probabilities = probabilities.masked_fill(before >= top_p[:, None], 0.0)`. Then divide by "
            "`probabilities.sum(dim=-1, keepdim=True)`.",
        ),
        points=3,
    ),
    Exercise(
        id="12.2",
        title="a draw",
        reference="lessons_lib.engine.sampling:draw",
        test=check_draw,
        hints=(
            "`cumsum` gives the end of each token's piece of the line. Which is the first end that lies beyond the number?",
            "Find that place for each row, [B, 1]. Take care that it is no further than the last token with a probability above 0. Then look up which token stands there.",
            "`index = torch.searchsorted(probabilities.cumsum(dim=-1), numbers[:, None], right=True)`; `last = (probabilities > 0).sum(dim=-1, keepdim=True) - 1`; "
            "`tokens.gather(1, torch.minimum(index, last))[:, 0]`.",
        ),
        points=2,
    ),
    Exercise(
        id="12.3",
        title="what may be shown",
        reference="lessons_lib.engine.detokenizer:releasable",
        test=check_releasable,
        hints=(
            "Two questions, one after the other. Does a whole stop string stand anywhere in the text? If not: does the text end with the beginning of one?",
            "Places of the stop strings that are there: `text.index(string)`; the smallest of them ends the text. Otherwise try, for each stop string, all its beginnings "
            "that are shorter than itself: does the text end with it? The longest that it does end with is held back.",
            "`found = [text.index(string) for string in stop if string in text]`; if there is any, `return min(found), True`. Then `max((size for string in stop for size "
            "in range(1, len(string)) if text.endswith(string[:size])), default=0)` characters are held back.",
        ),
        points=2,
    ),
]
