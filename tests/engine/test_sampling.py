"""Sampling: what may be drawn with which probability, what is drawn by which number, and what is refused."""

from collections import Counter

import pytest
import torch

from lessons_lib.engine.logprobs import rows_of_logprobs
from lessons_lib.engine.plain_sampling import draw


def test_every_number_draws_its_token():
    """The share of the numbers that draw a token is the token's probability: counted on a fine comb of numbers."""
    probabilities = torch.tensor([[0.5, 0.25, 0.125, 0.125, 0.0]], dtype=torch.float64)
    tokens = torch.tensor([[3, 0, 4, 1, 2]])
    comb = torch.arange(1024) / 1024
    drawn = draw(probabilities.expand(1024, -1), tokens.expand(1024, -1), comb.double())
    assert drawn.dtype == torch.int64 and drawn.shape == (1024,)
    assert Counter(drawn.tolist()) == {3: 512, 0: 256, 4: 128, 1: 128}
    assert drawn.tolist() == sorted(drawn.tolist(), key=[3, 0, 4, 1, 2].index)


def test_a_sum_that_stops_short_of_one_ends_at_the_last_that_can_be_drawn():
    probabilities = torch.tensor([[0.6, 0.4 - 1e-9, 0.0]], dtype=torch.float64)
    assert draw(probabilities, torch.tensor([[7, 5, 6]]), torch.tensor([1 - 1e-12], dtype=torch.float64)).tolist() == [
        5
    ]


def test_logprobs_are_the_models_own():
    logits = torch.tensor([1.0, 3.0, 2.0, 0.0])
    logprobs = logits.log_softmax(-1).tolist()
    (found,) = rows_of_logprobs(logits[None], [3], 2)
    assert found.token == 3 and found.logprob == pytest.approx(logprobs[3])
    assert [token for token, _ in found.top] == [1, 2]
    assert [value for _, value in found.top] == pytest.approx([logprobs[1], logprobs[2]])
    assert rows_of_logprobs(logits[None], [0], 0)[0].top == ()
    assert len(rows_of_logprobs(logits[None], [0], 99)[0].top) == 4
