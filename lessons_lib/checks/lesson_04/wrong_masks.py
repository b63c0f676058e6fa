"""Wrong masks that learners build, each with an explanation."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lessons_lib.attention.masks import PADDING, RULES, Tags, combine


@dataclass(frozen=True)
class WrongRule:
    """A wrong mask that learners build, and how to explain it."""

    mask: Callable[[Tags, Tags], torch.Tensor]
    what: str
    idea: str


def _not_padding(queries: Tags, keys: Tags):
    return (keys.seq_ids != PADDING).expand(len(queries), -1)


def _own(queries: Tags, keys: Tags):
    return keys.seq_ids == queries.seq_ids[:, None]


def _distance(queries: Tags, keys: Tags):
    """Position of the key minus position of the query: negative for the past."""
    return keys.positions - queries.positions[:, None]


def _by_index(queries: Tags, keys: Tags, from_the_end: bool = False):
    shift = len(keys) - len(queries) if from_the_end else 0
    return torch.arange(len(keys)) <= torch.arange(len(queries))[:, None] + shift


def _right(queries: Tags, keys: Tags):
    return combine(RULES, queries, keys)


_USE_POSITIONS = (
    "A token's index in the row says nothing about its position in its sequence, least of all when there are cached "
    "keys. Compare `positions`."
)

KNOWN = (
    WrongRule(lambda q, k: ~_right(q, k), "every cell is inverted", "True means that the query may attend."),
    WrongRule(
        lambda q, k: torch.ones_like(_right(q, k)),
        "everything is allowed",
        "A cell is True only if all three rules allow it.",
    ),
    WrongRule(
        lambda q, k: _not_padding(q, k) | _own(q, k) | (_distance(q, k) <= 0),
        "a cell is True if any of the rules allows it",
        "All three must allow it: combine them with `&`, not `|`.",
    ),
    WrongRule(
        lambda q, k: torch.zeros_like(_right(q, k)),
        "nothing is allowed",
        "Every token attends at least to itself, unless it is padding.",
    ),
    WrongRule(
        lambda q, k: _own(q, k) & (_distance(q, k) <= 0),
        "padding attends to padding",
        "All padding tokens have the same id, PADDING, so to `==` they look like one more sequence. The padding rule "
        "forbids every key that has this id.",
    ),
    WrongRule(
        lambda q, k: _not_padding(q, k) & _own(q, k),
        "a token attends to later tokens of its own sequence",
        "The causal rule is missing: the key's position must be at most the query's.",
    ),
    WrongRule(
        lambda q, k: _not_padding(q, k) & (_distance(q, k) <= 0),
        "a token attends to other sequences",
        "The sequence rule is missing, or it doesn't compare each key with its own query. Positions restart in every "
        "sequence, so they can't tell A's first token from B's.",
    ),
    WrongRule(
        _own,
        "two rules are missing, the causal rule and the padding rule",
        "Compare the positions as well, and check whether the key is padding.",
    ),
    WrongRule(
        lambda q, k: _distance(q, k) <= 0,
        "two rules are missing, the sequence rule and the padding rule",
        "Compare the sequence ids as well, and check whether the key is padding.",
    ),
    WrongRule(
        lambda q, k: _not_padding(q, k) & _own(q, k) & (_distance(q, k) < 0),
        "no token attends to itself",
        "A token attends to its own position as well: `<=`, not `<`.",
    ),
    WrongRule(
        lambda q, k: _not_padding(q, k) & _own(q, k) & (_distance(q, k) >= 0),
        "a token attends to itself and to later tokens",
        "The comparison is backwards: the key's position must be at most the query's.",
    ),
    WrongRule(
        lambda q, k: _not_padding(q, k) & _own(q, k) & (_distance(q, k) == 0),
        "a token attends only to itself",
        "It also needs the tokens before it: `<=` for the positions, `==` for the sequence ids.",
    ),
    WrongRule(
        lambda q, k: _not_padding(q, k) & (k.seq_ids <= q.seq_ids[:, None]) & (_distance(q, k) <= 0),
        "a token attends to sequences with smaller ids as well",
        "Sequence ids are labels without an order: compare them with `==`.",
    ),
    WrongRule(
        lambda q, k: _not_padding(q, k) & _own(q, k) & _by_index(q, k),
        "tokens are compared by their index in the row",
        _USE_POSITIONS,
    ),
    WrongRule(
        lambda q, k: _not_padding(q, k) & _own(q, k) & _by_index(q, k, from_the_end=True),
        "tokens are compared by their index in the row, counted from the end",
        _USE_POSITIONS,
    ),
    WrongRule(
        lambda q, k: _own(q, k) & _by_index(q, k),
        "tokens are compared by their index in the row, not by their positions",
        _USE_POSITIONS,
    ),
    WrongRule(
        _by_index,
        "each token attends to all tokens before it in the row",
        "That is the causal mask of a single text. Compare both tags, the sequence ids and the positions.",
    ),
    WrongRule(
        lambda q, k: (k.seq_ids > 0) & _own(q, k) & (_distance(q, k) <= 0),
        "sequence 0 is treated as padding",
        f"Padding has the id PADDING, which is {PADDING}. Id 0 is the first sequence.",
    ),
    WrongRule(
        lambda q, k: (k.seq_ids != 0) & _own(q, k) & (_distance(q, k) <= 0),
        "sequence 0 is treated as padding, and padding as a sequence",
        f"Padding has the id PADDING, which is {PADDING}. Id 0 is the first sequence.",
    ),
    WrongRule(
        lambda q, k: (k.seq_ids == PADDING) & _own(q, k) & (_distance(q, k) <= 0),
        "only padding may be attended to",
        "The padding rule is backwards: a key is allowed if its id is not PADDING, `!=`.",
    ),
    WrongRule(
        lambda q, k: _not_padding(q, k) & ~_own(q, k) & (_distance(q, k) <= 0),
        "a token attends only to other sequences",
        "The sequence rule is backwards: a key is allowed if its id equals the query's, `==`.",
    ),
    WrongRule(
        lambda q, k: _not_padding(q, k) & _own(q, k) & (_distance(q, k) <= 1),
        "a token attends to the position after its own as well",
        "The last position that a query sees is its own: key position <= query position, without the + 1.",
    ),
    WrongRule(
        lambda q, k: _right(q, k) & _by_index(q, k),
        "tokens are also compared by their index in the row",
        _USE_POSITIONS,
    ),
    WrongRule(
        lambda q, k: _right(q, k) | ((k.seq_ids == PADDING) & _own(q, k) & (_distance(q, k) == 0)),
        "a padding token attends to itself",
        "The row of a padding query is all False: the padding rule forbids every padding key, its own token included.",
    ),
    WrongRule(
        lambda q, k: _right(q, k) | ((q.seq_ids == PADDING)[:, None] & (k.seq_ids != PADDING) & (_distance(q, k) <= 0)),
        "padding attends to the sequences",
        "The sequence rule holds for a padding query too: no key of a sequence has its id.",
    ),
    WrongRule(
        lambda q, k: _right(q, k) & (k.seq_ids < k.seq_ids.max()),
        "no token attends to a key of the sequence with the largest id, even if it is the only sequence",
        "If your code loops over the sequences: does the loop leave out the last one? `range(n)` ends at n - 1.",
    ),
)
UNKNOWN = WrongRule(
    _right,
    "some cells are wrong",
    "A cell is True if the key isn't padding, has the query's sequence id, and is at the query's position or earlier. "
    "Apply all three to each pair of a query and a key, and join them with `&`.",
)
