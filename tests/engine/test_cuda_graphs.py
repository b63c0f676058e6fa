"""Everything about captured steps that needs no GPU: what a graph is found by, and the rows that are put in its
places."""

import pytest
import torch
from overlap_cases import BLOCK, CHANGES, SPARE, random_plan, with_the_same_past

from lessons_lib.attention.custom_op import attend_paged, write_kv
from lessons_lib.attention.hf_backend import paged_attention_in
from lessons_lib.engine.cuda_graphs import GraphSize, captured_batch_sizes, captured_token_counts, next_size, rerun
from lessons_lib.engine.gpu_model_runner import GPUModelRunner, compiled_logits
from lessons_lib.engine.input_batch import BlockTables, forward_batch
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.warm_up import warm_up
from lessons_lib.measuring.published import recorded_engine
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence


@pytest.fixture
def runner():
    made = []

    def make(**options):
        options = dict(max_num_seqs=5, max_model_len=64, compiled=False, capture=rerun) | options
        made.append(GPUModelRunner(tiny_model("qwen2"), SPARE, BLOCK, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


# --- sizes


LADDERS = {
    captured_batch_sizes: {1: [2], 5: [2, 4, 5], 20: [2, 4, 8, 16, 20], 256: [2, 4, 8, *range(16, 257, 16)]},
    captured_token_counts: {
        0: [],
        1: [1],
        16: [16],
        100: [16, 32, 64, 100],
        2048: [16, 32, 64, *range(128, 1025, 128), 1280, 1536, 1792, 2048],
    },
}


@pytest.mark.parametrize("ladder", LADDERS)
def test_the_ladder_reaches_exactly_the_most(ladder):
    assert {most: ladder(most) for most in LADDERS[ladder]} == LADDERS[ladder]
    for most in (2, 15, 17, 69, 129, 1023, 1025, 1300, 5000):
        sizes = ladder(most)
        assert sizes == sorted(set(sizes)) and sizes[-1] == most
        assert all(next_size(count, sizes) >= count for count in range(1, most + 1))
    assert next_size(17, captured_batch_sizes(64)) == 32


# --- rows


@pytest.mark.parametrize("more_seqs, more_tokens", [(0, 0), (0, 5), (3, 0), (3, 7)])
def test_a_batch_of_a_graph_is_the_plain_one_and_padding_that_nothing_reads(more_seqs, more_tokens):
    for seed in range(10):
        step = random_plan(seed)
        count, total = len(step.num_scheduled_tokens), step.num_tokens
        plain = forward_batch(step, BlockTables(SPARE, 8, 16), BLOCK)
        padded = forward_batch(step, BlockTables(SPARE, 8, 16), BLOCK, None, count + more_seqs, total + more_tokens)
        for name in ("input_ids", "positions", "slot_mapping"):
            own = getattr(padded, name).tolist()
            assert own[:total] == getattr(plain, name).tolist()
            assert own[total:] == [SPARE * BLOCK if name == "slot_mapping" else 0] * more_tokens
        for name in ("context_lens", "logits_index", "block_tables"):
            assert getattr(padded, name)[:count].tolist() == getattr(plain, name).tolist()
            assert len(getattr(padded, name)) == count + more_seqs
        assert padded.cu_seqlens_q.tolist() == plain.cu_seqlens_q.tolist() + [total] * more_seqs


# --- the operator


@pytest.fixture
def plain():
    return ModelRunner(tiny_model("qwen2"), SPARE + 1, BLOCK)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("decodes", [False, True])
def test_logits_and_cache_are_those_of_the_plain_runner(runner, plain, graphs, decodes):
    tested = runner(graphs=graphs)
    for seed in range(12):
        step = random_plan(seed, decodes)
        with_the_same_past(tested, plain, seed=seed)
        torch.testing.assert_close(tested.forward(step), plain.forward(step), rtol=1e-4, atol=1e-4)
        for own, other in zip([*tested.cache.keys, *tested.cache.values], [*plain.cache.keys, *plain.cache.values]):
            # Padding has written to the null block, and nowhere else.
            torch.testing.assert_close(own[:SPARE], other[:SPARE], rtol=1e-4, atol=1e-4)
    if graphs:  # one serves many steps, of decodes, prompts and both
        sizes = set(tested.store.graphs)
        assert tested.store.num_captured == len(sizes) < 8
        assert decodes or {size.num_tokens for size in sizes} >= {16, 32}


def test_everything_is_captured_before_the_first_request(runner):
    tested = runner(max_captured_tokens=40)
    seen = []
    warm_up(tested, lambda steps: (seen.append(step) or step for step in steps))
    assert set(tested.store.graphs) == {
        *(GraphSize(count) for count in tested.sizes), *(GraphSize(5, count) for count in (16, 32, 40)),
        *(GraphSize(5, count, count) for count in (8, 16, 40)),
    }  # fmt: skip
    before = tested.store.num_captured
    assert before == len({size for size, _ in seen if size}) and len(seen) > before
    for seed in range(10):
        tested.forward(random_plan(seed, decodes=seed % 2 == 0))
    assert tested.store.num_captured == before


def test_steps_that_are_too_large_or_ask_for_more_logits_are_not_captured(runner):
    tested = runner(max_captured_tokens=10)
    long, short = Sequence("A", list(range(11)), 9, blocks=[0, 1, 2]), Sequence("B", [1, 2], 9, blocks=[5])
    with_logits = Sequence("C", [1, 2], 9, blocks=[6], prompt_logits=True)
    assert tested.graph_size(SchedulerOutput({long: 11})) is None
    assert tested.graph_size(SchedulerOutput({long: 10})) == (5, 10, 0)
    assert tested.graph_size(SchedulerOutput({short: 2, with_logits: 2})) is None
    assert tested.graph_size(SchedulerOutput({short: 1, with_logits: 1})) == (2, None, 0)
    assert len(tested.forward(SchedulerOutput({short: 2, with_logits: 2}))) == 3
    assert runner(max_captured_tokens=0).graph_size(SchedulerOutput({short: 2})) is None
    assert runner(graphs=False).graph_size(SchedulerOutput({short: 1})) is None


def test_the_operator_says_what_it_writes_and_what_comes_out():
    batch = forward_batch(random_plan(1), BlockTables(SPARE, 5, 16), BLOCK, None, 5)
    count = len(batch.input_ids)
    new = (torch.randn(count, 4, 8), torch.randn(count, 2, 8), torch.randn(count, 2, 8))
    caches = [torch.randn(SPARE + 1, BLOCK, 2, 8) for _ in range(2)]
    where = (batch.cu_seqlens_q, batch.context_lens, batch.block_tables, batch.max_lens)
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(write_kv, (*new[1:], *caches, batch.slot_mapping), test_utils=utils)
    torch.library.opcheck(attend_paged, (new[0], *caches, *where, 0.3), test_utils=utils)


def test_a_compiled_model_takes_rows_of_all_sizes_in_one_piece(runner):
    """Traced as for a GPU, and run as it is: compiling for a CPU would take half a minute."""
    torch._dynamo.reset()
    counters, plain = torch._dynamo.utils.counters, runner(graphs=False)
    compiled = compiled_logits(plain.cache, backend="aot_eager", options=None)
    counters.clear()
    for seed in (0, 1, 3):
        step = random_plan(seed, decodes=seed == 3)
        expected, count = plain.forward(step), len(step.num_scheduled_tokens)
        num_tokens = None if seed in (0, 3) else step.num_tokens + seed
        batch = forward_batch(step, plain.tables, BLOCK, None, max(2, count), num_tokens)
        with torch.inference_mode(), paged_attention_in(plain.model):
            found = compiled(plain.model, plain.cache, batch, plain.previous_tokens)[:count]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert counters["stats"]["unique_graphs"] == 1


# --- keys


def buffers(runner, max_blocks):
    return type(runner.buffers)(runner.sizes[-1], runner.buffers.num_tokens, max_blocks, BLOCK, torch.device("cpu"))


def new_inputs(runner):
    runner.buffers = buffers(runner, 16)


def wider_tables(runner):
    runner.buffers, runner.tables = buffers(runner, 20), BlockTables(SPARE, 5, 20)


def not_compiled(runner):
    runner.compiled = not runner.compiled


@pytest.mark.parametrize("change", [*CHANGES, new_inputs, wider_tables, not_compiled])
def test_a_cuda_graph_is_never_replayed_with_a_stale_key(runner, change):
    """A real engine did so: nothing failed, and its answers were worse."""
    tested, step = runner(), random_plan(2, decodes=True)
    for _ in range(2):
        tested.forward(step)
        assert tested.store.num_captured == 1
    change(tested)
    tested.forward(step)
    assert tested.store.num_captured == 2


def test_the_same_address_with_another_shape_is_another_key(runner):
    tested = runner()
    inputs = tested.buffers.of_size(GraphSize(2))
    before, cache = tested.key(tested.store, inputs), tested.cache.keys[0]
    tested.cache.keys[0] = cache.view(SPARE + 1, 2 * BLOCK, 1, 8)
    assert tested.key(tested.store, inputs) != before
    tested.cache.keys[0] = cache
    assert tested.key(tested.store, inputs) == before


def test_the_graph_keeps_the_tensors_that_its_key_knows_by_identity(runner):
    """Otherwise another tensor could get the `id` of one that is gone, and the key would not tell."""
    tested = runner()
    tested.forward(random_plan(2, decodes=True))
    (graph,) = tested.store.graphs.values()
    inputs, *kept = graph.keeps
    assert (
        graph.key.identities == [id(tensor) for tensor in (*vars(inputs).values(), *kept)][: len(graph.key.identities)]
    )


# --- what was recorded


def test_the_recorded_engine_is_ahead_of_its_peers():
    recorded = recorded_engine()
    speeds = {mode["name"]: mode["tokens_per_s"] for mode in recorded.modes}
    whole = speeds.pop("the whole engine", None)
    assert list(speeds.values()) == sorted(speeds.values())
    assert all(speed > max(recorded.peers.values()) for speed in (whole, [*speeds.values()][-1]) if speed)
    assert {mode["output_tokens"] for mode in recorded.modes} == {133_966}
    assert "H200" in recorded.provenance and "python -m tools.gpu_bench.engine" in recorded.provenance
