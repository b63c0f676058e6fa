"""Questions on lesson 04: block-diagonal masks."""

import random

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.attention.masks import block_diagonal_mask, not_in_the_future, same_sequence, tag_tokens
from lessons_lib.viz.masks import draw_mask


@item("04", "picture", "The rules, one at a time")
def dropped_rule_in_picture(draw: random.Random) -> Asked:
    lengths = draw.sample(range(2, 6), 2)
    tags = tag_tokens(lengths)
    rules = [
        ("the causal rule", not_in_the_future(tags, tags), "Whole squares are True, one for each sequence, and "
         "everything between sequences is False. So tokens see later tokens of their own sequence."),
        ("the sequence rule", same_sequence(tags, tags), "There are staircases in all four quarters: a token sees "
         "tokens of the other sequence at its own and lower positions."),
    ]  # fmt: skip
    dropped, other = draw.sample(range(2), 2)
    mask, kept = rules[other][1], (not_in_the_future, same_sequence)[other]
    return asked(
        "Two sequences are packed in one row, with positions that restart. Which rule is missing from this mask?",
        (rules[dropped][0], rules[dropped][2]),
        [
            (rules[other][0], "That one is kept: the cells that it forbids are all False here."),
            ("neither: it is complete", "A complete mask has one staircase for each sequence, and nothing else."),
            ("both of them", "Then every cell would be True."),
        ],
        lambda: draw_mask(mask, tags, tags, "AB", rules=[kept], title="A mask"),
    )


@item("04", "compute", "Build 1: the mask")
def allowed_cells(draw: random.Random) -> Asked:
    lengths = draw.sample(range(3, 12), 3)
    tags = tag_tokens(lengths)
    right, total = int(block_diagonal_mask(tags, tags).sum()), sum(lengths)
    return asked(
        f"Sequences of {lengths[0]}, {lengths[1]} and {lengths[2]} tokens are packed in one row, with nothing cached. "
        "How many cells of the causal block-diagonal mask are True?",
        (right, "n (n + 1) / 2 for each sequence of n tokens: its own staircase."),
        [
            (total * (total + 1) // 2, "That is one causal sequence of all tokens: cross-talk."),
            (sum(n * n for n in lengths), "Within a sequence, a token must not see later tokens."),
            (sum(n * (n - 1) // 2 for n in lengths), "A token sees itself: the diagonal is True."),
            (total * total, "That is every cell of the mask."),
        ],
    )


@item("04", "compute", "With a cache: more keys than queries")
def mistake_in_a_mask(draw: random.Random) -> Asked:
    cached, new = [draw.randint(4, 20), draw.randint(4, 20), 0], [1, 1, draw.randint(3, 8)]
    queries = tag_tokens(new, starts=cached)
    keys = tag_tokens(cached).followed_by(queries)
    restarted = tag_tokens(new)
    right = block_diagonal_mask(queries, keys)
    masks = {
        "the sequence rule is missing": not_in_the_future(queries, keys),
        "the causal rule is missing": same_sequence(queries, keys),
        "a token doesn't see itself": right & (keys.positions[None] != queries.positions[:, None]),
        "new tokens have positions from 0": block_diagonal_mask(restarted, tag_tokens(cached).followed_by(restarted)),
        "nothing: the mask is right": right,
    }
    counts = {name: int(mask.sum()) for name, mask in masks.items()}
    if len(set(counts.values())) < len(counts):
        raise Redraw
    name = draw.choice(list(counts))
    return asked(
        f"A and B have {cached[0]} and {cached[1]} tokens in the cache and decode one token each. C has none and adds "
        f"a prompt of {new[2]} tokens. A mask for this pass has {counts[name]} cells that are True. What is wrong?",
        (name, f"A right mask has {counts['nothing: the mask is right']}: a decode sees its cached tokens and itself, "
         "and C has its staircase."),
        [(other, f"Then it would have {counts[other]}.") for other in draw.sample(list(counts), len(counts))],
    )  # fmt: skip


@item("04", "compute", "The tags")
def tags_of_a_token(draw: random.Random) -> Asked:
    prompts, answers = [draw.randint(5, 30) for _ in range(2)], [draw.randint(2, 9) for _ in range(2)]
    added = draw.randint(3, 6)
    tags = tag_tokens([1, added, 1], starts=[prompts[0] + answers[0] - 1, 0, prompts[1] + answers[1] - 1])
    seq, position = int(tags.seq_ids[-1]), int(tags.positions[-1])
    if position == added + 1:
        raise Redraw
    return asked(
        f"A row packs the new tokens of three sequences. The first has a prompt of {prompts[0]} tokens and "
        f"{answers[0]} tokens of its answer, the last one {prompts[1]} and {answers[1]}; both feed the newest. The "
        f"second is a new prompt of {added} tokens. Which sequence id and position does the last token of the row get?",
        (f"{seq} and {position}", "It's the newest token of the answer: the last of its sequence, counted from 0."),
        [
            (f"{seq} and {position + 1}", "That is the position of the token that this pass chooses. It feeds the one "
             "before."),
            (f"{seq} and {added + 1}", "Positions belong to the sequence, not to the row."),
            (f"{seq} and 0", "Its other tokens are in the cache, and its position goes on from there."),
            (f"{seq + 1} and {position}", "Sequence ids count from 0."),
        ],
    )  # fmt: skip


ITEMS = [
    dropped_rule_in_picture,
    allowed_cells,
    mistake_in_a_mask,
    tags_of_a_token,
    bug(
        "04", "Build 1: the mask", "mask_with_padding",
        task="`mask` returns [queries, keys]: True where a query may attend to a key. Padding has the sequence id -1.",
        code="""
def mask(queries, keys):
    own_query = queries.seq_ids[:, None]
    own_key = keys.seq_ids[None, :]
    is_token = own_key != -1
    is_own = own_key == own_query
    late = queries.positions[:, None]
    is_past = keys.positions[None, :] <= late
    allowed = is_token & is_own
    return allowed & is_past
""",
        line=7, wrong="is_past = keys.positions[None, :] < late",
        why="A token sees itself: its own key has the same position. It has to be `<=`.",
        innocent={
            2: "Queries are the rows of the mask, so their ids stand in a column.",
            4: "Padding has an id of its own, so without this rule padding queries would see padding keys.",
            8: "All rules have to hold at once: `&`, cell by cell.",
        },
        setup="import torch\nfrom lessons_lib.attention.masks import block_diagonal_mask, tag_tokens",
        trial="""
tags = tag_tokens([2, 3])
assert torch.equal(mask(tags, tags), block_diagonal_mask(tags, tags))
""",
    ),
    design(
        "04", "What the mask costs", "long_rows",
        "64 chats decode in one row, with a dense boolean mask. Each has about 1,000 tokens in the cache, and each new "
        "token sees all of its own. What share of the scores is computed and thrown away?",
        ("About 98%: each query is scored against all caches", "There are 64 queries and 64 × 1,001 keys. A query may "
         "see one in 64 of them, and the product computes all. A kernel that gets the lengths skips the rest."),
        ("About 50%: half of the cells are in the future", "A decode is the last token of its sequence: none of "
         "its own keys is in the future."),
        ("None: a decode may attend to all tokens in its cache", "To those of its own sequence. But the row's keys are "
         "those of all sequences."),
        ("About 2%: the tokens of a chat that isn't its own", "One chat of 64 is its own; the other 63 are the ones "
         "that are hidden."),
    ),
    design(
        "04", "Prove it", "how_to_prove_a_mask",
        "A test packs two copies of one prompt into a row of GPT-2, and compares the logits of each copy with those of "
        "the prompt alone. Which mistake does it miss?",
        ("The mask has no sequence rule at all", "Each token then sees both copies of all its keys. Every weight is "
         "halved and every value comes twice, so the result is the same. Pack different prompts."),
        ("The mask has no causal rule at all", "Then tokens see later tokens of the prompt, and the logits of a prompt "
         "alone change."),
        ("The mask hides a token from itself", "Then its own key and value are missing, and the first token has "
         "nothing to see."),
        ("The positions of the second copy don't restart", "GPT-2 adds a vector for each position, so the second "
         "copy's logits change."),
    ),
]  # fmt: skip
