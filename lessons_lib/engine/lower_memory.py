"""Memory below the pool of an engine: a swap space for preempted sequences (lesson 10), or floors for cached blocks."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.model_fit import ModelFit
from lessons_lib.floors.block_mover import BlockMover
from lessons_lib.floors.disk_floor import DiskFloor
from lessons_lib.floors.floored_pool import FlooredPrefixCache
from lessons_lib.floors.floored_scheduler import FlooredScheduler
from lessons_lib.floors.host_cache import HostCache, bytes_of_block
from lessons_lib.floors.model_identity import identity_of
from lessons_lib.floors.pinning import PinningFloor
from lessons_lib.kv_cache.block_pool import BlockPool
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.validate import must
from lessons_lib.scheduling.kept_states import KeptStates
from lessons_lib.scheduling.swapping import SwappingScheduler


def with_lower_memory(parts: Any, model: PreTrainedModel, fit: ModelFit, config: EngineConfig) -> Any:
    """Add the memory that a config asks for to the Parts of an engine.

    Raises:
        ValueError: the model or another value of the config rules floors out.
    """
    if config.host_cache_bytes or config.disk_cache_bytes:
        check_floors(fit, config)
        core = partial(core_with_floors, parts.core, model, config)
        return replace(parts, core=core, scheduler=parts.scheduler or FlooredScheduler, pool=FlooredPrefixCache)
    sizes = config.num_swap_blocks, config.block_size
    swap_cache = PagedKVCache(model.config, *sizes, model.dtype, layer_shapes=fit.layer_shapes)
    return replace(
        parts,
        core=partial(parts.core, swap_cache=swap_cache),
        scheduler=partial(parts.scheduler or SwappingScheduler, swap_space=BlockPool(*sizes)),
    )


def check_floors(fit: ModelFit, config: EngineConfig) -> None:
    """Refuse floors that can't work."""
    name, value = "host_cache_bytes", config.host_cache_bytes
    must(value > 0, name, value, "above 0 if disk_cache_bytes is: blocks move to the disk from there")
    has_folder = config.cache_dir is not None or not config.disk_cache_bytes
    must(has_folder, "cache_dir", config.cache_dir, "a folder if disk_cache_bytes is above 0")
    must(type(fit.states) is KeptStates, name, value, "0 for this model: its layers keep states, which floors don't")
    must(config.share_prefixes, name, value, "0 without share_prefixes: floors find blocks by their contents")
    must(not config.num_swap_blocks, name, value, "0 with num_swap_blocks: floors keep preempted sequences, too")


def core_with_floors(
    make_core: Any, model: PreTrainedModel, config: EngineConfig, scheduler: Any, runner: Any, *others: Any,
    **named: Any,
) -> Any:  # fmt: skip
    """The core of an engine. Its pool gets floors for blocks like those of the runner's cache."""
    host, disk = HostCache(runner.cache, config.host_cache_bytes // bytes_of_block(runner.cache)), None
    if config.disk_cache_bytes:
        identity = partial(identity_of, model, runner.cache)
        disk = DiskFloor(Path(str(config.cache_dir)), config.disk_cache_bytes, identity, host)
    mover = BlockMover
    if runner.cache.keys[0].is_cuda:
        from lessons_lib.floors.gpu_mover import GPUMover as mover
    scheduler.pool.below = PinningFloor(mover(runner.cache, host), disk)
    return make_core(scheduler, runner, *others, **named)
