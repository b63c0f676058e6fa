"""Windows, chunks, softcaps, sinks, ALiBi and values of another head size: every backend against plain attention.

Without a GPU, the kernels run through Triton's interpreter.
"""

from dataclasses import replace

from lessons_lib.kernels.triton_setup import kernel_device

import pytest
import torch
from compiled import Compiled
from how_many import by_day
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_cases import by_launching, error, make_case, make_terms

from lessons_lib.attention.custom_op import attend_paged
from lessons_lib.attention.paged_attention import plan_torch
from lessons_lib.attention.score_terms import ScoreTerms
from lessons_lib.kernels.launch import Tiles, launch_decode, launch_prefill, plan_triton
from lessons_lib.kernels.paged_flash import decode_kernel, prefill_kernel
from lessons_lib.measuring.compile_check import can_compile
from lessons_lib.recording.kernel_accesses import Recorder

DEVICE = kernel_device()
UPTO = {torch.float32: 1e-5, torch.float16: 3e-3} | ({torch.bfloat16: 2e-2} if DEVICE == "cuda" else {})


def by_operator(case, terms):
    max_lens = torch.tensor([int(case.cu_seqlens_q.diff().max()), int(case.context_lens.max())])
    where = (case.cu_seqlens_q, case.context_lens, case.block_tables, max_lens)
    return attend_paged(case.q, case.k_cache, case.v_cache, *where, case.scale, **vars(terms))


def by_plan(plan):
    def attend(case, terms):
        tables = case.block_tables
        return plan(case, tables, case.k_cache.shape[1])(case.q, case.k_cache, case.v_cache, case.scale, terms)

    return attend


BACKENDS = {
    "kernels": by_launching,
    "plan_triton": by_plan(plan_triton),
    "PyTorch": by_plan(plan_torch),
    "operator": by_operator,
}


def check(case, terms, backends=BACKENDS):
    expected = case.reference(terms)
    for name in backends:
        got = BACKENDS[name](case, terms)
        assert got.shape == expected.shape and got.dtype == case.q.dtype, name
        assert error(got, expected) < UPTO[case.q.dtype], f"{name}, {terms}: {error(got, expected):.2g}"


# name -> terms; contexts are up to 60, blocks of 8, splits of 24, tiles of 16 keys
TERMS = {
    "a window of 1": dict(window=1),
    "a window within a block": dict(window=5),
    "a window of one split and a bit": dict(window=25),
    "chunks": dict(chunk=12),
    "sinks": dict(sinks=True),
    "all of them": dict(window=9, softcap=2.0, sinks=True, alibi=True),
    "chunks, sinks and softcap": dict(chunk=20, softcap=2.0, sinks=True),
}


@pytest.mark.parametrize("name", TERMS)
def test_every_backend_equals_plain_attention(name):
    case = make_case([1, 19, 1], [60, 31, 24], q_heads=4, head_dim=16, device=DEVICE)
    terms = make_terms(case, **TERMS[name])
    check(case, terms)
    assert error(case.reference(terms), case.reference()) > 1e-2


@pytest.mark.parametrize("name", ["none", "all of them"])
def test_the_padding_of_a_captured_step_changes_nothing(name):
    """Sequences without tokens, and tokens behind the last sequence: their inputs are NaN, and nothing reads them."""
    case = make_case([1, 9, 1], [40, 12, 24], q_heads=2, kv_heads=1, head_dim=16, device=DEVICE)
    terms = make_terms(case, **TERMS.get(name, {}))
    expected, count = case.reference(terms), len(case.q)
    nothing = torch.zeros(3, dtype=torch.int32, device=DEVICE)
    padded = replace(
        case,
        q=torch.cat([case.q, torch.full_like(case.q[:5], float("nan"))]),
        cu_seqlens_q=torch.cat([case.cu_seqlens_q, nothing + count]),
        context_lens=torch.cat([case.context_lens, nothing]),
        block_tables=torch.cat([case.block_tables, case.block_tables[:3] * 0]),
    )
    for backend in (by_launching, by_operator):
        assert error(backend(padded, terms)[:count], expected) < UPTO[case.q.dtype], backend


@pytest.mark.parametrize("dims, window", [((24, 16), 6), ((32, 80), None)])
def test_values_with_heads_of_another_size(dims, window):
    case = make_case([1, 7, 1], [40, 31, 2], q_heads=2, kv_heads=1, head_dim=dims[0], value_dim=dims[1], device=DEVICE)
    check(case, make_terms(case, window=window, sinks=window is not None))


@st.composite
def cases_and_terms(draw):
    new = draw(st.lists(st.sampled_from([1, 1, 2, 9, 17]), min_size=1, max_size=4))
    cached = [draw(st.sampled_from([0, 1, 7, 8, 25, 50])) for _ in new]
    heads = draw(st.sampled_from([(4, 2), (2, 2), (7, 1)]))
    block_size = draw(st.sampled_from([8, 16, 24]))
    of_values = dict(dtype=draw(st.sampled_from(list(UPTO))), value_dim=draw(st.sampled_from([None, None, 8, 24])))
    drawn = dict(seed=draw(st.integers(0, 99)), shared=draw(st.sampled_from([0, 2])), **of_values)
    lengths = (new, [a + b for a, b in zip(new, cached)])
    case = make_case(*lengths, *heads, head_dim=16, block_size=block_size, device=DEVICE, **drawn)
    size = st.sampled_from([1, 3, block_size, block_size + 1, 24, 26, 500])
    kind = draw(st.sampled_from(["window", "chunk", None]))
    numbers = {kind: draw(size)} if kind else {}
    softcap = draw(st.sampled_from([None, 0.5, 30.0]))
    flags = dict(sinks=draw(st.booleans()), alibi=draw(st.booleans()))
    return case, make_terms(case, softcap=softcap, **flags, **numbers)


@settings(max_examples=by_day(8, 16))
@given(case_and_terms=cases_and_terms(), rows=st.sampled_from([16, 32]), split=st.sampled_from([16, 40, 1000]))
def test_random_cases(case_and_terms, rows, split):
    case, terms = case_and_terms
    expected = case.reference(terms)
    assert error(by_launching(case, terms, rows, 16, split), expected) < UPTO[case.q.dtype]
    assert error(BACKENDS["PyTorch"](case, terms), expected) < UPTO[case.q.dtype]


def test_a_sink_far_above_and_far_below_the_scores():
    case = make_case([1, 5], [40, 9], device=DEVICE)
    for value in (-40.0, 40.0):
        terms = ScoreTerms(sinks=torch.full((4,), value, device=DEVICE))
        check(case, terms, ["kernels", "PyTorch"])
    assert BACKENDS["kernels"](case, terms).abs().max() < 1e-12, "the sink takes all of the weight"


def test_a_prefill_reads_no_key_before_the_window_of_its_first_token():
    case, terms = make_case([4], [60]), ScoreTerms(window=10)
    kernel, out = Recorder(prefill_kernel), torch.empty_like(case.q)
    launch_prefill(case.q, *case.cache, out, case.scale, terms=terms, tiles=Tiles(16, 16, 4, 2), kernel=kernel)
    assert error(out, case.reference(terms)) < 1e-5
    accesses = [access for program in kernel.recording.programs for access in program.accesses]
    offsets = torch.cat([torch.as_tensor(each.offsets).flatten() for each in accesses if each.tensor == "k_cache"])
    blocks = kernel.recording.tensors["k_cache"].indices_of(offsets)[:, 0].tolist()
    first = min(case.block_tables[0].tolist().index(block) for block in blocks)
    assert first == (57 - 10) // 8, "the first block that is read"


# --- what is refused


@pytest.mark.parametrize(
    "terms, says",
    [
        (ScoreTerms(window=0), "window is 0 and chunk None"),
        (ScoreTerms(chunk=-1), "chunk -1"),
        (ScoreTerms(window=4, chunk=4), "take one of them"),
        (ScoreTerms(sinks=torch.zeros(3)), r"sinks has shape \[3\].* each of 4 query heads"),
        (ScoreTerms(alibi_slopes=torch.zeros(8)[::2]), "alibi_slopes has .*contiguous"),
    ],
)
def test_terms_that_the_kernels_cannot_take_are_refused(terms, says):
    case = make_case([1, 2], [4, 5])
    with pytest.raises(ValueError, match=says):
        case.varlen(terms)


# --- the compiler


@pytest.mark.skipif(not can_compile(), reason="this Triton can not compile for a GPU that is not there")
@pytest.mark.parametrize("name", ["none", "a window within a block", "chunks", "sinks", "all of them"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_kernels_compile_too(name, dtype):
    """The interpreter accepts what the compiler refuses; this needs no GPU."""
    value_dim = None if name == "none" else 64
    case = make_case([1, 5], [40, 9], q_heads=14, kv_heads=2, head_dim=80, value_dim=value_dim, dtype=dtype)
    decode, prefill = (Compiled(kernel) for kernel in (decode_kernel, prefill_kernel))
    cache, terms = (*case.cache, case.q, case.scale), make_terms(case, **TERMS.get(name, {}))
    launch_decode(case.q, *cache, 40, terms=terms, split_size=24, kernel=decode)
    launch_prefill(case.q, *cache, terms=terms, kernel=prefill)
    if name == "none":
        launch_prefill(case.q, *cache, use_int64=True, kernel=prefill)
    assert {*decode.refusals, *prefill.refusals} == {None}
