"""The engine: requests in, tokens out.

Read in this order: request, core, model_runner, sampling (the path of a step, lesson 12); then what they call:
config, sampling_params, outputs, output_processor, logprobs, detokenizer, rules, logits_processors,
structured_outputs, guided, grammar_process, stateless_random, plain_sampling, input_batch, reentrancy, model_fit,
input_processor, llm_engine, metrics, prometheus; then the GPU path: cuda_graphs, input_buffers, joined_projections,
equal_products, gpu_model_runner, warm_up (13). greedy_loop is lesson 09's loop, and fused_llama a faster model runner
for CPUs.
"""

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.core import EngineCore, overlapped_step
from lessons_lib.engine.cuda_graphs import (
    GraphKey,
    GraphSize,
    GraphStore,
    captured_batch_sizes,
    captured_token_counts,
    next_size,
    rerun,
)
from lessons_lib.engine.detokenizer import IncrementalDetokenizer, releasable
from lessons_lib.engine.fused_llama import FEW_TOKENS, fused_runner
from lessons_lib.engine.gpu_model_runner import GPUModelRunner, gpu_model_runner
from lessons_lib.engine.greedy_loop import GreedyLoop, serve_greedily
from lessons_lib.engine.input_batch import BlockTables, forward_batch
from lessons_lib.engine.joined_projections import JoinedLinear, join_projections
from lessons_lib.engine.llm_engine import LLMEngine, Parts
from lessons_lib.engine.metrics import EngineMetrics
from lessons_lib.engine.model_runner import InFlightTokens, ModelRunner
from lessons_lib.engine.outputs import CompletionOutput, NewToken, RequestOutput
from lessons_lib.engine.plain_sampling import draw, draw_on_device, token_probabilities
from lessons_lib.engine.rules import NoTokenAllowed
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.stateless_random import random_numbers
from lessons_lib.engine.structured_outputs import StructuredOutputsParams

__all__ = [
    "FEW_TOKENS",
    "BlockTables",
    "CompletionOutput",
    "EngineConfig",
    "EngineCore",
    "EngineMetrics",
    "GPUModelRunner",
    "GraphKey",
    "GraphSize",
    "GraphStore",
    "GreedyLoop",
    "InFlightTokens",
    "IncrementalDetokenizer",
    "JoinedLinear",
    "LLMEngine",
    "ModelRunner",
    "NewToken",
    "NoTokenAllowed",
    "Parts",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "captured_batch_sizes",
    "captured_token_counts",
    "choose_tokens",
    "draw",
    "draw_on_device",
    "forward_batch",
    "fused_runner",
    "gpu_model_runner",
    "join_projections",
    "next_size",
    "overlapped_step",
    "random_numbers",
    "releasable",
    "rerun",
    "serve_greedily",
    "token_probabilities",
]
