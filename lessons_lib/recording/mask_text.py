"""Lesson 04: a mask in words and in characters, for terminals and screen readers."""

from collections.abc import Callable, Sequence

import torch

from lessons_lib.attention.masks import PADDING, RULES, Tags, combine
from lessons_lib.recording.words import check_index

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
    """Every cell of a mask in words: one list per query, one sentence per key. See `read_pair`.

    Args:
        names: one for each sequence id; by default A, B, ...
        rules: rules to give as reasons.
        mask: bool [queries, keys], to describe instead of the rules; sentences mention deviations from them.
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


def read_pair(queries: Tags, keys: Tags, query: int, key: int, names: Sequence[str] | None = None, rules=RULES) -> str:
    """One cell of the mask in words: may the query attend to the key, and why?

    >>> from lessons_lib.attention.masks import tag_tokens
    >>> tags = tag_tokens([3, 2])
    >>> read_pair(tags, tags, 2, 0, ["A", "B"])
    'A, position 2, may attend to A, position 0: same sequence, not in the future.'
    >>> read_pair(tags, tags, 2, 4, ["A", "B"])
    'A, position 2, may not attend to B, position 1: another sequence.'
    """
    check_index("query", query, len(queries))
    check_index("key", key, len(keys))
    names = names_for(queries, keys) if names is None else names
    return read_pairs(_only(queries, query), _only(keys, key), names, rules)[0][0]


def read_row(mask: torch.Tensor, queries: Tags, keys: Tags, query: int, names: Sequence[str] | None = None) -> str:
    """One row of the mask in words: the ranges of keys that a query attends to.

    >>> from lessons_lib.attention.masks import block_diagonal_mask, tag_tokens
    >>> tags = tag_tokens([3, 2])
    >>> read_row(block_diagonal_mask(tags, tags), tags, tags, 2, ["A", "B"])
    'A, position 2, attends to A 0 to 2.'
    """
    check_index("query", query, len(queries))
    names = names_for(queries, keys) if names is None else names
    seen = [token for token, may in zip(_pairs(keys), mask[query].tolist()) if may]
    return f"{_tokens(_only(queries, query), names)[0]}, attends to {ranges(seen, names) or 'nothing'}."


def mask_text(mask: torch.Tensor, queries: Tags, keys: Tags, names: Sequence[str] | None = None) -> str:
    """The mask as characters: `#` attends, `.` is blocked. A row is a query, a column a key; letters are sequences.

    Args:
        mask: bool [queries, keys].
        names: one for each sequence id, of which the first letter is shown; by default A, B, ... Padding is `-`.

    >>> from lessons_lib.attention.masks import block_diagonal_mask, tag_tokens
    >>> tags = tag_tokens([3, 2])
    >>> print(mask_text(block_diagonal_mask(tags, tags), tags, tags))
        AAABB
    A 0 #....
    A 1 ##...
    A 2 ###..
    B 0 ...#.
    B 1 ...##
    """
    names = names_for(queries, keys) if names is None else names

    def letter(seq_id: int) -> str:
        return "-" if seq_id == PADDING else sequence_name(seq_id, names)[0]

    width = max((len(str(position)) for position in queries.positions.tolist()), default=1)
    head = " " * (width + 3) + "".join(map(letter, keys.seq_ids.tolist()))
    lines = [
        f"{letter(seq_id)} {position:>{width}} " + "".join("#" if may else "." for may in row)
        for (seq_id, position), row in zip(_pairs(queries), mask.tolist())
    ]
    return "\n".join([head, *lines])


def describe_mask(
    mask: torch.Tensor, queries: Tags, keys: Tags, names: Sequence[str] | None = None, rules=RULES
) -> str:
    """The whole mask in a few sentences: its sequences, the attention between them, and deviations from the rules.

    >>> from lessons_lib.attention.masks import block_diagonal_mask, tag_tokens
    >>> tags = tag_tokens([3, 2])
    >>> print(*describe_mask(block_diagonal_mask(tags, tags), tags, tags).split(". "), sep="\\n")
    Mask of 5 queries and 5 keys
    Queries: A 0 to 2, B 0 to 1
    To their own sequence only: A, B
    9 of 25 cells may attend (36 %).
    """
    names = names_for(queries, keys) if names is None else names
    asking, asked = _pairs(queries), _pairs(keys)
    sentences = [f"Mask of {len(asking)} queries and {len(asked)} keys. Queries: {ranges(asking, names)}."]
    cached = cached_keys(queries, keys)
    if any(cached):
        old, new = ([token for token, is_cached in zip(asked, cached) if is_cached == which] for which in (True, False))
        sentences.append(f"Keys in the cache: {ranges(old, names)}. New keys: {ranges(new, names)}.")
    elif asked != asking:
        sentences.append(f"Keys: {ranges(asked, names)}.")
    seen: dict[int, set[int]] = {seq_id: set() for seq_id, _ in asking}
    for (seq_id, _), flags in zip(asking, mask.tolist()):
        seen[seq_id].update(target for (target, _), may in zip(asked, flags) if may)
    own = [sequence_name(seq_id, names) for seq_id, targets in seen.items() if targets == {seq_id}]
    sentences += [f"To their own sequence only: {', '.join(own)}."] if own else []
    for seq_id, targets in seen.items():
        if targets != {seq_id}:
            attended = ", ".join(sequence_name(target, names) for target in sorted(targets))
            sentences.append(f"{sequence_name(seq_id, names)} attends to {attended or 'nothing'}.")
    sentences.append(f"{count_text(mask.tolist())}.")
    wrong = int((mask != combine(rules, queries, keys)).sum())
    sentences += [f"In {wrong} of the cells, the mask differs from the rules."] if wrong else []
    return " ".join(sentences)


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
    allowing = [reason(rule)[0] for rule in rules if rule_name(rule) != "not_padding"] or [
        reason(rule)[0] for rule in rules
    ]
    may = bool(number >> len(rules) & 1)
    verb = "may attend to" if may else "may not attend to"
    if may and forbidding:
        return verb, f", but should not: {', '.join(forbidding)}"
    if not may and not forbidding:
        return verb, f", but should: {', '.join(allowing) or 'no rule forbids it'}"
    return verb, f": {', '.join(allowing if may else forbidding) or 'no rule forbids it'}"


def _only(tags: Tags, index: int) -> Tags:
    return Tags(tags.seq_ids[index : index + 1], tags.positions[index : index + 1])


def _tokens(tags: Tags, names: Sequence[str]) -> list[str]:
    """Every token in words: "A, position 2"."""
    return [f"{sequence_name(seq_id, names)}, position {position}" for seq_id, position in _pairs(tags)]


def _pairs(tags: Tags) -> list[tuple[int, int]]:
    """(sequence id, position) of every token."""
    return list(zip(tags.seq_ids.tolist(), tags.positions.tolist()))


def ranges(tokens: list[tuple[int, int]], names: Sequence[str]) -> str:
    """Tokens (sequence id, position) in words, neighbors joined: "A 0 to 4, B 2"."""
    runs: list[tuple[int, int, int]] = []  # sequence id, first and last position
    for seq_id, position in tokens:
        if runs and (runs[-1][0], runs[-1][2] + 1) == (seq_id, position):
            runs[-1] = (seq_id, runs[-1][1], position)
        else:
            runs.append((seq_id, position, position))
    return ", ".join(
        f"{sequence_name(seq_id, names)} {first}" + (f" to {last}" if last > first else "")
        for seq_id, first, last in runs
    )
