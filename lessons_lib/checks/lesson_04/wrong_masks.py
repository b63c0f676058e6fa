"""Wrong masks that learners make, each with what to say of it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from lessons_lib.attention.masks import PADDING, RULES, Tags, combine


@dataclass(frozen=True)
class WrongRule:
    """A wrong mask that learners make, and what to say of it."""

    mask: Callable[[Tags, Tags], torch.Tensor]
    what: str
    idea: str


def _token(queries: Tags, keys: Tags):
    return (keys.seq_ids != PADDING).expand(len(queries), -1)


def _own(queries: Tags, keys: Tags):
    return keys.seq_ids == queries.seq_ids[:, None]


def _distance(queries: Tags, keys: Tags):
    """How much later than the query the key stands: negative for the past."""
    return keys.positions - queries.positions[:, None]


def _by_place(queries: Tags, keys: Tags, from_the_end: bool = False):
    shift = len(keys) - len(queries) if from_the_end else 0
    return torch.arange(len(keys)) <= torch.arange(len(queries))[:, None] + shift


def _right(queries: Tags, keys: Tags):
    return combine(RULES, queries, keys)


_USE_POSITIONS = "Where a token stands in the row says nothing about its place in its sequence, least of all with keys in a cache. Compare `positions`."

KNOWN = (
    WrongRule(lambda q, k: ~_right(q, k), "everything is turned round", "True means that the query may attend."),
    WrongRule(
        lambda q, k: torch.ones_like(_right(q, k)),
        "everything is allowed",
        "A cell is True only where all three rules allow it.",
    ),
    WrongRule(
        lambda q, k: _token(q, k) | _own(q, k) | (_distance(q, k) <= 0),
        "a cell is True where one of the rules allows it",
        "All three must allow: join them by `&`, not by `|`.",
    ),
    WrongRule(
        lambda q, k: torch.zeros_like(_right(q, k)),
        "nothing is allowed",
        "A token attends at least to itself, unless it is padding.",
    ),
    WrongRule(
        lambda q, k: _own(q, k) & (_distance(q, k) <= 0),
        "padding attends to padding",
        "All padding carries one id, PADDING, so to `==` it looks like one more sequence. The padding rule forbids every key that has this id.",
    ),
    WrongRule(
        lambda q, k: _token(q, k) & _own(q, k),
        "a token attends to later tokens of its own sequence",
        "The causal rule is missing: the key's position is at most that of the query.",
    ),
    WrongRule(
        lambda q, k: _token(q, k) & (_distance(q, k) <= 0),
        "a token attends to other sequences",
        "The rule of the sequence is missing. Positions begin anew in every sequence, so they can't tell A's first token from B's.",
    ),
    WrongRule(
        _own,
        "two rules are missing, the causal one and that of padding",
        "Compare the positions as well, and ask whether the key is padding.",
    ),
    WrongRule(
        lambda q, k: _distance(q, k) <= 0,
        "two rules are missing, that of the sequence and that of padding",
        "Compare the sequence ids as well, and ask whether the key is padding.",
    ),
    WrongRule(
        lambda q, k: _token(q, k) & _own(q, k) & (_distance(q, k) < 0),
        "no token attends to itself",
        "A token attends to its own position too: `<=`, not `<`.",
    ),
    WrongRule(
        lambda q, k: _token(q, k) & _own(q, k) & (_distance(q, k) >= 0),
        "a token attends to itself and to later tokens",
        "The comparison is the wrong way round: the key's position is at most that of the query.",
    ),
    WrongRule(
        lambda q, k: _token(q, k) & _own(q, k) & (_distance(q, k) == 0),
        "a token attends to itself alone",
        "It needs the tokens before it too: `<=` for the positions, `==` for the sequence ids.",
    ),
    WrongRule(
        lambda q, k: _token(q, k) & (k.seq_ids <= q.seq_ids[:, None]) & (_distance(q, k) <= 0),
        "a token attends to the sequences before its own",
        "Sequence ids are names, not sizes: compare them with `==`.",
    ),
    WrongRule(
        lambda q, k: _token(q, k) & _own(q, k) & _by_place(q, k), "places in the row are compared", _USE_POSITIONS
    ),
    WrongRule(
        lambda q, k: _token(q, k) & _own(q, k) & _by_place(q, k, from_the_end=True),
        "places in the row are compared, counted from its end",
        _USE_POSITIONS,
    ),
    WrongRule(
        _by_place,
        "each token attends to all tokens before it in the row",
        "That is the mask of one single text. Compare the tags, both of them.",
    ),
    WrongRule(
        lambda q, k: (k.seq_ids > 0) & _own(q, k) & (_distance(q, k) <= 0),
        "sequence 0 is taken for padding",
        f"Padding has the id PADDING, which is {PADDING}. 0 is the first sequence.",
    ),
    WrongRule(
        lambda q, k: _right(q, k) | ((k.seq_ids == PADDING) & _own(q, k) & (_distance(q, k) == 0)),
        "a padding token attends to itself",
        "In this exercise the row of a padding query is False throughout. What that leads to comes right after it.",
    ),
)
UNKNOWN = WrongRule(
    _right,
    "some cells are wrong",
    "A cell is True where the key is no padding, has the query's sequence id, and stands at the query's position or before.",
)
