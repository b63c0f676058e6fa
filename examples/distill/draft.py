"""Train a draft for speculative decoding: one layer of the bundled model's size, on stories that the model itself has
written, to give each token the probability that the model gives it.

    python -m examples.distill.draft --out lessons_lib/assets/draft     # three minutes on an H200
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM

from lessons_lib.models.loading import BUNDLED_MODEL, load_model

from .export import drop_keys
from .text import END_ID
from .train import learning_rate, make_optimizers

LENGTH = 320


def draft_config() -> Qwen2Config:
    config = Qwen2Config.from_pretrained(BUNDLED_MODEL)
    config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
    return config


@torch.no_grad()
def own_stories(model, rows: int) -> torch.Tensor:
    """Texts that the model draws at temperature 1, each after an END: int64 [rows, LENGTH]. Rows that have ended go on
    with END."""
    start = torch.full((rows, 1), END_ID, device=model.device)
    options = dict(do_sample=True, top_k=0, max_new_tokens=LENGTH - 1, pad_token_id=END_ID)
    texts = model.generate(start, attention_mask=torch.ones_like(start), **options)
    return F.pad(texts, (0, LENGTH - texts.shape[1]), value=END_ID)


def logits_of(model, ids: torch.Tensor) -> torch.Tensor:
    with torch.autocast(ids.device.type, torch.bfloat16):
        return model(ids, use_cache=False).logits


def divergence(model, draft, ids: torch.Tensor) -> torch.Tensor:
    """Mean over the texts' tokens of the Kullback-Leibler divergence of the draft's probabilities from the model's."""
    is_text = (ids != END_ID).cumsum(1).gt(0) & (ids != END_ID)
    is_text[:, 0] = True
    with torch.no_grad():
        wanted = logits_of(model, ids).float().log_softmax(-1)
    found = logits_of(draft, ids).float().log_softmax(-1)
    each = F.kl_div(found, wanted, reduction="none", log_target=True).sum(-1)
    return each[is_text].mean()


@torch.no_grad()
def overlap(model, draft, ids: torch.Tensor) -> tuple[float, float]:
    """Of the next tokens: how often the likeliest are the same, and the mean of sum(min(p, q)), which a draft that
    draws with the model's own noise nearly reaches."""
    is_text = ids != END_ID
    own, other = (logits_of(each, ids).float()[is_text] for each in (model, draft))
    same = (own.argmax(-1) == other.argmax(-1)).float().mean()
    return same.item(), torch.minimum(own.softmax(-1), other.softmax(-1)).sum(-1).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=49152)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rows", type=int, default=96)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    model, began = load_model(device=device)[0], time.time()
    at_once = min(4096, args.texts)
    texts = torch.cat([own_stories(model, at_once) for _ in range(args.texts // at_once)])
    print(f"{(texts != END_ID).sum():,} tokens written in {time.time() - began:.0f} s", flush=True)
    judged, texts = texts[: args.rows], texts[args.rows :]

    draft = Qwen2ForCausalLM(draft_config()).to(device)
    draft.model.embed_tokens.weight.data.copy_(model.model.embed_tokens.weight)
    compiled = torch.compile(divergence) if device == "cuda" else divergence
    optimizers = make_optimizers(draft, 0.02, 3e-3)
    full_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    for step in range(args.steps):
        rows = torch.randint(len(texts), (args.rows,), device=device)
        compiled(model, draft, texts[rows]).backward()
        for optimizer, rates in zip(optimizers, full_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * learning_rate(step, args.steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if (step + 1) % 500 == 0 or step + 1 == args.steps:
            same, shared = overlap(model, draft, judged)
            print(
                f"step {step + 1}, {time.time() - began:.0f} s: likeliest {same:.3f}, shared {shared:.3f}", flush=True
            )
    draft.to("cpu", torch.bfloat16).save_pretrained(args.out)
    drop_keys(args.out / "config.json")


if __name__ == "__main__":
    main()
