"""Train the student, a Qwen2 of 7.0 M parameters, from random weights on the teacher's stories.

A request to the finished model is one prompt alone, with no token before it. So most training rows hold several
stories that cannot see each other (FlexAttention with a document mask), each counting its positions from 0. One row in
five is read as one text instead, so that positions up to 1,023 and long contexts are trained too.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import AttentionInterface, Qwen2Config, Qwen2ForCausalLM

from .text import END_ID, MAX_POSITIONS, VOCABULARY


def student_config():
    return Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=704, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=MAX_POSITIONS, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=END_ID, pad_token_id=END_ID,
    )  # fmt: skip


class Rows:
    """Endless training rows from one long array of stories, each ended by END. All on one device.

    The stories are reshuffled each epoch and concatenated; three in ten get an END in front, so that the model
    learns to begin a story after END and also without it. The line is cut into rows wherever a row is full: the rest
    of a cut story is a text that begins in mid-sentence, as some prompts do.
    """

    def __init__(self, tokens, device, seed=0, leading_end=0.3, one_text=0.2):
        self.tokens = torch.from_numpy(tokens.astype(np.int16)).to(device)
        ends = (self.tokens == END_ID).nonzero()[:, 0] + 1
        self.starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        self.lengths = ends - self.starts
        self.generator = torch.Generator(device).manual_seed(seed)
        self.leading_end, self.one_text, self.epoch = leading_end, one_text, 0
        self.shuffle()

    def random(self, size):
        return torch.rand(size, device=self.tokens.device, generator=self.generator)

    def shuffle(self):
        count = len(self.starts)
        self.order = torch.randperm(count, device=self.tokens.device, generator=self.generator)
        self.lead = (self.random(count) < self.leading_end).long()
        self.line_ends = torch.cumsum(self.lengths[self.order] + self.lead, 0)
        self.line_length = int(self.line_ends[-1])
        self.at = 0
        self.epoch += 1

    def next(self, rows, width):
        """Inputs, targets (-100: not counted), positions and document ids, each [rows, width]."""
        if self.at + rows * width + 1 > self.line_length:
            self.shuffle()
        index = torch.arange(self.at, self.at + rows * width + 1, device=self.tokens.device)
        self.at += rows * width
        story = torch.searchsorted(self.line_ends, index, right=True)
        source, lead = self.order[story], self.lead[story]
        begin = self.line_ends[story] - self.lengths[source] - lead
        offset = index - begin - lead  # -1 for an END in front
        token = torch.where(offset < 0, END_ID, self.tokens[self.starts[source] + offset.clamp(min=0)].long())

        ids, targets = token[:-1].view(rows, width), token[1:].view(rows, width)
        story, next_story = story[:-1].view(rows, width), story[1:].view(rows, width)
        column = torch.arange(width, device=index.device).expand(rows, width)
        row_start = index[:-1].view(rows, width)[:, :1]
        alone = index[:-1].view(rows, width) - torch.maximum(begin[:-1].view(rows, width), row_start)
        whole = self.random((rows, 1)) < self.one_text
        positions = torch.where(whole, column, alone)
        documents = torch.where(whole, 0, story - story[:, :1])
        targets = torch.where(whole | (story == next_story), targets, -100)
        return ids, targets, positions, documents


def packed_attention(module, query, key, value, attention_mask, scaling=None, packed_mask=None, **_):
    """Attention of packed rows: query [B, 4, T, 64], key and value [B, 2, T, 64]; packed_mask says which token sees
    which.
    """
    query, key = query.to(value.dtype), key.to(value.dtype)
    if query.is_cuda:
        mixed = flex_attention(query, key, value, block_mask=packed_mask, scale=scaling, enable_gqa=True)
    else:
        mixed = F.scaled_dot_product_attention(query, key, value, packed_mask, scale=scaling, enable_gqa=True)
    return mixed.transpose(1, 2).contiguous(), None


AttentionInterface.register("packed", packed_attention)


def document_mask(documents):
    """Mask of rows [B, T]: a token sees itself and what came before it in its own document.

    On a GPU a block mask, which lets FlexAttention skip what no query sees; on a CPU a plain one, [B, 1, T, T].
    """

    def may_see(batch, head, query, key):
        return (query >= key) & (documents[batch, query] == documents[batch, key])

    rows, width = documents.shape
    if not documents.is_cuda:
        return (documents[:, None, :, None] == documents[:, None, None, :]).tril()
    return create_block_mask(may_see, rows, None, width, width, device=documents.device)


def packed_loss(model, ids, targets, positions, packed_mask):
    """Mean cross-entropy in nats per token over the counted targets."""
    with torch.autocast(ids.device.type, torch.bfloat16):
        hidden = model.model(
            input_ids=ids, position_ids=positions, attention_mask={"full_attention": None}, use_cache=False,
            packed_mask=packed_mask,
        ).last_hidden_state  # fmt: skip
        logits = model.lm_head(hidden)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100)


def orthogonalize(matrices):
    """Push the singular values of each matrix of a stack [n, r, c] towards 1 (five Newton-Schulz steps)."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.bfloat16()
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalized: every weight matrix moves by the same amount in all its directions.

    Matrices of one shape are stacked and updated together; the model has five shapes.
    """

    def __init__(self, matrices, lr, momentum=0.95, weight_decay=0.1):
        shapes = sorted({tuple(matrix.shape) for matrix in matrices})
        groups = [{"params": [matrix for matrix in matrices if tuple(matrix.shape) == shape]} for shape in shapes]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.direction = torch.compile(self._direction) if matrices[0].is_cuda else self._direction

    @staticmethod
    def _direction(gradient, average, momentum):
        average.lerp_(gradient, 1 - momentum)
        rows, columns = gradient.shape[-2:]
        return orthogonalize(gradient.lerp(average, momentum)).float() * max(1, rows / columns) ** 0.5

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            matrices = group["params"]
            gradient = torch.stack([matrix.grad for matrix in matrices])
            state = self.state[matrices[0]]
            if not state:
                state["average"] = torch.zeros_like(gradient)
            direction = self.direction(gradient, state["average"], group["momentum"])
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(matrices, list(direction.unbind()), alpha=-group["lr"])


def make_optimizers(model, muon_lr, adam_lr):
    """Muon for the matrices inside the blocks, AdamW for the rest."""
    inner = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    rest = [p for name, p in model.named_parameters() if p.ndim < 2 or "embed" in name]
    settings = {"betas": (0.9, 0.95), "eps": 1e-10, "fused": inner[0].is_cuda}
    return [Muon(inner, muon_lr), torch.optim.AdamW(rest, lr=adam_lr, weight_decay=0.0, **settings)]


def learning_rate(step, steps, warm_up=100, hold=0.3):
    """Share of the full rate: up over ``warm_up`` steps, held for ``hold`` of the run, then straight down to zero."""
    return min(1, (step + 1) / warm_up, (steps - step) / (steps * (1 - hold)))


def main():
    parser = argparse.ArgumentParser(description="Train the student.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--width", type=int, default=MAX_POSITIONS)
    parser.add_argument("--muon-lr", type=float, default=0.02)
    parser.add_argument("--adam-lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=2000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")

    model = Qwen2ForCausalLM(student_config()).to(device)
    model.set_attn_implementation("packed")
    optimizers = make_optimizers(model, args.muon_lr, args.adam_lr)
    full_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    rows = Rows(np.load(args.data / "train.npy"), device, args.seed)
    judged = judging_rows(args, device)
    loss_function, mask_function = packed_loss, document_mask
    if device == "cuda":
        loss_function, mask_function = (
            torch.compile(packed_loss, dynamic=False),
            torch.compile(document_mask, dynamic=False),
        )

    def loss_on(batch):
        ids, targets, positions, documents = batch
        return loss_function(model, ids, targets, positions, mask_function(documents))

    log, recent, started = (args.out / "log.jsonl").open("w"), [], time.time()
    for step in range(args.steps):
        loss = loss_on(rows.next(args.rows, args.width))
        loss.backward()
        for optimizer, rates in zip(optimizers, full_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * learning_rate(step, args.steps)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        recent.append(loss.detach())
        if step == 9:  # the compiler's time is not training time
            loss.item()
            started = time.time()
        if (step + 1) % args.log_every == 0 or step + 1 == args.steps:
            entry = {"step": step + 1, "train": round(torch.stack(recent).mean().item(), 4), "epoch": rows.epoch}
            recent = []
            entry["seconds"] = round(time.time() - started, 1)
            entry["tokens_per_second"] = round((step - 9) * args.rows * args.width / max(entry["seconds"], 0.1))
            if (step + 1) % (args.log_every * 5) == 0 or step + 1 == args.steps:
                entry["heldout"] = round(sum(loss_on(batch).item() for batch in judged) / len(judged), 4)
            print(json.dumps(entry), file=log, flush=True)
            print(entry, flush=True)
            if not math.isfinite(entry["train"]):
                raise SystemExit("the loss is not finite")
        if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
            weights = {name: tensor.to("cpu", torch.bfloat16) for name, tensor in model.state_dict().items()}
            del weights["lm_head.weight"]  # the embedding once more
            torch.save(weights, args.out / "part.pt")
            (args.out / "part.pt").replace(args.out / "student.pt")
    (args.out / "arguments.json").write_text(json.dumps(vars(args), default=str))


def judging_rows(args, device):
    """Two fixed batches of held-out stories, each story alone after an END: a quick look while training runs."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer" / "tokenizer.json"))
    stories = json.loads((args.data / "heldout.json").read_text())
    tokens = [token for encoding in tokenizer.encode_batch(stories) for token in [*encoding.ids, END_ID]]
    rows = Rows(np.array(tokens, np.uint16), device, leading_end=1.0, one_text=0.0)
    return [rows.next(args.rows, args.width) for _ in range(2)]


if __name__ == "__main__":
    main()
