"""A mask in words and in characters, for terminals, for screen readers, and for reading it aloud."""

from collections.abc import Sequence

import torch

from lessons_lib.masks import PADDING, RULES, Tags, not_in_the_future, not_padding, same_sequence

# rule -> (what is said of a pair that it allows, what is said of one that it forbids)
REASONS = {
    not_padding: ("not padding", "padding"),
    same_sequence: ("same sequence", "another sequence"),
    not_in_the_future: ("not in the future", "in the future"),
}


def sequence_name(seq_id: int, names: Sequence[str]) -> str:
    return "padding" if seq_id == PADDING else names[seq_id]


def letters(count: int) -> list[str]:
    """Names for sequences that have none: A, B, ..., Z, then A1, B1, ..."""
    return [chr(ord("A") + index % 26) + (str(index // 26) if index >= 26 else "") for index in range(count)]


def read_pair(queries: Tags, keys: Tags, query: int, key: int, names: Sequence[str], rules=RULES) -> str:
    """One cell of the mask, aloud: who may or may not attend to whom, and why.

    >>> read_pair(tags, tags, 2, 0, ["A", "B"])
    'A, position 2, may attend to A, position 0: same sequence, not in the future.'
    """
    asker, target = (_who(tags, index, names) for tags, index in ((queries, query), (keys, key)))
    one_query, one_key = _only(queries, query), _only(keys, key)
    forbidding = [rule for rule in REASONS if rule in rules and not rule(one_query, one_key).item()]
    if forbidding:
        return f"{asker}, may not attend to {target}: {', '.join(REASONS[rule][1] for rule in forbidding)}."
    # That a key is not padding goes without saying, unless nothing else is asked.
    asked = [rule for rule in REASONS if rule in rules and rule is not not_padding] or list(rules)
    reasons = ", ".join(REASONS[rule][0] for rule in asked) or "no rule forbids it"
    return f"{asker}, may attend to {target}: {reasons}."


def read_row(mask: torch.Tensor, queries: Tags, keys: Tags, query: int, names: Sequence[str]) -> str:
    """One row of the mask, aloud: everything that one query attends to, in ranges.

    >>> read_row(mask, tags, tags, 2, ["A", "B"])
    'A, position 2, attends to A 0 to 2.'
    """
    seen = [index for index in range(len(keys)) if mask[query, index]]
    return f"{_who(queries, query, names)}, attends to {_ranges(keys, seen, names) or 'nothing'}."


def mask_text(mask: torch.Tensor, queries: Tags, keys: Tags, names: Sequence[str] | None = None) -> str:
    """The mask as characters: `#` attends, `.` blocked. A row is a query, a column a key; the letters are the sequences.

    Args:
        mask: bool [queries, keys].
        names: one for each sequence id; A, B, ... if not given. The first letter is shown. Padding is `-`.
    """
    known = [int(seq_id) for tags in (queries, keys) for seq_id in tags.seq_ids]
    names = letters(max(known, default=0) + 1) if names is None else names

    def letter(seq_id: int) -> str:
        return "-" if seq_id == PADDING else sequence_name(seq_id, names)[0]

    width = max((len(str(int(position))) for position in queries.positions), default=1)
    head = " " * (width + 3) + "".join(letter(int(seq_id)) for seq_id in keys.seq_ids)
    lines = [
        f"{letter(int(seq_id))} {int(position):>{width}} " + "".join("#" if may else "." for may in row)
        for seq_id, position, row in zip(queries.seq_ids, queries.positions, mask.tolist())
    ]
    return "\n".join([head, *lines])


def _only(tags: Tags, index: int) -> Tags:
    return Tags(tags.seq_ids[index : index + 1], tags.positions[index : index + 1])


def _who(tags: Tags, index: int, names: Sequence[str]) -> str:
    return f"{sequence_name(int(tags.seq_ids[index]), names)}, position {int(tags.positions[index])}"


def _ranges(tags: Tags, indices: list[int], names: Sequence[str]) -> str:
    """Tokens in words, neighbours joined: "A 0 to 4, B 2"."""
    runs: list[list[tuple[str, int]]] = []
    for index in indices:
        token = sequence_name(int(tags.seq_ids[index]), names), int(tags.positions[index])
        if runs and runs[-1][-1] == (token[0], token[1] - 1):
            runs[-1].append(token)
        else:
            runs.append([token])
    return ", ".join(f"{run[0][0]} {run[0][1]}" + (f" to {run[-1][1]}" if len(run) > 1 else "") for run in runs)
