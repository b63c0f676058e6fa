"""Lesson 04: a mask in words, for screen readers."""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter

import torch

from lessons_lib.attention.masks import PADDING, RULES, Tags, combine
from lessons_lib.recording.words import check_index, runs_of_numbers

# rule name -> (words for an allowed pair, words for a forbidden pair), in sentence order. Keyed by name, so that a
# learner's rule of the same name gets the same words.
REASONS = {
    "not_padding": ("not padding", "padding"),
    "same_sequence": ("same sequence", "another sequence"),
    "not_in_the_future": ("not in the future", "in the future"),
}


def letters(count: int) -> list[str]:
    """Default names for sequences: A, B, ..., Z, then A1, B1, ..."""
    return [chr(ord("A") + index % 26) + (str(index // 26) if index >= 26 else "") for index in range(count)]


def names_for(*tags: Tags) -> list[str]:
    """Letters for all sequences of the tags."""
    return letters(max((seq_id for some in tags for seq_id in some.seq_ids.tolist()), default=PADDING) + 1)


def sequence_name(seq_id: int, names: Sequence[str]) -> str:
    return "padding" if seq_id == PADDING else names[seq_id]


def rule_name(rule: Callable) -> str:
    return getattr(rule, "__name__", "a rule")


def reason(rule: Callable) -> tuple[str, str]:
    """A rule in words: for an allowed pair, and for a forbidden one."""
    words = rule_name(rule).strip("<>").replace("_", " ")
    return REASONS.get(rule_name(rule), (words, f"not {words}"))


def read_pairs(
    queries: Tags, keys: Tags, names: Sequence[str] | None = None, rules=RULES, mask: torch.Tensor | None = None
) -> list[list[str]]:
    """Every cell of a mask in words: one list per query, one sentence per key, with the rules as reasons. With `mask`,
    bool [queries, keys], sentences also say where it deviates from the rules.
    """
    names = names_for(queries, keys) if names is None else names
    order = list(REASONS)
    rules = sorted(rules, key=lambda rule: order.index(rule_name(rule)) if rule_name(rule) in order else len(order))
    verdicts = [rule(queries, keys) for rule in rules]
    allowed = torch.ones(len(queries), len(keys), dtype=torch.bool)
    # A cell's sentence depends only on its verdicts. As bits, they take few values: build each sentence once.
    code = torch.zeros(len(queries), len(keys), dtype=torch.int64)
    for bit, verdict in enumerate(verdicts):
        allowed &= verdict
        code += verdict.long() << bit
    code += (allowed if mask is None else mask).long() << len(rules)
    saying = {number: _say(rules, number) for number in code.unique().tolist()}
    askers, targets = _tokens(queries, names), _tokens(keys, names)
    sheet = []
    for asker, row in zip(askers, code.tolist()):
        words = [saying[number] for number in row]
        sheet.append([f"{asker}, {verb} {target}{why}." for (verb, why), target in zip(words, targets)])
    return sheet


def read_row(mask: torch.Tensor, queries: Tags, keys: Tags, query: int, names: Sequence[str] | None = None) -> str:
    """One row of the mask in words: "A, position 2, attends to A 0 to 2." """
    check_index("query", query, len(queries))
    names = names_for(queries, keys) if names is None else names
    seen = [token for token, may in zip(_pairs(keys), mask[query].tolist()) if may]
    return f"{_tokens(queries, names)[query]}, attends to {ranges(seen, names) or 'nothing'}."


def describe_mask(
    mask: torch.Tensor, queries: Tags, keys: Tags, names: Sequence[str] | None = None, rules=RULES
) -> str:
    """The whole mask in a few sentences: its sequences, the attention between them, and deviations from the rules."""
    names = names_for(queries, keys) if names is None else names
    asking, asked = _pairs(queries), _pairs(keys)
    told = [f"Mask of {len(asking)} queries and {len(asked)} keys. Queries: {ranges(asking, names)}."]
    cached = cached_keys(queries, keys)
    if any(cached) or asked != asking:
        old = ranges([token for token, is_cached in zip(asked, cached) if is_cached], names)
        told.append(f"Keys in the cache: {old}." if old else f"Keys: {ranges(asked, names)}.")
    seen: dict[int, set[int]] = {seq_id: set() for seq_id, _ in asking}
    for (seq_id, _), flags in zip(asking, mask.tolist()):
        seen[seq_id].update(target for (target, _), may in zip(asked, flags) if may)
    for seq_id, targets in seen.items():
        attended = ", ".join(sequence_name(target, names) for target in sorted(targets)) or "nothing"
        told.append(f"{sequence_name(seq_id, names)} attends to {attended}.")
    told.append(f"{count_text(mask.tolist())}.")
    wrong = int((mask != combine(rules, queries, keys)).sum())
    return " ".join(told + [f"In {wrong} of the cells, the mask differs from the rules."] * (wrong > 0))


def count_text(may: list[list[bool]]) -> str:
    cells, seen = sum(map(len, may)), sum(map(sum, may))
    return f"{seen:,} of {cells:,} cells may attend" + (f" ({100 * seen / cells:.0f} %)" if cells else "")


def cached_keys(queries: Tags, keys: Tags) -> list[bool]:
    """True for each key that is cached, i.e. not among the queries. All False if no key is a query."""
    new = set(_pairs(queries))
    cached = [token not in new for token in _pairs(keys)]
    return [False] * len(cached) if all(cached) else cached


def _say(rules: Sequence[Callable], number: int) -> tuple[str, str]:
    """Verb and reasons for one set of verdicts: one bit per rule, and the highest for the mask."""
    forbidding = [reason(rule)[1] for bit, rule in enumerate(rules) if not number >> bit & 1]
    # "Not padding" is only worth mentioning if there is no other rule.
    telling = [rule for rule in rules if rule_name(rule) != "not_padding"] or rules
    allowing = [reason(rule)[0] for rule in telling]
    may = bool(number >> len(rules) & 1)
    should = "" if may != bool(forbidding) else ", but should not" if may else ", but should"
    why = ", ".join(forbidding or allowing) or "no rule forbids it"
    return "may attend to" if may else "may not attend to", f"{should}: {why}"


def _tokens(tags: Tags, names: Sequence[str]) -> list[str]:
    """Every token in words: "A, position 2"."""
    return [f"{sequence_name(seq_id, names)}, position {position}" for seq_id, position in _pairs(tags)]


def _pairs(tags: Tags) -> list[tuple[int, int]]:
    """(sequence id, position) of every token."""
    return list(zip(tags.seq_ids.tolist(), tags.positions.tolist()))


def ranges(tokens: list[tuple[int, int]], names: Sequence[str]) -> str:
    """Tokens (sequence id, position) in words, neighbors joined: "A 0 to 4, B 2"."""
    words = []
    for seq_id, own in groupby(tokens, key=itemgetter(0)):
        for first, last in runs_of_numbers(position for _, position in own):
            words.append(f"{sequence_name(seq_id, names)} {first}" + (f" to {last}" if last > first else ""))
    return ", ".join(words)
