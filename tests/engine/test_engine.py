"""The engine: whatever it does with requests, each gets the answer that it gets alone, once, and nothing is left
behind."""

import random

import pytest
from engine_cases import (
    FAMILIES,
    KINDS,
    Clock,
    alone,
    an_engine,
    check_that_nothing_is_left,
    engine_of_kind,
    greedy,
    letter,
    run_out,
)
from oracle import END

from lessons_lib.engine.metrics import BOUNDS, EngineMetrics, Histogram
from lessons_lib.engine.prometheus import COUNTERS, HISTOGRAMS, engine_families
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.invariants import audit
from lessons_lib.models.tiny_models import VOCAB_SIZE
from lessons_lib.scheduling.policies import PriorityWithAging, ShortestJobFirst
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
        ({**TIGHT, "block_size": 1, "num_blocks": 46, "max_num_seqs": 5, "policy": PriorityWithAging(1.0)}, True),
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


def test_another_seed_is_another_text_and_none_is_another_every_time():
    texts = [an_engine().generate([[5, 6, 7]], sampled(seed))[0].text for seed in (0, 1, 2, None, None, None)]
    assert len(set(texts)) == 6


def test_several_answers_of_one_prompt_share_it():
    engine, prompt = an_engine(), some_prompts(1, seed=3)[0] * 2
    (output,) = engine.generate([prompt], sampled(5, n=4))
    assert len({tuple(completion.token_ids) for completion in output.completions}) == 4
    # The prompt is computed once, its last block by each of the others, and each answer but its last token.
    size, metrics = engine.config.block_size, engine.metrics
    assert len(prompt) % size == 0 and metrics.tokens == len(prompt) + 3 * size + 4 * 14
    assert metrics.new_tokens == 60 and metrics.prefill_tokens == len(prompt) - 1 + 3 * (size - 1)
    assert metrics.cached_tokens == 3 * (len(prompt) - size)


# Ends


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("max_tokens, n", [(1, 1), (8, 3), (None, 1)])
def test_an_immediate_end_of_text_is_an_answer(family, max_tokens, n):
    """A fault of real engines: such a request was lost."""
    engine, told = an_engine(family), []
    prompt = next([token, 50] for token in range(97) if END in alone(family, [token, 50], 12))
    prompt += alone(family, prompt, 12)[:-1]
    engine.add_request(prompt, SamplingParams(max_tokens=max_tokens, n=n), request_id="ends", on_token=told.append)
    engine.add_request([9, 8, 7], greedy(5, ignore_eos=True), request_id="goes on")
    outputs = run_out(engine)
    found = [(own.token_ids, own.text, own.finish_reason) for own in outputs["ends"].completions]
    assert found == [([END], "", "stop")] * n
    assert [(token.token, token.text, token.finish_reason) for token in told] == [(END, "", "stop")] * n
    assert outputs["goes on"].token_ids == alone(family, [9, 8, 7], 5, ignore_eos=True)
    check_that_nothing_is_left(engine)


@pytest.mark.parametrize("blocks, prompt, limit", [(100, 3, 256), (10, 3, 41), (64, 255, 256)])
def test_no_cap_is_what_context_and_pool_have_room_for(blocks, prompt, limit):
    params = SamplingParams(max_tokens=None, ignore_eos=True)
    (output,) = an_engine(num_blocks=blocks).generate([[5, 6, 7] * (prompt // 3)], params)
    assert prompt + len(output.token_ids) == limit and output.finish_reason == "length"


@pytest.mark.parametrize("after", [0, 1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_an_aborted_request_s_output_stays_though_its_id_is_used_again(kind, after):
    engine = engine_of_kind(kind, num_blocks=150, block_size=4)
    name = engine.add_request([5, 6, 7], greedy(20, ignore_eos=True), request_id="again")
    for _ in range(after):
        engine.step()
    output = engine.abort(name)
    tokens = list(output.token_ids)
    assert tokens == alone("qwen2", [5, 6, 7], 20, ignore_eos=True)[: len(tokens)]
    engine.add_request([1, 2], greedy(4, ignore_eos=True), request_id="again")
    again = run_out(engine)["again"]
    assert (output.token_ids, output.finish_reason) == (tokens, "abort")
    assert again.token_ids == alone("qwen2", [1, 2], 4, ignore_eos=True)


def test_a_name_is_free_again_after_the_end():
    engine = an_engine()
    names = [engine.add_request([n], greedy(2), request_id=name) for n, name in enumerate((None, "2", None))]
    assert names == ["0", "2", "1"]
    run_out(engine)
    assert engine.add_request([1], greedy(2), request_id="0") == "0"
    assert engine.add_request([1], greedy(2)) == "2"


# Reading as it grows, and leaving early


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


@pytest.mark.parametrize("after", [0, 5])
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


def test_what_ends_in_the_steps_of_others_is_kept_for_its_reader():
    engine = an_engine()
    engine.add_request([9, 9], greedy(2, ignore_eos=True), request_id="first")
    (mine,) = engine.generate([[1, 2, 3]], greedy(8, ignore_eos=True))
    assert mine.token_ids == alone("qwen2", [1, 2, 3], 8, ignore_eos=True)
    assert engine.has_unfinished() and not engine.requests
    list(engine.stream([1, 2, 3], greedy(4)))
    engine.generate([[4]], greedy(3))
    assert [group.id for group in engine.core.ended] == ["first"], "those of `generate` and `stream` don't pile up"
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
    assert all(step.prefill_tokens >= 0 and step.tokens <= 9 for step in steps)
    assert metrics.busy_seconds == pytest.approx(sum(sum(step.seconds.values()) for step in steps))
    assert metrics.busy_seconds == pytest.approx(sum(metrics.part_seconds.values()))
    parts = ("schedule", "move", "forward", "sample", "update")
    assert steps[0].seconds == dict.fromkeys(parts, pytest.approx(1, abs=30))
    assert metrics.requests == {"abort": 1, "length": 9}
    counts = [histogram.count for histogram in (metrics.latency, metrics.ttft, metrics.tpot, metrics.queue_time)]
    assert counts == [9] * 4 and metrics.itl.count == 9 * 11, "a preempted request waits in no queue of newcomers"
    assert metrics.itl.total + metrics.ttft.total == pytest.approx(metrics.latency.total, abs=9 * 3)
    assert metrics.tpot.total * 11 == pytest.approx(metrics.itl.total)
    assert metrics.throughput == metrics.new_tokens / metrics.busy_seconds
    assert 0 < metrics.prefix_hit_rate == metrics.cached_tokens / (metrics.cached_tokens + metrics.prefill_tokens)
    assert metrics.slot_utilization == pytest.approx(sum(step.running for step in steps) / len(steps) / 6)
    assert metrics.token_utilization == pytest.approx(metrics.tokens / len(steps) / 9)
    assert metrics.block_utilization == pytest.approx(sum(step.used_blocks for step in steps) / len(steps) / 13)


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
