"""Where production engines have the parts that the course builds: for each part, the file and the name in it.

The names of vLLM and SGLang were read from the packages of these versions. TensorRT-LLM's were read from its repository
in the year of its version; its files move most.
"""

from dataclasses import dataclass

from lessons_lib.viz.tables.table import Table

VERSIONS = {"vLLM": "0.26.0", "SGLang": "0.5.22", "TensorRT-LLM": "1.3, in development", "transformers": "5.23.0"}
FOLDERS = {
    "vLLM": "vllm/",
    "SGLang": "sglang/srt/",
    "TensorRT-LLM": "tensorrt_llm/_torch/pyexecutor/",
    "transformers": "transformers/generation/continuous_batching/",
}


@dataclass(frozen=True)
class Part:
    """A part of an engine, as "file name" in each: a file is relative to the engine's folder in FOLDERS, or, if it
    begins with "/", to its package's parent.

    Attributes:
        lesson: where it is built.
        ours: file and name in `lessons_lib`.
        there: engine -> file and name, as in VERSIONS.
    """

    what: str
    lesson: str
    ours: str
    there: dict[str, str]


def _part(what: str, lesson: str, ours: str, *there: str) -> Part:
    return Part(what, lesson, ours, {name: place for name, place in zip(VERSIONS, there) if place})


PARTS = [
    _part(
        "block pool", "03", "kv_cache/block_pool.py BlockPool", "v1/core/block_pool.py BlockPool",
        "mem_cache/allocator/paged.py PagedTokenToKVPoolAllocator", "resource_manager.py KVCacheManager",
        "cache_allocators/cache_pool.py get_free_blocks",
    ),
    _part(
        "block tables, slot mapping", "03", "kv_cache/cache_slots.py slot_mapping",
        "v1/worker/block_table.py compute_slot_mapping", "mem_cache/memory_pool.py ReqToTokenPool", "",
        "cache_allocators/full_attention.py FullAttentionCacheAllocator",
    ),
    _part(
        "packing of a step", "05", "attention/packing.py pack", "v1/worker/gpu_model_runner.py _prepare_inputs",
        "model_executor/forward_batch_info.py ForwardBatch", "", "input_outputs.py prepare_batch_tensors",
    ),
    _part(
        "paged attention", "06, 08", "kernels/paged_flash.py decode_kernel",
        "v1/attention/ops/triton_unified_attention.py unified_attention",
        "/sglang/kernels/ops/attention/decode_attention.py decode_attention_fwd", "",
        "/transformers/integrations/sdpa_paged.py sdpa_attention_paged_forward",
    ),
    _part(
        "merge of partial softmaxes", "06, 08", "attention/online_softmax.py merge",
        "v1/attention/ops/merge_attn_states.py merge_attn_states",
        "layers/attention/merge_state.py merge_state", "", "",
    ),
    _part(
        "scheduler with a token budget", "09", "scheduling/preemption.py PreemptiveScheduler",
        "v1/core/sched/scheduler.py Scheduler", "managers/schedule_policy.py PrefillAdder",
        "scheduler/scheduler.py MicroBatchScheduler", "scheduler.py FIFOScheduler",
    ),
    _part(
        "policies", "09", "scheduling/policies.py StrictPriority",
        "v1/core/sched/request_queue.py PriorityRequestQueue",
        "managers/schedule_policy.py SchedulePolicy", "scheduler/scheduler.py CapacityScheduler",
        "scheduler.py PrefillFirstScheduler",
    ),
    _part(
        "preemption", "10", "scheduling/preemption.py preempt_sequence", "v1/core/sched/scheduler.py _preempt_request",
        "managers/schedule_batch.py retract_decode", "scheduler/scheduler.py BindCapacityScheduler",
        "offloading_manager.py OffloadingManager",
    ),
    _part(
        "prefix sharing", "11", "kv_cache/prefix_cache.py PrefixCache", "v1/core/kv_cache_utils.py hash_block_tokens",
        "mem_cache/radix_cache.py RadixCache", "resource_manager.py KVCacheManager", "cache.py search_prefix_match",
    ),
    _part(
        "sampling", "12", "engine/sampling.py choose_tokens",
        "v1/sample/sampler.py Sampler", "layers/sampler.py Sampler",
        "sampler/sampler.py TorchSampler", "cb_logits_processors.py ContinuousBatchingTopPLogitsWarper",
    ),
    _part(
        "incremental detokenizer", "12", "engine/detokenizer.py IncrementalDetokenizer",
        "v1/engine/detokenizer.py IncrementalDetokenizer", "managers/detokenizer_manager.py DetokenizerManager", "", "",
    ),
    _part(
        "the engine's step", "12", "engine/llm_engine.py LLMEngine", "v1/engine/core.py EngineCore",
        "managers/scheduler.py event_loop_normal", "py_executor.py PyExecutor",
        "continuous_api.py ContinuousBatchProcessor",
    ),
    _part(
        "CUDA graphs by size", "13", "engine/cuda_graphs.py GraphStore", "compilation/cuda_graph.py CUDAGraphWrapper",
        "model_executor/runner/decode_cuda_graph_runner.py DecodeCudaGraphRunner",
        "cuda_graph_runner.py CUDAGraphRunner", "utils.py CudaGraphBuffer",
    ),
    _part(
        "overlapped steps", "13", "engine/core.py overlapped_step",
        "v1/core/sched/async_scheduler.py AsyncScheduler", "managers/scheduler.py event_loop_overlap",
        "py_executor.py _executor_loop_overlap", "input_outputs.py ContinuousBatchingAsyncIOs",
    ),
    _part(
        "asyncio front", "14", "serving/async_engine.py AsyncEngine", "v1/engine/async_llm.py AsyncLLM",
        "managers/tokenizer_manager.py TokenizerManager", "", "continuous_api.py ContinuousBatchingManager",
    ),
    _part(
        "replicas", "15", "serving/router.py choose_replica", "v1/engine/core_client.py DPLBAsyncMPClient",
        "managers/data_parallel_controller.py DataParallelController", "", "",
    ),
    _part(
        "tensor parallelism", "16", "serving/tensor_parallel.py RowParallelLinear",
        "model_executor/layers/linear.py RowParallelLinear", "layers/linear.py RowParallelLinear", "",
        "distributed.py DistributedHelper",
    ),
]  # fmt: skip


def parts_in(engine: str) -> Table:
    """Where one engine has them; a part of which no single place can be named is left out.

    Raises:
        ValueError: the map doesn't have this engine.
    """
    if engine not in VERSIONS:
        raise ValueError(f"the map has no {engine!r}; choose one of {', '.join(VERSIONS)}.")
    rows = []
    for part in PARTS:
        if place := part.there.get(engine):
            file, name = place.split()
            rows.append([part.what, part.lesson, part.ours.split()[1], name, file.removeprefix("/")])
    return Table(
        ["part", "lesson", "here", "there", "file"],
        rows,
        caption=f"{engine} {VERSIONS[engine]}; files are in {FOLDERS[engine]} if they don't begin with a package",
    )
