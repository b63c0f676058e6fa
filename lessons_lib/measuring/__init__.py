"""The course's measuring tools: clocks, workloads, cost models, the ledger, and published results.

stories defines the six requests of every lesson; ledger compares all methods of serving them. simulator runs a
scheduler without a model on the requests of arrivals. ablations changes functions and lines of kernels.
"""

from lessons_lib.measuring.arrivals import Arrival, reversed_estimates, traffic
from lessons_lib.measuring.attention_cases import CASES, make_inputs
from lessons_lib.measuring.attention_peers import PEERS
from lessons_lib.measuring.decoding_batches import decoding_paged, decoding_ragged
from lessons_lib.measuring.designs import DESIGNS, ways_table
from lessons_lib.measuring.gpu_timing import microseconds
from lessons_lib.measuring.hf_continuous import hugging_face_continuous
from lessons_lib.measuring.ledger import ledger
from lessons_lib.measuring.published import (
    OURS,
    range_text,
    recorded_attention,
    recorded_engine,
    recorded_first_tokens,
    recorded_ladder,
    recorded_production,
    recorded_splits,
    recorded_swaps,
    recorded_victims,
    recorded_ways,
    recorded_workloads,
    times_vllm,
)
from lessons_lib.measuring.random_batches import random_row
from lessons_lib.measuring.roofline import Work, attainable, attention_work
from lessons_lib.measuring.run_statistics import batch_metrics, request_times
from lessons_lib.measuring.simulator import StepCost, simulate, spread, times_of
from lessons_lib.measuring.stories import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES
from lessons_lib.measuring.timing import median_ms
from lessons_lib.measuring.victim_rules import tried_rule
from lessons_lib.measuring.workloads import Workload, skewed_workload
