"""The engine: whatever it does with requests, each gets the answer that it gets alone, once, and nothing is left
behind."""

import random

import pytest
from engine_cases import FAMILIES, Clock, alone, an_engine, check_that_nothing_is_left, greedy, letter, run_out
from oracle import END

from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.metrics import BOUNDS, EngineMetrics, Histogram
from lessons_lib.engine.prometheus import COUNTERS, HISTOGRAMS, engine_families
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_pool import OutOfBlocks
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.loading import load_model
from lessons_lib.models.tiny_models import VOCAB_SIZE
from lessons_lib.models.validate import BadRequest
from lessons_lib.scheduling.policies import PriorityWithAgeing, ShortestJobFirst
from lessons_lib.scheduling.scheduler import conservative
from tools.interrupts import Interrupter

TIGHT = dict(num_blocks=13, block_size=4, max_num_seqs=6, max_num_batched_tokens=9)


def some_prompts(count, seed=0, longest=24):
    """Prompts of which many begin alike."""
    rng = random.Random(seed)
    words = [rng.randrange(VOCAB_SIZE) for _ in range(60)]
    return [
        words[: rng.choice([0, 4, 8])] + [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, longest - 8))]
        for _ in range(count)
    ]


# Greedy answers


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "config, is_pressed",
    [
        ({}, False),
        (TIGHT, True),
        ({**TIGHT, "num_swap_blocks": 20}, True),
        ({**TIGHT, "num_blocks": 11, "share_prefixes": False, "max_num_batched_tokens": 30}, True),
        ({**TIGHT, "admission": conservative, "policy": ShortestJobFirst()}, False),
        ({**TIGHT, "block_size": 1, "num_blocks": 46, "max_num_seqs": 5, "policy": PriorityWithAgeing(1.0)}, True),
    ],
    ids=["roomy", "tight", "swap", "no sharing", "conservative", "blocks of one"],
)
def test_greedy_answers_are_those_of_generate(family, config, is_pressed):
    engine = an_engine(family, **config)
    prompts = some_prompts(12)
    max_tokens_each = [random.Random(n).choice([1, 5, 12, 20]) for n in range(12)]
    outputs = engine.generate(prompts, [greedy(max_tokens) for max_tokens in max_tokens_each])
    for output, prompt, max_tokens in zip(outputs, prompts, max_tokens_each):
        expected = alone(family, prompt, max_tokens)
        assert output.token_ids == expected and output.prompt_ids == prompt and output.error is None
        assert output.finish_reason == ("stop" if expected[-1] == END else "length")
        assert output.text == "".join(map(letter, expected[:-1] if expected[-1] == END else expected))
    check_that_nothing_is_left(engine)
    assert bool(engine.scheduler.num_preempted) == is_pressed
    assert bool(engine.scheduler.num_swapped) == bool(config.get("num_swap_blocks"))


# Sampling


def sampled(seed, **kwargs):
    return SamplingParams(max_tokens=15, temperature=1.5, seed=seed, ignore_eos=True, **kwargs)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_is_the_same_text_whatever_else_is_there(family):
    prompts = some_prompts(6, seed=2, longest=14)
    lonely = [an_engine(family).generate([prompt], sampled(n))[0].token_ids for n, prompt in enumerate(prompts)]
    assert len(set(map(tuple, lonely))) == 6
    rules = [sampled(n) for n in range(6)]
    for config in ({}, TIGHT, {**TIGHT, "num_swap_blocks": 20}, {"max_num_seqs": 2, "max_num_batched_tokens": 2}):
        engine = an_engine(family, **config)
        outputs = engine.generate(
            [*prompts, *some_prompts(3, seed=9, longest=14)], [*rules, greedy(), greedy(), sampled(77)]
        )
        assert [output.token_ids for output in outputs[:6]] == lonely
        assert bool(engine.scheduler.num_preempted) == (config.get("num_blocks") == 13)


def test_another_seed_is_another_text_and_none_is_another_every_time():
    texts = [an_engine().generate([[5, 6, 7]], sampled(seed))[0].text for seed in (0, 1, 2, None, None, None)]
    assert len(set(texts)) == 6


def test_several_answers_of_one_prompt_share_it():
    engine = an_engine()
    prompt = some_prompts(1, seed=3)[0] * 2
    (output,) = engine.generate([prompt], sampled(5, n=4))
    assert [completion.index for completion in output.completions] == [0, 1, 2, 3]
    assert len({tuple(completion.token_ids) for completion in output.completions}) == 4
    assert all(
        len(completion.token_ids) == 15 and completion.finish_reason == "length" for completion in output.completions
    )
    # The prompt is computed once, its last block by each of the others, and each answer but its last token.
    size = engine.config.block_size
    assert len(prompt) % size == 0 and engine.metrics.tokens == len(prompt) + 3 * size + 4 * 14
    assert engine.metrics.new_tokens == 60 and engine.metrics.prefill_tokens == len(prompt) - 1 + 3 * (size - 1)
    assert engine.metrics.cached_tokens == 3 * (len(prompt) - size)
    for index in range(4):
        assert an_engine().generate([prompt], sampled(5 + index))[0].token_ids == output.completions[index].token_ids
    check_that_nothing_is_left(engine)


# Ends


def an_answer_that_stops():
    """(prompt, answer that ends with the end token after 3 tokens or more)."""
    for prompt in some_prompts(300, seed=8):
        answer = alone("qwen2", prompt, 40)
        if answer[-1] == END and 3 <= len(answer) < 25:
            return prompt, answer
    raise AssertionError("no such prompt")


def test_the_end_token_ends_it_or_is_ignored():
    prompt, answer = an_answer_that_stops()
    plain, ignoring, other = an_engine().generate(
        [prompt] * 3,
        [greedy(40), greedy(40, ignore_eos=True), greedy(40, stop_token_ids=(answer[1],), ignore_eos=True)],
    )
    assert (plain.token_ids, plain.finish_reason) == (answer, "stop")
    assert plain.text == "".join(map(letter, answer[:-1])), "the token that ends it is not part of the text"
    assert (ignoring.token_ids, ignoring.finish_reason) == (alone("qwen2", prompt, 40, ignore_eos=True), "length")
    first = answer.index(answer[1])
    assert (other.token_ids, other.finish_reason) == (answer[: first + 1], "stop")


def test_an_immediate_end_of_text_is_an_answer():
    """A fault of real engines: such a request was lost."""
    prompt, answer = an_answer_that_stops()
    whole = prompt + answer[:-1]
    told = []
    for config in ({}, TIGHT):
        engine = an_engine(**config)
        name = engine.add_request(whole, SamplingParams(max_tokens=None), on_token=told.append)
        output = run_out(engine)[name]
        assert (output.token_ids, output.text, output.finish_reason) == ([END], "", "stop")
        check_that_nothing_is_left(engine)
    assert [(token.token, token.text, token.finish_reason) for token in told] == [(END, "", "stop")] * 2


@pytest.mark.parametrize("blocks, limit", [(100, 256), (10, 41)])
def test_no_cap_is_what_context_and_pool_have_room_for(blocks, limit):
    engine = an_engine(num_blocks=blocks)
    prompt = [5, 6, 7]
    (output,) = engine.generate([prompt], SamplingParams(max_tokens=None, ignore_eos=True))
    assert len(prompt) + len(output.token_ids) == limit and output.finish_reason == "length"


@pytest.mark.parametrize("length", [1, 255])
def test_the_shortest_and_the_longest_prompt(length):
    prompt = some_prompts(1, longest=9)[0] * 300
    for params in (
        (SamplingParams(max_tokens=1), SamplingParams(max_tokens=None)) if length == 255 else (greedy(1), greedy(12))
    ):
        (output,) = an_engine(num_blocks=64).generate([prompt[:length]], params)
        assert output.token_ids == alone("qwen2", prompt[:length], params.max_tokens or 1)


# Refusals


def state(engine):
    scheduler = engine.scheduler
    places = [list(place) for place in (scheduler.running, scheduler.waiting, scheduler.pool.free_queue)]
    return list(engine.requests), places, engine.has_unfinished()


@pytest.mark.parametrize(
    "error, words, prompt, params, kwargs",
    [
        (BadRequest, "request 'there' contains token id 97.*0 to 96", [1, 97], None, {"request_id": "there"}),
        (BadRequest, "250 tokens and asks for 7 more, 257.*is 256.*Ask for 6 or fewer", [1] * 250, greedy(7), {}),
        (OutOfBlocks, "may need 16 blocks of 4 tokens; the pool has 15", [1] * 50, greedy(12), {}),
        (OutOfBlocks, "may need 25 blocks of 4 tokens", [1] * 100, SamplingParams(max_tokens=None), {}),
        (BadRequest, "'here' is being served", [1], greedy(3), {"request_id": "here"}),
    ],
)
def test_what_can_never_be_served_is_refused_and_changes_nothing(error, words, prompt, params, kwargs):
    engine = an_engine(num_blocks=15)
    engine.add_request([1, 2, 3], greedy(), request_id="here")
    engine.step()
    before = state(engine)
    with pytest.raises(error, match=words):
        engine.add_request(prompt, params, **kwargs)
    assert state(engine) == before
    with pytest.raises(error, match=words):
        next(engine.stream(prompt, params, **kwargs))
    assert state(engine) == before
    assert run_out(engine)["here"].token_ids == alone("qwen2", [1, 2, 3], 12)


def test_a_name_is_free_again_after_the_end():
    engine = an_engine()
    assert [engine.add_request([n], greedy(2), request_id=name) for n, name in enumerate((None, "2", None))] == [
        "0",
        "2",
        "1",
    ]
    run_out(engine)
    assert engine.add_request([1], greedy(2), request_id="0") == "0"
    assert engine.add_request([1], greedy(2)) == "2"


def test_prompts_may_be_texts():
    model, tokenizer = load_model()
    engine = LLMEngine(model, tokenizer, EngineConfig(num_blocks=40))
    by_text, by_ids = engine.generate(["The old dog", tokenizer("The old dog").input_ids], greedy(8))
    assert by_text.token_ids == by_ids.token_ids and by_text.prompt_ids == by_ids.prompt_ids


# Reading as it grows, and leaving early


def test_a_stream_is_the_answer_token_by_token():
    engine = an_engine()
    engine.add_request([9, 9], greedy(20, ignore_eos=True), request_id="other")
    tokens = list(engine.stream([1, 2, 3], greedy()))
    expected = alone("qwen2", [1, 2, 3], 12)
    assert [token.token for token in tokens] == expected
    assert [token.finish_reason for token in tokens[:-1]] == [None] * (len(tokens) - 1) and tokens[-1].finish_reason
    assert len(engine.requests["other"].completions[0].output_ids) == len(tokens), "others are served along"
    assert run_out(engine)["other"].token_ids == alone("qwen2", [9, 9], 20, ignore_eos=True)


def test_the_scheduler_is_told_who_reads_along():
    """A request that is only added is not interactive; a streamed one is, unless told otherwise."""
    engine = an_engine()
    for said in ({}, {"is_interactive": True}, {"is_interactive": False}):
        engine.add_request([1, 2], greedy(), **said)
    streams = [engine.stream([1, 2], greedy(), **said) for said in ({}, {"tier": 2}, {"is_interactive": False})]
    assert [(sequence.is_interactive, sequence.tier) for sequence in engine.scheduler.waiting] == [
        (False, 0), (True, 0), (False, 0), (True, 0), (True, 2), (False, 0),
    ]  # fmt: skip
    assert len([token for tokens in streams for token in tokens]) == 3 * len(alone("qwen2", [1, 2], 12))


@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_stream_that_is_closed_early_is_aborted(after):
    engine = an_engine()
    engine.add_request([9, 9], greedy(), request_id="other")
    stream = engine.stream([1, 2, 3], sampled(0))
    for _ in range(after):
        next(stream)
    stream.close()
    assert list(engine.requests) == ["other"]
    audit(engine.scheduler)
    assert list(run_out(engine)) == ["other"]
    for _ in engine.stream([1, 2, 3], sampled(0)):
        break  # nothing refers to it any more
    check_that_nothing_is_left(engine)
    assert engine.metrics.requests["abort"] == 2


def test_streams_that_take_turns_leave_nothing_behind():
    engine = an_engine()
    streams = [engine.stream(prompt, greedy(6, ignore_eos=True)) for prompt in ([1, 2], [3, 4], [5, 6])]
    pairs = list(zip(*streams))
    assert len(pairs) == 6
    for prompt, tokens in zip(([1, 2], [3, 4], [5, 6]), zip(*pairs)):
        assert [token.token for token in tokens] == alone("qwen2", prompt, 6, ignore_eos=True)
    for stream in streams:
        assert list(stream) == []
    check_that_nothing_is_left(engine)


def test_what_ends_in_the_steps_of_others_is_kept_for_its_reader():
    engine = an_engine()
    engine.add_request([9, 9], greedy(2, ignore_eos=True), request_id="first")
    (mine,) = engine.generate([[1, 2, 3]], greedy(8, ignore_eos=True))
    assert (
        mine.token_ids == alone("qwen2", [1, 2, 3], 8, ignore_eos=True)
        and engine.has_unfinished()
        and not engine.requests
    )
    list(engine.stream([1, 2, 3], greedy(4)))
    engine.generate([[4]], greedy(3))
    (output,) = engine.step()
    assert output.request_id == "first" and output.token_ids == alone("qwen2", [9, 9], 2, ignore_eos=True)
    check_that_nothing_is_left(engine)
    assert engine.step() == []


def test_generate_ends_though_somebody_aborts_one_of_its_requests():
    engine = an_engine()
    engine.add_request([5], greedy(9, ignore_eos=True), on_token=lambda token: engine.abort("2"))
    outputs = engine.generate([[1, 2], [3, 4]], greedy(9, ignore_eos=True))
    assert [output.finish_reason for output in outputs] == ["length", "abort"]
    assert outputs[0].token_ids == alone("qwen2", [1, 2], 9, ignore_eos=True)


def engine_in_state(where):
    """An engine, and the name of a request that is there: waiting, half a prompt computed, decoding, preempted,
    swapped, forks waiting."""
    engine = an_engine(
        num_blocks=16, max_num_seqs=3, max_num_batched_tokens=6, num_swap_blocks=20 if where == "swapped" else 0
    )
    if where in ("preempted", "swapped"):
        for n in range(3):
            engine.add_request([n + 1] * 9, greedy(40, ignore_eos=True), request_id=str(n))
        while not engine.scheduler.num_preempted:
            engine.step()
        (victim,) = [sequence for sequence in engine.scheduler.waiting if sequence.output_ids]
        assert bool(victim.swapped) == (where == "swapped")
        return engine, victim.id
    for n in range(3 if where == "waiting" else 1):
        engine.add_request([n + 1] * 2, greedy(30, ignore_eos=True))
    params = SamplingParams(max_tokens=20, n=5 if where == "forks" else 1, temperature=1.0, seed=1, ignore_eos=True)
    name = engine.add_request([7] * 10, params)
    for _ in range({"new": 0, "waiting": 2, "half a prompt": 1, "decoding": 5, "forks": 4}[where]):
        engine.step()
    if where == "forks":
        assert len(engine.scheduler.waiting) > 1
    return engine, name


@pytest.mark.parametrize("where", ["new", "waiting", "half a prompt", "decoding", "preempted", "swapped", "forks"])
def test_a_request_is_aborted_wherever_it_is(where):
    engine, name = engine_in_state(where)
    request = engine.requests[name]
    so_far = [list(answer.output_ids) for answer in request.completions]
    output = engine.abort(name)
    assert [completion.token_ids for completion in output.completions] == so_far
    assert all(completion.finish_reason == "abort" for completion in output.completions) and output.error is None
    audit(engine.scheduler)
    assert engine.abort(name) is None, "the second time it is not there"
    assert name not in run_out(engine)
    check_that_nothing_is_left(engine)


def test_aborting_what_is_not_there_is_harmless():
    engine = an_engine()
    assert engine.abort("unknown") is None
    engine.generate([[1]], greedy(2))
    assert engine.abort("0") is None
    assert engine.step() == [] and engine.metrics.requests == {"length": 1}


# Metrics


def test_metrics_add_up():
    engine = an_engine(**TIGHT, clock=Clock())
    prompts = some_prompts(10, seed=1)
    for n, prompt in enumerate(prompts):
        engine.add_request(prompt, greedy(12, ignore_eos=True), request_id=f"r{n}")
    engine.abort("r3")
    outputs = run_out(engine)
    metrics, steps = engine.metrics, engine.metrics.recent
    assert metrics.steps == len(steps)
    for name in ("tokens", "prefill_tokens", "new_tokens", "cached_tokens"):
        assert getattr(metrics, name) == sum(getattr(step, name) for step in steps)
    assert metrics.preemptions == sum(step.preempted for step in steps) == engine.scheduler.num_preempted > 0
    assert metrics.new_tokens == sum(len(output.token_ids) for output in outputs.values()) == 9 * 12
    # Each token of prompt and answer but the last was computed or found at least once; what was dropped, once more.
    assert metrics.tokens + metrics.cached_tokens >= sum(len(prompts[int(name[1:])]) + 11 for name in outputs)
    assert all(
        step.prefill_tokens >= 0 and step.tokens <= 9 and step.used_blocks <= 13 and step.running <= 6 for step in steps
    )
    assert metrics.busy_seconds == pytest.approx(sum(sum(step.seconds.values()) for step in steps))
    assert metrics.busy_seconds == pytest.approx(sum(metrics.part_seconds.values()))
    assert steps[0].seconds == dict.fromkeys(
        ("schedule", "move", "forward", "sample", "update"), pytest.approx(1, abs=30)
    )
    assert (
        metrics.requests == {"abort": 1, "length": 9}
        and metrics.latency.count == metrics.ttft.count == metrics.tpot.count == 9
    )
    assert metrics.itl.count == 9 * 11 and metrics.queue_time.count == 9, (
        "a preempted request waits in no queue of newcomers"
    )
    assert metrics.itl.total + metrics.ttft.total == pytest.approx(metrics.latency.total, abs=9 * 3)
    assert metrics.tpot.total * 11 == pytest.approx(metrics.itl.total)
    assert metrics.throughput == metrics.new_tokens / metrics.busy_seconds
    assert metrics.slot_utilization == pytest.approx(sum(step.running for step in steps) / len(steps) / 6)
    assert metrics.token_utilization == pytest.approx(metrics.tokens / len(steps) / 9)
    assert metrics.block_utilization == pytest.approx(sum(step.used_blocks for step in steps) / len(steps) / 13)


def test_tokens_found_in_the_cache_are_counted():
    engine = an_engine()
    prompt = list(range(1, 22))
    engine.generate([prompt], greedy(2))
    assert (engine.metrics.cached_tokens, engine.metrics.prefill_tokens) == (0, 20)
    engine.generate([prompt], greedy(2))
    assert (engine.metrics.cached_tokens, engine.metrics.prefill_tokens) == (20, 20)
    assert engine.metrics.prefix_hit_rate == 0.5
    unshared = an_engine(share_prefixes=False)
    unshared.generate([prompt, prompt], greedy(2))
    assert unshared.metrics.cached_tokens == 0


def test_a_snapshot_is_plain_and_stays():
    import json

    engine = an_engine()
    empty = engine.metrics.snapshot()
    assert json.loads(json.dumps(empty))["requests"] == {} and empty["throughput"] == 0
    engine.generate([[1, 2]], greedy(3))
    assert empty == EngineMetrics(an_engine()).snapshot(), "a snapshot does not change behind one's back"
    full = engine.metrics.snapshot()
    assert full["requests"] == {"length": 1} and full["ttft"]["count"] == 1 and full["max_num_seqs"] == 8
    engine.metrics.itl.add(1000.0)
    slow = engine.metrics.snapshot()
    assert json.loads(json.dumps(slow, allow_nan=False)) == slow and slow["itl"]["p99"] is None


def test_a_histogram_says_what_share_lies_below_a_bound():
    histogram = Histogram()
    assert histogram.mean == histogram.quantile(0.5) == 0
    values = [0.0005, 0.001, 0.0011, 0.3, 7, 7, 99, 100, 1000]
    for value in values:
        histogram.add(value)
    assert histogram.count == len(values) and histogram.total == pytest.approx(sum(values))
    for share in (0.01, 0.2, 0.5, 0.8, 0.88, 1.0):
        at_least = sorted(values)[max(-(-int(share * 900) * len(values) // 900), 1) - 1]
        assert histogram.quantile(share) == next((bound for bound in BOUNDS if bound >= at_least), float("inf"))


def test_prometheus_reads_what_the_snapshot_says():
    engine = an_engine(**TIGHT)
    engine.generate(some_prompts(8), greedy(10))
    engine.abort(engine.add_request([1], greedy()))
    snapshot = engine.metrics.snapshot()
    families = {family.name: family for family in engine_families(snapshot)}
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    for name, (key, _) in COUNTERS.items():
        assert values[f"{name}_total",] == pytest.approx(snapshot[key]) and families[name].type == "counter"
    for reason, count in snapshot["requests"].items():
        assert values["vllm:request_success_total", reason] == count
    for part, seconds in snapshot["part_seconds"].items():
        assert values["lessons_step_seconds_total", part] == pytest.approx(seconds)
    for name, (key, _) in HISTOGRAMS.items():
        own = snapshot[key]
        assert families[name].type == "histogram"
        assert values[f"{name}_count",] == own["count"] and values[f"{name}_sum",] == pytest.approx(own["total"])
        buckets = [values[f"{name}_bucket", bound] for bound in (*map(str, BOUNDS), "+Inf")]
        assert buckets == [sum(own["counts"][: n + 1]) for n in range(len(BOUNDS) + 1)]
    assert all(family.documentation for family in families.values())


def test_generate_takes_twice_as_long_for_twice_as_many_prompts():
    from lessons_lib.engine import llm_engine

    def lines_executed(count):
        interrupter = Interrupter()
        with interrupter:
            an_engine(max_num_seqs=2, probe=False).generate([[1, 2]] * count, greedy(2, ignore_eos=True))
        return sum(file == llm_engine.__file__ for file, _ in interrupter.executed)

    assert lines_executed(24) < 2.2 * lines_executed(12)
