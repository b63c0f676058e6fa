"""The quiz of lesson 04."""

SLIPS = """
04.a 29.4: Those are whole squares. Within its own story, a token doesn't attend to later ones.
04.a 50.3: That is one causal text of 144 tokens: the sequence rule is missing.
04.a 14.3: A token attends to itself, too: a story of n tokens has n (n + 1) / 2 cells.
04.b 6: The model is rotary: only distances matter, and no distance within a story changes.
04.b 5: That is right for absolute positions, as in GPT-2. This model is rotary: only distances matter.
"""

QUIZ = """
A (3 tokens) and B (2 tokens) are packed into one row, and positions restart in each sequence. Which rule keeps B's
token at position 1 from attending to A's token at position 0?
+ Only the sequence rule.
  To the causal rule, position 0 is simply before position 1. Only the sequence ids tell A from B.
- The causal rule, because A's token is further left in the row.
  The causal rule compares positions, and 0 isn't after 1. It would allow this pair.
- The padding rule. => Neither token is padding, and that rule only checks whether the key is padding.

Three sequences have 10, 4 and 0 tokens in the cache. In this pass they add 1, 1 and 6 new tokens. What is the shape of
the mask?
- [22, 22] => Cached tokens aren't computed again. They provide keys, but no queries.
- [8, 8] => The new tokens must see the cached ones too, so there are more keys than queries.
- [3, 22] => Queries are tokens, not sequences. The third sequence adds six of them.
+ [8, 22] => The queries are the 1 + 1 + 6 new tokens. The keys are those plus the 14 in the cache.

A program fills the end of a row with padding, but tags it wrongly: with the id of the last story, and positions that go
on from the story's. What does the padding do to the logits of the row's stories?
- It changes those of all stories. => The other stories have other ids: the sequence rule keeps the padding out.
- It changes those of the last story.
  The id matches, but the positions are later than all of the story's tokens: the causal rule keeps the padding out.
+ Nothing in this pass. A token that is appended behind the padding would attend to it.
  In this pass, the causal rule does the work. For a later token the padding is a part of the story, and earlier than
  itself.

The six stories share a row on GPT-2, which adds a learned vector for each position. The mask is right, but positions
run on through the row, and there's no cache. Which of the six answers can change?
- None: all distances within a story are right.
  That is enough for a rotary model. GPT-2 knows no distances: it adds one vector per position, and a shift means other
  vectors.
+ All but the first in the row.
  The first story's positions are right. Every other one is shifted, so other vectors are added to its tokens.
- All six. => The first story starts at position 0, as it does alone.

One sequence has 100 tokens, of which 3 are new. You call attention for it with `is_causal=True`, by which query i
attends to the keys 0 to i. What goes wrong?
- Nothing: there is only one sequence.
  That makes the sequence rule unnecessary. But query 0 is the token at position 97, not at 0.
+ The three queries see 1, 2 and 3 keys instead of 98, 99 and 100.
  The queries are the last tokens of the sequence, and `is_causal` counts them from its first key.
- Each query also sees keys of later tokens. => It sees too few keys, not too many: query i stops at key i.
"""
