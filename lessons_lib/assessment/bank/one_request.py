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
    later = draw.randint(3, 5)
    steps = record_steps(tiny_model(), LETTERS, prompt, later + 2)
    seen = steps[later].cached_after
    return asked(
        f"The picture shows the first step of a request. In step {later + 1}, how many tokens are fed, and how many "
        "keys does the attention of the newest token read, its own included?",
        (f"1 and {seen}", f"The prefill stores {len(prompt)} keys, and each decode step feeds one token and stores its "
         "key. The token that a step chooses is fed in the next one."),
        [
            (f"1 and {seen + 1}", "That counts the token that this step chooses. It's fed in the next step."),
            (f"{seen} and {seen}", "That is a step without a cache: it feeds the whole text."),
            (f"1 and {seen - 1}", "That is what the cache holds when the step begins. The step adds a key."),
        ],
        lambda: draw_cache_growth(steps, 0, name="A"),
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
        "00", "Build: the loop with a cache", "second_turn_of_a_chat",
        task="`reply` writes `limit` tokens of answer to a new turn of a chat, greedily. `history` has all tokens of "
        "the chat. The cache is kept from turn to turn. `forward(tokens, start, cache)` feeds tokens, the first one at "
        "position `start`.",
        code="""
def reply(history, turn, cache, limit):
    history += turn
    fed = history[len(cache):]
    for _ in range(limit):
        start = len(cache)
        logits, cache = forward(fed, start, cache)
        newest = best(logits)
        history.append(newest)
        fed = [newest]
    return cache
""",
        line=3, wrong="fed = list(turn)",
        why="The last token of the turn before was chosen and never fed, so its key isn't in the cache. It has to be "
        "fed now, before the new turn: all that the cache doesn't hold.",
        innocent={
            5: "The cache holds the tokens at positions 0 to len(cache) - 1, so the next one is len(cache).",
            8: "The answer is a part of the chat, and the next turn follows it.",
            9: "Within an answer, only the newest token isn't in the cache.",
        },
        setup="""
def forward(tokens, start, cache):
    cache = cache + [(start + index) * token for index, token in enumerate(tokens)]
    return sum(cache), cache
def best(logits):
    return 1 + logits % 7
""",
        trial="""
history, cache, text = [], [], []
for turn in ([3, 1, 4], [1, 5], [9]):
    cache = reply(history, turn, cache, 3)
    text += turn
    for _ in range(3):
        text.append(best(forward(text, 0, [])[0]))
assert history == text
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
        "00", "Measure: what limits a pass", "which_regime",
        "A GPU keeps memory and arithmetic both busy at 300 operations per byte. It serves a bfloat16 model to one "
        "user at a time, with prompts of 60 to 100 tokens. You can have a GPU with twice the bandwidth, or one with "
        "twice the arithmetic. Which passes gain from which?",
        ("From the bandwidth: prefill and decode alike", "A pass over n tokens does about n operations per byte of "
         "bfloat16 weights: 1 in a decode step and up to 100 in this prefill. Both are below 300."),
        ("From the bandwidth: decode, and from the arithmetic: prefill", "That is so for long prompts. With up to 100 "
         "tokens, the prefill still waits for the weights."),
        ("From the arithmetic: prefill and decode", "Both do less than 300 operations per byte, so the arithmetic "
         "units wait already."),
        ("From the arithmetic: prefill; from neither of the two: decode", "A decode step reads all weights for one "
         "token. It takes as long as the reading."),
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
