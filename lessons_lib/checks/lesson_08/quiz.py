"""The quiz of lesson 08."""

SLIPS = """
08.a 75: A quarter of the bytes would be a quarter of the time if bytes were the limit. A program's time is its
  iterations, and there are as many as before.
08.c 128: All four warps together: each executes a quarter.
08.c 16: That's one of the two products.
08.c 64: A product takes 16 × 64 × 128 multiplications, and an `mma` does 16 × 8 × 16 of them: 64 for one product. There
  are two, and four warps share them.
08.b 2.11: That's one iteration. A part of 512 keys has four, of 128 keys each.
08.b 33.75: Sixteen parts run at the same time, so a program's time counts, not that of sixteen iterations.
08.b 1.055: There were 8 programs before, too. Each has 4 iterations now instead of 64.
"""

QUIZ = """
A machine reads 4 TB/s. The keys and values of a batch of decodes are 8 GB, and a kernel takes 2,500 µs. What follows?
+ No kernel can take less than 2,000 µs, so at most a fifth of the time can be saved.
  8 GB at 4 TB/s take 2,000 µs, however the kernel is written, and 500 of 2,500 µs is a fifth.
- Every key is read more than once.
  That would explain the time, but so would waiting. Bytes divided by bandwidth is a lower bound on the time; it doesn't
  say where the rest goes.
- The arithmetic takes 500 µs. => Reading and computing can overlap, so the difference isn't the time of either.
- A kernel with larger tiles would take less than 2,000 µs.
  Larger tiles mean fewer iterations. The bytes stay the same, and reading them takes 2,000 µs.

Blocks of 16, BLOCK_N = 64, a context of 100. How many keys does the second iteration of your kernel load, and from how
many blocks?
- 64 keys from 4 blocks => The tile has the positions 64 to 127, and the sequence ends at 99. What is past it is masked.
- 36 keys from 4 blocks => The fourth block would start at position 112, past the last token.
- 16 keys from 1 block
  That's a kernel that goes block by block. Here each of the 64 positions looks up its own block.
+ 36 keys from 3 blocks => Positions 64 to 99: all of blocks 4 and 5 of the table, and 4 keys of its block 6.

A model has 4 query heads per KV head. What changes in a step of decodes if BLOCK_M goes from 16 to 64?
- The bytes of keys and values fall to a quarter.
  The keys were loaded once before, too, for all 4 rows that a decode has. More rows of padding don't save a load.
+ The kernel does four times the arithmetic for the same bytes.
  60 rows of padding are multiplied instead of 12, and each key is still loaded once. A decode waits for bytes, so the
  time need not grow as much.
- Nothing: `tl.dot` skips masked rows.
  `tl.dot` has no mask. A masked load gives those rows zeros, and they're multiplied like the others.
- The results change in all digits, since more rows share a softmax.
  The softmax runs along a row. Rows don't affect each other, and those of the padding aren't stored.

Your server mostly decodes 64 sequences at once, and sometimes one long one alone. On which of the two should the number
of parts of a sequence depend, and how?
- On neither: the part size that's fastest for one sequence is best for all.
  With 64 sequences there are programs enough, and every part has to be started, stored and merged.
- On the length only: long sequences need many parts, whatever else is in the batch.
  Length alone doesn't say whether processors are idle. 64 long sequences keep them busy without parts.
+ On how many programs there are without parts: split until all processors have some, and no further.
  Splitting helps only where processors would be idle. Past that, parts cost time and save none.
- On the memory: more parts read fewer bytes. => Each key is read once, by one program, however the sequence is cut.
"""
