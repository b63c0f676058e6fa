# %% [markdown]
"""
# 18 · Several tokens a step

![A packed row with guesses: which are kept, and which were computed for nothing](../lessons_lib/assets/openings/18.svg)

**A step takes about as long for five tokens as for one. So why compute only one?**

75 minutes · difficulty: medium · routes: serving · prerequisites: lesson 09 (the scheduler) and lesson 12 (drawing
tokens)

The second depends on the first. But it can be guessed, and checking a guess is cheap. You write a proposer that
guesses, the check that keeps right guesses, and the rule for two models that draw independently. Builds 1 and 2 don't
change an answer by a single token.
"""

# %% folded=true
import random
from functools import partial
from itertools import takewhile

import torch

from lessons_lib.checks import check, hint, predict, progress, quiz, reset, reveal, solution
from lessons_lib.engine import EngineConfig, LLMEngine, ModelRunner, SamplingParams
from lessons_lib.engine.draft_model import bundled_draft
from lessons_lib.engine.proposers import NgramTable, own_stories
from lessons_lib.engine.sampling import choose_tokens
from lessons_lib.engine.speculation import speculating
from lessons_lib.engine.verification import logits_of_row
from lessons_lib.kv_cache import BlockPool, blocks_for
from lessons_lib.measuring import STORIES, median_ms, recorded_swaps
from lessons_lib.measuring.published import recorded
from lessons_lib.models import load_model
from lessons_lib.scheduling import Sequence
from lessons_lib.scheduling.scheduler import SchedulerOutput
from lessons_lib.viz.batches.verified_pass import draw_verified_pass, recorded_verify
from lessons_lib.viz.charts import line_chart
from lessons_lib.viz.stepper import Stepper
from lessons_lib.viz.tables import Table

# %%
model, tokenizer = load_model(device="cpu")
END = frozenset({tokenizer.eos_token_id})
BLOCK = 16

# %% [markdown]
"""
## The problem: a step with one token for each reader

To decode one token, a step reads all weights of the model (lesson 00). Suppose that one reader had five tokens to
compute in that step, after 100 that are cached. **Guess first:** how many times as long would the step take?
"""

# %% tags=["measured"]
def step_ms(num_readers, counts):
    """Milliseconds of a step that computes so many tokens of each reader, for each count."""
    runner = ModelRunner(model, 7 * num_readers, BLOCK)
    readers = [Sequence(str(i), range(100, 206), 1, num_computed_tokens=100,
                        blocks=[*range(7 * i, 7 * i + 7)]) for i in range(num_readers)]
    outputs = [SchedulerOutput(dict.fromkeys(readers, count)) for count in counts]
    return median_ms([partial(runner.forward, output) for output in outputs], repeat=9)


times = [(num_readers, *step_ms(num_readers, (1, 5))) for num_readers in (1, 8, 64)]
Table(columns=["readers", "1 token each, ms", "5 tokens each, ms", "times"],
      rows=[[n, f"{one:.1f}", f"{five:.1f}", f"{five / one:.1f}"] for n, one, five in times],
      caption="A step with one token for each reader, and with five")

# %% [markdown]
"""
A small step has room: its weights are read anyway. The larger the step, the less is left. The guesses of build 1 bring
about 1.5 tokens a step, so they pay where it takes less than 1.5 times as long.

> **speculative decoding**: guess the next tokens with something cheap, compute all guesses in one pass, and keep
> those that the model itself would have drawn.

> **draft**: the guesses for one sequence in one step. What makes them is the **proposer**.

## The idea

Look at line A of the picture at the top. Its last token is *One*, and four guesses follow in the same row. As for a
prompt, the pass returns logits for what follows each token.

- After *One*, the model draws *day*. That is the first guess, so it's right.
- After *day*, it draws a comma: right again.
- After the comma, it draws *Lily*. The third guess was *she*, so it's wrong, and *Lily* takes its place.
- What follows *she* was computed from a text that doesn't exist.

One pass, three new tokens: two right guesses and the model's own. Even if every guess is wrong, there is one.

**18.a** Suppose that a guess is right with probability 0.5 if those before it are. How many tokens does a pass with four
guesses bring, on average?
"""

# %%
predict("18.a", ...)  # tokens

# %%
def expected_tokens(chance, most):
    return sum(chance**i for i in range(most + 1))  # the model's own, then guess after guess


reveal("18.a", expected_tokens(0.5, 4), unit="tokens", tolerance=0.02, how="Computed")
print("by number of guesses:", [expected_tokens(0.5, most) for most in range(6)])

# %% [markdown]
"""
Each further guess brings less. Even endless guesses bring only 2.

## Build 1: guess

What guesses well and costs nothing? Our model tells stories for small children, and they are alike: *Once upon a* goes
on with *time*. So we count which token follows which, in stories that the model itself has told.

> **n-gram**: n tokens in a row. Here, the first n - 1 are a context, and the last one is what followed it.
"""

# %%
stories = own_stories()
seen, hidden = stories[:800], stories[-20:]
print(f"{len(stories):,} stories, {sum(map(len, stories)):,} tokens. The first one begins:")
print(tokenizer.decode(stories[0][:40]))

# %% [markdown]
"""
**Exercise 18.1.** Write `ngram_guesser(texts, longest=4)`. It counts all n-grams of the texts, once (`texts` may be
an iterator), and returns a function. `guess(tokens, most)` returns a list of up to `most` guesses at how `tokens` goes
on.

- A guess is what most often followed the last tokens. The context is as long as possible: the last `longest` tokens if
  some text goes on from them, else one token fewer, down to a single one.
- On a tie, guess the token that followed first, in the order of the texts.
- Guesses count as tokens for those that follow them. Where no context is known, the list ends.
- A guess is a `Guess(token, chance)`. The chance is count / (total + 1), where total counts everything that
  followed this context: what was seen once isn't certain.
- An n-gram doesn't reach from one text into the next. `guess` must not read the texts again.

Example: the texts are [1, 2, 3], [9, 2, 4] and [9, 2, 4], and `longest` is 2. `guess([1, 2], 2)` is [Guess(3, 1/2)]:
(1, 2) was followed by 3, once, and nothing follows 3. `guess([7, 2], 1)` is [Guess(4, 2/4)]: (7, 2) is unknown, and 2
was followed by 3 once and by 4 twice.
"""

# %% exercise="18.1"
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from lessons_lib.engine.draft_lengths import Guess

from lessons_lib.engine.proposers import ngram_guesser

# %% [markdown]
"""
How good are your guesses? We replay twenty stories that the table hasn't seen, pass by pass:
"""

# %%
def tokens_a_pass(guess, texts, most):
    """How many tokens a pass would have brought, had the model told these texts."""
    num_passes = 0
    for text in texts:
        end = 1  # tokens so far
        while end < len(text):
            draft = [one.token for one in guess(text[:end], most)]
            pairs = zip(draft, text[end:])
            end += 1 + len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
            num_passes += 1
    return sum(len(text) - 1 for text in texts) / num_passes


guess = ngram_guesser(seen)
print("Once upon", [(tokenizer.decode([one.token]), round(one.chance, 2))
                    for one in guess(tokenizer("Once upon").input_ids, 4)])
for most in (0, 1, 2, 4, 8):
    print(f"up to {most} guesses: {tokens_a_pass(guess, hidden, most):.2f} tokens a pass")

# %% [markdown]
"""
A table that is built in seconds saves a third of the passes. These stories were drawn at temperature 1, so even the best
guess is often wrong.

## Build 2: verify

Now the check, for a whole batch. The row has each sequence's last token and its draft, one sequence after the other.
But what does "the model draws" mean at temperature 1, where each draw is random?

Remember the race of lesson 12. Each token gets a time, a random number divided by its probability, and the smallest
wins. The random numbers depend only on the seed of the request and the *place* in the answer. So after a given text,
the draw at place 7 is one fixed token, whether the pass computes one token or ten, alone or in a batch. (Up to
rounding: a pass of another shape may sum in another order. Here all answers are equal.)

> **coupled draws**: guesses are compared with what the model draws from noise that depends on seed and place alone.

Then nothing can change. A right guess *is* the token that the model would have drawn one pass later, and the model's
own draw replaces the first wrong one. So each token is that of the engine without guesses: greedy or drawn, for every
seed, whatever the proposer says.
"""

# %%
def draw(logits, sequence, place, params):
    """The token that the model draws at this place of the answer."""
    return choose_tokens(logits[None], [params], [ord(sequence.id)], [place]).item()

# %% [markdown]
"""
**Exercise 18.2.** Write `verify(drafts, logits, draw, pool)`, which keeps what a pass brings.

- `drafts` is a dict, sequence → its guesses, in the order of the row. There may be none: the first pass computes the
  whole prompt, and `logits` has only its last row.
- `logits` has a row for each token of the packed row: each sequence's last token, then its guesses.
- `draw(row, sequence, place)` takes one row of logits and returns the model's own token at this place of the answer,
  counted from 0.

Afterwards

- each sequence has its new tokens: those that the model draws, up to and including the first that isn't the guess in
  its place. Use `sequence.append_token(token)`, which also sets `finish_reason`; nothing is kept after the end of an
  answer;
- all its tokens but the newest count as computed: `num_computed_tokens = num_tokens - 1`;
- blocks (of `pool.block_size`) without a computed token are free: `pool.free(list)`. `sequence.blocks` is then a *new*
  list: the runner's block tables don't notice one that shrinks in place.

Nothing needs to be erased. What wrong guesses wrote to the cache is past the end of the text: no query reads it, and the
next pass overwrites it.

Example: blocks of 4. A has 3 + 1 tokens (prompt + answer) and the draft [7, 8, 9], so two blocks. The model draws 7, 6,
9, 5, at places 1 to 4. A gets 7 and 6. It has 6 tokens now, 5 are computed, and it keeps both blocks. Had the model
drawn 1 first, A would get only that, and the second block would be free: 4 computed tokens fill the first.
"""

# %% exercise="18.2"
from lessons_lib.engine.verification import verify

# %% [markdown]
"""
The loop around it is short: guess, allocate blocks, compute the row, verify.
"""

# %%
@torch.inference_mode()
def serve(verify, most, params, names="ABCDEF"):
    """The stories of these names. Returns (answers, number of passes)."""
    pool, runner = BlockPool(64, BLOCK), ModelRunner(model, 64, BLOCK)
    sequences = [Sequence(story.name, tokenizer(story.prompt).input_ids, story.max_new_tokens,
                          END) for story in STORIES if story.name in names]
    num_passes = 0
    while running := [each for each in sequences if not each.finish_reason]:
        drafts = {}
        for each in running:
            room = each.max_new_tokens - len(each.output_ids) - 1  # the pass brings one more
            draft = guess(each.token_ids, min(most, room)) if each.output_ids else []
            drafts[each] = [one.token for one in draft]
            needed = blocks_for(each.num_tokens + len(draft), BLOCK)
            each.blocks += pool.allocate(needed - len(each.blocks))
        verify(drafts, logits_of_row(runner, drafts), partial(draw, params=params), pool)
        for each in running:
            if each.finish_reason:
                pool.free(each.blocks)
        num_passes += 1
    assert not pool.used
    return [each.output_ids for each in sequences], num_passes


drawn = SamplingParams(temperature=1.0)
for name, params in (("greedy", SamplingParams()), ("drawn", drawn)):
    expected, without = serve(verify, 0, params)
    print(f"{name}, without guesses: {without} passes")
    answers, num_passes = serve(verify, 4, params)
    print(f"{name}, with: {num_passes} passes; the same answers: {answers == expected}")

# %% [markdown]
"""
Every token is the same. (The number of passes is that of the longest answer.)

Play it: three stories at temperature 1. Where a draft reaches into a new block and is wrong, the block becomes free.
"""

# %%
passes = []
serve(recorded_verify(verify, passes), 4, drawn, names="ACE")
Stepper(lambda i: draw_verified_pass(passes[i], i, lambda token: tokenizer.decode([token])),
        count=len(passes), start=1, still=1)

# %% [markdown]
"""
## Does it pay?

For one reader, a pass with guesses takes little longer and brings more. For many readers, it depends. On the GPU of
lesson 10's recording, a step takes a base time, and each token adds a little.
"""

# %%
recording = recorded_swaps()
first, last = recording.rows[0], recording.rows[-1]
per_token = (last["recompute_s"] - first["recompute_s"]) / (last["tokens"] - first["tokens"])
base = recording.step_s
print(f"{recording.provenance}: base {1000 * base:.1f} ms, and {1e6 * per_token:.0f} µs for "
      f"each token: the base is worth {base / per_token:.0f} tokens")

# %% [markdown]
"""
**18.b** Guesses are right with probability 0.5, and each reader gets four. From how many readers on is guessing a loss
on this GPU? Within 25 % is a hit. (18.a says how many tokens a pass brings. How many does it compute?)
"""

# %%
predict("18.b", ...)  # readers

# %%
def speedup(chance, most, num_readers):
    """Tokens per second with guesses, divided by those without."""
    with_guesses = base + per_token * num_readers * (1 + most)
    without = base + per_token * num_readers
    return expected_tokens(chance, most) * without / with_guesses


reveal("18.b", next(n for n in range(1, 999) if speedup(0.5, 4, n) < 1), unit="readers",
       tolerance=0.25, how="Computed")
readers = [1, *range(10, 301, 10)]
curves = {f"{most} guess{'es' * (most > 1)}": [speedup(0.5, most, n) for n in readers]
          for most in (1, 2, 4)}
told = "; ".join(f"{n}: {c[0]:.2f} for 1, {c[-1]:.2f} for 300" for n, c in curves.items())
line_chart(readers, curves, xlabel="readers", ylabel="speedup", title="Half are right",
           alt=f"Speedup against the number of readers, falling. {told}.")

# %% [markdown]
"""
The more readers, the fewer guesses pay. Half of the first guesses are right, and only one in sixteen of the fourth, but
each takes the time of a token. So a good engine decides in every step. Ours measures how long steps take, and compares
the `chance` of each guess with what became of it. Then it takes the surest guesses while each raises the tokens per second
(`lessons_lib/engine/draft_lengths.py`).

Your guesser in the real engine, with prompts, stop strings and everything else:
"""

# %% tags=["measured"]
def run_engine(num_readers, parts=None):
    """(answers, milliseconds, engine core) of so many stories, 60 tokens each."""
    prompts = [story.prompt for story in STORIES] * 6
    params = [SamplingParams(temperature=1.0, seed=i, max_tokens=60, ignore_eos=True)
              for i in range(num_readers)]
    with LLMEngine(model, tokenizer, EngineConfig(), parts=parts) as engine:
        started = engine.clock()
        outputs = engine.generate(prompts[:num_readers], params)
        milliseconds = 1000 * (engine.clock() - started)
    return [each.token_ids for each in outputs], milliseconds, engine.core


rows = []
for num_readers in (1, 32):
    expected, without_ms, _ = run_engine(num_readers)
    answers, with_ms, core = run_engine(num_readers, speculating(NgramTable(guess)))
    assert answers == expected
    rows.append([num_readers, f"{without_ms:.0f}", f"{with_ms:.0f}", core.num_draft_tokens,
                 f"{core.num_draft_tokens / num_readers:.0f}", core.num_accepted_tokens])
Table(["readers", "without, ms", "with guesses, ms", "guesses", "a reader", "right"], rows,
      "The engine, 60 tokens for each reader; all answers are the same")

# %% [markdown]
"""
With 32 readers, the engine computes fewer guesses for each.

## A smaller model that guesses

A table knows only what it has seen. Our small model has one layer, and was trained to say what the large one says. It
can draw with the large one's noise or with its own. Which is better?
"""

# %%
small = bundled_draft(model)
with torch.inference_mode():
    p, q = (torch.cat([each(torch.tensor([text])).logits[0] for text in hidden])
            for each in (model, small))
places = range(len(p))


def drawn_from(logits, seed):
    return choose_tokens(logits, [drawn] * len(places), [seed] * len(places), places)


own = drawn_from(p, seed=1)
same, other = ((drawn_from(q, seed) == own).float().mean() for seed in (1, 2))
print(f"of {len(p):,} guesses with the same noise, {same:.2f} are right; "
      f"with noise of its own, {other:.2f}")

# %% [markdown]
"""
With the same noise, both run the same race with slightly different odds, and mostly the same token wins.

On a GPU, recorded, with random weights: the draft is the first sixteenth of the layers. Lookup guesses what followed the
newest tokens when the text last had them.
"""

# %%
recording = recorded("h200_speculation")
print(recording.provenance)
for row in recording.rows:
    print(f"{row['shape']}, {row['kind']}, readers {row['readers']}, temperature "
          f"{row['temperature']:.0f}: {row['accepted']} of {row['drafted']} right, "
          f"{row['ratio']:.2f} times the rate")

# %% [markdown]
"""
A draft pays most where a step takes long. Where it doesn't pay, the engine soon stops asking.

## Build 3: accept or redraw

Not every engine can share its noise: a draft may run on another machine or in another library. With noise of its own
it's right much less often, as you saw: the two must draw the same by chance. A classical rule accepts more guesses
(Leviathan et al., Chen et al., 2023). It changes the tokens, but not their *distribution*.

A guess x comes from the draft with probability q(x), and should come with p(x).

- Where q(x) ≤ p(x), x doesn't come too often: accept it.
- Where q(x) > p(x), it does: accept it only with probability p(x) / q(x). Then x comes with q(x) · p(x) / q(x) = p(x).
- At the first refusal, draw another token and stop. Still missing is p(x) - q(x), of each token where that is above 0.
  So these differences are the weights.

**Exercise 18.3.** Write `accept_or_redraw(draft, draft_probs, probs, coin, choose)`. It returns the accepted guesses
and one more token.

- `draft` has k tokens; `draft_probs[i]` is q in place i, and `probs[i]` is p: lists with a probability for each token.
- `probs` has one more row, for the token after k accepted guesses.
- `coin(probability)` is True with this probability; `choose(weights)` returns a token, with a probability proportional
  to its weight. Use them for everything that is random.

Example: q = [0.5, 0.5], p = [0.2, 0.8], and the guess is 0. It's accepted with probability 0.4. Otherwise 1 comes: only
1 is missing. The guess 1 is always accepted. So 0 comes with probability 0.5 · 0.4 = 0.2.
"""

# %% exercise="18.3"
from collections.abc import Sequence as ListOf

from lessons_lib.engine.rejection_sampling import accept_or_redraw

# %% [markdown]
"""
The check tries every way the coins can fall, so it knows the exact probability of each result. A statistician draws
20,000 times and compares the counts with what p expects. Next to your rule is one that sounds right: after a refusal,
draw from p. Which tokens will come too often? Decide, then run.
"""

# %%
Q, P = [0.1, 0.4, 0.3, 0.15, 0.05], [0.3, 0.3, 0.1, 0.1, 0.2]
dice = random.Random(18)
coin = lambda probability: dice.random() < probability
choose = lambda weights: dice.choices(range(len(weights)), weights)[0]


def redraw_from_p(draft, draft_probs, probs, coin, choose):
    [x] = draft
    return [x, choose(P)] if coin(min(1.0, P[x] / Q[x])) else [choose(P)]


for name, rule in (("redraw from p", redraw_from_p), ("yours", accept_or_redraw)):
    results = [rule([choose(Q)], [Q], [P, P], coin, choose) for _ in range(20_000)]
    counts = Counter(result[0] for result in results)
    chi_square = sum((counts[x] - 20_000 * P[x]) ** 2 / (20_000 * P[x]) for x in range(5))
    print(f"{name}: {[round(counts[x] / 20_000, 2) for x in range(5)]}, "
          f"chi-square below 18.5: {chi_square < 18.5}")
print(f"p: {P}")
accepted = sum(len(result) == 2 for result in results) / len(results)
print(f"accepted by yours: {accepted:.2f}; sum of min(p, q): {sum(map(min, P, Q)):.2f}")

# %% [markdown]
"""
(With five tokens, chance alone brings chi-square above 18.5 once in 1,000 tests.)

The probability of accepting is the sum of min(p, q), what both distributions share. No rule can accept more without
changing the distribution. How much less do coupled draws accept, on the stories?
"""

# %%
shared = torch.minimum(p.softmax(-1), q.softmax(-1)).sum(-1).mean()
print(f"the rule accepts {shared:.2f} of the guesses; coupled draws {same:.2f}")

# %% [markdown]
"""
A little. In return no token changes, up to rounding: an answer doesn't depend on the proposer, the load, or the number
of guesses, so you can debug and cache it. That is why our engine couples its draws. (For a table, the two are equal: its
guess comes with q = 1, and both accept it with p(x).)

## What is still wrong

**Guesses cost memory.** A draft model has weights and a cache of its own, and each guess needs a slot.

**Some models can't go back.** Where a layer keeps a running state in place of keys and values, a wrong guess has
changed the state. Such models need a copy of it for each guess.

## Quiz
"""

# %%
quiz("18")

# %% [markdown]
"""
## References

- Y. Leviathan, M. Kalman, Y. Matias: *Fast Inference from Transformers via Speculative Decoding*, ICML 2023.
  <https://arxiv.org/abs/2211.17192>
- C. Chen et al.: *Accelerating LLM Decoding with Speculative Sampling*, 2023. <https://arxiv.org/abs/2302.01318>
- Y. Li et al.: *EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty*, ICML 2024.
  <https://arxiv.org/abs/2401.15077>
- A. Saxena: *Prompt Lookup Decoding*, 2023. <https://github.com/apoorvumang/prompt-lookup-decoding>
"""

# %% [markdown] folded=true
"""
## Further (optional)

None of this is part of its 75 minutes.
"""

# %% [markdown]
"""
### What production does

- **vLLM**: `vllm/v1/spec_decode/ngram_proposer.py` looks for the last tokens in the request's own text, which is good
  for answers that quote their prompt (our `NgramLookup`). `RejectionSampler` in `vllm/v1/sample/rejection_sampler.py`
  is your third exercise, as a Triton kernel; its words are *accepted*, *recovered* and *bonus* tokens.
- **EAGLE** guesses with a single layer that reads the large model's hidden states, so it needs few parameters:
  `vllm/v1/spec_decode/eagle.py`, and `python/sglang/srt/speculative/eagle_worker_v2.py` in SGLang.
- **MTP** (multi-token prediction) models are trained with such a layer: `vllm/model_executor/models/deepseek_mtp.py`, and
  `python/sglang/srt/models/deepseek_nextn.py`.
- **SGLang** also has a table of n-grams: `python/sglang/srt/speculative/ngram_worker.py`.

### Stretch: a better proposer

Longer contexts, more stories, other counts: beat your own table. The score is right guesses for each draft of up to
four, on stories that no table has seen. Change `my_guess`; it may use all stories but `hidden`.
"""

# %%
my_guess = ngram_guesser(seen, longest=4)  # change this
for name, each in (("contexts of up to 4 tokens", guess), ("yours", my_guess)):
    print(f"{name}: {tokens_a_pass(each, hidden, 4) - 1:.3f} right guesses for each draft")
