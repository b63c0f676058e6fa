"""Masks in words."""

import pytest
import torch

from lessons_lib.attention.masks import (
    PADDING,
    RULES,
    Tags,
    block_diagonal_mask,
    combine,
    not_in_the_future,
    not_padding,
    same_sequence,
    tag_tokens,
)
from lessons_lib.recording.mask_text import describe_mask, read_pairs, read_row

TWO = tag_tokens([3, 2])


def padding(count):
    return Tags(torch.full((count,), PADDING), torch.arange(count))


PADDED = tag_tokens([2]).followed_by(padding(2))


@pytest.mark.parametrize(
    "tags, query, key, sentence",
    [
        (TWO, 2, 2, "A, position 2, may attend to A, position 2: same sequence, not in the future."),
        (TWO, 0, 2, "A, position 0, may not attend to A, position 2: in the future."),
        (TWO, 4, 0, "B, position 1, may not attend to A, position 0: another sequence."),
        (TWO, 0, 4, "A, position 0, may not attend to B, position 1: another sequence, in the future."),
        (PADDED, 1, 2, "A, position 1, may not attend to padding, position 0: padding, another sequence."),
        (PADDED, 3, 2, "padding, position 1, may not attend to padding, position 0: padding."),
    ],
)
def test_a_cell_read_aloud(tags, query, key, sentence):
    assert read_pairs(tags, tags, ["A", "B"])[query][key] == sentence


@pytest.mark.parametrize(
    "rules, reasons",
    [
        ((), "no rule forbids it"),
        ((not_padding,), "not padding"),  # where it is the only thing asked, it is said
        ((not_in_the_future,), "not in the future"),
        ((same_sequence, not_padding), "same sequence"),
        ((not_in_the_future, same_sequence), "same sequence, not in the future"),  # whatever the order of the rules
    ],
)
def test_only_rules_that_are_asked_give_reasons(rules, reasons):
    sheet = read_pairs(TWO, TWO, ["A", "B"], rules)
    assert sheet[2][0] == f"A, position 2, may attend to A, position 0: {reasons}."


def test_a_rule_of_ones_own_is_called_by_its_name():
    def within_a_window(queries, keys):
        return (queries.positions[:, None] - keys.positions) < 2

    rules = (*RULES, within_a_window)
    row = read_pairs(TWO, TWO, rules=rules)[2]
    assert row[0].endswith("A, position 0: not within a window.")
    assert row[1].endswith("A, position 1: same sequence, not in the future, within a window.")


@pytest.mark.parametrize("query", [5, -1])
def test_a_row_that_is_not_there(query):
    with pytest.raises(IndexError, match=f"no query {query}; it may be from 0 to 4"):
        read_row(block_diagonal_mask(TWO, TWO), TWO, TWO, query)


def test_the_mask_has_the_word_where_it_differs_from_the_rules():
    mask = block_diagonal_mask(TWO, TWO)
    mask[4, 0], mask[2, 1] = True, False
    sheet = read_pairs(TWO, TWO, mask=mask)
    assert sheet[4][0] == "B, position 1, may attend to A, position 0, but should not: another sequence."
    assert (
        sheet[2][1] == "A, position 2, may not attend to A, position 1, but should: same sequence, not in the future."
    )
    assert sheet[2][0] == read_pairs(TWO, TWO)[2][0]
    assert sum("should" in cell for row in sheet for cell in row) == 2


def test_a_row_in_ranges():
    mask = combine((not_in_the_future,), TWO, TWO)
    assert read_row(mask, TWO, TWO, 1) == "A, position 1, attends to A 0 to 1, B 0 to 1."
    assert read_row(mask, TWO, TWO, 3) == "B, position 0, attends to A 0, B 0."


def test_a_mask_in_sentences():
    queries = tag_tokens([1, 2], starts=[3, 0]).followed_by(padding(1))
    keys = tag_tokens([3, 0]).followed_by(queries)
    assert describe_mask(block_diagonal_mask(queries, keys), queries, keys, ["A", "B"]) == (
        "Mask of 4 queries and 7 keys. Queries: A 3, B 0 to 1, padding 0. Keys in the cache: A 0 to 2. "
        "A attends to A. B attends to B. padding attends to nothing. 7 of 28 cells may attend (25 %)."
    )
