"""The quiz of lesson 10."""

SLIPS = """
10.a 33: All 33 known tokens are computed now, but the last one for the first time.
10.a 20: The keys of the prompt are lost, too.
10.a 13: The keys of the answer are lost, too.
"""

QUIZ = """
A sequence with a prompt of 100 tokens was preempted after 13 tokens of its answer, and its cache was dropped. It is
admitted again, alone, with a budget of 64 tokens per step. In which step is its next token chosen?
- In the first. => 113 known tokens have to be computed, and a step has room for 64.
+ In the second. => 64 of its 113 known tokens, then the other 49: it doesn't matter which belong to the answer.
- In the third: two for the prompt, one for the answer so far.
  A chunk doesn't end where the prompt does. The second one has 36 prompt tokens and 13 answer tokens.
- In the 15th: two for the prompt, then one for each answer token.
  That is how they were produced. But known tokens don't have to wait for each other: they go through the model
  together.

A step takes 3 ms on some GPU, and 100 µs more for each of its tokens. For the same requests, scheduler A needs 1,000
steps and computes 10,000 tokens twice; B needs 1,100 steps and computes none twice. Which one is done first?
+ B, although it needs more steps.
  100 steps take 0.3 s, and 10,000 tokens 1 s: each added step costs 30 tokens' time and saves 100.
- A, because a step reads all weights, however few tokens it computes.
  That is the 3 ms, as much as 30 tokens. But each step that B adds saves 100.
- Both at the same time: they send the same tokens.
  They send the same tokens in different numbers of steps, and each step has its base.

On some GPU, a victim of 512 tokens is swapped out and in in 2 ms. A step that prefills 512 tokens takes 17 ms, and one
that prefills 8,192 takes 26 ms. Why may recomputing the victim be the better choice?
+ The victim comes back in a step that runs anyway, and most of the 17 ms are what any step takes.
  What counts is how much longer 512 tokens make that step. 7,680 more tokens take 9 ms: about 1.2 µs per token, or 0.6
  ms for the victim.
- A recomputed cache is more exact than a copied one. => A copy has the same bits. The tokens are the same either way.
- The copies keep the GPU from computing anything else. => The 2 ms already assume that. They are still less than 17 ms.
- It can't be: 2 ms is less than 17 ms.
  The choice isn't between 2 and 17 ms. A swap adds its 2 ms, but recomputing doesn't add a whole step.
"""
