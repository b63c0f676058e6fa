"""Questions on lesson 05: ragged packing."""

import random

from lessons_lib.assessment.question import Asked, Redraw, asked, bug, design, item
from lessons_lib.assessment.runs import LETTERS, drawn_prompts, recorded
from lessons_lib.attention.packing import copied_tokens, pack
from lessons_lib.batching.ragged_batching import ragged_generate
from lessons_lib.batching.static_batching import pad_left
from lessons_lib.viz.batches import draw_packed_step


@item("05", "picture", "The idea")
def next_row_in_picture(draw: random.Random) -> Asked:
    prompts, answers = [draw.randint(2, 4) for _ in range(3)], [draw.randint(2, 3), draw.randint(5, 7), 3]
    run = recorded(ragged_generate, drawn_prompts(draw, prompts), answers, max_num_seqs=2)
    step, after = run.packed[answers[0] - 1], run.packed[answers[0]]  # A leaves; then B decodes, and C's prompt joins
    if list(step.names) != ["A", "B"] or list(after.names) != ["B", "C"]:
        raise Redraw
    right, keys = after.packed.logits_index.tolist(), int(after.packed.context_lens.sum())
    return asked(
        "The picture shows one step of lesson 05's loop, with at most two requests in a row. A gets its last token in "
        f"this step, B goes on, and C waits with a prompt of {prompts[2]} tokens. Which indices of the next row give "
        "the next tokens, and how many keys does its mask have?",
        (f"{right} and {keys}", "A and its keys are gone. B feeds one token, and C, which is admitted last, its whole "
         "prompt behind it: the last token of each gives the next one."),
        [
            (f"{[prompts[2] - 1, prompts[2]]} and {keys}", "There are no slots: the row is in order of admission, so B "
             "comes first."),
            (f"{right} and {keys + int(step.packed.context_lens[0])}", "A's cache is dropped when it has its last "
             "token. It isn't joined any more."),
            (f"{[0]} and {keys - prompts[2]}", "The loop fills the batch before each pass, so C joins the next row."),
            (f"{right} and {keys - 1}", "B's new token is a key as well: it sees itself."),
        ],
        lambda: draw_packed_step(step, LETTERS.decode),
    )  # fmt: skip


@item("05", "compute", "Build 1: the packed row")
def packed_arrays(draw: random.Random) -> Asked:
    new = [draw.randint(1, 6) for _ in range(3)]
    cached = [draw.randint(2, 15), draw.randint(2, 15), 0]
    packed = pack([[1] * count for count in new], cached)
    right, lens = packed.cu_seqlens_q.tolist(), packed.context_lens.tolist()
    both = pack([[1] * length for length in lens], [0, 0, 0]).cu_seqlens_q.tolist()
    return asked(
        f"A packed row holds {new[0]}, {new[1]} and {new[2]} new tokens of sequences that have {cached[0]}, "
        f"{cached[1]} and {cached[2]} cached tokens. What are `cu_seqlens_q` and `context_lens`?",
        (f"{right} and {lens}", "Running sums of the new tokens from 0; and cached plus new tokens of each."),
        [
            (f"{right} and {cached}", "A context includes the tokens that are new in this pass."),
            (f"{both} and {lens}", "`cu_seqlens_q` says where each sequence begins in the row, which has new tokens "
             "only. The `q` is for queries."),
            (f"{both} and {cached}", "The bounds are those of the new tokens in the row, and a context includes them."),
        ],
    )  # fmt: skip


@item("05", "compute", "The six stories")
def copies_of_a_step(draw: random.Random) -> Asked:
    cached = [draw.randint(30, 200) for _ in range(3)]
    right = copied_tokens(pack([[7]] * 3, cached))
    return asked(
        f"Three requests decode, with {cached[0]}, {cached[1]} and {cached[2]} cached tokens. A step joins "
        "their caches, appends to the joined `DynamicCache`, and copies each request's part out of it. About how "
        "many tokens' keys and values does it copy in all?",
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
    lengths, cached = [1, 1, 1, draw.randint(20, 60), draw.randint(5, 18)], [draw.randint(10, 90) for _ in range(3)]
    _, rectangle = pad_left([[1] * length for length in lengths], 0)
    packed = pack([[1] * length for length in lengths], [*cached, 0, 0])
    right, contexts = rectangle.numel() - len(packed.input_ids), packed.context_lens.tolist()
    uneven = sum(max(contexts) - context for context in contexts)
    return asked(
        f"One pass has three decodes, with {', '.join(map(str, cached))} cached tokens, and prompts of {lengths[3]} "
        f"and {lengths[4]} tokens. How many token positions fewer does a packed row compute than a rectangle of all "
        "five, in this pass, and in the next one, if all go on and none joins?",
        (f"{right} and 0", "The rectangle is five times the longest prompt; the row has the new tokens only. In the "
         "next pass all five feed one token each, and five rows of one are the same."),
        [
            (f"{right} and {uneven}", "Cached tokens aren't computed again, in either form, however unequal they are."),
            (f"{right} and {right}", "The prompts are in the cache then, and each request feeds one token."),
            (f"{3 * (lengths[3] - 1)} and 0", "The shorter prompt is padded, too."),
        ],
    )  # fmt: skip


ITEMS = [
    next_row_in_picture,
    packed_arrays,
    copies_of_a_step,
    padding_saved,
    bug(
        "05", "Build 1: the packed row", "lengths_of_a_row",
        task="`pack` puts what isn't computed yet of several requests into one row, and describes it as lesson 05's "
        "`PackedBatch` does.",
        code="""
def pack(requests):
    row, positions, bounds, context_lens = [], [], [0], []
    for request in requests:
        tokens = request["prompt"] + request["output"]
        start = request["computed"]
        row += tokens[start:]
        positions += range(start, len(tokens))
        bounds.append(len(row))
        context_lens.append(len(tokens))
    logits_index = [bound - 1 for bound in bounds[1:]]
    return row, positions, bounds, context_lens, logits_index
""",
        line=9, wrong="context_lens.append(start)",
        why="A context is what the sequence has after this pass, cached and new: a new token attends to itself and to "
        "the new ones before it. Kernels read keys up to this length.",
        innocent={
            6: "A decode's newest token is chosen and not computed. So this is one token, or a whole prompt.",
            7: "Positions count from the start of each sequence, and go on after its computed tokens.",
            10: "Logits are indexed by the row, and the last new token of each sequence gives the next one.",
        },
        trial="""
requests = [dict(prompt=[5, 6, 8], output=[9, 7], computed=4), dict(prompt=[1, 2, 3], output=[], computed=0)]
assert pack(requests) == ([7, 1, 2, 3], [4, 0, 1, 2], [0, 1, 4], [5, 3], [0, 3])
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
]  # fmt: skip
