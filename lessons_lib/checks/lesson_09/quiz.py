"""The quiz of lesson 09."""

SLIPS = """
09.a 25: That's all that E wants. A and C get a token each, and B and D are served before E.
09.a 13: B and D get 30 and 21. A and C take a token each, too.
09.a 0: A and C get 1 each, B 30 and D 21: that leaves some of the 64 for E.
09.b 400: 8 ms / 20 µs. But 5 ms of each step are paid before the first token: 3 ms are left.
09.c 22: That counts 32 tokens each, prompt and answer. The promise is for prompt + `max_tokens` − 1.
"""

QUIZ = """
A step costs 4 ms, and 10 µs for each token. 20 sequences decode, and a prompt of 900 tokens arrives. The budget is the
largest with which no step takes longer than 7 ms. After how many steps does the prompt's first token come?
- 1 => 920 tokens would take 13.2 ms. A budget of 300 takes 7.
- 3 => 900 / 300 forgets the decodes: they take 20 tokens of each step.
+ 4 => 7 ms leave 3 ms for tokens: 300. The decodes take 20, so chunks have 280: three of them and the 60 that are left.
- 45 => That is with chunks of 20. The decodes take 20 tokens, and the prompt gets the other 280.

A server uses shortest job first. All requests together are 60% of what the machine can serve. Can a request with a long
answer be starved?
- Yes: as long as short ones arrive, one of them goes first.
  It goes first only if it waits at the moment when a slot is free. At 60%, that is often not so.
+ No: again and again nothing else waits, and then it's admitted.
  The queue only grows without end if more arrives than is served. Below that it runs empty again and again. Near 100%,
  that takes very long.
- No: after some time of waiting, it passes the short ones.
  That is aging. Under shortest job first, a rank doesn't depend on time.
- Yes: short answers use up the budget of each step.
  The budget limits the tokens of a step. The queue decides which request gets a free slot.

Blocks of 16, a budget of 64, two blocks free. A decodes: its next token would be the first of a new block. B has
computed 20 of the 60 tokens of its prompt, and has two blocks. C, a prompt of 8 tokens, waits. How many tokens does the
next step compute, by the scheduler of this lesson?
+ 1
  A takes a block for its token. B's share is all 40 tokens that it lacks, which end in its fourth block: it needs two
  more, and one is free. So it stalls, and while it does, C isn't admitted.
- 9 => 1 of A and 8 of C? C would take the block that B waits for. If a sequence has stalled, none is admitted.
- 13
  1 of A and the 12 that B's second block has room for? A chunk isn't cut to fit the blocks. It is computed as a whole,
  or its sequence stalls.
- 41 => 1 + 40 fit into the budget, but B's 40 need two blocks, and A has left one.
"""
