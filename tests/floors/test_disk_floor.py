"""The floor on disk: what it returns is what was written, whatever has happened to the file meanwhile."""

import os
import random
import stat
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engine_cases import KINDS, a_model
from test_host_floor import BLOCK, PROMPTS, a_floored_engine, ask

from lessons_lib.floors.disk_floor import DiskFloor
from lessons_lib.floors.model_identity import identity_of
from lessons_lib.floors.segment_file import ENTRY_BYTES, PAGE, SegmentFile
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.tiny_models import tiny_model
from tools.random_workloads import DamagedWorkload, damage, run

DATA = 200
RECORD = DATA + ENTRY_BYTES


def block_of(seed):
    """(hash, depth, row) of a block; its contents follow from its hash."""
    rng = random.Random(seed)
    return rng.randbytes(32), rng.randrange(1000), torch.tensor(list(rng.randbytes(DATA)), dtype=torch.uint8)


def a_floor(folder, slots=8, identity=b"model", **options):
    like = SimpleNamespace(rows=torch.zeros(1, DATA), block_size=4)
    return DiskFloor(Path(folder), slots * RECORD, lambda: identity, like, **options)


def filled(folder, count=8, **options):
    floor = a_floor(folder, **options)
    for seed in range(count):
        floor.keep(block_of(seed)[0], block_of(seed)[2], block_of(seed)[1])
    return floor


def found(floor, seeds=range(8)):
    """Seeds of the blocks that a floor has. Each must be what was written."""
    seen = []
    for seed in seeds:
        block_hash, depth, data = block_of(seed)
        row = torch.zeros(DATA, dtype=torch.uint8)
        slot = floor.hash_to_block.get(block_hash)
        if slot is not None and floor.read(block_hash, row):
            assert row.equal(data) and floor.depths[slot] == depth, f"block {seed} is wrong"
            seen.append(seed)
    return seen


def the_file(folder):
    (file,) = Path(folder).glob("*.kv")
    return file


def reopened(floor):
    floor.close()
    return a_floor(floor.folder, floor.num_blocks, floor.identity())


# Files


def test_blocks_are_found_after_a_restart(tmp_path):
    floor = filled(tmp_path, 6)
    assert found(floor) == found(reopened(floor)) == list(range(6))


def test_a_full_floor_drops_the_least_recently_used(tmp_path):
    floor = filled(tmp_path, 8, slots=5)
    assert found(floor) == [3, 4, 5, 6, 7]
    floor.keep(*block_of(3)[::2], 0)  # it is here, so it is only renewed
    floor.keep(block_of(8)[0], block_of(8)[2], block_of(8)[1])
    assert found(floor, range(9)) == found(reopened(floor), range(9)) == [3, 5, 6, 7, 8]


def test_files_are_private(tmp_path):
    before = os.umask(0)
    try:
        floor = filled(tmp_path / "a" / "cache")
    finally:
        os.umask(before)
    file = the_file(floor.folder)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(floor.folder.stat().st_mode) == 0o700
    file.chmod(0o666)
    reopened(floor)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_link_is_not_followed(tmp_path):
    floor = filled(tmp_path / "cache")
    floor.close()
    target = tmp_path / "precious"
    the_file(floor.folder).rename(target)
    os.symlink(target, floor.folder / f"{floor.segment.path.name}")
    with pytest.raises(OSError, match="symbolic links"):
        a_floor(floor.folder)


def test_a_file_of_another_user_is_refused(tmp_path, monkeypatch):
    floor = filled(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="isn't a file of this user; its blocks could be anything"):
        reopened(floor)


def test_each_engine_has_a_file_of_its_own(tmp_path):
    one, other = filled(tmp_path), a_floor(tmp_path)
    assert len(list(tmp_path.glob("*.kv"))) == 2 and found(other) == []
    one.close(), other.close()
    assert found(a_floor(tmp_path)) == list(range(8))


def test_other_models_have_other_files_and_a_foreign_header_empties_one(tmp_path):
    floor = filled(tmp_path)
    file = the_file(tmp_path)
    assert found(a_floor(tmp_path, identity=b"another")) == []
    floor.close()
    file.write_bytes(file.read_bytes().replace(b"model", b"other"))
    assert found(reopened(floor)) == []


def test_a_smaller_budget_cuts_the_file(tmp_path):
    floor = filled(tmp_path)
    floor.close()
    assert found(a_floor(tmp_path, slots=3)) == [0, 1, 2] and the_file(tmp_path).stat().st_size <= PAGE + 3 * RECORD


@pytest.mark.parametrize("trials", [range(200)])
def test_damage_is_found_block_by_block(tmp_path, trials):
    lost = 0
    for trial in trials:
        folder = tmp_path / str(trial)
        floor = filled(folder)
        damage(the_file(folder), random.Random(trial))  # in use, as by another program
        seen = found(floor)
        lost += 8 - len(seen)
        assert set(found(reopened(floor))) <= set(seen)
    assert lost > len(trials) / 2


def test_a_short_write_is_a_full_disk(tmp_path, monkeypatch):
    floor = filled(tmp_path, 3)
    monkeypatch.setattr(os, "pwrite", lambda file, data, start: len(data) - 1)
    floor.keep(*block_of(3)[::2], 0)
    assert floor.num_failed == 1 and found(floor) == [0, 1, 2]


def test_what_is_forgotten_is_forgotten_for_good(tmp_path, monkeypatch):
    floor = filled(tmp_path)
    floor.forget([block_of(2)[0], block_of(5)[0]])
    floor = reopened(floor)
    assert found(floor) == [0, 1, 3, 4, 6, 7]
    monkeypatch.setattr(SegmentFile, "put", lambda *what: (_ for _ in ()).throw(OSError("full")))
    floor.forget([block_of(0)[0]])
    monkeypatch.undo()
    assert found(reopened(floor)) == []  # rather the whole file than this block


# Models


def test_the_identity_tells_models_apart():
    def identity(family="qwen2", seed=3, size=4, **options):
        model = tiny_model(family, seed=seed)
        return identity_of(model, PagedKVCache(model.config, 3, size, **options))

    same = identity()
    assert identity() == same
    others = [identity(seed=4), identity("llama"), identity(size=8), identity(dtype=torch.bfloat16)]
    assert len({same, *others}) == 5


def test_one_bit_of_one_weight_is_another_model():
    model = deepcopy(a_model())
    identity = partial(identity_of, model, PagedKVCache(model.config, 3, 4))
    before, rng = identity(), random.Random(0)
    weights = list(model.parameters())
    for _ in range(10):
        weight = rng.choice(weights).detach().flatten().view(torch.int32)
        at, bit = rng.randrange(len(weight)), 1 << rng.randrange(31)
        weight[at] ^= bit
        assert identity() != before
        weight[at] ^= bit
    assert identity() == before


# Engines


def an_engine_with_disk(folder, slots=6, disk_slots=100, **options):
    return a_floored_engine(
        slots, disk_cache_bytes=disk_slots * (BLOCK + ENTRY_BYTES), cache_dir=str(folder), **options
    )


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_go_down_to_the_disk_and_come_back(tmp_path, kind):
    engine = an_engine_with_disk(tmp_path, kind=kind)
    assert [ask(engine, prompt) for prompt in PROMPTS] == [0, 0, 0]
    assert [ask(engine, prompt) for prompt in PROMPTS] == [20, 20, 20]
    engine.close()
    with an_engine_with_disk(tmp_path, kind=kind) as engine:
        assert [ask(engine, prompt) for prompt in PROMPTS] == [20, 20, 20]


def test_a_host_floor_smaller_than_a_prompt_loads_it_in_parts(tmp_path):
    with an_engine_with_disk(tmp_path, slots=2) as engine:
        for prompt in PROMPTS:
            ask(engine, prompt)
        assert [ask(engine, prompt) for prompt in PROMPTS] == [20, 20, 20]


def test_salts_hold_after_a_restart(tmp_path):
    with an_engine_with_disk(tmp_path) as engine:
        ask(engine, PROMPTS[0], salt="a")
    with an_engine_with_disk(tmp_path) as engine:
        assert [ask(engine, PROMPTS[0], salt=salt) for salt in ("b", None, "a")] == [0, 0, 20]


def test_a_reset_forgets_the_disk_and_new_weights_get_a_new_file(tmp_path):
    model = deepcopy(a_model())
    engine = an_engine_with_disk(tmp_path, model=model)
    for prompt in PROMPTS:
        ask(engine, prompt)
    name = engine.scheduler.pool.below.below.segment.path.name
    engine.reset_prefix_cache()
    assert [ask(engine, prompt) for prompt in PROMPTS] == [0, 0, 0]
    assert engine.scheduler.pool.below.below.segment.path.name == name
    with torch.no_grad():
        next(model.parameters()).mul_(1.5)
    engine.reset_prefix_cache()
    assert engine.scheduler.pool.below.below.segment.path.name != name


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only a process that was forked starts fast enough")
def test_damages_kills_and_restarts_cost_time_and_no_token():
    happened, failed = run(24, seed=0, kind=DamagedWorkload)
    assert not failed and all(happened[each] for each in ("damages", "foreign files", "kill -9", "failed to put"))
