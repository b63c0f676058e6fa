"""What a GPU does on streams, with streams that only take their time: sequences sit out while their blocks are loaded."""

import random
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from engine_cases import KINDS, a_model, alone, check_that_nothing_is_left, greedy, run_out
from hypothesis import given
from hypothesis import strategies as st
from test_host_floor import PROMPTS, a_floored_engine, ask

from lessons_lib.floors import gpu_mover
from lessons_lib.floors.gpu_mover import GPUMover, neighbors
from lessons_lib.floors.host_cache import HostCache
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import KVShape


class SlowEvent:
    """Seems to be reached after a few looks."""

    looks = 0

    def record(self):
        self.left = SlowEvent.looks

    def query(self):
        self.left -= 1
        return self.left < 0


@pytest.fixture
def slow_gpu(monkeypatch):
    stream = SimpleNamespace(wait_stream=id, wait_event=id, synchronize=lambda: None)
    runtime = SimpleNamespace(cudaHostRegister=lambda *what: 0, cudaHostUnregister=id)
    for name, value in {
        "Stream": lambda device: stream, "Event": SlowEvent, "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(), "cudart": lambda: runtime, "check_error": id,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(gpu_mover, "STAGED", 3)
    monkeypatch.setattr(SlowEvent, "looks", 4)


@given(st.sets(st.integers(0, 30)))
def test_neighbors_are_every_slot_once(slots):
    runs = neighbors(sorted(slots))
    assert [slot for _, first, length in runs for slot in range(first, first + length)] == sorted(slots)
    assert [index for index, _, length in runs for index in range(index, index + length)] == [*range(len(slots))]
    assert len(runs) == sum(slot - 1 not in slots for slot in slots)


@pytest.mark.parametrize("block_size, shapes", [(4, None), (1, [KVShape(1, 3, 5), KVShape(2, 1, 1)])])
def test_blocks_move_in_parts(slow_gpu, block_size, shapes):
    cache = PagedKVCache(a_model().config, 20, block_size, layer_shapes=shapes)
    tensors = (*cache.keys, *cache.values)
    for tensor in tensors:
        tensor.copy_(torch.randn_like(tensor))
    before = [tensor.clone() for tensor in tensors]
    mover, blocks, slots = GPUMover(cache, HostCache(cache, 9)), random.sample(range(20), 8), random.sample(range(9), 8)
    mover.store(blocks, slots)
    for tensor in tensors:
        tensor.zero_()
    mover.load(slots, blocks)
    assert all(tensor[blocks].equal(old[blocks]) for tensor, old in zip(tensors, before))
    assert all(not tensor[sorted({*range(20)} - {*blocks})].any() for tensor in tensors)
    assert mover.is_loading(blocks[:1]) and not mover.is_loading([])
    mover.wait()
    assert not mover.is_loading(blocks)


@pytest.mark.parametrize("kind", KINDS)
def test_others_compute_while_a_sequence_is_loaded(slow_gpu, kind):
    engine = a_floored_engine(kind=kind, num_blocks=14)
    replace_mover(engine)
    for prompt in PROMPTS:
        ask(engine, prompt)
    assert ask(engine, PROMPTS[0]) == 20  # alone, it waits
    ask(engine, PROMPTS[1])
    ask(engine, PROMPTS[2])
    engine.add_request(PROMPTS[1][:5], greedy(12, ignore_eos=True), request_id="decodes")
    engine.step()
    engine.add_request(PROMPTS[0], greedy(4, ignore_eos=True), request_id="returns")
    sat_out = 0
    outputs = {}
    for _ in range(3):
        outputs |= {output.request_id: output for output in engine.step()}
        running = {each.id: each for each in engine.scheduler.running}
        sat_out += "returns" in {each.group.id for each in running.values() if not each.output_ids and each.blocks}
    outputs |= run_out(engine)
    assert sat_out
    assert outputs["returns"].token_ids == alone("qwen2", PROMPTS[0], 4, ignore_eos=True)
    assert outputs["decodes"].token_ids == alone("qwen2", PROMPTS[1][:5], 12, ignore_eos=True)
    check_that_nothing_is_left(engine)


@pytest.mark.parametrize("kind", KINDS)
def test_random_requests_and_aborts_while_blocks_are_loaded(slow_gpu, kind):
    rng = random.Random(0)
    engine = a_floored_engine(kind=kind, num_blocks=9)
    replace_mover(engine)
    asked = {}
    for round_ in range(60):
        if rng.random() < 0.5:
            prompt = PROMPTS[rng.randrange(3)][: rng.randint(1, 21)]
            asked[engine.add_request(prompt, greedy(6, ignore_eos=True))] = prompt
        if asked and rng.random() < 0.1:
            name = rng.choice(list(asked))
            engine.abort(name), asked.pop(name)
        for output in engine.step() if round_ < 59 else run_out(engine).values():
            assert output.token_ids == alone("qwen2", asked.pop(output.request_id), 6, ignore_eos=True)
    assert not asked and engine.scheduler.pool.num_loaded > 10
    check_that_nothing_is_left(engine)


def replace_mover(engine):
    floor = engine.scheduler.pool.below
    floor.mover = GPUMover(engine.runner.cache, floor.mover.host)
