"""The quiz of lesson 12."""

SLIPS = """
12.a 4: A has 17 tokens by then: its second block was allocated for the step that failed.
12.a 3: A and D have more than 16 tokens, so they have two blocks each.
12.a 0: `running.clear()` forgets the sequences, not their blocks.
12.a 27: That many are free.
12.a 32: Only the blocks of the three sequences are lost.
"""

QUIZ = """
Someone moves `count_launched` into the `try` of `run_step`. Because of a bug, it raises an error halfway. What happens
now?
- The tokens that it has counted stay counted, although the cache doesn't have them.
  After a failed step everything is made again from the requests' tokens, whatever was counted.
+ The requests of the step end, though they aren't to blame, and the bug looks like a failure of the model.
  An error of the model can come from what a request asks for. A bug of the engine must come out, or it ends innocent
  requests in one step after the other.
- Each request of the step gets its token twice.
  No token has been appended yet: the core does that once the step is whole.
- The same step is tried again, forever. => The requests of the step have ended, so the next step has others.

A colleague makes the random number of a token `hash(hash(seed + position) + token id)`, with a perfect hash. Your users
choose seeds 1, 2, 3, … Do you take the change?
- Yes: with a perfect hash, every argument gives an unrelated number.
  Equal arguments give equal numbers, and 8 + 0 is 7 + 1.
+ No: seed 8 draws with the numbers of seed 7, each one position earlier.
  `seed + position` is the same for both. The engine hashes the seed first, then the result plus the position.
- No: within one answer, the same tokens would be lucky at every position.
  That would happen without the position. Here each position has other numbers.
- No: an answer would change when other requests are in the batch.
  There is still no state, so other requests don't matter.

B has 12 tokens of its answer when Ctrl-C comes. What does the engine compute again?
- Nothing of B: its blocks are still in its block table.
  It drops all blocks. After an interrupt at any line, no table can be trusted.
- Only the token that was being drawn.
  That token needs the keys and values of all tokens before it, and they are gone.
- B's whole answer: all 12 tokens are drawn again, with the same seed.
  The request has its tokens, and they are never drawn twice. Their readers have seen them.
+ The keys and values of B's prompt and of its 12 tokens; none of these tokens is drawn again.
  As after a preemption: everything but the tokens can be computed from the tokens.
"""
