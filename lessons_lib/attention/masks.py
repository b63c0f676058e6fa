"""Lesson 04: which token may attend to which, worked out from two numbers on each token: its sequence and its position."""

from dataclasses import dataclass

import torch

PADDING = -1  # the sequence id of a token that belongs to nobody


@dataclass(frozen=True)
class Tags:
    """The two numbers that every token of a row carries.

    Attributes:
        seq_ids: which sequence it belongs to, int64 [tokens]; PADDING for none.
        positions: its position in its own sequence, from 0, int64 [tokens].
    """

    seq_ids: torch.Tensor
    positions: torch.Tensor

    def __len__(self) -> int:
        return len(self.seq_ids)

    def followed_by(self, other: "Tags") -> "Tags":
        """These tokens, then the others, in one row."""
        return Tags(torch.cat([self.seq_ids, other.seq_ids]), torch.cat([self.positions, other.positions]))


def tag_tokens(lengths, starts=None):
    """The tags of sequences that lie one behind the other in one row. Positions count anew in every sequence.

    Args:
        lengths: tokens of each sequence in the row, 0 or more. Sequence i gets the sequence id i.
        starts: position of each sequence's first token in the row, as many as `lengths`; 0 for all if not given. It is
            more than 0 where the tokens before it lie in the cache.

    Returns:
        Tags, with `sum(lengths)` tokens.
    """
    starts = [0] * len(lengths) if starts is None else starts
    seq_ids = [index for index, length in enumerate(lengths) for _ in range(length)]
    positions = [position for length, start in zip(lengths, starts) for position in range(start, start + length)]
    return Tags(torch.tensor(seq_ids, dtype=torch.int64), torch.tensor(positions, dtype=torch.int64))


def not_padding(queries: Tags, keys: Tags) -> torch.Tensor:
    """Padding rule: a key that belongs to nobody is seen by nobody. Bool [queries, keys]."""
    return (keys.seq_ids != PADDING)[None, :].expand(len(queries), -1)


def not_in_the_future(queries: Tags, keys: Tags) -> torch.Tensor:
    """Causal rule: a token sees its own position and those before it. Bool [queries, keys]."""
    return keys.positions[None, :] <= queries.positions[:, None]


def same_sequence(queries: Tags, keys: Tags) -> torch.Tensor:
    """Block-diagonal rule: a token sees its own sequence. Bool [queries, keys]."""
    return keys.seq_ids[None, :] == queries.seq_ids[:, None]


RULES = (not_padding, not_in_the_future, same_sequence)


def combine(rules, queries: Tags, keys: Tags) -> torch.Tensor:
    """The mask of several rules: True where all of them allow. Without a rule, everything is allowed. Bool [queries, keys]."""
    mask = torch.ones(len(queries), len(keys), dtype=torch.bool, device=queries.seq_ids.device)
    for rule in rules:
        mask = mask & rule(queries, keys)
    return mask


def block_diagonal_mask(queries, keys):
    """Which keys each query may attend to: those of its own sequence, at its own position or before, and no padding.

    Args:
        queries: Tags of the new tokens.
        keys: Tags of everything that attention looks at: tokens in the cache, and the new ones.

    Returns:
        bool tensor [queries, keys], True where the query may attend. The row of a padding query is False throughout.
    """
    is_token = keys.seq_ids != PADDING
    is_own = keys.seq_ids == queries.seq_ids[:, None]
    is_past = keys.positions <= queries.positions[:, None]
    return is_token & is_own & is_past


def additive_mask(mask, dtype=torch.float32):
    """The same mask as numbers to add to the attention scores: 0 where attending is allowed, else the dtype's minimum.

    Not minus infinity: a row in which everything is forbidden would then be 0 / 0 in the softmax, which is NaN, and NaN spreads
    to whatever is computed from it. With the minimum such a row becomes an average over all keys: useless, but a number.

    Args:
        mask: bool tensor of any shape, True where attending is allowed.
        dtype: that of the scores.

    Returns:
        tensor of the mask's shape and of that dtype.
    """
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, torch.finfo(dtype).min)
