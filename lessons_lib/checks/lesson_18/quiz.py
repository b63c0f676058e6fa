"""The quiz of lesson 18."""

SLIPS = """
18.a 3: That would be 1 + 4 × 0.5: but a guess counts only if all guesses before it are right.
18.a 2: Two is what endless guesses would bring. Four stop a little earlier.
18.a 0.94: The right guesses, but the pass also brings the model's own token.
18.a 0.9375: The right guesses, but the pass also brings the model's own token.
18.a 1.06: That is the chance of all four together, and one.
18.a 5: Only if all four guesses are right, and that happens once in sixteen passes.
18.b 129: As many tokens as the base is worth, computed and returned: but right guesses bring more than one token.
18.b 52: 258 tokens, five for each reader. But the readers' own tokens come without guesses, too.
18.b 65: 258 tokens, four guesses for each reader. How many tokens do these bring?
18.b 258: That's where a step without guesses takes twice its base.
"""

QUIZ = """
One user chats with your server at night; by day it decodes 200 sequences at a time. The guesses are right half of the
time. When should it guess?
- Always: a right guess is a free token.
  The wrong ones are computed, too. In a large step, a token costs its share of the time.
+ At night. By day only guesses that are nearly sure, or none.
  A small step has room: it reads all weights anyway. A large one is as long as its tokens.
- By day, when speed is needed.
  By day a step computes 200 tokens already, and wrong guesses make it longer for all of them.

You replace the table of n-grams by a bad draft: almost all of its guesses are wrong. What changes for the users of this
engine?
- The texts get worse. => A guess is never taken on trust: it has to be the model's own token.
- The texts change, but they are as good.
  Not here: each token is the model's own draw, with the noise of its seed and place.
+ Only the speed: fewer tokens a pass, and time lost for guesses.
  Every token is the one that the model would have drawn without guesses.

A draft has q = [0.9, 0.1], the model p = [0.6, 0.4], and each draws on its own. By the accept-or-redraw rule, how often
is a guess accepted?
+ 0.7: token 0 with 0.9 × 2/3, token 1 always, with 0.1. => In all, the sum of min(p, q): 0.6 + 0.1.
- 0.58: that is how often both draw the same.
  0.9 × 0.6 + 0.1 × 0.4 is what you get by waiting for the same draw. The rule accepts more.
- 0.9: the draft's likeliest token. => Then token 0 would come in nine of ten texts, and the model wants it in six.
"""
