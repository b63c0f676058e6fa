"""Lesson 04: attention masks, derived from two tags on each token: its sequence and its position."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

PADDING = -1  # the sequence id of a padding token, which belongs to no sequence


@dataclass(frozen=True)
class Tags:
    """The sequence and the position of every token of a packed batch.

    Attributes:
        seq_ids: the sequence that each token belongs to, int64 [tokens]; PADDING for none.
        positions: its position in its own sequence, from 0, int64 [tokens].
    """

    seq_ids: torch.Tensor
    positions: torch.Tensor

    def __len__(self) -> int:
        return len(self.seq_ids)

    def followed_by(self, other: "Tags") -> "Tags":
        """These tokens, followed by the others."""
        return Tags(torch.cat([self.seq_ids, other.seq_ids]), torch.cat([self.positions, other.positions]))


def tag_tokens(lengths: list[int], starts: list[int] | None = None) -> "Tags":
    """The tags of sequences packed one after the other. Positions restart in every sequence.

    Args:
        lengths: packed tokens of each sequence, 0 or more. Sequence i gets the sequence id i.
        starts: position of each sequence's first packed token, as many as `lengths`; 0 for all if not given. It is more
            than 0 where earlier tokens of the sequence are in the cache.

    Returns:
        Tags, with `sum(lengths)` tokens.
    """
    starts = [0] * len(lengths) if starts is None else starts
    seq_ids = [index for index, length in enumerate(lengths) for _ in range(length)]
    positions = [position for length, start in zip(lengths, starts) for position in range(start, start + length)]
    return Tags(torch.tensor(seq_ids, dtype=torch.int64), torch.tensor(positions, dtype=torch.int64))


def not_padding(queries: Tags, keys: Tags) -> torch.Tensor:
    """Padding rule: no query sees a padding key. Bool [queries, keys]."""
    return (keys.seq_ids != PADDING)[None, :].expand(len(queries), -1)


def not_in_the_future(queries: Tags, keys: Tags) -> torch.Tensor:
    """Causal rule: a token sees its own position and those before it. Bool [queries, keys]."""
    return keys.positions[None, :] <= queries.positions[:, None]


def same_sequence(queries: Tags, keys: Tags) -> torch.Tensor:
    """Block-diagonal rule: a token sees its own sequence. Bool [queries, keys]."""
    return keys.seq_ids[None, :] == queries.seq_ids[:, None]


Rule = Callable[[Tags, Tags], torch.Tensor]  # (queries, keys) -> bool [queries, keys]
RULES: tuple[Rule, ...] = (not_padding, not_in_the_future, same_sequence)


def combine(rules: Iterable[Rule], queries: Tags, keys: Tags) -> torch.Tensor:
    """Combine rules into a mask, bool [queries, keys]: True where all rules allow. No rules allow everything."""
    mask = torch.ones(len(queries), len(keys), dtype=torch.bool, device=queries.seq_ids.device)
    for rule in rules:
        mask = mask & rule(queries, keys)
    return mask


def block_diagonal_mask(queries: "Tags", keys: "Tags") -> torch.Tensor:
    """Build the mask: each query attends to its own sequence, up to its own position, and never to padding.

    Args:
        queries: Tags of the new tokens.
        keys: Tags of all keys, cached and new.

    Returns:
        bool tensor [queries, keys], True where the query may attend. The row of a padding query is all False.
    """
    is_token = keys.seq_ids != PADDING
    is_own = keys.seq_ids == queries.seq_ids[:, None]
    is_past = keys.positions <= queries.positions[:, None]
    return is_token & is_own & is_past
