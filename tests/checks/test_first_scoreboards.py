"""The scoreboards of lessons 00 and 01 count what one counts with a pencil."""

import copy

import pytest
import torch
from transformers import DynamicCache

from lessons_lib.batching.greedy import decode_step, greedy_with_cache
from lessons_lib.checks.lesson_00.scoreboard import (
    QuestionSet,
    fewest_positions,
    positions_alone,
    positions_computed,
    positions_of_one_document,
    questions_scoreboard,
)
from lessons_lib.checks.lesson_01.scoreboard import score, waves_scoreboard
from lessons_lib.models.tiny_models import tiny_model


def each_alone(model, document_ids, questions, max_new_tokens):
    return [greedy_with_cache(model, document_ids + question, max_new_tokens) for question in questions]


@torch.inference_mode()
def document_once(model, document_ids, questions, max_new_tokens):
    document = DynamicCache(config=model.config)
    model(input_ids=torch.tensor([document_ids]), past_key_values=document)
    answers = []
    for question in questions:
        cache = copy.deepcopy(document)
        logits = model(input_ids=torch.tensor([question]), past_key_values=cache).logits
        answer = [int(logits[0, -1].argmax())]
        while len(answer) < max_new_tokens:
            answer.append(decode_step(model, answer[-1], cache))
        answers.append(answer)
    return answers


def scores(table):
    return [int(row[1].replace(",", "")) for row in table.rows]


def test_positions_of_two_questions():
    model = tiny_model("llama")
    questions = [[8, 9], [8, 3]]
    small = QuestionSet([5, 17, 42], questions, each_alone(model, [5, 17, 42], questions, 2))
    assert (positions_alone(small), positions_of_one_document(small), fewest_positions(small)) == (12, 9, 8)
    assert positions_computed(lambda *args: each_alone(*args[:3], 2), model, small) == 12


def test_counted_and_computed_positions_agree():
    alone, document, _, fewest = scores(questions_scoreboard(each_alone))
    assert fewest < document < alone
    assert scores(questions_scoreboard(each_alone))[2] == alone
    assert scores(questions_scoreboard(document_once))[2] == document


@pytest.mark.parametrize(
    "answer_all, says",
    [
        (lambda *args: each_alone(*args[:3], 5), "question 0 of 9 should get"),
        (lambda *args: None, "need a list of 9 answers"),
        (lambda *args: each_alone(*args)[1:], "need a list of 9 answers"),
        (lambda *args: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_wrong_answers_to_questions(answer_all, says):
    assert says in questions_scoreboard(answer_all).verdict


def test_the_score_of_waves():
    requests = [(3, 2), (5, 4), (1, 6)]
    # Two batch slots: columns 5 + 4 - 1 and 1 + 6 - 1; useful 4 + 8 + 6.
    assert score([[0, 1], [2]], requests, [2, 4, 6], 2) == (1 - 18 / 28, (4 + 4 + 10) / 3)
    assert score([[2], [1, 0]], requests, [2, 4, 6], 2) == (1 - 18 / 28, (6 + 10 + 10) / 3)
    assert score([[0, 1], [2]], requests, [1, 1, 6], 2) == (1 - 14 / 22, (1 + 1 + 7) / 3)


@pytest.mark.parametrize(
    "rule, says",
    [
        (lambda requests, size: None, "a list of waves is needed"),
        (lambda requests, size: list(range(len(requests))), "a list of waves is needed"),
        (lambda requests, size: [], "look at 0"),
        (lambda requests, size: [[index] for index in range(1, len(requests) + 1)], "look at 0"),
        (lambda requests, size: [[0, 0]], "request 0 is in your waves more than once"),
        (lambda requests, size: [list(range(len(requests)))], "one of yours has 300"),
        (lambda requests, size: [[], *([index] for index in range(len(requests)))], "one of yours has 0"),
        (lambda requests, size: [requests[:8]], "the waves need the indices"),
        (lambda requests, size: requests.sort(), "changed its argument"),
        (lambda requests, size: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_wrong_waves(rule, says):
    assert says in waves_scoreboard(rule).verdict
