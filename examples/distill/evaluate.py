"""Judge the exported student through plain transformers: held-out loss, endings, repetition, long contexts, load time.

All in float32. A story counts all its tokens and the token that ends it, after one END (for the teacher: one BOS) that
is given. Nats per character divides the same sum by the characters of the story, so that two tokenizers can be
compared.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from .teacher import BOS, load_teacher

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PROMPTS = [
    "Once upon a time", "One day, a little girl named Mia", "The dragon", "Tom and Sue went to the", "In a small house",
    "The cat sat on the", "Ben had a red ball. He", "\"Can I come too?\" asked the", "and then the frog jumped into",
    "Once there was a brave little mouse who wanted to see the sea.", "Lily loved her grandma. Every Sunday,",
    "It was a cold and rainy day", "The old tree", "Max the dog was hungry. He ran to the kitchen and",
    "A big bear and a tiny bird", "Mom said, \"Please do not", "Sam was sad because", "There was a magic stone in",
    "At night, the owl",
    "Once upon a time, there was a boy named Jack. He had a kite. One day the wind was so strong that the kite",
]  # fmt: skip


def sum_of_losses(model, rows, batch=16):
    """(nats, tokens) over rows of ids: each row's first token is given, all others are predicted."""
    nats, count = 0.0, 0
    rows = sorted(rows, key=len)
    with torch.inference_mode():
        for at in range(0, len(rows), batch):
            some = [torch.tensor(row, device=model.device) for row in rows[at : at + batch]]
            ids = torch.nn.utils.rnn.pad_sequence(some, batch_first=True)
            targets = torch.nn.utils.rnn.pad_sequence(some, batch_first=True, padding_value=-100)[:, 1:]
            logits = model(ids).logits[:, :-1].float()  # padding is on the right: no token before it sees it
            nats += F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum").item()
            count += int((targets != -100).sum())
    return nats, count


def heldout_loss(model, tokenizer, stories):
    end = tokenizer.eos_token_id
    rows = [[end, *tokenizer(story).input_ids, end] for story in stories]
    nats, tokens = sum_of_losses(model, rows)
    characters = sum(map(len, stories))
    return {
        "stories": len(stories), "tokens": tokens, "characters": characters,
        "nats_per_token": nats / tokens, "nats_per_character": nats / characters,
    }  # fmt: skip


def teacher_loss(directory, data, stories):
    """The teacher on the same stories, in the tokens in which it wrote them."""
    model, _ = load_teacher(directory)
    model = model.to(DEVICE)
    saved = np.load(data / "heldout_teacher.npz")
    rows = [[BOS, *row.tolist()] for row in np.split(saved["ids"].astype(np.int64), saved["ends"][:-1])]
    rows = rows[: len(stories)]
    nats, tokens = sum_of_losses(model, rows)
    return {
        "tokens": tokens, "nats_per_token": nats / tokens, "nats_per_character": nats / sum(map(len, stories)),
    }  # fmt: skip


def write(model, tokenizer, prompts, limit=512, **settings):
    """Continue the prompts; returns (text, did it end by itself, new tokens) for each."""
    inputs = tokenizer(prompts, return_tensors="pt", padding=True).to(model.device)
    with torch.inference_mode():
        ids = model.generate(**inputs, max_new_tokens=limit, **settings)
    found = []
    for row in ids[:, inputs.input_ids.shape[1] :].tolist():
        ended = tokenizer.eos_token_id in row
        row = row[: row.index(tokenizer.eos_token_id)] if ended else row
        found.append((tokenizer.decode(row), ended, len(row)))
    return [(prompt + text, ended, length) for prompt, (text, ended, length) in zip(prompts, found, strict=True)]


def repetition(text, size=4):
    """Share of a text's four-word runs that occur earlier in it."""
    words = text.split()
    runs = [tuple(words[at : at + size]) for at in range(len(words) - size + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def long_context(model, tokenizer, stories, count=128, width=1024):
    """Nats per token by position, in rows of several stories read as one text."""
    end = tokenizer.eos_token_id
    line = [token for story in stories[: count * 8] for token in [end, *tokenizer(story).input_ids]]
    rows = torch.tensor(line[: len(line) // width * width]).view(-1, width)[:count].to(model.device)
    losses = []
    with torch.inference_mode():
        for some in rows.split(8):
            logits = model(some).logits[:, :-1]
            losses.append(
                F.cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten(), reduction="none").view(len(some), -1)
            )
    by_position = torch.cat(losses).mean(0)
    edges = [0, 128, 256, 512, 768, 1023]
    return {f"{a}-{b - 1}": round(by_position[a:b].mean().item(), 3) for a, b in itertools.pairwise(edges)}


def main():
    parser = argparse.ArgumentParser(description="Judge the exported student.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="directory for report.json and the samples as text")
    parser.add_argument("--each", type=int, default=50, help="samples of each of the 20 prompts at each temperature")
    parser.add_argument("--stories", type=int, help="judge on only this many held-out stories")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    started = time.time()
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    report = {"load_seconds": round(time.time() - started, 2)}
    stories = json.loads((args.data / "heldout.json").read_text())[: args.stories]
    model = model.to(DEVICE)
    report["student"] = heldout_loss(model, tokenizer, stories)
    report["teacher"] = teacher_loss(args.teacher, args.data, stories)
    report["nats_per_token_by_position"] = long_context(model, tokenizer, stories)
    report["repetition_of_heldout_stories"] = round(float(np.mean([repetition(story) for story in stories])), 4)
    print(json.dumps(report, indent=1), flush=True)

    def told(samples):
        return {
            "samples": len(samples),
            "ended": round(float(np.mean([ended for _, ended, _ in samples])), 4),
            "new_tokens": round(float(np.mean([length for _, _, length in samples])), 1),
            "repetition": round(float(np.mean([repetition(text) for text, _, _ in samples])), 4),
            "most_repetition": round(max(repetition(text) for text, _, _ in samples), 4),
        }

    greedy = write(model, tokenizer, PROMPTS, do_sample=False)
    report["greedy"] = told(greedy)
    texts = ["# greedy", *(f"[{length} tokens, ended: {ended}] {text}" for text, ended, length in greedy)]
    for temperature in (1.0, 0.9):
        torch.manual_seed(args.seed)
        samples = write(
            model, tokenizer, PROMPTS * args.each, do_sample=True, temperature=temperature, top_k=0, top_p=1.0
        )
        report[f"temperature {temperature}"] = told(samples)
        print(temperature, report[f"temperature {temperature}"], flush=True)
        texts += [f"# temperature {temperature}, first 20"]
        texts += [f"[{length} tokens, ended: {ended}] {text}" for text, ended, length in samples[:20]]
    (args.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (args.out / "samples.txt").write_text("\n\n".join(texts) + "\n")


if __name__ == "__main__":
    main()
