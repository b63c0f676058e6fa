"""The engine: requests in, tokens out.

Read in this order: request, core, model_runner, sampling (the path of a step, lesson 12); then what they call:
config, sampling_params, outputs, output_processor, logprobs, detokenizer, rules, logits_processors,
structured_outputs, guided, grammar_process, stateless_random, plain_sampling, input_batch, reentrancy, model_fit,
input_processor, llm_engine, metrics, prometheus; then the GPU path: cuda_graphs, input_buffers, joined_projections,
equal_products, gpu_model_runner, warm_up (13). greedy_loop is lesson 09's loop.
"""

from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.core import EngineCore
from lessons_lib.engine.cuda_graphs import GraphKey, captured_batch_sizes, captured_token_counts, next_size, rerun
from lessons_lib.engine.gpu_model_runner import GPUModelRunner
from lessons_lib.engine.greedy_loop import GreedyLoop, serve_greedily
from lessons_lib.engine.llm_engine import LLMEngine, Parts
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.engine.sampling_params import SamplingParams
from lessons_lib.engine.stateless_random import random_numbers
