"""The stretch task of lesson 00: many questions about one document. Scored by the token positions that go through a
model, on documents that the learner hasn't seen."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from transformers import PreTrainedModel

from lessons_lib.batching.greedy import greedy_with_cache
from lessons_lib.checks.exercise import short
from lessons_lib.checks.scoreboards import Scored, scoreboard
from lessons_lib.models.tiny_models import VOCAB_SIZE, tiny_model
from lessons_lib.viz.tables.table import Table

SEEDS = (31, 32)
MAX_NEW_TOKENS = 6
DOCUMENT_TOKENS = 60


@dataclass(frozen=True)
class QuestionSet:
    """A document, the questions about it, and the right answers."""

    document: list[int]
    questions: list[list[int]]
    answers: list[list[int]]


@cache
def question_set(seed: int) -> QuestionSet:
    """Nine questions: new ones, some with a common beginning, one asked twice, and one that follows up on an answer."""
    draw = random.Random(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(low, high))]

    document, opening = tokens(DOCUMENT_TOKENS, DOCUMENT_TOKENS), tokens(6, 9)
    questions = [tokens(5, 12) for _ in range(3)] + [opening + tokens(2, 5) for _ in range(3)]
    questions += [questions[0], opening]
    model = tiny_model("llama")
    questions.append(questions[1] + greedy_with_cache(model, document + questions[1], MAX_NEW_TOKENS) + tokens(3, 5))
    draw.shuffle(questions)
    answers = [greedy_with_cache(model, document + question, MAX_NEW_TOKENS) for question in questions]
    return QuestionSet(document, questions, answers)


def fewest_positions(of: QuestionSet) -> int:
    """Each token counted once for each different text in front of it. The last token of an answer is never fed."""
    texts = (of.document + question + answer[:-1] for question, answer in zip(of.questions, of.answers))
    return len({tuple(text[: end + 1]) for text in texts for end in range(len(text))})


def positions_alone(of: QuestionSet) -> int:
    return sum(len(of.document) + len(question) + len(answer) - 1 for question, answer in zip(of.questions, of.answers))


def positions_of_one_document(of: QuestionSet) -> int:
    return positions_alone(of) - (len(of.questions) - 1) * len(of.document)


def positions_computed(function: Callable[..., list[list[int]]], model: PreTrainedModel, of: QuestionSet) -> int:
    """The token positions that the function feeds to the model, padding included.

    Raises:
        ValueError: an answer isn't the one that the question gets alone.
    """
    fed = []
    hook = model.get_input_embeddings().register_forward_pre_hook(lambda module, args: fed.append(args[0].numel()))
    try:
        got = function(model, list(of.document), list(map(list, of.questions)), MAX_NEW_TOKENS)
    finally:
        hook.remove()
    count = len(of.questions)
    if not isinstance(got, (list, tuple)) or len(got) != count:
        raise ValueError(f"{count} questions need a list of {count} answers; yours: {short(got)}.")
    for index, (answer, expected) in enumerate(zip(got, of.answers)):
        if not isinstance(answer, list) or answer != expected:
            kind = "" if isinstance(answer, list) else f"a {type(answer).__name__}, "
            should = f"question {index} of {count} should get {expected}, as when it is asked alone"
            raise ValueError(f"{should}; yours gets {kind}{short(answer)}.")
    return sum(fed)


def questions_scoreboard(answer_all: Callable[..., list[list[int]]]) -> Table:
    """Score (model, document_ids, questions, max_new_tokens) -> the answers."""
    model, sets = tiny_model("llama"), [question_set(seed) for seed in SEEDS]
    alone = sum(map(positions_alone, sets))

    def yours() -> Scored:
        count = sum(positions_computed(answer_all, model, of) for of in sets)
        return [count], f"Yours: {count / alone:.0%} of what each question alone computes."

    rows = {
        "each question alone": [alone],
        "the document once": [sum(map(positions_of_one_document, sets))],
        "yours": yours,
        "fewest possible": [sum(map(fewest_positions, sets))],
    }
    caption = f"{len(SEEDS)} hidden documents of {DOCUMENT_TOKENS} tokens, {len(sets[0].questions)} questions each"
    return scoreboard(["", "token positions computed"], rows, caption)
