"""What learners get wrong in 12.1."""

from lessons_lib.checks.diagnosis import mistakes

MISTAKES = mistakes("""
Requests may come at any time: look into the inbox before each step, not only before the first one.
- try:
+ try:
+     for _ in range(len(inbox)): scheduler.add(inbox.popleft())
- while inbox: ... scheduler.add(
~ while inbox or scheduler.has_unfinished(): => while scheduler.has_unfinished():
The scheduler may have nothing left while the inbox has: the loop ends only when both are empty.
~ while inbox or scheduler.has_unfinished(): => while scheduler.has_unfinished():
Sequences that wait count, too, and `scheduler.running` hasn't got them: `scheduler.has_unfinished()`.
~ inbox or scheduler.has_unfinished(): => inbox or scheduler.running:
An empty inbox isn't the end: the scheduler's sequences want their tokens.
~ while inbox or scheduler.has_unfinished(): => while inbox:
Add everything that is in the inbox before a step, so that it can join the batch now.
- while inbox: => if inbox:
The oldest request is at the left of the inbox: `popleft`.
~ inbox.popleft() => inbox.pop()
A request that comes may join the running ones: don't wait until they have finished.
- while inbox: => while inbox and not scheduler.has_unfinished():
Take what you add out of the inbox. You add the same request again before each step.
- while inbox: ... scheduler.add( => for sequence in inbox: scheduler.add(sequence)
In the middle of a prompt there is no new token: the row predicts one that is already there. `gets_token` says which
sequences get one.
~ if gets_token: => if True:
~ sequence.output_ids[-1] => sequence.output_ids[-1] if sequence.output_ids else None
or - scheduler.update(
+ tokens = compute(output)
+ scheduler.update(output, tokens)
- for sequence, gets_token ... yield
+ for sequence, token in zip(output.num_scheduled_tokens, tokens): yield sequence.id, token
`gets_token` is filled by `scheduler.update`. Before it, the list is empty.
- scheduler.update(
+ tokens = compute(output)
+ pairs = list(zip(output.num_scheduled_tokens, output.gets_token))
+ scheduler.update(output, tokens)
~ in zip(output.num_scheduled_tokens, output.gets_token): => in pairs:
The order is that of `num_scheduled_tokens`, not of the ids.
~ in zip(output.num_scheduled_tokens, output.gets_token): => in by_id:
> scheduler.update( => by_id = sorted(zip(output.num_scheduled_tokens, output.gets_token), key=lambda pair: pair[0].id)
`compute` returns a token for *every* scheduled sequence, also in the middle of a prompt: zip with all of them.
- scheduler.update(
+ tokens = compute(output)
+ scheduler.update(output, tokens)
+ getters = [each for each, gets in zip(output.num_scheduled_tokens, output.gets_token) if gets]
- for sequence, gets_token ... yield => for sequence, token in zip(getters, tokens): yield sequence.id, token
The last chunk of a prompt gives a token, too, however long it is: `gets_token` says so.
~ if gets_token: => if gets_token and output.num_scheduled_tokens[sequence] == 1:
The last token of an answer is streamed as well.
~ if gets_token: => if gets_token and not sequence.finish_reason:
Stream each token as soon as its step is counted, not when the answer is complete.
- if gets_token ... yield
+ if sequence.finish_reason:
+     for token in sequence.output_ids: yield sequence.id, token
Stream after each step. You keep the tokens until the loop ends.
- try:
+ try:
+     found = []
- yield => found.append((sequence.id, sequence.output_ids[-1]))
- finally:
+     yield from found
+ finally:
Return a generator: `yield` each token. A list is only there once everything has been served.
- try:
+ try:
+     found = []
- yield => found.append((sequence.id, sequence.output_ids[-1]))
- finally:
+     return found
+ finally:
`yield` each pair: that makes your function a generator.
- if gets_token ... yield => pass
Count the step (`scheduler.update`) before you stream its tokens. A reader may leave at any `yield`.
- scheduler.update( ... yield
+ tokens = compute(output)
+ for (sequence, count), token in zip(output.num_scheduled_tokens.items(), tokens):
+     if sequence.num_computed_tokens + count == sequence.num_tokens: yield sequence.id, token
+ scheduler.update(output, tokens)
The id comes first, then the token: `yield sequence.id, token`.
~ yield sequence.id, sequence.output_ids[-1] => yield sequence.output_ids[-1], sequence.id
or ~ yield sequence.id, sequence.output_ids[-1] => yield sequence, sequence.output_ids[-1]
or ~ yield sequence.id, sequence.output_ids[-1] => yield sequence.output_ids[-1]
A step without tokens isn't the end. Sequences may have to wait for blocks.
< scheduler.update( => if not output.num_scheduled_tokens: break
or > scheduler.update( => if not output.num_scheduled_tokens: break
Call `compute` even if nothing is scheduled: it carries out the block copies of the step.
< scheduler.update( => if not output.num_scheduled_tokens: continue
Without `scheduler.update`, nothing is counted, and the next step computes the same tokens again.
- scheduler.update( => compute(output)
or - scheduler.update( => tokens = compute(output)
- for sequence, gets_token ... yield
+ for sequence, token in zip(output.num_scheduled_tokens, tokens): yield sequence.id, token
One step is one pass for *all* scheduled sequences: call `compute` once.
< scheduler.update( => compute(output)
Schedule once in each step, and use that output. Each call of `schedule` allocates blocks for a step of its own.
~ compute(output) => compute(scheduler.schedule())
or < output = => scheduler.schedule()
When the reader leaves, Python raises `GeneratorExit` at your `yield`. Remove the scheduler's sequences then, too: their
blocks are still in use. A `finally` runs in every case.
- for sequence in [*scheduler.running ... scheduler.remove
If `compute` raises an error, remove the scheduler's sequences, too. A `finally` runs in every case.
- finally: => except GeneratorExit:
Ctrl-C is a `KeyboardInterrupt`, which isn't an `Exception`. Clean up then, too: a `finally` runs in every case.
- finally:
+ except (GeneratorExit, Exception):
+     for sequence in [*scheduler.running, *scheduler.waiting]: scheduler.remove(sequence)
+     raise
+ else:
Your clean-up runs after each step; put the `try` around the loop.
- try: ... scheduler.remove(
+ while inbox or scheduler.has_unfinished():
+     try:
+         while inbox: scheduler.add(inbox.popleft())
+         output = scheduler.schedule()
+         scheduler.update(output, compute(output))
+         for sequence, gets_token in zip(output.num_scheduled_tokens, output.gets_token):
+             if gets_token: yield sequence.id, sequence.output_ids[-1]
+     finally:
+         for sequence in [*scheduler.running, *scheduler.waiting]: scheduler.remove(sequence)
Sequences that still wait have to go as well.
~ [*scheduler.running, *scheduler.waiting] => list(scheduler.running)
Running sequences have the blocks. Remove them as well.
~ [*scheduler.running, *scheduler.waiting] => list(scheduler.waiting)
`remove` takes sequences out of the list that you loop over, so the loop skips every second one. Loop over a copy.
- for sequence in [*scheduler.running
+ for sequence in scheduler.running:
+     scheduler.remove(sequence)
+ for sequence in list(scheduler.waiting):
Clearing the lists isn't enough: no sequence would ever free these blocks. `scheduler.remove` does both.
~ scheduler.remove(sequence) => scheduler.running.clear() or scheduler.waiting.clear()
Clean up, and let the error go on: the caller must learn of it.
- finally:
+ except Exception:
+     pass
+ finally:
Let `GeneratorExit` go on: after it, a generator may not yield again.
- yield
+ try:
+     yield sequence.id, sequence.output_ids[-1]
+ except GeneratorExit:
+     pass
""")
