"""Sampling: what may be drawn with which probability, what is drawn by which number, and what is refused."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.engine.logprobs import token_logprobs
from lessons_lib.engine.plain_sampling import draw, token_probabilities
from lessons_lib.engine.sampling import NO_TOKEN, choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.validate import BadRequest

numbers = st.floats(-20, 20, width=32)
settings_of_a_row = st.tuples(
    st.sampled_from([0.05, 0.3, 1.0, 1.7, 5.0]), st.integers(1, 9), st.sampled_from([1e-6, 0.2, 0.5, 0.9, 0.999, 1.0])
)
few = settings(max_examples=150, deadline=None)


def sample(*arguments):
    return choose_tokens(*arguments).tolist()


def batches(vocabulary):
    """Some rows of logits, each with its rules."""
    return st.lists(
        st.tuples(st.lists(numbers, min_size=vocabulary, max_size=vocabulary), settings_of_a_row),
        min_size=1,
        max_size=4,
    )


def brute_force(logits, temperature, top_k, top_p):
    """token -> probability, with lists: sort, keep the first k, soften, keep what reaches p, scale to 1."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:top_k]
    weights = [math.exp((logits[token] - logits[order[0]]) / temperature) for token in order]
    total, so_far, kept = sum(weights), 0.0, {}
    for token, weight in zip(order, weights):
        if so_far / total >= top_p and kept:
            break
        kept[token] = weight
        so_far += weight
    return {token: weight / sum(kept.values()) for token, weight in kept.items()}


def probabilities_of(rows, rules):
    """`token_probabilities` of lists."""
    temperature, top_k, top_p = (torch.tensor(column, dtype=torch.float64) for column in zip(*rules))
    return token_probabilities(torch.tensor(rows), temperature, top_k, top_p)


@few
@given(st.integers(2, 8).flatmap(batches))
def test_probabilities_are_those_of_a_list_of_every_row(batch):
    rows, rules = zip(*batch)
    probabilities, tokens = probabilities_of(rows, rules)
    assert probabilities.shape == tokens.shape == (len(rows), len(rows[0]))
    for row, (logits, rule) in enumerate(batch):
        assert sorted(tokens[row].tolist()) == list(range(len(logits)))
        assert [logits[token] for token in tokens[row]] == sorted(logits, reverse=True)
        found = {
            token: share for token, share in zip(tokens[row].tolist(), probabilities[row].tolist()) if share > 1e-12
        }
        expected = {token: share for token, share in brute_force(logits, *rule).items() if share > 1e-12}
        if found.keys() != expected.keys():  # a sum that reaches top_p to the last bit may go either way
            assert (
                abs(
                    sum(brute_force(logits, *rule[:2], 1.0)[token] for token in found.keys() & expected.keys())
                    - rule[2]
                )
                < 1e-9
            )
        else:
            assert found == pytest.approx(expected, abs=1e-9)
        assert sum(found.values()) == pytest.approx(1)


def test_logits_stay_as_they_are():
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    token_probabilities(logits, torch.tensor([0.5]), torch.tensor([2]), torch.tensor([0.5]))
    assert logits.tolist() == [[1.0, 3.0, 2.0]]


def test_top_p_is_of_what_top_k_left():
    logits = [math.log(share) for share in (0.4, 0.3, 0.2, 0.1)]
    probabilities, _ = probabilities_of([logits], [(1.0, 2, 0.55)])
    assert probabilities.tolist()[0] == pytest.approx([1, 0, 0, 0]), "0.4 of the first two's 0.7 is more than 0.55"
    probabilities, _ = probabilities_of([logits], [(1.0, 4, 0.55)])
    assert probabilities.tolist()[0] == pytest.approx([4 / 7, 3 / 7, 0, 0]), "the one that reaches it belongs to them"


def test_one_hundred_percent_is_all_of_them():
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)) * 12
    probabilities, _ = token_probabilities(logits, torch.ones(3), torch.full((3,), 500), torch.ones(3))
    # A likelier token's sum may round to 1; what is left out then is nothing.
    assert torch.allclose(probabilities, logits.double().softmax(-1).sort(-1, descending=True).values, atol=1e-12)


def test_every_number_draws_its_token():
    """The share of the numbers that draw a token is the token's probability: counted on a fine comb of numbers."""
    probabilities = torch.tensor([[0.5, 0.25, 0.125, 0.125, 0.0]], dtype=torch.float64)
    tokens = torch.tensor([[3, 0, 4, 1, 2]])
    comb = torch.arange(1024) / 1024
    drawn = draw(probabilities.expand(1024, -1), tokens.expand(1024, -1), comb.double())
    assert drawn.dtype == torch.int64 and drawn.shape == (1024,)
    assert Counter(drawn.tolist()) == {3: 512, 0: 256, 4: 128, 1: 128}
    assert drawn.tolist() == sorted(drawn.tolist(), key=[3, 0, 4, 1, 2].index)


@few
@given(st.lists(st.integers(0, 6), min_size=2, max_size=7).filter(any), st.data())
def test_what_has_no_probability_is_never_drawn(weights, data):
    weights = sorted(weights, reverse=True)
    total = sum(weights)
    probabilities = torch.tensor([[weight / total for weight in weights]], dtype=torch.float64)
    number = data.draw(
        st.sampled_from([0.0, 1 - 2**-53, *(sum(weights[:index]) / total for index in range(len(weights)))])
    )
    number = min(number, 1 - 2**-53)
    (token,) = draw(
        probabilities, torch.arange(len(weights))[None], torch.tensor([number], dtype=torch.float64)
    ).tolist()
    assert weights[token] > 0
    assert sum(weights[:token]) / total <= number + 1e-12 and number - 1e-12 <= sum(weights[: token + 1]) / total


def test_a_sum_that_stops_short_of_one_ends_at_the_last_that_can_be_drawn():
    probabilities = torch.tensor([[0.6, 0.4 - 1e-9, 0.0]], dtype=torch.float64)
    assert draw(probabilities, torch.tensor([[7, 5, 6]]), torch.tensor([1 - 1e-12], dtype=torch.float64)).tolist() == [
        5
    ]


def test_greedy_is_possible_beside_others():
    """A fault of real engines: temperature 0 was divided by."""
    logits = torch.tensor([[0.1, 9.0, 0.3], [5.0, 1.0, 5.5], [0.0, 0.0, 1.0]])
    hot = SamplingParams(temperature=3.0)
    for seed in range(20):
        tokens = sample(logits, [SamplingParams(), hot, SamplingParams()], [seed] * 3, [0] * 3)
        assert tokens[0] == 1 and tokens[2] == 2
    assert {
        sample(logits, [SamplingParams(), hot, SamplingParams()], [seed] * 3, [0] * 3)[1] for seed in range(60)
    } == {0, 1, 2}


@few
@given(st.permutations(range(5)), st.integers(0, 2**63 - 1), st.integers(0, 300))
def test_a_row_is_drawn_by_its_own_rules_whoever_is_beside_it(order, seed, position):
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(seed % 1000)) * 3
    hot = [(1.0, 0, 1.0), (2.5, 3, 1.0), (0.7, 0, 0.3), (4.0, 7, 0.9)]
    rules = [
        SamplingParams(),
        *(SamplingParams(temperature=temperature, top_k=k, top_p=p) for temperature, k, p in hot),
    ]
    seeds, positions = [seed + row for row in range(5)], [position + row for row in range(5)]
    together = sample(logits[list(order)], *([column[row] for row in order] for column in (rules, seeds, positions)))
    alone = [sample(logits[row : row + 1], [rules[row]], [seeds[row]], [positions[row]])[0] for row in order]
    assert together == alone
    for row, token in zip(order, together):
        allowed = (
            logits[row].topk(rules[row].top_k or 40).indices.tolist()
            if rules[row].temperature
            else [int(logits[row].argmax())]
        )
        assert token in allowed


def test_samples_follow_the_probabilities():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    params = SamplingParams(temperature=1.5, top_k=3)
    counts = Counter(sample(logits.expand(3000, -1), [params] * 3000, range(3000), [seed % 7 for seed in range(3000)]))
    expected = brute_force(logits[0].tolist(), 1.5, 3, 1.0)
    assert counts.keys() == expected.keys()
    for token, share in expected.items():
        assert abs(counts[token] / 3000 - share) < 4 * math.sqrt(share * (1 - share) / 3000)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_no_number_is_said_and_stops_nobody_else(bad):
    logits = torch.tensor([[1.0, 2.0, 0.0], [1.0, 0.5, 0.0], [3.0, 2.0, 0.0]])
    logits[1] = bad if bad != float("nan") else torch.tensor([0.0, float("nan"), 0.0])
    hot = SamplingParams(temperature=1.0, top_k=1)
    for params in (SamplingParams(), hot):
        assert sample(logits, [params, params, hot], [0, 0, 0], [0, 0, 0]) == [1, NO_TOKEN, 0]


def test_one_token_at_minus_infinity_is_only_never_drawn():
    logits = torch.tensor([[float("-inf"), 0.0, 0.0]])
    assert {sample(logits, [SamplingParams(temperature=2.0)], [seed], [0])[0] for seed in range(40)} == {1, 2}


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 1e6, 1e300])
def test_extreme_temperatures_are_numbers(temperature):
    logits = torch.tensor([[3e4, -3e4, 2.9e4]])
    tokens = {sample(logits, [SamplingParams(temperature=temperature)], [seed], [0])[0] for seed in range(60)}
    assert tokens == {0} if temperature < 1 else {0, 1, 2}


def test_logprobs_are_the_models_own():
    logits = torch.tensor([1.0, 3.0, 2.0, 0.0])
    logprobs = logits.log_softmax(-1).tolist()
    found = token_logprobs(logits, 3, 2)
    assert found.token == 3 and found.logprob == pytest.approx(logprobs[3])
    assert [token for token, _ in found.top] == [1, 2]
    assert [value for _, value in found.top] == pytest.approx([logprobs[1], logprobs[2]])
    assert token_logprobs(logits, 0, 0).top == ()
    assert len(token_logprobs(logits, 0, 99).top) == 4


NAN = float("nan")


@pytest.mark.parametrize(
    "name, value",
    [
        *(("max_tokens", value) for value in (0, -1, 2.5, "4")),
        *(("temperature", value) for value in (-0.1, NAN, float("inf"), 1e-9)),
        *(("top_k", value) for value in (-2, 1.5, NAN)),
        *(("top_p", value) for value in (0, -0.5, 1.01, NAN)),
        *(("seed", value) for value in ("s", 1.5)),
        *(("stop", value) for value in ("", ("a", ""), (5,))),
        *(("stop_token_ids", value) for value in (5, ("a",), (1.5,))),
        *(("logprobs", value) for value in (-2, 0.5)),
        *(("n", value) for value in (0, -2, 1.5)),
    ],
)
def test_a_value_out_of_range_is_refused(name, value):
    with pytest.raises(BadRequest, match=rf"^{name} is .*; it must be .+\.$"):
        SamplingParams(**{name: value})


def test_values_at_the_edge_are_taken():
    SamplingParams(max_tokens=None, temperature=0, top_k=0, top_p=1, seed=-3, stop=(), logprobs=0, n=1)
    SamplingParams(max_tokens=1, temperature=1e-5, top_k=10**9, top_p=1e-9, seed=2**70, stop_token_ids=[1, 2])
    assert SamplingParams(stop="end").stop == ("end",)
