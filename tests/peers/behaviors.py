"""What the tests of other engines check, restated as behaviors of this one, and the tests that hold them.

`python -m tools.peers --write` makes README.md from it. A behavior that this engine has is `held` by a test that runs
everywhere; one that it does not have says why.
"""

from tests.peers.serving_behaviors import SERVING_PROJECTS, SERVING_TOPICS
from tools.peers import Topic

# A line for name and sentence of a behavior, one for its source, and one for each test.
# fmt: off

PROJECTS = {
    "vLLM": "0.11.0, the tests of its source distribution",
    "transformers": "commit 02166fe of the main branch; names without their class",
    "mini-sglang": "commit 20fcd7f of 2026-03-13; names without their class",
    "tiny-llm": "commit 1078c08 of 2026-08-13",
}

SCHEDULER = "vLLM tests/v1/core/test_scheduler.py::"
ASYNC_SCHEDULER = "vLLM tests/v1/core/test_async_scheduler.py::"
PREFIX = "vLLM tests/v1/core/test_prefix_caching.py::"
CACHE_UTILS = "vLLM tests/v1/core/test_kv_cache_utils.py::"
CACHE_TYPES = "vLLM tests/v1/core/test_single_type_kv_cache_manager.py::"
ENGINE_CORE = "vLLM tests/v1/engine/test_engine_core.py::"
OUTPUTS = "vLLM tests/v1/engine/test_output_processor.py::"
SAMPLER = "vLLM tests/v1/sample/test_sampler.py::"
PARAMS = "vLLM tests/v1/sample/test_sampling_params_e2e.py::"
LOGPROBS = "vLLM tests/v1/sample/test_logprobs.py::"
ASYNC_LLM = "vLLM tests/v1/engine/test_async_llm.py::"
HF = "transformers tests/generation/test_continuous_batching.py::"
SGL = "mini-sglang tests/core/test_cache_allocate.py::"
TINY_1 = "tiny-llm tests_refsol/test_week_1_day_"
TINY_2 = "tiny-llm tests_refsol/test_week_2_day_"
TINY_3 = "tiny-llm tests_refsol/test_week_3_day_"

PEER_SCHEDULER = "peers/test_peer_scheduler.py::"
PEER_PREFIX = "peers/test_peer_prefix_cache.py::"
PEER_ENGINE = "peers/test_peer_engine.py::"
T_SCHEDULER = "scheduling/test_scheduler.py::"
T_PREEMPTION = "scheduling/test_preemption.py::"
T_POLICIES = "scheduling/test_policies.py::"
T_FAULTS = "scheduling/test_known_faults.py::"
T_POOL = "kv_cache/test_block_pool.py::"
T_PREFIX = "kv_cache/test_prefix_cache.py::"
T_ENGINE = "engine/test_engine.py::"
T_ENGINE_FAULTS = "engine/test_engine_faults.py::"
T_OVERLAP = "engine/test_overlap.py::"
T_OVERLAPPED = "engine/test_overlapped_engine.py::"
T_SAMPLING = "engine/test_sampling.py::"
T_TEXT = "engine/test_text_stream.py::"
T_GRAPHS = "engine/test_cuda_graphs.py::"
T_CLOSING = "engine/test_closing.py::"
T_ATTENTION = "attention/test_paged_attention.py::"
T_MASKS = "attention/test_masks.py::"
T_KERNELS = "kernels/test_kernels.py::"

NO_SPECULATION = "There is no speculative decoding: a step appends one token."
ONE_PROCESS = "One model on one device in one process; the course ends before parallelism."
TEXT_ONLY = "Models read text only."
NO_BACKGROUND_LOOP = "There is no background loop: the caller makes every step, so not calling `step` is a pause."
BY_HUGGING_FACE = "The model's layers are Hugging Face's; only attention is the course's own."
NO_CONNECTOR = "KV caches stay in one engine; there are no connectors to other machines."


# ----------------------------------------------------------------------------------------------------------------------
scheduling = Topic("scheduling", "Scheduling: what a step computes")

scheduling.held(
    "waits-in-order", "Added requests wait in the order of their arrival.", SCHEDULER + "test_add_requests",
    PEER_SCHEDULER + "test_added_sequences_wait_in_order_until_they_are_removed",
)
scheduling.held(
    "removed-while-waiting", "A waiting request can be taken out, and the rest keep their order.",
    SCHEDULER + "test_finish_request",
    PEER_SCHEDULER + "test_added_sequences_wait_in_order_until_they_are_removed",
)
scheduling.held(
    "unfinished-count", "The scheduler has unfinished sequences until the last one has left.",
    SCHEDULER + "test_get_num_unfinished_requests",
    PEER_SCHEDULER + "test_added_sequences_wait_in_order_until_they_are_removed",
)
scheduling.held(
    "all-that-fit", "All requests that fit are scheduled in the first step with their whole prompts, in order.",
    SCHEDULER + "test_schedule",
    PEER_SCHEDULER + "test_what_fits_is_scheduled_whole_in_the_first_step",
)
scheduling.held(
    "sharing-alike", "Prefix caching changes nothing in a first step of different prompts.",
    SCHEDULER + "test_schedule[True-5]",
    PEER_SCHEDULER + "test_what_fits_is_scheduled_whole_in_the_first_step",
)
scheduling.held(
    "partial-prefills", "Several prompts are computed in chunks side by side, within one budget.",
    SCHEDULER + "test_schedule_concurrent_partial_requests",
    PEER_SCHEDULER + "test_prompts_beyond_the_budget_are_computed_in_chunks_side_by_side",
)
scheduling.not_offered(
    "long-prefill-threshold", "One prompt gets at most a given number of tokens in a step.",
    SCHEDULER + "test_schedule_concurrent_partial_requests",
    "The token budget of the step is the only limit of a chunk.",
)
scheduling.held(
    "decodes-first", "A long prompt gets what the decoding sequences leave of the budget.",
    "vLLM tests/v1/core/test_scheduler_e2e.py::test_concurrent_partial_prefill",
    T_SCHEDULER + "test_a_long_prompt_takes_what_the_decodes_leave",
    T_SCHEDULER + "test_the_budget_is_handed_out_token_by_token",
)
scheduling.held(
    "no-token-mid-prompt", "A chunk that does not reach the end of the prompt yields no token.",
    SCHEDULER + "test_schedule_concurrent_partial_requests (second step)",
    T_SCHEDULER + "test_in_the_middle_of_a_prompt_the_token_of_the_pass_is_unknowns",
)
scheduling.held(
    "stop-by-eos", "A sequence ends with the end token, and others go on.",
    SCHEDULER + "test_stop_via_update_from_output (end token)",
    PEER_SCHEDULER + "test_why_a_sequence_ends",
)
scheduling.held(
    "stop-by-token", "A sequence ends with one of its stop tokens, which stays its last token.",
    SCHEDULER + "test_stop_via_update_from_output (stop token)",
    T_SCHEDULER + "test_an_answer_ends_with_a_stop_token_or_at_its_cap",
)
scheduling.held(
    "stop-by-length", "A sequence ends with the last token that its limit allows.",
    SCHEDULER + "test_stop_via_update_from_output (max tokens)",
    PEER_SCHEDULER + "test_why_a_sequence_ends",
)
scheduling.held(
    "ignore-eos", "With `ignore_eos` the end token is a token like others, and stop tokens still count.",
    SCHEDULER + "test_stop_via_update_from_output (ignore_eos)",
    T_ENGINE + "test_the_end_token_ends_it_or_is_ignored",
)
scheduling.held(
    "finished-free-at-once", "What finishes in a step frees its blocks and its batch slot with that step.",
    SCHEDULER + "test_stop_via_update_from_output (blocks)",
    T_SCHEDULER + "test_what_has_finished_is_handed_back_with_its_blocks_in_the_same_step",
    T_SCHEDULER + "test_a_seat_is_given_again_in_the_next_step",
)
scheduling.held(
    "several-steps-in-flight", "A request that arrives while a step is in flight joins the next one.",
    SCHEDULER + "test_schedule_concurrent_batches",
    PEER_SCHEDULER + "test_with_a_step_in_flight_nothing_gets_a_token_too_many",
)
scheduling.held(
    "victim-in-flight", "A sequence is never preempted while a token of it is in flight; the token is awaited first.",
    SCHEDULER + "test_preempt_during_execution",
    T_OVERLAP + "test_where_blocks_may_run_out_the_tokens_are_waited_for_first",
    T_OVERLAP + "test_who_has_tokens_under_way_is_never_preempted",
)
scheduling.held(
    "nothing-leaks", "When all have finished, no sequence, block or reference count is left.",
    SCHEDULER + "test_memory_leak",
    PEER_SCHEDULER + "test_nothing_stays_behind_after_many_rounds",
    T_SCHEDULER + "test_no_block_is_lost_whoever_comes_and_goes",
)
scheduling.held(
    "abort-mid-prompt", "A sequence that leaves in the middle of its prompt frees all of its blocks.",
    HF + "test_continuous_batching_tp_cancellation",
    PEER_SCHEDULER + "test_a_sequence_that_left_in_the_middle_of_its_prompt_frees_all_of_its_blocks",
    T_SCHEDULER + "test_a_sequence_can_be_taken_out_in_every_state",
)
scheduling.held(
    "slots-limit", "No more sequences run than there are batch slots.",
    SCHEDULER + "test_priority_scheduling_with_limited_slots",
    T_SCHEDULER + "test_seats_and_budget_limit_who_is_admitted",
    PEER_SCHEDULER + "test_priorities_and_arrivals_give_the_order",
)
scheduling.held(
    "empty-schedule", "Without requests a step is empty, and updating with it is harmless.",
    ENGINE_CORE + "test_engine_core (step after the last abort)",
    T_SCHEDULER + "test_nothing_to_do_is_an_empty_plan",
)
scheduling.held(
    "impossible-limits", "Limits that allow no step are refused when the scheduler is made.",
    "vLLM tests/v1/test_oracle.py::test_reject_bad_config",
    T_SCHEDULER + "test_limits_that_make_no_sense_are_refused",
)
scheduling.not_offered(
    "multimodal", "Images of a request are scheduled with an encoder budget.",
    SCHEDULER + "test_schedule_multimodal_requests", TEXT_ONLY,
)
scheduling.not_offered(
    "partial-multimodal", "A request waits in the middle of its prompt while the encoder budget is used up.",
    SCHEDULER + "test_schedule_partial_requests", TEXT_ONLY,
)
scheduling.not_offered(
    "mm-not-chunked", "The tokens of an image are never split between two steps.",
    SCHEDULER + "test_no_mm_input_chunking", TEXT_ONLY,
)
scheduling.not_offered(
    "encoder-cache", "Encoded images are shared by reference count and evicted when their cache is full.",
    "vLLM tests/v1/core/test_encoder_cache_manager.py::test_eviction_when_cache_is_full", TEXT_ONLY,
)
scheduling.not_offered(
    "speculation-counts", "Drafted and accepted tokens are counted.",
    SCHEDULER + "test_schedule_spec_decoding_stats", NO_SPECULATION,
)
scheduling.not_offered(
    "connector", "Blocks that another machine has computed are loaded instead of computed.",
    SCHEDULER + "test_kv_connector_basic", NO_CONNECTOR,
)
scheduling.not_offered(
    "connector-preemption", "A preempted request is loaded from the connector again.",
    SCHEDULER + "test_kv_connector_handles_preemption", NO_CONNECTOR,
)
scheduling.not_offered(
    "no-tokenizer", "A scheduler works without a tokenizer, and refuses structured output then.",
    SCHEDULER + "test_schedule_skip_tokenizer_init_structured_output_request",
    "An engine has a tokenizer; any object with `decode` and `eos_token_id` will do.",
)

# ----------------------------------------------------------------------------------------------------------------------
priorities = Topic("priorities", "Priorities")

priorities.held(
    "order", "With `StrictPriority`, a smaller tier is admitted first, whatever the order of adding.",
    SCHEDULER + "test_priority_scheduling_basic_ordering",
    PEER_SCHEDULER + "test_priorities_and_arrivals_give_the_order",
)
priorities.held(
    "tie", "Within a tier, the earlier arrival is admitted first.",
    SCHEDULER + "test_priority_scheduling_arrival_time_tiebreaker",
    PEER_SCHEDULER + "test_priorities_and_arrivals_give_the_order",
)
priorities.held(
    "mixed", "Tiers count first and arrivals second when both differ.",
    SCHEDULER + "test_priority_scheduling_mixed_priority_and_arrival",
    PEER_SCHEDULER + "test_priorities_and_arrivals_give_the_order",
    T_POLICIES + "test_each_policy_sorts_by_what_it_promises",
)
priorities.held(
    "queue-order", "The waiting queue lists sequences in the order in which they will be admitted.",
    SCHEDULER + "test_priority_scheduling_waiting_queue_order",
    PEER_SCHEDULER + "test_priorities_and_arrivals_give_the_order",
    T_POLICIES + "test_the_queue_is_a_sorted_list",
)
priorities.held(
    "many-levels", "The order holds for many tiers added in any order.",
    SCHEDULER + "test_priority_scheduling_heap_property",
    PEER_SCHEDULER + "test_priorities_and_arrivals_give_the_order",
)
priorities.held(
    "fcfs", "First come, first served ignores tiers.",
    SCHEDULER + "test_priority_scheduling_fcfs_fallback",
    PEER_SCHEDULER + "test_without_a_policy_tiers_don_t_count",
)
priorities.held(
    "room", "A better tier is admitted without preemption while there is room.",
    SCHEDULER + "test_priority_scheduling_no_preemption_when_space_available",
    PEER_SCHEDULER + "test_a_better_tier_comes_in_without_preemption_while_there_is_room",
)
priorities.held(
    "victim-tier", "When blocks run out, the sequence of the worst tier loses its blocks.",
    SCHEDULER + "test_priority_scheduling_preemption_victim_selection",
    PEER_SCHEDULER + "test_the_worst_tier_loses_its_blocks_whoever_needs_them",
)
priorities.held(
    "victim-is-asker", "The sequence that needs a block may itself be the victim.",
    SCHEDULER + "test_priority_scheduling_preemption_when_out_of_kv",
    PEER_SCHEDULER + "test_the_worst_tier_loses_its_blocks_whoever_needs_them",
    T_PREEMPTION + "test_the_one_that_needs_the_block_may_be_the_victim",
)
priorities.held(
    "victim-tie", "Among victims of one tier, the last to arrive is preempted.",
    SCHEDULER + "test_priority_scheduling_equal_priority_preemption",
    PEER_SCHEDULER + "test_of_one_tier_the_last_to_arrive_is_preempted",
)
priorities.held(
    "victim-waits", "A preempted sequence waits behind better tiers and finishes later.",
    SCHEDULER + "test_priority_scheduling_preemption",
    PEER_SCHEDULER + "test_a_preempted_sequence_waits_behind_a_better_tier",
)
priorities.not_offered(
    "preempt-for-newcomer", "A waiting request of a better tier takes the blocks of a running one.",
    SCHEDULER + "test_priority_scheduling_preemption",
    "Only running sequences preempt, as in vLLM's own scheduler; a waiting one is admitted once blocks are free.",
)
priorities.held(
    "engine-tier", "A request names its tier when it is added, and the policy of the engine sees it.",
    PARAMS + "test_priority",
    T_ENGINE + "test_who_reads_along_has_a_head_start",
)

# ----------------------------------------------------------------------------------------------------------------------
memory = Topic("memory", "Too few blocks: admission and preemption")

memory.held(
    "check-takes-nothing", "Asking whether a sequence fits takes no block.",
    HF + "test_continuous_batching_can_store_request_tokens",
    PEER_SCHEDULER + "test_asking_whether_blocks_suffice_takes_none",
)
memory.held(
    "zero-tokens-fit", "No new tokens fit into a full pool.",
    HF + "test_continuous_batching_can_store_request_tokens (zero tokens)",
    PEER_SCHEDULER + "test_asking_whether_blocks_suffice_takes_none",
)
memory.held(
    "cumulative-fit", "Sequences admitted in one step do not count on the same free blocks.",
    HF + "test_count_storable_requests",
    PEER_SCHEDULER + "test_those_admitted_in_one_step_don_t_count_on_the_same_blocks",
)
memory.held(
    "few-blocks", "In a pool too small for all, requests are preempted and get the tokens that they get alone.",
    HF + "test_continuous_batching_few_blocks",
    PEER_ENGINE + "test_the_same_prompt_several_times_in_too_small_a_pool",
    T_ENGINE + "test_greedy_answers_are_those_of_generate",
)
memory.held(
    "swap-parity", "Swapping to CPU memory gives the same tokens as recomputing.",
    HF + "test_cpu_offloading_parity",
    T_ENGINE + "test_greedy_answers_are_those_of_generate",
    T_PREEMPTION + "test_a_victim_that_is_swapped_goes_on_where_it_was",
)
memory.held(
    "swap-async", "Swapping gives the same tokens when steps overlap.",
    HF + "test_cpu_offloading_parity_async",
    T_OVERLAP + "test_answers_are_those_of_one_step_after_the_other",
    T_OVERLAPPED + "test_answers_are_those_of_the_engine_that_waits",
)
memory.held(
    "no-swap-space", "Without swap space, or with too little, a victim's cache is dropped and recomputed.",
    HF + "test_cpu_offloading_disabled_when_zero",
    T_PREEMPTION + "test_where_the_swap_space_is_full_the_cache_is_dropped",
)
memory.held(
    "recompute-keeps-tokens", "A preempted sequence keeps its tokens, and its limit counts them.",
    HF + "test_streaming_output_after_soft_reset_does_not_shorten_generation",
    PEER_SCHEDULER + "test_a_preempted_sequence_gets_as_many_tokens_as_it_asked_for",
)
memory.held(
    "stream-after-reset", "A stream under preemption has each token once.",
    HF + "test_streaming_output_after_soft_reset_does_not_shorten_generation (streamed)",
    PEER_ENGINE + "test_a_stream_under_preemption_has_each_token_once",
)
memory.held(
    "progress", "The sequence that comes first in rank is never preempted, so that something always finishes.",
    SCHEDULER + "test_priority_scheduling_preemption_when_out_of_kv (first request)",
    PEER_SCHEDULER + "test_the_first_of_the_queue_is_never_preempted",
)
memory.held(
    "no-admission-while-preempting", "A step that preempts admits none.",
    SCHEDULER + "test_priority_scheduling_preemption (same step)",
    T_PREEMPTION + "test_nobody_is_admitted_in_a_step_that_takes_blocks_back",
)
memory.held(
    "no-room-for-computed", "A request with cached blocks that cannot be admitted leaves those blocks as they were.",
    PREFIX + "test_prefill_not_enough_free_blocks_with_computed_blocks",
    PEER_PREFIX + "test_a_sequence_that_can_t_be_admitted_touches_no_cached_block",
)
memory.held(
    "blocks-needed", "A waiting sequence needs blocks for its tokens; cached ones in use are free of charge.",
    CACHE_TYPES + "test_get_num_blocks_to_allocate",
    T_PREEMPTION + "test_what_others_hold_counts_as_nothing_for_admission",
)
memory.held(
    "evictable-are-counted", "Cached blocks that are free have to be taken out of the free queue, and are counted.",
    CACHE_TYPES + "test_get_num_blocks_to_allocate (evictable)",
    T_PREEMPTION + "test_what_nobody_holds_has_to_be_taken_out_of_the_free_queue",
)
memory.held(
    "too-large-refused", "A request larger than the whole pool is refused before anything changes.",
    TINY_3 + "2.py::test_batch_generate_enforces_max_seq_len_before_emission_or_allocation (pool)",
    T_ENGINE + "test_what_can_never_be_served_is_refused_and_changes_nothing",
)
memory.held(
    "pool-from-bytes", "The number of blocks follows from the bytes for the cache and the sizes of the model.",
    CACHE_UTILS + "test_get_kv_cache_config_one_worker",
    T_POOL + "test_budget",
    T_ENGINE + "test_sizes_come_from_memory_if_no_blocks_are_named",
)
memory.held(
    "bytes-of-cache", "The predicted bytes of the cache are those of the tensors.",
    HF + "test_memory_prediction",
    T_ATTENTION + "test_what_is_written_lies_in_its_slot_and_nothing_else_changes",
    "models/test_models.py::test_cache_bytes_are_those_of_a_real_cache",
)
memory.not_offered(
    "estimated-length", "The longest sequence that fits into the memory is estimated.",
    CACHE_UTILS + "test_estimate_max_model_len", "The longest sequence is the model's context or a limit of the user.",
)
memory.not_offered(
    "concurrency", "The engine says how many of the longest sequences fit.",
    CACHE_UTILS + "test_get_max_concurrency_for_kv_cache_config",
    "Lesson 03 computes it by hand; the engine reports utilization.",
)
memory.not_offered(
    "percent-of-memory", "The cache takes a share of the device's free memory.",
    HF + "test_memory_footprint_respects_max_memory_percent", "The size of the cache is named in blocks or bytes.",
)
memory.not_offered(
    "lookahead", "Slots for tokens that may follow are allocated ahead.",
    CACHE_UTILS + "test_allocate_with_lookahead", NO_SPECULATION,
)

# ----------------------------------------------------------------------------------------------------------------------
blocks = Topic("blocks", "Block pool and block tables")

blocks.held(
    "queue-init", "A new pool has every block once in its free queue.",
    CACHE_UTILS + "test_free_kv_cache_block_queue_initialization",
    PEER_PREFIX + "test_blocks_are_taken_from_the_front_and_freed_to_the_back",
)
blocks.held(
    "queue-pop", "Blocks are allocated from the front of the free queue, one or several at a time.",
    CACHE_UTILS + "test_free_kv_cache_block_queue_popleft_n",
    PEER_PREFIX + "test_blocks_are_taken_from_the_front_and_freed_to_the_back",
    T_POOL + "TestPoolAgainstModel",
)
blocks.held(
    "queue-append", "Freed blocks go to the end of the free queue; freeing none is harmless.",
    CACHE_UTILS + "test_free_kv_cache_block_queue_append_n",
    PEER_PREFIX + "test_blocks_are_taken_from_the_front_and_freed_to_the_back",
)
blocks.held(
    "queue-remove", "A block can be taken out of the middle of the free queue.",
    CACHE_UTILS + "test_free_kv_cache_block_queue_operations",
    PEER_PREFIX + "test_a_hit_takes_its_blocks_out_of_the_middle_of_the_free_queue",
)
blocks.held(
    "queue-list", "The free queue lists its blocks in the order of their allocation.",
    CACHE_UTILS + "test_free_kv_cache_block_queue_get_all_free_blocks",
    T_PREFIX + "TestCacheAgainstModel",
)
blocks.held(
    "pop-from-empty", "Allocating more than is free is refused and changes nothing.",
    CACHE_UTILS + "test_free_kv_cache_block_queue_operations (empty)",
    T_POOL + "TestPoolAgainstModel",
    PEER_PREFIX + "test_exactly_what_is_free_or_cached_can_be_allocated",
)
blocks.held(
    "ref-count", "A block counts its users and has a hash only while it is full.",
    CACHE_UTILS + "test_kv_cache_block",
    T_PREFIX + "TestCacheAgainstModel",
)
blocks.held(
    "evict-exactly", "When only cached blocks are left, exactly as many as are needed are evicted.",
    SGL + "test_allocate_exact_pages_needed_from_evict",
    PEER_PREFIX + "test_exactly_what_is_free_or_cached_can_be_allocated",
)
blocks.held(
    "no-overlap", "Blocks allocated one after the other after an eviction do not overlap.",
    SGL + "test_consecutive_allocations_after_evict_no_overlap",
    PEER_PREFIX + "test_blocks_allocated_after_evictions_don_t_overlap",
)
blocks.held(
    "aligned", "A block allocated after an eviction begins at a multiple of the block size.",
    SGL + "test_allocate_after_evict_returns_page_aligned",
    PEER_PREFIX + "test_blocks_allocated_after_evictions_don_t_overlap",
)
blocks.held(
    "free-aligned", "What stays free after an eviction are whole blocks.",
    SGL + "test_free_slots_stay_page_aligned_after_evict",
    PEER_PREFIX + "test_blocks_allocated_after_evictions_don_t_overlap",
)
blocks.held(
    "expansion", "A block stands for as many cache slots in a row as it has tokens.",
    SGL + "test_page_to_token_expansion_correct_after_evict",
    PEER_PREFIX + "test_blocks_allocated_after_evictions_don_t_overlap",
    T_POOL + "test_slot_mapping_agrees_with_one_position_at_a_time",
)
blocks.held(
    "integrity", "After every step, each block is free or has as many users as its count says.",
    SGL + "test_check_integrity_passes_after_evict_cycle",
    T_PREEMPTION + "test_the_audit_finds",
    PEER_SCHEDULER + "test_nothing_stays_behind_after_many_rounds",
)
blocks.held(
    "reuse", "Freed blocks are used again.",
    TINY_3 + "3.py::test_task_1_paged_pool_reuses_freed_pages",
    T_POOL + "test_the_tail_of_a_request_is_handed_out_before_its_beginning",
)
blocks.held(
    "block-boundary", "A block is allocated only when a token is the first of a block.",
    PREFIX + "test_decode (new block)",
    T_POOL + "test_the_boundary",
    T_FAULTS + "test_can_append_looked_at_the_wrong_token_at_a_block_boundary",
)
blocks.held(
    "read-write-slots", "Slots to read and to write follow from block table, position and block size.",
    HF + "test_full_attention_get_indices",
    T_POOL + "test_slot_mapping_agrees_with_one_position_at_a_time",
    T_POOL + "test_positions_outside_the_blocks_are_refused",
)
blocks.held(
    "table-rows", "Block tables of unequal length are padded, and the padding is never read.",
    TINY_3 + "3.py::test_task_1_reuses_block_table_until_page_ids_change",
    T_SCHEDULER + "test_tables_of_unequal_length_are_filled_up",
    T_ATTENTION + "test_packed_rows_against_gathered_keys",
)
blocks.held(
    "table-changes", "A block table kept for the next step is renewed when any of its blocks changes.",
    TINY_3 + "3.py::test_task_1_reuses_block_table_until_page_ids_change (change)",
    T_GRAPHS + "test_a_changed_table_is_noticed_whatever_changed",
)
blocks.held(
    "store", "New keys and values go to their slots, and nothing else changes.",
    "mini-sglang tests/kernel/test_store.py::test_store_cache",
    T_ATTENTION + "test_what_is_written_lies_in_its_slot_and_nothing_else_changes",
    "kernels/test_triton_basics.py::test_new_keys_go_to_their_slots_and_nowhere_else",
)
blocks.held(
    "copy-blocks", "Blocks are copied in all layers, in the order of the copies.",
    "vLLM tests/kernels/attention/test_cache.py::test_copy_blocks",
    T_PREEMPTION + "test_moves_are_done_in_their_order",
    T_PREEMPTION + "test_long_random_runs_of_moves_are_done_one_after_the_other",
)
blocks.held(
    "swap-blocks", "Blocks are copied between the cache and the swap space, both ways.",
    "vLLM tests/kernels/attention/test_cache.py::test_swap_blocks",
    T_PREEMPTION + "test_a_swap_reads_one_cache_and_writes_the_other",
)
blocks.held(
    "strided-cache", "A cache that a kernel cannot write to is refused before anything is written.",
    TINY_3 + "3.py::test_task_1_rejects_incompatible_dtype_before_allocating_a_page",
    "kernels/test_triton_basics.py::test_a_cache_whose_slots_are_not_evenly_spaced_is_refused_and_stays_as_it_was",
)
blocks.held(
    "shapes", "Keys and values of another shape than the cache are refused.",
    TINY_3 + "3.py::test_task_1_rejects_shape_mismatch_without_mutating_cache",
    PEER_PREFIX + "test_keys_of_another_shape_are_refused",
)
blocks.not_offered(
    "aliased", "A block table that lists a block twice is refused by the kernel.",
    TINY_3 + "4.py::test_paged_attention_rejects_invalid_live_metadata_before_dispatch (aliased)",
    "Kernels trust the scheduler; `audit` finds a block with two places.",
)
blocks.not_offered(
    "growing-pool", "The pool's storage grows as it is needed.",
    TINY_3 + "3.py::test_task_1_paged_pool_grows_storage_geometrically",
    "The pool is allocated once: what can run is known from the start.",
)
blocks.not_offered(
    "rewind", "The last tokens of a cached sequence can be taken back.",
    TINY_3 + "3.py::test_task_1_paged_cache_rewind", NO_SPECULATION,
)
blocks.not_offered(
    "null-block", "Block 0 is reserved and stands for no block.",
    CACHE_UTILS + "test_free_kv_cache_block_queue_initialization (null block)",
    "Padding of CUDA graphs has a spare block of its own behind the pool.",
)
blocks.not_offered(
    "groups", "Layers of different attention types have block tables of their own.",
    CACHE_UTILS + "test_get_kv_cache_config_one_worker (groups)",
    "All layers share one block table; what a window leaves behind stays in its blocks.",
)

# ----------------------------------------------------------------------------------------------------------------------
prefix = Topic("prefix", "Prefix cache")

prefix.held(
    "hash-chain", "A full block's hash stands for its tokens and all blocks before it; a partial block has none.",
    PREFIX + "test_prefill",
    PEER_PREFIX + "test_full_blocks_have_the_chain_of_their_hashes_and_the_last_one_none",
)
prefix.held(
    "hit-in-use", "A prefix is found while its first owner still runs, and both use the same blocks.",
    PREFIX + "test_prefill (block in use)",
    PEER_PREFIX + "test_a_prefix_is_found_while_its_first_owner_runs_and_after_it_has_left",
)
prefix.held(
    "hit-after-free", "A prefix is found after its owner has left, and its blocks leave the free queue.",
    PREFIX + "test_prefill (block freed)",
    PEER_PREFIX + "test_a_prefix_is_found_while_its_first_owner_runs_and_after_it_has_left",
)
prefix.held(
    "free-order", "The tail of a sequence is lost before its beginning, and blocks never used before both.",
    PREFIX + "test_prefill (order of eviction)",
    PEER_PREFIX + "test_freed_blocks_are_lost_tail_first_and_never_used_ones_before_them",
)
prefix.held(
    "lru", "What was not used for longest is evicted first; a hit makes a block recent again.",
    PREFIX + "test_evict",
    T_PREFIX + "test_what_was_not_used_for_longest_is_lost_first",
    PEER_PREFIX + "test_a_hit_takes_its_blocks_out_of_the_middle_of_the_free_queue",
)
prefix.held(
    "decode-fills", "A block that decoding fills can be found once it is full.",
    PREFIX + "test_decode",
    PEER_PREFIX + "test_a_block_that_decoding_fills_can_be_found_once_it_is_full",
)
prefix.held(
    "chunks-fill", "The chunks of a prompt make blocks findable as they fill them.",
    PREFIX + "test_cache_blocks",
    PEER_PREFIX + "test_the_chunks_of_a_prompt_hash_the_blocks_that_they_fill",
)
prefix.held(
    "hash-reset", "A cached block that is used again forgets its hash.",
    PREFIX + "test_hash_block_correct_reuse",
    PEER_PREFIX + "test_a_block_used_again_forgets_its_hash",
)
prefix.held(
    "hits-not-evicted", "Blocks that a sequence has found are not evicted for the rest of its own tokens.",
    PREFIX + "test_computed_blocks_not_evicted",
    PEER_PREFIX + "test_what_is_found_is_not_evicted_for_the_rest_of_the_same_sequence",
)
prefix.held(
    "off", "With prefix sharing off, nothing is hashed or found.",
    PREFIX + "test_basic_prefix_caching_disabled",
    T_PREEMPTION + "test_nothing_is_found_where_nothing_is_shared",
)
prefix.held(
    "last-token", "A prompt that is cached to its last token still has that token computed.",
    PREFIX + "test_prefill (hit length)",
    T_PREEMPTION + "test_the_last_known_token_is_always_left_to_compute",
    T_FAULTS + "test_a_prompt_wholly_in_the_prefix_cache_left_nothing_to_compute",
)
prefix.held(
    "multiple-of-block", "A prompt of whole blocks finds all of them and writes its last token into a copy.",
    HF + "test_prefix_match_and_dedup (exact multiple)",
    T_PREEMPTION + "test_a_prompt_that_is_cached_is_admitted_with_a_copy_of_its_last_block",
)
prefix.held(
    "duplicates", "Of two blocks with the same tokens one can be found, and both are freed.",
    PREFIX + "test_maybe_evict_cached_block",
    PEER_PREFIX + "test_of_two_blocks_with_the_same_tokens_one_is_found_and_each_is_freed_once",
)
prefix.held(
    "one-per-hash", "A hash belongs to one block; caching another block with it changes nothing.",
    PREFIX + "test_block_lookup_cache_single_block_per_key",
    T_PREFIX + "TestCacheAgainstModel",
)
prefix.not_offered(
    "several-per-hash", "A hash may list several blocks, and the next one is found when the first is evicted.",
    PREFIX + "test_block_lookup_cache_multi_blocks_per_key",
    "Only the first block with a hash can be found; its duplicates are plain blocks.",
)
prefix.not_offered(
    "dedup-on-the-spot", "A block that turns out to be a duplicate is swapped for the cached one and freed.",
    HF + "test_prefix_match_and_dedup (duplicates)",
    "As in vLLM, a sequence keeps the blocks that it has computed.",
)
prefix.not_offered(
    "same-step", "Equal prompts that are admitted in one step share their blocks.",
    ASYNC_SCHEDULER + "test_prefix_caching_for_prefill_dedup (same step)",
    "Blocks can be found once the step that computes their tokens has ended.",
)
prefix.held(
    "later-steps", "A prompt that arrives a step later finds the blocks of an equal one.",
    ASYNC_SCHEDULER + "test_prefix_caching_for_prefill_dedup (later requests)",
    PEER_PREFIX + "test_a_prefix_is_found_while_its_first_owner_runs_and_after_it_has_left",
)
prefix.held(
    "next-turn", "The next turn of a conversation finds all full blocks of the turn before.",
    ASYNC_SCHEDULER + "test_prefix_caching_for_multi_turn",
    PEER_PREFIX + "test_the_next_turn_of_a_conversation_finds_all_full_blocks_of_the_last_one",
    PEER_ENGINE + "test_a_conversation_s_next_turn_is_found_in_the_cache",
)
prefix.held(
    "known-tokens-only", "While a step is in flight, blocks are hashed after known tokens only.",
    ASYNC_SCHEDULER + "test_prefix_caching_for_multi_turn (placeholders)",
    T_OVERLAP + "test_blocks_are_called_after_tokens_that_are_known",
)
prefix.held(
    "first-miss", "The first block that differs ends the prefix that is found.",
    HF + "test_prefix_match_and_dedup (partial match)",
    PEER_PREFIX + "test_a_miss_in_the_middle_ends_the_prefix",
    T_PREFIX + "test_nothing_is_found_behind_a_gap",
)
prefix.held(
    "other-beginning", "The same tokens behind another beginning are another block.",
    CACHE_UTILS + "test_hash_block_tokens",
    T_PREFIX + "test_the_same_tokens_behind_another_beginning_have_another_name",
)
prefix.held(
    "incremental-hash", "Hashes computed while a sequence grows are those of all tokens at once.",
    CACHE_UTILS + "test_request_block_hasher",
    T_PREFIX + "test_names_that_were_reckoned_as_a_sequence_grew_are_those_of_all_at_once",
)
prefix.held(
    "no-collision", "Different tokens have different hashes, also where their digits look alike.",
    CACHE_UTILS + "test_hash_request_tokens_no_mm_inputs",
    T_PREFIX + "test_two_chains_have_one_name_only_if_they_are_the_same",
    T_PREFIX + "test_names_that_are_easily_confused",
)
prefix.held(
    "hash-in-all-processes", "Hashes are the same in every process.",
    CACHE_UTILS + "test_none_hash",
    T_PREFIX + "test_names_are_of_32_bytes_and_the_same_in_every_process",
)
prefix.held(
    "own-hash", "Another hash function can be given.",
    PREFIX + "test_prefill[sha256_cbor]",
    T_PREEMPTION + "test_the_scheduler_uses_the_names_and_the_taking_that_it_is_given",
)
prefix.held(
    "after-preemption", "A preempted sequence finds its own blocks again, each once and in order.",
    SCHEDULER + "test_kv_connector_handles_preemption (recomputed)",
    T_FAULTS + "test_preemption_followed_by_a_prefix_hit_broke_the_block_table",
    T_FAULTS + "test_after_a_prefix_hit_the_table_of_a_preempted_sequence_is_sound",
)
prefix.held(
    "failed-blocks", "Blocks of a request whose step failed cannot be found.",
    TINY_3 + "3.py::test_task_1_rolls_back_every_page_when_a_later_write_fails",
    PEER_PREFIX + "test_a_failed_sequence_s_blocks_can_not_be_found",
    T_ENGINE_FAULTS + "test_nobody_finds_what_a_failed_request_has_cached",
)
prefix.held(
    "answers-unchanged", "Tokens found in the cache do not change an answer.",
    HF + "test_prefix_sharing",
    PEER_ENGINE + "test_the_same_prompt_several_times_in_too_small_a_pool",
    "scheduling/test_pressure_equality.py::test_no_answer_changes_under_pressure",
)
prefix.held(
    "counted", "Tokens found in the cache are counted, and so is their share.",
    "vLLM tests/v1/core/test_scheduler_e2e.py::test_prefix_cache_stats_is_recorded",
    T_ENGINE + "test_tokens_found_in_the_cache_are_counted",
)
prefix.held(
    "hit-rate-empty", "The hit rate of an engine that has served nothing is 0.",
    CACHE_UTILS + "test_metrics_empty_stats",
    T_ENGINE + "test_a_snapshot_is_plain_and_stays",
)
prefix.not_offered(
    "hit-rate-window", "The hit rate is that of the most recent requests.",
    CACHE_UTILS + "test_metrics", "Rates are over the engine's life; `recent` has the last 1000 steps.",
)
prefix.held(
    "fork", "Forks share all blocks; a block is copied when one of its users writes to it.",
    HF + "test_fork_blocks_sharing_and_copy",
    T_PREEMPTION + "test_children_share_all_blocks_until_they_write",
    T_PREEMPTION + "test_a_copy_before_a_write_leaves_the_others_their_block",
)
prefix.held(
    "fork-freed", "A shared block is free when its last user has left.",
    HF + "test_fork_blocks_sharing_and_copy (freeing)",
    T_PREFIX + "test_a_shared_block_is_not_handed_out_again",
    T_PREEMPTION + "test_more_children_than_seats",
)
prefix.held(
    "salt", "Requests with different salts never share a block.",
    PREFIX + "test_cache_key_salting",
    "engine/test_tenants.py::test_blocks_are_shared_only_with_the_same_salt",
)
prefix.held(
    "salt-key", "A salt changes the hash of the first block, and by the chain all others.",
    CACHE_UTILS + "test_generate_block_hash_extra_keys_cache_salt",
    "engine/test_tenants.py::test_tokens_cannot_pass_for_a_salt_nor_a_salt_for_tokens",
)
prefix.held(
    "reset", "The prefix cache can be emptied, unless blocks of it are in use.",
    PREFIX + "test_reset_prefix_cache",
    "engine/test_tenants.py::test_a_reset_forgets_every_prefix",
    "engine/test_tenants.py::test_a_reset_is_refused_while_requests_have_blocks",
)
prefix.held(
    "skip-for-prompt-logprobs", "A request for log-probabilities of its prompt takes nothing from the cache.",
    PREFIX + "test_prefill_plp",
    "engine/test_sampling_requests.py::test_prompt_logprobs_read_nothing_from_the_prefix_cache",
)
prefix.not_offered(
    "mm-keys", "Images are part of a block's hash.",
    PREFIX + "test_mm_prefix_caching", TEXT_ONLY,
)
prefix.not_offered(
    "mm-hash", "The same placeholder tokens of different images have different hashes.",
    CACHE_UTILS + "test_hash_tokens_different_mm_input", TEXT_ONLY,
)
prefix.not_offered(
    "events", "Stored and removed blocks are published as events.",
    PREFIX + "test_kv_cache_events", "Pictures read the pool; no other process needs to know.",
)
prefix.not_offered(
    "hybrid", "Layers with windows find a prefix by the blocks inside of their window.",
    PREFIX + "test_prefill_hybrid_model", "A prefix is found by all of its blocks, in all layers alike.",
)
prefix.not_offered(
    "eagle", "With a draft model the last block found is computed again.",
    PREFIX + "test_eagle_enabled_removes_last_block", NO_SPECULATION,
)
prefix.not_offered(
    "no-counting", "Counting hits can be switched off.",
    PREFIX + "test_prefix_cache_stats_disabled", "Metrics are plain sums, and always on.",
)

# ----------------------------------------------------------------------------------------------------------------------
overlap = Topic("overlap", "Overlapped steps and CUDA graphs")

overlap.held(
    "max-tokens", "With a step in flight, no request gets a token more than its limit.",
    ASYNC_SCHEDULER + "test_stop_by_max_tokens",
    PEER_SCHEDULER + "test_with_a_step_in_flight_nothing_gets_a_token_too_many",
    T_OVERLAP + "test_an_answer_that_ends_at_its_cap_costs_no_step_more",
)
overlap.held(
    "abort", "Requests aborted while steps are in flight keep the tokens known by then, and get no more.",
    ASYNC_SCHEDULER + "test_abort",
    PEER_SCHEDULER + "test_aborts_while_steps_are_in_flight_leave_the_tokens_known_by_then",
    T_OVERLAP + "test_an_aborted_sequence_gets_nothing_more",
)
overlap.held(
    "preempt", "Preemption works when steps overlap.",
    ASYNC_SCHEDULER + "test_preempt",
    T_OVERLAP + "test_the_tight_pools_above_do_preempt",
    T_OVERLAP + "test_answers_are_those_of_one_step_after_the_other",
)
overlap.held(
    "token-after-stop", "A token computed after a stop token is thrown away, and its blocks are freed.",
    ASYNC_SCHEDULER + "test_stop_by_max_tokens (stop tokens)",
    T_OVERLAP + "test_the_token_after_a_stop_token_is_thrown_away",
)
overlap.held(
    "parity", "The overlapped engine gives the tokens of the one that waits, in all configurations.",
    HF + "test_continuous_batching_async",
    T_OVERLAPPED + "test_answers_are_those_of_the_engine_that_waits",
)
overlap.held(
    "launch-first", "The next step is launched before the last one's tokens are waited for.",
    ENGINE_CORE + "test_engine_core_concurrent_batches",
    T_OVERLAP + "test_the_next_step_starts_before_the_tokens_of_the_last_one_are_asked_for",
    T_OVERLAPPED + "test_the_next_step_is_started_before_the_last_one_is_waited_for",
)
overlap.held(
    "failed-launch", "An error while a step is launched leaves the one in flight intact.",
    "vLLM tests/v1/shutdown/test_forward_error.py::test_llm_model_error",
    T_OVERLAP + "test_an_error_at_the_start_of_a_step_leaves_the_one_before",
    T_OVERLAPPED + "test_an_error_fails_the_requests_of_its_step",
)
overlap.held(
    "graph-sizes", "A batch runs with the smallest captured size that holds it; a larger one is refused.",
    "vLLM tests/v1/cudagraph/test_cudagraph_dispatch.py::test_dispatcher",
    T_GRAPHS + "test_the_ladder_reaches_exactly_the_most_sequences",
    T_GRAPHS + "test_a_step_larger_than_all_graphs_is_refused",
)
overlap.held(
    "graph-replay", "A step is captured once and replayed from then on.",
    "vLLM tests/v1/cudagraph/test_cudagraph_dispatch.py::test_capture_and_replay",
    T_GRAPHS + "test_a_step_is_captured_once_and_replayed_from_then_on",
)
overlap.held(
    "graph-key", "A change of what a graph was captured with captures a new one.",
    "vLLM tests/v1/cudagraph/test_cudagraph_dispatch.py::test_bypass_on_mode_mismatch",
    T_GRAPHS + "test_a_cuda_graph_is_never_replayed_with_a_stale_key",
)
overlap.held(
    "graph-parity", "Padded rows of a graph change neither logits nor cache.",
    HF + "test_decode_fast_path_wide_batch_parity",
    T_GRAPHS + "test_logits_and_cache_are_those_of_the_plain_runner",
    T_GRAPHS + "test_a_row_is_the_packed_row_and_its_filling",
)
overlap.held(
    "compiled", "A compiled model takes batches of all sizes without compiling again.",
    HF + "test_continuous_batching_config_combinations_with_compile",
    T_GRAPHS + "test_a_compiled_model_takes_rows_of_all_sizes_in_one_piece",
)
overlap.held(
    "rows-reused", "A batch row that a request has left is used for another.",
    "vLLM tests/v1/worker/test_gpu_model_runner.py::test_update_states_request_finished",
    T_GRAPHS + "test_lines_of_those_who_left_are_used_again",
)
overlap.held(
    "full-history", "Requests whose next token needs the host make one step wait for the other, and only they.",
    HF + "test_full_history_processors_disable_incompatible_execution_modes",
    T_OVERLAPPED + "test_only_while_somebody_looks_at_logits_one_step_waits_for_the_other",
)
overlap.not_offered(
    "other-device", "Graphs are captured on a device other than the first.",
    HF + "test_cuda_graph_capture_on_non_default_device", ONE_PROCESS,
)
overlap.not_offered(
    "graph-for-prefill-only", "CUDA graphs can be switched on for prefills and decodes separately.",
    HF + "test_continuous_batching_tuple_cuda_graph", "Only decode steps are captured; prefills run compiled.",
)

# ----------------------------------------------------------------------------------------------------------------------
attention = Topic("attention", "Attention")

attention.held(
    "mask", "Each token of a packed row sees its own sequence up to itself.",
    HF + "test_attention_mask",
    T_MASKS + "test_the_block_diagonal_mask_against_brute_force",
    "attention/test_packing.py::test_every_new_token_sees_its_sequence_so_far_and_nothing_else",
)
attention.held(
    "causal-offset", "With fewer queries than keys, the queries are the last tokens.",
    TINY_1 + "3.py::test_task_2_mask_only_different_dim",
    T_MASKS + "test_every_combination_of_rules_against_brute_force",
)
attention.held(
    "without-cache", "Paged attention without its cache is refused instead of running without a causal mask.",
    HF + "test_paged_forward_without_cache_raises",
    T_FAULTS + "test_a_paged_attention_function_called_without_its_cache_ran_without_the_causal_mask",
)
attention.held(
    "backends", "Prefills, chunks and decodes in one batch equal dense attention over each sequence.",
    "vLLM tests/v1/attention/test_attention_backends.py::test_causal_backend_correctness",
    T_ATTENTION + "test_packed_rows_against_gathered_keys",
)
attention.held(
    "kernel-equality", "The Triton kernels equal attention over gathered keys and values.",
    "vLLM tests/kernels/attention/test_triton_unified_attention.py::test_triton_unified_attn",
    T_KERNELS + "test_fixed_cases_equal_the_gathered_reference",
    T_KERNELS + "test_random_cases_equal_the_gathered_reference",
)
attention.held(
    "decode-kernel", "A decode kernel equals dense attention for every sharing of KV heads.",
    "vLLM tests/kernels/attention/test_triton_decode_attention.py::test_decode_attention",
    "kernels/test_triton_basics.py::test_decode_of_several_sequences",
)
attention.held(
    "merge", "Partial attention over parts of the keys merges to attention over all.",
    "vLLM tests/kernels/attention/test_merge_attn_states.py::test_merge_attn_states",
    T_ATTENTION + "test_parts_merge_in_any_order",
)
attention.held(
    "prefix-and-new", "A chunk attends to the cached prefix and to itself.",
    "vLLM tests/kernels/attention/test_prefix_prefill.py::test_contexted_kv_attention",
    "attention/test_paged_model.py::test_prefills_chunks_and_decodes_equal_separate_runs",
)
attention.held(
    "grouped-heads", "Query heads that share a KV head give what repeated KV heads give.",
    TINY_1 + "3.py::test_task_1_grouped_attention",
    T_ATTENTION + "test_packed_rows_against_gathered_keys",
)
attention.held(
    "uneven-heads", "Query heads that KV heads do not divide evenly are refused.",
    "vLLM tests/kernels/attention/test_attention.py::test_num_heads_not_divisble_by_num_kv_heads",
    T_KERNELS + "test_what_the_kernels_do_not_support_is_refused",
)
attention.held(
    "scattered", "Blocks of a sequence may lie anywhere in the pool.",
    TINY_3 + "5.py::test_paged_flash_attention_crosses_noncontiguous_pages",
    PEER_ENGINE + "test_a_sequence_over_scattered_blocks_is_attended_as_if_they_followed_each_other",
)
attention.held(
    "paged-is-full", "A model over a paged cache has the logits of one with a cache per sequence.",
    TINY_3 + "3.py::test_task_1_paged_cache_matches_full_cache",
    "attention/test_paged_model.py::test_prefills_chunks_and_decodes_equal_separate_runs",
)
attention.held(
    "half-precision", "Attention in bfloat16 and float16 stays close to float32.",
    TINY_3 + "4.py::test_paged_attention_preserves_bfloat16_for_decode",
    T_ATTENTION + "test_half_precision",
)
attention.held(
    "bad-metadata", "Lengths and blocks out of bounds are refused before a kernel starts.",
    TINY_3 + "4.py::test_paged_attention_rejects_invalid_live_metadata_before_dispatch",
    T_KERNELS + "test_lengths_and_blocks_out_of_bounds_are_refused",
)
attention.held(
    "context-shorter", "A context shorter than its new tokens is refused.",
    TINY_3 + "4.py::test_paged_attention_rejects_active_context_shorter_than_query",
    T_KERNELS + "test_lengths_and_blocks_out_of_bounds_are_refused",
    "attention/test_packing.py::test_what_makes_no_row_is_refused",
)
attention.held(
    "unused-entries", "Block table entries behind a sequence's last block are neither read nor checked.",
    TINY_3 + "4.py::test_paged_attention_rejects_invalid_live_metadata_before_dispatch (live only)",
    T_KERNELS + "test_table_entries_past_a_sequence_are_not_checked",
)
attention.held(
    "online-softmax", "Softmax block by block equals softmax at once, for large scores too.",
    TINY_1 + "1.py::test_task_1_softmax",
    T_ATTENTION + "test_block_by_block_is_softmax",
)
attention.held(
    "last-logits", "Only the logits of each sequence's last token are computed.",
    TINY_2 + "6.py::test_task_5_logits_to_keep_controls_output_length",
    "attention/test_packing.py::test_one_packed_pass_equals_a_pass_for_each_sequence",
)
attention.held(
    "attention-restored", "A model has its own attention again after every step and after closing.",
    HF + "test_switch_to_cb_friendly_attn",
    T_CLOSING + "test_a_closed_engine_leaves_the_model_as_it_was",
    T_CLOSING + "test_between_two_steps_the_model_has_its_own_attention",
)
attention.held(
    "window", "Sliding windows are kept, also where a prompt or a decode crosses the window.",
    HF + "test_hybrid_sliding_window_crossing_parity",
    "attention/test_models_with_terms.py::test_a_chunked_paged_batch_generates_what_each_prompt_generates_alone",
)
attention.held(
    "window-mask", "A mask with a window forbids what lies before the window.",
    HF + "test_attention_mask[2]",
    "attention/test_masks.py::test_windows_and_chunks_against_brute_force",
)
attention.held(
    "window-backends", "All backends keep a window for every mix of prefills and decodes.",
    "vLLM tests/v1/attention/test_attention_backends.py::test_sliding_window_backend_correctness",
    "kernels/test_kernel_terms.py::test_every_backend_equals_plain_attention",
    "kernels/test_kernel_terms.py::test_random_cases",
)
attention.held(
    "window-per-layer", "Layers with and without a window are told apart by `layer_types`.",
    HF + "test_group_layers",
    "attention/test_models_with_terms.py::test_terms_come_from_keywords_and_layer_types",
)
attention.held(
    "softcap", "Models with capped scores and sinks get the tokens of `generate`.",
    HF + "test_continuous_batching_diverse_models",
    "attention/test_models_with_terms.py::test_a_chunked_paged_batch_generates_what_each_prompt_generates_alone",
)
attention.held(
    "alibi", "Linear biases of heads are added to the scores.",
    "vLLM tests/kernels/attention/test_prefix_prefill.py::test_contexted_kv_attention_alibi",
    "kernels/test_kernel_terms.py::test_every_backend_equals_plain_attention",
)
attention.not_offered(
    "window-buffer", "The cache of a layer with a window is a ring that overwrites what the window left behind.",
    HF + "test_sliding_attention_read_write_round_trip", "All layers share one block table.",
)
attention.not_offered(
    "window-freed", "Blocks that a window has left behind are freed.",
    CACHE_TYPES + "test_sliding_window_remove_skipped_blocks", "All layers share one block table.",
)
attention.not_offered(
    "chunked-local", "Attention within chunks of the sequence finds a prefix by its own chunk.",
    CACHE_TYPES + "test_chunked_local_attention_possible_cached_prefix",
    "No supported model has it.",
)
attention.not_offered(
    "cascade", "A prefix that all share is attended to once for the batch.",
    "vLLM tests/v1/e2e/test_cascade_attention.py::test_cascade_attention",
    "Shared blocks save memory and prefill; each sequence still reads them.",
)
attention.not_offered(
    "fp8-cache", "Keys and values are stored in 8 bits.",
    "vLLM tests/kernels/attention/test_cache.py::test_fp8_e4m3_conversion", "The cache has the type of the model.",
)
attention.not_offered(
    "rope", "Rotary embeddings of several offsets in a batch are right.",
    TINY_3 + "1.py::test_task_1_rope_multiple_offsets", BY_HUGGING_FACE,
)
attention.not_offered(
    "moe", "Experts are chosen and mixed by a router.",
    TINY_3 + "6.py::test_task_3_moe", BY_HUGGING_FACE,
)
attention.not_offered(
    "quantized", "Quantized weights give what dequantized ones give.",
    TINY_2 + "3.py::test_task_3_quantized_matmul_simple_bf16_gpu", BY_HUGGING_FACE,
)

# ----------------------------------------------------------------------------------------------------------------------
sampling = Topic("sampling", "Sampling")

sampling.held(
    "greedy-parity", "Greedy tokens are those of Hugging Face's `generate`.",
    HF + "test_continuous_batching_fast",
    T_ENGINE + "test_greedy_answers_are_those_of_generate",
    T_ENGINE + "test_the_six_stories_are_those_of_generate",
)
sampling.held(
    "long-parity", "So are the tokens of a long answer.",
    HF + "test_continuous_batching_long_generate",
    PEER_ENGINE + "test_a_long_answer_is_that_of_generate",
)
sampling.held(
    "config-parity", "No setting of blocks, slots, budget or sharing changes a token.",
    HF + "test_continuous_batching_config_combinations_no_compile",
    "scheduling/test_pressure_equality.py::test_no_answer_changes_under_pressure",
    "batching/test_paged_batching.py::test_tokens_equal_generate_and_the_ragged_loop",
)
sampling.held(
    "chunked-parity", "Chunks of any size give the same answer in as many steps as they need.",
    TINY_3 + "2.py::test_chunked_prefill_bounds_work_and_advances_cache",
    PEER_ENGINE + "test_a_prompt_in_chunks_of_any_size_has_the_same_answer",
)
sampling.held(
    "seed", "A seed gives the same tokens every time, and another seed others.",
    PARAMS + "test_seed",
    T_ENGINE + "test_another_seed_is_another_text_and_none_is_another_every_time",
)
sampling.held(
    "seed-in-company", "A seed gives the same tokens in any batch, and after preemption.",
    "vLLM tests/v1/sample/test_rejection_sampler.py::test_deterministic_when_seeded",
    T_ENGINE + "test_the_same_seed_is_the_same_text_whatever_else_is_there",
)
sampling.held(
    "per-request", "Every request has its own temperature, top_k and top_p.",
    HF + "test_per_request_logits_processors",
    PEER_ENGINE + "test_every_request_has_its_own_temperature_and_cuts",
    T_SAMPLING + "test_a_row_is_drawn_by_its_own_rules_whoever_is_beside_it",
)
sampling.held(
    "top-k-alone", "top_k alone is top_k with a top_p of 1, and a top_k of the whole vocabulary cuts nothing.",
    "vLLM tests/v1/sample/test_topk_topp_sampler.py::test_topk_impl_equivalence",
    PEER_ENGINE + "test_top_k_alone_is_top_k_with_a_top_p_of_one",
)
sampling.held(
    "top-k-then-p", "top_p is a share of what top_k leaves.",
    "vLLM tests/v1/sample/test_topk_topp_sampler.py::test_flashinfer_sampler",
    T_SAMPLING + "test_top_p_is_of_what_top_k_left",
    T_SAMPLING + "test_probabilities_are_those_of_a_list_of_every_row",
)
sampling.held(
    "top-k-kept", "A drawn token is one of the top_k likeliest.",
    "vLLM tests/v1/sample/test_rejection_sampler.py::test_top_k",
    T_SAMPLING + "test_a_row_is_drawn_by_its_own_rules_whoever_is_beside_it",
)
sampling.held(
    "distribution", "Drawn tokens follow the probabilities.",
    "vLLM tests/v1/sample/test_rejection_sampler.py::test_rejection_sampling_approximates_target_distribution",
    T_SAMPLING + "test_samples_follow_the_probabilities",
)
sampling.held(
    "top-k-one", "The single likeliest token is greedy at any temperature.",
    "vLLM tests/v1/sample/test_rejection_sampler.py::test_top_k[1]",
    PEER_ENGINE + "test_the_one_likeliest_token_is_greedy_at_any_temperature",
)
sampling.held(
    "greedy-beside-random", "Greedy and drawn requests share a batch.",
    ENGINE_CORE + "test_engine_core_advanced_sampling",
    T_SAMPLING + "test_greedy_is_possible_beside_others",
    T_FAULTS + "test_greedy_decoding_was_impossible",
)
sampling.held(
    "nan", "Logits that are not finite fail their own request and no other.",
    "vLLM tests/v1/worker/test_gpu_model_runner.py::test_get_nans_in_logits",
    T_SAMPLING + "test_a_row_that_is_no_number_is_said_and_stops_nobody_else",
    T_ENGINE_FAULTS + "test_logits_that_are_no_numbers_fail_their_own_request",
)
sampling.held(
    "n", "A request with `n` completions gets n of them, in order.",
    PARAMS + "test_n_gt_1",
    T_ENGINE + "test_several_answers_of_one_prompt_share_it",
)
sampling.held(
    "n-unique", "Completions of one request are drawn independently, each with a seed of its own.",
    "vLLM tests/v1/engine/test_llm_engine.py::test_parallel_sampling",
    T_ENGINE + "test_several_answers_of_one_prompt_share_it",
    T_ENGINE + "test_several_answers_are_the_same_under_pressure",
)
sampling.held(
    "n-greedy", "Several greedy completions are all the same, with and without shared blocks.",
    HF + "test_num_return_sequences",
    PEER_ENGINE + "test_several_greedy_completions_are_all_the_same",
)
sampling.held(
    "logprobs", "Log-probabilities are those of the model over the whole text.",
    LOGPROBS + "test_get_logprobs_and_prompt_logprobs",
    T_ENGINE + "test_logprobs_are_those_of_the_whole_text_at_once",
)
sampling.held(
    "logprobs-parity", "They are the same in a batch as in `generate`.",
    HF + "test_continuous_batching_log_probs",
    T_ENGINE + "test_logprobs_are_those_of_the_whole_text_at_once",
    T_OVERLAPPED + "test_answers_are_those_of_the_engine_that_waits",
)
sampling.held(
    "logprobs-none", "Without being asked for, there are none.",
    LOGPROBS + "test_none_logprobs",
    T_ENGINE + "test_logprobs_are_those_of_the_whole_text_at_once",
)
sampling.held(
    "logprobs-zero", "Zero likeliest tokens give the chosen token's log-probability alone.",
    LOGPROBS + "test_zero_logprobs",
    PEER_ENGINE + "test_as_many_log_probabilities_as_were_asked_for",
)
sampling.held(
    "logprobs-whole", "As many likeliest tokens as the vocabulary has can be asked for.",
    LOGPROBS + "test_all_logprobs",
    PEER_ENGINE + "test_log_probabilities_are_those_before_temperature_and_cuts",
)
sampling.held(
    "logprobs-raw", "Log-probabilities are those before temperature and cuts.",
    LOGPROBS + "test_logprobs_mode",
    PEER_ENGINE + "test_log_probabilities_are_those_before_temperature_and_cuts",
)
sampling.not_offered(
    "logprobs-modes", "Log-probabilities after processing, or logits, can be returned instead.",
    LOGPROBS + "test_logprobs_mode (other modes)", "Only the model's own log-probabilities are returned.",
)
sampling.not_offered(
    "ranks", "A log-probability comes with the rank of its token.",
    "vLLM tests/samplers/test_ranks.py::test_ranks", "The likeliest tokens are listed likeliest first.",
)
sampling.held(
    "logprobs-limit", "More log-probabilities than a limit are refused.",
    LOGPROBS + "test_max_logprobs",
    "engine/test_request_checks.py::test_log_probabilities_have_a_limit_that_an_engine_can_raise",
)
sampling.held(
    "logprobs-prompt", "Log-probabilities of the prompt's tokens can be asked for.",
    "vLLM tests/v1/sample/test_logprobs_e2e.py::test_prompt_logprobs_e2e",
    "engine/test_sampling_requests.py::test_prompt_logprobs_are_those_of_one_forward_pass",
)
sampling.held(
    "presence", "A presence penalty lowers the logits of tokens that the completion has.",
    SAMPLER + "test_sampler_presence_penalty",
    "engine/test_logits_processors.py::test_rules_are_those_of_hugging_face",
)
sampling.held(
    "frequency", "A frequency penalty lowers logits by how often the completion has a token.",
    SAMPLER + "test_sampler_frequency_penalty",
    "engine/test_logits_processors.py::test_rules_are_those_of_hugging_face",
)
sampling.held(
    "repetition", "A repetition penalty counts the prompt too, as Hugging Face's does.",
    SAMPLER + "test_sampler_repetition_penalty",
    "engine/test_logits_processors.py::test_rules_are_those_of_hugging_face",
)
sampling.held(
    "penalties-together", "All penalties and cuts can be combined.",
    PARAMS + "test_penalties",
    "engine/test_logits_processors.py::test_rules_are_those_of_hugging_face",
)
sampling.held(
    "history", "Rules that need all earlier tokens give what `generate` gives.",
    HF + "test_full_history_logits_processors_match_independent_generation",
    "engine/test_sampling_requests.py::test_greedy_tokens_are_those_of_generate",
)
sampling.held(
    "history-tokens", "The history of a sequence is its prompt and its completion.",
    HF + "test_token_histories_include_prompt_and_generated_tokens",
    "engine/test_logits_processors.py::test_rules_are_those_of_hugging_face",
)
sampling.held(
    "order-of-rules", "Rules are applied in a fixed order.",
    HF + "test_full_history_processors_preserve_processor_order",
    "engine/test_logits_processors.py::test_rules_are_those_of_hugging_face",
)
sampling.held(
    "allowed", "Only allowed tokens are drawn; an empty or impossible list is refused.",
    PARAMS + "test_allowed_token_ids",
    "engine/test_logits_processors.py::test_rules_are_those_of_hugging_face",
    "engine/test_sampling_params.py::test_a_wrong_value_is_refused_by_name",
)
sampling.held(
    "bad-words", "Bad words do not occur, also those of several tokens.",
    "vLLM tests/samplers/test_no_bad_words.py::test_two_token_bad_word",
    "engine/test_logits_processors.py::test_rules_are_those_of_hugging_face",
)
sampling.held(
    "bad-words-rows", "Bad words of one request leave the others alone.",
    SAMPLER + "test_sampler_bad_words",
    "engine/test_logits_processors.py::test_rows_without_rules_and_the_argument_stay_as_they_are",
)
sampling.held(
    "logit-bias", "A bias is added to the logits of its tokens.",
    "vLLM tests/v1/logits_processors/test_correctness.py::test_logitsprocs (bias)",
    "engine/test_logits_processors.py::test_rules_are_those_of_hugging_face",
)
sampling.held(
    "min-p", "min_p removes tokens far less likely than the likeliest.",
    "vLLM tests/v1/logits_processors/test_correctness.py::test_logitsprocs (min_p)",
    "engine/test_logits_processors.py::test_min_p_rules_out_what_is_far_less_likely",
)
sampling.held(
    "min-tokens", "No end or stop token is drawn before min_tokens.",
    "vLLM tests/v1/e2e/test_min_tokens.py::test_min_tokens_eos_behavior",
    "engine/test_logits_processors.py::test_rules_are_those_of_hugging_face",
)
sampling.held(
    "min-tokens-strings", "Stop strings do not end a completion before min_tokens.",
    "vLLM tests/detokenizer/test_min_tokens.py::test_min_tokens_with_stop",
    "engine/test_sampling_requests.py::test_stop_strings_count_behind_min_tokens",
)
sampling.held(
    "min-tokens-values", "min_tokens below 0 or above max_tokens is refused.",
    "vLLM tests/v1/e2e/test_min_tokens.py::test_min_tokens_validation",
    "engine/test_sampling_params.py::test_values_that_contradict_each_other_are_refused",
)
sampling.held(
    "best-of", "best_of is refused by name.",
    PARAMS + "test_best_of",
    "engine/test_sampling_params.py::test_what_is_not_offered_says_what_to_do_instead",
)
sampling.held(
    "own-processors", "A function of the user's over logits is applied, or refused by name.",
    PARAMS + "test_logits_processor",
    "engine/test_logits_processors.py::test_functions_of_the_users_come_first_and_see_what_they_ask_for",
)
sampling.held(
    "structured", "A completion follows a JSON schema or a regular expression.",
    "vLLM tests/v1/entrypoints/llm/test_struct_output_generate.py::test_structured_output",
    "engine/test_guided.py::test_every_text_matches_in_any_company",
)
sampling.held(
    "structured-batch", "Structured and plain requests share a batch.",
    "vLLM tests/v1/entrypoints/llm/test_struct_output_generate.py::"
    "test_structured_output_batched_with_non_structured_outputs_requests",
    "engine/test_guided.py::test_every_text_matches_in_any_company",
)
sampling.not_offered(
    "speculation", "Rejected drafts leave the distribution of the target model.",
    "vLLM tests/v1/sample/test_rejection_sampler.py::test_early_mismatch", NO_SPECULATION,
)
sampling.not_offered(
    "draft-models", "Completions with a draft model are those of the target alone.",
    TINY_3 + "7.py::test_low_acceptance_mismatches_match_the_complete_target_only_output", NO_SPECULATION,
)
sampling.not_offered(
    "beams", "Beam search keeps the likeliest continuations.",
    "vLLM tests/samplers/test_beam_search.py::test_beam_search_single_input",
    "Beam search is no longer part of serving engines' core; `n` draws completions.",
)

# ----------------------------------------------------------------------------------------------------------------------
text = Topic("text", "Text and ends")

text.held(
    "incremental", "Text that grows token by token is the text of all tokens at once.",
    OUTPUTS + "test_incremental_detokenization",
    T_TEXT + "test_any_text_in_any_tokens_is_the_text_of_all_at_once",
    T_TEXT + "test_any_tokens_are_the_text_of_all_at_once",
)
text.held(
    "invalid-utf8", "Bytes that are no text, and halves of characters, do not break the stream.",
    "vLLM tests/v1/engine/test_fast_incdec_prefix_err.py::test_fast_inc_detok_invalid_utf8_err_case",
    T_TEXT + "test_half_a_character_is_never_shown",
    T_TEXT + "test_half_a_character_at_the_end_is_shown_then",
)
text.held(
    "leading-spaces", "Spaces that a tokenizer drops at the beginning are not dropped later.",
    OUTPUTS + "test_incremental_detokenization (prefix spaces)",
    T_TEXT + "test_spaces_that_a_tokenizer_leaves_out_at_the_beginning_are_not_left_out_later",
)
text.held(
    "stop-basic", "A stop string ends the text before its first place.",
    PARAMS + "test_stop",
    PEER_ENGINE + "test_what_streams_ends_before_the_first_stop_string",
    T_ENGINE + "test_a_stop_string_ends_it",
)
text.held(
    "stop-multi-token", "A stop string of several tokens is found, and nothing of it is shown before.",
    "vLLM tests/detokenizer/test_stop_strings.py::test_stop_strings (several tokens)",
    T_TEXT + "test_a_stop_string_over_several_tokens_is_found",
    T_TEXT + "test_nothing_of_a_stop_string_is_ever_shown",
)
text.held(
    "stop-partial-token", "A stop string that begins or ends within a token is found.",
    "vLLM tests/detokenizer/test_stop_strings.py::test_stop_strings (part of a token)",
    T_TEXT + "test_a_stop_string_ends_the_text_before_its_first_place",
)
text.held(
    "stop-first", "Of several stop strings, the one that comes first in the text counts.",
    "vLLM tests/detokenizer/test_stop_strings.py::test_stop_strings (several strings)",
    PEER_ENGINE + "test_what_streams_ends_before_the_first_stop_string",
    T_TEXT + "test_what_may_be_shown",
)
text.held(
    "stop-at-end", "A stop string in the very last token counts, and the reason is \"stop\".",
    "vLLM tests/detokenizer/test_stop_string_while_stop_model_terminates.py::"
    "test_stop_string_while_stop_token_terminates",
    T_ENGINE + "test_a_stop_string_in_the_very_last_token_counts",
)
text.held(
    "held-back", "What was held back as a possible stop string is shown when nothing follows.",
    OUTPUTS + "test_stop_string",
    T_ENGINE + "test_the_beginning_of_a_stop_string_is_shown_when_no_more_follows",
    T_TEXT + "test_what_was_held_back_is_shown_at_the_end",
)
text.held(
    "stop-tokens", "Of several stop tokens, the first that comes ends the completion.",
    PARAMS + "test_stop_token_ids",
    PEER_ENGINE + "test_of_several_stop_tokens_the_first_that_comes_ends_it",
)
text.held(
    "stop-token-not-shown", "The stop token is the last of the tokens and no part of the text.",
    OUTPUTS + "test_stop_token",
    T_ENGINE + "test_the_end_token_ends_it_or_is_ignored",
)
text.held(
    "eos-first", "A completion whose first token is the end has that token and no text.",
    TINY_3 + "2.py::test_batch_generate_finishes_prefill_eos_without_decode",
    T_ENGINE + "test_an_immediate_end_of_text_is_an_answer",
    T_FAULTS + "test_an_immediate_end_of_text_lost_the_request",
)
text.held(
    "ignore-eos", "With `ignore_eos` a completion has all tokens that its limit allows.",
    "vLLM tests/samplers/test_ignore_eos.py::test_ignore_eos",
    T_ENGINE + "test_the_end_token_ends_it_or_is_ignored",
)
text.held(
    "no-limit", "Without a limit a completion goes on as far as context and pool have room.",
    TINY_3 + "2.py::test_batch_generate_enforces_max_seq_len_before_emission_or_allocation",
    T_ENGINE + "test_no_cap_is_what_context_and_pool_have_room_for",
)
text.held(
    "stop-included", "The stop string can be part of the text.",
    OUTPUTS + "test_stop_string[True]",
    "engine/test_sampling_requests.py::test_what_has_ended_it_is_said_and_included_if_wanted",
)
text.held(
    "stop-reason", "An output names the stop string or stop token that ended it.",
    "vLLM tests/detokenizer/test_stop_reason.py::test_stop_reason",
    "engine/test_sampling_requests.py::test_what_has_ended_it_is_said_and_included_if_wanted",
)
text.held(
    "no-text", "A request can ask for tokens without text.",
    PARAMS + "test_detokenize_false",
    "engine/test_sampling_requests.py::test_a_request_without_text_has_tokens_only",
)
text.held(
    "several-eos", "Every end token of the generation config ends a completion.",
    "transformers tests/generation/test_framework_agnostic.py::test_eos_token_id_int_and_list_greedy_search",
    "engine/test_generation_defaults.py::test_each_end_token_of_the_model_and_of_the_tokenizer_ends",
)
text.not_offered(
    "stop-token-shown", "The stop token's text can be part of the text.",
    OUTPUTS + "test_stop_token[True]", "A stop token is returned as a token.",
)
text.not_offered(
    "computed-prefix", "Without text, the detokenizer is never called.",
    "vLLM tests/detokenizer/test_disable_detokenization.py::test_computed_prefix_blocks",
    "A text that is not streamed is decoded once, at the end.",
)

# ----------------------------------------------------------------------------------------------------------------------
engine = Topic("engine", "Requests, streams and outputs")

engine.held(
    "lifecycle", "A request waits until the next step, runs until it ends, and leaves nothing.",
    ENGINE_CORE + "test_engine_core",
    PEER_ENGINE + "test_requests_wait_until_the_next_step_and_run_until_they_end",
)
engine.held(
    "abort-one", "Aborting one of several leaves the others running.",
    ENGINE_CORE + "test_engine_core (abort one)",
    PEER_ENGINE + "test_aborts_one_by_one_leave_the_others_running",
)
engine.held(
    "abort-anywhere", "A request can be aborted in every state, and its blocks are free at once.",
    ASYNC_LLM + "test_abort",
    T_ENGINE + "test_a_request_is_aborted_wherever_it_is",
)
engine.held(
    "abort-twice", "Aborting an unknown or finished request is harmless.",
    ASYNC_LLM + "test_multi_abort",
    T_ENGINE + "test_aborting_what_is_not_there_is_harmless",
)
engine.held(
    "abort-output", "An aborted request returns the tokens and the text that it had.",
    ASYNC_LLM + "test_abort_final_output",
    PEER_ENGINE + "test_an_aborted_request_s_output_stays_as_it_was_handed_over",
)
engine.held(
    "snapshots", "An output stays as it was returned, whatever happens afterwards.",
    HF + "test_generation_outputs_are_snapshots",
    PEER_ENGINE + "test_an_aborted_request_s_output_stays_as_it_was_handed_over",
)
engine.held(
    "abort-all", "Aborting every request leaves an engine that serves the next one.",
    OUTPUTS + "test_abort_requests",
    T_CLOSING + "test_a_closed_engine_leaves_the_model_as_it_was",
    T_OVERLAPPED + "test_aborts_at_any_time_disturb_nobody",
)
engine.held(
    "cancel-stream", "A stream that its reader leaves is aborted, and others go on.",
    ASYNC_LLM + "test_mid_stream_cancellation",
    T_ENGINE + "test_a_stream_that_is_closed_early_is_aborted",
)
engine.held(
    "finished-flag", "Exactly the last token of a completion says why it ends.",
    ASYNC_LLM + "test_finished_flag",
    PEER_ENGINE + "test_each_request_ends_once_with_a_reason",
    T_ENGINE + "test_every_token_of_every_answer_is_told",
)
engine.held(
    "load", "Many more requests than batch slots all get their own answers.",
    ASYNC_LLM + "test_load",
    PEER_ENGINE + "test_more_requests_than_batch_slots_all_get_their_own_answers",
)
engine.held(
    "id-again", "An id is free again after its request has ended.",
    ENGINE_CORE + "test_engine_core (duplicate ids)",
    T_ENGINE + "test_a_name_is_free_again_after_the_end",
)
engine.held(
    "id-type", "An id that is not a string is refused.",
    ENGINE_CORE + "test_engine_core_invalid_request_id_type",
    "engine/test_request_checks.py::test_a_bad_argument_changes_nothing_for_anyone",
)
engine.held(
    "late-arrival", "A request that arrives while another is streamed is served along.",
    ENGINE_CORE + "test_engine_core_concurrent_batches (late request)",
    PEER_ENGINE + "test_a_request_that_comes_while_another_is_streamed_is_served_along",
    T_ENGINE + "test_requests_that_come_late_are_answered_alike",
)
engine.held(
    "stream", "A stream yields one token after the other.",
    HF + "test_streaming_request",
    T_ENGINE + "test_a_stream_is_the_answer_token_by_token",
)
engine.held(
    "no-stream", "Without streaming a request returns all of its tokens at once.",
    HF + "test_non_streaming_request",
    PEER_ENGINE + "test_streamed_and_unstreamed_requests_take_turns",
)
engine.held(
    "stream-alternate", "Streamed and other requests take turns on one engine.",
    HF + "test_streaming_and_non_streaming_requests_can_alternate",
    PEER_ENGINE + "test_streamed_and_unstreamed_requests_take_turns",
    T_ENGINE + "test_streams_that_take_turns_leave_nothing_behind",
)
engine.held(
    "handler", "A function given with a request gets its tokens as they come.",
    HF + "test_register_result_handler",
    T_ENGINE + "test_every_token_of_every_answer_is_told",
)
engine.held(
    "routing", "An output that ends in another reader's step is kept for its own.",
    HF + "test_output_router_deliver_to_queue",
    T_ENGINE + "test_what_ends_in_the_steps_of_others_is_kept_for_its_reader",
)
engine.held(
    "n-outputs", "Tokens of several completions carry the index of theirs.",
    OUTPUTS + "test_cumulative_output_collector_n",
    T_ENGINE + "test_every_token_of_every_answer_is_told",
)
engine.not_offered(
    "collector", "Tokens that a slow reader has not taken are merged into one output.",
    OUTPUTS + "test_request_output_collector", "A stream has one entry for each token.",
)
engine.held(
    "logprobs-out", "Each token's log-probabilities are returned with it.",
    OUTPUTS + "test_logprobs_processor",
    PEER_ENGINE + "test_as_many_log_probabilities_as_were_asked_for",
)
engine.held(
    "iteration-stats", "Each step counts its prompt tokens, new tokens and sequences.",
    OUTPUTS + "test_iteration_stats",
    PEER_ENGINE + "test_prompt_and_new_tokens_of_each_step_are_counted",
)
engine.held(
    "metrics", "Sums of tokens, requests and times agree with what was returned.",
    "vLLM tests/v1/engine/test_llm_engine.py::test_engine_metrics",
    T_ENGINE + "test_metrics_add_up",
    T_ENGINE + "test_prometheus_reads_what_the_snapshot_says",
)
engine.held(
    "own-logger", "Functions of the user's are called with each step.",
    ASYNC_LLM + "test_customize_loggers",
    T_ENGINE + "test_metrics_add_up",
    T_ENGINE_FAULTS + "test_a_listener_that_raises_loses_no_answer",
)
engine.held(
    "model-error", "An error in the model fails the requests of its step, with the error, and the engine goes on.",
    "vLLM tests/basic_correctness/test_basic_correctness.py::test_failed_model_execution",
    T_ENGINE_FAULTS + "test_a_model_that_raises_fails_the_requests_of_its_step",
)
engine.held(
    "error-frees", "After an error all caches of the failed requests are free.",
    TINY_3 + "2.py::test_batch_generate_releases_all_paged_caches_on_exception",
    T_ENGINE_FAULTS + "test_a_model_that_raises_fails_the_requests_of_its_step",
)
engine.held(
    "stream-error", "A stream raises what failed its request, after the tokens that arrived.",
    "vLLM tests/v1/shutdown/test_forward_error.py::test_async_llm_model_error",
    T_ENGINE_FAULTS + "test_a_stream_raises_what_went_wrong_after_the_tokens_that_arrived",
)
engine.held(
    "bad-request", "A request that cannot be served is refused and costs the others nothing.",
    "vLLM tests/v1/shutdown/test_processor_error.py::test_async_llm_processor_error",
    PEER_ENGINE + "test_a_bad_request_costs_the_others_nothing",
)
engine.held(
    "too-long", "A prompt and a limit beyond the context are refused before anything is allocated.",
    TINY_3 + "2.py::test_batch_generate_enforces_max_seq_len_before_emission_or_allocation (refused)",
    T_ENGINE + "test_what_can_never_be_served_is_refused_and_changes_nothing",
)
engine.held(
    "all-or-none", "If one prompt of a list is bad, none is served.",
    TINY_3 + "3.py::test_task_2_mixed_pools_fail_before_any_batch_row_mutates",
    T_ENGINE + "test_generate_takes_all_or_none",
)
engine.held(
    "text-or-ids", "A prompt may be text or token ids.",
    "mini-sglang tests/core/test_scheduler.py::main",
    T_ENGINE + "test_prompts_may_be_texts",
)
engine.held(
    "end-to-end", "A prompt is served from token ids to text by the bundled model.",
    "mini-sglang tests/core/test_scheduler.py::main (text)",
    T_ENGINE + "test_the_six_stories_are_those_of_generate",
)
engine.held(
    "lone-prefill", "A lone prompt of several chunks is finished.",
    TINY_3 + "2.py::test_batch_generate_finishes_a_lone_multi_chunk_prefill",
    PEER_ENGINE + "test_a_prompt_in_chunks_of_any_size_has_the_same_answer",
)
engine.held(
    "no-accelerator", "Everything runs on a machine without an accelerator.",
    HF + "test_continuous_batching_no_accelerators",
    T_ENGINE + "test_greedy_answers_are_those_of_generate",
    T_OVERLAPPED + "test_the_runner_of_an_engine_can_be_chosen",
)
engine.held(
    "collected", "An engine that is no longer used is freed, and its cache with it.",
    "vLLM tests/basic_correctness/test_basic_correctness.py::test_vllm_gc_ed",
    PEER_ENGINE + "test_an_engine_that_is_no_longer_used_is_freed",
)
engine.held(
    "shutdown", "A closed engine aborts what it serves, takes no requests, and can be closed again.",
    "vLLM tests/v1/shutdown/test_delete.py::test_llm_delete",
    T_CLOSING + "test_a_closed_engine_takes_no_requests_and_can_be_closed_again",
)
engine.held(
    "two-engines", "Two engines can serve one model, one after the other or side by side.",
    "vLLM tests/v1/shutdown/test_delete.py::test_async_llm_delete",
    T_CLOSING + "test_two_engines_of_one_model_one_after_the_other_and_side_by_side",
)
engine.held(
    "weights-in-place", "Weights changed in place count from the next step on, captured or not; cached blocks are those of the old ones.",
    "vLLM tests/v1/worker/test_gpu_model_runner.py::test_load_model_weights_inplace",
    PEER_ENGINE + "test_weights_changed_in_place_count_from_the_next_request_on",
)
engine.held(
    "interrupt", "An interrupt at any line of a step loses no request and no block.",
    HF + "test_pause_request_is_dropped_when_the_wait_is_interrupted",
    "engine/test_interrupts.py::test_an_interrupt_at_any_line_loses_nothing",
)
engine.held(
    "threads", "Two threads may use one engine.",
    HF + "test_pause_with_several_holders",
    "engine/test_threads.py::test_streams_generate_and_steps_of_several_threads",
)
engine.not_offered(
    "pause", "A running loop can be paused by another thread.",
    HF + "test_pause_during_generation", NO_BACKGROUND_LOOP,
)
engine.not_offered(
    "stop-in-pause", "Stopping a loop from inside its own pause is refused.",
    HF + "test_stop_from_inside_a_pause_raises", NO_BACKGROUND_LOOP,
)
engine.not_offered(
    "health", "A process says whether it is alive.",
    ASYNC_LLM + "test_check_health (health)", NO_BACKGROUND_LOOP,
)
engine.not_offered(
    "messages", "Requests are serialized for another process.",
    "mini-sglang tests/misc/test_serialize.py::test_serialize_deserialize", ONE_PROCESS,
)
engine.not_offered(
    "tensor-parallel", "Several devices compute one model and agree on its tokens.",
    HF + "test_continuous_batching_tp_greedy", ONE_PROCESS,
)
engine.not_offered(
    "vocabulary-split", "An embedding split over devices masks tokens of the others.",
    "mini-sglang tests/kernel/test_index.py::test_indexing_with_mask", ONE_PROCESS,
)
engine.not_offered(
    "data-parallel", "A request names the replica that serves it.",
    ASYNC_LLM + "test_dp_rank_argument", ONE_PROCESS,
)
engine.not_offered(
    "kv-sharing", "Layers may use the cache of another layer.",
    "vLLM tests/v1/worker/test_gpu_model_runner.py::test_init_kv_cache_with_kv_sharing_valid",
    "Each layer has a cache of its own.",
)
engine.not_offered(
    "cli", "Options are read from a command line.",
    "vLLM tests/v1/engine/test_engine_args.py::test_prefix_caching_from_cli", "An engine is made in Python.",
)

TOPICS = [scheduling, priorities, memory, blocks, prefix, overlap, attention, sampling, text, engine, *SERVING_TOPICS]
PROJECTS |= SERVING_PROJECTS
