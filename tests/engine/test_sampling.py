"""Log-probabilities: the model's own, before any setting."""

import pytest
import torch

from lessons_lib.engine.logprobs import rows_of_logprobs


def test_logprobs_are_the_models_own():
    logits = torch.tensor([1.0, 3.0, 2.0, 0.0])
    logprobs = logits.log_softmax(-1).tolist()
    (found,) = rows_of_logprobs(logits[None], [3], 2)
    assert found.token == 3 and found.logprob == pytest.approx(logprobs[3])
    assert [token for token, _ in found.top] == [1, 2]
    assert [value for _, value in found.top] == pytest.approx([logprobs[1], logprobs[2]])
    assert rows_of_logprobs(logits[None], [0], 0)[0].top == ()
    assert len(rows_of_logprobs(logits[None], [0], 99)[0].top) == 4
