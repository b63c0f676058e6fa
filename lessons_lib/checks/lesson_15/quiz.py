"""The quiz of lesson 15."""

SLIPS = """
15.a 640: That is with both turns before it in one cache. The turn just before went to the other replica.
15.a 0: Turns 1, 3 and 5 all go to replica 0, and turns 2 and 4 to replica 1.
15.a 24: That is blocks. A block has 16 tokens.
15.a 192: The fifth prompt finds the third in the cache. Do the third and the fourth find nothing?
15.a 960: That is all prompt tokens. The new ones of a turn can't be in a cache.
15.b 4: The model sees the same tokens. But what counts as generated is no longer the same.
15.b 3: One of the other three goes on, but isn't the same. What counts as generated tokens now?
15.b 2: Take the seed: which random number does the eleventh token get now?
15.b 0: Greedy tokens depend on nothing but the tokens before them.
15.c 19: 15 + 4 would need a least loaded replica with 15 requests, and all four replicas have 15 together.
15.c 6: And the new one.
15.c 5: The limit is about the load before the new request, above the least loaded replica's, which isn't 0.
"""

QUIZ = """
Four replicas, prefix affinity, limit 8. All requests begin with the same long instructions, and one replica often has
seven requests more than the others. Readers complain about the wait for their first token. What do you change first?
+ Lower the limit.
  The others compute the instructions once, and find them in their own caches from then on. For a prefix that everyone
  shares, that is cheap.
- Raise the limit: more is found. => Still more requests would go to the same replica.
- Give that replica more blocks. => It finds the instructions already. The requests wait for their turn, not for memory.
- Go back to round robin. => The load gets even. But the turns of a conversation are computed again by every replica.

A replica dies after 7 tokens of a completion with temperature 1 and seed 3. The balancer sends the prompt and the 7
tokens as one longer prompt to another one, with the same seed. What does the reader get?
- The same completion as without the failure: the model sees the same tokens.
  The model gives the same probabilities. But token 8 is now drawn with the first random number of the seed instead of
  the eighth.
- An error: a prompt can't end in the middle of an answer.
  To the model it's just tokens. Nothing tells a prompt from an answer.
+ A completion that goes on well, but with other tokens than without the failure.
  The probabilities are right, but the random numbers differ. That is fine without a seed. A seed promises the same
  tokens.
- The first 7 tokens twice.
  The new replica returns only what comes after its prompt. They would come twice if the *first* request were sent
  again.

A request crashes each engine that computes it. The balancer moves lost streams to another replica, without a limit.
There are eight replicas. What is the damage?
- One replica is lost: the balancer sees that the request is bad and refuses it.
  From outside, a crash looks the same whatever the cause. The balancer sees only a broken connection.
- None: a crashed engine is restarted at once.
  A start takes from seconds to minutes, and the streams that were in it are lost or have to move.
- Two, because prefix affinity sends it only to the replicas that know its prompt.
  Affinity prefers a replica. It doesn't forbid the others, and a lost one isn't asked again.
+ All eight are lost, and with them every stream.
  Each one dies of it in turn. With `max_moves` = 1, two die. Engines should turn bad requests away before they compute
  anything, but the limit is still needed.

A stream with `max_moves` = 1 is lost after 30 tokens and moved. The second replica's stream just ends, without a
`finish_reason`, after 10 more of at most 200. What does the balancer do?
- It passes the end on: the model had nothing more to say.
  Then the last chunk would have the reason 'stop'. A reader that gets no reason can't tell a complete answer from one
  that was cut off.
- It asks a third replica for the rest, with all 40 tokens as `output_token_ids`.
  An end without a reason is a loss, and it would be right with another move left. But one was the limit.
+ It ends the stream with the reason 'error'.
  An end without a reason counts as a loss, and no move is left. The reader learns that the answer isn't complete.
- It adds the reason 'length'.
  The completion has 40 of 200 tokens. A wrong reason makes part of an answer look complete.
"""
