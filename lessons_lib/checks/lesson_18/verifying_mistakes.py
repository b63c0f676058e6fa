"""What learners get wrong in 18.2."""

from lessons_lib.checks.diagnosis import mistakes

MISTAKES = mistakes("""
The model's own token after the last right guess is kept, too, in place of a wrong guess or where there is none: it was
drawn from a text that is right.
- for place, token in enumerate(own)
+ for token in [own[place] for place in range(len(draft)) if own[: place + 1] == draft[: place + 1]]:
+     sequence.append_token(token)
+     if sequence.finish_reason: break
+ for token in ():
or - for place, token in enumerate(own)
+ for place, token in enumerate(own):
+     if draft[place : place + 1] != [token] and place < len(draft): break
If all guesses are right, or there are none, there is one token more: the last row is that of the last guess.
~ for place, token in enumerate(own) => for place, token in enumerate(own[: len(draft)])
or ~ for place, token in enumerate(own) => for place, token in enumerate(own[: max(1, len(draft))])
What follows a wrong guess was computed from a text that doesn't exist, even if the tokens agree again.
- for place, token in enumerate(own)
+ for place, token in enumerate([each for each, guess in zip(own, [*draft, own[-1]]) if each == guess]):
- if sequence.finish_reason or draft => if sequence.finish_reason:
or ~ if sequence.finish_reason or draft[place : place + 1] != [token] => if sequence.finish_reason
In place of a wrong guess comes what the model draws. You keep the guess.
~ sequence.append_token(token) => sequence.append_token((draft + [token])[place])
or ~ for place, token in enumerate(own) => for place, token in enumerate([*draft, own[-1]])
There is one token more than guesses: after the last guess, `draft` has none to compare with.
~ draft[place : place + 1] != [token] => token != draft[place]
The caller still uses the guesses, and `dict(drafts)` copies none of its lists: take `list(draft)`.
- for place, token in enumerate(own) => for token in own:
- if sequence.finish_reason or draft => if sequence.finish_reason or not draft or draft.pop(0) != token:
or - for place, token in enumerate(own) => for token in own:
- if sequence.finish_reason or draft => if not draft or draft.pop(0) != token or sequence.finish_reason:
or > sequence.blocks = => draft.clear()
Nothing is kept after the end of an answer, even if the guesses are right. `max_new_tokens` ends it, too: ask
`sequence.finish_reason`.
~ if sequence.finish_reason or draft => if token == 0 or draft
or ~ if sequence.finish_reason or draft => if draft
A right guess doesn't end the answer: go on to the next row.
~ draft[place : place + 1] != [token] => draft
or ~ draft[place : place + 1] != [token] => draft[place : place + 1] in ([], [token])
The end token is part of the answer: append it, too.
< sequence.append_token => if token == 0: break
The answer may end here: `sequence.append_token` appends a token and sets `finish_reason`.
~ sequence.append_token(token) => sequence.output_ids.append(token)
Row i of the logits is what follows token i of the row: the first row is that of the last known token, and says whether
the first guess is right. You compare a guess with what follows it.
~ draft[place : place + 1] != [token] => draft[place - 1 : place] != [token] and place
or ~ draft[place : place + 1] != [token] => draft[place : place + 1] != own[place + 1 : place + 2]
Each sequence has as many rows as it has guesses, and one more: the next one's begin after them.
- for place, token in enumerate(own)
+ rows = iter(logits)
+ for place, token in enumerate(own):
or ~ range(len(draft) + 1)] => range(len(draft))] or [draw(next(rows), sequence, first)]
or - rows = iter(logits) => rows, longest = 0, max(map(len, drafts.values())) + 1
- own =
+ own = [draw(logits[min(rows + place, len(logits) - 1)], sequence, first + place) for place in range(len(draft) + 1)]
+ rows += longest
or - own =
+ own = []
+ for place in range(len(draft) + 1):
+     own.append(draw(next(rows), sequence, first + place))
+     if draft[place : place + 1] != own[-1:]: break
The noise depends on the place in the answer: each row has its own, one more than the row before.
~ first + place) for => first) for
Places count from the beginning of the answer, not of the draft: the first row's is `len(sequence.output_ids)`.
~ first + place) for => place) for
Places count from 0: the first row's is `len(sequence.output_ids)`, the number of tokens before it.
~ first + place) for => first + place + 1) for
or ~ first + place) for => first + place - 1) for
A place in the answer isn't a row: `logits` has rows for this pass alone, k + 1 for each sequence.
~ draw(next(rows), => draw(logits[first + place],
Places count from the beginning of the answer, not of the prompt.
~ first = len(sequence.output_ids) => first = sequence.num_tokens
or ~ first = len(sequence.output_ids) => first = sequence.num_computed_tokens
The place of a row is that before anything was appended. Once you append tokens, `len(sequence.output_ids)` grows.
- own =
+ own = []
+ for place in range(len(draft) + 1):
+     own.append(draw(next(rows), sequence, len(sequence.output_ids) + place))
+     if not sequence.finish_reason and own[:-1] == draft[: place]: sequence.append_token(own[-1])
- for place, token in enumerate(own) => for token in ():
The newest token isn't computed yet: the next pass computes it.
= sequence.num_computed_tokens = sequence.num_tokens
Set `sequence.num_computed_tokens`: else the next pass computes the same tokens again.
- sequence.num_computed_tokens =
or - sequence.num_computed_tokens =
~ blocks_for(sequence.num_computed_tokens => blocks_for(sequence.num_tokens - 1
The first pass has computed the whole prompt, whose tokens aren't computed before it. All but the newest token are then.
= sequence.num_computed_tokens += place + 1
or = sequence.num_computed_tokens += place + 1
~ blocks_for(sequence.num_computed_tokens => blocks_for(sequence.num_tokens - 1
The keys of wrong guesses don't count as computed, and those of right ones do: all tokens but the newest.
= sequence.num_computed_tokens += len(draft) + 1
or = sequence.num_computed_tokens += 1
or = sequence.num_computed_tokens += place
or = sequence.num_computed_tokens += len(draft)
Blocks that held only wrong guesses become free: those past the computed tokens.
- needed = blocks_for ... sequence.blocks = sequence.blocks
or - pool.free
or = needed = blocks_for(sequence.num_tokens + len(draft), pool.block_size)
Blocks are needed for the computed tokens alone: 4 of them fill one block of 4, and the newest gets its slot in the next
pass.
= needed = blocks_for(sequence.num_tokens, pool.block_size)
or ~ needed = blocks_for(sequence.num_computed_tokens => needed = blocks_for(sequence.num_computed_tokens + 1
A block that isn't full still holds tokens. Round up, as `blocks_for` does.
= needed = sequence.num_computed_tokens // pool.block_size
A block has `pool.block_size` tokens, here 4. The notebook's `BLOCK` is 16.
~ pool.block_size => 16
The prompt needs blocks, too.
= needed = blocks_for(len(sequence.output_ids), pool.block_size)
The sequence still lists the blocks that it gave back: another sequence will write to them.
- sequence.blocks =
The runner's block tables notice a new list, and not one that shrinks in place: assign `sequence.blocks`.
- sequence.blocks = => del sequence.blocks[needed:]
or - pool.free ... sequence.blocks =
+ while len(sequence.blocks) > needed:
+     pool.free([sequence.blocks.pop()])
Free all blocks past the computed tokens: there may be several.
- pool.free ... sequence.blocks =
+ if len(sequence.blocks) > needed:
+     pool.free(sequence.blocks[-1:])
+     sequence.blocks = sequence.blocks[:-1]
or ~ pool.free(sequence.blocks[needed:]) => pool.free(sequence.blocks[needed : needed + 1])
`pool.free` takes a list of blocks.
~ pool.free(sequence.blocks[needed:]) => [pool.free(each) for each in sequence.blocks[needed:]]
Of a sequence that has ended, too, computed tokens are counted and blocks are freed.
< sequence.num_computed_tokens = => if sequence.finish_reason: continue
Free the last blocks, those past the computed tokens.
~ pool.free(sequence.blocks[needed:]) => pool.free(sequence.blocks[:needed])
or - pool.free ... sequence.blocks =
+ count = len(sequence.blocks) - needed
+ pool.free(sequence.blocks[:count])
+ sequence.blocks = sequence.blocks[count:]
Free only the blocks of wrong guesses. The loop frees all that a finished sequence holds.
< pool.free ... sequence.blocks = => needed *= not sequence.finish_reason
or ~ pool.free(sequence.blocks[needed:]) => pool.free(sequence.blocks)
The guesses aren't tokens of the sequence yet, and its tokens before this pass stay.
< for place, token in enumerate(own) => del sequence.output_ids[len(sequence.output_ids) - len(draft) :]
A sequence without guesses gets a token, too: the row of its last token.
< first = len(sequence.output_ids) => if not draft: continue
or - first = len(sequence.output_ids)
+ if not draft:
+     next(rows)
+     continue
+ ...
Each sequence is verified by itself: the others still get their tokens.
- if sequence.finish_reason or draft
- break
+ if sequence.finish_reason or draft[place : place + 1] != [token]:
+     if sequence.finish_reason: return
+     break
or > sequence.blocks = => return
The likeliest token is right only at temperature 0. Let `draw` choose, with the sequence's noise.
~ draw(next(rows), sequence, first + place) => int(next(rows).argmax())
""")
