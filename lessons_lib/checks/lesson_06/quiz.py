"""The quiz of lesson 06."""

SLIPS = """
06.a 219: Those are the cached tokens, three times. Splitting copies the new ones, too, once: (3 × 292 + 4) / 4.
06.a 73: That is one copy of the cached tokens. Lesson 05 made three.
06.a 222: The new tokens are copied once, when the caches are split, not three times.
06.a 880: That is how many tokens' keys and values are copied. Divide by the 4 that were computed.
06.b 5: Most blocks bring no larger score. Then the factor is exp(0) = 1, and there is nothing to correct.
06.b 3: Compare each block with the largest score of *all* earlier ones: 14.9, then 15.9 from block 3 on.
"""

QUIZ = """
Blocks hold 16 tokens. A request with blocks [7, 2] and 20 cached tokens decodes. Where is its new key written, and what
is read?
- Slot 20; slots 0 to 20. => Those are positions. Position 20 is in the second block of the table, block 2, at offset 4.
+ Slot 36; block 7, then block 2 up to and including offset 4.
  2 × 16 + 4 = 36. It reads its 20 old tokens and the new one, first from block 7, then from block 2.
- Slot 36; all 32 slots of blocks 7 and 2.
  The slot is right. But the last 11 slots of block 2 hold no token of this request, and their contents must not be
  used.
- Slot 116; blocks 2 and 7, in this order.
  7 × 16 + 4 is in block 7, which is full. And the order is the table's: first 7, then 2.

After some blocks, a query's state is maximum 4, total 3. The next block has scores 6 and 5. What is the new total?
- 3 + e⁰ + e⁻¹
  The old total is relative to the maximum 4, the new weights to 6. Rescale the old total before you add them.
- 3 e² + e⁰ + e⁻¹ => The factor is exp(old − new) = e⁻². A larger maximum makes the old sum count for less.
+ 3 e⁻² + e⁰ + e⁻¹ => The old total times exp(4 − 6), plus exp(6 − 6) and exp(5 − 6).
- 3 + e⁶ + e⁵
  These are bare exponentials, added to a total that is relative to 4. And with scores near 90 they would overflow.

A sequence has 20 cached tokens, in blocks of 16. A chunk of 3 new tokens is computed. Which keys does the second of
them attend to, and how many slots are read?
- Keys 0 to 1; 2 slots. => It's the second of its chunk, but it is at position 21 of its sequence.
- Keys 0 to 22; 23 slots. => The slots are right. But key 22 belongs to the third new token, which comes after it.
+ Keys 0 to 21; 23 slots.
  The tokens are at positions 20, 21 and 22. All 23 slots are read, since the third one needs them. For the second one,
  key 22 is hidden.
- Keys 0 to 21; 32 slots.
  The keys are right. But the last 9 slots of the second block hold no token of this sequence and may hold NaN.

Sixteen sequences decode in a step. Which keys and values must be copied so that `attention_in_place` can read them?
+ None.
  One block of one KV head is a view of the cache. New memory is needed only for a block's scores and for the sums.
- Those of all caches, three times, as in lesson 05.
  Caches are no longer concatenated or split: each step writes only its new keys and values.
- In each layer, temporarily, that layer's keys and values.
  That is true of the library's backend for CPUs, which gathers rectangles for PyTorch's attention.
- The blocks of requests that finish.
  Releasing a block only puts its id into the free queue. Its contents stay until they are overwritten.
"""
