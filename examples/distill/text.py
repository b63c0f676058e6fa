"""From the teacher's token ids to training data: stories as text, a tokenizer of 4,096 tokens, and one long array.

What is kept: stories that the teacher ended itself, valid as UTF-8, each text once. Which stories are held out for
judging is decided by a hash of the text, so that the same story can never be on both sides.
"""

import argparse
import hashlib
import json
import os
import time
from multiprocessing import Pool
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from .teacher import BOS, decode, read_vocabulary

END = "<|endoftext|>"
END_ID = 0
VOCABULARY = 4096
MAX_POSITIONS = 1024


def read_stories(ids, pieces):
    """Yield (row, text) for each finished story in teacher ids [B, 256]; the text is everything before BOS."""
    for row in range(len(ids)):
        ends = np.flatnonzero(ids[row] == BOS)
        if len(ends):
            try:
                text = decode(pieces, ids[row, : ends[0]].tolist()).decode("utf-8")
            except UnicodeDecodeError:
                continue
            if text.strip() and END not in text:
                yield row, text


def fingerprint(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def train_tokenizer(texts):
    """Byte-level BPE. All 256 bytes are in the alphabet, so that every text survives a round trip."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer, directory):
    """Write the two files that ``AutoTokenizer.from_pretrained`` needs. No BOS: a text becomes its own tokens only."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "eos_token": END,
        "pad_token": END,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "padding_side": "left",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def start_worker(vocabulary_file, tokenizer_file, one_in):
    """Give each worker process its own vocabulary and tokenizer."""
    global PIECES, TOKENIZER, ONE_IN
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    PIECES = read_vocabulary(Path(vocabulary_file).read_bytes())
    TOKENIZER = Tokenizer.from_file(str(tokenizer_file))
    ONE_IN = one_in


def encode_shard(path):
    """One shard as (tokens of all stories, each with its END; their lengths; their fingerprints; held-out stories)."""
    ids = np.load(path).view(np.uint16)
    rows, texts = zip(*read_stories(ids, PIECES), strict=True)
    prints = np.array([fingerprint(text) for text in texts], np.uint64)
    encoded = [[*encoding.ids, END_ID] for encoding in TOKENIZER.encode_batch_fast(list(texts))]
    lengths = np.array([len(story) for story in encoded])
    tokens = np.concatenate([np.array(story, np.uint16) for story in encoded])
    heldout = [
        (int(prints[i]), text, ids[row, : np.argmax(ids[row] == BOS) + 1])
        for i, (row, text) in enumerate(zip(rows, texts, strict=True))
        if prints[i] % ONE_IN == 0
    ]
    return tokens, lengths, prints, heldout


def main():
    parser = argparse.ArgumentParser(description="Turn sampled stories into a tokenizer and training data.")
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--shards", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer-shards", type=int, default=8, help="how many shards the tokenizer is trained on")
    parser.add_argument("--heldout-one-in", type=int, default=400)
    args = parser.parse_args()
    started = time.time()
    shards = sorted(args.shards.glob("*.npy"))
    vocabulary_file = args.teacher / "tokenizer.bin"
    pieces = read_vocabulary(vocabulary_file.read_bytes())

    firsts = (
        text
        for path in shards[: args.tokenizer_shards]
        for _, text in read_stories(np.load(path).view(np.uint16), pieces)
    )
    tokenizer = train_tokenizer(text for text in firsts if fingerprint(text) % args.heldout_one_in)
    save_tokenizer(tokenizer, args.out / "tokenizer")
    print(f"tokenizer trained, {time.time() - started:.0f} s", flush=True)

    setup = (vocabulary_file, args.out / "tokenizer" / "tokenizer.json", args.heldout_one_in)
    with Pool(initializer=start_worker, initargs=setup) as pool:
        results = list(pool.imap(encode_shard, shards))
    tokens, lengths, prints = (np.concatenate([result[part] for result in results]) for part in range(3))
    heldout = {print_: (text, ids) for result in results for print_, text, ids in result[3]}

    keep = np.zeros(len(prints), bool)
    keep[np.unique(prints, return_index=True)[1]] = True
    distinct = int(keep.sum())
    keep &= prints % args.heldout_one_in != 0
    tokens = tokens[np.repeat(keep, lengths)]
    np.save(args.out / "train.npy", tokens)
    texts, teacher_ids = zip(*heldout.values(), strict=True)
    (args.out / "heldout.json").write_text(json.dumps(texts))
    flat, ends = np.concatenate(teacher_ids), np.cumsum([len(ids) for ids in teacher_ids])
    np.savez(args.out / "heldout_teacher.npz", ids=flat, ends=ends)

    report = {"finished": len(prints), "distinct": distinct, "train_stories": int(keep.sum()), "heldout": len(texts)}
    report |= {"train_tokens": len(tokens), "mean_tokens": round(float(lengths.mean()), 1)}
    report |= {"std_tokens": round(float(lengths.std()), 1), "seconds": round(time.time() - started)}
    (args.out / "report.json").write_text(json.dumps(report))
    print(report)


if __name__ == "__main__":
    main()
