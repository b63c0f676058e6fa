"""Write the trained student as an ordinary Hugging Face directory: bf16 weights, configuration, tokenizer."""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from transformers import GenerationConfig, Qwen2ForCausalLM
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from .text import END_ID, save_tokenizer
from .train import student_config

NOT_SHIPPED = ("_name_or_path", "transformers_version")  # they only say where and with what the file was written


def drop_keys(path):
    """Remove from a JSON configuration what depends on the machine that wrote it."""
    settings = json.loads(path.read_text())
    settings = {key: value for key, value in settings.items() if key not in NOT_SHIPPED}
    path.write_text(json.dumps(settings, indent=2) + "\n")


def as_qwen2(tokenizer):
    """The same tokens and merges, with Qwen2's way of cutting a text into words before they are applied.

    transformers gives that way to every Qwen2 model, whatever tokenizer.json says. So the file says so too, and every
    reader gets the same ids. On the stories the two ways differ in one thing: " 3" becomes two tokens.
    """
    tokenizer.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, letters])
    return tokenizer


def export(weights, tokenizer_directory, out):
    """Save {name: tensor} as ``Qwen2ForCausalLM``; the head is the embedding, stored once."""
    model = Qwen2ForCausalLM(student_config()).to(torch.bfloat16)
    weights = weights | {"lm_head.weight": weights["model.embed_tokens.weight"]}
    model.load_state_dict(weights)
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=END_ID, pad_token_id=END_ID)
    model.save_pretrained(out)
    for name in ("config.json", "generation_config.json"):
        drop_keys(out / name)
    save_tokenizer(as_qwen2(Tokenizer.from_file(str(tokenizer_directory / "tokenizer.json"))), out)
    for path in out.iterdir():
        path.chmod(0o644)


def main():
    parser = argparse.ArgumentParser(description="Export the student.")
    parser.add_argument("--run", type=Path, required=True, help="where train.py wrote student.pt")
    parser.add_argument("--data", type=Path, required=True, help="where text.py wrote tokenizer/")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    export(torch.load(args.run / "student.pt", weights_only=True), args.data / "tokenizer", args.out)
    for path in sorted(args.out.iterdir()):
        print(f"{path.stat().st_size:>12,} {path.name}")


if __name__ == "__main__":
    main()
