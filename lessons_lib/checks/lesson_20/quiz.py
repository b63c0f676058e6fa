"""The quiz of lesson 20."""

SLIPS = """
20.a 2.4: That's the copy in µs. How often does it go into the time of computing?
20.a 1.4: That's the disk, with 7 GB/s.
20.b 26: Without block 9, those behind it are useless.
20.b 218: Blocks 0 to 8 are found: nine.
"""

QUIZ = """
A prompt's blocks are a, b, c and d. The pool has a and c, the host d, and b on the disk is damaged. How many blocks
does `load_prefix` return?
+ One. => Without b, c and d are useless: the pass computes from there on.
- Three: a, c and d. => Without b, the keys behind it can't be used.
- None: a damaged block ends the lookup. => What comes before it is right, and is used.

A floor evicts the block of least depth first, since deep tokens cost most to compute. What is wrong?
- Nothing: it keeps what is expensive. => It keeps blocks that can't be used any more.
+ The rest of the conversation is useless without its first block.
  A lookup ends at the first block that is nowhere. So the last ones have to go first.
- Deep tokens are cheaper than others. => They attend to more tokens, so they cost a little more.
"""
