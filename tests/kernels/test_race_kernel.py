"""The race for a token in one kernel draws what PyTorch's draws, without a GPU through Triton's interpreter."""

import math
import random

import lessons_lib.kernels.triton_setup  # noqa: F401 - before Triton: decides whether kernels are compiled

# isort: split
from lessons_lib.kernels.triton_setup import kernel_device

import pytest
import race_oracle
import torch
import triton
import triton.language as tl
from paged_cases import without_synchronizing

from lessons_lib.engine import sampling as plain
from lessons_lib.engine.sampling import NO_TOKEN, choose_tokens, race_on
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.kernels import race as kernel
from lessons_lib.measuring.compile_check import can_compile, why_not_compiled

DEVICE = kernel_device()
on_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="there is no NVIDIA GPU here, or kernels are interpreted")
CUTS = (
    {}, dict(top_k=1), dict(top_k=7), dict(top_k=50), dict(top_p=1e-6), dict(top_p=0.5), dict(top_p=0.95),
    dict(top_k=20, top_p=0.7), dict(min_p=0.1), dict(min_p=0.02, top_k=9), dict(min_p=0.01, top_p=0.8, top_k=10**9),
    dict(min_p=1.0),
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(kernel, "TILE", 128)


def a_case(seed, vocabulary):
    """Logits, some equal or -inf, with a rule and a seed for each row."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    logits = torch.randn(len(CUTS), vocabulary, generator=generator) * rng.choice([0.0, 0.5, 3.0, 30.0])
    if rng.random() < 0.3:
        logits = logits.round()
    if rng.random() < 0.3:
        logits[:, :: rng.randint(2, 5)] = -math.inf
        logits[:, 1 % vocabulary] = 0.5
    heat = [rng.choice([1e-3, 0.3, 0.8, 1.0, 2.0, 100.0, 1e300]) for _ in CUTS]
    params = [SamplingParams(temperature=each, **cut) for each, cut in zip(heat, CUTS)]
    return logits, params, [rng.randrange(-9, 2**65) for _ in CUTS], [rng.randrange(2000) for _ in CUTS]


def drawn(race, logits, params, seeds, positions, rows=None):
    rows = range(len(logits)) if rows is None else rows
    table = plain.settings_table(rows, params, seeds, positions, logits.shape[-1])
    tokens = torch.full((len(logits),), -7, device=logits.device)
    race(logits, logits.amax(dim=-1), table.to(logits.device), tokens)
    return tokens.tolist()


@pytest.mark.parametrize("seed, vocabulary, dtype", [
    (0, 1, torch.float32), (1, 2, torch.bfloat16), (2, 128, torch.float32), (3, 129, torch.float16),
    (4, 97, torch.bfloat16), (5, 200, torch.float32),
])  # fmt: skip
def test_tokens_are_those_of_the_race_in_pytorch(seed, vocabulary, dtype):
    logits, *rules = a_case(seed, vocabulary)
    logits = logits.to(dtype)
    expected = drawn(plain.race, logits, *rules)
    found = drawn(kernel.race, logits.to(DEVICE), *rules)
    # A compiled kernel rounds logarithms otherwise.
    assert sum(one != other for one, other in zip(found, expected)) <= (DEVICE == "cuda")


def test_rows_that_are_not_asked_for_or_no_numbers_stay_as_they_are():
    logits, *rules = a_case(3, 90)
    expected = drawn(plain.race, logits, *rules)
    for row, bad in ((1, math.nan), (4, math.inf), (5, -math.inf)):
        logits[row] = bad
    asked = [0, 1, 3, 4, 5, 9]
    found = drawn(kernel.race, logits.to(DEVICE), *rules, rows=asked)
    assert found == [token if row in (0, 3, 9) else -7 for row, token in enumerate(expected)]


def test_rows_of_other_strides():
    logits, *rules = a_case(5, 70)
    asked = [0, 5, 7]
    for view in (logits[:1].expand(len(CUTS), -1), torch.cat([logits, logits], dim=1)[:, 70:], logits.T.contiguous().T):
        expected = drawn(plain.race, view.contiguous(), *rules, rows=asked)
        assert drawn(kernel.race, view.to(DEVICE), *rules, rows=asked) == expected


@triton.jit
def kth_largest_kernel(row, vocabulary, low, high, k, out, TILE: tl.constexpr):
    tl.store(out, kernel.kth_largest(row, vocabulary, tl.load(low), tl.load(high), k, TILE))


@pytest.mark.parametrize("values", [
    [0.0, -0.0, 1e-45, -1e-45, 0.0], [3e38, -3e38, 1.0, 1.0, -math.inf], [5.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0],
    [1.0, 1.0 + 2**-23, 1.0 + 2**-22, -1.0, -1.0 - 2**-23],
])  # fmt: skip
def test_the_kth_largest_of_any_floats(values):
    row, found = torch.tensor(values, device=DEVICE), torch.empty(1, device=DEVICE)
    for low in (-math.inf, sorted(values)[1]):
        for k in range(2, 6):
            kth_largest_kernel[(1,)](row, 5, torch.tensor([low], device=DEVICE), row.amax()[None], k, found, TILE=8)
            expected = max(sorted(values)[-k], low)
            assert (row >= found).tolist() == [value >= expected for value in values]


@pytest.mark.skipif(not can_compile(), reason="this Triton can not compile for a GPU that is not there")
def test_it_compiles():
    logits, *rules = a_case(1, 100)
    table = plain.settings_table(range(len(CUTS)), *rules, 100)
    for dtype in (torch.float32, torch.bfloat16):
        own, tokens = logits.to(dtype), torch.zeros(len(CUTS), dtype=torch.int64)
        arguments = own, own.amax(-1), table, table.view(torch.float64), tokens, 100, 100
        assert why_not_compiled(kernel.race_kernel, *arguments, TILE=64) is None


@pytest.mark.gpu
@on_gpu
def test_a_step_on_a_gpu_waits_for_nothing():
    logits, *rules = a_case(2, 5000)
    logits[3, 5] = math.nan
    on_device = logits.cuda()
    assert race_on(on_device.device) is kernel.race
    choose_tokens(on_device, *rules)  # compiles
    with without_synchronizing():
        found = choose_tokens(on_device, *rules)
    assert found[3] == NO_TOKEN and found.tolist() == choose_tokens(logits, *rules).tolist()


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_on_a_gpu_has_its_token_in_any_company(dtype, monkeypatch):
    monkeypatch.undo()  # tiles as they are
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(200, 151_936, generator=generator).to(dtype)
    params = [SamplingParams(temperature=0.8, **CUTS[row % len(CUTS)]) for row in range(200)]
    together = choose_tokens(logits.cuda(), params, range(200), range(200)).tolist()
    for rows in ([*range(200)][::-1], [*range(3, 200, 7)], [11]):
        own = ([column[row] for row in rows] for column in (params, range(200), range(200)))
        assert choose_tokens(logits[rows].cuda(), *own).tolist() == [together[row] for row in rows]
    expected = choose_tokens(logits[:24], params[:24], range(24), range(24)).tolist()
    assert sum(one != other for one, other in zip(together, expected)) <= 1
    assert all(
        race_oracle.kept(row.tolist(), own).get(token) for row, own, token in zip(logits[:12].float(), params, together)
    )
