"""Both attention kernels against a float32 reference that gathers the blocks. Without a GPU, through Triton's interpreter."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from paged_cases import error, make_case

LIBRARY = Path(__file__).resolve().parent.parent
HAS_GPU = torch.cuda.is_available()
TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1e-2}

# name -> arguments of make_case, dtype by name
CASES = {
    "decodes, contexts around a block's end": dict(q_lens=[1] * 5, context_lens=[1, 7, 8, 9, 33]),
    "one decode over several splits": dict(q_lens=[1], context_lens=[1100], block_size=64),
    "prefills, chunks and decodes": dict(q_lens=[5, 1, 20, 1, 3], context_lens=[5, 17, 33, 1, 30]),
    "a chunk after a context that ends on a block": dict(q_lens=[7, 2], context_lens=[23, 18]),
    "one prefill of one token beside another": dict(q_lens=[1, 2], context_lens=[1, 2]),
    "14 query heads over 2": dict(q_lens=[9, 1], context_lens=[9, 40], q_heads=14, head_dim=64, block_size=16),
    "as many KV heads as query heads": dict(q_lens=[3, 1], context_lens=[3, 20], q_heads=3, kv_heads=3),
    "one KV head for 20": dict(q_lens=[2, 1], context_lens=[12, 20], q_heads=20, kv_heads=1),
    "head size 80": dict(q_lens=[4, 1], context_lens=[4, 11], head_dim=80),
    "head size 256": dict(q_lens=[4, 1], context_lens=[4, 11], head_dim=256),
    "float16": dict(q_lens=[4, 1], context_lens=[9, 11], dtype="float16"),
    "shared blocks": dict(q_lens=[4, 1, 1], context_lens=[20, 17, 40], shared=2),
    "a block of 64 for short ones": dict(q_lens=[1, 3], context_lens=[2, 65], block_size=64),
}

if HAS_GPU:
    CASES["bfloat16"] = dict(q_lens=[4, 1], context_lens=[9, 11], dtype="bfloat16")
    CASES["bfloat16, large"] = dict(
        q_lens=[300, 1, 700, 1], context_lens=[300, 5000, 1800, 4096], q_heads=32, kv_heads=8, head_dim=128, block_size=16, dtype="bfloat16"
    )


def run_case(name, device):
    arguments = dict(CASES[name])
    dtype = arguments.pop("dtype", "float32")
    case = make_case(**arguments, dtype=getattr(torch, dtype), device=device)
    expected = case.reference()
    results = {"varlen": case.varlen(), "varlen, maxima given": case.varlen(max_seqlen_q=max(arguments["q_lens"]), max_context_len=max(arguments["context_lens"]))}
    if set(arguments["q_lens"]) == {1}:
        results["decode"] = case.decode()
    return {what: [error(got, expected), TOLERANCE[dtype]] for what, got in results.items()}


@pytest.fixture(scope="module")
def errors():
    """Of every case. The interpreter is chosen when Triton is imported, so without a GPU another process computes them."""
    if HAS_GPU:
        return {name: run_case(name, "cuda") for name in CASES}
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([str(LIBRARY), str(LIBRARY / "tests")])}
    code = "import json, test_kernels as t; print(json.dumps({name: t.run_case(name, 'cpu') for name in t.CASES}))"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_kernels_equal_the_gathered_reference(errors, name):
    for what, (got, tolerance) in errors[name].items():
        assert got < tolerance, f"{what}: relative error {got:.2g}"  # NaN is never less


def broken(**changes):
    case = make_case([2, 1], [2, 9])
    for name, change in changes.items():
        setattr(case, name, change(getattr(case, name)))
    return case


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(q=lambda t: t[0]), "q has the shape"),
        (dict(v_cache=lambda t: t[:1]), "both must be alike"),
        (dict(q=lambda t: t[..., :16]), "4 heads of size 16, the cache 2 of size 32"),
        (dict(q=lambda t: t[:, :3]), "3 heads of size 32, the cache 2"),
        (dict(q=lambda t: t.half()), "q is torch.float16, the caches torch.float32"),
        (dict(q=lambda t: t.double(), k_cache=lambda t: t.double(), v_cache=lambda t: t.double()), "must be one of float32"),
        (dict(q=lambda t: t.bfloat16(), k_cache=lambda t: t.bfloat16(), v_cache=lambda t: t.bfloat16()), "interpreter takes the bits of bfloat16"),
        (dict(q=lambda t: t.transpose(1, 2).contiguous().transpose(1, 2)), "contiguous"),
        (dict(block_tables=lambda t: t[:1]), "block_tables has the shape"),
        (dict(block_tables=lambda t: t.long()), "block_tables is torch.int64"),
        (dict(context_lens=lambda t: t.long()), "context_lens torch.int64"),
        (dict(cu_seqlens_q=lambda t: t[:-1]), r"cu_seqlens_q is torch.int32 of shape \[2\]; for 2 sequences it must be torch.int32 of shape \[3\]"),
        (dict(cu_seqlens_q=lambda t: t.long()), "cu_seqlens_q is torch.int64"),
    ],
)
def test_what_the_kernels_can_not_take_is_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        broken(**changes).varlen()


def test_a_decode_has_one_token_a_sequence():
    with pytest.raises(ValueError, match="q has 3 tokens and context_lens 2 sequences"):
        make_case([2, 1], [2, 9]).decode()


def test_nothing_in_nothing_out():
    case = make_case([], [])
    assert case.varlen().shape == case.decode().shape == case.q.shape


@pytest.mark.parametrize("num_seqs, kv_heads, longest", [(1, 8, 8192), (8, 8, 8192), (64, 2, 2048), (256, 8, 32768), (1, 1, 1), (3, 2, 100)])
def test_splits_fill_the_processors_and_stay_within_bounds(num_seqs, kv_heads, longest):
    from lessons_lib.triton_attention import keys_a_split

    split = keys_a_split(num_seqs, kv_heads, longest, num_processors=132)
    assert 512 <= split <= 2048 and split % 512 == 0
    programs = num_seqs * kv_heads * -(-longest // split)
    assert programs >= 132 or split == 512


@pytest.mark.parametrize("blocks, gap, is_wide", [(2**31 // 2048, 1, False), (2**31 // 2048 + 1, 1, True), (2**30 // 2048, 2, False), (2**30 // 2048 + 2, 2, True)])
def test_places_beyond_32_bits_are_noticed_in_views_too(blocks, gap, is_wide):
    """Blocks of 2,048 numbers; with a gap of 2, every other block of a tensor twice as large. Nothing is allocated."""
    from lessons_lib.triton_attention import _is_wide

    cache = torch.empty_strided((blocks, 16, 2, 64), (2048 * gap, 128, 64, 1), device="meta")
    assert _is_wide(cache) == is_wide
