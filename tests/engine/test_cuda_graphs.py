"""Everything about captured steps that needs no GPU: what a graph is found by, and the rows that are put in its
places."""

import random

import pytest
import torch
from overlap_cases import BLOCK

from lessons_lib.attention.hf_backend import paged_attention_in
from lessons_lib.engine.cuda_graphs import GraphSize, captured_batch_sizes, captured_token_counts, next_size, rerun
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.input_batch import BlockTables, forward_batch
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.warm_up import warm_up
from lessons_lib.models.tiny_models import tiny_model
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence

SPARE = 40


def random_plan(seed, decodes=False):
    """Sequences with any number of tokens known and computed, in blocks scattered over 40."""
    rng = random.Random(seed)
    free = rng.sample(range(SPARE), SPARE)
    scheduler_output = SchedulerOutput()
    for number in range(rng.randint(1, 5)):
        prompt = [rng.randrange(97) for _ in range(rng.randint(1, 12))]
        output = [rng.randrange(97) for _ in range(rng.randint(1, 9))]
        sequence = Sequence(str(number), prompt, 30, output_ids=output)
        count = 1 if decodes else rng.randint(1, sequence.num_tokens)
        sequence.num_computed_tokens = (
            sequence.num_tokens - 1 if decodes else rng.randint(0, sequence.num_tokens - count)
        )
        sequence.blocks = [free.pop() for _ in range(-(-(sequence.num_computed_tokens + count) // BLOCK))]
        scheduler_output.num_scheduled_tokens[sequence] = count
    return scheduler_output


def tables_of(max_num_seqs, max_blocks):
    return BlockTables(SPARE, max_num_seqs, max_blocks)


def batch_of(scheduler_output, tables, num_seqs, previous_rows=None):
    return forward_batch(scheduler_output, tables, BLOCK, previous_rows, num_seqs)


def with_the_same_past(*runners, seed=0):
    """Fill the caches of all runners with the same random numbers."""
    for runner in runners:
        generator = torch.Generator().manual_seed(seed)
        for cache in (*runner.cache.keys, *runner.cache.values):
            cache.normal_(generator=generator)


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


def test_the_ladder_reaches_exactly_the_most_sequences():
    assert captured_batch_sizes(256) == [2, 4, 8, *range(16, 257, 16)]
    assert (
        captured_batch_sizes(5) == [2, 4, 5]
        and captured_batch_sizes(1) == [2]
        and captured_batch_sizes(20) == [2, 4, 8, 16, 20]
    )
    for most in range(1, 70):
        assert all(next_size(count, captured_batch_sizes(most)) >= count for count in range(1, most + 1))
    assert next_size(17, captured_batch_sizes(64)) == 32


def test_the_ladder_of_tokens_reaches_exactly_the_most():
    assert captured_token_counts(2048) == [16, 32, 64, *range(128, 1025, 128), 1280, 1536, 1792, 2048]
    assert captured_token_counts(100) == [16, 32, 64, 100]
    assert captured_token_counts(16) == [16] and captured_token_counts(1) == [1] and captured_token_counts(0) == []
    for most in (1, 15, 17, 129, 1023, 1025, 1300, 5000):
        counts = captured_token_counts(most)
        assert counts == sorted(set(counts)) and counts[-1] == most
        assert all(next_size(count, counts) >= count for count in range(1, most + 1))


# --- rows


@pytest.mark.parametrize("more_seqs, more_tokens", [(0, 0), (0, 5), (3, 0), (3, 7)])
@pytest.mark.parametrize("seed", range(10))
def test_a_batch_of_a_graph_is_the_plain_one_and_padding_that_nothing_reads(seed, more_seqs, more_tokens):
    scheduler_output = random_plan(seed)
    count, total = len(scheduler_output.num_scheduled_tokens), scheduler_output.num_tokens
    plain = forward_batch(scheduler_output, tables_of(8, 16), BLOCK)
    padded = forward_batch(scheduler_output, tables_of(8, 16), BLOCK, None, count + more_seqs, total + more_tokens)
    for name in ("input_ids", "positions", "slot_mapping"):
        own = getattr(padded, name).tolist()
        assert own[:total] == getattr(plain, name).tolist()
        assert own[total:] == [SPARE * BLOCK if name == "slot_mapping" else 0] * more_tokens
    for name in ("context_lens", "logits_index"):
        assert getattr(padded, name).tolist()[:count] == getattr(plain, name).tolist()
    assert padded.cu_seqlens_q.tolist() == plain.cu_seqlens_q.tolist() + [total] * more_seqs
    assert padded.block_tables[:count].tolist() == plain.block_tables.tolist()
    assert len(padded.context_lens) == len(padded.logits_index) == len(padded.block_tables) == count + more_seqs


# --- the operator


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("decodes", [False, True])
def test_logits_and_cache_are_those_of_the_plain_runner(runner, seed, graphs, decodes):
    scheduler_output, tested = random_plan(seed, decodes), runner(graphs=graphs)
    plain = ModelRunner(tiny_model("qwen2"), SPARE + 1, BLOCK)
    with_the_same_past(tested, plain, seed=seed)
    torch.testing.assert_close(tested.forward(scheduler_output), plain.forward(scheduler_output), rtol=1e-4, atol=1e-4)
    for own, other in zip([*tested.cache.keys, *tested.cache.values], [*plain.cache.keys, *plain.cache.values]):
        torch.testing.assert_close(
            own[:SPARE], other[:SPARE], rtol=1e-4, atol=1e-4
        )  # the filling has written to the spare block, and nowhere else


def test_steps_with_prompts_are_replayed_with_what_they_are_given_now(runner):
    """One graph serves many steps, one after another, of decodes, prompts and both."""
    tested, plain = runner(), ModelRunner(tiny_model("qwen2"), SPARE + 1, BLOCK)
    with_the_same_past(tested, plain)
    for seed in range(30):
        scheduler_output = random_plan(seed, decodes=seed % 3 == 2)
        torch.testing.assert_close(
            tested.forward(scheduler_output), plain.forward(scheduler_output), rtol=1e-4, atol=1e-4
        )
    sizes = set(tested.store.graphs)
    assert tested.store.num_captured == len(sizes)
    assert {size.num_tokens for size in sizes} >= {None, 16, 32} and len(sizes) < 8


def test_everything_is_captured_before_the_first_request(runner):
    tested = runner(max_captured_tokens=40)
    seen = []
    warm_up(tested, lambda steps: (seen.append(step) or step for step in steps))
    assert set(tested.store.graphs) == {
        *(GraphSize(count) for count in tested.sizes), *(GraphSize(5, count) for count in (16, 32, 40))
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
    assert tested.graph_size(SchedulerOutput({long: 10})) == (5, 10)
    assert tested.graph_size(SchedulerOutput({short: 2, with_logits: 2})) is None
    assert tested.graph_size(SchedulerOutput({short: 1, with_logits: 1})) == (2, None)
    assert len(tested.forward(SchedulerOutput({short: 2, with_logits: 2}))) == 3
    assert runner(max_captured_tokens=0).graph_size(SchedulerOutput({short: 2})) is None
    assert runner(graphs=False).graph_size(SchedulerOutput({short: 1})) is None


def test_the_operator_says_what_it_writes_and_what_comes_out():
    from lessons_lib.attention.custom_op import attend_paged, write_kv

    row = batch_of(random_plan(1), tables_of(5, 16), 5)
    count = len(row.input_ids)
    new = (torch.randn(count, 4, 8), torch.randn(count, 2, 8), torch.randn(count, 2, 8))
    caches = [torch.randn(SPARE + 1, BLOCK, 2, 8) for _ in range(2)]
    where = (row.cu_seqlens_q, row.context_lens, row.block_tables, row.max_lens)
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(write_kv, (*new[1:], *caches, row.slot_mapping), test_utils=utils)
    torch.library.opcheck(attend_paged, (new[0], *caches, *where, 0.3), test_utils=utils)


def test_a_compiled_model_takes_rows_of_all_sizes_in_one_piece():
    """Traced as for a GPU, and run as it is: compiling for a CPU would take half a minute."""
    from lessons_lib.engine.gpu_model_runner import compiled_logits

    torch._dynamo.reset()
    model = tiny_model("qwen2")
    runner = GPUModelRunner(model, SPARE, BLOCK, max_num_seqs=5, max_model_len=64, compiled=False, graphs=False)
    compiled = compiled_logits(runner.cache, backend="aot_eager", options=None)
    counters = torch._dynamo.utils.counters
    counters.clear()
    for seed in (0, 1, 2, 3):
        scheduler_output = random_plan(seed, decodes=seed == 3)
        expected = runner.forward(scheduler_output)
        num_seqs = max(2, len(scheduler_output.num_scheduled_tokens))
        num_tokens = None if seed in (0, 3) else scheduler_output.num_tokens + seed
        row = forward_batch(scheduler_output, runner.tables, BLOCK, None, num_seqs, num_tokens)
        with torch.inference_mode(), paged_attention_in(model):
            torch.testing.assert_close(
                compiled(model, runner.cache, row, runner.previous_tokens)[
                    : len(scheduler_output.num_scheduled_tokens)
                ],
                expected,
                rtol=1e-4,
                atol=1e-4,
            )
    assert counters["stats"]["unique_graphs"] == 1
    runner.close()


# --- keys


def swap_layer(runner):
    runner.cache.keys[1] = runner.cache.keys[1].clone()


def move_weight(runner):
    weight = runner.model.model.layers[0].mlp.up_proj.weight
    weight.data = weight.data.clone()


def replace_weight(runner):
    projection = runner.model.model.layers[1].self_attn.q_proj
    projection.weight = torch.nn.Parameter(projection.weight.data.clone(), requires_grad=False)


def new_inputs(runner):
    runner.buffers = type(runner.buffers)(runner.sizes[-1], runner.buffers.num_tokens, 16, BLOCK, torch.device("cpu"))


def wider_tables(runner):
    runner.buffers = type(runner.buffers)(runner.sizes[-1], runner.buffers.num_tokens, 20, BLOCK, torch.device("cpu"))
    runner.tables = tables_of(5, 20)


def other_tokens(runner):
    runner.previous_tokens = runner.previous_tokens.clone()


def not_compiled(runner):
    runner.compiled = not runner.compiled


@pytest.mark.parametrize(
    "change", [swap_layer, move_weight, replace_weight, new_inputs, wider_tables, other_tokens, not_compiled]
)
def test_a_cuda_graph_is_never_replayed_with_a_stale_key(runner, change):
    """A real engine did so: nothing failed, and its answers were worse."""
    tested, scheduler_output = runner(), random_plan(2, decodes=True)
    tested.forward(scheduler_output)
    tested.forward(scheduler_output)
    assert tested.store.num_captured == 1
    change(tested)
    tested.forward(scheduler_output)
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
    from lessons_lib.measuring.published import recorded_engine

    recorded = recorded_engine()
    speeds = {mode["name"]: mode["tokens_per_s"] for mode in recorded.modes}
    whole = speeds.pop("the whole engine", None)
    assert list(speeds.values()) == sorted(speeds.values())
    assert all(speed > max(recorded.peers.values()) for speed in (whole, [*speeds.values()][-1]) if speed)
    assert {mode["output_tokens"] for mode in recorded.modes} == {133_966}
    assert "H200" in recorded.provenance and "python -m tools.gpu_bench.engine" in recorded.provenance
