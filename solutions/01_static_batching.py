# %% [markdown]
"""
# 01 · Static batching

**How can several requests share one forward pass, and what does it cost that they begin and end together?**

75 minutes · difficulty: easy · routes: *ideas* (00–06), *serving* (00–03, 05, 09–12) · you need first: lesson 00 (prefill, decode step, KV cache)

You put requests of unequal length into one rectangle, and write the loop that continues all of them at once. It gives every request the
same tokens as if it were alone. Then you count what the rectangle computes for nothing, and who waits for whom.

Cells that say `raise NotImplementedError()` are yours. If you skip one, the cell after it hands out a working version.
"""

# %%
import random
from statistics import median
from time import perf_counter
from unittest.mock import patch

import torch
from transformers import DynamicCache

from lessons_lib.batching import (
    generate_one_by_one,
    greedy_with_cache,
    left_out,
    static_batching,
    static_generate,
    waves,
)
from lessons_lib.checks import check, hint, predict, progress, quiz, reveal, solution
from lessons_lib.measuring import MAX_NEW_TOKENS, NAMES, PROMPTS, STORIES, ledger, request_times
from lessons_lib.models import load_model, tiny_model
from lessons_lib.recording import watch_forwards
from lessons_lib.viz import Stepper
from lessons_lib.viz.batches import draw_padded_batch
from lessons_lib.viz.charts import bar_chart
from lessons_lib.viz.tables import Table
from lessons_lib.viz.timelines import draw_timeline

model, tokenizer = load_model(device="cpu")  # in float32: equal means equal to the last token
SIX = dict(prompts=PROMPTS, max_new_tokens=MAX_NEW_TOKENS, names=NAMES)
prompt_ids = [tokenizer(prompt).input_ids for prompt in PROMPTS]

# %% [markdown]
"""
## The problem: one at a time is slow for everyone

Here are the six stories of lesson 00, served one after the other. Each has the model to itself, so every forward pass after a prefill computes
one token.
"""

# %%
alone = generate_one_by_one(model, tokenizer, **SIX)
times = request_times(alone.trace, in_steps=True)
for story, answer in zip(STORIES, alone.outputs):
    text = tokenizer.decode(answer).replace("\n", " ")
    print(f"{story.name}  {len(answer):3} tokens, waits {times[story.name].admitted:3} steps | {text[:90]}")
print(f"\n{alone.trace.forward_calls} forward passes for {sum(map(len, alone.outputs))} tokens: one each")

# %% [markdown]
"""
F is last in line. Before its first token, the model makes a forward pass for every token of the five others.

Lesson 00 showed what a decode step is busy with: it reads all weights of the model from memory, to compute a single token. What if it
computed a token for eight requests while the weights are there?

> **batch**: several requests in the same forward pass, one row of the input tensor each. The weights are read once for all rows.
"""

# %% [markdown]
"""
Here is one decode step over batches of 1, 2, 4 and 8 rows. Each row has 64 tokens in the cache. Measured on the machine that ran this notebook:
"""

# %% tags=["measured"]
@torch.inference_mode()
def decode_ms(batch_size, cached=64, repeats=25):
    """Median time of one decode step, in milliseconds."""
    cache = DynamicCache(config=model.config)
    model(input_ids=torch.full((batch_size, cached), 5), past_key_values=cache)
    with watch_forwards(model) as passes:
        for _ in range(repeats):
            model(input_ids=torch.full((batch_size, 1), 5), past_key_values=cache)
    return 1000 * median(forward.seconds for forward in passes)

decode_ms(1)  # the first passes of a process are slower
measured = {size: decode_ms(size) for size in (1, 2, 4, 8)}
Table(
    ["rows", "ms a step", "against 1 row", "ms a token"],
    [[size, ms, f"{ms / measured[1]:.2f} ×", ms / size] for size, ms in measured.items()],
    caption="One decode step",
)

# %% [markdown]
"""
Compare the third column with the first. Were rows computed one after the other, eight rows would take 8 times as long as one. They take
less, because two things happen once a step however many rows there are: the weights are read, and Python starts hundreds of small
operations. The larger the model, the more the first one decides.

So we want many rows in every step. Two things stand in the way. The stories are not equally long at their beginning, and they are not equally long at
their end. This lesson takes the plainest way out of both.
"""

# %% [markdown]
"""
## The beginning: a rectangle

A tensor is a rectangle, and prompts are ragged. So the short ones are filled up.

> **ragged**: of rows that are not equally long.

> **padding**: tokens without meaning that fill the rows of a batch up to one length.

> **padding mask**: a tensor of the shape of the batch, 1 on tokens and 0 on padding. Attention gives no weight to what has a 0. Hugging Face calls it `attention_mask`.

Where does the padding go? The next token of a row is read off the logits of its last real token. New tokens are then appended on the right. If
the padding is on the left, the last real token of *every* row is in the last column, and the new ones fit right behind it.

**Exercise 01.1.** Write `pad_left`. It takes a list of prompts, each a list of ints, and the token to fill with. It returns two int64 tensors of
the same shape, `[rows, longest prompt]`: the tokens and the mask. For example:

    pad_left([[5], [6, 7]], pad_token_id=9)   →   tensor([[9, 5], [6, 7]]),  tensor([[0, 1], [1, 1]])

One trap: the padding token may also be a token of a prompt. In our model it is the end token. So find out what is padding from the lengths of the prompts, not
by comparing tokens.
"""

# %% exercise="01.1"
from lessons_lib.batching.static_batching import pad_left

# %% [markdown]
"""
Four stories in your rectangle, as `#` for a token and `.` for padding:
"""

# %%
four = [name for name in "ACDE"]
input_ids, attention_mask = pad_left([prompt_ids[NAMES.index(name)] for name in four], tokenizer.pad_token_id)
for name, line in zip(four, attention_mask.tolist()):
    print(name, "".join("#" if real else "." for real in line))
print(f"\n{attention_mask.numel()} cells computed in the prefill, {int(attention_mask.sum())} of them tokens")

# %% [markdown]
"""
Read the second row. C is the shortest prompt: mostly dots, then its few tokens at the right edge. All its dots go through every layer of the model as
the tokens do. The mask hides the result from the tokens; it saves no work.

Padding does something else as well: it pushes C's first token to the right. Alone, this token is at position 0. In the rectangle it is in a later *column*.
Left to itself, the model takes columns for positions. Which models mind that, you will see at the end; the loop shall work for all.

> **position ids**: for each token of the input, its place in its own sequence, counted from 0. The model uses them to tell which token comes before which.

**Exercise 01.2.** Write `positions_from_mask`. It takes the mask and returns an int64 tensor of the same shape. In each row, the first real token has
position 0, the next 1, and so on. For example:

    positions_from_mask(tensor([[0, 0, 1, 1], [1, 1, 1, 1]]))   →   tensor([[0, 0, 0, 1], [0, 1, 2, 3]])

What the padding gets does not matter, since nobody looks at it. But the model looks it up in a table, so it must be a position that exists: not -1.
A running sum helps: `tensor.cumsum(dim=1)`.
"""

# %% exercise="01.2"
from lessons_lib.batching.static_batching import positions_from_mask

# %%
position_ids = positions_from_mask(attention_mask)
tokens = [[tokenizer.decode([token]) for token in line] for line in input_ids.tolist()]
draw_padded_batch(four, tokens, attention_mask.tolist(), position_ids.tolist())

# %% [markdown]
"""
Look at the row of D: it is the longest of the four, so it has no padding, and its positions are its columns. In the other rows position 0 is where the
hatching ends. In the last column every row has its newest token, each at a position of its own.
"""

# %% [markdown]
"""
## The end: the batch barrier

Now the batch runs. Every forward pass gives each row one token. Some rows have their whole answer early. What happens to them? In static batching:
nothing. The rectangle stays as it is until its last row is done.

> **wave**: the requests that go through the model together in static batching. They begin in the same prefill and leave together.

> **static batching**: serving requests in waves of a fixed size. The next wave begins when the one before has left.

> **batch barrier**: the rule that nobody leaves a wave before its longest answer is done, and nobody enters.

How long does a wave take? We count steps, and a step is one forward pass here. The prefill gives each row its first token, so it counts as the
first step. An answer of n tokens needs n steps: the prefill and n - 1 decode steps.

Take four requests that want 20, 30, 40 and 60 tokens. In the picture, a row is a row of the batch (labelled *slot*: a place for one request), and a column is a step.
"""

# %%
lengths = [20, 30, 40, 60]
example = static_generate(model, tokenizer, [PROMPTS[0]] * 4, max_new_tokens=lengths, batch_size=4, names=["G", "H", "I", "J"])
draw_timeline(example.trace, title="One wave: answers of 20, 30, 40 and 60 tokens")

# %% [markdown]
"""
The dark frames in step 1 are the prefill. G has its last token in step 20;
from then on its row is hatched. The model computes it in every pass, and what comes out is thrown away. G's answer leaves in step 60, together with J's.

**Exercise 01.3.** Write `wave_steps`. It takes the lengths of the answers in order of arrival and the batch size, and returns a list with the steps
of each wave. `[20, 30, 40, 60]` at batch size 4 is one wave of 60 steps: `[60]`. At batch size 2 there are two waves, `[30, 60]`. The last wave may have
fewer requests than `batch_size`.

The helper `waves(items, batch_size)` cuts a list into waves. You may use it: `waves([20, 30, 40, 60, 10], 2)` gives `[[20, 30], [40, 60], [10]]`.
"""

# %% exercise="01.3"
from lessons_lib.batching.static_batching import wave_steps

# %%
steps = sum(wave_steps(lengths, batch_size=4))
print(f"waves of 4: {sum(lengths)} tokens in {steps} steps = {sum(lengths) / steps} tokens a step, of 4 possible")
for size in (1, 2, 4):
    steps = sum(wave_steps(lengths, size))
    print(f"batch size {size}: {steps:3} steps, {sum(lengths) / steps:.2f} tokens a step, {sum(lengths) / steps / size:.0%} of the rows' work is useful")

# %% [markdown]
"""
Larger batches take fewer steps. They also use less of each step. (The sum under the picture counts the tokens of the prompts too, so its share is
another one.)

## Predict

Now the six stories in waves of four: A to D first, then E and F. Their prompts have these lengths, and suppose that each answer takes all the
tokens that it asks for:
"""

# %%
Table(["request", "prompt tokens", "new tokens"], [[s.name, len(ids), s.max_new_tokens] for s, ids in zip(STORIES, prompt_ids)])

# %% [markdown]
"""
**01.a** How many forward passes are there, prefills included?

> **useful token**: a token that a request needed: one of its prompt, or a new token that is fed back to get the next one. Padding is computed and not useful, and so is every step of a row that has ended.

**01.b** A token is *computed* when its cell of the rectangle goes through the model: in the prefill every cell, in each later step one cell a row. How
many per cent of the computed tokens are useful? Give a number from 0 to 100.
"""

# %%
predict("01.a", ...)
predict("01.b", ...)

# %% [markdown]
"""
## Build: the loop

**Exercise 01.4.** Write `generate_wave`. It takes the model, the prompts of one wave, a list `max_tokens_each` with the most new tokens of each row, the padding token and the
end token. It returns a list with the new tokens of each row, one list of ints a row.

> **cap**: the most new tokens that a request may get. An answer ends at its cap or at the end token, whichever comes first.

It is the loop of lesson 00 with several rows. The model gets four things in each pass, and three of them change from pass to pass. Say the wave has two
prompts, of 3 and 5 tokens:

| pass | `input_ids` | `attention_mask` | `position_ids` | tokens in the cache before |
|---|---|---|---|---|
| prefill | `[2, 5]`, both prompts | `[2, 5]` | `[[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]` | 0 |
| decode step 1 | `[2, 1]`, the newest token of each row | `[2, 6]` | `[[3], [5]]` | 5 a row |
| decode step 2 | `[2, 1]` | `[2, 7]` | `[[4], [6]]` | 6 a row |

- **`input_ids`**: first the rectangle; then one column, each row's newest token. The cache has the rest.
- **`attention_mask`**: it covers what is in the cache *and* what is fed. New tokens are real, so every pass adds a column of ones. `torch.cat([...], dim=1)` puts columns together.
- **`position_ids`**: each row goes on from its own last position.
- **`past_key_values`**: one `DynamicCache(config=model.config)`, empty at first, the same in all passes. The model fills it.

The output has `.logits` of shape `[rows, tokens, vocabulary]`. `.logits[:, -1]` is the last column, and `.argmax(dim=-1)` takes the best token of each row.

Then ask each row whether it is still running. If so, append its token, and see whether that was its last: the end token, which belongs to the answer, or the
one that fills its cap. If not, leave its answer alone. It is still fed along, since the rectangle needs something there; any token will do. The loop ends
when no row is running.

An example: a model that continues the first prompt with 4, 8, 15, 16 and the second with 23, 42 and the end token 7 gives
`generate_wave(model, prompts, [3, 10], pad_token_id=0, eos_token_id=7)` → `[[4, 8, 15], [23, 42, 7]]`, in three passes.
"""

# %% exercise="01.4"
from lessons_lib.batching.static_batching import generate_wave

# %% [markdown]
"""
`static_generate` of the library cuts the requests into waves and calls your function for each. Step through the six stories:
"""

# %%
six = static_generate(model, tokenizer, **SIX, batch_size=4, generate_wave=generate_wave)
Stepper(lambda i: draw_timeline(six.trace, upto=i, title="The six stories in waves of four"), count=len(six.trace.steps), start=len(six.trace.steps) - 1)

# %% [markdown]
"""
Slot 0 is A's row: useful until A's last token, then hatched until C in slot 2 is done. Slot 3 is D's, which wants least and is hatched longest. The
narrow framed columns are the two prefills. They are wasteful too: padding is hatched like a row that has ended. The next cell counts both kinds. The second wave has two rows only; there
is nobody left to fill the others.
"""

# %%
reveal("01.a", six.trace.forward_calls, "forward passes")
reveal("01.b", 100 * six.trace.tokens_useful / six.trace.tokens_computed, "%")
print(f"computed {six.trace.tokens_computed}, useful {six.trace.tokens_useful}. For nothing:")
for number, step in enumerate(six.trace.steps, start=1):
    if step.rows[0].phase == "prefill":
        print(f"    prefill in step {number}: {sum(row.wasted for row in step.rows)} of {step.tokens_computed} cells are padding")
ended = [row.request for step in six.trace.steps for row in step.rows if row.phase == "finished"]
print(f"    {len(ended)} cells of rows that had ended: " + ", ".join(f"{name} {ended.count(name)}" for name in NAMES if name in ended))

# %% [markdown]
"""
## Prove: the batch changes nothing

No story may change because of who sits beside it. The oracle is Hugging Face `generate`, greedy, one request at a time. Your loop serves the same six
requests in waves of 2, 4 and 6, in which rows are padded differently.
"""

# %%
def oracle(ids, max_tokens):
    ids = torch.tensor([ids])
    return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=tokenizer.pad_token_id)[0, ids.shape[1] :].tolist()

expected = [oracle(ids, max_tokens) for ids, max_tokens in zip(prompt_ids, MAX_NEW_TOKENS)]
print("one at a time equals `generate`:", alone.outputs == expected)
for size in (2, 4, 6):
    outputs = static_generate(model, tokenizer, **SIX, batch_size=size, generate_wave=generate_wave).outputs
    same = sum(answer == wanted for answer, wanted in zip(outputs, expected))
    print(f"batch size {size}: {same} of 6 stories equal `generate`, token for token ({sum(map(len, outputs))} tokens)")

# %% [markdown]
"""
### What the rules are for

Now leave them out, one at a time. `left_out(model, name)` takes an argument out of every call of the model; the loop is yours, as it is. The last way pads on
the right and reads the last column all the same. This one runs the library's loop, not yours: `patch.object` puts `pad_right` in the place of the `pad_left` that it calls.
"""

# %%
def pad_right(prompt_ids, pad_token_id):
    """The same rectangle with every row's padding moved behind its tokens."""
    input_ids, mask = pad_left(prompt_ids, pad_token_id)
    shifts = (mask == 0).sum(dim=1).tolist()
    return tuple(torch.stack([row.roll(-by) for row, by in zip(tensor, shifts)]) for tensor in (input_ids, mask))

wave = (model, prompt_ids, MAX_NEW_TOKENS, tokenizer.pad_token_id, tokenizer.eos_token_id)
variants = {"as it should be": outputs}  # of the last turn above, a wave of six
with left_out(model, "attention_mask"):
    variants["no mask"] = generate_wave(*wave)
with left_out(model, "position_ids"):
    variants["no positions"] = generate_wave(*wave)
with patch.object(static_batching, "pad_left", pad_right):
    variants["padded right"] = static_batching.generate_wave(*wave)
for story, ids, *answers in zip(STORIES, prompt_ids, *variants.values()):
    print(f"{story.name}, {max(map(len, prompt_ids)) - len(ids)} cells of padding: ...{story.prompt[-40:]}")
    for how, answer in zip(variants, answers):
        text = "the same" if answer == answers[0] and answer is not answers[0] else tokenizer.decode(answer)[:80].replace("\n", " ")
        print(f"    {how:16}| {text}")

# %% [markdown]
"""
Row by row:

- **No mask.** The rows read their padding as if it were text. Every row that has padding answers something else; B is the longest prompt and has none. Here the padding token is the end
  token, and after an end a new story begins. C and E, short prompts behind much padding, go off into another story. The answers of A, D and F read well, though they are not the right ones: this mistake is easy to miss.
- **No positions.** What changed? Our model has *rotary* positions. It turns queries and keys by an angle that grows with the position, and attention then
  depends on the *difference* of two positions only. Without position ids the model counts columns. That shifts all tokens of a row by the same number, and
  no difference changes. The next cell looks closer.
- **Padded right.** The first new token is read off the last column. There a short row has an end token, not the last word of its prompt, so the first word is off, and the answer goes on from it:
  most rows begin a sentence anew, and D ends at once. (Padding on the right can be made to work. Lesson 02 does that.)

> **rotary positions**: a way to tell a model where tokens stand, by turning queries and keys by an angle that grows with the position. Attention then depends on the distance between tokens, not on where they are. Llama, Qwen and the bundled model have them.

> **absolute positions**: a way to tell a model where tokens stand, by adding a learnt vector for position 0, 1, 2, ... to each token. GPT-2 has them.
"""

# %%
rng = random.Random(0)
random_prompts = [[rng.randrange(1, 97) for _ in range(length)] for length in (2, 3, 5, 8, 13, 21, 34, 34)]

def rows_unchanged(tiny, *names):
    """Of eight rows, how many answer in a wave as they do alone when these arguments are left out."""
    with left_out(tiny, *names):
        together = generate_wave(tiny, random_prompts, [20] * 8, pad_token_id=0)
    return sum(greedy_with_cache(tiny, ids, 20) == answer for ids, answer in zip(random_prompts, together))

Table(
    ["tiny random model", "positions", "nothing left out", "no position_ids", "no attention_mask"],
    [
        [family, kind, *(f"{rows_unchanged(tiny_model(family), *names)} of 8" for names in ((), ("position_ids",), ("attention_mask",)))]
        for family, kind in (("gpt2", "absolute"), ("llama", "rotary"), ("qwen2", "rotary"))
    ],
    caption="Rows that answer as they do alone. Two of the eight have no padding.",
)

# %% [markdown]
"""
With absolute positions, wrong positions break every row that has padding. With rotary ones the answers stay, up to rounding. And the
mask is needed by all. So why pass positions to a rotary model? Because the same loop then serves every model, and because a row that is counted with its padding reaches
the end of the context sooner. From lesson 02 on, each row's positions also say where its keys lie in the cache.

> **context**: the tokens of one sequence that the model can look at, prompt and answer together. Its length has a limit: the model knows no positions beyond.
"""

# %% [markdown]
"""
## Measure

Who waits for whom? All six requests arrive at the same time. The table counts steps.

> **head-of-line blocking**: requests wait although there is work they could do, because what stands at the front of the line has not finished.
"""

# %%
times = request_times(six.trace, in_steps=True)
Table(
    ["request", "begins after step", "last token in step", "handed over after step", "held back, steps"],
    [[name, t.admitted, t.done, t.returned, t.held_back] for name, t in times.items()],
    caption="The six stories in waves of four",
)

# %% [markdown]
"""
D has its last token first and hands it over when C is done: that is the barrier. The last column is also how long a row of the wave had nothing to do. E and F wait the whole first wave, while
beside C the rows of A, B and D stood free for that many of its steps: that is head-of-line blocking. A request's time is decided by the longest request in its wave, and in the wave before.

Now the speed. Sixteen requests: the six prompts, drawn with a fixed seed, each with a cap of its own. Here are the caps in order of arrival:
"""

# %%
rng = random.Random(0)
many = [(rng.choice(PROMPTS), rng.choice((3, 6, 12, 24))) for _ in range(16)]
requests = dict(prompts=[prompt for prompt, _ in many], max_new_tokens=[max_tokens for _, max_tokens in many])
for wave in waves([max_tokens for _, max_tokens in many], 4):
    print(wave)

# %% [markdown]
"""
**Predict 01.c.** How many times faster than one at a time are waves of four, in answer tokens a second? You have what it takes. Alone, every token is a pass; `wave_steps` tells the passes
in waves of four (each line above is one wave); and the first table of this lesson says how much longer a pass over four rows takes than one over a single row. Suppose that all answers fill their caps.
"""

# %%
predict("01.c", ...)

# %% tags=["measured"]
ways = {1: lambda: generate_one_by_one(model, tokenizer, **requests)}
ways |= {size: lambda size=size: static_generate(model, tokenizer, **requests, batch_size=size, generate_wave=generate_wave) for size in (2, 4, 8)}
seconds, runs = {size: [] for size in ways}, {}
for _ in range(3):  # all ways in turn, three times, so that a slow moment hits all of them
    for size, serve in ways.items():
        started = perf_counter()
        runs[size] = serve()
        seconds[size].append(perf_counter() - started)
tokens, passes = sum(map(len, runs[1].outputs)), {size: run.trace.forward_calls for size, run in runs.items()}
speed = {size: tokens / median(seconds[size]) for size in ways}
a_pass = {size: median(seconds[size]) / passes[size] for size in ways}
reveal("01.c", speed[4] / speed[1], "times")
Table(
    ["batch size", "passes", "times fewer", "ms a pass", "times longer", "tokens/s", "speed"],
    [
        [size, passes[size], f"{passes[1] / passes[size]:.2f}", f"{1000 * a_pass[size]:.1f}", f"{a_pass[size] / a_pass[1]:.2f}", round(speed[size]), f"{speed[size] / speed[1]:.2f} ×"]
        for size in ways
    ],
    caption="Sixteen requests, median of three runs; compared with one at a time",
)

# %% tags=["measured"]
print(f"Four rows could at best divide the {passes[1]} passes by four. The barrier leaves {passes[4]}, {passes[1] / passes[4]:.2f} times fewer.")
print(f"A pass takes {a_pass[4] / a_pass[1]:.2f} times as long. Divide one by the other: {passes[1] / passes[4] / (a_pass[4] / a_pass[1]):.2f} times the speed.")

# %% [markdown]
"""
That is the whole account: fewer passes, divided by longer passes. Why is a pass longer than the first table says, if it is? Because prefills are among them, with all their padding, and because Python asks each row
whether it is done. On a small CPU the longer passes may eat up what the fewer passes give. On a machine where a second row is almost free, the speed comes close to the third column.

What do the rows that have ended cost, then? Not so much time: the pass has to be made for the others, and a row more or less changes it little. They cost *places*. In each of them another request could have
had its token in the same pass, and that is why the passes do not fall to a quarter. The bars count what was computed, with padding and ended rows hatched:
"""

# %%
print("same answers every way:", all(run.outputs == runs[1].outputs for run in runs.values()))
useful = [run.trace.tokens_useful for run in runs.values()]
wasted = [run.trace.tokens_computed - run.trace.tokens_useful for run in runs.values()]
for size, run in runs.items():
    trace = run.trace
    print(f"batch size {size}: {trace.forward_calls:3} forward passes, {trace.tokens_computed:5,} tokens computed, {trace.waste:.0%} of them for nothing")
bar_chart(
    [f"waves of {size}" for size in runs],
    {"useful": useful, "computed for nothing": wasted},
    waste=("computed for nothing",),
    ylabel="tokens",
    value_format="{:,.0f}",
    title="What sixteen requests compute",
    alt="Bars for waves of 1, 2, 4 and 8: useful tokens are " + str(useful[0]) + " each time; tokens computed for nothing are " + ", ".join(map(str, wasted)) + ".",
)

# %% [markdown]
"""
The useful tokens are the same in every run. The hatched ones grow: the more rows a wave has, the longer its longest prompt and its longest answer.

> **ledger**: the table of this course that shows, for the same six stories, what each way of serving them computes, stores and copies.

To serve the stories without a cache takes longer than to make the rest of the table, so that row is left out from here on.
"""

# %% tags=["measured"]
ledger(model, tokenizer, "01", with_cache_only=True)

# %% [markdown]
"""
Read the last row beside the one above it. There are fewer forward calls, and each of them is over several rows, so it takes longer. The last column is what is left: times fewer, divided by times longer. Barely more than half of the computed
tokens are useful. That by itself does not make the calls slower than those of four busy rows; it says how many more tokens the same calls could have given. The cache holds the padding and the ended rows too, so most of what it reserves is not used. And all of it is copied in each step, because a `DynamicCache` makes room for a new
column by writing the whole cache anew.
"""

# %% [markdown]
"""
## What production does

- **Hugging Face** `model.generate` on a padded batch is your loop. In `src/transformers/generation/utils.py`, `GenerationMixin._sample` keeps a tensor
  `unfinished_sequences`, feeds rows that have ended with the padding token, and stops when all have ended. The positions are `cumsum(-1) - 1` of the mask. It warns when it
  finds the padding on the right. One `max_new_tokens` holds for the whole batch.
- **Batchers in front of a model**, such as the dynamic batcher of NVIDIA Triton Inference Server (`max_queue_delay_microseconds` in a model's `config.pbtxt`), collect
  requests for a moment and send them off as one batch. For a model that answers in one pass, such as a classifier, this is a good way: there is no ragged end.
- **vLLM** has no waves. `Scheduler.schedule` in `vllm/v1/core/sched/scheduler.py` decides anew before every step which requests take part. Nor has it padding to the longest prompt:
  the tokens of all requests are laid end to end (lesson 05).
- **Sorting by length** puts similar requests into one wave. It helps where lengths are known, as in training. How long an answer will be is not known when it begins.
"""

# %% [markdown]
"""
## What is still wrong

Two numbers of the six stories, in waves of four:
"""

# %%
trace = six.trace
ended = sum(row.phase == "finished" for step in trace.steps for row in step.rows)
rows = sum(len(step.rows) for step in trace.steps)
print(f"{ended} of {rows} rows that were computed had ended: {ended / rows:.0%}")
waiting = [name for name in NAMES if times[name].admitted]
first_free = min(t.done for t in times.values())
print(f"{' and '.join(waiting)} began after step {times[waiting[0]].admitted}; the first row had nothing to do from step {first_free + 1} on")

# %% [markdown]
"""
A row that has ended is computed on, and a request that could take its place waits. What if a request left its row in the step after its last token, and
the next one came in at once? Then the rows of a batch would no longer be at the same place: one is in its prompt, another far into its answer. Lesson 02 builds that.

## Quiz
"""

# %%
quiz("01")

# %% [markdown]
"""
## References

- G.-I. Yu et al. (2022), *Orca: A Distributed Serving System for Transformer-Based Generative Models*, OSDI. Section 3 describes the barrier ("early-finished and late-joining requests"). https://www.usenix.org/conference/osdi22/presentation/yu
- R. Pope et al. (2022), *Efficiently Scaling Transformer Inference*. How batch size trades latency against cost. https://arxiv.org/abs/2211.05102
- J. Su et al. (2021), *RoFormer: Enhanced Transformer with Rotary Position Embedding*, section 3. https://arxiv.org/abs/2104.09864
- Hugging Face, *Generation with LLMs*, on padding side. https://huggingface.co/docs/transformers/llm_tutorial
- NVIDIA Triton Inference Server, *Batchers*. https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/batcher.html
"""
