"""The sizes of an engine: a wrong one is refused when the engine is made, with the value, the limit and the remedy."""

import math

import numpy as np
import pytest
import torch
from engine_cases import a_model, an_engine

from lessons_lib.compat import pool_size
from lessons_lib.compat.pool_size import available_memory, checked_num_blocks
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.sampling import SamplingParams
from lessons_lib.kv_cache.block_memory import block_bytes
from lessons_lib.scheduling.sequence import FirstComeFirstServed

WRONG = {
    "max_num_seqs": (0, -1, 2.0, True, "8", None, math.nan),
    "max_num_batched_tokens": (0, 1.5, None),
    "max_model_len": (0, 1, -5, 20.0, "20", 2**63),
    "block_size": (0, -4, 16.0, None),
    "num_blocks": (0, -1, 3.5, "many", 10**400),
    "cache_bytes": (0, -1, 1e9, None),
    "num_swap_blocks": (-1, 0.5, None),
    "watermark": (-0.01, 1.01, 5, math.nan, "0.1", None, True),
    "share_prefixes": (1, None, "no"),
    "generation_config": (1, None, "auto"),
    "policy": ("fcfs", FirstComeFirstServed, 3, object()),
    "admission": (None, "optimistic"),
    "make_runner": ("GPU", 1),
    "max_logprobs": (-2, None, 1.5),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_that_makes_no_sense_is_refused_by_name(name):
    for value in WRONG[name]:
        with pytest.raises(ValueError, match=rf"{name} is .+; it (must|is) .+\.$") as refused:
            EngineConfig(**{name: value})
        assert len(str(refused.value)) < 300


def test_a_step_has_room_for_a_token_of_each_sequence():
    with pytest.raises(ValueError, match="max_num_batched_tokens is 7 and max_num_seqs 8; .* Raise the first or lower"):
        EngineConfig(max_num_seqs=8, max_num_batched_tokens=7)


def test_integers_may_be_those_of_numpy():
    config = EngineConfig(block_size=np.int64(4), num_blocks=np.uint8(9), watermark=np.float64(0.5))
    assert (type(config.block_size), type(config.num_blocks), config.block_size, config.num_blocks) == (int, int, 4, 9)


def test_overlap_needs_a_runner_that_can():
    def make_runner(model, num_blocks, config):
        return ModelRunner(model, num_blocks, config.block_size)

    with pytest.raises(ValueError, match="overlap is True, and ModelRunner needs the tokens of a step"):
        an_engine(overlap=True, make_runner=make_runner)


# With a model


def num_blocks_of(**config):
    return checked_num_blocks(EngineConfig(**{"block_size": 4, **config}), a_model())


def test_a_sequence_is_no_longer_than_the_model_has_positions():
    assert num_blocks_of(max_model_len=256, num_blocks=64) == 64
    for length in (257, 10**9):
        with pytest.raises(ValueError, match=f"max_model_len is {length}; the model has positions for 256 tokens"):
            an_engine(max_model_len=length, num_blocks=64)


@pytest.mark.parametrize("num_blocks", [1, 10])
def test_one_sequence_of_max_model_len_fits_the_cache(num_blocks):
    longest = 4 * num_blocks + 1  # the last token has no place in the cache
    engine = an_engine(num_blocks=num_blocks, max_model_len=longest)
    (output,) = engine.generate([[1]], SamplingParams(max_tokens=None, ignore_eos=True))
    assert len(output.token_ids) == longest - 1
    words = (
        f"needs {num_blocks + 1} blocks of 4 tokens, and the pool has {num_blocks}.*to {longest} or less.*num_blocks"
    )
    with pytest.raises(ValueError, match=words):
        an_engine(num_blocks=num_blocks, max_model_len=longest + 1)


def test_the_cache_has_a_block():
    assert num_blocks_of(cache_bytes=BLOCK) == 1
    with pytest.raises(ValueError, match=f"cache_bytes is {BLOCK - 1}, .* and one block .* takes {BLOCK} bytes. Raise"):
        num_blocks_of(cache_bytes=BLOCK - 1)


BLOCK = block_bytes(a_model().config, 4)
OWN = dict(make_runner=lambda *_: None)  # has its memory already


@pytest.mark.parametrize(
    "available, config, says",
    [
        (
            2**40,
            dict(cache_bytes=2**60),
            "GiB on cpu; 1024.0 GiB are available. Lower num_blocks, cache_bytes, num_swap_blocks or",
        ),
        (2**40, dict(num_blocks=2**50), "GiB on cpu; 1024.0 GiB are available"),
        (2**40, dict(num_blocks=1, num_swap_blocks=2**50), "GiB on cpu; 1024.0 GiB are available"),
        (10 * BLOCK, dict(num_blocks=7, num_swap_blocks=3), None),
        (10 * BLOCK, dict(num_blocks=8, num_swap_blocks=3), "8 blocks and 3 swap blocks"),
        (0, dict(num_blocks=7, **OWN), None),
        (0, dict(num_blocks=7, num_swap_blocks=1, **OWN), "are available"),
        (None, dict(num_blocks=2**50), None),  # without a figure nothing is refused
    ],
)
def test_a_cache_beyond_the_memory_is_refused_before_it_is_allocated(available, config, says, monkeypatch):
    """Not in a whole engine: if nothing were refused, it would take the machine's memory."""
    monkeypatch.setattr(pool_size, "available_memory", lambda device: available)
    if says is None:
        assert num_blocks_of(**config) == config["num_blocks"]
        return
    with pytest.raises(MemoryError, match=says):
        num_blocks_of(**config)


def test_the_available_memory_is_a_figure_or_nothing():
    assert 2**20 < available_memory(torch.device("cpu")) < 2**50
    assert available_memory(torch.device("meta")) is None
