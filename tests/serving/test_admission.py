"""Admission: both bounds hold, a refusal changes nothing, and says when to come back."""

import pickle
import random

import pytest

from lessons_lib.models.validate import BadRequest
from lessons_lib.serving.admission import AdmissionControl, Overloaded


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def state(control):
    return control.num_requests, control.num_prompt_tokens


def test_refusals_name_the_bound():
    control = AdmissionControl(max_requests=1, max_prompt_tokens=10)
    with pytest.raises(BadRequest, match="the prompt has 11 tokens; this server takes 10"):
        control.admit(11)
    control.admit(6)
    with pytest.raises(Overloaded, match=r"1 requests are in flight, the limit is 1.*Try again in 1.0 s"):
        control.admit(1)
    control.max_requests = None
    with pytest.raises(Overloaded, match="prompts of 6 tokens are in flight, and 5 more exceed the limit of 10"):
        control.admit(5)
    assert state(control) == (1, 6) and control.num_refused == 2
    control.release(6)
    assert state(control) == (0, 0)
    with pytest.raises(ValueError, match="max_requests is 0; it must be at least 1"):
        AdmissionControl(max_requests=0)


def test_retry_after_follows_the_recent_rate():
    clock = Clock()
    control = AdmissionControl(max_requests=4, clock=clock)
    for _ in range(10):
        control.admit(1)
        control.release(1, was_served=False)
    assert control.retry_after(1, 1) == 1.0, "aborted requests say nothing about the rate"
    for _ in range(4):
        control.admit(10)
    for count in range(20):  # two ends a second
        clock.now += 0.5
        control.release(10)
        control.admit(10)
        if count == 0:
            assert control.retry_after(1, 0) == 1.0, "nor does one request"
    with pytest.raises(Overloaded) as refused:
        control.admit(10)
    assert refused.value.retry_after == pytest.approx(9.5 / 20)
    assert control.retry_after(0, 50) == pytest.approx(9.5 * 50 / 200)
    clock.now += 30  # nothing ends any more
    assert control.retry_after(1, 0) == pytest.approx(39.5 / 20)
    clock.now += 1e6
    assert control.retry_after(1, 0) == 60.0
    clock.now -= 2e6  # set back
    assert control.retry_after(1, 0) == 0.1


def test_random_requests_against_a_recount():
    for seed in range(30):
        chance = random.Random(seed)
        limit, tokens = chance.randrange(1, 8), chance.randrange(5, 40)
        control, inside = AdmissionControl(limit, tokens), []
        for _ in range(200):
            size = chance.randrange(1, 12)
            fits = len(inside) < limit and sum(inside) + size <= tokens
            try:
                control.admit(size)
                inside.append(size)
                assert fits
            except (Overloaded, BadRequest):
                assert not fits
            if inside and chance.random() < 0.5:
                control.release(inside.pop(chance.randrange(len(inside))))
            assert state(control) == (len(inside), sum(inside))


def test_the_error_survives_pickling():
    again = pickle.loads(pickle.dumps(Overloaded("full", 2.5)))
    assert str(again) == "full" and again.retry_after == 2.5
