"""Random workloads on models with layers that keep states or have windows: `python tests/support/hybrid_workloads.py
--count 5000 --seed 0`; see tools.random_workloads."""

from tiny_architectures import tiny_model

from lessons_lib.engine.cuda_graphs import rerun
from lessons_lib.engine.gpu_model_runner import gpu_model_runner
from lessons_lib.engine.llm_engine import EngineConfig, LLMEngine
from tools import random_workloads
from tools.random_workloads import LETTERS, MAKERS, Workload, model_of

HYBRIDS = (
    "qwen3_5_text", "lfm2", "granitemoehybrid", "nemotron_h", "falcon_h1", "kimi_linear", "minimax", "zamba2", "mamba",
)  # fmt: skip
WINDOWS = ("mistral", "gemma3_text", "gpt_oss", "cohere2")


MAKERS.update(dict.fromkeys((*HYBRIDS, *WINDOWS), tiny_model))


class HybridWorkload(Workload):
    """A workload for a model whose layers aren't all alike."""

    families = (*HYBRIDS, *WINDOWS)
    close = 1e-3

    def draw_engine(self):
        config = self.draw_config() | dict(num_checkpoints=self.rng.choice([0, 1, 3, 64]))
        if self.family in ("nemotron_h", "zamba2"):  # see `SequenceStates.decodes_differ`
            config["max_num_batched_tokens"] += 2
        self.happened[self.family] += 1
        if self.rng.random() < 0.5:
            self.happened["overlapped"] += 1
            config |= dict(overlap=True, make_runner=gpu_model_runner(compiled=False, capture=rerun))
        return LLMEngine(model_of(self.family), LETTERS, EngineConfig(**config))


if __name__ == "__main__":
    random_workloads.main(kind=HybridWorkload)
