"""The quiz of lesson 00."""

SLIPS = """
00.a 390: 30 passes over A's 13 prompt tokens. Each pass is one token longer than the one before.
00.a 855: The last new token is never fed back: the passes are 13 to 42 tokens long, not 14 to 43.
00.a 868: The last new token is never fed back: there are 30 passes, of 13 to 42 tokens.
00.a 1290: 30 passes over 43 tokens. Only the last pass is that long, nearly; the first has 13.
00.a 435: You added up the new tokens only. Every pass computes the 13 tokens of the prompt, too.
00.a 42: Each position is needed once, but this loop computes it again in every pass.
00.a 43: Each position is needed once, but this loop computes it again in every pass.
00.a 30: That is the number of passes. How many tokens does each compute?
00.b 4096: A key *and* a value are stored, in every layer.
00.b 16384: Only the keys and values of the 2 KV heads are stored, not of all 4 query heads.
00.b 2048: That is the number of elements. Each takes 4 bytes in float32.
00.b 1024: That is one layer. Every layer has keys and values of its own.
00.b 512: That is a key, or a value, in one layer.
"""

QUIZ = """
With a cache, a prompt of 20 tokens is answered with 5 new tokens, the limit. How many token positions does the model
compute?
- 110 => That is 20 + 21 + 22 + 23 + 24, the count without a cache.
- 25 => The fifth new token is chosen, but no pass reads it.
+ 24
  The prefill computes 20 and gives the first new token. Each of the other four takes a decode step, which computes one.
- 5 => That is the number of passes. The prefill is one of them, and it computes the whole prompt.

The model answered a prompt of 100 tokens with 50 new tokens, and the cache was kept. Now the user appends 20 more
tokens to that text. What is the minimum number of tokens the model must compute to choose the next one?
+ 21
  The 50th new token was chosen but never fed, so it isn't in the cache. One pass computes it and the 20 tokens after
  it.
- 20 => The cache holds 149 tokens, not 150. The last token of an answer is chosen, but no pass reads it.
- 1 => That would be a decode step. But the user added 20 tokens, and the model has read none of them.
- 170 => Appending text doesn't change the keys and values of the old tokens, so they needn't be computed again.

The cache holds a text of 100 tokens. Now the user replaces the 40th token by another one. Whose keys and values are
still right, in every layer?
- Those of the 99 other tokens
  The tokens after the 40th have seen it, so from the second layer on their vectors depend on it, and so do their keys
  and values.
+ Those of the 39 tokens before it
  A token sees only itself and earlier tokens. The tokens before the 40th have never seen it.
- None => The first 39 tokens see only each other. Nothing that they depend on has changed.
"""
