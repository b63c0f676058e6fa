"""The sliding-window scoreboard of lesson 04 counts what one counts with a pencil, and accepts every right way."""

import pytest
import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from lessons_lib.attention.masks import block_diagonal_mask, tag_tokens
from lessons_lib.checks.lesson_04.scoreboard import counted_scores, row_of, visible_cells, why_wrong, window_scoreboard


def with_rule(rule):
    def attention(q, k, v, lengths, window):
        tags = tag_tokens(lengths)
        return scaled_dot_product_attention(q, k, v, attn_mask=rule(tags, window))

    return attention


def in_window(tags, window):
    return tags.positions > tags.positions[:, None] - window


def right_mask(tags, window):
    return block_diagonal_mask(tags, tags) & in_window(tags, window)


def token_by_token(q, k, v, lengths, window):
    output = torch.empty_like(q)
    for token, position in enumerate(tag_tokens(lengths).positions.tolist()):
        first = max(token - position, token - window + 1)
        weights = (q[:, token, None] @ k[:, first : token + 1].mT / q.shape[-1] ** 0.5).softmax(dim=-1)
        output[:, token] = (weights @ v[:, first : token + 1])[:, 0]
    return output


def in_pieces(q, k, v, lengths, window, size=8):
    """The row in pieces of `size` queries; each sees its own piece and the window before it."""
    total = sum(lengths)
    if not total:
        return q
    window = min(window, max(lengths))
    ids, fill = tag_tokens(lengths).seq_ids, -total % size
    q = pad(q, (0, 0, 0, fill)).unflatten(1, (-1, size))
    k, v = (pad(x, (0, 0, window - 1, fill)).unfold(1, size + window - 1, size).mT for x in (k, v))
    key_ids = pad(ids, (window - 1, fill), value=-1).unfold(0, size + window - 1, size)
    query_ids = pad(ids, (0, fill), value=-2).unflatten(0, (-1, size))
    back = torch.arange(size)[:, None] + window - 1 - torch.arange(size + window - 1)
    allowed = (query_ids[:, :, None] == key_ids[:, None]) & (back >= 0) & (back < window)
    return scaled_dot_product_attention(q, k, v, attn_mask=allowed).flatten(1, 2)[:, :total]


@pytest.mark.parametrize("attention", [with_rule(right_mask), token_by_token, in_pieces])
def test_every_right_way_passes(attention):
    assert why_wrong(attention) is None


WRONG = {
    "it raised ValueError": lambda q, k, v, lengths, window: int("x"),
    "should return a tensor [2, 1, 16]; yours returned NoneType": lambda q, k, v, lengths, window: None,
    "yours returned [1, 2, 1, 16]": lambda q, k, v, lengths, window: q[None],
    "no window": with_rule(lambda tags, window: block_diagonal_mask(tags, tags)),
    "one position too many": with_rule(lambda tags, window: right_mask(tags, window + 1)),
    "later tokens": with_rule(lambda tags, window: (tags.seq_ids[:, None] == tags.seq_ids) & in_window(tags, window)),
    "other sequences": with_rule(
        lambda tags, window: (
            (tags.positions <= tags.positions[:, None]) & (tags.positions > tags.positions[:, None] - window)
        )
    ),
    "other keys or weights": lambda q, k, v, lengths, window: with_rule(right_mask)(q, k, v, lengths, window) + 1,
    "Your output has NaN": lambda q, k, v, lengths, window: with_rule(right_mask)(q, k, v, lengths, window) * torch.nan,
    "lengths [], window 3: it raised": lambda q, k, v, lengths, window: (
        with_rule(right_mask)(q, k, v, lengths, window) if max(lengths) else q
    ),
}


@pytest.mark.parametrize("says", WRONG)
def test_what_is_wrong_is_said(says):
    assert says in why_wrong(WRONG[says])


def test_cells_are_counted():
    lengths, window = [5, 3, 9], 3
    visible = int(visible_cells(lengths, window).sum())
    assert visible == 3 * (1 + 2) + 3 * (3 + 1 + 7)
    for way, cells in ((with_rule(right_mask), 17 * 17), (token_by_token, visible), (in_pieces, 3 * 8 * 10)):
        assert counted_scores(way, *row_of(lengths, 0), lengths, window)[1] == cells


def test_the_table():
    (_, mask, *_), (_, calls, *_), (name, pieces, share, operators, largest) = window_scoreboard(in_pieces).rows
    assert name == "yours" and int(pieces.replace(",", "")) < int(calls.replace(",", "")) < int(mask.replace(",", ""))
    assert int(operators) < 60 and share.endswith("%") and 0.3 < float(largest) < 4
    table = window_scoreboard(WRONG["no window"])
    assert table.rows[-1][1:] == ["–"] * 4 and "no window" in table.verdict
