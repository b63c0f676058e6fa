"""The quiz of lesson 11."""

SLIPS = """
11.a 3: Only three blocks of the pool never contained anything, and Z takes five.
11.a 2: Z takes the three that never contained anything, and then two of X's.
11.a 0: The first of X's blocks is the last in the queue, so it is still there.
11.b 0: All three blocks are found, but the logits after the last token are needed: it is computed once more.
11.b 16: The last block is found as well. Only the last token is computed once more, for its logits.
11.b 48: That is the whole prompt, without a cache.
11.c 20: That is without sharing. The full blocks of the prompt are stored once.
11.c 8: Those are the blocks that they don't share, two each. The three full blocks of the prompt come on top.
11.c 3: Those are the shared blocks. Each also has two of its own, for positions 48 to 69.
"""

QUIZ = """
Two prompts have the same tokens 16 to 31, but different tokens before them. Blocks hold 16 tokens. Can they share their
second block?
- Yes, since it holds the same tokens at the same positions.
  The keys are different. From the second layer on, a token's key depends on all tokens before it.
+ No. From the second layer on its keys differ, and so do the two block hashes.
  The hash of the first block is part of what the second one's hash is computed from: it covers everything up to the end
  of the block.
- Yes, if the block is copied before one of them writes to it.
  The copy protects against *writes*. Here even reading the block would be wrong.
- Only if both are in the pool at the same time.
  The contents of a block don't depend on when it was computed, but on the tokens before it.

A pool of four blocks of 16 tokens. X has 32 tokens in two full blocks with hashes, and ends. Then Y, which begins
differently, allocates three blocks. How many tokens does a sequence that begins like X find?
- None: X has ended, and its blocks were given back.
  A free block keeps its contents and its hash until it is allocated for something else.
+ 16.
  Y gets the two blocks that never held anything, then X's second block: the last block of a sequence joins the queue
  first. X's first block is still there.
- 16, and they are those of X's second block.
  X's second block was ahead of its first one in the queue, so Y has it. And it would be useless alone.
- 32: nothing is erased.
  Only two blocks have never been used. For the third, Y gets one of X's, which loses its hash.

A sequence is the only user of a block, which is full and has a hash. It has to compute the block's last token once
more. May it write to the block?
- Yes: the count is 1, so no other sequence reads it.
  None reads it now. But the hash is in the table, so in the next step another one may find the block, which must hold
  what its hash says, down to the last bit that others have read.
- Yes: the token is the same, so the block's hash stays right.
  The hash does, but the values may differ in the last bit from those that others have read or will find together with
  their own.
+ No: it needs a copy, in which it writes.
  `is_writable` asks for both: a single user and no hash. A sequence that finds the block later reads what was computed
  first.
- No: it must wait until the block is evicted. => A block that a sequence uses isn't evicted.

Your server's prompts begin with 900 tokens of instructions. Since last week, a line with the date and the time comes
before them, and the first token takes twice as long. What do you change?
- A larger pool, so that the instructions aren't evicted.
  They aren't evicted, they are never found: a hash covers all tokens before its block, and the time is new in each
  request.
+ Move the line behind the instructions.
  Then all requests begin with the same 900 tokens, and only what follows is computed.
- Hash each block without its parent, so that the instructions are found again.
  They would be found, and be wrong: their keys were computed after another line, at other positions.
- Smaller blocks, so that the line is in a block of its own.
  Its block would still come first, and its hash is part of all that follow.
"""
