"""What learners get wrong in 15.3: in `relay`, and in a loop of their own in place of `stream_once`."""

from typing import Any

from lessons_lib.checks.diagnosis import Known, mistakes
from lessons_lib.serving.failover import Chunk, relay, stream_once

# What a loop of one's own over one replica's chunks does wrong, in `stream_once`.
OF_ONE = """
Raise the load before you ask, so that the next choice counts this stream.
- replica.load += 1
+ pass
- replica.load -= 1
+ pass
`stream_once` raises and lowers the load itself. Yours counts this stream twice.
~ load += 1 => load += 2
~ load -= 1 => load -= 2
Other streams count, too: add 1 to the load, and later subtract 1. Don't set it to a number of your own.
~ replica.load += 1 => replica.load = 1
or
~ replica.load += 1 => before = replica.load; replica.load += 1
~ replica.load -= 1 => replica.load = before
The load stays up, as if the replica still served this stream. Lower it however the stream ends: in `finally`.
- replica.load -= 1
+ pass
or
- replica.load -= 1
+ pass
- return
+ replica.load -= 1
+ return
or
- replica.load -= 1
+ pass
- except ReplicaLost:
+ ...
+     replica.load -= 1
The reader may leave before the end. Python raises GeneratorExit at the `yield` then, which only `finally` and `closing`
notice: close the stream and lower the load there.
- except ReplicaLost:
+ except GeneratorExit:
+     replica.load += 1
+     stream = None
+     raise
+ ...
Close the stream however it ends: `stream.close()` tells a replica that still runs to abort the request.
- stream.close()
+ pass
A stream that ends without a `finish_reason` was cut: treat the replica as lost.
- raise ReplicaLost
A chunk with a `finish_reason` is the last one, whatever the reason. An error that a replica reports isn't a loss.
~ if chunk.finish_reason: => if chunk.finish_reason and chunk.finish_reason != "error":
A refusal isn't a loss: every other replica would refuse the request, too. The reader gets the message in a chunk.
- yield Chunk([], "error"
+ raise ReplicaLost
The reader gets a refusal as a chunk, not as an exception: `yield Chunk([], "error", str(error))`.
- yield Chunk([], "error"
+ raise
Any exception but ReplicaLost is a refusal, whatever its type.
~ except Exception as error => except ValueError as error
`replica.stream(...)` may raise, too, not only the loop over its chunks. It belongs inside the `try`.
- try:
- stream = replica.stream
+ stream = replica.stream(request)
+ try:
The message is `str(error)`. It says what to change.
~ str(error) => repr(error)
or
~ str(error) => "the replica refused the request"
"""

MISTAKES = """
Pass each chunk on before you read the next one. Otherwise it isn't a stream.
- for chunk in chunks
+ for chunk in list(chunks):
The reader gets a replica's chunks as they came: `yield chunk`, with all its tokens, its reason and its error.
~ yield chunk => yield from chunk.token_ids
or
~ yield chunk => yield from one_by_one(chunk)
or
~ yield chunk => yield Chunk(chunk.token_ids)
or
~ yield chunk => yield Chunk(chunk.token_ids, "length" if chunk.finish_reason else None)
A chunk with a `finish_reason` can have tokens, too, or none at all. Yield it as it is.
~ yield chunk => yield Chunk([], chunk.finish_reason, chunk.error) if chunk.finish_reason else chunk
or
~ yield chunk => yield from [chunk] if chunk.token_ids else []
`choose` decides which replica is asked: it gets the list, and returns an index in it.
~ remaining.pop(choose(remaining)) => remaining.pop(0)
`choose` also decides which replica goes on. Ask it again for each move.
~ remaining.pop(choose(remaining)) => remaining.pop(choose(remaining) if asked is request else 0)
`choose` must only get replicas that haven't been lost. Take the chosen one out of *that* list, and pass it the same
list the next time.
= replica = remaining[choose(remaining)]
or
~ choose(remaining) => choose(replicas)
or
= replica = remaining[choose(remaining)]
- max_moves -= 1
+ remaining = [each for each in replicas if each is not replica]
+ ...
The balancer needs its list for other requests. Take replicas out of a copy, `list(replicas)`.
~ list(replicas) => replicas
The next replica begins again: it isn't told which tokens the reader has. Note those of every chunk that passes by, and
send what `request_to_go_on` returns.
= asked = request_to_go_on(request, [])
or
- token_ids +=
or
- with closing ... return
+ yield from stream_once(replica, asked)
+ return
A chunk can have several tokens, or none. Note all of them: `token_ids += chunk.token_ids`.
= token_ids += chunk.token_ids[:1]
or
= token_ids += [chunk.token_ids[0]]
or
= token_ids += [chunk.token_ids]
Keep the tokens of *all* replicas so far, or go on from the last request, which already has those before.
- replica = remaining.pop
+ ...
+ token_ids = []
`request_to_go_on` adds the tokens to those that its request already has, so some come twice. Give it the first request
and all tokens, or the last request and the tokens that came since.
~ request_to_go_on(request, token_ids) => request_to_go_on(asked, token_ids)
or
= asked = request_to_go_on(request, [*(request.get("output_token_ids") or []), *token_ids])
The request may already have `output_token_ids`. They stay: they're part of the completion.
- token_ids: list[int] = []
+ ...
+ request = {name: value for name, value in request.items() if name != "output_token_ids"}
or
= asked = request_to_go_on({**request, "output_token_ids": []}, token_ids)
or
= asked = request_to_go_on({**request, "output_token_ids": None}, token_ids)
`request_to_go_on` returns None if no token is missing. Then ask no replica.
~ while asked is not None and => while
or
~ if asked is None => if False
~ while asked is not None and => while
The reader has every token, and only the reason is missing: `yield Chunk([], "length")`, with or without moves and
replicas left.
~ if asked is None => if False
or
- yield Chunk([], "length")
+ return
or
~ if asked is None => if asked is None and remaining
or
~ if asked is None => if asked is None and max_moves >= 0
or
- asked = request_to_go_on
+ if not remaining or max_moves < 0:
+     break
+ ...
`max_moves` is how many replicas are asked *after* the first one: with 2, up to three.
~ max_moves >= 0 => max_moves > 0
It may be the request that kills its replicas. Ask at most `max_moves` more after the first, so that it can't kill all.
~ and max_moves >= 0 => and True
or
~ max_moves >= 0 => max_moves >= -1
A loss counts as a move whether or not a token came before it. A request that kills replicas may do so at once, or late.
= max_moves -= bool(token_ids)
or
- token_ids: list[int] = []
+ ...
+ allowed = max_moves
- token_ids +=
+ ...
+ max_moves = allowed
or
- max_moves -= 1
+ if not token_ids or asked is request:
+     max_moves -= 1
The caller sets the limit: `max_moves`, not `MAX_MOVES`, which is only its default.
~ max_moves >= 0 => len(replicas) - len(remaining) <= MAX_MOVES
A reader that gets no reason can't tell a complete answer from one that was cut off: `yield Chunk([], "error", "...")`.
- yield Chunk([], "error"
+ pass
or
- yield Chunk([], "error"
+ yield Chunk([], "length")
Say in `error` what happened.
- yield Chunk([], "error"
+ yield Chunk([], "error")
No replica is left, or no move. The reader gets that as a chunk, not as an exception: `yield Chunk([], "error", "...")`.
- yield Chunk([], "error"
+ raise ReplicaLost("all")
or
- max_moves -= 1
+ if max_moves == 0 or not remaining:
+     raise
+ ...
No replica is left to choose from. Test that before you call `choose`, and tell the reader.
~ and remaining and => and
The last replica that is left can be asked, too.
~ and remaining and => and len(remaining) > 1 and
or
~ list(replicas) => list(replicas)[:-1]
Without a seed, each replica would draw other random numbers. Draw a seed before the first one is asked, and send all
the same: `random.getrandbits(31)`.
~ if request.get("seed") is None => if False
or
- if request.get("seed") is None
- request =
+ no_seed = request.get("seed") is None
~ stream_once(replica, asked) => stream_once(replica, {**asked, "seed": random.getrandbits(31)} if no_seed else asked)
or
~ if request.get("seed") is None => if "seed" not in request
0 is a seed, too: test `is None`.
~ if request.get("seed") is None => if not request.get("seed")
The reader's own seed stays as it is. Draw one only if there is none.
~ if request.get("seed") is None => if True
A seed is an int: `random.getrandbits(31)`.
~ random.getrandbits(31) => random.random()
Everyone who sends this prompt would get the same answer. Draw the seed at random, for each call anew.
~ random.getrandbits(31) => 5
or
- if request.get("seed") is None
+ random.seed(0)
+ ...
`request` is the caller's. Make a new dict: `{**request, "seed": ...}`.
- request =
+ request["seed"] = random.getrandbits(31)
The field may be missing: `request.get("seed")`.
~ request.get("seed") => request["seed"]
The answer is complete once the chunks of `stream_once` end without an exception: `return`. No other replica is asked.
- return
+ pass
After a chunk with a reason nothing follows.
- return
+ yield Chunk([], chunk.finish_reason)
+ return
or
~ yield chunk => yield from [chunk, Chunk([], chunk.finish_reason)] if chunk.finish_reason else [chunk]
Catch ReplicaLost around the loop over the chunks: another replica can go on.
~ except ReplicaLost => except ConnectionError
`close()` raises GeneratorExit at the `yield`. Don't catch it (`except:` and `except BaseException` do), and yield
nothing after it.
~ except ReplicaLost => except BaseException
`stream_once(replica, request)`: the replica comes first.
~ stream_once(replica, asked) => stream_once(asked, replica)
No replica has failed, and none was asked. Your own code raised an exception, which an `except` turned into a chunk.
- with closing
+ with closing(stream_once(asked, replica)) as chunks:
- except ReplicaLost:
+ except AttributeError as error:
+     yield Chunk([], "error", str(error))
+     return
+ ...
Lower the load of a lost replica before the next one is asked. (An `except` that asks it runs before its `finally`.)
~ stream_once( => unloaded(
- token_ids: list[int] = []
+ ...
+ serving = AtTheEnd()
- replica = remaining.pop
+ ...
+ replica.load += 1
+ serving.append(replica)
One loss isn't the end: while moves and replicas are left, the next one goes on.
- max_moves -= 1
+ max_moves = -1
or
- asked = request_to_go_on
+ ...
+ break
"""


class AtTheEnd(list):
    """Replicas whose load is lowered once the generator that holds this list is gone."""

    def __del__(self) -> None:
        for replica in self:
            replica.load -= 1


def one_by_one(chunk: Chunk) -> list[Chunk]:
    return [
        *(Chunk([token]) for token in chunk.token_ids[:-1]),
        Chunk(chunk.token_ids[-1:], chunk.finish_reason, chunk.error),
    ]


def gives_a_list(request: Any, replicas: Any, choose: Any, max_moves: int = 2) -> Any:
    return list(relay(request, replicas, choose, max_moves))


def gives_nothing(request: Any, replicas: Any, choose: Any, max_moves: int = 2) -> Any:
    gives_a_list(request, replicas, choose, max_moves)


UNLOADED = Known("", "- replica.load += 1\n+ pass\n- replica.load -= 1\n+ pass").attempt(stream_once)
KNOWN = [
    *mistakes(MISTAKES, AtTheEnd=AtTheEnd, one_by_one=one_by_one, unloaded=UNLOADED),
    *(
        Known(each.why, "~ stream_once( => of_one(", names={"of_one": each.attempt(stream_once)})
        for each in mistakes(OF_ONE)
    ),
    Known("The reader should get each chunk as soon as it is there. Yield them, one by one.", answer=gives_a_list),
    Known("Without a `yield` it isn't a generator. Pass each chunk on: `yield chunk`.", answer=gives_nothing),
]
