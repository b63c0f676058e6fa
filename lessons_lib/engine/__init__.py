"""The engine: requests in, tokens out.

Read in this order: config, outputs, sampling_params, race, sampling, logits_processors, guided, detokenizer,
generation_defaults, request_checks, requests_in, input_batch, model_runner, gathered_runner, probe, in_flight,
llm_engine, step_results, passing_on, recovery, generate, metrics, prometheus (lesson 12); then the GPU path:
input_buffers, cuda_graphs, gpu_model_runner, overlap, overlapped_engine (13). fused_llama is a faster model runner for
CPUs.
"""

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.cuda_graphs import GraphKey, GraphStore, captured_batch_sizes, next_size, rerun
from lessons_lib.engine.detokenizer import IncrementalDetokenizer, releasable
from lessons_lib.engine.fused_llama import FEW_TOKENS, fused_runner
from lessons_lib.engine.generation_defaults import GenerationDefaults
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.in_flight import InFlightStep, InFlightTokens
from lessons_lib.engine.llm_engine import LLMEngine
from lessons_lib.engine.logits_processors import NoTokenAllowed
from lessons_lib.engine.model_runner import ModelRunner, serve_greedily
from lessons_lib.engine.outputs import CompletionOutput, NewToken, RequestOutput
from lessons_lib.engine.overlap import OverlappedSteps, serve_overlapped
from lessons_lib.engine.overlapped_engine import OverlappedEngine, gpu_model_runner
from lessons_lib.engine.race import random_numbers
from lessons_lib.engine.sampling import choose_tokens, draw, token_probabilities
from lessons_lib.engine.sampling_params import SamplingParams, StructuredOutputsParams

__all__ = [
    "FEW_TOKENS",
    "CompletionOutput",
    "EngineConfig",
    "GPUModelRunner",
    "GenerationDefaults",
    "GraphKey",
    "GraphStore",
    "InFlightStep",
    "InFlightTokens",
    "IncrementalDetokenizer",
    "LLMEngine",
    "ModelRunner",
    "NewToken",
    "NoTokenAllowed",
    "OverlappedEngine",
    "OverlappedSteps",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
    "captured_batch_sizes",
    "choose_tokens",
    "draw",
    "fused_runner",
    "gpu_model_runner",
    "next_size",
    "random_numbers",
    "releasable",
    "rerun",
    "serve_greedily",
    "serve_overlapped",
    "token_probabilities",
]
