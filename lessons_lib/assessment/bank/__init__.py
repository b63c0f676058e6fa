"""The bank: every question as data, a module for a few lessons each."""

from importlib import import_module

from lessons_lib.assessment.question import Item

MODULES = (
    "one_request", "static_batching", "continuous_batching", "block_allocator", "masks", "packing", "paged_attention",
    "triton_kernel", "fast_kernels", "scheduling", "memory_pressure", "prefix_sharing", "engine", "engine_on_gpu",
    "serving", "replicas", "two_gpus",
)  # fmt: skip
ITEMS: tuple[Item, ...] = tuple(item for module in MODULES for item in import_module(f"{__package__}.{module}").ITEMS)
