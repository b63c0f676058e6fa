"""Several tokens a step: whatever is guessed, the answers stay the same."""

import itertools
import random
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lessons_lib.compat.alone_runner import AloneRunner
from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.draft_lengths import DraftLengths, Guess, StepTimes
from lessons_lib.engine.draft_model import DraftModel, bundled_draft
from lessons_lib.engine.gpu_model_runner import GPUModelRunner, gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from lessons_lib.engine.proposers import NgramLookup, NgramTable, own_stories
from lessons_lib.engine.rejection_sampling import accept_or_redraw
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.speculation import accepted, add_drafts, drop_guesses, speculating
from lessons_lib.engine.verification import verify
from lessons_lib.kv_cache.block_pool import blocks_for
from lessons_lib.kv_cache.prefix_cache import PrefixCache
from lessons_lib.models.loading import load_model
from lessons_lib.scheduling.preemption import PreemptiveScheduler
from lessons_lib.scheduling.sequence import Sequence

LIKE_A_GPU = dict(compiled=False, capture=rerun, max_num_seqs=4, max_captured_tokens=64)
STORIES = ["Once upon a time", "The dog was", "Lily and Tom went to the park. They", "One day, a bird"]


@pytest.fixture(scope="module")
def model():
    return load_model()


def answers_of(model, params, proposer=None, **config):
    parts = speculating(proposer) if proposer else None
    # By a clock that stands still, guesses take no time, so all of them are worth it.
    with LLMEngine(*model, EngineConfig(**config), parts=parts, clock=lambda: 0.0) as engine:
        return [output.token_ids for output in engine.generate(STORIES, params)], engine.core


@given(st.lists(st.integers(0, 2), max_size=5), st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_guesses_are_kept_up_to_the_first_that_is_wrong(draft, own):
    found = accepted(draft, own[: len(draft) + 1])
    assert found == own[: len(found)] and 1 <= len(found) <= len(draft) + 1
    assert found[:-1] == draft[: len(found) - 1]
    assert len(found) == len(draft) + 1 or found[-1] != draft[len(found) - 1]


def decoding(num_free=6, budget=8, max_new_tokens=9):
    """A scheduler with one sequence, which has a prompt of 3 tokens and 1 more, and blocks of 4."""
    scheduler = PreemptiveScheduler(PrefixCache(9, 4), max_num_batched_tokens=budget, max_num_seqs=2)
    sequence = Sequence("s", [1, 2, 3], max_new_tokens)
    scheduler.add(sequence)
    while not sequence.output_ids:
        scheduler.update(scheduler.schedule(), [7])
    scheduler.pool.allocate(len(scheduler.pool.free_queue) - num_free)
    return scheduler, sequence


@pytest.mark.parametrize(
    "case, expected",
    [
        ({}, 5),
        (dict(num_free=0), 0),
        (dict(num_free=1), 4),
        (dict(budget=3), 2),
        (dict(max_new_tokens=4), 2),  # 1 token is there, 2 guesses, and 1 more
        (dict(max_new_tokens=2), 0),
    ],
)
def test_guesses_take_what_is_left(case, expected):
    scheduler, sequence = decoding(**case)
    output, num_free = scheduler.schedule(), len(scheduler.pool.free_queue)
    add_drafts(scheduler, output, {sequence: [1, 2, 3, 4, 5]})
    assert output.drafts == ({sequence: [1, 2, 3, 4, 5][:expected]} if expected else {})
    assert output.num_scheduled_tokens[sequence] == 1 + expected
    assert len(sequence.blocks) == blocks_for(4 + expected, 4)
    assert num_free - len(scheduler.pool.free_queue) == len(sequence.blocks) - 1


def test_blocks_of_wrong_guesses_are_free_again():
    scheduler, sequence = decoding()
    output = scheduler.schedule()
    add_drafts(scheduler, output, {sequence: [1, 2, 3, 4, 5]})
    assert len(sequence.blocks) == 3
    scheduler.update_after_launch(output)
    sequence.num_placeholders = 0
    sequence.append_token(8)
    kept = sequence.blocks
    drop_guesses(scheduler, sequence)
    assert sequence.num_computed_tokens == 4 and len(sequence.blocks) == 1
    assert sequence.blocks is not kept, "block tables look at the list"


def taught(guesses, rounds, num_right, base=1.0, per_token=0.1, extra=0.0, num_seqs=1):
    """What a DraftLengths chooses after some rounds in which `num_right` guesses for each sequence were right, and a step
    took base + per_token * tokens, and `extra` if it had guesses."""
    lengths, sequences = DraftLengths(), [Sequence(str(i), [1], 9) for i in range(num_seqs)]
    for _ in range(rounds):
        drafts = lengths.choose(dict.fromkeys(sequences, guesses), num_seqs) if lengths.may_pay() else {}
        for sequence in drafts:
            lengths.note_draft(sequence, min(num_right, len(drafts[sequence])))
        count = sum(map(len, drafts.values()))
        lengths.note_step(num_seqs + count, count, base + per_token * (num_seqs + count) + extra * (count > 0))
    lengths.num_refused = 0  # not a step that tries
    return [len(found) for found in lengths.choose(dict.fromkeys(sequences, guesses), num_seqs).values()]


def test_guesses_must_bring_more_tokens_per_second_than_the_step():
    sure = [Guess(5, 0.9)] * 4
    assert taught(sure, 20, 4) == [4]
    assert taught([Guess(5, 0.95), Guess(6, 0.02)], 20, 1) == [1]
    assert not taught(sure, 20, 4, base=0.01, num_seqs=64), "64 sequences fill the machine"
    assert not taught(sure, 60, 0), "they were always wrong"
    assert not taught(sure, 20, 4, extra=9.0), "a step with guesses takes long"
    assert not taught([], 20, 0)


def test_steps_with_and_without_guesses_are_measured_now_and_then():
    lengths, sequence = DraftLengths(), Sequence("s", [1], 9)
    chosen = []
    for _ in range(200):
        drafts = lengths.choose({sequence: [Guess(5, 0.9)]}, 1) if lengths.may_pay() else {}
        chosen.append(bool(drafts))
        lengths.note_step(1 + bool(drafts), bool(drafts), 2.0)  # guesses cost nothing and are right
        if drafts:
            lengths.note_draft(sequence, 1)
    assert not chosen[0] and 2 <= chosen.count(False) <= 8


def test_guesses_that_do_not_pay_are_tried_ever_less_often():
    lengths, sequence, asked = DraftLengths(), Sequence("s", [1], 9), []
    for step in range(3000):
        asked += [step] * lengths.may_pay()
        drafts = lengths.choose({sequence: [Guess(5, 0.9)]}, 1) if asked[-1:] == [step] else {}
        for each in drafts:
            lengths.note_draft(each, 0)
        lengths.note_step(1 + len(drafts), len(drafts), 1.0, has_asked=asked[-1:] == [step])
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked) if later - earlier > 2]
    assert asked[0] == 2 and len(asked) < 40 and len(pauses) >= 4
    assert pauses[0] < pauses[1] < pauses[2] and max(pauses) <= 1100


def test_few_steps_of_nearly_one_size_say_little_about_the_time_of_a_token():
    times = StepTimes()
    for tokens, seconds in ((9, 6.0), (10, 7.6), (12, 7.7)):
        times.add(tokens, seconds)
    assert times.of(40) < 12, "a line through them says 20"


def test_a_draft_that_is_right_more_often_than_it_says_is_believed():
    unsure = [Guess(5, 0.55)] * 4
    assert taught(unsure, 20, 4, base=1.0, per_token=0.01, extra=2.0) == [4]
    assert not taught(unsure, 60, 0, base=1.0, per_token=0.01, extra=2.0)


@pytest.mark.parametrize("repeats", [False, True])
def test_a_step_waits_for_guesses_only_if_the_proposer_expects_some(model, repeats):
    """Steps overlap as without a proposer, as long as no text repeats itself."""
    make_runner = gpu_model_runner(compiled=False, graphs=False)
    config = EngineConfig(overlap=True, make_runner=make_runner)
    waits = []

    class Lookup(NgramLookup):
        def expects(self, sequences):
            return repeats

        def propose(self, sequences, most):
            waits.append(len(engine.core.in_flight))
            return [[] for _ in sequences]

    with LLMEngine(*model, config, parts=speculating(Lookup()), clock=lambda: 0.0) as engine:
        engine.generate(STORIES[:2], SamplingParams(max_tokens=20))
    assert (len(waits) > 10) == repeats and not any(waits)


def test_times_of_steps_are_a_line_through_those_measured():
    times = StepTimes()
    assert times.of(7) == 1.0
    for tokens in (10, 20, 30, 10, 20) * 20:
        times.add(tokens, 1.0 + 0.5 * tokens)
    assert times.of(40) == pytest.approx(21.0, rel=0.03)
    times.add(20, 1e6)  # something else ran
    assert times.of(20) < 20


def test_a_table_of_ngrams_guesses_what_follows_most_often():
    table = NgramTable.of([[1, 2, 3, 4], [1, 2, 3, 4], [9, 2, 3, 5]], longest=3)
    assert [each.token for each in table.guess([1, 2, 3], 3)] == [4]
    assert [each.token for each in table.guess([9, 2], 2)] == [3, 5]
    assert table.guess([8], 2) == [] and table.guess([], 2) == []
    assert table.guess([1, 2, 3], 1)[0].chance == pytest.approx(2 / 3)
    found = table.propose([Sequence("s", [7, 1, 2], 9, output_ids=[3]), Sequence("t", [2], 9)], 1)
    assert [[each.token for each in own] for own in found] == [[4], [3]]


def test_lookup_finds_the_newest_tokens_in_the_text():
    lookup = NgramLookup()
    assert lookup.guess([1, 2, 3, 4, 9, 2, 3], 2) == [4, 9]
    assert lookup.guess([1, 2, 5, 1, 2, 6, 1, 2], 3) == [6, 1, 2], "the last time counts"
    assert lookup.guess([1, 2, 3], 2) == [] and lookup.guess([1], 2) == []


@pytest.mark.parametrize("sampling", [{}, dict(temperature=1.0, seed=5), dict(temperature=0.8, top_p=0.95, seed=1)])
@pytest.mark.parametrize("kind", ["table", "lookup", "draft", "draft, its passes launched ahead", "wrong"])
def test_no_proposer_changes_an_answer(model, kind, sampling):
    params = SamplingParams(max_tokens=40, **sampling)
    expected, _ = answers_of(model, params)

    class Wrong:
        def propose(self, sequences, most):
            return [[Guess(random.Random(len(each.output_ids)).randrange(99), 1.0)] * most for each in sequences]

    make = {
        "table": lambda: NgramTable.of(expected), "lookup": NgramLookup, "wrong": Wrong,
        "draft": lambda: DraftModel(bundled_draft(model[0]), num_blocks=60),
        "draft, its passes launched ahead": lambda: DraftModel(
            bundled_draft(model[0]), num_blocks=60, make_runner=partial(GPUModelRunner, **LIKE_A_GPU)
        ),
    }  # fmt: skip
    found, core = answers_of(model, params, make[kind]())
    assert found == expected
    assert core.num_draft_tokens or kind == "lookup"
    if kind not in ("lookup", "wrong"):  # the table has read the answers
        assert core.num_accepted_tokens > core.num_draft_tokens / 4


def test_a_draft_without_room_makes_no_guesses(model):
    draft, params = DraftModel(bundled_draft(model[0]), num_blocks=3), SamplingParams(max_tokens=30)
    found, core = answers_of(model, params, draft)
    assert found == answers_of(model, params)[0]
    draft.drop_finished()
    assert core.num_draft_tokens and not draft.pool.used


def test_passes_launched_ahead_guess_as_those_one_by_one(model):
    """Texts grow by what was guessed, by something else, or both, so a draft has one or several tokens to catch up on."""
    runner = partial(GPUModelRunner, **LIKE_A_GPU)
    drafts = [DraftModel(bundled_draft(model[0]), 60, **each) for each in ({}, dict(make_runner=runner))]
    texts, rng = [Sequence(text, model[1](text).input_ids, 99) for text in STORIES], random.Random(0)
    for index, text in enumerate(texts):
        vars(text).update(seed=index, params=SamplingParams(temperature=index % 2))
    for _ in range(8):
        found, ahead = (draft.propose(texts, 4) for draft in drafts)
        for own, others in zip(found, ahead, strict=True):
            assert others == [(guess.token, pytest.approx(guess.chance, abs=1e-4)) for guess in own]
        for text, own in zip(texts, found):
            text.output_ids += [guess.token for guess in own[: rng.randint(0, 4)]] + [rng.randrange(3, 99)]


def test_a_draft_guesses_nothing_behind_the_end_of_its_context(model):
    """Of 20 + 30 tokens; the draft's block tables have room for 32."""
    runner = partial(GPUModelRunner, **LIKE_A_GPU | dict(max_model_len=32))
    params = SamplingParams(max_tokens=30, temperature=1.0, seed=3)
    draft = DraftModel(bundled_draft(model[0]), num_blocks=60, make_runner=runner)
    found, core = answers_of(model, params, draft)
    assert found == answers_of(model, params)[0] and core.most and core.num_draft_tokens


def test_the_bundled_table_guesses_a_third_of_the_tokens(model):
    found, core = answers_of(model, SamplingParams(max_tokens=60), NgramTable.of(own_stories()[:400]))
    assert core.num_accepted_tokens > sum(map(len, found)) / 5


def test_a_runner_that_cannot_verify_gets_no_guesses(model):
    params, wanted = SamplingParams(max_tokens=6), answers_of(model, SamplingParams(max_tokens=6))[0]
    runner = dict(make_runner=lambda model, num_blocks, config: AloneRunner(model, num_blocks, config.block_size))
    sizes = dict(num_blocks=30, share_prefixes=False)
    found, core = answers_of(model, params, NgramTable.of(wanted), **sizes, **runner)
    assert found == wanted and core.num_draft_tokens == 0


def test_a_proposer_that_fails_is_not_asked_again(model):
    class Broken:
        calls = 0

        def propose(self, sequences, most):
            self.calls += 1
            raise ZeroDivisionError("oh")

    broken = Broken()
    with pytest.warns(UserWarning, match="the proposer has failed.*oh"):
        found, _ = answers_of(model, SamplingParams(max_tokens=8), broken)
    assert found == answers_of(model, SamplingParams(max_tokens=8))[0] and broken.calls == 1


def drawing(draw):
    """`coin` and `choose` of a random.Random."""
    return lambda chance: draw.random() < chance, lambda weights: draw.choices(range(len(weights)), weights)[0]


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 99))
def test_tokens_accepted_or_redrawn_have_the_models_distribution(seed):
    draw = random.Random(seed)
    coin, choose = drawing(draw)
    *q, p0, p1, p2 = (
        [each / sum(own) for each in own] for own in ([draw.expovariate(1) for _ in range(6)] for _ in range(5))
    )
    counts = [[0] * 6 for _ in range(3)]
    for _ in range(100_000):
        for own, token in zip(counts, accept_or_redraw([choose(each) for each in q], q, [p0, p1, p2], coin, choose)):
            own[token] += 1
    for found, p in zip(counts, (p0, p1, p2)):
        expected = [each * sum(found) for each in p]
        chi_square = sum((got - want) ** 2 / want for got, want in zip(found, expected))
        assert chi_square < 25.7, "5 degrees of freedom, 1 in 10,000"


def test_a_pass_over_a_packed_row_is_verified():
    pool = PrefixCache(9, 4)
    stop = frozenset({9})
    ended, wrong, right, alone = (Sequence(name, [1, 2, 3], 20, stop, output_ids=[5]) for name in "abcd")
    drafts = {ended: [8, 9, 7], wrong: [6, 6, 6, 6, 6], right: [4, 4], alone: []}
    own = [8, 9, 7, 1, 6, 2, 6, 6, 6, 6, 4, 4, 3, 2]
    for sequence, draft in drafts.items():
        sequence.num_computed_tokens, sequence.blocks = 3, pool.allocate(blocks_for(4 + len(draft), 4))
    places = []

    def draw(row, sequence, place):
        places.append((sequence.id, place))
        return int(row.argmax())

    verify(drafts, torch.nn.functional.one_hot(torch.tensor(own), 10).float(), draw, pool)
    found = [(each.output_ids, each.num_computed_tokens, len(each.blocks), each.finish_reason) for each in drafts]
    assert found == [
        ([5, 8, 9], 5, 2, "stop"), ([5, 6, 2], 5, 2, None), ([5, 4, 4, 3], 6, 2, None), ([5, 2], 4, 1, None),
    ]  # fmt: skip
    assert places[:4] == [("a", 1), ("a", 2), ("a", 3), ("a", 4)] and places[-1] == ("d", 1)
    assert len(pool.used) == 7, "the third block of the second is free again"


class Answers:
    """Guesses the answers that it was given, every third token wrong."""

    def __init__(self, answers):
        self.answers = answers

    def propose(self, sequences, most):
        return [self.guess(each, most) for each in sequences]

    def guess(self, sequence, most):
        answer, start = self.answers[sequence.prompt_ids[0], len(sequence.prompt_ids)], len(sequence.output_ids)
        return [Guess(token + (place % 3 == 2), 0.9) for place, token in enumerate(answer)][start : start + most]


@pytest.mark.parametrize("overlap", [False, True])
def test_steps_with_guesses_are_captured(model, overlap):
    """One graph serves steps with any number of guesses, next to decodes, in any order."""
    options = dict(compiled=False, capture=rerun, max_captured_tokens=64)
    config = dict(make_runner=gpu_model_runner(**options), max_num_seqs=8, max_num_batched_tokens=64, overlap=overlap)
    params = [SamplingParams(max_tokens=30, temperature=t, seed=7) for t in (0.0, 0.9, 0.0, 1.0)]
    plain, _ = answers_of(model, params)
    prompts = [model[1](story).input_ids for story in STORIES]
    answers = {(ids[0], len(ids)): answer for ids, answer in zip(prompts, plain)}
    parts = speculating(Answers(answers))
    with LLMEngine(*model, EngineConfig(**config), parts=parts, clock=lambda: 0.0) as engine:
        assert [output.token_ids for output in engine.generate(STORIES, params)] == plain
        assert 0 < engine.core.num_accepted_tokens < engine.core.num_draft_tokens
        sizes = {size for size in engine.runner.store.graphs if size.num_extra}
        assert sizes and sizes <= set(engine.runner.verifying)
