"""The quiz of lesson 01."""

SLIPS = """
01.a 107: Each weight takes two bytes, and two operations for a token: one operation per byte.
01.a 429: A token takes two operations for each weight, a multiplication and an addition.
01.b 6: B has the longest prompt, so its row has no padding to hide.
01.b 1: The mask matters in each row with padding: all but the longest.
01.c 5: With rotary positions, only the differences between positions matter, and a shift changes none of them.
01.c 6: With rotary positions, only the differences between positions matter, and a shift changes none of them.
"""

QUIZ = """
One short request is served alone. Its decode step does about 2 operations for each weight it reads. What would make it
faster on a machine where it is memory-bound?
- Arithmetic units that are twice as fast => They already wait for memory. They would only wait longer.
+ Weights of half the size, such as bfloat16 instead of float32
  Half the bytes have to be moved for the same operations, and moving bytes is what takes the time.
- A prompt of half the length
  It makes the cache smaller. But for one short request, nearly all bytes of the step are weights.
- Computing logits for fewer positions => There is only one position in a decode step.

Four requests want 10, 100, 12 and 90 tokens, and there is room for two at a time. How many forward passes do two waves
take in this order, and at the least?
- 212, and 190 at the least => 212 is one request after the other. In a wave, one pass gives a token to both rows.
- 106 in any order
  That is half of the sum, as if no row waited for another. A wave lasts as long as its longest answer.
- 190 in any order => 100 + 90 = 190 in this order. Which requests share a wave matters.
+ 190, and 112 at the least
  100 + 90 in this order. With similar lengths together, 12 + 100: the longest answer of each wave.

By mistake, a wave is padded on the right. Everything else stays as it is, and the next tokens are read from the last
column. Which requests get their first token from the wrong place?
- All of them. => The longest prompt has no padding, so its last token is in the last column, wherever padding goes.
+ Those whose prompt is shorter than the longest of the wave.
  Their last column is padding: its logits aren't those after their last token.
- The one with the longest prompt. => That is the only one whose last column surely holds its last token.
- None: the mask hides the padding.
  The mask keeps real tokens from attending to padding. It doesn't change which column is read.

In a wave of four, one answer is done after 20 steps and the others after 100. What share of the cells that these 100
steps compute for answers is thrown away?
- None: the finished row is skipped.
  The batch is a rectangle: every row is computed in every pass, and the result is thrown away.
- About 80% => That is the share of the finished row. The three other rows need all of their cells.
+ About 20%
  80 of 4 × 99 = 396 cells: the finished row goes on for 80 steps. (The prefill gives the first token of each row, and
  the last is never fed back.) This is the batch barrier.
- About 25% => One row in four, but only after its 20 steps: in those, its cells were needed.

The batch size goes from 4 to 8, with the same requests of unequal length. Which of these can grow or stay the same, but
never shrink?
+ The number of tokens computed
  Every wave of eight combines two old waves, so each row is now as long as the longest row of both. The useful tokens
  stay the same.
- Tokens per second
  They often grow, but not always: a pass over more rows takes longer, and one long answer per wave can keep the number
  of passes nearly the same.
- The share of computed tokens that are useful
  It falls or stays the same: the longest answer and the longest prompt of eight are at least as long as those of four.
"""
