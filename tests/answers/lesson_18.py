"""Right answers to the exercises of lesson 18, written in other ways than the reference. The wrong ones are the checks'
lists."""

from collections import Counter

import numpy as np
from lessons_lib.engine.draft_lengths import Guess

# 18.1 ngram_guesser


def with_a_dict_of_dicts(texts, longest=4):
    counts = {}
    for text in texts:
        for start in range(len(text)):
            for end in range(start + 1, min(start + longest, len(text) - 1) + 1):
                found = counts.setdefault(tuple(text[start:end]), {})
                found[text[end]] = found.get(text[end], 0) + 1

    def guess(tokens, most):
        tokens, guesses = list(tokens), []
        for _ in range(most):
            for size in range(min(longest, len(tokens)), 0, -1):
                if found := counts.get(tuple(tokens[-size:])):
                    token = max(found, key=found.get)
                    guesses.append(Guess(token, found[token] / (1 + sum(found.values()))))
                    tokens.append(token)
                    break
            else:
                return guesses
            tokens = tokens[-longest:]
        return guesses

    return guess


class Guesser:
    """Recursive, with pairs in place of `Guess`, and one table for each size."""

    def __init__(self, texts, longest):
        texts, self.tables = list(texts), [{} for _ in range(longest)]
        for size, table in enumerate(self.tables, start=1):
            for text in texts:
                for *context, token in zip(*(text[i:] for i in range(size + 1))):
                    table.setdefault(tuple(context), Counter()).update([token])

    def __call__(self, tokens, most):
        if most < 1:
            return []
        last = tuple(tokens[-len(self.tables) :])
        for start in range(len(last)):
            if found := self.tables[len(last) - start - 1].get(last[start:]):
                token, count = found.most_common()[0]
                chance = count / (sum(found.values()) + 1)
                return [Guess(token, chance), *self([*last, token], most - 1)]
        return []


def with_a_class(texts, longest=4):
    return Guesser(texts, longest)


# 18.2 verify


def with_offsets(drafts, logits, draw, pool):
    start = 0
    for sequence, draft in drafts.items():
        place, row = len(sequence.output_ids), start
        start += len(draft) + 1
        for guess in [*draft, None]:
            token = draw(logits[row], sequence, place)
            sequence.append_token(token)
            place, row = place + 1, row + 1
            if token != guess or sequence.finish_reason is not None:
                break
        sequence.num_computed_tokens = sequence.num_tokens - 1
        size = pool.block_size
        kept = -(-sequence.num_computed_tokens // size)
        unused, sequence.blocks = sequence.blocks[kept:], sequence.blocks[:kept]
        for block in unused:
            pool.free([block])


def in_two_rounds(drafts, logits, draw, pool):
    own = {}
    for sequence, draft in drafts.items():
        own[sequence], logits = logits[: len(draft) + 1], logits[len(draft) + 1 :]
    for sequence, rows in own.items():
        count = len(sequence.output_ids)
        tokens = [draw(row, sequence, i) for i, row in enumerate(rows, start=count)]
        right = 0
        while right < len(drafts[sequence]) and drafts[sequence][right] == tokens[right]:
            right += 1
        for token in tokens[: right + 1]:
            if not sequence.finish_reason:
                sequence.append_token(token)
        sequence.num_computed_tokens += len(sequence.output_ids) - count
        if count == 0:
            sequence.num_computed_tokens = len(sequence.prompt_ids) + len(sequence.output_ids) - 1
        blocks = (sequence.num_computed_tokens + pool.block_size - 1) // pool.block_size
        if blocks < len(sequence.blocks):
            pool.free(sequence.blocks[blocks:])
            sequence.blocks = list(sequence.blocks[:blocks])


# 18.3 accept_or_redraw


def with_numpy(draft, draft_probs, probs, coin, choose):
    tokens = []
    for x, q, p in zip(draft, np.float32(draft_probs), np.float32(probs)):
        if coin(p[x] / q[x]):
            tokens.append(x)
        else:
            rest = np.maximum(p - q, 0)
            return [*tokens, choose(rest / rest.sum())]
    return [*tokens, choose(probs[-1])]


def recursive(draft, draft_probs, probs, coin, choose):
    if not draft:
        return [choose(probs[0])]
    x, q, p = draft[0], draft_probs[0], probs[0]
    if p[x] >= q[x] or coin(p[x] / q[x]):
        return [x, *recursive(draft[1:], draft_probs[1:], probs[1:], coin, choose)]
    return [choose([a - b if a > b else 0 for a, b in zip(p, q)])]


def all_coins_first(draft, draft_probs, probs, coin, choose):
    kept = [coin(min(1, probs[i][x] / draft_probs[i][x])) for i, x in enumerate(draft)]
    count = kept.index(False) if False in kept else len(draft)
    p = list(probs[count])
    if count < len(draft):
        p = [max(a - b, 0.0) for a, b in zip(p, draft_probs[count])]
    return draft[:count] + [choose(p)]


WRONG: dict[str, list] = {}
RIGHT = {
    "18.1": [with_a_dict_of_dicts, with_a_class],
    "18.2": [with_offsets, in_two_rounds],
    "18.3": [with_numpy, recursive, all_coins_first],
}
