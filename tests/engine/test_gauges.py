"""What an engine says about the moment: counted by hand from its sequences and blocks. And how much of each prompt it
found in its cache."""

import pytest
from engine_cases import KINDS, engine_of_kind, greedy, run_out

from lessons_lib.engine.metrics import EngineGauges

SIZES = dict(num_blocks=22, max_num_seqs=4, max_num_batched_tokens=24, block_size=4)


@pytest.fixture(params=KINDS)
def an_engine(request):
    return lambda **config: engine_of_kind(request.param, **{**SIZES, **config})


def by_hand(engine):
    """The gauges, from the sequences of all requests that have not ended."""
    sequences = [
        completion
        for request in engine.requests.values()
        for completion in request.completions
        if completion.has_begun and completion.finish_reason is None
    ]
    waiting = list(engine.scheduler.waiting)
    blocks = {block for sequence in sequences for block in sequence.blocks}
    return EngineGauges(
        running=len(sequences) - len(waiting),
        waiting=len(waiting),
        swapped=sum(bool(sequence.swapped) for sequence in sequences),
        used_blocks=len(blocks),
        named_blocks=len(engine.scheduler.pool.hash_to_block),
        num_blocks=engine.config.num_blocks,
    )


def test_gauges_are_what_the_sequences_have(an_engine):
    engine, seen = an_engine(num_swap_blocks=12), []
    assert EngineGauges.of(engine) == EngineGauges(0, 0, 0, 0, 0, 22) == by_hand(engine)
    for index in range(8):
        engine.add_request(list(range(2 + 3 * index)), greedy(20, n=1 + index % 2, seed=1, ignore_eos=True))
    while engine.has_unfinished():
        engine.step()
        now = EngineGauges.of(engine)
        assert now == by_hand(engine)
        assert now.kv_cache_usage_perc == now.used_blocks / 22
        seen.append(now)
    assert max(now.running for now in seen) == 4 and any(now.waiting for now in seen)
    assert any(now.swapped for now in seen) and any(now.named_blocks for now in seen)
    assert seen[-1].running == seen[-1].waiting == seen[-1].used_blocks == 0


def test_a_request_says_how_much_of_its_prompt_was_cached(an_engine):
    engine, prompt = an_engine(num_blocks=150), list(range(3, 16))  # 13 tokens: three full blocks
    (first,) = engine.generate([prompt], greedy(2, ignore_eos=True))
    (again,) = engine.generate([prompt], greedy(2, ignore_eos=True))
    (longer,) = engine.generate([[*prompt[:9], 90, 91, 92]], greedy(2, ignore_eos=True))
    (forked,) = engine.generate([prompt], greedy(2, ignore_eos=True, n=3, temperature=1.0, seed=2))
    (salted,) = engine.generate([prompt], greedy(2, ignore_eos=True), cache_salt="own")
    (whole,) = engine.generate([prompt[:12]], greedy(2, ignore_eos=True))
    outputs = [first, again, longer, forked, salted, whole]
    assert [output.num_cached_tokens for output in outputs] == [0, 12, 8, 12, 0, 8]
    engine.add_request(prompt, greedy(4))
    engine.step()
    (aborted,) = [engine.abort(name) for name in list(engine.requests)]
    assert aborted.num_cached_tokens == 12
    assert engine.abort(engine.add_request(prompt, greedy(4))).num_cached_tokens == 0


def test_what_a_preempted_request_finds_again_does_not_count(an_engine):
    engine, found = an_engine(num_blocks=14), {}
    schedule = engine.scheduler.schedule

    def note():
        output = schedule()
        for sequence in output.admitted:
            found.setdefault(sequence.id, []).append(output.cached.get(sequence, 0))
        return output

    engine.scheduler.schedule = note
    for index, prompt in enumerate([[*range(10)], [*range(20, 30)], [*range(8), 60, 61], [*range(40, 50)]]):
        engine.add_request(prompt, greedy(16, ignore_eos=True), request_id=str(index))
    outputs = run_out(engine)
    assert {name: output.num_cached_tokens for name, output in outputs.items()} == {
        name: first for name, (first, *_) in found.items()
    }
    assert any(sum(later) for _, *later in found.values()), "no preempted request found anything"
