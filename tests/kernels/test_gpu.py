"""The kernels compiled, on an NVIDIA GPU. Nothing here needs a notebook; without a GPU, everything is skipped.

On a GPU, the other tests of this folder compile their kernels too; these have larger shapes, graphs and models.
"""

import copy
import random
from dataclasses import replace

from lessons_lib.kernels.triton_setup import kernel_device

import pytest
import torch
from answers import verdict
from overlap_cases import with_the_same_past
from paged_cases import Case, error, make_case, without_synchronizing
from term_models import term_model

from lessons_lib.batching.paged_batching import paged_generate
from lessons_lib.checks.registry import exercises_of, lesson_numbers
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.greedy_loop import serve_greedily
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kernels import launch as launching
from lessons_lib.kernels.basics import add_kernel
from lessons_lib.kernels.launch import has_hopper_kernel, launch_prefill
from lessons_lib.kernels.paged_flash import prefill_kernel
from lessons_lib.kernels.simple_paged import attend_blocks, decode_heads, single_head_kernel
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.measuring.stories import STORIES
from lessons_lib.models.loading import load_model
from lessons_lib.recording.kernel_accesses import OutOfBounds, record_kernel
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.scheduling.sequence import Sequence
from lessons_lib.scheduling.stalling import Scheduler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(kernel_device() != "cuda", reason="there is no NVIDIA GPU here, or kernels are interpreted"),
]

# Products in TF32 would be wrong by about 5e-4.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
FULL, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def check(what, got, case, expected=None):
    expected = case.reference() if expected is None else expected
    assert got.shape == case.q.shape and got.dtype == case.q.dtype
    relative = error(got, expected)
    assert relative < TOLERANCE[case.q.dtype], f"{what}: relative error {relative:.2g}"  # NaN is never less


def maxima_of(case):
    return dict(max_seqlen_q=int(case.cu_seqlens_q.diff().max()), max_context_len=int(case.context_lens.max()))


# --- against the reference


SHAPE = "dtype, q_heads, kv_heads, head_dim, block_size"


def shape_of(*sizes):
    return dict(zip(SHAPE.split(", "), sizes), device="cuda")


@pytest.mark.parametrize(
    SHAPE,
    [
        (BRAIN, 32, 8, 128, 16),
        (BRAIN, 14, 2, 64, 16),
        (BRAIN, 4, 4, 32, 8),
        (BRAIN, 8, 2, 80, 64),
        (BRAIN, 6, 2, 96, 24),
        (BRAIN, 8, 1, 192, 32),
        (BRAIN, 16, 4, 256, 16),
        (HALF, 14, 2, 64, 64),
        (HALF, 32, 8, 128, 16),
        (HALF, 4, 2, 256, 8),
        (FULL, 14, 2, 64, 16),
        (FULL, 8, 2, 80, 16),
        (FULL, 32, 8, 128, 64),
        (FULL, 4, 2, 256, 16),
    ],
)
def test_both_kernels_equal_the_gathered_reference(dtype, q_heads, kv_heads, head_dim, block_size):
    shape, size = shape_of(dtype, q_heads, kv_heads, head_dim, block_size), block_size
    row = make_case([200, 1, 77, 1, 2, 1], [200, 1300, 500, size, size + 1, 2 * size - 1], shared=1, **shape)
    expected = row.reference()
    check("varlen", row.varlen(), row, expected)
    check("varlen, maxima given", row.varlen(**maxima_of(row)), row, expected)
    decodes = make_case([1] * 6, [1, size - 1, size, size + 1, 700, 2500], **shape)
    expected = decodes.reference()
    check("decode", decodes.decode(), decodes, expected)
    check("decodes as a row", decodes.varlen(**maxima_of(decodes)), decodes, expected)


def hopper_launch(q, *caches):
    """Its launch; on another GPU, the test is skipped."""
    if not has_hopper_kernel(q, *caches, None):
        pytest.skip("this GPU isn't a Hopper")
    from lessons_lib.kernels.hopper_prefill import launch_hopper_prefill

    return launch_hopper_prefill


@pytest.mark.parametrize(
    SHAPE,
    [
        (BRAIN, 32, 8, 128, 16),
        (BRAIN, 14, 2, 64, 16),
        (HALF, 4, 4, 128, 64),
        (HALF, 8, 1, 64, 8),
        (BRAIN, 6, 2, 128, 32),
        (BRAIN, 6, 2, 96, 16),
        (HALF, 5, 1, 80, 64),
    ],
)
def test_the_hopper_kernel_computes_what_the_other_does(dtype, q_heads, kv_heads, head_dim, block_size):
    """Prompts that end in a block, in a tile, at both; chunks after a prefix; decodes between them, left alone."""
    q_lens, context_lens = [200, 1, 77, 128, 2, 300, 64, 5], [200, 1300, 500, 128, 2, 811, 1024, 1000]
    case = make_case(q_lens, context_lens, **shape_of(dtype, q_heads, kv_heads, head_dim, block_size))
    pieces = (case.q, case.k_cache, case.v_cache, case.block_tables, case.context_lens, case.cu_seqlens_q)
    out, other = torch.zeros_like(case.q), torch.zeros_like(case.q)
    hopper_launch(*pieces[:3])(*pieces, out, case.scale)
    launch_prefill(*pieces, other, case.scale, kernel=prefill_kernel)
    assert not out[200].any(), "the decode is left to its own kernel"
    is_prefill = torch.arange(len(out), device="cuda") != 200
    expected = case.reference()[is_prefill]
    for name, got in {"Hopper": out, "any GPU": other}.items():
        assert error(got[is_prefill], expected) < TOLERANCE[dtype], name


def test_a_long_prefill_takes_the_hopper_kernel():
    case = make_case([1100], [1100], 8, 2, 128, 16, BRAIN, device="cuda")
    launch, outs = hopper_launch(case.q, case.k_cache, case.v_cache), [torch.zeros_like(case.q) for _ in range(2)]
    for each, out in zip((launch, launch_prefill), outs):
        each(case.q, *case.cache, out, case.scale)
    assert torch.equal(*outs)
    maxima = maxima_of(case)
    graph, out = captured(lambda: case.varlen(**maxima))
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, outs[0])


def test_many_sequences_fill_the_gpu_several_times_over():
    rng, shape = random.Random(5), shape_of(BRAIN, 14, 2, 64, 16)
    contexts = [rng.randint(1, 400) for _ in range(300)]
    case = make_case([1] * 300, contexts, **shape)
    check("decode", case.decode(), case)
    case = make_case([rng.choice((1, 1, rng.randint(1, context))) for context in contexts], contexts, **shape)
    check("varlen", case.varlen(**maxima_of(case)), case)


@pytest.mark.parametrize("contexts", [[1, 30_000], [30_000] + [40] * 255, [5000] * 8], ids=["1, 30,000", "one", "8"])
def test_long_contexts_are_split_and_merged(contexts):
    case = make_case([1] * len(contexts), [1] * len(contexts), **shape_of(BRAIN, 14, 2, 64, 16))
    lens = torch.tensor(contexts, dtype=torch.int32, device="cuda")
    # Made on the GPU: `make_case` writes slot by slot.
    caches = [torch.randn(2048, 16, 2, 64, device="cuda", dtype=BRAIN) for _ in range(2)]
    tables = torch.randint(2048, (len(contexts), 2000), device="cuda", dtype=torch.int32)
    case = replace(case, k_cache=caches[0], v_cache=caches[1], context_lens=lens, block_tables=tables)
    check("decode", case.decode(), case)
    again = [case.varlen(max_seqlen_q=1, max_context_len=most) for most in (30_000, 32_000)]
    assert torch.equal(*again), "the room in the tables changes the result"


# --- CUDA graphs, and no synchronization


def captured(call):
    """(graph, output) of a call that has run before: what is compiled at the first call can't be captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    return graph, out


def rewrite(case, other):
    """Copy another case into the same tensors, which a graph keeps reading."""
    for name in ("q", "k_cache", "v_cache", "cu_seqlens_q", "context_lens", "block_tables"):
        getattr(case, name).copy_(getattr(other, name))


def fitting(q_lens, context_lens, seed, num_blocks=400, columns=120):
    """Cases whose tensors have the same shapes, whatever their lengths."""
    case = make_case(q_lens, context_lens, **shape_of(BRAIN, 14, 2, 64, 16), seed=seed)
    caches = [cache.new_full((num_blocks, *cache.shape[1:]), float("nan")) for cache in (case.k_cache, case.v_cache)]
    for large, small in zip(caches, (case.k_cache, case.v_cache)):
        large[: len(small)] = small
    tables = case.block_tables.new_full((len(context_lens), columns), -(10**6))
    tables[:, : case.block_tables.shape[1]] = case.block_tables
    return replace(case, k_cache=caches[0], v_cache=caches[1], block_tables=tables)


# The same numbers of tokens and sequences, with other lengths: prefills become decodes and vice versa.
DECODES = [([1] * 4, contexts) for contexts in ([1, 16, 17, 1500], [1600, 3, 32, 600], [1, 1, 1, 1])]
ROWS = [
    ([60, 1, 40, 1], [60, 1300, 800, 16]),
    ([1, 99, 1, 1], [1800, 99, 1, 700]),
    ([25, 25, 26, 26], [25, 40, 900, 33]),
]


@pytest.mark.parametrize(
    "lengths, attend",
    [(DECODES, Case.decode), (ROWS, lambda case: case.varlen(max_seqlen_q=100, max_context_len=1900))],
    ids=["decodes", "rows"],
)
def test_a_captured_call_follows_what_is_written_into_its_tensors(lengths, attend):
    case = fitting(*lengths[0], seed=0)
    graph, out = captured(lambda: attend(case))
    for seed, (q_lens, contexts) in enumerate(lengths):
        rewrite(case, fitting(q_lens, contexts, seed))
        out.fill_(float("nan"))
        graph.replay()
        check(f"replayed, {q_lens}, {contexts}", out, case)
        assert torch.equal(out, attend(case)), "a replay differs from a call"


def test_only_with_both_maxima_given_nothing_synchronizes():
    decodes, row, most = (
        fitting(*DECODES[0], seed=0),
        fitting(*ROWS[0], seed=0),
        dict(max_seqlen_q=60, max_context_len=1300),
    )
    decodes.decode(), row.varlen(**most)  # compiling may synchronize
    with without_synchronizing():
        decodes.decode(), row.varlen(**most)
        for given in ({}, {"max_seqlen_q": 60}, {"max_context_len": 1300}):
            with pytest.raises(RuntimeError, match="synchronizing"):
                row.varlen(**given)


# --- in a model


@pytest.fixture(scope="module")
def served():
    """The bundled model in float32, and sixty ragged requests."""
    model, tokenizer = load_model(device="cuda", dtype=torch.float32)
    rng = random.Random(0)
    prompts = []
    for _ in range(60):
        words = " ".join(story.prompt for story in rng.sample(STORIES, 3)).split()
        prompts.append(tokenizer(" ".join(words[: rng.choice((1, 5, 12, 30, len(words)))])).input_ids)
    return model, tokenizer, prompts, [rng.choice((1, 5, 20, 60)) for _ in prompts]


@pytest.mark.parametrize("block_size", [16, 64])
def test_greedy_tokens_of_sixty_requests_equal_those_of_the_pytorch_backend(served, monkeypatch, block_size):
    """On a GPU the kernels are chosen without asking."""
    calls, launch = [], launching.launch_decode
    monkeypatch.setattr(launching, "launch_decode", lambda *args, **kwargs: calls.append(1) or launch(*args, **kwargs))
    model, tokenizer, prompts, max_tokens_each = served
    options = dict(max_new_tokens=max_tokens_each, max_num_seqs=16, block_size=block_size)
    expected = paged_generate(model, tokenizer, prompts, **options, backend="torch")
    assert not calls and sum(map(len, expected)) > 300
    for number, (own, other) in enumerate(zip(paged_generate(model, tokenizer, prompts, **options), expected)):
        assert own == other, f"request {number}"
    assert calls


# --- recording on a machine where kernels are compiled


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_recording_leaves_compiled_kernels_as_they_were(device):
    def compiled(head_dim):
        case = make_case([20, 1], [40, 90], head_dim=head_dim, dtype=BRAIN, device="cuda")
        check("varlen", case.varlen(**maxima_of(case)), case)
        case = make_case([1, 1], [40, 90], head_dim=head_dim, dtype=BRAIN, device="cuda")
        check("lesson 07", decode_heads(*case.decode_inputs), case)

    compiled(32)
    case = make_case([1], [17], q_heads=1, kv_heads=1, device=device)
    out, caches = torch.zeros(32, device=device), (case.k_cache, case.v_cache, case.block_tables)
    arguments = (attend_blocks, case.q, *caches, out, 17, case.scale, *case.k_cache.stride()[:2])
    recording = record_kernel(single_head_kernel, (1,), *arguments, HEAD_DIM=32, BLOCK_SIZE=8)
    assert error(out, case.reference().flatten()) < TOLERANCE[FULL] and len(recording.programs[0].accesses) > 6
    numbers = torch.zeros(5, device=device)
    with pytest.raises(OutOfBounds):
        record_kernel(add_kernel, (4,), numbers, numbers, numbers, 500, BLOCK=4)
    compiled(32)  # compiled before
    compiled(64 if device == "cpu" else 128)  # and compiled only now


# --- recording on a machine where kernels are compiled


def exercises():
    return [exercise for lesson in ("07", "08") if lesson in lesson_numbers() for exercise in exercises_of(lesson)]


@pytest.mark.parametrize("exercise", exercises(), ids=lambda exercise: exercise.id)
def test_the_checks_of_kernels_accept_the_reference_where_kernels_are_compiled(exercise):
    panel = verdict(exercise.id, exercise.load_reference())
    assert panel.kind == "right", str(panel)
    case = make_case([20, 1], [40, 90], dtype=BRAIN, device="cuda")
    check("varlen, after a check", case.varlen(**maxima_of(case)), case)


# --- large caches: a wrong address here may leave the GPU unusable for the process

HEADS, SIZE, DIM = 8, 16, 128
A_BLOCK = SIZE * HEADS * DIM
NUM_BLOCKS = 2**31 // A_BLOCK + 200


@pytest.fixture(scope="module")
def large_caches():
    """More than 2**31 elements in each cache: 4.3 GB. NaN wherever there is no sequence."""
    if torch.cuda.mem_get_info()[0] < 14 * 2**30:
        pytest.skip("needs 14 GB of free GPU memory")
    caches = [torch.full((NUM_BLOCKS, SIZE, HEADS, DIM), float("nan"), dtype=BRAIN, device="cuda") for _ in range(2)]
    assert caches[0].numel() > 2**31
    yield caches
    caches.clear()
    torch.cuda.empty_cache()


def at_the_end(caches, q_lens, context_lens, every):
    """A case whose sequences are in the last blocks.

    With `every` of 2, the cache is a view of every other block: fewer than 2**31 elements, but the same offsets.
    """
    small = make_case(q_lens, context_lens, **shape_of(BRAIN, 32, HEADS, DIM, SIZE))
    k_cache, v_cache = (cache[::every] for cache in caches)
    moved = len(k_cache) - len(small.k_cache)
    k_cache[moved:], v_cache[moved:] = small.k_cache, small.v_cache
    tables = torch.where(small.block_tables >= 0, small.block_tables + moved, small.block_tables)
    return replace(small, k_cache=k_cache, v_cache=v_cache, block_tables=tables)


@pytest.mark.parametrize("every", [1, 2])
def test_both_kernels_reach_offsets_beyond_32_bits(large_caches, every):
    case = at_the_end(large_caches, [1, 1, 1], [700, 16, 33], every)
    first = int(case.block_tables[case.block_tables >= 0].min())
    assert first * case.k_cache.stride(0) > 2**31, "all blocks are beyond"
    check("decode", case.decode(), case)
    case = at_the_end(large_caches, [90, 1, 20], [400, 300, 20], every)
    check("varlen", case.varlen(**maxima_of(case)), case)


# --- models whose layers have terms


@pytest.mark.parametrize("model_type", ["gemma2", "gpt_oss", "llama4_text", "deepseek_v3", "gemma4_text"])
def test_models_with_terms_generate_the_same_through_the_kernels(model_type):
    """In float32, and as the engine serves them: in a packed, chunked batch."""
    model = copy.deepcopy(term_model(model_type)).cuda()
    rng = random.Random(3)
    prompts = [[rng.randrange(97) for _ in range(length)] for length in (1, 6, 7, 31)]

    def generate(backend):
        scheduler = Scheduler(BlockPool(80, 4), max_num_seqs=3, max_num_batched_tokens=13)
        sequences = [Sequence(str(index), prompt, 8) for index, prompt in enumerate(prompts)]
        return serve_greedily(ModelRunner(model, 80, 4, backend), scheduler, sequences)

    assert generate("triton") == generate("torch")


@pytest.mark.parametrize("model_type", ["gemma2", "mistral", "gemma4_text"])  # no experts: routing reads the GPU
def test_models_with_terms_from_cuda_graphs(model_type):
    model = copy.deepcopy(term_model(model_type)).cuda()
    runner = GPUModelRunner(model, 40, 4, max_num_seqs=4, max_model_len=64, compiled=False)
    plain = ModelRunner(model, 41, 4, "torch")
    with_the_same_past(runner, plain)
    for lengths in ((20, 9), (21, 10)):
        step = SchedulerOutput()
        for first, length in zip((0, 10), lengths):
            blocks = list(range(first, first + 6))
            sequence = Sequence(str(first), range(length), 9, num_computed_tokens=length - 1, blocks=blocks)
            step.num_scheduled_tokens[sequence] = 1
        torch.testing.assert_close(runner.forward(step), plain.forward(step), rtol=1e-3, atol=1e-3)
    assert runner.store.num_captured == 1
    runner.close()
