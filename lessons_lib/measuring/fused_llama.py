"""The same model in fewer operations, a design that `make bench` compares. On a CPU, a small model's step is dominated
by the overhead of small operations."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from lessons_lib.attention.hf_backend import Attend, Backend, ForwardBatch, plan_attention
from lessons_lib.engine.config import EngineConfig
from lessons_lib.engine.input_batch import forward_batch
from lessons_lib.engine.joined_projections import Joined, JoinedLinear, join_projections
from lessons_lib.engine.model_runner import ModelRunner
from lessons_lib.kv_cache.paged_kv_cache import PagedKVCache
from lessons_lib.models.configuration import kv_head_size
from lessons_lib.scheduling.scheduler import SchedulerOutput

FEW_TOKENS = 16  # with more, transposing the result costs what the product gains


class NotFusible(ValueError):
    """The model is not built like Llama or Qwen2."""


class FusedLayer(NamedTuple):
    """A layer of the model, with the products that are computed as one."""

    layer: Any
    qkv: Joined
    gate_up: Joined


class FusedModel:
    """The forward pass of a Hugging Face model of the Llama or Qwen2 family over a packed batch.

    It uses the model's own weights, joined where several projections read the same hidden states. So nothing is in
    memory twice.

    Raises:
        NotFusible: a part of the model differs from Llama and Qwen2. The model stays as it was.
    """

    def __init__(self, model: PreTrainedModel):
        config = model.config
        is_known = config.model_type in ("llama", "qwen2") and config.hidden_act == "silu"
        if not is_known or getattr(config, "use_sliding_window", False):
            raise NotFusible(
                f"this is for Llama and Qwen2 with full attention; the model is {config.model_type!r}. Use it as it is."
            )
        self.model = model
        self.kv_heads, self.head_dim = kv_head_size(config)
        self.joined = join_projections(model)
        self.layers: list[FusedLayer] = []
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            are_joined = isinstance(attention.q_proj, JoinedLinear) and isinstance(mlp.up_proj, JoinedLinear)
            others = attention.o_proj, mlp.down_proj
            if not are_joined or mlp.up_proj.bias is not None or any(map(does_more_than_multiply, others)):
                self.close()
                raise NotFusible(
                    "a projection does more than multiply, as in a model that is cut, or has a bias that Llama and "
                    "Qwen2 don't have. Use the model as it is."
                )
            self.layers.append(FusedLayer(layer, attention.q_proj.joined, mlp.up_proj.joined))

    def close(self) -> None:
        """Give the model's projections memory of their own again."""
        for joined in self.joined:
            joined.separate()
        self.joined = []

    @torch.inference_mode()
    def __call__(self, batch: ForwardBatch, cache: PagedKVCache, attend: Attend) -> torch.Tensor:
        """The logits after each sequence's last token, [N, vocabulary].

        Args:
            batch: on the device of the model.
            attend: see `hf_backend.PagedPass`.
        """
        core = self.model.model
        hidden = core.embed_tokens(batch.input_ids)
        cos, sin = (
            half[0, :, None, : self.head_dim // 2] for half in core.rotary_emb(hidden[None], batch.positions[None])
        )
        for index, (layer, qkv, gate_up) in enumerate(self.layers):
            heads = product(_norm(layer.input_layernorm, hidden), qkv.weight, qkv.bias)
            heads = heads.unflatten(-1, (-1, self.head_dim))  # type: ignore[no-untyped-call]
            rotated = rotate(heads[:, : -self.kv_heads], cos, sin)
            query, key = rotated[:, : -self.kv_heads], rotated[:, -self.kv_heads :]
            cache.write(index, key, heads[:, -self.kv_heads :], batch.slot_mapping)
            attended = attend(query, cache.keys[index], cache.values[index], self.head_dim**-0.5)
            hidden = hidden + product(attended.flatten(1), layer.self_attn.o_proj.weight)
            gate, up = product(_norm(layer.post_attention_layernorm, hidden), gate_up.weight).chunk(2, dim=-1)
            hidden = hidden + product(F.silu(gate) * up, layer.mlp.down_proj.weight)
        return product(_norm(core.norm, hidden[batch.logits_index]), self.model.lm_head.weight)


def product(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`F.linear`; for few tokens on a CPU transposed: the weights times the tokens.

    Both compute the same from the same memory. The library that PyTorch calls takes longer if the first of two matrices
    has few rows.

    Args:
        hidden: [T, inputs]; weight: [outputs, inputs]; bias: [outputs].

    Returns:
        tensor [T, outputs].
    """
    if len(hidden) > FEW_TOKENS or hidden.device.type != "cpu":
        return F.linear(hidden, weight, bias)
    transposed = weight @ hidden.T if bias is None else torch.addmm(bias[:, None], weight, hidden.T)
    return transposed.T.contiguous()


def rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The rotary embedding (Su et al. 2021): elements i and i + D/2 of a head are rotated by the token's angle.

    Args:
        heads: [T, heads, D]; cos, sin: [T, 1, D/2].
    """
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    """RMSNorm in one operation; the model's own takes six."""
    return F.rms_norm(hidden, hidden.shape[-1:], module.weight, module.variance_epsilon)


def does_more_than_multiply(projection: torch.nn.Module) -> bool:
    """True unless a projection is a plain product with its weight."""
    return type(projection) is not torch.nn.Linear or projection.bias is not None


class FusedRunner(ModelRunner):
    """A ModelRunner that computes with a FusedModel."""

    def __init__(self, model: PreTrainedModel, num_blocks: int, block_size: int, backend: str | Backend | None = None):
        super().__init__(model, num_blocks, block_size, backend)
        self.fused = FusedModel(model)
        self.plan_attention = plan_attention(backend, model.device)

    def forward(self, scheduler_output: SchedulerOutput) -> torch.Tensor:
        """See `ModelRunner.forward`."""
        batch = forward_batch(scheduler_output, self.tables, self.cache.block_size).to(self.model.device)
        return self.fused(batch, self.cache, self.plan_attention(batch, batch.block_tables, self.cache.block_size))

    def close(self) -> None:
        """See `FusedModel.close`."""
        self.fused.close()


def fused_runner(model: PreTrainedModel, num_blocks: int, config: EngineConfig) -> FusedRunner:
    """For `EngineConfig.make_runner`."""
    return FusedRunner(model, num_blocks, config.block_size, config.backend)
