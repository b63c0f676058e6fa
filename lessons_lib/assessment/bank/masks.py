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
def allowed_with_cache(draw: random.Random) -> Asked:
    cached, new = [draw.randint(4, 20), draw.randint(4, 20), 0], [1, 1, draw.randint(3, 8)]
    queries = tag_tokens(new, starts=cached)
    mask = block_diagonal_mask(queries, tag_tokens(cached).followed_by(queries))
    right = int(mask.sum())
    return asked(
        f"A and B have {cached[0]} and {cached[1]} tokens in the cache and decode one token each. C has none and adds "
        f"a prompt of {new[2]} tokens. How many cells of the mask are True?",
        (right, "A decode sees its cached tokens and itself; C has its staircase."),
        [
            (right - 2, "A new token sees its own key, too."),
            (mask.numel(), "That is every cell: queries times keys, of all sequences."),
            (sum(cached) + 2 + new[2] ** 2, "C's tokens must not see later ones."),
            (new[2] * (new[2] + 1) // 2 + 2, "The cached tokens of A and B are keys, and their new tokens see them."),
        ],
    )


@item("04", "compute", "The tags")
def tags_of_a_token(draw: random.Random) -> Asked:
    lengths, starts = [draw.randint(1, 5) for _ in range(4)], [draw.choice((0, draw.randint(3, 20))) for _ in range(4)]
    tags = tag_tokens(lengths, starts=starts)
    index = draw.randrange(2, sum(lengths))
    seq, position = int(tags.seq_ids[index]), int(tags.positions[index])
    if not starts[seq] or not seq:
        raise Redraw
    within = position - starts[seq]
    return asked(
        f"`tag_tokens({lengths}, starts={starts})`: which sequence id and position does the token at index {index} of "
        "the row get?",
        (f"{seq} and {position}", "Count the lengths up to this index, then count on from the sequence's start."),
        [
            (f"{seq} and {within}", "Its first tokens are in the cache: positions go on from `starts`."),
            (f"{seq + 1} and {position}", "Sequence ids count from 0."),
            (f"{seq} and {index}", "Positions belong to the sequence, not to the row."),
            (f"{seq} and {position + 1}", "The first new token has the position `starts`, not one more."),
        ],
    )


ITEMS = [
    dropped_rule_in_picture,
    allowed_cells,
    allowed_with_cache,
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
    bug(
        "04", "Further (optional)", "additive_of_a_mask",
        task="`attend` uses an additive mask: it is added to the scores before the softmax, and hides what is False. "
        "Some rows end in padding.",
        code="""
def attend(query, keys, values, mask):
    dtype = query.dtype
    hidden = torch.finfo(dtype).min
    zeros = torch.zeros(mask.shape, dtype=dtype)
    additive = zeros.masked_fill(~mask, hidden)
    scale = query.shape[-1] ** -0.5
    scores = query @ keys.T * scale
    weights = (scores + additive).softmax(dim=-1)
    return weights @ values
""",
        line=3, wrong='hidden = float("-inf")',
        why="A row of minus infinity has the softmax 0 / 0: NaN. The smallest finite number hides just as well.",
        innocent={
            5: "`~mask` is what must not be seen. The rest gets 0, which changes no score.",
            7: "Scaled products of each query with each key: [queries, keys].",
            8: "The softmax runs over the keys, the last dimension.",
        },
        setup="import torch",
        trial="""
torch.manual_seed(0)
q, k, v = torch.randn(3, 2, 4)
out = attend(q, k, v, torch.tensor([[True, False], [False, False]]))
assert torch.allclose(out[0], v[0]) and not out.isnan().any()
""",
    ),
    design(
        "04", "What the mask costs", "long_rows",
        "You pack 64 prompts of 500 tokens into one row and pass a dense boolean mask. It works, and it is slow. What "
        "is the main cost, and what would a production kernel do?",
        ("Scores between sequences, which are thrown away; it skips those blocks", "Of 32,000 × 32,000 cells, one in "
         "128 is allowed. Kernels for packed rows get the lengths and compute the diagonal blocks only."),
        ("Building the mask in Python for each layer; it is built once on the GPU", "Tags make the mask with three "
         "comparisons. Its cells are what costs, in every layer."),
        ("The mask's bytes, read again in each layer; it packs them into single bits", "They would be an eighth, but "
         "the scores of all cells are still computed: a whole product of two vectors for each."),
        ("The exponentials of hidden cells; it takes the softmax of allowed cells alone", "A cell costs a product "
         "with a key and one with a value. Next to these, an exponential is cheap."),
    ),
    design(
        "04", "Prove it", "how_to_prove_a_mask",
        "You have changed the mask code, and the model's text still reads well. Which test says most about whether "
        "packing is right?",
        ("Packed logits against separate runs, on a tiny random model", "Cross-talk changes a random model's logits at "
         "once, while a trained one may still write the same text."),
        ("The same text from the packed run, on the large trained model", "Small errors in the logits often leave the "
         "likeliest token as it is."),
        ("A mean loss over many packed texts that is lower than it was", "Cross-talk may even lower a loss: a token "
         "that sees more can guess better."),
        ("The number of True cells in the mask, against a known formula", "A mask may have the right number of cells "
         "in the wrong places."),
    ),
]  # fmt: skip
