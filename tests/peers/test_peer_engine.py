"""What the engines, samplers and detokenizers of other projects are tested for, asked of this one."""

import gc
import weakref
from itertools import pairwise

import pytest
import torch
from engine_cases import (
    KINDS,
    alone,
    an_engine,
    check_that_nothing_is_left,
    engine_of_kind,
    greedy,
    letter,
    run_out,
)

from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.engine.detokenizer import IncrementalDetokenizer
from lessons_lib.engine.logprobs import rows_of_logprobs
from lessons_lib.engine.plain_sampling import token_probabilities
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.models.validate import BadRequest

PROMPT = [5, 6, 7]


@pytest.fixture(params=KINDS)
def make_engine(request):
    """function (**config) -> an engine of either kind."""
    sizes = dict(max_num_seqs=8, max_num_batched_tokens=32, block_size=4, num_blocks=150)
    return lambda **config: engine_of_kind(request.param, **sizes | config)


def finish(engine):
    """Steps until no request is left. Returns id -> output."""
    outputs = {}
    while engine.has_unfinished():
        outputs |= {output.request_id: output for output in engine.step()}
    return outputs


def counts(engine):
    return len(engine.scheduler.waiting), len(engine.scheduler.running)


# Requests come and go


def test_requests_wait_until_the_next_step_and_run_until_they_end():
    engine = an_engine()
    for before, after in (((1, 0), (0, 1)), ((1, 1), (0, 2))):
        engine.add_request(PROMPT, greedy(9, ignore_eos=True))
        assert counts(engine) == before and engine.has_unfinished()
        engine.step()
        assert counts(engine) == after
    for _ in range(2):
        engine.add_request(PROMPT, greedy(9, ignore_eos=True))
    assert counts(engine) == (2, 2)
    engine.step()
    assert counts(engine) == (0, 4)
    assert len(run_out(engine)) == 4 and counts(engine) == (0, 0) and not engine.has_unfinished()


def test_aborts_one_by_one_leave_the_others_running(make_engine):
    engine = make_engine()
    names = [engine.add_request([n + 1, n + 2], greedy(12, ignore_eos=True)) for n in range(4)]
    engine.step()
    for left, name in zip((3, 2), names[1:3]):
        engine.abort(name)
        assert list(engine.requests) == [each for each in names if each in engine.requests]
        assert len(engine.requests) == left
        engine.step()
    outputs = finish(engine)
    assert set(outputs) == {names[0], names[3]}
    assert outputs[names[3]].token_ids == alone("qwen2", [4, 5], 12, ignore_eos=True)
    assert counts(engine) == (0, 0) and not engine.scheduler.pool.used


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_an_aborted_request_s_output_stays_as_it_was_handed_over(make_engine, after):
    """Also if a step was in flight, and if the id is used again."""
    engine = make_engine()
    name = engine.add_request(PROMPT, greedy(20, ignore_eos=True), request_id="again")
    other = engine.add_request([9, 9], greedy(12, ignore_eos=True))
    for _ in range(after):
        engine.step()
    output = engine.abort(name)
    tokens, text = list(output.token_ids), output.text
    assert output.finish_reason == "abort" and text == "".join(map(letter, tokens))
    assert tokens == alone("qwen2", PROMPT, 20, ignore_eos=True)[: len(tokens)]
    engine.add_request([1, 2], greedy(4, ignore_eos=True), request_id="again")
    outputs = finish(engine)
    assert (output.token_ids, output.text, output.finish_reason) == (tokens, text, "abort")
    assert outputs["again"].token_ids == alone("qwen2", [1, 2], 4, ignore_eos=True) and other in outputs


def test_each_request_ends_once_with_a_reason(make_engine):
    engine, ends, told = make_engine(), [], {}
    for n in range(12):
        name = str(n)
        told[name] = []
        engine.add_request([n, n + 1], greedy(n + 1), request_id=name, on_token=told[name].append)
    while engine.has_unfinished():
        ends += engine.step()
    assert sorted(int(output.request_id) for output in ends) == list(range(12))
    for output in ends:
        reasons = [token.finish_reason for token in told[output.request_id]]
        assert reasons == [None] * (len(reasons) - 1) + [output.finish_reason]
        assert output.finish_reason in ("stop", "length")


@pytest.mark.parametrize("count", [1, 8, 40])
def test_more_requests_than_batch_slots_all_get_their_own_answers(make_engine, count):
    prompts = [[n % 90, (7 * n) % 90, n % 5] for n in range(count)]
    outputs = make_engine(max_num_seqs=4, max_num_batched_tokens=8).generate(prompts, greedy(6))
    assert [output.prompt_ids for output in outputs] == prompts
    assert [output.token_ids for output in outputs] == [alone("qwen2", prompt, 6) for prompt in prompts]


def test_a_request_that_comes_while_another_is_streamed_is_served_along(make_engine):
    engine = make_engine()
    streamed = engine.stream(PROMPT, greedy(8, ignore_eos=True))
    first = next(streamed)
    late = engine.add_request([9, 9], greedy(3, ignore_eos=True))
    tokens = [first.token, *(token.token for token in streamed)]
    assert tokens == alone("qwen2", PROMPT, 8, ignore_eos=True)
    assert finish(engine)[late].token_ids == alone("qwen2", [9, 9], 3, ignore_eos=True)


def test_an_engine_that_is_no_longer_used_is_freed():
    engine = an_engine()
    engine.generate([PROMPT], greedy(3))
    cache = weakref.ref(engine.runner.cache.keys[0])
    seen = weakref.ref(engine)
    engine.close()
    del engine
    gc.collect()
    assert seen() is None and cache() is None


def test_a_long_answer_is_that_of_generate(make_engine):
    (output,) = make_engine(num_blocks=150).generate([PROMPT], greedy(40, ignore_eos=True))
    assert output.token_ids == alone("qwen2", PROMPT, 40, ignore_eos=True)


def test_weights_changed_in_place_count_from_the_next_request_on(make_engine):
    """Cached blocks hold keys and values of the old weights, so nothing is shared here."""
    engine = make_engine(share_prefixes=False)
    weight = engine.model.lm_head.weight
    (before,) = engine.generate([PROMPT], greedy(8, ignore_eos=True))
    with torch.no_grad():
        weight.neg_()
    try:
        (changed,) = engine.generate([PROMPT], greedy(8, ignore_eos=True))
        likeliest = int(engine.model(torch.tensor([PROMPT])).logits[0, -1].argmax())
    finally:
        with torch.no_grad():
            weight.neg_()
    (after,) = engine.generate([PROMPT], greedy(8, ignore_eos=True))
    assert before.token_ids == after.token_ids != changed.token_ids and changed.token_ids[0] == likeliest


@pytest.mark.parametrize("share_prefixes", [False, True])
def test_the_same_prompt_several_times_in_too_small_a_pool(make_engine, share_prefixes):
    """Half as many blocks as all of them together need."""
    prompt = list(range(20, 33))
    engine = make_engine(num_blocks=14, max_num_seqs=4, share_prefixes=share_prefixes)
    outputs = engine.generate([prompt] * 4, greedy(20, ignore_eos=True))
    expected = alone("qwen2", prompt, 20, ignore_eos=True)
    assert [output.token_ids for output in outputs] == [expected] * 4
    assert engine.scheduler.num_preempted


def test_a_conversation_s_next_turn_is_found_in_the_cache(make_engine):
    engine = make_engine()
    prompt = list(range(30, 41))
    (first,) = engine.generate([prompt], greedy(14, ignore_eos=True))
    next_turn = [*prompt, *first.token_ids, 3, 4]
    before = engine.metrics.cached_tokens
    (second,) = engine.generate([next_turn], greedy(5, ignore_eos=True))
    assert engine.metrics.cached_tokens - before == (len(prompt) + 14 - 1) // 4 * 4
    assert second.token_ids == alone("qwen2", next_turn, 5, ignore_eos=True)


@pytest.mark.parametrize("interval", [1, 3])
def test_a_stream_under_preemption_has_each_token_once(interval):
    engine = an_engine(num_blocks=14, max_num_seqs=4)
    told = {}
    for n in range(4):
        prompt = [n + 1] * 9
        engine.add_request(
            prompt, greedy(18, ignore_eos=True), request_id=str(n), on_token=told.setdefault(n, []).append
        )
        for _ in range(interval):
            engine.step()
    run_out(engine)
    assert engine.scheduler.num_preempted
    for n, tokens in told.items():
        assert [token.token for token in tokens] == alone("qwen2", [n + 1] * 9, 18, ignore_eos=True)
        assert "".join(token.text for token in tokens) == "".join(letter(token.token) for token in tokens)


def test_streamed_and_unstreamed_requests_take_turns():
    engine = an_engine()
    for _ in range(2):
        (output,) = engine.generate([PROMPT], greedy(3, ignore_eos=True))
        streamed = [token.token for token in engine.stream(PROMPT, greedy(3, ignore_eos=True))]
        assert output.token_ids == streamed == alone("qwen2", PROMPT, 3, ignore_eos=True)
    check_that_nothing_is_left(engine)


def test_prompt_and_new_tokens_of_each_step_are_counted():
    """Prompts of 3 and 5 tokens, a step of decoding, and another prompt of 4 beside two decodes."""
    engine = an_engine()
    for length in (3, 5):
        engine.add_request([length] * length, greedy(9, ignore_eos=True))
    engine.step(), engine.step()
    engine.add_request([4] * 4, greedy(9, ignore_eos=True))
    engine.step(), engine.step()
    assert [(step.tokens, step.new_tokens, step.running) for step in engine.metrics.recent] == [
        (8, 2, 2), (2, 2, 2), (6, 3, 3), (3, 3, 3),
    ]  # fmt: skip


# Refused


@pytest.mark.parametrize(
    "prompt, params",
    [([], None), ([1] * 300, None), ([97], None), ([1] * 250, greedy(10))],
    ids=["empty", "too long", "outside the vocabulary", "no room"],
)
def test_a_bad_request_costs_the_others_nothing(make_engine, prompt, params):
    engine = make_engine()
    good = engine.add_request(PROMPT, greedy(6, ignore_eos=True))
    engine.step()
    with pytest.raises(BadRequest):
        engine.add_request(prompt, params)
    outputs = finish(engine)
    assert outputs.keys() == {good} and outputs[good].token_ids == alone("qwen2", PROMPT, 6, ignore_eos=True)


# Sampling


def test_several_greedy_completions_are_all_the_same():
    for share_prefixes in (False, True):
        (output,) = an_engine(share_prefixes=share_prefixes).generate([PROMPT], greedy(9, n=3))
        assert [completion.token_ids for completion in output.completions] == [alone("qwen2", PROMPT, 9)] * 3


@pytest.mark.parametrize("temperature", [0.1, 1.0, 30.0])
def test_the_one_likeliest_token_is_greedy_at_any_temperature(temperature):
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(1))
    params = [SamplingParams(temperature=temperature, top_k=1)] * 3 + [
        SamplingParams(temperature=temperature, top_p=1e-9)
    ] * 3
    assert choose_tokens(logits, params, range(6), range(6)).tolist() == logits.argmax(-1).tolist()


def test_top_k_alone_is_top_k_with_a_top_p_of_one():
    """And a top_k as large as the vocabulary is none."""
    logits = torch.rand(64, 128, generator=torch.Generator().manual_seed(33))
    top_k = torch.arange(64) % 9 + 1
    top_k[::2] = 128
    ones = torch.ones(64)
    probabilities, tokens = token_probabilities(logits, ones, top_k, ones)
    for row, k in enumerate(top_k.tolist()):
        values, indices = logits[row].double().topk(k)
        assert tokens[row, :k].tolist() == indices.tolist() and not probabilities[row, k:].any()
        torch.testing.assert_close(probabilities[row, :k], values.softmax(-1))


def test_every_request_has_its_own_temperature_and_cuts(make_engine):
    rules = [
        greedy(8, ignore_eos=True),
        *(
            SamplingParams(max_tokens=8, temperature=heat, top_k=k, top_p=p, seed=4, ignore_eos=True)
            for heat, k, p in ((1.0, 10, 0.9), (1.0, 50, 0.99), (3.0, 0, 1.0))
        ),
    ]
    together = [output.token_ids for output in make_engine().generate([PROMPT] * 4, rules)]
    assert together == [an_engine().generate([PROMPT], rule)[0].token_ids for rule in rules]
    assert len(set(map(tuple, together))) > 2


@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_as_many_log_probabilities_as_were_asked_for(count):
    (output,) = an_engine().generate([PROMPT], greedy(5, ignore_eos=True, logprobs=count))
    (completion,) = output.completions
    assert [each.token for each in completion.logprobs] == completion.token_ids
    for each in completion.logprobs:
        assert len(each.top) == count and each.logprob <= 0
        values = [value for _, value in each.top]
        assert values == sorted(values, reverse=True)
        if count:
            assert each.top[0] == (each.token, each.logprob), "greedy: the chosen token is the likeliest"


@pytest.mark.parametrize("count", [2, 3, 99])
def test_log_probabilities_are_those_before_temperature_and_cuts(count):
    """As many as there are tokens, at most."""
    logits = torch.tensor([2.0, 1.0, 0.0])
    expected = logits.log_softmax(-1).tolist()
    for token in range(3):
        (found,) = rows_of_logprobs(logits[None], [token], count)
        assert found.logprob == pytest.approx(expected[token])
        assert found.top == tuple(pytest.approx((n, expected[n])) for n in range(min(count, 3)))


# Text


class Letters:
    """ "a" is token 0."""

    def decode(self, token_ids, skip_special_tokens=True):
        return "".join(chr(ord("a") + token) for token in token_ids)


@pytest.mark.parametrize(
    "stop, text",
    [(("cd",), "ab"), (("e",), "abcd"), (("xyz",), "abcdefgh"), (("gh", "de"), "abc"), (("abcdefghi",), "abcdefgh")],
)
def test_what_streams_ends_before_the_first_stop_string(stop, text):
    detokenizer = IncrementalDetokenizer(Letters(), stop)
    shown = []
    for token in range(8):
        shown.append(detokenizer.add(token))
        if detokenizer.stopped:
            break
    shown.append(detokenizer.finish())
    assert "".join(shown) == detokenizer.text == text and detokenizer.stopped == (len(text) < 8)


@pytest.mark.parametrize("tokens", [(3, 4), (4, 3)])
def test_of_several_stop_tokens_the_first_that_comes_ends_it(make_engine, tokens):
    answer = alone("qwen2", PROMPT, 12, ignore_eos=True)
    stop_token_ids = tuple(answer[index] for index in tokens)
    (output,) = make_engine().generate([PROMPT], greedy(12, ignore_eos=True, stop_token_ids=stop_token_ids))
    end = min(map(answer.index, stop_token_ids))
    assert (output.token_ids, output.finish_reason) == (answer[: end + 1], "stop")
    assert output.text == "".join(map(letter, answer[:end]))


# Attention


@pytest.mark.parametrize("query_length", [1, 3, 9])
def test_a_sequence_over_scattered_blocks_is_attended_as_if_they_followed_each_other(query_length):
    from paged_cases import error, make_case

    case = make_case([query_length, 1], [21, 30], block_size=4, seed=query_length)
    table = case.block_tables[0, :6].tolist()
    assert any(after != before + 1 for before, after in pairwise(table)), "the blocks follow each other"
    found = plan_torch(case, case.block_tables, 4)(case.q, case.k_cache, case.v_cache, case.scale)
    assert error(found, case.reference()) < 1e-5


def test_a_prompt_in_chunks_of_any_size_has_the_same_answer():
    prompt = list(range(10, 33))
    expected = alone("qwen2", prompt, 6, ignore_eos=True)
    for chunk in (1, 2, 5, 22, 23, 24):
        engine = an_engine(max_num_seqs=1, max_num_batched_tokens=chunk, num_blocks=20)
        (output,) = engine.generate([prompt], greedy(6, ignore_eos=True))
        assert output.token_ids == expected
        assert engine.metrics.steps == -(-len(prompt) // chunk) + 5
