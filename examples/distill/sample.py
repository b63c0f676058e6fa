"""Let the teacher write stories, many thousand at a time, and store their token ids.

Every row of a batch is at the same position, so one decode step is one fixed piece of GPU work: it is
captured once as a CUDA graph, and replayed 256 times for a batch of stories. A row that has finished keeps
running as ballast until the batch is done; here, that wastes less than ragged rows would cost.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from .teacher import BOS, load_teacher


def fused(function):
    """On a GPU, one compiled kernel instead of many small ones."""
    return torch.compile(function) if torch.cuda.is_available() else function


@fused
def rms_norm(x, weight, epsilon=1e-5):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + epsilon) * weight.float()).to(x.dtype)


@fused
def rotate(x, cos, sin):
    """Rotary embedding of x [B, H, D] at one position; cos and sin are [D / 2]."""
    left, right = x.float().chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x.dtype)


@fused
def gated(gate_up):
    """SwiGLU's middle: gate_up [B, 2 F] to [B, F]."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def attend(query, keys, values, position):
    """query [B, H, D] over the first position + 1 slots of keys and values [B, H, L, D]. Returns [B, H, D]."""
    future = torch.arange(keys.shape[2], device=query.device) > position
    mask = torch.zeros(keys.shape[2], dtype=query.dtype, device=query.device).masked_fill(future, float("-inf"))
    return F.scaled_dot_product_attention(query[:, :, None], keys, values, attn_mask=mask[None])[:, :, 0]


def draw(logits, temperature):
    """One token id for each row of logits [B, V], sampled at the row's temperature [B] by the Gumbel trick."""
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_()
    return (logits.float() / temperature[:, None] - noise.log()).argmax(-1)


class Sampler:
    """The teacher with a static KV cache: ``step()`` moves all rows of a batch one position on."""

    def __init__(self, model, batch, device, dtype):
        config = model.config
        self.heads, self.width = config.num_attention_heads, config.head_dim
        self.context = config.max_position_embeddings
        model = model.to(device, dtype)
        self.embedding, self.norm = model.model.embed_tokens.weight.data, model.model.norm.weight.data
        self.layers = []
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            weights = {
                "attention_norm": layer.input_layernorm.weight,
                "qkv": torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]),
                "out": attention.o_proj.weight,
                "mlp_norm": layer.post_attention_layernorm.weight,
                "gate_up": torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
                "down": mlp.down_proj.weight,
            }
            self.layers.append({name: weight.data for name, weight in weights.items()})
        frequency = 10000.0 ** (-torch.arange(0, self.width, 2, device=device) / self.width)
        angle = torch.arange(self.context, device=device)[:, None] * frequency
        self.cos, self.sin = angle.cos(), angle.sin()

        shape = (len(self.layers), batch, self.heads, self.context, self.width)
        self.keys = torch.zeros(shape, device=device, dtype=dtype)
        self.values = torch.zeros(shape, device=device, dtype=dtype)
        self.ids = torch.full((batch, self.context + 1), BOS, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.temperature = torch.ones(batch, device=device)

    def logits(self, tokens):
        """Logits [B, V] after one more token per row; its keys and values go into the cache at ``position``."""
        batch, size = tokens.shape[0], self.heads * self.width
        cos, sin = self.cos[self.position], self.sin[self.position]
        x = self.embedding[tokens]
        for layer, weights in enumerate(self.layers):
            qkv = F.linear(rms_norm(x, weights["attention_norm"]), weights["qkv"])
            q, k, v = qkv.view(batch, 3, self.heads, self.width).unbind(1)
            keys, values = self.keys[layer], self.values[layer]
            keys.index_copy_(2, self.position, rotate(k, cos, sin)[:, :, None])
            values.index_copy_(2, self.position, v[:, :, None])
            mixed = attend(rotate(q, cos, sin), keys, values, self.position)
            x = x + F.linear(mixed.reshape(batch, size), weights["out"])
            gate_up = F.linear(rms_norm(x, weights["mlp_norm"]), weights["gate_up"])
            x = x + F.linear(gated(gate_up), weights["down"])
        return F.linear(rms_norm(x, self.norm), self.embedding)

    def step(self):
        tokens = self.ids.index_select(1, self.position)[:, 0]
        chosen = draw(self.logits(tokens), self.temperature)
        self.position += 1
        self.ids.index_copy_(1, self.position, chosen[:, None])

    def capture(self):
        """Replace ``step`` by a replay of its captured self. Nothing else changes for the caller."""
        for _ in range(3):  # triggers compilation
            self.step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        self.step = graph.replay

    def stories(self, seed):
        """Token ids [B, 256] of one batch: each row is a story, then BOS where it ended, then ballast."""
        torch.manual_seed(seed)
        self.temperature.copy_(0.9 + 0.1 * torch.rand(len(self.temperature)))
        self.position.zero_()
        for _ in range(self.context):
            self.step()
        return self.ids[:, 1:].to(torch.int16).cpu().numpy()


def main():
    parser = argparse.ArgumentParser(description="Sample stories from the teacher.")
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--seconds", type=float, default=360, help="stop after the batch that passes this time")
    parser.add_argument("--batches", type=int, default=10**6, help="or after this many batches")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, _ = load_teacher(args.teacher)
    with torch.inference_mode():
        sampler = Sampler(model, args.batch, device, torch.bfloat16 if device == "cuda" else torch.float32)
        if device == "cuda":
            sampler.capture()
        started, done, ended = time.time(), 0, 0
        while time.time() - started < args.seconds and done < args.batches:
            ids = sampler.stories(args.seed + done)
            np.save(args.out / f"{args.seed + done:05d}.npy", ids)
            ended += int((ids == BOS).any(1).sum())
            done += 1
            if done % 20 == 1:
                print(f"{done} batches, {time.time() - started:.1f} s, {ended} ended", flush=True)
    seconds = time.time() - started
    report = {"batches": done, "batch": args.batch, "tokens": done * args.batch * sampler.context, "ended": ended}
    report |= {"seconds": round(seconds, 1), "tokens_per_second": round(done * args.batch * sampler.context / seconds)}
    (args.out / "report.json").write_text(json.dumps(report))
    print(report)


if __name__ == "__main__":
    main()
