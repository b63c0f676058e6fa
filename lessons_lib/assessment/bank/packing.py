"""Questions on lesson 05: ragged packing."""

import random

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.assessment.runs import LETTERS, drawn_prompts, recorded
from lessons_lib.attention.packing import copied_tokens, pack
from lessons_lib.batching.ragged_batching import ragged_generate
from lessons_lib.batching.static_batching import pad_left
from lessons_lib.viz.batches import draw_packed_step


@item("05", "picture", "The idea")
def logits_index_in_picture(draw: random.Random) -> Asked:
    prompts, answers = [draw.randint(2, 4) for _ in range(3)], [draw.randint(2, 3), draw.randint(5, 7), 3]
    run = recorded(ragged_generate, drawn_prompts(draw, prompts), answers, max_num_seqs=2)
    step, after = run.packed[answers[0]], run.packed[answers[0] + 1]  # A has left: B decodes, and C's prompt joins
    if len(step.names) != 2 or step.names != after.names:
        raise Redraw
    right, keys = after.packed.logits_index.tolist(), int(after.packed.context_lens.sum())
    positions = after.packed.positions[after.packed.logits_index].tolist()
    return asked(
        "The picture shows one step of a packed run. In the next step, both requests go on. Which indices of its row "
        "give the next tokens, and how many keys does its mask have?",
        (f"{right} and {keys}", "Each request feeds one token, the one that it got in this step. All keys of this "
         "step are cached then, and two more come in."),
        [
            (f"{step.packed.logits_index.tolist()} and {keys}", "The prompt isn't fed again: its keys are cached."),
            (f"{right} and {keys - 2}", "The two new tokens are keys as well: each sees itself."),
            (f"{positions} and {keys}", "These are positions in the sequences, not indices in the row."),
            (f"{right} and {keys - len(step.packed.input_ids)}", "The tokens of this step are keys from now on."),
        ],
        lambda: draw_packed_step(step, LETTERS.decode),
    )  # fmt: skip


@item("05", "compute", "Build 1: the packed row")
def packed_arrays(draw: random.Random) -> Asked:
    new = [draw.randint(1, 6) for _ in range(3)]
    cached = [draw.randint(2, 15), draw.randint(2, 15), 0]
    packed = pack([[1] * count for count in new], cached)
    right, lens = packed.cu_seqlens_q.tolist(), packed.context_lens.tolist()
    if new == sorted(new):
        raise Redraw
    return asked(
        f"A packed row holds {new[0]}, {new[1]} and {new[2]} new tokens of sequences that have {cached[0]}, "
        f"{cached[1]} and {cached[2]} cached tokens. What are `cu_seqlens_q` and `context_lens`?",
        (f"{right} and {lens}", "Running sums of the new tokens from 0; and cached plus new tokens of each."),
        [
            (f"{right[1:]} and {lens}", "`cu_seqlens_q` begins with 0 and has one entry more than there are "
             "sequences."),
            (f"{right} and {cached}", "A context includes the tokens that are new in this pass."),
            (f"{[0, *new]} and {lens}", "Each entry is the sum of all lengths before it."),
        ],
    )  # fmt: skip


@item("05", "compute", "The six stories")
def copies_of_a_step(draw: random.Random) -> Asked:
    cached = [draw.randint(30, 200) for _ in range(3)]
    right = copied_tokens(pack([[7]] * 3, cached))
    return asked(
        f"Three requests decode, with {cached[0]}, {cached[1]} and {cached[2]} cached tokens. A step joins "
        "their caches, appends to the joined `DynamicCache`, and copies each request's part out of it. How many "
        "tokens' keys and values does it copy in all?",
        (right, "Joining copies the cached tokens, appending copies them into larger tensors, and splitting copies "
         "them once more, with the three new ones."),
        [
            (sum(cached), "That is the joining alone."),
            (2 * sum(cached) + 3, "That is joining and splitting. A `DynamicCache` that appends copies everything, "
             "too."),
            (3, "These are new. But the old ones are copied again and again."),
        ],
    )  # fmt: skip


@item("05", "compute", "The problem: what is left of the rectangle")
def padding_saved(draw: random.Random) -> Asked:
    lengths = [1, 1, 1, draw.randint(20, 60), draw.randint(5, 18)]
    _, rectangle = pad_left([[1] * length for length in lengths], 0)
    packed = pack([[1] * length for length in lengths], [9, 12, 4, 0, 0])
    right = rectangle.numel() - len(packed.input_ids)
    return asked(
        f"One pass has three decodes and prompts of {lengths[3]} and {lengths[4]} tokens. How many token positions "
        "does a packed row save, compared with a rectangle of all five?",
        (right, "The rectangle is five times the longest prompt; the row is as long as all new tokens together."),
        [
            (rectangle.numel(), "That is the whole rectangle. The row computes something, too."),
            (len(packed.input_ids), "That is the length of the packed row."),
            (3 * (lengths[3] - 1), "The shorter prompt is padded, too."),
            (right - 25, "Cached tokens aren't computed in this pass, in either form."),
        ],
    )


ITEMS = [
    logits_index_in_picture,
    packed_arrays,
    copies_of_a_step,
    padding_saved,
    bug(
        "05", "Build 1: the packed row", "index_of_the_logits",
        task="`pack` puts the new tokens of several sequences into one row.",
        code="""
def pack(new_tokens, cached_lens):
    row, positions, bounds = [], [], [0]
    for tokens, cached in zip(new_tokens, cached_lens):
        row += tokens
        end = cached + len(tokens)
        positions += list(range(cached, end))
        bounds.append(len(row))
    context_lens = [c + len(t) for c, t in zip(cached_lens, new_tokens)]
    logits_index = [bound - 1 for bound in bounds[1:]]
    return row, positions, bounds, context_lens, logits_index
""",
        line=9, wrong="logits_index = [length - 1 for length in context_lens]",
        why="Logits are indexed by the row, which holds only new tokens. Contexts count the cached ones, too.",
        innocent={
            5: "Where the sequence ends: its cached tokens and the new ones.",
            7: "Each bound is the length of the row so far, from 0: `cu_seqlens_q`.",
            8: "What a query may see: the cached tokens and the new ones.",
        },
        trial="""
assert pack([[7], [1, 2, 3]], [4, 0]) == ([7, 1, 2, 3], [4, 0, 1, 2], [0, 1, 4], [5, 3], [0, 3])
""",
    ),
    bug(
        "05", "Build 2: the pass", "scatter_in_order",
        task="`joined` is the cache of a packed batch after its forward pass, as a list of entries. `scatter` returns "
        "each sequence's own entries.",
        code="""
def scatter(joined, old_lens, new_lens):
    parts = []
    old_start, new_start = 0, sum(old_lens)
    for num_old, num_new in zip(old_lens, new_lens):
        old = joined[old_start : old_start + num_old]
        new = joined[new_start : new_start + num_new]
        parts.append(old + new)
        old_start += num_old
        new_start += num_new
    return parts
""",
        line=3, wrong="old_start, new_start = 0, old_lens[0]",
        why="The new entries don't follow the first sequence's old ones. They begin after the old ones of all.",
        innocent={
            6: "The new entries of all sequences lie one after another, as the old ones do.",
            7: "A sequence's tokens in order: the cached ones, then the new ones.",
            8: "The next sequence's old entries begin where this one's end.",
        },
        trial="""
joined = ["a0", "a1", "b0", "a2", "b1", "b2"]
assert scatter(joined, [2, 1], [1, 2]) == [["a0", "a1", "a2"], ["b0", "b1", "b2"]]
""",
    ),
    design(
        "05", "What is still wrong", "when_copies_dominate",
        "The packed loop serves 32 chats. As they grow to 4,000 tokens each, steps get slower and slower, although "
        "every step still computes 32 tokens. Which change goes to the root of it?",
        ("Leave keys and values where they are, and read them there", "Joining and splitting copies all cached tokens "
         "in each step. That's the next lesson: paged attention."),
        ("Pack fewer chats into a row, and so make more, shorter passes", "Each pass copies less, but all passes "
         "together copy as much, and weights are read more often."),
        ("Pad the row to a fixed length, so that the kernels run faster", "The row has 32 tokens. It isn't what grew."),
        ("Keep the joined cache, and add the new tokens at its end", "Then a chat's tokens are no longer adjacent, and "
         "when a chat leaves, its part leaves a gap."),
    ),
    design(
        "05", "Stretch: a long prompt in pieces", "prompt_in_pieces",
        "In the packed loop, a prompt of 6,000 tokens enters the row while 20 chats decode. Their users see a pause. "
        "What ends the pause, and still begins with the prompt now?",
        ("Put a few hundred prompt tokens into each row, beside the decodes", "Each step is then only a little longer, "
         "and every chat gets a token in it."),
        ("Compute the prompt in a pass of its own, before the next decodes", "The chats wait for that pass: the same "
         "pause in another place."),
        ("Queue the prompt until some of the chats have left the batch", "Then its user waits, and the pause comes "
         "later, for whichever chats are left."),
        ("Sort the row so that the decodes come first and the prompt last", "A pass returns when the whole row is "
         "computed, in whatever order."),
    ),
]  # fmt: skip
