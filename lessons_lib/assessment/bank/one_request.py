"""Questions on lesson 00: one request, prefill, decode, the KV cache."""

import random
from types import SimpleNamespace

from lessons_lib.assessment.question import Asked, asked, bug, design, item
from lessons_lib.assessment.runs import LETTERS, drawn_prompts
from lessons_lib.models import cache_bytes_per_token, tiny_model
from lessons_lib.recording import record_steps
from lessons_lib.viz.cache import draw_cache_growth


@item("00", "picture", "Build: one decode step")
def step_of_one_request(draw: random.Random) -> Asked:
    (prompt,) = drawn_prompts(draw, [draw.randint(4, 8)])
    index, later = draw.randint(1, 3), draw.randint(2, 3)
    steps = record_steps(tiny_model(), LETTERS, prompt, index + later + 2)
    before = steps[index + later].cached_before
    return asked(
        f"The picture shows one step of a request. Look {later} steps ahead: how many tokens does the cache hold when "
        "that step begins, and how many would the step feed without a cache?",
        (f"{before} and {before + 1}", "Each step until then stores one more token. Without a cache, a step feeds all "
         "of them and the newest token, which isn't stored yet."),
        [
            (f"{before + 1} and {before + 2}", "That is what the cache holds when that step is done."),
            (f"{before} and 1", "One token is enough with a cache. Without it, nothing of the text is stored."),
            (f"{before} and {before}", "The newest token isn't in the cache yet. It's part of the text, too."),
            (f"{before - 1} and {before}", "The step that is shown stores a token as well."),
        ],
        lambda: draw_cache_growth(steps, index, name="A"),
    )  # fmt: skip


@item("00", "compute", "Build: without a cache")
def positions_without_cache(draw: random.Random) -> Asked:
    prompt, new = draw.randint(8, 40), draw.randint(6, 20)
    right = sum(prompt + index for index in range(new))
    return asked(
        f"A prompt has {prompt} tokens. Greedy decoding without a cache writes {new} new tokens and stops at this "
        "limit. How many token positions does the model compute in all?",
        (right, "Pass i feeds the prompt and the i tokens chosen before it, from i = 0."),
        [
            (right + prompt + new, "That is one pass too many: nothing is fed after the last token was chosen."),
            (prompt + new - 1, "That is with a cache: each position computed once."),
            (prompt * new, "The text grows: every pass is one token longer than the one before it."),
            (right + new, "That adds the chosen token to each pass. A pass feeds what was known before it."),
        ],
    )


@item("00", "compute", "What the cache costs")
def cache_bytes(draw: random.Random) -> Asked:
    layers, groups, kv_heads, head = (draw.choice(of) for of in ((16, 24, 32), (2, 4, 8), (2, 4, 8), (64, 128)))
    heads, tokens = groups * kv_heads, draw.choice((512, 1024, 2048))
    config = SimpleNamespace(
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head,
        hidden_size=heads * head,
    )  # fmt: skip
    right = cache_bytes_per_token(config, 2) * tokens // 1024  # type: ignore[arg-type]
    return asked(
        f"A model has {layers} layers, {heads} query heads, {kv_heads} KV heads and heads of size {head}. Its cache is "
        f"bfloat16. How many KiB does the cache of {tokens:,} tokens take?",
        (right, "2 (keys and values) × layers × KV heads × head size × 2 bytes, for each token."),
        [
            (right * groups, "That counts query heads. Queries aren't kept, only keys and values of KV heads."),
            (right // 2, "That is the keys alone. The values take as much again."),
            (right * 2, "That is float32. A bfloat16 element takes 2 bytes."),
        ],
    )


@item("00", "compute", "Build: the loop with a cache")
def passes_to_finish(draw: random.Random) -> Asked:
    prompt, new = draw.randint(20, 90), draw.randint(10, 50)
    held = prompt + new - 1
    return asked(
        f"With a cache, a prompt of {prompt} tokens gets exactly {new} new ones. How many forward passes does that "
        "take, and how many tokens does the cache hold at the end?",
        (f"{new} and {held}", "The prefill gives the first new token; the last one is chosen but never fed."),
        [
            (f"{new + 1} and {held + 1}", "The prefill already gives a token. And a pass over the last one is wasted."),
            (f"{new} and {held + 1}", "No pass reads the last token, so its keys and values are never computed."),
            (f"{held} and {held}", "The prompt goes through the model in one pass, not one per token."),
        ],
    )


ITEMS = [
    step_of_one_request,
    positions_without_cache,
    cache_bytes,
    passes_to_finish,
    bug(
        "00", "Build: the loop with a cache", "position_of_the_decode_step",
        task="`generate` decodes greedily with a cache. `forward(tokens, start, cache)` feeds tokens, the first one "
        "at position `start`.",
        code="""
def generate(prompt, limit):
    logits, cache = forward(prompt, 0, [])
    answer = [best(logits)]
    while len(answer) < limit:
        newest = answer[-1:]
        start = len(prompt) + len(answer) - 1
        logits, cache = forward(newest, start, cache)
        answer.append(best(logits))
    return answer
""",
        line=6, wrong="start = len(prompt) + len(answer)",
        why="The newest token of the answer isn't in the cache yet; it is what this step feeds. So the cache holds "
        "`len(prompt) + len(answer) - 1` tokens, and that is the position of the next one.",
        innocent={
            2: "The prefill feeds the whole prompt, from position 0, into an empty cache.",
            4: "With `limit` tokens the answer is done. Its last token is never fed.",
            5: "The keys and values of all other tokens are in the cache already.",
        },
        setup="""
def forward(tokens, start, cache):
    cache = cache + [(start + index) * token for index, token in enumerate(tokens)]
    return sum(cache), cache
def best(logits):
    return 1 + logits % 7
""",
        trial="""
def recomputed(prompt, limit):
    answer = []
    while len(answer) < limit:
        answer.append(best(forward(prompt + answer, 0, [])[0]))
    return answer
assert generate([3, 1, 4], 6) == recomputed([3, 1, 4], 6) and len(generate([3], 1)) == 1
""",
    ),
    bug(
        "00", "Attention, on four tokens", "scores_with_a_cache",
        task="`attend` computes the attention of the newest token. `keys` and `values` hold the earlier tokens and "
        "get the new one.",
        code="""
def attend(x, W_q, W_k, W_v, keys, values):
    query = x @ W_q
    keys.append(x @ W_k)
    values.append(x @ W_v)
    k = torch.stack(keys)
    v = torch.stack(values)
    scores = k @ query
    scores = scores / len(query) ** 0.5
    weights = scores.softmax(dim=0)
    return weights @ v
""",
        line=8, wrong="scores = scores / len(keys) ** 0.5",
        why="The scale is the root of the head size, the length of a query. It doesn't grow with the text.",
        innocent={
            3: "A token sees itself, so its own key has to be there before the scores are computed.",
            7: "One score for each key: the product of that key with the one query.",
            9: "The softmax runs over the keys, and there is one row of scores. No mask: the newest token sees all.",
        },
        setup="import torch",
        trial="""
torch.manual_seed(0)
x, (q, k, v) = torch.randn(5, 6), torch.randn(3, 6, 4)
keys, values = [], []
rows = torch.stack([attend(one, q, k, v, keys, values) for one in x])
mask = torch.ones(5, 5).triu(1).bool()
whole = ((x @ q) @ (x @ k).T / 2).masked_fill(mask, float("-inf")).softmax(1) @ (x @ v)
assert torch.allclose(rows, whole, atol=1e-5)
""",
    ),
    design(
        "00", "Measure: two regimes", "which_regime",
        "A GPU computes 1,000 operations in the time it takes to read one byte of memory. You serve one user at a time "
        "with prompts of 8,000 tokens and one-word answers. Where does the time go, and what should you look at first?",
        ("Prefill: a faster matrix product", "Each weight is used for every prompt token, so operations dominate."),
        ("Decode: fewer bytes per weight", "There is hardly any decode step when an answer has one word."),
        ("The cache: fewer KV heads", "One prompt's cache is small next to the work of computing the prompt."),
        ("The loop: fewer forward passes", "A one-word answer takes one or two passes. None can be saved."),
    ),
    design(
        "00", "The idea: keep the keys and values", "what_to_keep",
        "To save memory, a colleague caches the vectors that enter each layer instead of keys and values. What is the "
        "price?",
        ("Every step multiplies all old tokens again", "The tokens stay right, but the work that the cache was to save "
         "comes back as matrix products of every earlier token."),
        ("The answers change, as keys depend on later tokens", "A causal model's vectors don't depend on later tokens, "
         "in any layer, so the keys come out the same."),
        ("The prompt has to be prefilled before every token", "The kept vectors are the result of the layers below; "
         "only keys and values of each layer are missing."),
        ("Twice the memory, as both vectors and keys are kept", "The keys are made for one step and dropped. Only "
         "the vectors stay."),
    ),
]  # fmt: skip
