"""The quiz of lesson 05."""

SLIPS = """
05.a 330: That is a pass for each token of an answer: one request at a time.
05.a 180: That is two waves, 100 and 80 passes. But E doesn't wait for C: it starts when D leaves.
05.a 106: Prompts take no passes of their own: they go into the rows of the others.
05.a 108: That many the slots need. In the row, no prompt takes a pass of its own.
05.b 5: A is first in the row, but every sequence has its own position 0: A attends to the others' first tokens.
05.b 0: Positions alone don't tell sequences apart: each has its own position 0.
"""

QUIZ = """
A loop sorts the sequences of the row by length before `pack`, but still joins the caches in the order of admission.
What happens?
- Nothing: the mask compares ids and positions, and the keys can be anywhere.
  They can, as long as each key has its own tags. `key_tags` gives them by the order of the row.
+ Requests attend to the keys of other requests.
  The tags of the cached keys follow the order of the row, and the keys that of admission. So the ids are attached to
  foreign keys, and no shape is wrong.
- The pass raises an error, because the lengths don't fit.
  The joined cache has the same number of keys in either order, and so has the mask.
- The answers are right, but the logits are in another order.
  The logits are in the order of the row, which the caller knows. It's the keys that are in the wrong one.

B decodes alone, and F has just been admitted with a prompt of 40 tokens. How many token positions does the next step
compute, with four slots and with the packed row?
- Slots: 41. Packed row: 41.
  41 tokens are needed. But the decode pass over the slots is a rectangle and also computes one for each of the three
  slots that don't decode.
- Slots: 160 in one pass. Packed row: 41 in one pass.
  Static batching would make a rectangle of 4 × 40. Lesson 02 computes a prompt in a separate pass.
- Slots: 44 in two passes. Packed row: 41 in two passes.
  The packed row doesn't separate prompts from decodes. All new tokens go through the weights in one pass.
+ Slots: 44 in two passes. Packed row: 41 in one pass.
  Slots: 4 in the decode pass, three of them wasted, then 40 in a pass for the prompt. Packed row: 1 and 40 together.

Four requests at a time: which load saves the smallest share of its passes with the packed row, compared with four
slots?
+ Four short prompts, each with an answer of 2,000 tokens.
  The slots are full until the end, and only four passes compute prompts, so there is hardly anything to save. And
  nowhere is more copied: each step moves thousands of cached tokens.
- Two hundred short prompts, each with an answer of 2 tokens.
  With slots, each of the two hundred prompts takes a pass of its own. The row computes four at a time, and copies
  little, since little is cached.
- Four prompts of 1,000 tokens, each with an answer of 1 token.
  The slots take sixteen passes, of 64 tokens, for each prompt; the row takes one for all four. Nothing was cached
  before it, so there is little to copy.
- Prompts of 200 tokens, each with an answer of 10.
  With slots, a prompt of 200 tokens takes four passes, so they make more passes for prompts than for decoding. The row
  saves most of them.

Seven requests decode, the limit is 32 tokens a row, and a request with a prompt of 100 tokens is admitted. In which of
its steps does it get its first token?
- In the first one.
  Only 25 of its tokens fit into that row. The logits after token 25 predict token 26 of the prompt.
+ In the fourth one.
  The others have 7 tokens in each row, so 25 are left for the prompt, and 4 × 25 = 100. The last chunk gives the first
  token.
- In the fifth one.
  The fourth row has the last 25 of the prompt's tokens, and its logits predict the first token of the answer.
- In the hundredth one. => That would be one token of the prompt in each row. It gets what the others leave: 25.
"""
