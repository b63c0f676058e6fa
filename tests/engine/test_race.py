"""The race for a token: its numbers, what it may draw, how often, and that nothing else in the batch matters."""

import math
import pickle

import pytest
import race_oracle
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lessons_lib.engine import sampling as race
from lessons_lib.engine.logprobs import FlatLogprobs, TokenLogprobs
from lessons_lib.engine.sampling import NO_TOKEN, choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.stateless_random import STEP, mixed, random_numbers
from lessons_lib.engine.step_logprobs import logprobs_table

few = settings(max_examples=40, deadline=None)
NUM_DRAWS = 100_000

rules = st.builds(
    SamplingParams,
    temperature=st.sampled_from([1e-5, 1e-3, 0.3, 0.8, 1.0, 2.5, 100.0, 1e300]),
    top_k=st.sampled_from([0, 1, 2, 3, 7, 10**30]),
    top_p=st.sampled_from([1e-300, 1e-6, 0.25, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 1e-300, 0.01, 0.3, 1.0]),
)
seeds = st.integers(-(2**70), 2**70)


def rows_of_logits(num_rows, vocabulary):
    """Some with many that are equal, some with -inf; never all."""
    value = st.one_of(st.integers(-4, 4).map(float), st.floats(-20, 20, width=32), st.just(-math.inf))
    row = st.lists(value, min_size=vocabulary, max_size=vocabulary).filter(lambda row: max(row) > -math.inf)
    return st.lists(row, min_size=num_rows, max_size=num_rows)


def choose(logits, params, seeds, positions):
    return choose_tokens(logits, params, seeds, positions).tolist()


def chance_of(counts, expected):
    """The probability that the counts of draws are at least this far from the expected ones: Pearson's chi-square.

    Tokens that are expected less than 10 times count as one.
    """
    often = expected >= 10
    found = torch.cat([counts[often], counts[~often].sum()[None]]).double()
    wanted = torch.cat([expected[often], expected[~often].sum()[None]]).double()
    found, wanted = found[wanted > 0], wanted[wanted > 0]
    distance = ((found - wanted) ** 2 / wanted).sum()
    return float(torch.special.gammaincc(torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64), distance / 2))


# --- random numbers


@given(seeds, st.integers(0, 2**40), st.lists(st.integers(0, 10**7), min_size=1, max_size=5))
@few
def test_numbers_are_those_of_splitmix(seed, position, tokens):
    seed_on_device = race.settings_table([0], [SamplingParams(temperature=1)], [seed], [position], 9)[0, 1]
    found = random_numbers(seed_on_device, torch.tensor(position), torch.tensor(tokens))
    expected = [race_oracle.number(seed, position, token) for token in tokens]
    assert found.tolist() == pytest.approx(expected, rel=2**-23, abs=0)


def test_splitmix_is_the_published_one():
    """The first numbers of the generator whose state is 1234567, as the authors' C program prints them."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    steps = torch.arange(4) * STEP + 1234567
    assert [number % 2**64 for number in mixed(steps).tolist()] == expected
    assert [race_oracle.splitmix((1234567 + step * 0x9E3779B97F4A7C15) % 2**64) for step in range(4)] == expected


@pytest.mark.parametrize("varied", ["seeds", "positions", "tokens", "all"])
def test_numbers_are_even_and_independent_along_every_argument(varied):
    many, one = torch.arange(-500, NUM_DRAWS - 500), torch.tensor(3)
    seeds, positions, tokens = (many if varied in (name, "all") else one for name in ("seeds", "positions", "tokens"))
    numbers = random_numbers(seeds, positions.abs(), tokens.abs())
    assert numbers.min() > 0 and numbers.max() < 1
    expected = torch.full((100,), NUM_DRAWS / 100)
    assert chance_of((numbers * 100).long().bincount(minlength=100), expected) > 1e-4
    neighbors = (numbers[1:] * 10).long() * 10 + (numbers[:-1] * 10).long()
    assert chance_of(neighbors.bincount(minlength=100), expected * (1 - 1 / NUM_DRAWS)) > 1e-4


def test_times_are_exponential_down_to_the_smallest():
    numbers = torch.tensor([2.0**-33, 1e-6, 0.01, 0.5, 0.9, 1 - 2**-24])
    expected = [-math.log1p(-number) for number in numbers.tolist()]
    assert race.times(numbers).tolist() == pytest.approx(expected, rel=1e-6)
    assert numbers[0] == 2.0**-33, "the argument stays as it is"


# --- what may be drawn


@few
@given(st.integers(1, 24).flatmap(lambda vocabulary: rows_of_logits(1, vocabulary)), rules)
def test_what_may_be_drawn_is_what_a_sorted_list_leaves(rows, params):
    expected = race_oracle.kept(rows[0], params)
    for token in race_oracle.kept_by_the_race(torch.tensor(rows[0]), params):
        assert expected.pop(token) > 0
    assert max(expected.values(), default=0) < race_oracle.LEAST


def by_hugging_face(logits, params):
    """The probabilities of a token, after the processors of `generate`, in vLLM's order."""
    processors = [TemperatureLogitsWarper(params.temperature)]
    processors += [MinPLogitsWarper(params.min_p)] if params.min_p else []
    processors += [TopKLogitsWarper(params.top_k)] if params.top_k else []
    processors += [TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []
    for processor in processors:
        logits = processor(None, logits)
    return logits.softmax(-1)


def test_of_equal_tokens_exactly_top_k_stay_and_smaller_ids_first():
    def kept(logits, **cuts):
        return race_oracle.kept_by_the_race(torch.tensor(logits), SamplingParams(temperature=1.0, **cuts))

    for top_k, expected in ((1, [1]), (2, [0, 1]), (3, [0, 1, 2]), (5, [0, 1, 2, 3, 5]), (6, [*range(6)])):
        assert kept([1.0, 2.0, 1.0, 1.0, 0.0, 1.0], top_k=top_k) == expected
    assert kept([0.0] * 8, top_p=0.5) == [0, 1, 2, 3] and kept([0.0] * 8, top_k=6, top_p=0.5) == [0, 1, 2]


# --- how often


@pytest.mark.parametrize("cuts", [dict(), dict(top_k=20, top_p=0.7), dict(min_p=0.1)], ids=str)
def test_draws_have_the_distribution_of_hugging_face(cuts):
    params = SamplingParams(temperature=1.5, **cuts)
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(5)) * 1.5
    expected = by_hugging_face(logits, params)[0].double() * NUM_DRAWS
    seeds, positions = ([draw // 1000 for draw in range(NUM_DRAWS)], [draw % 1000 for draw in range(NUM_DRAWS)])
    tokens = choose_tokens(logits.expand(NUM_DRAWS, -1), [params] * NUM_DRAWS, seeds, positions)
    counts = tokens.bincount(minlength=40)
    assert not counts[expected == 0].any()
    assert chance_of(counts, expected) > 1e-4


# --- in any company


@few
@given(st.data(), st.integers(1, 40), st.integers(1, 6))
def test_a_row_has_its_token_in_any_company(data, vocabulary, num_rows):
    rows = data.draw(rows_of_logits(num_rows, vocabulary))
    params = [data.draw(st.one_of(rules, st.just(SamplingParams()))) for _ in rows]
    own_seeds, positions = [data.draw(seeds) for _ in rows], [data.draw(st.integers(0, 500)) for _ in rows]
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    logits = torch.tensor(rows).to(dtype)
    alone = [choose(logits[i : i + 1], [params[i]], [own_seeds[i]], [positions[i]])[0] for i in range(num_rows)]
    company = data.draw(st.lists(st.sampled_from(range(num_rows)), max_size=2 * num_rows))
    columns = ([column[i] for i in company] for column in (params, own_seeds, positions))
    assert choose(logits[company], *columns) == [alone[i] for i in company]
    for i, token in enumerate(alone):
        assert token == race_oracle.drawn(logits[i].tolist(), params[i], own_seeds[i], positions[i])


def test_rows_are_drawn_a_few_at_a_time(monkeypatch):
    logits = torch.randn(23, 30, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=1.0, top_k=row % 5, top_p=[1.0, 0.8][row % 2]) for row in range(23)]
    before, together = logits.clone(), choose(logits, params, range(23), [4] * 23)
    assert torch.equal(logits, before), "the argument stays as it is"
    sizes, winners = [], race.winners
    monkeypatch.setattr(race, "winners", lambda logits, *rest: sizes.append(len(logits)) or winners(logits, *rest))
    for limit, most in ((1, 1), (90, 3), (10**6, 23)):
        monkeypatch.setattr(race, "NUM_LOGITS_AT_ONCE", limit)
        sizes.clear()
        assert choose(logits, params, range(23), [4] * 23) == together
        assert max(sizes) == most and sum(sizes) == 23


# --- the edges


def test_no_rows_and_rows_of_one_token():
    params = [SamplingParams(temperature=1.0, top_k=3, top_p=0.1)] * 2
    assert choose(torch.zeros(0, 5), [], [], []) == [] and choose(torch.zeros(2, 1), params, [1, 2], [0, 0]) == [0, 0]


# --- log-probabilities


def test_logprobs_are_the_models_own():
    logits = torch.tensor([1.0, 3.0, 2.0, 0.0])
    logprobs = logits.log_softmax(-1).tolist()

    def found_of(token, count):
        return TokenLogprobs.of(logprobs_table(logits[None], torch.tensor([token]), count).numpy().tobytes())

    found = found_of(3, 2)
    assert (found.token, found.rank, found.logprob) == (3, 4, pytest.approx(logprobs[3]))
    assert found.top == tuple((token, pytest.approx(logprobs[token])) for token in (1, 2))
    assert [len(found_of(0, count).top) for count in (0, 99, -1)] == [0, 4, 4]


@pytest.mark.parametrize("vocabulary", [1, 127, 128, 1000, 1024, 1025])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_of_many_rows(monkeypatch, vocabulary, dtype):
    monkeypatch.setattr("lessons_lib.engine.step_logprobs.NUM_LOGITS_AT_ONCE", 3 * vocabulary)
    logits = torch.randn(7, vocabulary, generator=torch.Generator().manual_seed(0)).to(dtype)
    tokens, expected = torch.arange(7) % vocabulary, logits.float().log_softmax(-1)
    for count in (0, 1, 5, 200, -1):
        num = vocabulary if count < 0 else min(count, vocabulary)
        table = logprobs_table(logits, tokens, count)
        assert table[:, 0].tolist() == tokens.tolist() and table.shape == (7, 3 + 2 * num)
        own = expected.gather(1, tokens[:, None])
        torch.testing.assert_close(table[:, 1:2].float(), own)
        assert table[:, 2].tolist() == ((logits > logits.gather(1, tokens[:, None])).sum(1) + 1).tolist()
        torch.testing.assert_close(table[:, 3 : 3 + num].float(), expected.topk(num).values)
        ids = table[:, 3 + num :].long()
        torch.testing.assert_close(table[:, 3 : 3 + num].float(), expected.gather(1, ids))
        assert all(len(set(row)) == num for row in ids.tolist())


def test_flat_logprobs_are_a_list():
    rows = [logprobs_table(torch.randn(1, 9), torch.tensor([token]), 2).numpy().tobytes() for token in range(5)]
    flat, objects = FlatLogprobs(rows), [TokenLogprobs.of(row) for row in rows]
    assert flat == objects and [*flat] == objects and flat[1:3] == objects[1:3] and flat[-1] == objects[-1]
    assert (
        len(flat) == 5 and flat != objects[:4] and not FlatLogprobs() and [each.token for each in flat] == [*range(5)]
    )
    assert pickle.loads(pickle.dumps(flat)) == flat


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("cut", [dict(), dict(top_k=2), dict(top_p=0.5), dict(top_k=2, top_p=0.5), dict(min_p=0.5)])
def test_rows_that_are_no_numbers_end_and_change_no_others(bad, cut):
    params = [SamplingParams(temperature=1.0, **cut)] * 3
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(4))
    expected = choose(logits, params, [1, 2, 3], [0] * 3)
    logits[1] = bad
    assert choose(logits, params, [1, 2, 3], [0] * 3) == [expected[0], NO_TOKEN, expected[2]]
