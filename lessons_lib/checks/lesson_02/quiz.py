"""The quiz of lesson 02."""

SLIPS = """
02.a 82.5: 330 tokens over four slots, as if none ever stood empty. C alone takes 100 steps.
02.a 100: C takes 100 steps from its chunk on, but that waits for the chunks of A and B.
02.a 102: That is C. E takes D's slot in step 24, and its 80 tokens end one step later.
02.a 180: That is static batching: E and F don't wait for the whole first wave any more.
02.b 83: That is the part that is empty.
02.c 15: 240 tokens are 15 chunks of 16, but the chunks of the three short prompts come first.
"""

QUIZ = """
A slot goes to a new request. Why don't we have to erase the old keys and values in its row?
- They are zero by then. => Nothing sets them to zero. They stay until they are overwritten.
+ The mask lets a token see only the columns up to its own position, and those have been overwritten.
  A row's own tokens fill columns 0, 1, 2, ... in order. Anything beyond them is masked and never contributes.
- They are similar to the new ones, so they do little harm.
  They are the keys of another text. Without the mask they change the answer, as the lesson shows.

A prompt of 300 tokens arrives while three requests are decoding. What does a smaller `prefill_step` change?
- The new request's first token comes sooner.
  It comes later: the same prompt tokens take more steps, and every step also decodes.
+ Each step is shorter, so the three requests wait less for each of their tokens; the prompt takes more steps.
  A step lasts as long as its decode pass plus its chunk. Chunking trades the new request's wait against that of all the
  others.
- The answers change slightly.
  Each token sees the same earlier tokens, whichever chunk it is in, so the scores are the same up to rounding. The
  lesson compares the answers token for token.

What does a chunk that starts at position 64 need, besides its tokens?
+ The positions 64, 65, ..., and a mask that lets each token see columns 0 to its own position.
  Positions count from the start of the sequence. With them, the mask `column <= position` is right for every chunk.
- The positions 64, 65, ..., and the mask of the first chunk, since it has as many tokens.
  That mask lets the first token see one column. This chunk's first token must see 65: the whole first chunk, and
  itself.
- The positions 0, 1, 2, ..., and a mask that lets each token see the first 64 columns too.
  Positions determine where the keys are written. The new keys would overwrite those of the first chunk, so the tokens
  would see the wrong keys there.
- The positions 64, 65, ..., and a mask that lets all its tokens see columns 0 to the chunk's end.
  Then a token would see the tokens after it. That never happens when a prompt is computed alone, so the answers would
  differ.

A step computes the chunk first, and the decode pass after it. The rest stays as it is. What changes?
- Nothing: the two passes are of different requests.
  Not always: a request whose prompt ends in this chunk is decoding when the decode pass begins.
+ A request whose prompt is complete gets two tokens in one step: its first one, and the one after it.
  The chunk gives its first token and makes it a decoding request, so the decode pass of the same step includes it. The
  tokens are right, but the step is no longer one token for each request.
- The decode pass overwrites the keys of the chunk with those of its dummy token.
  The dummy token of a prefilling row is written where the row's next token goes, behind the chunk, and the next chunk
  overwrites it.
- The new request's first token is wrong, since it doesn't see its whole prompt.
  It sees the earlier chunks in the cache and this one, in any order of the two passes.

Four slots, `max_seq_len` 1,024. Four requests decode; with the token of this pass, three have 40 tokens each and one
has 1,000. What does the pass read of the cache, and how much of it is reserved?
- 40 columns for three rows and 1,000 for one; 4 × 1,024 are reserved.
  The pass is a rectangle: all rows are read up to the column of the longest one, and what a row must not see is masked.
+ 1,000 columns for all four rows; 4 × 1,024 are reserved.
  One long request makes the pass wider for all, as one long answer did in a wave. And each slot reserves 1,024 columns,
  whichever request is in it.
- 1,024 columns for all four rows; as many are reserved.
  `num_keys` is the longest request's length: the pass reads no column beyond it.
- 1,000 columns for all four rows; 3 × 40 + 1,000 are reserved.
  Slots are rows of one tensor, which has been allocated as a whole before any request came.
"""
