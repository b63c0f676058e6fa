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


def test_requests_are_bounded_exactly():
    control = AdmissionControl(max_requests=2)
    first = control.admit(1000)
    control.admit(1000)
    with pytest.raises(Overloaded, match=r"2 requests are in flight, the limit is 2.*Try again in 1.0 s") as refused:
        control.admit(1)
    assert refused.value.retry_after == 1.0
    assert state(control) == (2, 2000) and control.num_refused == 1
    control.release(first)
    control.admit(1)
    assert state(control) == (2, 1001)


def test_prompt_tokens_are_bounded_exactly():
    control = AdmissionControl(max_requests=None, max_prompt_tokens=10)
    admitted = control.admit(6)
    control.admit(4)
    with pytest.raises(Overloaded, match="prompts of 10 tokens are in flight, and 1 more exceed the limit of 10"):
        control.admit(1)
    control.release(admitted)
    assert state(control) == (1, 4)
    control.admit(6)


def test_a_prompt_that_never_fits_is_a_bad_request():
    control = AdmissionControl(max_prompt_tokens=10)
    with pytest.raises(BadRequest, match="the prompt has 11 tokens; this server takes 10"):
        control.admit(11)
    assert state(control) == (0, 0) and control.num_refused == 0


def test_a_correction_holds_the_same_bounds():
    control = AdmissionControl(max_prompt_tokens=10)
    first, second = control.admit(5), control.admit(2)
    control.correct(second, 5)
    assert state(control) == (2, 10)
    control.correct(second, 3)
    with pytest.raises(Overloaded):
        control.correct(first, 8)
    with pytest.raises(BadRequest):
        control.correct(first, 11)
    assert state(control) == (2, 8)
    control.release(first)
    control.release(second)
    assert state(control) == (0, 0)


def test_retry_after_follows_the_recent_rate():
    clock = Clock()
    control = AdmissionControl(max_requests=4, clock=clock)
    waiting = [control.admit(10) for _ in range(4)]
    for _ in range(20):  # two ends a second
        clock.now += 0.5
        control.release(waiting.pop())
        waiting.append(control.admit(10))
    with pytest.raises(Overloaded) as refused:
        control.admit(10)
    assert refused.value.retry_after == pytest.approx(9.5 / 20)
    clock.now += 30  # nothing ends any more
    assert control.retry_after(1, 0) == pytest.approx(39.5 / 20)
    clock.now += 1e6
    assert control.retry_after(1, 0) == 60.0
    clock.now -= 2e6  # set back
    assert control.retry_after(1, 0) == 0.1


def test_retry_after_counts_prompt_tokens_too():
    clock = Clock()
    control = AdmissionControl(max_requests=None, max_prompt_tokens=100, clock=clock)
    for _ in range(5):
        clock.now += 1
        control.release(control.admit(20))
    assert control.retry_after(0, 50) == pytest.approx(4 * 50 / 100)


def test_one_request_says_nothing_about_the_rate():
    clock = Clock()
    control = AdmissionControl(clock=clock)
    control.release(control.admit(1))
    clock.now += 30
    assert control.retry_after(1, 0) == 1.0
    control.release(control.admit(1))
    assert control.retry_after(1, 0) == 15.0


def test_aborted_requests_say_nothing_about_the_rate():
    control = AdmissionControl()
    for _ in range(10):
        control.release(control.admit(1), was_served=False)
    assert control.retry_after(1, 1) == 1.0


def test_random_requests_against_a_recount():
    for seed in range(30):
        chance = random.Random(seed)
        limit, tokens = chance.randrange(1, 8), chance.randrange(5, 40)
        control, inside = AdmissionControl(limit, tokens), []
        for _ in range(200):
            size = chance.randrange(1, 12)
            fits = len(inside) < limit and sum(each.num_prompt_tokens for each in inside) + size <= tokens
            try:
                inside.append(control.admit(size))
                assert fits
            except (Overloaded, BadRequest):
                assert not fits
            if inside and chance.random() < 0.5:
                control.release(inside.pop(chance.randrange(len(inside))))
            assert state(control) == (len(inside), sum(each.num_prompt_tokens for each in inside))


@pytest.mark.parametrize("name", ["max_requests", "max_prompt_tokens"])
def test_a_limit_below_one_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
        AdmissionControl(**{name: 0})


def test_the_error_survives_pickling():
    again = pickle.loads(pickle.dumps(Overloaded("full", 2.5)))
    assert str(again) == "full" and again.retry_after == 2.5
