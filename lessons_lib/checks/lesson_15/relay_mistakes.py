"""What learners get wrong in 15.3: in `relay`, and in a loop of their own in place of `stream_once`."""

from lessons_lib.checks.diagnosis import Known, mistakes
from lessons_lib.serving.failover import stream_once

# What a loop of one's own over one replica's chunks does wrong, in `stream_once`.
OF_ONE = """
A stream that ends without a `finish_reason` was cut: treat the replica as lost.
- raise ReplicaLost
A chunk with a `finish_reason` is the last one, whatever the reason. An error that a replica reports isn't a loss.
~ if chunk.finish_reason: => if chunk.finish_reason and chunk.finish_reason != "error":
A refusal isn't a loss: every other replica would refuse the request, too. The reader gets the message in a chunk.
- yield Chunk([], "error" => raise ReplicaLost
Any exception but ReplicaLost is a refusal. The reader gets it as a chunk: `yield Chunk([], "error", str(error))`.
- yield Chunk([], "error" => raise
or ~ str(error) => repr(error)
`replica.stream(...)` may raise, too, not only the loop over its chunks. It belongs inside the `try`.
- try:
- stream = replica.stream
+ stream = replica.stream(request)
+ try:
"""

MISTAKES = """
The reader gets a replica's chunks as they came: `yield chunk`, with all its tokens, its reason and its error.
~ yield chunk => yield from chunk.token_ids
or ~ yield chunk => yield chunk.token_ids
or ~ yield chunk => yield Chunk(chunk.token_ids)
or ~ yield chunk => yield Chunk(chunk.token_ids, chunk.finish_reason)
A chunk that the reader already has must not change. `token_ids = chunk.token_ids` takes its list, and `+=` changes it.
~ token_ids: list[int] = [] => token_ids: Any = None
- token_ids +=
+ if token_ids is None: token_ids = chunk.token_ids
+ else: token_ids += chunk.token_ids
A chunk with a `finish_reason` can have tokens, too, or none at all. Yield it as it is.
~ yield chunk => yield Chunk([], chunk.finish_reason, chunk.error) if chunk.finish_reason else chunk
or ~ yield chunk => yield from [chunk] if chunk.token_ids else []
`choose` decides which replica is asked: it gets the list, and returns an index in it.
~ remaining.pop(choose(remaining)) => remaining.pop(0)
`choose` also decides which replica goes on. Ask it once for each move.
~ remaining.pop(choose(remaining)) => remaining.pop(choose(remaining) if asked is request else 0)
or < replica = remaining.pop => choose(remaining)
`choose` must only get replicas that haven't been lost. Take the chosen one out of *that* list, and pass it the same
list the next time.
= replica = remaining[choose(remaining)]
or ~ choose(remaining) => choose(replicas)
The lost replica is asked again. Take it out of the list, and let `choose` take the next from the rest.
~ remaining.pop(choose(remaining)) => remaining[choose(remaining) if asked is request else 0]
As part of the prompt, tokens don't count as generated: the seed begins again, for one. Send what `request_to_go_on`
returns.
= asked = {**request, "prompt": request["prompt"] + token_ids, "max_tokens": request["max_tokens"] - len(token_ids)}
or = asked = {**request, "prompt": request["prompt"] + token_ids}
The next replica begins again: it isn't told which tokens the reader has. Note those of every chunk that passes by, and
send what `request_to_go_on` returns.
- token_ids +=
A chunk can have several tokens, or none. Note all of them: `token_ids += chunk.token_ids`.
= token_ids += [chunk.token_ids]
or = asked = request_to_go_on(request, token_ids[:-1])
Keep the tokens of *all* replicas so far, or go on from the last request, which already has those before.
> replica = remaining.pop => token_ids = []
`request_to_go_on` adds the tokens to those that its request already has, so some come twice. Give it the first request
and all tokens, or the last request and the tokens that came since.
~ request_to_go_on(request, token_ids) => request_to_go_on(asked, token_ids)
or = asked = request_to_go_on(request, [*(request.get("output_token_ids") or []), *token_ids])
The request may already have `output_token_ids`. They stay: they're part of the completion.
= asked = request_to_go_on({**request, "output_token_ids": None}, token_ids)
`request_to_go_on` returns None if no token is missing. Then ask no replica.
~ while asked is not None and => while
or ~ if asked is None => if False
~ while asked is not None and => while
`Chunk([], "length")`: the reader has every token already, and `max_tokens` was reached.
~ yield Chunk([], "length") => yield Chunk(token_ids, "length")
or ~ yield Chunk([], "length") => yield Chunk([], "stop")
or ~ yield Chunk([], "length") => yield Chunk([], None)
The reader has every token, and only the reason is missing: `yield Chunk([], "length")`, with or without moves and
replicas left.
~ if asked is None => if False
or - yield Chunk([], "length") => return
or - asked = request_to_go_on
+ if not remaining or max_moves < 0:
+     break
+ ...
`max_moves` is how many replicas are asked *after* the first one: with 2, up to three.
~ max_moves >= 0 => max_moves > 0
It may be the request that kills its replicas. Ask at most `max_moves` more after the first, so that it can't kill all.
~ and max_moves >= 0 => and True
or ~ max_moves >= 0 => max_moves >= -1
A loss counts as a move whether or not a token came before it. A request that kills replicas may do so at once, or late.
= max_moves -= bool(token_ids)
A reader that gets no reason can't tell a complete answer from one that was cut off: `yield Chunk([], "error", "...")`.
- yield Chunk([], "error"
or - yield Chunk([], "error" => yield Chunk([], "length")
Say in `error`, a str, what happened. The reason is "error", and the reader has all tokens that came before.
- yield Chunk([], "error" => yield Chunk([], "error")
or - yield Chunk([], "error" => yield Chunk([], "every replica was lost")
or - yield Chunk([], "error" => yield Chunk([], "error", ReplicaLost("every replica was lost"))
or - yield Chunk([], "error" => yield Chunk(token_ids, "error", "every replica was lost")
A reader needn't notice a loss, as long as another replica can go on. Yield nothing for it.
> max_moves -= 1 => yield Chunk([], None, "moved")
or > max_moves -= 1 => yield Chunk([], "error", "lost")
Without a seed, each replica would draw other random numbers. Draw a seed before the first one is asked, and send all
the same: `random.getrandbits(31)`.
~ if request.get("seed") is None => if False
or - if request.get("seed") is None
- request =
+ no_seed = request.get("seed") is None
~ stream_once(replica, asked) => stream_once(replica, {**asked, "seed": random.getrandbits(31)} if no_seed else asked)
or - if request.get("seed") is None
- request =
+ given = request
+ if request.get("seed") is None: request = {**request, "seed": random.getrandbits(31)}
~ request_to_go_on(request, => request_to_go_on(given,
0 is a seed, too: test `is None`.
~ if request.get("seed") is None => if not request.get("seed")
The reader's own seed stays as it is. Draw one only if there is none.
~ if request.get("seed") is None => if True
A seed is an int: `random.getrandbits(31)`.
~ random.getrandbits(31) => random.random()
or ~ random.getrandbits(31) => str(random.getrandbits(31))
Everyone who sends this prompt would get the same answer. Draw the seed at random, for each call anew.
~ random.getrandbits(31) => 5
The answer is complete once the chunks of `stream_once` end without an exception, whatever the reason: `return`. No
replica is asked again.
- return
or = replica = remaining[choose(remaining)]
- return
One loss isn't the end: while moves and replicas are left, the next one goes on.
- max_moves -= 1 => max_moves = -1
"""


KNOWN = [
    *mistakes(MISTAKES),
    *(
        Known(each.why, "~ stream_once( => of_one(", names={"of_one": each.attempt(stream_once)})
        for each in mistakes(OF_ONE)
    ),
    Known("Without a `yield` it isn't a generator. Pass each chunk on: `yield chunk`.", answer=lambda *a, **m: None),
]
