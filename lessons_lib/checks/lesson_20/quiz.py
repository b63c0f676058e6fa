"""The quiz of lesson 20."""

SLIPS = """
20.a 2.4: That's the copy in µs. How often does it go into the time of computing?
20.a 5.1: That's with 26 GB/s, half the bus.
20.a 1.4: That's the disk, with 7 GB/s.
"""

QUIZ = """
A prompt's blocks are a, b, c and d. The pool has a and c, the host d, and b on the disk is damaged. How many blocks
does `load_prefix` return?
+ One.
  Without b, c and d are useless: the pass computes from there on.
- Three: a, c and d.
  Without b, the keys behind it can't be used.
- None: a damaged block ends the lookup.
  What comes before it is right, and is used.

A floor evicts the block of least depth first, since deep tokens cost most to compute. What is wrong?
- Nothing: it keeps what is expensive.
  It keeps blocks that can't be used any more.
+ The rest of the conversation is useless without its first block.
  A lookup ends at the first block that is nowhere. So the last ones have to go first.
- Deep tokens are cheaper than others.
  They attend to more tokens, so they cost a little more.

On the way from prefill to decode, one block of a prompt is lost. What does the user see?
- A worse answer.
  Nothing is guessed: tokens whose keys are missing are computed.
- An error.
  A block that isn't found is an ordinary miss of the cache.
+ The same answer, a little later.
  The decode engine finds the blocks before it, and computes the rest.
"""
